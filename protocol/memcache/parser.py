"""The parser of the memcache protocol, without a socket: bytes in, requests out, in order.

The parser does the framing: it finds the end of a line and of its data block, and checks what follows the block.
`LineCache` has the meaning of lines that have come before, and has commands.py parse the others. No bytes of a peer
raise: an unreadable request yields an `Invalid` in its place.

    state     waits for                    then
    START     the first byte               LINE; CLOSED if it is 0x80, the binary protocol
    LINE      LF                           LINE; BODY / SKIP if the line announces a block; PAUSED; CLOSED
    PAUSED    `More.resume`                LINE; what arrives until then is stored
    BODY      the block of a set           TRAILER
    SKIP      the block of a refused line  TRAILER (the block is counted, not stored)
    TRAILER   the end of a block           LINE; RESYNC if it is no line end (Kestrel: any two bytes, unread)
    RESYNC    LF                           LINE
    CLOSED    nothing                      for ever: a request that disconnects has been handed out

Between two feeds an unfinished line or the arrived part of a wanted block is stored; no memory is reserved for an
announced length.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from io import BytesIO

from staniel.protocol.http.detect import refusal_of
from staniel.protocol.limits import REQUESTS_PER_FEED, WORK_PER_FEED, Limits
from staniel.protocol.memcache import commands, commands_kestrel
from staniel.protocol.memcache.item_requests import Get, Set, SetHead, new_set
from staniel.protocol.memcache.meta_fields import Meta, PutDelay, PutKey
from staniel.protocol.memcache.replies import replies_for
from staniel.protocol.memcache.requests import (
    Confirm,
    DelayedSet,
    Delete,
    Dialect,
    KeyedSet,
    MetaSet,
    Monitor,
    Parsed,
    RefusedBlock,
    Request,
)
from staniel.protocol.memo import remember
from staniel.protocol.parser import Parser
from staniel.protocol.requests import Invalid, More

BINARY_MAGIC = 0x80
WINDOW_BYTES = 1 << 16
KEPT_READ_BYTES_MAX = 1024  # of each connection; with its requests a few times as much
KEPT_REQUESTS_MAX = 50  # in it: each put among them has an object of its own, ten times as long as an empty item
KNOWN_LINE_BYTES_MAX = 512
"""The longest cached line. With as many lines as a memo holds, some 8 MB at worst. Longer lines are rare; requests of
many names are not cached.
"""
CR = 0x0D
LF = 0x0A
_CR, _LF = CR, LF

# A client of the binary protocol could not read a line, so memcached's dialect does not reply. Kestrel had no binary
# protocol and read this as an unknown command.
_BINARY_REFUSED = {
    dialect: Invalid(reply, hang_up=True, why="binary protocol")
    for dialect, reply in ((Dialect.MEMCACHED, b""), (Dialect.KESTREL, replies_for(Dialect.KESTREL).client_error("")))
}


class MemcacheState(Enum):
    START = "start"
    LINE = "line"
    PAUSED = "paused"
    BODY = "body"
    SKIP = "skip"
    TRAILER = "trailer"
    RESYNC = "resync"
    CLOSED = "closed"


_NEXT = {
    MemcacheState.START: (MemcacheState.LINE, MemcacheState.CLOSED),
    MemcacheState.LINE: (MemcacheState.PAUSED, MemcacheState.BODY, MemcacheState.SKIP, MemcacheState.CLOSED),
    MemcacheState.PAUSED: (MemcacheState.LINE,),
    MemcacheState.BODY: (MemcacheState.TRAILER,),
    MemcacheState.SKIP: (MemcacheState.TRAILER,),
    MemcacheState.TRAILER: (MemcacheState.LINE, MemcacheState.RESYNC),
    MemcacheState.RESYNC: (MemcacheState.LINE,),
    MemcacheState.CLOSED: (),
}
"""The states that may follow a state; `_enter` asserts it."""

_LINE, _PAUSED = MemcacheState.LINE, MemcacheState.PAUSED
"""Copies for the comparison in each feed: a module's name is found much faster than an Enum's member."""

_REMEMBERED = (SetHead, Get, Monitor, Confirm, Delete)


class LineCache:
    """A parser of lines of one dialect and one set of limits, shared by all its connections.

    `known` maps a line, with its line end, to its meaning: look there before calling `parse`. `single` maps a line to
    the requests of a read that consisted of this line alone; lines with a block are not in it.
    """

    def __init__(self, dialect: Dialect, limits: Limits) -> None:
        self.known: dict[bytes, Parsed] = {}
        self.single: dict[bytes, list[Request]] = {}
        self._limits = limits
        grammar = commands_kestrel if dialect is Dialect.KESTREL else commands
        self._split: Callable[[bytes], list[bytes]] = grammar.split
        self._parse: Callable[[list[bytes], Limits], Parsed] = grammar.parse
        why = f"line too long, at most {limits.line_bytes_max} bytes"
        self.too_long = Invalid(replies_for(dialect).client_error(why), hang_up=True, why=why)

    def parse(self, line: bytes) -> Parsed:
        """Parse an unknown line. `line` ends with its LF; one CR before it is dropped too."""
        if len(line) - 1 > self._limits.line_bytes_max:
            return self.too_long
        if (refusal := refusal_of(line[:-1])) is not None:
            return refusal
        parsed = self._parse(self._split(line[:-1].removesuffix(b"\r")), self._limits)
        # A put with a key of its own is not remembered: its line seldom comes twice.
        how = parsed.meta if isinstance(parsed, SetHead) else None
        is_keyed = how is not None and isinstance(how, PutKey | PutDelay) and how.key != ""
        if isinstance(parsed, _REMEMBERED) and len(line) <= KNOWN_LINE_BYTES_MAX and not is_keyed:
            remember(self.known, line, parsed)
            if not isinstance(parsed, SetHead):
                alone: list[Request] = [parsed]
                remember(self.single, line, alone)
        return parsed


@lru_cache(maxsize=16)
def line_cache_for(dialect: Dialect, limits: Limits) -> LineCache:
    """Return the one cache of a dialect and its limits."""
    return LineCache(dialect, limits)


class MemcacheParser(Parser):
    """A parser of one connection."""

    def __init__(self, dialect: Dialect, limits: Limits) -> None:
        self._dialect = dialect
        self.limit(limits)
        self._work_left = 0
        self._state = MemcacheState.START
        self._tail = b""
        """Bytes not parsed yet; they precede the next feed."""
        self._block: SetHead | RefusedBlock | None = None
        """The line whose block is being read; None outside BODY, SKIP and TRAILER."""
        self._missing = 0
        """Bytes of the block that have not arrived."""
        self._body = BytesIO()
        """The arrived part of the block. A list of pieces would take twenty times the size of a block that arrives two
        bytes at a time; a bytearray would be copied once more to become the item.
        """
        self.pending_bytes = 0
        """Bytes stored for an incomplete request. It is no property, because it is read after every feed."""

    def limit(self, limits: Limits) -> None:
        """Change the limits for lines that have not been read yet."""
        self._limits = limits
        self._lines = line_cache_for(self._dialect, limits)
        self._known, self._single = self._lines.known, self._lines.single
        # The last line, with its end, and its meaning: the next one is mostly the same. And the last read that
        # consisted of known lines, with its requests.
        self._last_line = b""
        self._last_parsed: Parsed | None = None
        self._last_read = b""
        self._last_found: list[Request] = []

    @property
    def state(self) -> MemcacheState:
        return self._state

    def feed(self, data: bytes) -> list[Request]:
        """Return the requests that `data` completes, in order.

        After a request that disconnects, further bytes are ignored. If the requests exceed a turn's time, the last one
        is a `More`, and bytes that arrive before it is resumed are stored. The list may be shared with other parsers:
        do not change it.
        """
        if self._state is _LINE and not self._tail:
            if data == self._last_read and data:
                return self._last_found
            parsed, at, text = self._last_parsed, len(self._last_line), data
            follows = data.startswith(self._last_line)
            if type(parsed) is not SetHead or not follows:
                if follows and parsed is not None and len(data) > at:
                    return self._feed_pipeline(data)  # that line and more: no single line is equal to that
                if len(data) <= KNOWN_LINE_BYTES_MAX and (single := self._single.get(data)):
                    self._last_read, self._last_found = data, single
                    return single
                line = text[:at] if at < len(data) else b""
                parsed = self._known.get(line)
                if parsed is not None:
                    self._last_line, self._last_parsed = line, parsed
            if type(parsed) is SetHead:
                head = parsed
                stop = at + head.length
                # One put, its line as long as the last one and known. In C, slices of `text` are not checked.
                if len(data) == stop + 2 and text[stop] == _CR and text[stop + 1] == _LF and head.meta is None:
                    return [new_set(head.queue, text[at:stop], head.flags, head.ttl_ms, head.expires_ms, head.noreply)]
            else:
                return self._feed_pipeline(data)
        return self._feed(data)

    def _feed_pipeline(self, data: bytes) -> list[Request]:
        """Parse a read that is no single known line. Clients that pipeline often send the same lines again: so a short
        read of whole lines, none of which had to be parsed, is kept with its requests; not one that ends with a put,
        which seldom comes twice.
        """
        requests = self._feed(data)
        is_known = self._work_left == WORK_PER_FEED and self._state is _LINE and not self._tail
        is_short = len(data) <= KEPT_READ_BYTES_MAX and len(requests) <= KEPT_REQUESTS_MAX
        if is_known and is_short and type(self._last_parsed) is not SetHead:
            self._last_read, self._last_found = data, requests
        return requests

    def _feed(self, data: bytes) -> list[Request]:
        requests: list[Request] = []
        if self._state is _PAUSED:
            self._tail += data
            self.pending_bytes += len(data)
            return requests
        if self._tail:
            data = self._tail + data
            self._tail = b""
        self._work_left = WORK_PER_FEED
        at = 0
        while at < len(data):
            at = self._parse_from(data, at, requests)
        self.pending_bytes = len(self._tail) + self._body.tell()
        return requests

    def _resume(self) -> list[Request]:
        """Parse the next slice of the stored bytes."""
        self._enter(MemcacheState.LINE)
        return self._feed(b"")

    def _enter(self, state: MemcacheState) -> None:
        assert state in _NEXT[self._state], f"{state} after {self._state}"
        self._state = state

    def _parse_from(self, data: bytes, at: int, requests: list[Request]) -> int:
        """Read from `at` on, as the state says. Return where the next step starts."""
        state = self._state
        if state is _LINE:
            return self._read_lines(data, at, requests)
        if state is MemcacheState.BODY:
            return self._read_body(data, at)
        if state is MemcacheState.TRAILER:
            return self._read_trailer(data, at, requests)
        if state is MemcacheState.SKIP:
            return self._skip(data, at)
        if state is MemcacheState.RESYNC:
            return self._resync(data, at)
        if state is MemcacheState.START:
            return self._read_first_byte(data, at, requests)
        return len(data)

    def _read_first_byte(self, data: bytes, at: int, requests: list[Request]) -> int:
        if data[at] == BINARY_MAGIC:
            return self._close(_BINARY_REFUSED[self._dialect], data, requests)
        self._enter(MemcacheState.LINE)
        return at

    def _read_lines(self, data: bytes, at: int, requests: list[Request]) -> int:
        """Read lines in the hot loop: known lines, and sets whose block arrived with its line, stay in it."""
        if self._work_left <= 0:
            return self._pause(data, at, requests)
        arrived = size = len(data)
        text = data  # in C, slices of it are not checked
        if size > WINDOW_BYTES:
            size = min(at + WINDOW_BYTES, size)
        while at < size:
            line, parsed = self._last_line, self._last_parsed
            if parsed is None or not data.startswith(line, at):
                end = data.find(b"\n", at) + 1
                if not end:
                    return self._keep_line(data, at, requests)
                line = data[at:end]
                parsed = self._known.get(line)
                if parsed is None:
                    if self._work_left <= 0:
                        return self._pause(data, at, requests)
                    self._work_left -= 1 + (len(line) >> 6)
                    parsed = self._lines.parse(line)
                    if type(parsed) is SetHead and len(line) <= KNOWN_LINE_BYTES_MAX:
                        self._last_line, self._last_parsed = line, parsed
                else:
                    self._last_line, self._last_parsed = line, parsed
            at += len(line)
            if type(parsed) is SetHead:
                head = parsed
                stop = at + head.length
                if stop + 2 > arrived or text[stop] != _CR or text[stop + 1] != _LF:
                    return self._begin_block(head, MemcacheState.BODY, at)
                body = text[at:stop]
                put = new_set(head.queue, body, head.flags, head.ttl_ms, head.expires_ms, head.noreply)
                requests.append(put if head.meta is None else _special(put, head.meta))
                at = stop + 2
            elif type(parsed) is RefusedBlock:
                return self._begin_block(parsed, MemcacheState.SKIP, at)
            elif type(parsed) is Invalid and parsed.hang_up:
                return self._close(parsed, data, requests)
            else:
                requests.append(parsed)
        if at < arrived and len(requests) > REQUESTS_PER_FEED:
            return self._pause(data, at, requests)
        return at

    def _pause(self, data: bytes, at: int, requests: list[Request]) -> int:
        """End this slice. Nothing is parsed before the More is resumed, because its requests come first."""
        requests.append(More(self._resume))
        self._enter(MemcacheState.PAUSED)
        return self._store_rest(data, at)

    def _keep_line(self, data: bytes, at: int, requests: list[Request]) -> int:
        if len(data) - at > self._limits.line_bytes_max:
            return self._close(self._lines.too_long, data, requests)
        return self._store_rest(data, at)

    def _store_rest(self, data: bytes, at: int) -> int:
        self._tail = data[at:]
        return len(data)

    def _begin_block(self, block: SetHead | RefusedBlock, state: MemcacheState, at: int) -> int:
        self._work_left -= 1  # leaving the loop of known lines takes as long as parsing a line
        self._block = block
        self._missing = block.length
        self._enter(state)
        return at

    def _read_body(self, data: bytes, at: int) -> int:
        end = min(len(data), at + self._missing)
        self._body.write(memoryview(data)[at:end])
        return self._count_block(at, end)

    def _skip(self, data: bytes, at: int) -> int:
        return self._count_block(at, min(len(data), at + self._missing))

    def _count_block(self, at: int, end: int) -> int:
        self._missing -= end - at
        if self._missing == 0:
            self._enter(MemcacheState.TRAILER)
        return end

    def _read_trailer(self, data: bytes, at: int, requests: list[Request]) -> int:
        """Read the end of a block: CR LF or LF. Kestrel skips two bytes unread, and loses step if the length
        was wrong.
        """
        if self._dialect is Dialect.KESTREL:
            return self._end_block(at + 2, data, requests) if len(data) - at >= 2 else self._store_rest(data, at)
        if data.startswith(b"\r\n", at):
            return self._end_block(at + 2, data, requests)
        if data[at] == LF:
            return self._end_block(at + 1, data, requests)
        if data[at] == CR and at + 1 == len(data):
            return self._store_rest(data, at)
        return self._reject_block(at, requests)

    def _end_block(self, at: int, data: bytes, requests: list[Request]) -> int:
        block = self._block
        assert block is not None
        body = self._body.getvalue()
        self._forget_block(MemcacheState.LINE)
        if isinstance(block, SetHead):
            requests.append(_set(block, body))
        elif block.answer.hang_up:
            return self._close(block.answer, data, requests)
        else:
            requests.append(block.answer)
        return at

    def _reject_block(self, at: int, requests: list[Request]) -> int:
        """Refuse a block that is longer than announced, with one error; the next line is read as a request again."""
        block = self._block
        assert block is not None
        requests.append(commands.bad_data_chunk(block.noreply) if isinstance(block, SetHead) else block.answer)
        self._forget_block(MemcacheState.RESYNC)
        return at

    def _forget_block(self, state: MemcacheState) -> None:
        self._block = None
        self._body = BytesIO()
        self._enter(state)

    def _resync(self, data: bytes, at: int) -> int:
        end = data.find(b"\n", at)
        if end < 0:
            return len(data)
        self._enter(MemcacheState.LINE)
        return end + 1

    def _close(self, last: Invalid, data: bytes, requests: list[Request]) -> int:
        requests.append(last)
        self._enter(MemcacheState.CLOSED)
        return len(data)


def _special(put: Set, how: Meta | PutKey | PutDelay) -> MetaSet | KeyedSet | DelayedSet:
    if isinstance(how, PutDelay):
        return DelayedSet(put, how.delay_ms, how.key)
    return KeyedSet(put, how.key) if isinstance(how, PutKey) else MetaSet(put, how)


def _set(head: SetHead, data: bytes) -> Set | MetaSet | KeyedSet | DelayedSet:
    request = Set(head.queue, data, head.flags, head.ttl_ms, head.expires_ms, head.noreply)
    return request if head.meta is None else _special(request, head.meta)
