"""Who may use the admin listener: web pages may not, and with a token only those who have it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.admin.asking import Operator
from tests.support.process import Server, run_staniel, running
from tests.support.wire import Wire

TOKEN = "0123456789abcdefé"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "token").write_text(f" {TOKEN} \nsecond line\n", "utf-8")
    config = "[admin]\nport = 0\ntoken_file = 'token'\nhosts = ['Queues.example']\n"
    with running(tmp_path, config=config) as server:
        yield server


BEARER = f"Bearer {TOKEN}".encode().decode("latin-1")


def test_without_the_token_there_is_health_and_nothing_else(server: Server, operator: Operator) -> None:
    assert operator.ask("GET", "/health/ready").status == operator.ask("GET", "/ping").status == 200
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer"}, {"cookie": "staniel=1"}):
        reply = operator.ask("GET", "/api/queues", **headers)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert TOKEN not in server.stderr and "admin.refused" in server.stderr
    assert Operator(server.spool).get("/api/queues") == []


def test_who_has_not_said_who_it_is_hears_what_kind_of_thing_is_wrong_and_no_names(
    server: Server, operator: Operator
) -> None:
    with Wire(server.address) as wire:
        wire.put("orders", b"1")
        wire.say(b"pause orders\r\n")
        wire.line()
    operator.ask("POST", "/api/status", {"status": "readonly"}, authorization=BEARER)
    for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": "staniel=1"}):
        reply = operator.ask("GET", "/health/ready?for=puts", **headers)
        assert reply.status == 503 and (reply.json["ready_for_puts"], reply.json["status"]) == (False, "readonly")
        assert reply.json["build"] == ""
        found = {each["name"]: (each["severity"], each["text"]) for each in reply.json["reasons"]}
        assert found["status"] == ("refuses", "status") and found["queues_paused"] == ("warning", "queues paused")
        assert b"orders" not in reply.body and str(server.spool).encode() not in reply.body
    known = operator.ask("GET", "/health/ready", authorization=BEARER)
    for reply in (known, Operator(server.spool).ask("GET", "/health/ready")):
        assert reply.status == 200 and b"orders is paused" in reply.body and b"staniel resume orders" in reply.body


@pytest.mark.parametrize("waits", [False, True])
def test_a_long_item_of_who_has_no_token_is_refused_before_it_is_read(server: Server, waits: bool) -> None:
    head = b"POST /api/queues/q/put HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    head += b"Content-Length: 16000000\r\n" + b"Expect: 100-continue\r\n" * waits
    with Wire(("127.0.0.1", server.second_port)) as wire:
        wire.say(head + b"\r\n" + b"x" * (2 << 20) * (not waits))
        assert wire.line().startswith(b"HTTP/1.1 401 ")
    with Wire(("127.0.0.1", server.second_port)) as wire:
        wire.say(head + b"Authorization: Bearer %b\r\n\r\n" % TOKEN.encode() + b"x" * (2 << 20) * (not waits))
        if waits:
            assert wire.line().startswith(b"HTTP/1.1 100 ") and wire.line() == b""
            wire.say(b"x" * (2 << 20))
        wire.say(b"x" * (16_000_000 - (2 << 20)))
        assert wire.line().startswith(b"HTTP/1.1 200 ")


def test_a_browser_gets_a_cookie_for_the_token(operator: Operator) -> None:
    assert operator.ask("POST", "/login", {"token": "wrong"}).status == 401
    reply = operator.ask("POST", "/login", {"token": TOKEN})
    cookie = reply.headers["set-cookie"]
    assert reply.status == 200 and TOKEN not in cookie
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Secure" not in cookie
    secure = operator.ask("POST", "/login", {"token": TOKEN}, host="localhost", origin="https://localhost")
    assert secure.headers["set-cookie"] == f"{cookie}; Secure"
    assert operator.get("/api/queues", cookie=f"other=1; {cookie.partition(';')[0]}") == []


def test_the_token_is_bytes_of_utf_8(operator: Operator) -> None:
    """http.client and h11 know headers as Latin-1."""
    assert operator.ask("GET", "/api/queues", authorization=BEARER).status == 200


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (421, {"host": "evil.example"}),
        (421, {"host": "evil.example:2223"}),
        (421, {"host": ""}),
        (403, {"origin": "http://evil.example"}),
        (403, {"origin": "null"}),
        (403, {"sec_fetch_site": "cross-site"}),
        (403, {"sec_fetch_site": "same-site"}),
        (415, {"content_type": "text/plain"}),
        (415, {"content_type": "application/x-www-form-urlencoded"}),
        (200, {"host": "queues.example"}),
        (200, {"host": "[::1]:80"}),
        (200, {"host": "localhost:2223", "origin": "http://localhost:2223", "sec_fetch_site": "same-origin"}),
        (200, {"content_type": "Application/JSON; charset=utf-8"}),
    ],
)
def test_what_a_web_page_of_another_site_could_send_is_refused(
    operator: Operator, status: int, headers: dict[str, str]
) -> None:
    sent = {"authorization": BEARER, **headers}
    assert operator.ask("POST", "/api/queues/q/put", {"data": "x"}, **sent).status == status
    assert len(operator.get("/api/queues", authorization=BEARER)) == (status == 200)


def test_a_changed_token_counts_from_the_reload_on(server: Server, operator: Operator) -> None:
    path = server.folder / "token"
    path.write_text("another token of 16 bytes")
    assert operator.ask("POST", "/api/reload", authorization=BEARER).status == 200
    assert operator.ask("GET", "/api/queues", authorization=BEARER).status == 401
    path.write_text("short")
    reply = operator.ask("POST", "/api/reload", authorization="Bearer another token of 16 bytes")
    assert reply.status == 409 and "at least 16 bytes" in reply.json["error"]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("[admin]\nlisten = ['0.0.0.0:0']\n", "which is not loopback"),
        ("[server]\nhost = 'example.org'\n[admin]\nport = 0\n", "which is not loopback"),
        ("[admin]\nport = 0\ntoken_file = 'none-there'\n", "cannot be read"),
    ],
)
def test_a_listener_that_others_could_use_does_not_start(tmp_path: Path, config: str, why: str) -> None:
    (tmp_path / "c.toml").write_text(config)
    ended = run_staniel("serve", "--config", str(tmp_path / "c.toml"), "--spool", str(tmp_path / "s"))
    assert ended.returncode == 1 and "admin.token_file" in ended.stderr and why in ended.stderr


def test_clients_that_stall_flood_or_send_garbage_keep_no_other_waiting(server: Server, operator: Operator) -> None:
    port = server.second_port
    stalled = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    for sock in stalled:
        sock.sendall(b"GET /api/queues HTTP/1.1\r\nHost: ")
    flooding = socket.create_connection(("127.0.0.1", port))
    flooding.settimeout(0)
    try:
        flooding.send(b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n" * 20_000)
        garbage = socket.create_connection(("127.0.0.1", port))
        garbage.sendall(bytes(range(256)) * 10 + b"\r\n\r\n")
        assert garbage.recv(100).startswith(b"HTTP/1.1 400")
        garbage.close()
        assert operator.get("/api/queues", authorization=BEARER) == []
        assert server.memory_bytes() < 200 << 20
    finally:
        for sock in (*stalled, flooding):
            sock.close()


@pytest.mark.parametrize("config", ["[admin]\nport = 0\n", "aliases.a = ['q']\n"])
def test_a_reload_does_not_open_a_listener_that_stays(server: Server, operator: Operator, config: str) -> None:
    server.config.write_text(config)
    assert operator.post("/api/reload", authorization=BEARER)["reloaded"] is True
    assert operator.ask("GET", "/api/queues").status == 401
    assert operator.ask("GET", "/api/queues", host="evil.example", authorization=BEARER).status == 421
    assert operator.ask("GET", "/api/queues", authorization=BEARER).status == 200


def test_a_server_without_h11_says_so_and_serves_its_clients(tmp_path: Path) -> None:
    """After an upgrade of the program alone, say."""
    (tmp_path / "hide").mkdir()
    hide = "import sys\nsys.meta_path.insert(0, type('Hide', (), {'find_spec': lambda self, name, *_: (_ for _ in ())"
    hide += ".throw(ModuleNotFoundError(name)) if name == 'h11' else None})())\n"
    (tmp_path / "hide" / "sitecustomize.py").write_text(hide)
    wrapper = ("env", f"PYTHONPATH={tmp_path / 'hide'}")
    with running(tmp_path / "one", wrapper=wrapper) as server:
        assert "h11" in server.stderr and "admin.no_socket" in server.stderr
        with Wire(server.address) as wire:
            assert wire.put("q", b"1") == b"STORED"
