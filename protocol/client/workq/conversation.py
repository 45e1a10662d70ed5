"""The client's half of the workq protocol, without a socket: requests to bytes, bytes to replies, in order.

    conversation = JobConversation()
    sock.sendall(conversation.send(LeaseJob((b"mail",), 1000)))
    while conversation.unanswered:
        for reply in conversation.receive(sock.recv(65536)): ...

Bytes that cannot be the expected reply yield a `ProtocolViolation`, never an exception; after it nothing more is read.

    state  waits for                                    then
    OPEN   the reply to the oldest unanswered request   OPEN; ERROR if the bytes cannot be that
    ERROR  nothing                                      for ever: a ProtocolViolation has been handed out

Only the bytes of an unfinished line or block are kept; no memory is reserved for an announced length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import TypeVar

from staniel.protocol.client.conversation import REPLY_LINE_BYTES_MAX, ConversationState
from staniel.protocol.client.replies import ProtocolViolation
from staniel.protocol.client.workq.replies import (
    ANSWERS,
    FINALS,
    Inspected,
    Job,
    JobReply,
    JobResult,
    parse_count,
    parse_error,
    parse_lease,
    parse_object,
    parse_result,
)
from staniel.protocol.client.workq.requests import encode
from staniel.protocol.workq.commands import DATA_BYTES_MAX
from staniel.protocol.workq.job_requests import LeaseJob
from staniel.protocol.workq.requests import AwaitResult, InspectQueues, WorkqRequest

T = TypeVar("T")
Reading = Generator[None, None, T]


class _Violation(Exception):
    """The bytes cannot be the expected reply: what stood in its place, and why it cannot be."""

    def __init__(self, line: bytes, why: str) -> None:
        self.line = line
        self.why = why


class JobConversation:
    """A connection, from the client's side."""

    def __init__(self) -> None:
        self._state = ConversationState.OPEN
        self._expected: deque[WorkqRequest] = deque()
        self._buffer = bytearray()
        self._at = 0
        self._reading: Reading[JobReply] | None = None
        """The reader of the present reply, which goes on where it ran out of bytes."""

    @property
    def state(self) -> ConversationState:
        return self._state

    @property
    def unanswered(self) -> int:
        """Requests without a complete reply."""
        return len(self._expected)

    def send(self, *requests: WorkqRequest) -> bytes:
        """Return the bytes to send. Raises ValueError, and notes nothing, if one of the requests cannot be written."""
        data = b"".join([encode(request) for request in requests])
        self._expected.extend(requests)
        return data

    def receive(self, data: bytes) -> list[JobReply]:
        """Return the replies that `data` completes, one for each request, in their order."""
        replies: list[JobReply] = []
        self._buffer += data
        while self._at < len(self._buffer) and self._state is ConversationState.OPEN:
            reading = self._reading or self._read()
            try:
                next(reading)
                self._reading = reading
                break
            except StopIteration as end:
                self._reading = None
                self._expected.popleft()
                replies.append(end.value)
            except _Violation as bad:
                self._state = ConversationState.ERROR
                replies.append(ProtocolViolation(bad.line, bad.why))
        del self._buffer[: self._at if self._state is ConversationState.OPEN else len(self._buffer)]
        self._at = 0
        return replies

    def _read(self) -> Reading[JobReply]:
        """Read the reply to the oldest request."""
        line = yield from self._line()
        if not self._expected:
            raise _Violation(line, "no request is unanswered")
        request = self._expected[0]
        answer = ANSWERS.get(line)
        if answer in FINALS[type(request)]:
            assert answer is not None
            return answer
        error = parse_error(line)
        if error is not None:
            return error
        count = parse_count(line)
        if count is not None:
            if isinstance(request, LeaseJob) and count == 1:
                return (yield from self._leased())
            if isinstance(request, AwaitResult) and count == 1:
                return (yield from self._result())
            if len(FINALS[type(request)]) <= 1 and (count == 1 or isinstance(request, InspectQueues)):
                return (yield from self._inspected(count))
        raise _Violation(line, f"not an answer to {type(request).__name__}")

    def _leased(self) -> Reading[JobReply]:
        id, name, ttr_ms, size = yield from self._head(parse_lease)
        return Job(id, name, ttr_ms, (yield from self._block(size)))

    def _result(self) -> Reading[JobReply]:
        id, is_success, size = yield from self._head(parse_result)
        return JobResult(id, is_success, (yield from self._block(size)))

    def _inspected(self, count: int) -> Reading[JobReply]:
        objects: dict[str, dict[str, bytes]] = {}
        for _ in range(count):
            name, keys = yield from self._head(parse_object)
            values: dict[str, bytes] = {}
            for _ in range(keys):
                if "payload-size" in values and "payload" not in values:  # which may hold line ends
                    values["payload"] = yield from self._payload(values["payload-size"])
                    continue
                line = yield from self._line()
                key, _, value = line.partition(b" ")
                values[key.decode("latin-1")] = value
            objects[name] = values
        return Inspected(objects)

    def _payload(self, size: bytes) -> Reading[bytes]:
        word = b"payload "
        if not size.isdigit() or len(size) > 7:
            raise _Violation(size, "not a size")
        data = yield from self._block(len(word) + int(size))
        if not data.startswith(word):
            raise _Violation(data[:80], "not a payload")
        return data[len(word) :]

    def _head(self, parse: Callable[[bytes], T | None]) -> Reading[T]:
        line = yield from self._line()
        head = parse(line)
        if head is None:
            raise _Violation(line, "not the head of a block")
        return head

    def _line(self) -> Reading[bytes]:
        """Read a line, and return it without its CR LF."""
        looked = 0
        while (end := self._buffer.find(b"\n", self._at + looked)) < 0:
            looked = len(self._buffer) - self._at
            if looked > REPLY_LINE_BYTES_MAX:
                raise _Violation(bytes(self._buffer[self._at : self._at + 80]), "line too long")
            yield
        line = bytes(self._buffer[self._at : end])
        if not line.endswith(b"\r") or len(line) > REPLY_LINE_BYTES_MAX:
            raise _Violation(line[:80], "a line without CR LF, or too long")
        self._at = end + 1
        return line[:-1]

    def _block(self, size: int) -> Reading[bytes]:
        """Read data of `size` bytes, and return it without the CR LF behind it."""
        if size > DATA_BYTES_MAX + len(b"payload "):
            raise _Violation(b"%d" % size, "longer than data can be")
        while len(self._buffer) - self._at < size + 2:
            yield
        stop = self._at + size
        data = bytes(self._buffer[self._at : stop])
        if self._buffer[stop : stop + 2] != b"\r\n":
            raise _Violation(data[:80], "the data is not as long as announced")
        self._at = stop + 2
        return data
