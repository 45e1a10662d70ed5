"""The client's half of the memcache protocol, without a socket: requests to bytes, bytes to replies, in order.

    conversation = Conversation()
    sock.sendall(conversation.send(Set("jobs", b"1"), Set("jobs", b"2"), read("jobs", open=True)))
    while conversation.unanswered:
        for reply in conversation.receive(sock.recv(65536)): ...

A conversation splits the byte stream into replies and matches them to requests. Bytes that cannot be the expected reply
yield a `ProtocolViolation`, never an exception; after it nothing more is read.

    state  waits for                                    then
    OPEN   the reply to the oldest unanswered request   OPEN; ERROR if the bytes cannot be that
    ERROR  nothing                                      for ever: a ProtocolViolation has been handed out

Between two calls only the bytes of an unfinished line or item are kept; no memory is reserved for an announced length.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from itertools import islice

from staniel.protocol.client.replies import (
    VALUE_LINE,
    Dump,
    Error,
    Item,
    Items,
    ProtocolViolation,
    Reply,
    StatsReply,
    ValueHead,
    parse_error,
    parse_head,
)
from staniel.protocol.client.requests import FINALS, PARSERS, WRITERS, encode, read
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.memcache.requests import Request
from staniel.protocol.words import INT32_MAX

__all__ = ["Conversation", "ConversationState", "encode", "read"]

REPLY_LINE_BYTES_MAX = 65_536
"""A VALUE line repeats the requested key, up to 16 KB long. A line of more than four times that is no reply."""

_WITH_NOREPLY = (
    *(memcache.Set, memcache.KeyedSet, memcache.DelayedSet),
    *(memcache.Delete, memcache.FlushAll, memcache.Verbosity),
)
_WITH_ITEMS = (memcache.Get, memcache.Monitor, memcache.GetMany, memcache.GetFirst)
_OF_SEVERAL = (memcache.GetMany, memcache.GetFirst)
_DUMPS = (memcache.DumpStats, memcache.DumpConfig)
_MANY_LINES = {memcache.GetMany, memcache.Stats, *_DUMPS}


class ConversationState(Enum):
    OPEN = "open"
    ERROR = "error"


class Conversation:
    """A connection, from the client's side."""

    def __init__(self) -> None:
        self._state = ConversationState.OPEN
        self._expected: deque[Request] = deque()
        self._tail = bytearray()
        self._need = 0
        """The size that `_tail` must reach before it is parsed again."""
        self._lines: list[bytes] = []
        """The lines of an incomplete stats or dump reply."""
        self._items: list[Item] = []
        """The items of an incomplete reply to a get of several keys."""

    @property
    def state(self) -> ConversationState:
        return self._state

    @property
    def unanswered(self) -> int:
        """Requests without a complete reply. A monitor counts until its END."""
        return len(self._expected)

    @property
    def pending_bytes(self) -> int:
        """Bytes kept of an incomplete reply."""
        return len(self._tail) + sum(map(len, self._lines)) + sum(len(item.data) for item in self._items)

    def send(self, *requests: Request) -> bytes:
        """Return the bytes to send. Raises ValueError, and notes nothing, if one of the requests cannot be written.

        Use `noreply` only with a server of the memcached dialect: Kestrel's dialect replies anyway.
        """
        if len(requests) == 1:  # the usual case, in fewer steps
            (request,) = requests
            kind = type(request)
            write = WRITERS.get(kind)
            data = encode(request) if write is None else write(request)  # without a writer `encode` refuses it
            if kind in FINALS and not (kind in _WITH_NOREPLY and request.noreply):  # type: ignore[union-attr]
                self._expected.append(request)
            return data
        data = b"".join([encode(request) for request in requests])
        self._expected += [
            request
            for request in requests
            if type(request) in FINALS and not (type(request) in _WITH_NOREPLY and request.noreply)  # type: ignore[union-attr]
        ]
        return data

    def receive(self, data: bytes) -> list[Reply]:
        """Return the replies that `data` completes, in the order of the requests: one each, none to noreply and quit.

        A monitor is the exception: it yields each item as it comes, then Answer.END (or an Error).
        """
        if self._tail:
            self._tail += data
            if len(self._tail) < self._need:
                return []
            data, self._tail = bytes(self._tail), bytearray()
        elif len(self._expected) == 1 and self._state is ConversationState.OPEN:
            # The usual case: one reply to one request, whole.
            whole = _whole_reply(data, self._expected[0])
            if whole is not None:
                self._expected.popleft()
                return [whole]
        replies: list[Reply] = []
        at = 0
        if len(self._expected) > 1:
            at = self._read_items(data, self._read_alike(data, replies), replies)
        while at < len(data) and self._state is ConversationState.OPEN:
            at = self._read(data, at, replies)
        return replies

    def _read_alike(self, data: bytes, replies: list[Reply]) -> int:
        """Read the lines at the start of `data` that are the same reply to requests of one kind, such as many puts:
        what `_read` does with each, in fewer steps. Return where the next line starts.
        """
        if self._state is not ConversationState.OPEN:
            return 0
        line = data[: data.find(b"\n") + 1]
        kind = type(self._expected[0])
        final = FINALS[kind].get(line[:-1])
        if final is None or kind in _MANY_LINES:
            return 0
        count = min(len(data) // len(line), len(self._expected))
        if not data.startswith(line * count):
            return 0
        kinds = [type(request) for request in islice(self._expected, count)]
        if kinds.count(kind) < count:
            return 0
        for _ in range(count):
            self._expected.popleft()
        replies += [final] * count
        return count * len(line)

    def _read_items(self, data: bytes, at: int, replies: list[Reply]) -> int:
        """Read whole items that are the replies to the next gets: what `_read` does with each, in half the time. Return
        where the first reply starts that is not such an item.
        """
        if self._state is not ConversationState.OPEN:
            return at
        expected, match, keys = self._expected, VALUE_LINE.match, tuple[bytes, ...]()
        last: Request | None = None
        while expected and isinstance(request := expected[0], memcache.Get):
            head = match(data, at)
            if head is None:
                break
            key, flags, length, number = head.groups()
            if request is not last:  # many reads are often one request, repeated
                last, keys = request, (request.key, request.key.partition(b"/")[0])
            start = head.end()
            stop = start + int(length)
            if key not in keys or not data.startswith(b"\r\nEND\r\n", stop) or stop - start > INT32_MAX:
                break
            expected.popleft()
            replies.append(Item(data[start:stop], int(flags), None if number is None else int(number), key))
            at = stop + 7
        return at

    def _read(self, data: bytes, at: int, replies: list[Reply]) -> int:
        """Read one line, with the block that belongs to it. Return where the next line starts."""
        end = data.find(b"\n", at)
        if end < 0 or end - at > REPLY_LINE_BYTES_MAX:
            return self._wait_for_line(data, at, replies)
        line = data[at:end]
        if not self._expected:
            return self._fail(data, line, "no request is unanswered", replies)
        request = self._expected[0]
        if line.startswith(b"VALUE ") and isinstance(request, _WITH_ITEMS):
            return self._read_item(data, at, end, request, replies)
        final = FINALS[type(request)].get(line)
        if final is not None:
            self._expected.popleft()
            replies.append(self._complete(request) if type(request) in _MANY_LINES else final)
        else:
            self._read_other(data, line, request, replies)
        return end + 1

    def _wait_for_line(self, data: bytes, at: int, replies: list[Reply]) -> int:
        have = len(data) - at
        if have > REPLY_LINE_BYTES_MAX:
            return self._fail(data, data[at : at + 80], "line too long", replies)
        return self._store_rest(data, at, have + 1)

    def _read_item(
        self,
        data: bytes,
        at: int,
        end: int,
        request: memcache.Get | memcache.Monitor | memcache.GetMany | memcache.GetFirst,
        replies: list[Reply],
    ) -> int:
        """Read a VALUE line and its block. Each item is followed by an END, except in the reply to a get of several
        keys.
        """
        line = data[at:end]
        head = parse_head(line)
        if head is None or not _was_asked(head, request):
            return self._fail(data, line, "not an item that was asked for", replies)
        stop = end + 1 + head.length
        ending = b"\r\n" if isinstance(request, memcache.GetMany) else b"\r\nEND\r\n"
        after = stop + len(ending)
        if len(data) < after:
            return self._store_rest(data, at, after - at)
        if not data.startswith(ending, stop):
            return self._fail(data, line, "the item is not as long as announced", replies)
        item = Item(data[end + 1 : stop], head.flags, head.id, head.key)
        if isinstance(request, memcache.GetMany):
            self._items.append(item)
            return after
        if not isinstance(request, memcache.Monitor):
            self._expected.popleft()
        replies.append(item)
        return after

    def _read_other(self, data: bytes, line: bytes, request: Request, replies: list[Reply]) -> None:
        """Read a line that is neither an item nor final: an error, one line of many, or a reply with a value in it."""
        text = line.removesuffix(b"\r")
        error = parse_error(text)
        if error is not None:
            self._expected.popleft()
            replies.append(Error(error.fault, error.why, tuple(self._items)) if self._items else error)
            self._clear_parts()
        elif isinstance(request, _DUMPS) or (isinstance(request, memcache.Stats) and text.startswith(b"STAT ")):
            self._lines.append(text)
        else:
            reply = PARSERS[type(request)](request, text)
            if reply is None:
                self._fail(data, line, f"not an answer to {type(request).__name__.lower()}", replies)
            else:
                self._expected.popleft()
                replies.append(reply)

    def _complete(self, request: Request) -> Reply:
        """Return the reply of several lines whose last line has come."""
        if isinstance(request, memcache.GetMany):
            items = Items(tuple(self._items))
            self._clear_parts()
            return items
        if isinstance(request, memcache.Stats):
            rows = [line.decode("latin-1").split(" ", 2) for line in self._lines]
            self._clear_parts()
            return StatsReply({row[1]: row[2] if len(row) == 3 else "" for row in rows})
        dump = Dump(tuple(line.decode("latin-1") for line in self._lines))
        self._clear_parts()
        return dump

    def _clear_parts(self) -> None:
        self._lines = []
        self._items = []

    def _store_rest(self, data: bytes, at: int, need: int) -> int:
        self._tail = bytearray(memoryview(data)[at:])
        self._need = need
        return len(data)

    def _fail(self, data: bytes, line: bytes, why: str, replies: list[Reply]) -> int:
        replies.append(ProtocolViolation(line, why))
        self._state = ConversationState.ERROR
        return len(data)


def _whole_reply(data: bytes, request: Request) -> Reply | None:
    """Return the reply if `data` is that, neither less nor more, and it is of the frequent kinds: what `_read` would
    find in more steps.
    """
    kind = type(request)
    final = FINALS[kind].get(data[:-1])
    if final is not None:
        return final if data.endswith(b"\n") and kind not in _MANY_LINES else None
    if kind is not memcache.Get or not data.endswith(b"\r\nEND\r\n"):
        return None
    match = VALUE_LINE.match(data)
    if match is None:
        return None
    key, flags, length, number = match.groups()
    start = match.end()
    if len(data) != start + int(length) + 7 or (request.key != key and request.queue != key.decode("latin-1")):  # type: ignore[union-attr]
        return None
    return Item(data[start:-7], int(flags), None if number is None else int(number), key)


def _was_asked(
    head: ValueHead, request: memcache.Get | memcache.Monitor | memcache.GetMany | memcache.GetFirst
) -> bool:
    """Return True if a reply's key is the requested one. Kestrel's replies leave out its options."""
    if isinstance(request, _OF_SEVERAL):
        return any(_was_asked(head, get) for get in request.gets)
    return head.key == request.key or head.key == request.key.partition(b"/")[0]
