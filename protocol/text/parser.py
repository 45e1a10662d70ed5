"""The parser of Kestrel's text protocol, without a socket: bytes in, requests out, in order.

The parser does the framing: a line ends with LF, and one CR before it is dropped. A request line that ends with a colon
is followed by items, one a line, up to an empty line. `commands.py` interprets lines. No bytes of a peer raise: an
unreadable request yields an `Invalid` in its place.

    state   waits for          then
    LINE    LF                 LINE; ITEMS / SKIP if the line ends with a colon; CLOSED if it cannot go on
    ITEMS   LF, item by item   LINE after the empty line; SKIP if one item or all of them are too large
    SKIP    the empty line     LINE, with the refusal; the items are not stored
    PAUSED  `More.resume`      the state that it was paused in; what arrives until then is stored
    CLOSED  nothing            for ever: a request that disconnects has been handed out

Two things differ from Kestrel 2.4, which lost data: an item's bytes are stored unchanged, also those above 0x7F, and
there may be more than 1024 of them. An item can neither be empty, nor hold LF, nor end with CR.

A put is one request, so its items are stored until its empty line: as many bytes as arrived, at most PUT_BYTES_MAX.
"""

from __future__ import annotations

from enum import Enum
from functools import partial

from staniel.protocol.http.detect import refusal_of
from staniel.protocol.limits import WORK_PER_FEED, Limits
from staniel.protocol.parser import Parser
from staniel.protocol.requests import Invalid, More
from staniel.protocol.text.commands import parse, refuse
from staniel.protocol.text.requests import TextPut, TextRequest

PUT_BYTES_MAX = 64 << 20
"""The limit for all items of one put: four of the largest. A client with more can end this put and begin another."""

ITEM_OVERHEAD_BYTES = 64
"""The overhead of an item, about what CPython takes: a million items of one byte are no small put."""

ITEMS_A_WORK = 8
"""The number of a put's lines that take as long as a request."""


class TextState(Enum):
    followers: tuple[TextState, ...]
    """The states that may follow; `_enter` asserts it."""

    LINE = "line"
    ITEMS = "items"
    SKIP = "skip"
    PAUSED = "paused"
    CLOSED = "closed"


# Globals: found ten times as fast as members of an Enum.
LINE, ITEMS, SKIP, PAUSED, CLOSED = TextState
LINE.followers = (ITEMS, SKIP, PAUSED, CLOSED)
ITEMS.followers = (LINE, SKIP, PAUSED)
SKIP.followers = (LINE, PAUSED)
PAUSED.followers = (LINE, ITEMS, SKIP)
CLOSED.followers = ()


class TextParser(Parser):
    """A parser of one connection."""

    __slots__ = (
        "_answer",
        "_item_bytes_max",
        "_items",
        "_items_bytes",
        "_line_bytes_max",
        "_put_bytes_max",
        "_rest",
        "_state",
        "_tail",
    )

    def __init__(self, limits: Limits, put_bytes_max: int = PUT_BYTES_MAX) -> None:
        self.limit(limits)
        self._put_bytes_max = put_bytes_max
        self._state = LINE
        self._tail = bytearray()
        """The unfinished line; in SKIP only its first two bytes, which is enough to recognize an empty one."""
        self._rest = b""
        """Bytes that arrived while PAUSED."""
        self._answer: TextRequest | None = None
        """The request of the line with the colon, or its refusal: handed out at the empty line. None in LINE."""
        self._items: list[bytes] = []
        self._items_bytes = 0
        """The size of `_items`, each with its overhead."""
        self.pending_bytes = 0

    def limit(self, limits: Limits) -> None:
        """Change the limits for bytes that have not been read yet."""
        self._line_bytes_max, self._item_bytes_max = limits.line_bytes_max, limits.item_bytes_max

    @property
    def state(self) -> TextState:
        return self._state

    def feed(self, data: bytes) -> list[TextRequest]:
        """Return the requests that `data` completes, in order.

        After a request that disconnects, further bytes are ignored. If the requests exceed a turn's time, the last one
        is a `More`, and bytes that arrive before it is resumed are stored.
        """
        requests: list[TextRequest] = []
        if self._state is PAUSED:
            self._rest += data
            self.pending_bytes += len(data)
            return requests
        at, work_left = 0, WORK_PER_FEED * ITEMS_A_WORK
        while (end := data.find(b"\n", at)) >= 0 and self._state is not CLOSED:
            if work_left <= 0:
                self._rest = data[at:]
                requests.append(More(partial(self._resume, self._state)))
                self._enter(PAUSED)
                self.pending_bytes = self._items_bytes + len(self._rest)
                return requests
            work_left -= ITEMS_A_WORK + (end - at >> 6) if self._state is LINE else 1
            line = data[at:end]
            at = end + 1
            if self._tail:
                line = bytes(self._tail + line)
                self._tail.clear()
            self._end_line(line, requests)
        self._store_rest(data[at:], requests)
        self.pending_bytes = len(self._tail) + self._items_bytes
        return requests

    def _resume(self, state: TextState) -> list[TextRequest]:
        """Parse the next slice of the stored bytes, in the state that the parser was paused in."""
        self._enter(state)
        rest, self._rest = self._rest, b""
        return self.feed(rest)

    def _enter(self, state: TextState) -> None:
        assert state in self._state.followers, f"{state} after {self._state}"
        self._state = state

    def _end_line(self, line: bytes, requests: list[TextRequest]) -> None:
        if self._state is ITEMS:
            self._read_item(line.removesuffix(b"\r"), requests)
        elif self._state is SKIP:
            if not line.removesuffix(b"\r"):
                self._end_items(requests)
        elif len(line) > self._line_bytes_max:
            self._close(self._too_long(), requests)
        else:
            self._read_line(line.removesuffix(b"\r"), requests)

    def _read_line(self, line: bytes, requests: list[TextRequest]) -> None:
        """Read a request line. Any command may announce items; only a put's are used, others are skipped."""
        if (refusal := refusal_of(line)) is not None:
            self._close(refusal, requests)
            return
        request = parse(line.removesuffix(b":"))
        if line.endswith(b":"):
            self._answer = request
            self._enter(ITEMS if isinstance(request, TextPut) else SKIP)
        else:
            self._emit(request, requests)

    def _read_item(self, item: bytes, requests: list[TextRequest]) -> None:
        if not item:
            self._end_items(requests)
        elif not self._refuse_item(len(item)):
            self._items.append(item)
            self._items_bytes += len(item) + ITEM_OVERHEAD_BYTES

    def _refuse_item(self, size: int) -> bool:
        """Return True if an item of at least `size` bytes is too large; the whole put is then refused and skipped."""
        total = self._items_bytes + size + ITEM_OVERHEAD_BYTES
        if size <= self._item_bytes_max and total <= self._put_bytes_max:
            return False
        # One reply for both limits: how the bytes arrived may decide which one is reached first.
        why = f"Put too large; limit={self._item_bytes_max} an item, {self._put_bytes_max} in all"
        self._forget_items()
        self._answer = refuse(why)
        self._enter(SKIP)
        return True

    def _end_items(self, requests: list[TextRequest]) -> None:
        request = self._answer
        assert request is not None
        if self._state is ITEMS:
            assert isinstance(request, TextPut)
            request = TextPut(request.queue, tuple(self._items), request.ttl_ms)
        self._forget_items()
        self._answer = None
        self._enter(LINE)
        self._emit(request, requests)

    def _forget_items(self) -> None:
        self._items = []
        self._items_bytes = 0

    def _store_rest(self, body: bytes, requests: list[TextRequest]) -> None:
        """Store the beginning of a line, unless it is already too long."""
        if self._state is LINE and len(self._tail) + len(body) > self._line_bytes_max:
            self._close(self._too_long(), requests)
        # The last byte may be a CR, which is no part of the item; a single byte may become the empty line.
        end = len(self._tail) + len(body) - 1
        if self._state is ITEMS and end > 0:
            self._refuse_item(end)
        if self._state is SKIP:
            del self._tail[2:]
            body = body[: 2 - len(self._tail)]
        if self._state is not CLOSED:
            self._tail += body

    def _emit(self, request: TextRequest, requests: list[TextRequest]) -> None:
        if isinstance(request, Invalid) and request.hang_up:
            self._close(request, requests)
        else:
            requests.append(request)

    def _close(self, last: Invalid, requests: list[TextRequest]) -> None:
        requests.append(last)
        self._tail.clear()
        self._enter(CLOSED)

    def _too_long(self) -> Invalid:
        return refuse(f"Line too long; limit={self._line_bytes_max}", hang_up=True)
