"""The parser of the workq protocol, without a socket: bytes in, requests out, in order.

The parser does the framing: a line ends with CR LF; a line that announces data is followed by so many bytes and CR LF.
`commands.py` interprets lines. No bytes of a peer raise: an unreadable request yields an `Invalid` in its place.
Source: the client protocol of workq.

    state   waits for       then
    LINE    LF              LINE; BODY if the line announces data; CLOSED if there is no CR before it, or no end
    BODY    data and CR LF  LINE; other bytes in the place of CR LF are refused and dropped
    PAUSED  `More.resume`   LINE; what arrives until then is stored
    CLOSED  nothing         for ever: a request that disconnects has been handed out

If the length of the data is refused, the data stays in the stream and is read as lines: the original does the same, and
replies twice.
"""

from __future__ import annotations

from enum import Enum

from staniel.protocol.http.detect import refusal_of
from staniel.protocol.limits import REQUESTS_PER_FEED, WORK_PER_FEED, Limits
from staniel.protocol.memo import remember
from staniel.protocol.parser import Parser
from staniel.protocol.requests import Invalid, More
from staniel.protocol.workq.commands import Body, parse
from staniel.protocol.workq.job_requests import AddJob, LeaseJob, new_add, new_delete
from staniel.protocol.workq.job_terms import JobTerms
from staniel.protocol.workq.job_texts import job_id_at, read_id
from staniel.protocol.workq.requests import WorkqRequest

LINE_BYTES_MAX = 1_058_576  # the original's, CR LF included
WINDOW_BYTES = 1 << 16
KNOWN_BYTES_MAX = 512
_HANG_UP = Invalid(b"", hang_up=True, why="a line without CR LF")

_ADD_ID, _ADD_TAIL = 4, 40  # where an add's line has its id, and what follows it
_DELETE_ID, _DELETE_BYTES = 7, 44
_CR, _LF, _A, _D, _L = b"\r\nadl"


class WorkqState(Enum):
    LINE = "line"
    BODY = "body"
    PAUSED = "paused"
    CLOSED = "closed"


_NEXT = {
    WorkqState.LINE: (WorkqState.BODY, WorkqState.PAUSED, WorkqState.CLOSED),
    WorkqState.BODY: (WorkqState.LINE,),
    WorkqState.PAUSED: (WorkqState.LINE,),
    WorkqState.CLOSED: (),
}
"""The states that may follow a state; `_enter` asserts it."""

_LINE, _PAUSED = WorkqState.LINE, WorkqState.PAUSED
"""Copies for the comparison in each feed: a module's name is found much faster than an Enum's member."""


_known_leases: dict[bytes, LeaseJob] = {}
_known_adds: dict[bytes, tuple[int, JobTerms]] = {}
"""Memos of lines, shared by all connections. An add is found without its id, which differs from job to job; its value
is the length of its data, and its terms.
"""


class WorkqParser(Parser):
    """A parser of one connection. The limits are the protocol's own."""

    def __init__(self, limits: Limits, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._state = WorkqState.LINE
        self._tail = bytearray()
        """The unfinished line: a bytearray, so that each byte of a slow peer does not copy it."""
        self._body: Body | None = None
        self._rest = b""
        """Bytes that arrived while PAUSED."""
        self._work_left = 0
        self._last_add = self._last_lease = b"\n"
        """The rest behind the id in the last add's line, and the last lease's line, with the LF: the next ones are
        mostly the same.
        """
        self._add_found: tuple[int, JobTerms] | None = None
        self._lease_found: LeaseJob | None = None
        self._data = bytearray()
        """The arrived part of the block; no memory is reserved for the announced length."""
        self.pending_bytes = 0
        """Bytes stored for an incomplete request. It is no property, because it is read after every feed."""

    def limit(self, limits: Limits) -> None:
        """Change nothing: the limits are the protocol's own."""

    @property
    def state(self) -> WorkqState:
        return self._state

    def feed(self, data: bytes) -> list[WorkqRequest]:
        """Return the requests that `data` completes, in order.

        After a request that disconnects, further bytes are ignored. If the requests exceed a turn's time, the last one
        is a `More`, and bytes that arrive before it is resumed are stored.
        """
        requests: list[WorkqRequest] = []
        self._work_left = WORK_PER_FEED
        if self._state is _PAUSED:
            self._rest += data
            self.pending_bytes += len(data)
            return requests
        if self._tail:
            if b"\n" not in data:
                self._store_rest(data, 0, requests)
                self.pending_bytes = len(self._tail)
                return requests
            data = bytes(self._tail) + data
            self._tail = bytearray()
        at = 0
        while at < len(data):
            if self._state is _LINE:
                at = self._read_lines(data, at, requests)
            elif self._state is WorkqState.BODY:
                at = self._read_body(data, at, requests)
            else:
                break
        if self._tail or self._data or self._rest:
            self.pending_bytes = len(self._tail) + len(self._data) + len(self._rest)
        else:
            self.pending_bytes = 0
        return requests

    def _resume(self) -> list[WorkqRequest]:
        """Parse the next slice of the stored bytes."""
        self._enter(WorkqState.LINE)
        rest, self._rest = self._rest, b""
        return self.feed(rest)

    def _enter(self, state: WorkqState) -> None:
        assert state in _NEXT[self._state], f"{state} after {self._state}"
        self._state = state

    def _read_lines(self, data: bytes, at: int, requests: list[WorkqRequest]) -> int:
        """Read lines in the hot loop: repeated lines, and adds whose data arrived with their line, stay in it."""
        text = data
        arrived = size = len(data)
        if size > WINDOW_BYTES:
            size = min(at + WINDOW_BYTES, size)
        while at < size:
            first = text[at]
            if first == _A:
                known = self._add_found
                if (
                    known is not None
                    and data.startswith(self._last_add, at + _ADD_TAIL)
                    and data.startswith(b"add ", at)
                ):
                    length, terms = known
                    begin = at + _ADD_TAIL + len(self._last_add)
                    stop = begin + length
                    is_whole = stop + 1 < arrived and text[stop] == _CR and text[stop + 1] == _LF
                    if is_whole and (id := job_id_at(data, at + _ADD_ID)) is not None:
                        requests.append(new_add(id, terms, text[begin:stop]))
                        at = stop + 2
                        continue
            elif first == _L:
                if self._lease_found is not None and data.startswith(self._last_lease, at):
                    requests.append(self._lease_found)
                    at += len(self._last_lease)
                    continue
            elif first == _D:
                end = at + _DELETE_BYTES
                is_line = end < arrived and text[end] == _LF and text[end - 1] == _CR
                is_delete = is_line and data.startswith(b"delete ", at)
                if is_delete and (id := job_id_at(data, at + _DELETE_ID)) is not None:
                    requests.append(new_delete(id))
                    at = end + 1
                    continue
            end = data.find(b"\n", at)
            if end < 0:
                return self._store_rest(data, at, requests)
            if first in (_A, _L) and self._recall(data[at : end + 1]):
                continue
            line = data[at:end]
            if self._work_left <= 0:
                return self._pause(data, at, requests)
            self._work_left -= 1 + (len(line) >> 6)
            at = end + 1
            if not self._read_line(line, requests):
                return len(data) if self._state is WorkqState.CLOSED else at
        if at < arrived and len(requests) > REQUESTS_PER_FEED:
            return self._pause(data, at, requests)
        return at

    def _recall(self, line: bytes) -> bool:
        """Make a known line, with its LF, the last one of its kind. Return False if it is unknown or the last
        one already.
        """
        if line[0] == _L:
            lease = _known_leases.get(line[:-1])
            if lease is None or line == self._last_lease:
                return False
            self._last_lease, self._lease_found = line, lease
            return True
        tail = line[_ADD_TAIL:]
        add = _known_adds.get(tail[:-1])
        if add is None or tail == self._last_add:
            return False
        self._last_add, self._add_found = tail, add
        return True

    def _pause(self, data: bytes, at: int, requests: list[WorkqRequest]) -> int:
        """End this slice. Nothing is parsed before the More is resumed, because its requests come first."""
        self._rest = data[at:]
        requests.append(More(self._resume))
        self._enter(WorkqState.PAUSED)
        return len(data)

    def _read_line(self, line: bytes, requests: list[WorkqRequest]) -> bool:
        """Parse an unknown line. Return True if another line follows it."""
        if (refusal := refusal_of(line)) is not None:
            self._close(requests, refusal)
            return False
        if not line.endswith(b"\r") or len(line) >= self._line_bytes_max:
            self._close(requests)
            return False
        parsed = parse(line[:-1])
        if isinstance(parsed, Body):
            self._body = parsed
            self._enter(WorkqState.BODY)
            _remember_add(line, parsed)
            return False
        requests.append(parsed)
        if isinstance(parsed, LeaseJob) and not parsed.has_invalid_name and len(line) <= KNOWN_BYTES_MAX:
            remember(_known_leases, line, parsed)
        return True

    def _store_rest(self, data: bytes, at: int, requests: list[WorkqRequest]) -> int:
        if len(self._tail) + len(data) - at >= self._line_bytes_max:
            self._close(requests)
        else:
            self._tail += memoryview(data)[at:]
        return len(data)

    def _read_body(self, data: bytes, at: int, requests: list[WorkqRequest]) -> int:
        body, collected = self._body, self._data
        assert body is not None
        end = min(len(data), at + body.size + 2 - len(collected))
        collected += memoryview(data)[at:end]
        if len(collected) < body.size + 2:
            return end
        requests.append(body.make(bytes(collected[:-2])) if collected.endswith(b"\r\n") else body.refusal)
        self._body, self._data = None, bytearray()
        self._enter(WorkqState.LINE)
        return end

    def _close(self, requests: list[WorkqRequest], last: Invalid = _HANG_UP) -> None:
        requests.append(last)
        self._tail = bytearray()
        self._enter(WorkqState.CLOSED)


def _remember_add(line: bytes, body: Body) -> None:
    """Remember what follows the id in an add's line: it is the same for many adds."""
    if line[:4] != b"add " or len(line) > KNOWN_BYTES_MAX or read_id(line[_ADD_ID:_ADD_TAIL]) is None:
        return
    request = body.make(b"")
    if isinstance(request, AddJob) and line[_ADD_TAIL : _ADD_TAIL + 1] == b" ":
        remember(_known_adds, line[_ADD_TAIL:], (body.size, request.terms))
