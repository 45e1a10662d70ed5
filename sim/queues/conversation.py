"""The requests of simulated clients in the memcache and text protocols, and the parser of the replies."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from staniel.sim.conversation import Conversation


class Want(Enum):
    """The kinds of request. The text protocol's have meanings of their own."""

    PUT = "put"
    GET = "get"
    OPEN = "open"
    CLOSE = "close"
    CLOSE_OPEN = "close/open"
    ABORT = "abort"
    PEEK = "peek"
    MANY = "get of several keys"
    SOME = "get of several items"
    MONITOR = "monitor"
    CONFIRM = "confirm"
    TOUCH = "touch"
    FLUSH = "flush"
    FLUSH_ALL = "flush_all"
    FLUSH_EXPIRED = "flush_expired"
    DELETE = "delete"
    MOVE = "move"
    PAUSE = "pause"
    STATS = "stats"
    STATUS = "status"
    RELOAD = "reload"
    TEXT_PUT = "text put"
    TEXT_GET = "text get"
    TEXT_PEEK = "text peek"
    TEXT_MONITOR = "text monitor"
    TEXT_CONFIRM = "text confirm"


SHOWS_ITEMS = frozenset((Want.GET, Want.OPEN, Want.CLOSE_OPEN, Want.PEEK, Want.MANY, Want.SOME))
PUTS = frozenset((Want.PUT, Want.TEXT_PUT))
CLOSERS = frozenset(
    (Want.CLOSE, Want.CLOSE_OPEN, Want.CONFIRM, Want.TEXT_GET, Want.TEXT_PEEK, Want.TEXT_MONITOR, Want.TEXT_CONFIRM)
)
SHOWS_TEXT_ITEMS = frozenset((Want.TEXT_GET, Want.TEXT_PEEK, Want.TEXT_MONITOR))
OPENERS = frozenset((Want.OPEN, Want.CLOSE_OPEN, Want.MONITOR, Want.TEXT_GET, Want.TEXT_MONITOR))


class Request(Struct, eq=False):
    """A request. `keys` are those of a get of several: (what it wants, queue). `silent`: it gets no reply. `is_over`:
    the items that it puts have expired long ago.
    """

    want: Want
    queue: str
    line: bytes
    items: tuple[bytes, ...] = ()
    keys: tuple[tuple[Want, str], ...] = ()
    target: str = ""
    count: int = 0
    opens: bool = False
    silent: bool = False
    is_over: bool = False
    after_facts: int = 0  # how many changes had been recorded before

    @property
    def waits(self) -> bool:
        """True if its reply may be the end of a wait."""
        is_text = self.want in (Want.TEXT_GET, Want.TEXT_PEEK)
        return b"/t=" in self.line or (is_text and len(self.line.split()) > 2)

    def closes(self, queue: str) -> bool:
        """Tell whether the request may confirm an open read of `queue`."""
        if self.want in CLOSERS and self.queue == queue:
            return True
        return any(want in CLOSERS and name == queue for want, name in self.keys)

    def aborts(self, queue: str) -> bool:
        """Tell whether the request may abort an open read of `queue`."""
        if self.want is Want.ABORT and self.queue == queue:
            return True
        return any(want is Want.ABORT and name == queue for want, name in self.keys)

    def may_get_item_of(self, queue: str) -> bool:
        """Tell whether the request may be given an item of `queue`, at once or after a wait."""
        shows_items = self.want in SHOWS_ITEMS or self.want in SHOWS_TEXT_ITEMS or self.want is Want.MONITOR
        return shows_items and (self.queue == queue or any(name == queue for _, name in self.keys))

    def flushes(self, queue: str) -> bool:
        return self.want is Want.FLUSH_ALL or (self.want is Want.FLUSH and self.queue == queue)

    def shown(self) -> str:
        """Return the request as the history shows it."""
        return self.line.decode("latin-1").strip().replace("\r\n", " ⏎ ").replace("\n", " ⏎ ")


class Answer(Struct, eq=False):
    """A part of the reply to `request`: items, and the `end` line once it is complete ("" before that)."""

    request: Request
    items: list[tuple[str, bytes]]
    end: str
    lines: list[str] = []


class QueueConversation(Conversation):
    """The requests and replies of a connection in the memcache protocol, or in the text protocol, whose lines end with
    a line feed alone.
    """

    line_end = b"\n"

    def __init__(self, is_text: bool) -> None:
        super().__init__()
        self.is_text = is_text
        self._items: list[tuple[str, bytes]] = []
        self._lines: list[str] = []

    @property
    def is_unfinished(self) -> bool:
        return bool(self._items)

    def expect(self, request: Request) -> None:
        if not request.silent:
            super().expect(request)

    def _next(self) -> Answer | None:
        return self._text() if self.is_text else self._memcache()

    def _text(self) -> Answer | None:
        request: Request = self.waiting[0]
        line = self._line()
        if line is None:
            return None
        line = line.removesuffix(b"\r")
        if line.startswith(b":") and request.want in (Want.TEXT_GET, Want.TEXT_PEEK):
            return Answer(request, [(request.queue, line[1:])], "item")
        if line.startswith(b":") and request.want is Want.TEXT_MONITOR:
            return Answer(request, [(request.queue, line[1:])], "")
        if line[:1] not in (b"+", b"-", b"*"):
            raise ValueError(f"{line!r} is no answer to {request.shown()!r}")
        return Answer(request, [], line.decode("latin-1"))

    def _memcache(self) -> Answer | None:
        request: Request = self.waiting[0]
        before = self._rest
        line = self._line()
        if line is None:
            return None
        line = line.removesuffix(b"\r")
        if line.startswith(b"VALUE "):
            return self._value(request, line, before)
        if line.startswith(b"STAT ") and request.want is Want.STATS:
            self._lines.append(line[5:].decode("latin-1"))
            return self._memcache() if self._rest else None
        items, self._items = self._items, []
        lines, self._lines = self._lines, []
        return Answer(request, items, line.decode("latin-1"), lines)

    def _value(self, request: Request, line: bytes, before: bytes) -> Answer | None:
        words = line.split(b" ")
        if request.want not in SHOWS_ITEMS and request.want is not Want.MONITOR:
            raise ValueError(f"{line!r} is no answer to {request.shown()!r}")
        size = int(words[3])
        tail = b"\r\nEND\r\n" if request.want is Want.MONITOR else b"\r\n"
        if len(self._rest) < size + len(tail):
            self._rest = before
            return None
        data, end = self._rest[:size], self._rest[size : size + len(tail)]
        if end != tail:
            raise ValueError(f"an item that does not end where it should: {end!r}")
        self._rest = self._rest[size + len(tail) :]
        item = (words[1].partition(b"/")[0].decode("latin-1"), data)
        if request.want is Want.MONITOR:
            return Answer(request, [item], "")
        self._items.append(item)
        return self._memcache() if self._rest else None
