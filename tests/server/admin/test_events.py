"""What a page is told as long as it listens, and what the server keeps of the time before."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.admin.asking import Operator
from tests.support.process import Server, running
from tests.support.wire import Wire

SECONDS_MAX = 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, config="[admin]\nport = 0\n") as server:
        yield server


class Page:
    """A page that listens: `table` has the newest row of each queue."""

    def __init__(self, server: Server, receive_bytes: int = 0) -> None:
        self._sock = socket.socket()
        if receive_bytes:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._sock.settimeout(SECONDS_MAX)
        self._sock.connect(("127.0.0.1", server.second_port))
        self._sock.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self._stream = self._sock.makefile("rb")
        self.table: dict[str, list[Any]] = {}
        self.state: dict[str, Any] = {}

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._sock.close()

    def head(self) -> str:
        lines = []
        while (line := self._stream.readline()) not in (b"\r\n", b""):
            lines.append(line)
        return b"".join(lines).decode()

    def next(self) -> dict[str, Any]:
        """The next event; {} at the end of the stream."""
        while True:
            line = self._stream.readline()
            if not line or line == b"0\r\n":
                return {}
            if line.startswith(b"data: "):
                break
        event: dict[str, Any] = json.loads(line[6:])
        if event.get("is_first"):
            self.table.clear()
        for row in event.get("rows", ()):
            if len(row) == 1:
                self.table.pop(row[0], None)
            else:
                self.table[row[0]] = row
        self.state |= event
        return event

    def until(self, names: set[str]) -> None:
        """Listen until these are the queues."""
        while set(self.table) != names:
            assert self.next()


def test_a_page_is_told_all_queues_and_then_what_changes(server: Server) -> None:
    with Wire(server.address) as wire, Page(server) as page:
        assert "content-type: text/event-stream" in page.head()
        first = page.next()
        assert first["is_first"] and first["server"]["queues"] == 0 and first["health"]["ready"] is True
        for name in ("a", "b"):
            assert wire.put(name, b"12345") == b"STORED"
        page.until({"a", "b"})
        assert page.table["a"][1:3] == [1, 5] and page.state["totals"]["queues"] == 2
        assert wire.ask(b"delete a") == b"DELETED"
        page.until({"b"})
        assert wire.put("b", b"1") == b"STORED"
        while page.table["b"][1] != 2:
            event = page.next()
            assert [row[0] for row in event.get("rows", ())] in ([], ["b"]), "only what has changed"


def test_all_queues_come_before_the_history_of_any(server: Server) -> None:
    with Wire(server.address) as wire:
        for at in range(500):
            assert wire.put(f"q{at}", b"1") == b"STORED"
    with Page(server) as page:
        page.head()
        sparks: dict[str, str] = {}
        while len(sparks) < 500:
            event = page.next()
            assert not sparks or len(page.table) == 500
            sparks |= {name: letters for name, _, letters in event.get("sparks", ())}
        assert set(sparks) == set(page.table)


def test_a_page_that_reads_nothing_costs_nothing_and_sees_the_newest_state_when_it_reads(server: Server) -> None:
    names = [f"{number:03}" + "x" * 150 for number in range(600)]
    with Wire(server.address) as wire, Page(server, receive_bytes=4096) as page:
        for name in names:
            assert wire.put(name, b"1") == b"STORED"
        before = server.memory_bytes()
        for _ in range(5):
            for name in names:
                assert wire.put(name, b"1") == b"STORED"
        assert server.memory_bytes() - before < 8 << 20
        assert page.head()
        while len(page.table) < 600 or any(row[1] != 6 for row in page.table.values()):
            assert page.next()


def test_a_stop_ends_the_stream(server: Server) -> None:
    with Page(server) as page:
        assert page.head() and page.next()
        server.stop()
        while page.next():
            pass


def test_a_history_is_told_by_span(server: Server, operator: Operator) -> None:
    with Wire(server.address) as wire, Page(server) as page:
        assert wire.put("a", b"12345") == b"STORED"
        page.head()
        page.until({"a"})
    assert operator.get("/api/queues/a/history")["is_kept"] is True
    assert operator.get("/api/queues/a/history?span=1d")["step_ms"] == 600_000
    assert operator.ask("GET", "/api/queues/a/history?span=2d").status == 400
    assert operator.get("/api/history")["queue"] == ""


def test_the_files_of_a_journal_are_listed(server: Server, operator: Operator) -> None:
    with Wire(server.address) as wire:
        for _ in range(3):
            assert wire.put("a", b"12345") == b"STORED"
        assert wire.ask(b"get a").startswith(b"VALUE")
    found = operator.get("/api/queues/a/journal")
    (file,) = found["files"]
    assert (file["name"], file["state"], file["items"], file["unread_items"]) == ("a", "written to", 3, 2)
    assert file["bytes"] == found["bytes"] > 0


def test_an_abort_of_more_reads_than_were_shown_is_refused(server: Server, operator: Operator) -> None:
    with Wire(server.address) as wire:
        for _ in range(2):
            assert wire.put("a", b"1") == b"STORED"
        assert wire.ask(b"get a/open").startswith(b"VALUE")
        assert operator.ask("POST", "/api/queues/a/open/abort", {"expected": 0}).status == 409
        assert operator.post("/api/queues/a/open/abort", {"expected": 1}) == {"aborted": 1}
