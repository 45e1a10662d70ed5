"""The requests for jobs in workq's protocol, and the parser of the replies."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from staniel.protocol.workq.fields import show_id
from staniel.sim.conversation import Conversation


class Want(Enum):
    """The kinds of request."""

    ADD = "add"
    SCHEDULE = "schedule"
    RUN = "run"
    LEASE = "lease"
    COMPLETE = "complete"
    FAIL = "fail"
    DELETE = "delete"
    RESULT = "result"
    INSPECT = "inspect job"
    LENGTH = "inspect queue"


ADDS = frozenset((Want.ADD, Want.SCHEDULE, Want.RUN))
FINISHES = frozenset((Want.COMPLETE, Want.FAIL))


class Request(Struct, eq=False):
    """A request. `data`: payload or result. `names`: the queues of a lease, or the inspected queue. `is_done`: a
    journal has recorded its change.
    """

    want: Want
    line: bytes
    id: bytes = b""
    names: tuple[str, ...] = ()
    data: bytes = b""
    wait_ms: int = 0
    ttr_ms: int = 0
    is_done: bool = False

    def shown(self) -> str:
        """Return the request as the history shows it."""
        text = self.line.decode("latin-1").strip().replace("\r\n", " ⏎ ")
        return text if not self.id else text.replace(show_id(self.id).decode(), f"#{number_of(self.id)}")


class Answer(Struct, eq=False):
    """The whole reply to `request`: its first line, and the data after it."""

    request: Request
    end: str
    head: tuple[str, ...] = ()  # the words before the data of a job or a result
    data: bytes = b""
    keys: dict[str, str] = {}  # the fields of an inspection


class JobConversation(Conversation):
    """The requests and replies of a connection in workq's protocol."""

    def _next(self) -> Answer | None:
        before = self._rest
        answer = self._answer(self.waiting[0])
        if answer is None:
            self._rest = before
        return answer

    def _answer(self, request: Request) -> Answer | None:
        line = self._text_line()
        if line is None:
            return None
        if not line.startswith(("+OK", "-")):
            raise ValueError(f"{line!r} is no answer to {request.shown()!r}")
        if not line.startswith("+OK 1"):
            return Answer(request, line)
        if request.want in (Want.LEASE, Want.RESULT, Want.RUN):
            return self._object(request, line)
        if request.want in (Want.INSPECT, Want.LENGTH):
            return self._inspected(request, line)
        raise ValueError(f"{line!r} is no answer to {request.shown()!r}")

    def _object(self, request: Request, line: str) -> Answer | None:
        head = self._text_line()
        if head is None:
            return None
        words = tuple(head.split(" "))
        size = int(words[-1])
        data = self._measured(size)
        return None if data is None else Answer(request, line, words, data.encode("latin-1"))

    def _inspected(self, request: Request, line: str) -> Answer | None:
        head = self._text_line()
        if head is None:
            return None
        name, _, count = head.partition(" ")
        keys: dict[str, str] = {}
        for _ in range(int(count)):
            is_payload = self._rest.startswith(b"payload ")
            key_line = self._measured(len("payload ") + int(keys["payload-size"])) if is_payload else self._text_line()
            if key_line is None:
                return None
            key, _, value = key_line.partition(" ")
            keys[key] = value
        return Answer(request, line, (name,), b"", keys)

    def _measured(self, size: int) -> str | None:
        """Remove and return `size` bytes of any content, and the end of their line, from the received bytes; None if
        they are incomplete.
        """
        data, end = self._rest[:size], self._rest[size : size + 2]
        if len(end) < 2:
            return None
        if end != b"\r\n":
            raise ValueError(f"data that do not end where they should: {end!r}")
        self._rest = self._rest[size + 2 :]
        return data.decode("latin-1")

    def _text_line(self) -> str | None:
        line = self._line()
        return None if line is None else line.decode("latin-1")


def job_id(number: int) -> str:
    """Return the id of a simulated job, as clients write it."""
    return f"{number:08x}-0000-4000-8000-{number:012x}"


def raw_id(number: int) -> bytes:
    """Return the id of a simulated job as its 16 bytes."""
    return bytes.fromhex(job_id(number).replace("-", ""))


def number_of(raw: bytes) -> int:
    """Return the number that is encoded in a simulated job's id."""
    return int.from_bytes(raw[:4], "big")
