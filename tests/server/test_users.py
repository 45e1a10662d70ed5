"""Users on real sockets: who is let in, what each may do, and what a reload makes of those who are there."""

from __future__ import annotations

import hmac
import json
import signal
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from staniel.broker.commands.login import HINT, login
from staniel.broker.passwords import PasswordCheck, hash_password, parse_hash
from staniel.broker.session import CLOSED, SUSPENDED
from staniel.broker.timers import Timers
from staniel.broker.users import Logins
from staniel.journal.background import TaskQueue
from staniel.server.connection import OPEN
from staniel.server.timeouts import LOGIN_MS, ClientTimeouts
from tests.server.admin.asking import Operator
from tests.support.certificates import Authority
from tests.support.process import STANIEL, Server, run_staniel, running, until

SALT = bytes(range(16))
WORDS = {name: f"{name}-secret" for name in ("writer", "reader", "operator", "boss", "both")}
HASHES = {name: hash_password(word.encode(), SALT) for name, word in WORDS.items()}
TOKEN = "a-token-of-the-operator"
USERS = """
[users.writer]
roles = ["write"]
queues = ["orders*"]
password_hash = "{writer}"

[users.reader]
roles = ["read"]
queues = ["orders", "orders+mail"]
password_hash = "{reader}"

[users.both]
roles = ["read", "write"]
queues = ["*"]
password_hash = "{both}"
certificates = ["worker.example"]

[users.operator]
roles = ["read", "operate"]
queues = ["orders*"]
password_hash = "{operator}"
token_file = "token"

[users.boss]
roles = ["admin"]
password_hash = "{boss}"
"""


def users() -> str:
    return USERS.format(**HASHES)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "token").write_text(TOKEN + "\n")
    with running(tmp_path, config=users() + "[admin]\nport = 0\n") as started:
        yield started


class Client:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def ask(self, *lines: str, end: bytes = b"\r\n") -> str:
        self.sock.sendall("".join(f"{line}\r\n" for line in lines).encode())
        heard = b""
        while not heard.endswith(end):
            piece = self.sock.recv(65536)
            if not piece:
                break
            heard += piece
        return heard.decode()

    def login(self, name: str, password: str = "") -> str:
        said = f"{name} {password or WORDS[name]}"
        return self.ask(f"set auth 0 0 {len(said)}", said)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def connect(stack: ExitStack, server: Server, user: str = "") -> Client:
    client = Client(stack.enter_context(closing(socket.create_connection(server.address, 30))))
    if user:
        assert client.login(user) == "STORED\r\n"
    return client


def test_nothing_is_served_before_a_login(server: Server, stack: ExitStack) -> None:
    client = connect(stack, server)
    lines = "get orders|delete orders|stats|version|shutdown|flush_all|md orders|mn|status"
    for line in lines.split("|"):
        assert client.ask(line) == "CLIENT_ERROR unauthenticated\r\n"
    assert client.login("writer") == "STORED\r\n"
    assert client.ask("version").startswith("VERSION ")


def test_rights_are_those_of_roles_and_names(server: Server, stack: ExitStack) -> None:
    writer, reader = connect(stack, server, "writer"), connect(stack, server, "reader")
    assert writer.ask("set orders 0 0 1", "a") == "STORED\r\n"
    assert writer.ask("set orders.x 0 0 1", "a").startswith("CLIENT_ERROR")
    assert writer.ask("set order 0 0 1", "a") == "CLIENT_ERROR user writer may not write to order\r\n"
    assert writer.ask("set xorders 0 0 1", "a") == "CLIENT_ERROR user writer may not write to xorders\r\n"
    assert writer.ask("set Orders 0 0 1", "a") == "CLIENT_ERROR user writer may not write to Orders\r\n"
    assert writer.ask("ms order 1", "a") == "CLIENT_ERROR user writer may not write to order\r\n"
    assert writer.ask("get orders/peek") == "CLIENT_ERROR user writer may not read orders\r\n"
    assert writer.ask("set orders2 0 0 1", "a") == "STORED\r\n"
    assert reader.ask("get orders2") == "CLIENT_ERROR user reader may not read orders2\r\n"
    assert reader.ask("get orders orders2") == "CLIENT_ERROR user reader may not read orders2\r\n"
    assert reader.ask("get orders2/open/n=3") == "CLIENT_ERROR user reader may not read orders2\r\n"
    assert reader.ask("monitor orders2 1") == "CLIENT_ERROR user reader may not read orders2\r\n"
    assert reader.ask("mg orders2 v") == "CLIENT_ERROR user reader may not read orders2\r\n"
    assert reader.ask("set orders 0 0 1", "a") == "CLIENT_ERROR user reader may not write to orders\r\n"
    assert reader.ask("get orders+mail") == "END\r\n"
    assert reader.ask("get orders", end=b"END\r\n") == "VALUE orders 0 1\r\na\r\nEND\r\n"


def test_a_user_may_have_to_be_content_with_the_queues_that_are_there(tmp_path: Path, stack: ExitStack) -> None:
    config = users().replace('roles = ["read", "write"]\nqueues = ["*"]', '{0}queues = ["*"]\ncreate = false')
    config = config.format('roles = ["read", "write", "operate"]\n') + "[aliases]\nall = ['new']\n"
    (tmp_path / "token").write_text(TOKEN + "\n")
    with running(tmp_path, config=config + "[admin]\nport = 0\n") as server:
        both, writer, boss = (connect(stack, server, name) for name in ("both", "writer", "boss"))
        refused = "CLIENT_ERROR user both may not create "
        for lines, name in [
            (("set q 0 0 1", "a"), "q"),
            (("ms q 1", "a"), "q"),
            (("get q+child",), "q+child"),
            (("get orders q+child",), "q+child"),
            (("mg q+child",), "q+child"),
            (("monitor q+child 1",), "q+child"),
        ]:
            assert both.ask(*lines) == f"{refused}{name}\r\n"
        assert both.ask("get q") == "END\r\n", "it reads as an empty one"
        assert both.ask("set all 0 0 1", "a") == "STORED\r\n", "what an alias passes on needs no right"
        assert writer.ask("set orders 0 0 1", "a") == "STORED\r\n"
        assert both.ask("move orders q") == f"{refused}q\r\n"
        assert both.ask("set orders 0 0 1", "b") == "STORED\r\n"
        assert boss.ask("set q 0 0 1", "a") == "STORED\r\n"
        assert both.ask("get q", end=b"END\r\n").startswith("VALUE q ")
        assert "queue_q+child" not in boss.ask("stats", end=b"END\r\n")
        assert both.ask("set q 0 0 1", "a") == "STORED\r\n"
        assert boss.ask("delete q") == "DELETED\r\n"
        assert both.ask("set q 0 0 1", "a") == f"{refused}q\r\n", "that it was allowed once does not make it again"
        reload_with(server, config.replace("create = false", "create = true"))
        assert both.ask("set q2 0 0 1", "a") == "STORED\r\n", "it has gained a right"
        reload_with(server, config)
        assert both.ask("version") == "", "and lost one"


def test_what_hurts_needs_a_role(server: Server, stack: ExitStack) -> None:
    both, operator, boss = (connect(stack, server, name) for name in ("both", "operator", "boss"))
    for line in ("delete q", "flush q", "flush_all", "flush_expired q", "move q r", "pause q gets", "md q"):
        assert "may not operate on" in both.ask(line), line
    for line in ("shutdown", "reload", "status readonly"):
        assert both.ask(line) == "CLIENT_ERROR user both is no admin\r\n"
        assert operator.ask(line) == "CLIENT_ERROR user operator is no admin\r\n"
    assert both.ask("status") == "UP\r\n"
    assert operator.ask("delete orders1") == "NOT_FOUND\r\n"
    assert operator.ask("flush_all") == "CLIENT_ERROR user operator may not operate on all queues\r\n"
    for line in ("stats", "dump_config", "dump_stats"):  # of all queues, for those who may read, or operate on, all
        assert operator.ask(line) == "CLIENT_ERROR user operator may not read all queues\r\n"
    assert operator.ask("move orders1 other") == "CLIENT_ERROR user operator may not operate on other\r\n"
    assert boss.ask("flush_all") == "OK\r\n"
    assert boss.ask("reload") == "Reloaded config.\r\n"


def test_a_login_in_a_pipeline_holds_for_what_follows(server: Server, stack: ExitStack) -> None:
    for _ in range(2):  # the second time the password is remembered
        client = connect(stack, server)
        said = f"both {WORDS['both']}"
        lines = ("get q", f"set auth 0 0 {len(said)}", said, "set q 0 0 1", "a", "get q")
        wanted = "CLIENT_ERROR unauthenticated\r\nSTORED\r\nSTORED\r\nVALUE q 0 1\r\na\r\nEND\r\n"
        assert client.ask(*lines, end=b"END\r\n") == wanted
        assert client.ask("set auth 0 0 3", "a b", "get auth", end=b"END\r\n").startswith("STORED\r\nVALUE auth")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("both wrong", "authentication failure"),
        ("nobody secret", "authentication failure"),
        ("both", "bad authentication token format"),
        ("", "bad authentication token format"),
        ("both both-secret more", "bad authentication token format"),
        ("both " + "x" * 2000, "bad authentication token format"),
    ],
)
def test_a_wrong_login_is_refused_in_memcacheds_words_and_told_what_a_first_set_is(
    server: Server, stack: ExitStack, said: str, why: str
) -> None:
    client = connect(stack, server)
    answer = client.ask(f"set auth 0 0 {len(said)}", said)
    assert answer == f"CLIENT_ERROR {why}: {HINT}{'; this set is none' * (why[0] == 'b')}\r\n"
    assert client.ask("get q") == "CLIENT_ERROR unauthenticated\r\n"
    assert client.login("both") == "STORED\r\n"


def test_a_token_is_a_password_too_but_for_its_own_user_alone(server: Server, stack: ExitStack) -> None:
    """For programs: nothing is hashed."""
    client = connect(stack, server)
    assert client.login("operator", TOKEN) == "STORED\r\n"
    assert client.ask("get orders1") == "END\r\n"
    other = connect(stack, server)
    for name in ("both", "nobody"):
        assert other.login(name, TOKEN).startswith("CLIENT_ERROR authentication failure: ")
    assert other.login("operator") == "STORED\r\n"
    (server.folder / "token").write_text("another-token-of-the-operator\n")
    assert run_staniel("reload", "--spool", str(server.folder / "spool")).returncode == 0
    assert client.ask("get orders1") == "" == other.ask("get orders1")
    assert connect(stack, server).login("operator", "another-token-of-the-operator") == "STORED\r\n"


def test_kestrels_dialect_has_memcacheds_login_and_refusals_in_words(tmp_path: Path, stack: ExitStack) -> None:
    config = f'[memcache]\ndialect = "kestrel"\n{users()}'.replace('token_file = "token"', "")
    with running(tmp_path, config=config) as server:
        client = connect(stack, server)
        for line in ("version", "get orders", "stats", "monitor orders 1"):
            assert client.ask(line) == "CLIENT_ERROR unauthenticated\r\n"
        assert client.ask("set auth 0 0 4", "both").startswith("CLIENT_ERROR bad authentication token format: ")
        assert client.login("reader", "mistaken").startswith("CLIENT_ERROR authentication failure: ")
        assert client.login("reader") == "STORED\r\n"
        assert client.ask("set orders 0 0 1", "a") == "CLIENT_ERROR user reader may not write to orders\r\n"
        assert client.ask("get orders") == "END\r\n"
        other = connect(stack, server)
        for _ in range(3):
            assert other.login("reader", "mistaken").startswith("CLIENT_ERROR authentication failure: ")
        assert other.ask("version") == ""


@pytest.mark.parametrize("dialect", ["memcached", "kestrel"])
def test_a_health_check_without_a_login_sees_that_the_server_is_alive(tmp_path: Path, dialect: str) -> None:
    config = f'[memcache]\ndialect = "{dialect}"\n{users()}'.replace('token_file = "token"', "")
    with running(tmp_path, config=config) as server:
        port = ("--port", str(server.port))
        said, alive = run_staniel("ping", *port), run_staniel("ping", *port, "--alive")
        assert said.returncode == 3 and "wants a login, so its status is not known" in said.stdout
        assert alive.returncode == 0 and alive.stderr == ""


def test_names_of_users_are_utf_8(tmp_path: Path, stack: ExitStack) -> None:
    user, secret = "jürgen-鳥", WORDS["both"].encode()
    config = f'[users."{user}"]\nroles = ["read"]\nqueues = ["*"]\npassword_hash = "{HASHES["both"]}"\n'
    with running(tmp_path, config=config) as server:
        sock = connect(stack, server).sock
        for name, wanted in ((user.encode("latin-1", "replace"), b"CLIENT_ERROR"), (user.encode(), b"STORED")):
            said = name + b" " + secret
            sock.sendall(b"set auth 0 0 %d\r\n%s\r\n" % (len(said), said))
            assert sock.recv(1000).startswith(wanted)
        sock.sendall(b"set q 0 0 1\r\na\r\n")
        assert sock.recv(1000) == b"CLIENT_ERROR user j%FCrgen-%E9%B3%A5 may not write to q\r\n"


def test_three_failures_end_the_connection_and_are_logged_without_secrets(server: Server, stack: ExitStack) -> None:
    client = connect(stack, server)
    for _ in range(3):
        assert client.ask("set auth 0 0 12", "both mistaken"[:12]).startswith("CLIENT_ERROR authentication failure: ")
    assert client.ask("version") == ""
    other = connect(stack, server)
    other.ask("set auth 0 0 13", "my-secret abc")
    assert until(lambda: "login.failed" in server.stderr)
    assert "user=both" in server.stderr
    assert "mistake" not in server.stderr
    assert "my-secret" not in server.stderr


def test_a_guess_is_counted_and_logged_though_its_client_does_not_wait_for_the_answer(
    server: Server, stack: ExitStack
) -> None:
    """Else one could guess unseen: a right pair is known at once to the next who brings it."""
    for _ in range(3):
        client = connect(stack, server)
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sock.sendall(b"version\r\nset auth 0 0 10\r\nboth wrong\r\n")
        client.sock.recv(100)  # all of it was read; the comparison takes longer than to leave
        client.sock.close()
    assert until(lambda: "login.failed" in server.stderr)
    boss = connect(stack, server, "boss")
    assert until(lambda: "STAT logins_failed 3\r\n" in boss.ask("stats server", end=b"END\r\n"))


def test_refusals_without_end_are_few_lines_whatever_names_they_have(server: Server, stack: ExitStack) -> None:
    reader = connect(stack, server, "reader")
    reader.sock.sendall(b"".join(b"get x%d\r\n" % number for number in range(500)) + b"get orders\r\n")
    heard = b""
    while not heard.endswith(b"END\r\n"):
        heard += reader.sock.recv(65536)
    assert heard.count(b"may not read") == 500
    assert connect(stack, server, "writer").ask("get orders").startswith("CLIENT_ERROR")
    assert until(lambda: "user writer may not read orders" in server.stderr), "another user's are told all the same"
    assert server.stderr.count("command.refused") == 20 + 1


def test_who_may_not_cannot_wash_out_the_audit_log(server: Server) -> None:
    asking = Operator(int(server.greeting.split("127.0.0.1:")[2].split(",")[0]))
    bearer = f"Bearer {TOKEN}"
    assert asking.ask("DELETE", "/api/queues/orders1", authorization=bearer).status == 404
    for number in range(200):
        found = asking.ask("POST", f"/api/queues/{'x' * 1000}{number}/purge", {}, authorization=bearer)
        assert found.status == 403
        assert asking.ask("POST", "/api/status", {}, authorization=bearer).status == 403
    lines = [json.loads(line) for line in (server.spool / ".staniel/audit").read_text().splitlines()]
    assert (lines[0]["operation"], lines[0]["queue"]) == ("delete", "orders1")
    assert [line["result"] for line in lines[1:]] == ["refused"] * 20
    assert max(len(line["queue"]) for line in lines) == 255


def test_a_token_is_one_users_alone(tmp_path: Path) -> None:
    for name, text in [("token", TOKEN), ("same", f" {TOKEN}\n"), ("other", "another-token-of-another")]:
        (tmp_path / name).write_text(text)
    path = tmp_path / "staniel.toml"
    second = '[users.second]\nroles = ["read"]\nqueues = ["q"]\ntoken_file = "{}"\n'
    for tables, why in [
        (second.format("same"), "users.second.token_file: expected a token of its own, got that of operator"),
        (second.format("other"), ""),
        ('[admin]\nport = 0\ntoken_file = "same"\n', "users.operator.token_file: expected a token of its own, got"),
        ('[admin]\ntoken_file = "same"\n', ""),  # which nobody is asked for
    ]:
        path.write_text(users() + tables)
        found = run_staniel("config", "check", str(path))
        assert (found.returncode != 0) == bool(why) and why in found.stderr, found.stderr
        assert TOKEN not in found.stderr


def test_a_large_value_before_a_login_is_not_kept(server: Server, stack: ExitStack) -> None:
    client = connect(stack, server)
    assert "too large" in client.ask(f"set auth 0 0 {1 << 20}", "x" * (1 << 20))
    assert client.login("both") == "STORED\r\n"
    assert client.ask(f"set q 0 0 {1 << 20}", "x" * (1 << 20)) == "STORED\r\n"


def test_a_long_frame_of_a_client_that_is_no_user_is_not_kept(tmp_path: Path, stack: ExitStack) -> None:
    with running(tmp_path, config=users().replace('token_file = "token"', "") + "[thrift]\nport = 0\n") as server:
        for size in (64 << 10) + 1, 8 << 20:
            client = Client(
                stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.second_port), 30)))
            )
            client.sock.sendall(struct.pack(">I", size) + b"x" * 1000)
            assert client.sock.recv(100) == b"", "hung up on before it is all there"
        client = Client(stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.second_port), 30))))
        client.sock.sendall(struct.pack(">I", 64 << 10) + b"x" * 1000)
        client.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.sock.recv(100)


def reload_with(server: Server, config: str) -> None:
    count = server.stderr.count("config.reloaded")
    server.config.write_text(config)
    server.signal(signal.SIGHUP)
    assert until(lambda: server.stderr.count("config.reloaded") > count)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('roles = ["read", "write"]\nqueues = ["*"]', 'roles = ["write"]\nqueues = ["*"]'),
        lambda text: text.replace('roles = ["read", "write"]\nqueues = ["*"]', 'roles = ["read"]\nqueues = ["q*"]'),
        lambda text: text.replace(HASHES["both"], HASHES["boss"]),
        lambda text: text.replace("[users.both]", "[users.other]"),
    ],
)
def test_a_client_that_loses_a_right_is_hung_up_on(server: Server, stack: ExitStack, change) -> None:  # type: ignore[no-untyped-def]
    holder, waiter = connect(stack, server, "both"), connect(stack, server, "both")
    boss = connect(stack, server, "boss")
    assert holder.ask("set q 0 0 1", "a") == "STORED\r\n"
    assert holder.ask("get q/open", end=b"END\r\n").startswith("VALUE")
    waiter.sock.sendall(b"get other/t=60000/open\r\n")
    reload_with(server, change(users()))
    assert waiter.sock.recv(100) == b""
    assert holder.sock.recv(100) == b""
    assert boss.ask("set other 0 0 1", "b") == "STORED\r\n"
    assert boss.ask("get q/t=2000", end=b"END\r\n") == "VALUE q/t=2000 0 1\r\na\r\nEND\r\n"
    assert boss.ask("get other", end=b"END\r\n").startswith("VALUE other")


def test_a_client_that_gains_a_right_stays_and_has_it(server: Server, stack: ExitStack) -> None:
    reader = connect(stack, server, "reader")
    assert "may not write" in reader.ask("set orders 0 0 1", "a")
    reload_with(server, users().replace('roles = ["read"]\n', 'roles = ["read", "write"]\n'))
    assert reader.ask("set orders 0 0 1", "a") == "STORED\r\n"


def test_users_that_a_reload_brings_are_asked_for(tmp_path: Path, stack: ExitStack) -> None:
    (tmp_path / "token").write_text(TOKEN)
    with running(tmp_path, config="[admin]\nsocket = true\n") as server:
        before = connect(stack, server)
        assert before.ask("set q 0 0 1", "a") == "STORED\r\n"
        reload_with(server, users())
        assert before.ask("version") == ""
        assert connect(stack, server).ask("version") == "CLIENT_ERROR unauthenticated\r\n"


@pytest.mark.parametrize("tables", ["[admin]\nport = 0\n", ""])
def test_the_admin_port_asks_for_users_that_a_reload_brings(tmp_path: Path, stack: ExitStack, tables: str) -> None:
    """Also if the listener is to be gone after the next start, and until then is there."""
    (tmp_path / "token").write_text(TOKEN)
    with running(tmp_path, config="[admin]\nport = 0\n") as server:
        page = stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.second_port), 10)))
        page.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        stream = stack.enter_context(closing(page.makefile("rb")))
        assert b"200" in stream.readline()
        reload_with(server, users() + tables)
        assert stream.read() is not None, "what was begun without being asked ends"
        operator = Operator(server.second_port)
        assert operator.ask("GET", "/api/queues").status == 401
        assert operator.ask("GET", "/api/queues/orders", authorization=f"Bearer {TOKEN}").status == 404


def test_tokens_of_users_have_their_rights_at_the_admin_port(server: Server) -> None:
    operator = Operator(int(server.greeting.split("127.0.0.1:")[2].split(",")[0]))
    bearer = f"Bearer {TOKEN}"
    assert operator.ask("GET", "/api/queues").status == 401
    assert operator.ask("GET", "/api/queues", authorization="Bearer wrong-wrong-wrong-wrong").status == 401
    assert operator.ask("GET", "/health/live").status == 200
    forged = hmac.new(b"", b"cookie of the admin page", "sha256").hexdigest()
    assert operator.ask("GET", "/api/queues", cookie=f"staniel={forged}").status == 401
    assert operator.ask("POST", "/login", {"token": ""}).status == 401
    put = operator.ask("POST", "/api/queues/orders/put", {"text": "a"}, authorization=bearer)
    assert put.status == 403, put
    for method, path, status in [
        ("GET", "/api/queues", 403),
        ("DELETE", "/api/queues/orders9", 404),
        ("DELETE", "/api/queues/other", 403),
        ("POST", "/api/stop", 403),
        ("POST", "/api/reload", 403),
        ("POST", "/api/status", 403),
        ("POST", "/api/queues/other/move", 403),
        ("GET", "/api/audit", 403),
    ]:
        found = operator.ask(method, path, {} if method == "POST" else None, authorization=bearer)
        assert found.status == status, (method, path, found)


def test_what_a_token_has_begun_ends_when_it_is_worth_less(server: Server, stack: ExitStack) -> None:
    port = int(server.greeting.split("127.0.0.1:")[2].split(",")[0])
    config = users().replace('roles = ["read", "operate"]\nqueues = ["orders*"]', 'roles = ["read"]\nqueues = ["*"]')
    reload_with(server, config + "[admin]\nport = 0\n")
    page = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), 10)))
    asked = f"GET /api/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    page.sendall(asked.encode())
    stream = stack.enter_context(closing(page.makefile("rb")))
    assert b"200" in stream.readline()
    reload_with(server, users() + "[admin]\nport = 0\n")
    assert stream.read() is not None, "the stream ends"


def test_what_a_token_has_begun_ends_on_a_connection_that_is_another_user_too(tmp_path: Path, stack: ExitStack) -> None:
    authority = Authority(tmp_path)
    files, worker = authority.issue("server"), authority.issue("worker.example")
    (tmp_path / "token").write_text(TOKEN)
    tables = f'[tls]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\nclient_ca = "{authority.path}"\n'
    tables += "[admin]\ntls_port = 0\n"
    given = users().replace('roles = ["read", "operate"]\nqueues = ["orders*"]', 'roles = ["read"]\nqueues = ["*"]')
    with running(tmp_path, config=given + tables) as server:
        context = ssl.create_default_context(cafile=str(authority.path))
        context.load_cert_chain(worker.certificate, worker.key)
        plain = stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.second_port), 10)))
        page = stack.enter_context(closing(context.wrap_socket(plain, server_hostname="localhost")))
        asked = f"GET /api/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        page.sendall(asked.encode())
        assert b"200" in page.recv(1000)
        reload_with(server, users() + tables)
        assert until(lambda: not page.recv(1 << 20)), "the stream ends"


def test_the_audit_log_and_the_statistics_know_users(server: Server, stack: ExitStack) -> None:
    operator, boss = connect(stack, server, "operator"), connect(stack, server, "boss")
    assert operator.ask("delete orders1") == "NOT_FOUND\r\n"
    assert operator.ask("flush orders") == "END\r\n"
    assert "may not" in operator.ask("flush other")
    assert "failure" in connect(stack, server).login("both", "wrong")
    asking = Operator(int(server.greeting.split("127.0.0.1:")[2].split(",")[0]))
    assert asking.ask("GET", "/api/audit", authorization=f"Bearer {'x' * 20}").status == 401
    assert boss.ask("set orders 0 0 1", "a") == "STORED\r\n"
    purged = asking.ask("POST", "/api/queues/orders/purge", {}, authorization=f"Bearer {TOKEN}")
    assert purged.status == 200, purged.json
    assert boss.ask("flush_all") == "OK\r\n"
    found = dict(line.split()[1:3] for line in boss.ask("stats server", end=b"END\r\n").splitlines()[:-1])
    assert (found["logins"], found["logins_failed"], found["commands_refused"]) == ("2", "2", "1")
    lines = [json.loads(line) for line in (server.spool / ".staniel/audit").read_text().splitlines()]
    named = {(line["operation"], line["protocol"]): line["user"] for line in lines}
    assert named["purge", "admin"] == "operator"
    assert named["flush_all", "memcache"] == "boss"


def test_certificates_are_users(tmp_path: Path, stack: ExitStack) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("server")
    (tmp_path / "token").write_text(TOKEN)
    config = f'[tls]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\nclient_ca = "{authority.path}"\n'
    with running(tmp_path, config=f"{users()}{config}[memcache]\ntls_port = 0\n[text]\ntls_port = 0\n") as server:
        where = server.greeting.split(", spool")[0].split(", ")
        ports = [int(each.rpartition(":")[2]) for each in where if "tls:" in each]
        for name, port, line, wanted in [
            ("worker.example", ports[0], b"get q\r\n", b"END\r\n"),
            ("worker.example", ports[0], b"delete q\r\n", b"CLIENT_ERROR user both may not operate on q\r\n"),
            ("worker.example.org", ports[0], b"get q\r\n", b"CLIENT_ERROR unauthenticated\r\n"),
            ("worker.example", ports[1], b"delete q\n", b"-user both may not operate on q\n"),
            ("stranger", ports[1], b"get q\n", b"-unauthenticated\n"),
        ]:
            client = authority.issue(name)
            context = ssl.create_default_context(cafile=str(authority.path))
            context.load_cert_chain(client.certificate, client.key)
            plain = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), 30)))
            sock = stack.enter_context(closing(context.wrap_socket(plain, server_hostname="localhost")))
            sock.sendall(line)
            assert sock.recv(1000) == wanted


def test_a_unix_sockets_client_is_known_by_its_uid(tmp_path: Path, stack: ExitStack) -> None:
    (tmp_path / "token").write_text(TOKEN)
    with running(tmp_path, "--port", "0", config=f"{users()}[text]\nlisten = ['unix:s']\n"):
        sock = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
        sock.connect(str(tmp_path / "s"))
        sock.sendall(b"delete q\n")
        assert sock.recv(100) == b"+0\n", "its own user may do everything"


def test_a_hash_is_made_of_what_standard_input_says() -> None:
    found = subprocess.run([*STANIEL, "user", "hash"], input=b"both-secret\n", capture_output=True, timeout=60)
    words = found.stdout.decode().strip().split("$")
    assert words[:4] == ["scrypt", "14", "8", "1"]
    for wrong in (b"", b"\n", b"two words\n", b"x" * 5000):
        assert subprocess.run([*STANIEL, "user", "hash"], input=wrong, capture_output=True).returncode == 1


@pytest.mark.parametrize("parameters", ["17$1$1", "16$1$1", "18$8$1", "14$8$5", "0$8$1"])
def test_a_hash_that_scrypt_would_refuse_is_none(parameters: str) -> None:
    salt_and_key = "$".join(HASHES["both"].split("$")[4:])
    with pytest.raises(ValueError, match="parameters"):
        parse_hash(f"scrypt${parameters}${salt_and_key}")


def test_a_password_for_which_there_is_no_memory_is_wrong() -> None:
    told = list[bool]()
    wanted = parse_hash(HASHES["both"])
    check = PasswordCheck(
        structs.replace(wanted, ln=40), b"both-secret", lambda is_right, now_ms: told.append(is_right)
    )
    check.run()
    check.on_done(0)
    assert told == [False]


def test_passwords_are_compared_in_turn_with_the_servers_own_work() -> None:
    tasks = TaskQueue()
    own = PasswordCheck(parse_hash(HASHES["both"]), b"", lambda is_right, now_ms: None)
    broker = SimpleNamespace(
        users=SimpleNamespace(by_name={}, stand_in=lambda name: parse_hash(HASHES["both"])),
        logins=Logins(bytes(32)),
        maintenance=SimpleNamespace(tasks=tasks),
    )
    session: Any = SimpleNamespace(broker=broker, suspend=lambda answer: None)
    request: Any = SimpleNamespace(data=b"name guess")
    login(session, request, 0)
    tasks.submit(own)
    login(session, request, 0)
    order = []
    while started := tasks.start():
        order += started
        tasks._running.clear()
    assert len(order) == 3 and order[1] is own


@pytest.mark.parametrize("is_there", [True, False])
def test_a_password_is_not_compared_for_a_client_that_is_gone(is_there: bool) -> None:
    """Else clients that come and hang up would hold up all new logins, however few of them may be there at a time."""
    tasks, wanted, failed = TaskQueue(), parse_hash(HASHES["both"]), list[str]()
    broker = SimpleNamespace(
        users=SimpleNamespace(by_name={"both": SimpleNamespace(name="both", password=wanted, token=b"")}),
        logins=Logins(bytes(32)),
        maintenance=SimpleNamespace(tasks=tasks),
        rate_limited=lambda level, event, now_ms, **fields: failed.append(event),
    )
    session: Any = SimpleNamespace(
        broker=broker, address="", suspend=lambda answer: None, deliver=lambda is_right: None
    )
    request: Any = SimpleNamespace(data=b"both both-secret")
    login(session, request, 0)
    session.state = SUSPENDED if is_there else CLOSED
    (check,) = tasks.start()
    check.run()
    tasks.finish_task(check, 0)
    assert broker.logins.remembered.knows("both", wanted, b"both-secret") == is_there
    assert failed == ([] if is_there else ["login.failed"])
    assert broker.logins.checks == 0


def test_a_login_that_a_server_has_read_late_is_no_late_login() -> None:
    told: list[str] = []
    hung_up: list[Any] = []
    limits = SimpleNamespace(log_limit=lambda name, now_ms, client: told.append(name))
    timers = Timers()
    schedule: Any = SimpleNamespace(is_postponed=lambda fd: fd == 2, heard_ms=0)
    timeouts = ClientTimeouts(timers, schedule, cast(Any, limits), hung_up.append, lambda connection, now_ms: None)
    read, postponed, silent = (
        SimpleNamespace(state=OPEN, fd=fd, active_ms=60_000 * (fd == 1), session=SimpleNamespace(address=""))
        for fd in (1, 2, 3)
    )
    for connection in (read, postponed, silent):
        timeouts.start_login(cast(Any, connection), 0)
    timers.fire(60_000)
    assert not hung_up  # what was said in the last minute is unread
    schedule.heard_ms = 60_000
    timers.fire(60_100)
    assert hung_up == [silent] and told == ["login_timeout"]
    for now_ms in (61_000 + LOGIN_MS, 62_000 + 2 * LOGIN_MS):
        schedule.heard_ms = now_ms - 100
        timers.fire(now_ms)
    assert hung_up == [silent, read]
    schedule.heard_ms = 63_000 + 3 * LOGIN_MS
    timers.fire(63_000 + 3 * LOGIN_MS)
    assert hung_up == [silent, read, postponed]


def test_no_command_shows_a_hash(tmp_path: Path, server: Server, stack: ExitStack) -> None:
    shown = run_staniel("config", "show", str(server.config))
    assert shown.returncode == 0, shown.stderr
    assert "[users.both]" in shown.stdout
    assert "scrypt$" not in shown.stdout
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('[users.a]\npassword_hash = "scrypt$14$8$1$secretsecret"\n')
    refused = run_staniel("config", "check", str(wrong))
    assert refused.returncode == 1
    assert "users.a.password_hash" in refused.stderr
    assert "secretsecret" not in refused.stderr
    boss = connect(stack, server, "boss")
    boss.ask("set q 0 0 1", "a")
    assert "scrypt" not in boss.ask("dump_config", end=b"END\r\n")


def test_a_server_that_other_machines_reach_is_meant_to_be(tmp_path: Path, stack: ExitStack) -> None:
    arguments = ("serve", "--host", "0.0.0.0", "--port", "0", "--spool", str(tmp_path / "spool"))
    refused = run_staniel(*arguments)
    assert refused.returncode == 1
    assert "open_network = true" in refused.stderr
    with running(tmp_path, "--host", "0.0.0.0", "--open-network", config="[server]\n") as server:
        assert "network.open" in server.stderr
        client = connect(stack, server)
        assert client.ask("set q 0 0 1", "a") == "STORED\r\n"
        for line in ("delete q", "flush_all", "shutdown", "reload", "status readonly", "pause q gets", "move q r"):
            assert client.ask(line).startswith("CLIENT_ERROR a client of the network"), line
        reload_with(server, '[server]\noperator_commands = "everywhere"\n')
        assert client.ask("delete q").startswith("CLIENT_ERROR"), "what it was when it came"
        assert connect(stack, server).ask("delete q") == "DELETED\r\n"


REACHED = "can be reached by other machines"
NO_TOKEN = "expected a file with a token, because [admin] listens on 0.0.0.0:0"


@pytest.mark.parametrize(
    ("admin", "then", "why"),
    [
        ("", '[server]\nhost = "0.0.0.0"\n', REACHED),
        ("", "\n", REACHED),  # cut off while it was written, say: the addresses stay those of the start
        ("", '[memcache]\nlisten = ["127.0.0.1:0"]\n', REACHED),
        ("[admin]\nport = 0\n", "[server]\nopen_network = true\n", NO_TOKEN),
    ],
)
def test_a_reload_opens_no_server_that_would_not_start_so(
    tmp_path: Path, stack: ExitStack, admin: str, then: str, why: str
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    config = f'[server]\nhost = "0.0.0.0"\n{users()}{admin}'
    with running(tmp_path, config=config) as server:
        both = connect(stack, server, "both")
        server.config.write_text(then)
        server.signal(signal.SIGHUP)
        assert until(lambda: "config.refused" in server.stderr)
        assert why in server.stderr
        assert connect(stack, server).ask("delete q") == "CLIENT_ERROR unauthenticated\r\n"
        assert both.ask("set q 0 0 1", "a") == "STORED\r\n", "nothing has changed"
        if admin:
            assert Operator(server.second_port).ask("POST", "/api/stop", {}).status == 401


def test_clients_of_a_network_stay_that_though_the_file_names_another_address(tmp_path: Path, stack: ExitStack) -> None:
    with running(tmp_path, config='[server]\nhost = "0.0.0.0"\nopen_network = true\n') as server:
        reload_with(server, "[server]\nopen_network = true\n")
        assert "network.open" in server.stderr
        assert connect(stack, server).ask("delete q").startswith("CLIENT_ERROR a client of the network")
