"""An exception in an operator's request costs that request: it is answered with an error, and the log says why."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest

from staniel.broker import protocols, stats
from staniel.broker.admin import metrics
from staniel.broker.admin.http import dispatch, queries, rights
from staniel.broker.admin.http.events import PageEvents
from staniel.broker.admin.http.exchange import Exchange
from staniel.broker.admin.http.routes import ROUTES, Route
from staniel.broker.admin.sampler import Sampler
from staniel.broker.config.load import Config
from staniel.broker.events import Level
from staniel.server.listener import Endpoint
from staniel.server.machine import ListeningSocket
from tests.server.test_hub import Served
from tests.support.wire import Wire


def fail(*_: Any, **__: Any) -> NoReturn:
    raise ZeroDivisionError("division by zero")


class Admin(Served):
    """A hub with an admin listener, whose log is kept."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "")
        self.door = socket.create_server(("127.0.0.1", 0))
        self.hub.listen(Endpoint(ListeningSocket(self.door), protocols.http()))
        self.events = list[tuple[Level, str, dict[str, object]]]()
        self.hub.broker.client_events._report = lambda level, event, /, **fields: self.events.append(  # type: ignore[assignment]
            (level, event, fields)
        )

    def ask(self, request: bytes, address: tuple[str, int] | None = None) -> bytes:
        """What a client is answered: until three turns have brought nothing more."""
        said, quiet = b"", 0
        with Wire(address or self.listener.getsockname()) as wire:
            wire.say(request)
            wire.sock.setblocking(False)
            while quiet < 3:
                self.hub.turn(self.machine.poller.poll(0.002))
                try:
                    piece = wire.sock.recv(1 << 16)
                    if not piece:
                        break
                    said, quiet = said + piece, 0
                except BlockingIOError:
                    quiet += bool(said)
        return said

    def get(self, path: str, method: str = "GET") -> bytes:
        request = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        return self.ask(request, self.door.getsockname())

    def why(self) -> list[str]:
        return [str(fields["why"]) for level, event, fields in self.events if event == "request.failed"]


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Admin]:
    made = Admin(tmp_path)
    with closing(made.hub):
        assert made.ask(b"set q 0 0 1\r\na\r\n").startswith(b"STORED")
        yield made


@pytest.mark.parametrize(
    ("place", "name", "request_line"),
    [
        (stats, "server_stats", b"stats\r\n"),
        (stats, "named_stats", b"stats\r\n"),
        (stats, "other_stats", b"stats\r\n"),
        (stats, "by_name", b"dump_stats\r\n"),
        (Config, "describe", b"dump_config\r\n"),
    ],
)
def test_statistics_that_cannot_be_made_are_a_server_error(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, place: object, name: str, request_line: bytes
) -> None:
    monkeypatch.setattr(place, name, fail)
    assert admin.ask(request_line).startswith(b"SERVER_ERROR the server failed to serve this request")
    assert admin.why() == ["ZeroDivisionError: division by zero"]
    assert admin.ask(b"get q\r\n").startswith(b"VALUE q 0 1\r\na")


def test_every_page_of_the_operators_that_raises_is_a_500(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(exchange: Exchange, now_ms: int) -> None:
        fail()

    for route in [each for each in ROUTES if each.method == "GET"]:
        made = Route(route.method, route.path, serve, route.right, "")
        monkeypatch.setattr(dispatch, "find", lambda *_, made=made: (made, ("q",), []))
        assert admin.get(route.path.replace("{queue}", "q")).startswith(b"HTTP/1.1 500 "), route.path
    assert admin.why() and admin.ask(b"get q\r\n").startswith(b"VALUE")


@pytest.mark.parametrize(
    ("place", "name", "path", "begins"),
    [
        (metrics, "queue_samples", "/metrics", b"HTTP/1.1 500 "),
        (metrics.QueueMetrics, "families", "/metrics", b"HTTP/1.1 500 "),
        (queries, "snapshot", "/api/queues", b"HTTP/1.1 500 "),
        (Exchange, "server_view", "/api/server", b"HTTP/1.1 500 "),
        (PageEvents, "_news", "/api/events", b"HTTP/1.1 500 "),
    ],
)
def test_an_answer_in_pieces_that_cannot_be_made_is_a_500(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, place: object, name: str, path: str, begins: bytes
) -> None:
    monkeypatch.setattr(place, name, fail)
    assert admin.get(path).startswith(begins)
    assert admin.why() and admin.ask(b"get q\r\n").startswith(b"VALUE")


def test_a_stream_of_events_that_fails_later_ends(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    with Wire(admin.door.getsockname()) as wire:
        wire.say(b"GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        for _ in range(6):
            admin.hub.turn(admin.machine.poller.poll(0.002))
        monkeypatch.setattr(PageEvents, "_news", fail)
        session = next(each for each in admin.hub._of_session if each.protocol == "admin")
        session.stop_waiting(0)  # the wait for the next event has ended
        for _ in range(6):
            admin.hub.turn(admin.machine.poller.poll(0.002))
        assert admin.why() and wire.rest().endswith(b"\n\n\r\n")
    assert admin.ask(b"get q\r\n").startswith(b"VALUE")


def test_a_look_at_the_queues_that_raises_is_tried_again_later(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler: Sampler = admin.hub.broker.sampler(0)
    monkeypatch.setattr(Sampler, "_sample_queue", fail)
    sampler.on_timer(0)
    assert admin.why() == ["ZeroDivisionError: division by zero"]
    monkeypatch.undo()
    sampler.on_timer(0)
    assert "q" in sampler.rows


def test_a_post_that_raises_is_a_500_unless_a_promise_is_broken_within(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(exchange: Exchange, now_ms: int) -> None:
        raise AssertionError if broken else KeyError("name")

    monkeypatch.setattr(dispatch, "find", lambda *_: (Route("POST", "/api/reload", serve, rights.admin, ""), (), []))
    broken = False
    assert admin.get("/api/reload", "POST").startswith(b"HTTP/1.1 500 ")
    broken = True
    with pytest.raises(AssertionError):
        admin.get("/api/reload", "POST")


def test_a_reload_by_signal_that_raises_changes_nothing(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin.hub.broker, "_load", fail)
    admin.hub.reload()
    assert admin.why() == ["ZeroDivisionError: division by zero"]
    assert admin.ask(b"get q\r\n").startswith(b"VALUE")
