"""The commands on a running server, over its spool's socket and over the admin port: a real server, real processes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from staniel.broker.config.load import parse
from staniel.broker.passwords import hash_password
from staniel.compiled import BUILD
from staniel.server.text import human_duration, human_size, printable, printable_bytes
from tests.server.admin.asking import Operator
from tests.support.process import STANIEL, START_SECONDS_MAX, Server, run_staniel, running
from tests.support.transcripts import free_port
from tests.support.wire import Wire

TOKEN = "0123456789abcdef"
CONFIG = """
admin = { port = 0, token_file = "token" }
queues.work = { max_deliveries = 1, dead_letter_queue = "dead" }
queues.small.max_items = 1
"""
Ended = subprocess.CompletedProcess[str]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    with running(tmp_path, config=CONFIG) as server:
        yield server


def run(server: Server, *arguments: str) -> Ended:
    """A command on the server's spool."""
    return run_staniel(*arguments, STANIEL_SPOOL=str(server.spool))


def say(server: Server, *arguments: str) -> str:
    """What a command prints that does what it should."""
    ended = run(server, *arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def fill(server: Server, queue: str, count: int) -> None:
    with Wire(server.address) as wire:
        for number in range(count):
            assert wire.put(queue, b"%d" % number) == b"STORED"


def operator(server: Server) -> Operator:
    return Operator(server.spool)


def items(server: Server, queue: str) -> int:
    return next((each["items"] for each in operator(server).get("/api/queues") if each["name"] == queue), -1)


def on_terminal(server: Server, answer: bytes, *arguments: str) -> tuple[int, str]:
    """The exit code and what stood on the terminal of a command that has one."""
    inner, outer = pty.openpty()
    environment = {**os.environ, "STANIEL_SPOOL": str(server.spool)}
    child = subprocess.Popen(
        [*STANIEL, *arguments], stdin=outer, stdout=outer, stderr=outer, env=environment, start_new_session=True
    )
    os.close(outer)
    os.write(inner, answer)
    seen = b""
    with contextlib.suppress(OSError):  # EIO: its other side is closed
        while data := os.read(inner, 4096):
            seen += data
    os.close(inner)
    return child.wait(START_SECONDS_MAX), seen.decode()


def refuses(ended: Ended, code: int, why: str) -> bool:
    """Whether it ended so, with one line on standard error."""
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (code, "", 1), ended
    return why in ended.stderr


# looking


def test_queues_are_a_table_and_the_very_json_of_the_server(server: Server) -> None:
    fill(server, "jobs", 2)
    fill(server, "work", 1)
    assert say(server, "pause", "work", "--gets") == "work: gets paused, puts served\n"
    heads, jobs, work = say(server, "queues").splitlines()
    assert heads.split() == ["NAME", "ITEMS", "BYTES", "AGE", "OPEN", "WAITING", "UNSYNCED", "PAUSED"]
    assert jobs.split()[:4] == ["jobs", "2", "2", "B"] and work.split()[-1] == "gets"
    assert len(say(server, "queues", "--prefix", "w").splitlines()) == 2
    shown, found = json.loads(say(server, "queues", "--json")), operator(server).get("/api/queues")
    ages = {"age_ms": 0, "oldest_ms": 0}
    assert [each | ages for each in shown] == [each | ages for each in found]


def test_peek_shows_items_in_pages_and_takes_none(server: Server) -> None:
    fill(server, "q", 1100)
    lines = say(server, "peek", "q", "-n", "1050", "--offset", "20").splitlines()
    assert [line.split()[-1] for line in lines[1:]] == [str(number) for number in range(20, 1070)]
    assert len(json.loads(say(server, "peek", "q", "--json", "-n", "2000"))["items"]) == 1100
    assert say(server, "peek", "q", "-n", "1", "--format", "hex").splitlines()[1].split()[-1] == "30"
    assert items(server, "q") == 1100


def test_peek_says_that_there_is_more_of_an_item(server: Server) -> None:
    say(server, "put", "q", "abcdef")
    assert say(server, "peek", "q", "--bytes", "3").splitlines()[1].endswith("abc +")


def test_open_and_clients_show_who_holds_what_and_abort_gives_it_back(server: Server) -> None:
    fill(server, "q", 3)
    with Wire(server.address) as one, Wire(server.address) as other:
        assert (one.get("q/open"), other.get("q/open")) == (b"0", b"1")
        first, second = json.loads(say(server, "open", "q", "--json"))
        rows = say(server, "open", "q").splitlines()[1:]
        assert [row.split()[:2] for row in rows] == [[str(each["xid"]), each["client"]] for each in (first, second)]
        assert say(server, "abort", "q", str(first["xid"])) == "gave back 1 open read\n"
        assert refuses(run(server, "abort", "q", str(first["xid"])), 1, "has no open read")
        row = next(line for line in say(server, "clients").splitlines() if second["client"] in line)
        assert say(server, "abort", "--client", row.split()[0]) == "gave back 1 open read\n"
        assert refuses(run(server, "abort", "q", "--all"), 2, "give back 0 open reads of q")
        assert other.get("q/open") == b"1"
        assert say(server, "abort", "q", "--all", "--yes") == "gave back 1 open read\n"
    assert items(server, "q") == 3


@pytest.mark.parametrize("wrong", [[], ["q"], ["q", "1", "--all"], ["q", "--client", "1"], ["--client", "1", "--all"]])
def test_abort_wants_to_know_which_reads(server: Server, wrong: list[str]) -> None:
    ended = run(server, "abort", *wrong)
    assert ended.returncode == 2 and "Error: " in ended.stderr


def test_what_a_start_could_not_read_is_in_health_until_the_next_one(server: Server) -> None:
    fill(server, "orders", 100)
    server.kill()
    journal = next(path for path in server.spool.iterdir() if path.name.startswith("orders"))
    whole = journal.read_bytes()
    journal.write_bytes(whole[:500] + b"\xff" * 20 + whole[520:])
    server.start()
    ended = run(server, "health")
    assert ended.returncode == 0, ended.stdout
    assert f"journal.damaged: {journal.name}" in ended.stdout and f"{server.spool}/.staniel/damaged" in ended.stdout
    server.stop()
    server.start()
    assert say(server, "health") == f"ready, status up ({BUILD})\n"


def test_health_and_status_tell_what_is_refused_and_what_mends_it(server: Server) -> None:
    assert say(server, "health") == f"ready, status up ({BUILD})\n"
    assert "status:        up\n" in say(server, "status")
    assert say(server, "status", "readonly") == "status readonly\n"
    for options, what in (([], "to mend it: staniel status up"), (["--json"], '"ready_for_puts": false')):
        ended = run(server, "health", *options)
        assert ended.returncode == 3 and what in ended.stdout
    assert refuses(run(server, "put", "q", "x"), 1, "readonly")
    assert json.loads(say(server, "status", "--json"))["status"] == "readonly"
    assert say(server, "status", "up", "--json") == '{"status": "up"}\n'


# items


def test_what_is_put_is_what_is_got_byte_by_byte(server: Server) -> None:
    data = bytes(range(256)) + b"\n"
    environment = {**os.environ, "STANIEL_SPOOL": str(server.spool)}
    for argument in ([], ["-"]):
        subprocess.run([*STANIEL, "put", "q", *argument], input=data, env=environment, check=True, capture_output=True)
        assert subprocess.run([*STANIEL, "get", "q"], env=environment, check=True, capture_output=True).stdout == data
    assert refuses(run(server, "get", "q"), 1, "no item ready")


def test_a_get_that_takes_nothing_says_why(server: Server) -> None:
    fill(server, "q", 2)
    with Wire(server.address) as wire:
        wire.get("q/open")
        say(server, "pause", "q", "--gets")
        assert refuses(
            run(server, "get", "q"), 1, "q is paused: gets are held back, 1 item waiting; `staniel resume q` ends"
        )
        say(server, "resume", "q", "--gets")
        say(server, "get", "q")
        assert refuses(run(server, "get", "q"), 1, "q has no item ready: 1 open with clients")


def test_get_takes_as_many_as_there_are(server: Server) -> None:
    fill(server, "q", 40)
    assert say(server, "get", "q", "-n", "35") == "".join(f"{number}\n" for number in range(35))
    rest = json.loads(say(server, "get", "q", "-n", "9", "--json"))["items"]
    assert [each["data"] for each in rest] == ["35", "36", "37", "38", "39"]
    assert items(server, "q") == 0


def test_an_item_expires_when_it_is_told_to(server: Server) -> None:
    say(server, "put", "q", "x", "--expires", "2h")
    (item,) = json.loads(say(server, "peek", "q", "--json"))["items"]
    assert 0 <= item["expires_at_ms"] - item["added_at_ms"] - 2 * 3_600_000 < 1000
    assert run(server, "put", "q", "x", "--expires", "soon").returncode == 2


@pytest.mark.parametrize("size", [2_000_000, 16 << 20])
def test_an_item_may_be_as_large_as_a_queue_allows(server: Server, size: int) -> None:
    data = os.urandom(1 << 16) * (1 + (size >> 16))
    command = [*STANIEL, "put", "q", "--spool", str(server.spool)]
    subprocess.run(command, input=data[:size], capture_output=True, check=True)
    got = [*STANIEL, "get", "q", "--spool", str(server.spool)]
    assert subprocess.run(got, capture_output=True, check=True).stdout == data[:size]


def test_an_item_that_no_queue_takes_is_refused_in_one_line(server: Server, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes((16 << 20) + 1))
    with (tmp_path / "large").open("rb") as large:
        command = [*STANIEL, "put", "q", "--spool", str(server.spool)]
        ended = subprocess.run(command, stdin=large, capture_output=True, text=True)
    assert refuses(ended, 1, "larger than 16777216 bytes")


# changing


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["purge", "q"], "remove 3 items from q"),
        (["move", "q", "r", "-n", "2"], "move 2 items of q to r"),
        (["redrive", "q", "--to", "r"], "move 3 items of q to r"),
        (["delete", "q"], "delete q with 3 items (3 B)"),
        (["stop"], "which has 0 clients"),
    ],
)
def test_what_destroys_says_how_much_and_asks_first(server: Server, arguments: list[str], what: str) -> None:
    fill(server, "q", 3)
    assert refuses(run(server, *arguments), 2, what)
    code, seen = on_terminal(server, b"n\n", *arguments)
    assert code == 1 and what in seen and "Nothing was done." in seen
    assert items(server, "q") == 3 and items(server, "r") == -1
    code, seen = on_terminal(server, b"y\n", *arguments)
    assert code == 0, seen


def test_with_yes_nothing_is_asked(server: Server) -> None:
    fill(server, "q", 3)
    assert say(server, "move", "q", "r", "-n", "1", "--yes").startswith("moved 1 item from q to r\nuntil ")
    assert say(server, "purge", "q", "-y", "--no-undo") == "removed 2 items from q\n"
    assert say(server, "delete", "q", "-y") == "deleted q with 0 items\n"
    fill(server, "dead", 2)
    assert say(server, "redrive", "dead", "-y").startswith("moved 2 items from dead to work\nuntil ")
    assert say(server, "reload") == "reloaded\n"
    server.config.write_text(server.config.read_text() + "[server]\nconnection_backlog = 7\n[text]\nport = 0\n")
    assert say(server, "reload") == "reloaded; only a restart takes over server.connection_backlog, text.port\n"
    assert "is stopping" in say(server, "stop", "-y")
    assert server.wait() == 0


def test_a_purge_is_undone_by_the_number_that_it_names(server: Server) -> None:
    fill(server, "q", 3)
    first, second = say(server, "purge", "q", "-y").splitlines()
    number = second.rpartition(" ")[2]
    assert first == "removed 3 items from q" and second.endswith(f"to take it back: staniel undo {number}")
    assert "purge" in say(server, "undo") and items(server, "q") == 0
    server.kill()
    server.start()
    assert say(server, "undo", number) == "returned 3 items to q\n"
    assert items(server, "q") == 3
    assert refuses(run(server, "undo", number), 1, "there is nothing to undo")
    number = json.loads(say(server, "purge", "q", "-y", "--json"))["undo"]
    assert say(server, "undo", str(number), "--forget") == "3 items cannot be brought back any more\n"
    assert json.loads(say(server, "undo", "--json")) == []


def test_a_move_and_a_delete_are_undone_by_the_numbers_that_they_name(server: Server) -> None:
    fill(server, "q", 3)
    number = say(server, "move", "q", "r", "-y").split()[-1]
    say(server, "get", "r")
    assert "move" in say(server, "undo")
    server.kill()
    server.start()
    told = say(server, "undo", number)
    assert told == "returned 2 items to q\n1 item not there any more: taken since, or expired\n"
    assert (items(server, "q"), items(server, "r")) == (2, 0)
    first, second = say(server, "delete", "q", "-y").splitlines()
    assert first == "deleted q with 2 items" and items(server, "q") == -1
    assert say(server, "undo", second.split()[-1]) == "returned 2 items to q\n"
    fill(server, "q", 1)
    assert say(server, "delete", "q", "-y", "--no-undo") == "deleted q with 3 items\n"


def answered_late(
    server: Server, shown: str, meanwhile: Callable[[], object], *arguments: str, code: int = 1, answers: bytes = b"y\n"
) -> str:
    """What a command says that is told to go on after something has changed since it asked."""
    inner, outer = pty.openpty()
    command = [*STANIEL, *arguments, "--spool", str(server.spool)]
    child = subprocess.Popen(command, stdin=outer, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None and child.stderr.read(len(shown)) == shown
    meanwhile()
    os.write(inner, answers)
    found, said = child.communicate(timeout=START_SECONDS_MAX)
    os.close(inner)
    os.close(outer)
    assert child.returncode == code
    return found + said


def test_a_purge_removes_no_more_than_was_shown(server: Server) -> None:
    fill(server, "q", 2)
    said = answered_late(server, "This will remove 2", lambda: fill(server, "q", 1), "purge", "q", code=0)
    assert "removed 2 items from q" in said and items(server, "q") == 1


def test_a_delete_that_can_be_undone_takes_what_comes_after_the_question(server: Server) -> None:
    fill(server, "q", 2)
    said = answered_late(server, "This will delete q with 2", lambda: fill(server, "q", 1), "delete", "q", code=0)
    assert "deleted q with 3 items" in said and items(server, "q") == -1
    assert say(server, "undo", said.split()[-1]) == "returned 3 items to q\n"


def test_a_delete_for_good_asks_again_if_more_came(server: Server) -> None:
    fill(server, "q", 2)
    arguments = ("delete", "q", "--no-undo")
    said = answered_late(
        server, "This will delete q with 2", lambda: fill(server, "q", 1), *arguments, answers=b"y\nn\n"
    )
    assert "3 items now, not 2: nothing was deleted" in said and "This will delete q with 3" in said
    assert items(server, "q") == 3


def test_abort_gives_back_no_more_than_was_shown(server: Server) -> None:
    fill(server, "q", 2)
    with Wire(server.address) as wire, Wire(server.address) as other:
        assert wire.get("q/open") is not None
        said = answered_late(server, "This will give back 1", lambda: other.get("q/open"), "abort", "q", "--all")
        assert "2 open reads now, not 1: none was given back" in said
        assert len(say(server, "open", "q").splitlines()) == 3


def test_a_move_that_ends_early_says_so(server: Server) -> None:
    fill(server, "q", 3)
    ended = run(server, "move", "q", "small", "-y")
    assert ended.returncode == 1 and ended.stdout.startswith("moved 1 item from q to small\nuntil ")
    assert "the others stay: small is full (max_items or max_size)" in ended.stderr
    assert refuses(run(server, "move", "q", "small", "-y"), 1, "small is full")


# which server


def test_the_port_is_asked_with_its_token(server: Server, tmp_path: Path) -> None:
    fill(server, "q", 2)
    url, token = f"http://127.0.0.1:{server.second_port}", str(tmp_path / "token")
    assert "q " in say(server, "queues", "--url", url, "--token-file", token)
    ended = run_staniel("queues", STANIEL_URL=url, STANIEL_TOKEN_FILE=token)
    assert ended.returncode == 0 and ended.stdout.count("\n") == 2
    assert "q " in say(server, "queues", "--url", url, "--config", str(server.config))
    assert refuses(run(server, "queues", "--url", url), 1, "it requires a token: name the token_file of [admin]")
    (tmp_path / "wrong").write_text("fedcba9876543210")
    assert refuses(
        run(server, "queues", "--url", url, "--token-file", str(tmp_path / "wrong")), 1, "does not accept this token"
    )
    assert refuses(run(server, "queues", "--url", url, "--token-file", str(tmp_path / "none")), 1, "cannot be read")


def test_a_spool_that_was_named_from_a_folder_is_found_from_every_other(tmp_path: Path) -> None:
    spool = tmp_path / "server" / "spool"
    with running(tmp_path / "server", "--spool", os.path.relpath(spool)) as server:
        fill(server, "q", 1)
        assert f"spool:         {spool}\n" in say(server, "status")
        taken = [*STANIEL, "backup", "take", str(tmp_path / "copy"), "--spool", str(spool)]
        told = subprocess.run(taken, capture_output=True, text=True, cwd="/", timeout=60, check=False)
        assert told.returncode == 0, told.stderr


def test_a_configuration_names_the_spool_or_the_port(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, config=f"[admin]\nport = {port}\nsocket = false\n") as server:
        fill(server, "q", 2)
        assert "q " in say(server, "queues", "--config", str(server.config))
        assert refuses(run(server, "queues"), 1, "does not listen for it: it stops, has [admin] socket = false")


def test_a_server_that_does_not_listen_for_its_spool_is_named(tmp_path: Path) -> None:
    with running(tmp_path, config="admin.socket = false\n") as server:
        why = f"process {server.pid} has the spool {server.spool} open and does not listen for it"
        assert refuses(run(server, "queues"), 1, why)
        server.kill()
        assert refuses(run(server, "queues"), 1, "no server listens for the spool")


def test_where_no_server_is_one_line_says_what_to_do(tmp_path: Path) -> None:
    hint = "or name another with --spool, --config or --url"
    assert refuses(run_staniel("queues", "--spool", str(tmp_path / "none")), 1, hint)
    port = free_port()
    assert refuses(run_staniel("health", "--url", f"http://127.0.0.1:{port}"), 1, "Connection refused; start it")
    assert refuses(run_staniel("stop", "--config", str(tmp_path / "none.toml")), 1, "cannot be read")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "not Staniel's admin listener"),
        (b"SSH-2.0-\x1b[2J\r\n", "not Staniel's admin listener"),
        (b"HTTP/1.0 200 OK\r\n\r\n<html>", "not Staniel's admin listener"),
        (b"HTTP/1.0 200 OK\r\n\r\n[{}]", "does not understand the server's reply"),
        (b"HTTP/1.0 500 No\r\n\r\n{}", "HTTP status 500"),
        (b'HTTP/1.0 500 No\r\n\r\n{"error": "a\\u001b[2J\\nb"}', "a\\x1b[2J\\nb"),
    ],
)
def test_another_program_on_the_port_is_told_apart(answer: bytes, why: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.recv(4096)
                sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        ended = run_staniel("queues", "--url", f"http://127.0.0.1:{listening.getsockname()[1]}")
        thread.join()
    assert refuses(ended, 1, why), ended.stderr
    assert ended.stderr.removesuffix("\n").isprintable()


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = ("--url", f"http://127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.2")
        assert refuses(run_staniel("queues", *where), 1, "did not reply within 0.2 s")
        assert refuses(run_staniel("purge", "q", "-y", *where), 1, "check before you repeat it")


@pytest.mark.parametrize(
    "wrong",
    [
        ["queues", "--url", "ftp://h:1"],
        ["queues", "--url", "https://user@h"],
        ["queues", "--url", "h:1"],
        ["queues", "--url", "http://h:99999"],
        ["queues", "--url", "http://user@h"],
        ["queues", "--url", "http://[::1"],
        ["queues", "--url", "http://h/", "--spool", "s"],
        ["queues", "--timeout", "nan"],
        ["peek", "a/b"],
        ["peek", ""],
        ["status", "down"],
        ["put"],
        ["nope"],
    ],
)
def test_wrong_use_is_told_without_asking_a_server(wrong: list[str]) -> None:
    ended = run_staniel(*wrong)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr


# how it is shown


HOSTILE = b"\x1b]0;owned\x07\r\nline\x9b2J\xe2\x80\xae"


def test_no_name_and_no_payload_steers_the_terminal(server: Server) -> None:
    with Wire(server.address) as wire:
        assert wire.put("q\u009b2J", HOSTILE) == b"STORED"
        assert wire.put("plain", HOSTILE) == b"STORED"
    for arguments in (["queues"], ["peek", "plain"], ["peek", "q\u00c2\u009b2J"], ["queues", "--json"], ["health"]):
        assert all(line.isprintable() for line in say(server, *arguments).split("\n"))
    assert r"\x1b]0;owned\x07\r\nline\x9b2J\u202e" in say(server, "peek", "plain")
    _, seen = on_terminal(server, b"", "get", "plain")
    assert seen == "\\x1b]0;owned\\x07\\r\\nline\\x9b2J\\u202e\r\n"


def test_a_closed_pipe_a_full_disk_and_a_plain_terminal_end_without_a_traceback(server: Server) -> None:
    say(server, "put", "q", "€")
    fill(server, "other", 300)
    environment = {**os.environ, "STANIEL_SPOOL": str(server.spool)}
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed, Path("/dev/full").open("wb") as full:
        for out, code, lines in ((closed, 1, 0), (full, 1, 1)):
            command = [*STANIEL, "peek", "other", "-n", "300"]
            ended = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, env=environment)
            assert (ended.returncode, ended.stderr.count("\n")) == (code, lines), ended.stderr
    ended = run_staniel("peek", "q", "--spool", str(server.spool), PYTHONIOENCODING="latin-1")
    assert ended.stdout.splitlines()[1].endswith(r"\u20ac")


def test_ctrl_c_ends_a_command_without_a_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        command = [*STANIEL, "queues", "--url", f"http://127.0.0.1:{silent.getsockname()[1]}"]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what runs behind a shell's & ignores it
        )  # fmt: skip
        sock, _ = silent.accept()
        for _ in range(round(START_SECONDS_MAX / 10)):
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                # Pressed again: Python hears a signal that comes between its last look and the system call of a
                # read only when the read is over, and this one never is.
                child.wait(timeout=10)  # long enough for a busy machine, which would hear it twice
                break
        sock.close()
        out, said = child.communicate(timeout=START_SECONDS_MAX)
    assert (child.returncode, out, said) == (1, "", "\nAborted!\n")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KB"), (10 * 1024, "10 KB"), (1 << 20, "1.0 MB"), (5 << 50, "5120 TB")],
)
def test_sizes_are_for_people(size: int, text: str) -> None:
    assert human_size(size) == text


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (14_000, "14 s"),
        (60_000, "1 m 0 s"),
        (8_040_000, "2 h 14 m"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_durations_are_for_people(duration_ms: int, text: str) -> None:
    assert human_duration(duration_ms) == text


def test_text_that_cannot_do_harm_is_left_as_it_is() -> None:
    assert printable('{"a": "ü\\n"}') == '{"a": "ü\\n"}'
    assert printable("\U000e0001\u2028") == r"\U000e0001\u2028"
    assert printable_bytes(b"\xff\xc3\xbc\0") == "\\xffü\\x00"


def test_a_shell_completes_the_names_of_queues(server: Server, tmp_path: Path) -> None:
    for queue in ("work", "wood", "other"):
        fill(server, queue, 1)
    for spool, names in ((server.spool, ["plain,wood", "plain,work"]), (tmp_path / "none", [])):
        asked = {"_STANIEL_COMPLETE": "bash_complete", "COMP_WORDS": "staniel peek wo", "COMP_CWORD": "2"}
        ended = run_staniel(STANIEL_SPOOL=str(spool), **asked)
        assert (ended.stdout.split(), ended.stderr) == (names, "")


VARYING = re.compile(
    r"\d+ (?:ms|s|m \d+ s)\b|127\.0\.0\.1:\d+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\((?:pure Python|compiled)\)"
)


def test_the_transcript_of_the_document_is_what_the_commands_say(server: Server) -> None:
    document = (Path(__file__).parents[3] / "docs" / "commands.md").read_text("utf-8")
    transcript = document.partition("```console\n")[2].partition("```")[0]
    commands = [piece.partition("\n")[::2] for piece in re.split(r"^\$ ", transcript, flags=re.MULTILINE)[1:]]
    assert len(commands) > 10
    environment = {**os.environ, "STANIEL_SPOOL": str(server.spool)}
    environment["PATH"] = f"{Path(*STANIEL).parent}:{os.environ['PATH']}"
    with Wire(server.address) as wire:
        for command, told in commands:
            if command == "staniel open orders":
                assert wire.get("orders/open") == b'{"id": 1}'
            said = subprocess.run(
                command, shell=True, env=environment, stdin=subprocess.DEVNULL, stdout=-1, stderr=subprocess.STDOUT
            ).stdout.decode()
            assert unvarying(said) == unvarying(told), command


def unvarying(text: str) -> list[list[str]]:
    """The words of each line, without moments, ages and ports."""
    return [VARYING.sub("…", line).split() for line in text.splitlines()]


# configuration


def test_a_configuration_is_checked_without_a_server(tmp_path: Path) -> None:
    good, bad, no_token = tmp_path / "good.toml", tmp_path / "bad.toml", tmp_path / "token.toml"
    good.write_text(CONFIG.replace('token_file = "token"', 'socket_mode = "0660"'))
    bad.write_text("[server]\nspol = 'x'\n")
    no_token.write_text(CONFIG)
    assert run_staniel("config", "check", str(good)).returncode == 0
    assert refuses(run_staniel("config", "check", str(bad)), 1, 'did you mean "spool"?')
    assert refuses(run_staniel("config", "check", str(no_token)), 1, "admin.token_file: cannot be read")
    good.write_text('server.host = "0.0.0.0"\n')
    assert refuses(run_staniel("config", "check", str(good)), 1, "[server] open_network = true")
    good.write_text('server.host = "0.0.0.0"\nserver.open_network = true\n[queues.a]\n[queues.b]\n')
    assert run_staniel("config", "check", str(good)).stdout == f"{good} is good: 2 queues have settings of their own\n"


def test_settings_without_an_effect_are_warned_of(tmp_path: Path) -> None:
    text = """
    users.idle = { roles = ["read"], queues = ["*"] }
    users.none = { uids = [1] }
    users.cert = { roles = ["admin"], certificates = ["a"] }
    users.good = { roles = ["admin"], uids = [2] }
    """
    (tmp_path / "c.toml").write_text(text)
    told = run_staniel("config", "check", str(tmp_path / "c.toml"))
    assert told.returncode == 0
    assert [line.split(": ")[1] for line in told.stderr.splitlines()] == [
        "users.idle",
        "users.none.roles",
        "users.cert.certificates",
    ]


def test_what_is_shown_of_a_configuration_means_the_same(tmp_path: Path) -> None:
    text = """
    memcache.listen = ["127.0.0.1:1", "unix:/run/a.sock"]
    default.max_items = 7
    queues.a = { max_age = "30s", sync_journal = "50ms", disable_aggressive_rewrites = true }
    queues."a+b".max_size = "1.5MB"
    queues.s.journal_format = "libkestrel"
    aliases.all = ["a", "s"]
    """
    (tmp_path / "c.toml").write_text(text)
    shown = run_staniel("config", "show", str(tmp_path / "c.toml"))
    given, again = parse(text.encode(), str(tmp_path)), parse(shown.stdout.encode(), str(tmp_path))
    assert {name: again.queue(name) for name in given.resolved} == given.resolved
    assert (again.server, again.memcache, again.aliases) == (given.server, given.memcache, given.aliases)
    as_json = run_staniel("config", "show", str(tmp_path / "c.toml"), "--json")
    assert json.loads(as_json.stdout) == tomllib.loads(shown.stdout)
    assert parse(run_staniel("config", "show").stdout.encode(), "").resolved == parse(b"", "").resolved


def test_a_password_hash_is_not_shown_and_none_is_not_spoken_of(tmp_path: Path) -> None:
    hashed = hash_password(b"secret", bytes(16))
    (tmp_path / "c.toml").write_text(f"users.a.password_hash = {json.dumps(hashed)}\nusers.b.uids = [1]\n")
    lines = run_staniel("config", "show", str(tmp_path / "c.toml")).stdout.splitlines()
    assert [line for line in lines[lines.index("[users.a]") :] if "password_hash" in line or line[:1] == "["] == [
        "[users.a]",
        "# password_hash is not shown",
        "[users.b]",
    ]
    assert not [line for line in lines if hashed in line]


def test_moments_have_their_zone_and_journal_at_reads_them(server: Server) -> None:
    fill(server, "q", 1)
    fill(server, "kept", 1)
    say(server, "purge", "q", "--yes")
    line = say(server, "audit").splitlines()[-1]
    found = re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", line)
    assert found, line
    moment = datetime.fromisoformat(found[0]).timestamp()
    assert abs(moment - time.time()) < 60
    server.stop()
    at = run_staniel("journal", "at", found[0].replace(" ", "T"), "q", "--spool", str(server.spool))
    assert at.returncode == 0 and "no moment" not in at.stderr, at


def test_the_audit_log_says_what_an_operation_was_about(server: Server) -> None:
    fill(server, "q", 1)
    say(server, "pause", "q", "--gets")
    say(server, "resume", "q")
    number = say(server, "move", "q", "r", "--yes").split()[-1]
    say(server, "undo", number)
    say(server, "status", "readonly")
    refused = run(server, "undo", "99"), run(server, "operations", "99", "--cancel")
    assert [each.returncode for each in refused] == [1, 1] and "/api" not in refused[1].stderr
    lines = [re.sub(" {2,}", "|", line).split("|")[2:4] for line in say(server, "audit").splitlines()[1:]]
    assert lines == [
        ["pause", "q: gets"],
        ["resume", "q: none"],
        *2 * [["move", "q > r"]],
        *2 * [["undo", f"r, operation {number}"]],
        ["status", "readonly"],
        ["undo", "operation 99"],
        ["cancel", "operation 99"],
    ]


def test_a_running_server_is_compared_with_a_file(server: Server, tmp_path: Path) -> None:
    fill(server, "q", 1)
    other = tmp_path / "other.toml"
    other.write_text(
        f"server.spool = {json.dumps(str(server.spool))}\n{CONFIG.replace('max_items = 1', 'max_items = 2')}"
    )
    differs = run(server, "config", "diff", str(other))
    assert (differs.returncode, differs.stdout) == (1, "small: max_items is 1 in the server, 2 in the file\n")
    differs = run(server, "config", "diff", str(other), "--json")
    assert (differs.returncode, json.loads(differs.stdout)[0]["file"]) == (1, 2)
    settings = (
        'max_age = "1m"\nmax_size = "1MB"\nexpire_to_queue = "late"\nsync_journal = "50ms"\nkeep_journal = false\n'
    )
    other.write_text(f"{CONFIG}[queues.late]\n[queues.mails]\n{settings}")
    assert run(server, "config", "diff", str(other)).stdout.splitlines() == [
        'mails: max_size is "none" in the server, "1MB" in the file',
        'mails: max_age is "none" in the server, "1m" in the file',
        'mails: expire_to_queue is "none" in the server, "late" in the file',
        "mails: keep_journal is true in the server, false in the file",
        'mails: sync_journal is "always" in the server, "50ms" in the file',
    ]
    other.write_text(f"server.spool = {json.dumps(str(server.spool))}\n{CONFIG}")
    assert say(server, "config", "diff", str(other)) == "no difference in the settings of 1 queue\n"
    server.stop()
    assert refuses(run_staniel("config", "diff", str(other)), 1, "no server")
