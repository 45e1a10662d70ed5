"""Clients of the admin listener for the hub: pipelines of HTTP requests and their replies, whole or in chunks; and
pages that receive events.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from random import Random
from typing import Any

from staniel.protocol.http.replies import CONTINUE
from staniel.sim.hub.clients import ITEM, Answer, NetClient, Request, Side, Want
from staniel.sim.hub.net import Link
from staniel.sim.violations import Kind, Violation

MOVED_BETWEEN = ("a", "b")
LOOKS = (
    "/api/queues",
    "/api/server",
    "/api/clients",
    "/health/ready",
    "/metrics",
    "/stats.json",
    "/api/queues/{}",
    "/api/queues/{}/items?bytes=0",  # without payload, because bytes that a socket has taken count as read
    "/api/queues/{}/open",
    "/api/queues/{}/waiters",
    "/nope/{}",
)
HEADS = (b"", b"Connection: keep-alive\r\n", b"Expect: 100-continue\r\n")


def looks(queue: str, rng: Random) -> Request:
    """Return a request that changes nothing."""
    path = rng.choice(LOOKS).format(queue)
    return Request(Want.LOOK, queue, _request("GET", path, b"", rng))


def puts(queue: str, number: int, data: bytes, rng: Random) -> Request:
    body = json.dumps({"data": data.decode()}).encode()
    return Request(Want.PUT, queue, _request("POST", f"/api/queues/{queue}/put", body, rng), number)


def terms(rng: Random) -> list[str]:
    """Return terms that choose some items of a queue, at any position."""
    digit, first = rng.randrange(10), rng.randrange(4)
    return rng.choice(
        ([f"text~{digit}#"], [f"regex~#[{digit}-9]"], [f"position={first}-{first + 2}"], ["size>50B"], ["tries>=1"])
    )


def purges(queue: str, rng: Random, *, no_undo: bool, where: list[str] | None = None) -> Request:
    body = b'{"no_undo": true}' if no_undo else rng.choice((b"", b"{}"))
    if where is not None and not no_undo:
        body = json.dumps({"where": where}).encode()
    return Request(
        Want.ERASE if no_undo else Want.PURGE, queue, _request("POST", f"/api/queues/{queue}/purge", body, rng)
    )


def moves(source: str, target: str, rng: Random, *, where: list[str] | None = None) -> Request:
    told: dict[str, object] = {"to": target} | ({"count": rng.choice((1, 3))} if rng.random() < 0.5 else {})
    body = json.dumps(told | ({"where": where} if where is not None else {})).encode()
    return Request(Want.MOVE, source, _request("POST", f"/api/queues/{source}/move", body, rng), target=target)


def redrives(queue: str, rng: Random) -> Request:
    """Return a request that sends each item to the queue that it left."""
    body = json.dumps({"count": rng.choice((1, 3, 5))} if rng.random() < 0.4 else {}).encode()
    return Request(Want.MOVE, queue, _request("POST", f"/api/queues/{queue}/redrive", body, rng))


def cancels(number: int, rng: Random) -> Request:
    return Request(Want.MOVE, "", _request("POST", f"/api/operations/{number}/cancel", b"", rng))


def deletes(queue: str, rng: Random, *, at_most_none: bool = False) -> Request:
    """Return a request that deletes a queue. An undo returns its waiting items, but not its open ones. `at_most_none`:
    without an undo, if no item waits.
    """
    body = b'{"no_undo": true, "expected": 0}' if at_most_none else b""
    return Request(Want.DELETE_UNDOABLY, queue, _request("DELETE", f"/api/queues/{queue}", body, rng))


def undoes(number: int, rng: Random) -> Request:
    """Return a request that undoes operation `number`, of any kind."""
    return Request(Want.UNDO, "", _request("POST", f"/api/undo/{number}", b"", rng))


def takes(queue: str, rng: Random) -> Request:
    """Return a request that takes one item for good."""
    return Request(Want.GET, queue, _request("POST", f"/api/queues/{queue}/take", b"", rng))


Terms = Callable[[Random], list[str] | None]


def _moves_between(rng: Random, terms: Terms) -> Request:
    source, target = rng.sample(MOVED_BETWEEN, 2)
    return moves(source, target, rng, where=terms(rng))


OPERATIONS: tuple[tuple[range, Callable[[str, Random, Terms], Request]], ...] = (
    (range(75), lambda queue, rng, terms: _moves_between(rng, terms)),
    (range(75, 89), lambda queue, rng, terms: purges(queue, rng, no_undo=False, where=terms(rng))),
    (range(89, 90), lambda queue, rng, terms: purges(queue, rng, no_undo=True, where=terms(rng))),
    (range(90, 91), lambda queue, rng, terms: deletes(queue, rng)),
)
"""The operations on a queue that operators request where these can be undone, and each one's part of a hundred; some
of the first part are for undoing. Terms are drawn where the profile has them.
"""


def draw_operation(draw: int, queue: str, rng: Random, terms: Terms) -> Request | None:
    """Return the operation whose part `draw` is in."""
    return next((operation(queue, rng, terms) for part, operation in OPERATIONS if draw in part), None)


def _request(method: str, path: str, body: bytes, rng: Random) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: staniel\r\nContent-Type: application/json\r\n".encode()
    if body and rng.random() < 0.3:
        at = rng.randrange(1, len(body))
        pieces = b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:at], body[at:])])
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n"
    return head + rng.choice(HEADS[: 3 if body else 2]) + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Operator(NetClient):
    """A client of the admin listener. Its replies are HTTP; everything else is as with any client."""

    def _is_cut_short(self) -> bool:
        if self.side is not Side.ENDED or not CONTINUE.startswith(self._heard):
            return False
        if self._heard == CONTINUE:
            self._heard.clear()
        return True

    def _next(self, request: Request) -> Answer | None:
        while True:
            head, blank, remaining = bytes(self._heard).partition(b"\r\n\r\n")
            if not blank:
                return None
            if head + blank != CONTINUE:
                break
            self._heard = bytearray(remaining)
        lines = head.split(b"\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in lines[1:])
        reply = (
            _chunks(remaining)
            if b"transfer-encoding" in headers
            else _counted(remaining, int(headers[b"content-length"]))
        )
        if reply is None:
            return None
        body, left = reply
        self._heard = bytearray(left)
        return self._understood(request, lines[0], body)

    def _understood(self, request: Request, status: bytes, body: bytes) -> Answer:
        is_good = status.startswith(b"HTTP/1.1 200 ")
        if request.want is Want.LOOK:
            if not is_good and status[9:12] not in (b"404", b"503"):
                raise Violation(Kind.NO_ANSWER, f"{self.name}: {status!r} is no answer to {request.line[:60]!r}")
            return Answer(request, [], b"LOOKED")
        told = json.loads(body)
        if not is_good:
            if "error" not in told:
                raise Violation(Kind.NO_ANSWER, f"{self.name}: {status!r} without a reason")
            return Answer(request, [], b"SERVER_ERROR " + status)
        if request.want in (Want.PURGE, Want.ERASE):
            return Answer(request, [], b"PURGED")
        if request.want is Want.UNDO:
            return Answer(request, [], b"RETURNED")
        if request.want in (Want.MOVE, Want.DELETE_UNDOABLY):
            return Answer(request, [], b"DONE")
        if request.want is Want.PUT:
            return Answer(request, [], b"STORED" if told == {"stored": 1} else b"SERVER_ERROR")
        items = [int(ITEM.match(_data(item))[1]) for item in told["items"]]  # type: ignore[index]
        return Answer(request, items, b"END")


class Page(NetClient):
    """A page that receives /api/events, perhaps slowly. `table`: how many items each queue has, according to the
    events.
    """

    def __init__(self, name: str, link: Link) -> None:
        super().__init__(name, link)
        self.unsaid += b"GET /api/events HTTP/1.1\r\nHost: staniel\r\n\r\n"
        self.table: dict[str, int] = {}
        self.is_told_all = False
        self._body = bytearray()
        self._has_head = False

    def _forget_unsaid(self) -> None:
        self.unsaid.clear()

    def _answers(self) -> list[Answer]:
        if not self._has_head:
            head, blank, remaining = bytes(self._heard).partition(b"\r\n\r\n")
            if not blank:
                return []
            if not head.startswith(b"HTTP/1.1 200 ") or b"text/event-stream" not in head:
                raise Violation(Kind.NO_ANSWER, f"{self.name}: {head[:60]!r} begins no stream of events")
            self._has_head, self._heard = True, bytearray(remaining)
        while (chunk := _chunk(bytes(self._heard))) is not None:
            piece, remaining = chunk
            self._heard = bytearray(remaining)
            self._body += piece
        *events, remaining = bytes(self._body).split(b"\n\n")
        self._body = bytearray(remaining)
        for event in events:
            if event.startswith(b"data: "):
                self._learn(json.loads(event[6:]))
        return []

    def _learn(self, event: dict[str, Any]) -> None:
        if event.get("is_first"):
            self.table.clear()
        for name, *row in event.get("rows", ()):
            if row:
                self.table[name] = row[0]
            else:
                self.table.pop(name, None)
        self.is_told_all = "more" not in event


def _data(item: dict[str, str]) -> bytes:
    return b64decode(item["data"]) if item["encoding"] == "base64" else item["data"].encode()


def _chunk(heard: bytes) -> tuple[bytes, bytes] | None:
    """Return the first chunk, and what follows it; None if it is incomplete."""
    line, newline, remaining = heard.partition(b"\r\n")
    if not newline:
        return None
    size = int(line, 16)
    return (remaining[:size], remaining[size + 2 :]) if len(remaining) >= size + 2 else None


def _counted(received: bytes, size: int) -> tuple[bytes, bytes] | None:
    return (received[:size], received[size:]) if len(received) >= size else None


def _chunks(received: bytes) -> tuple[bytes, bytes] | None:
    body: list[bytes] = []
    while True:
        line, newline, received = received.partition(b"\r\n")
        if not newline:
            return None
        size = int(line, 16)
        if len(received) < size + 2:
            return None
        piece, received = received[:size], received[size + 2 :]
        if not size:
            return b"".join(body), received
        body.append(piece)
