"""Clients with sockets for the hub. They send requests in pieces, and check that the received bytes are allowed replies
to their requests, in order.
"""

from __future__ import annotations

import re
from collections import deque
from enum import Enum
from random import Random

from msgspec import Struct

from staniel.sim.hub.net import Link
from staniel.sim.violations import Kind, Violation

ITEM = re.compile(rb"#(\d+)#")
WAIT_MS = (20, 300)


class Want(Enum):
    PUT = "put"
    GET = "get"
    OPEN = "open"
    CLOSE = "close"
    ABORT = "abort"
    SOME = "get of several items"
    MONITOR = "monitor"
    CONFIRM_ID = "confirm by id"
    ABORT_ID = "abort by id"
    EXTEND_ID = "extend by id"
    DELETE = "delete"
    PING = "ping"  # the reply has its number
    STATUS = "status"
    QUIT = "quit"
    LOOK = "an operator's look"
    PURGE = "a purge that can be undone"
    ERASE = "a purge for good"
    UNDO = "an undo"
    MOVE = "a move that can be undone"
    DELETE_UNDOABLY = "a deletion that can be undone"
    LOGIN = "a login"


READS = frozenset((Want.GET, Want.OPEN, Want.CLOSE, Want.ABORT, Want.SOME, Want.MONITOR))
TAKES = {Want.GET: 1, Want.SOME: 3}
ENDS = {
    Want.PUT: re.compile(rb"STORED|NOT_STORED|SERVER_ERROR .*"),
    Want.DELETE: re.compile(rb"DELETED|NOT_FOUND|SERVER_ERROR .*"),
    Want.CONFIRM_ID: re.compile(rb"DELETED|NOT_FOUND|CLIENT_ERROR .*"),
    Want.ABORT_ID: re.compile(rb"TOUCHED|NOT_FOUND|CLIENT_ERROR .*"),
    Want.EXTEND_ID: re.compile(rb"TOUCHED|NOT_FOUND|CLIENT_ERROR .*"),
    Want.STATUS: re.compile(rb"END"),
    Want.QUIT: re.compile(rb"(?!)"),
    Want.LOGIN: re.compile(rb"STORED|CLIENT_ERROR authentication failure: .*|SERVER_ERROR too many logins.*"),
}
END_OF_READ = re.compile(rb"END|ERROR|CLIENT_ERROR .*|SERVER_ERROR .*")


class Request(Struct, eq=False):
    """A request. `item`: the number of the item that is put. `waits`: its reply may take a while. `target`: the queue
    to which it moves items.
    """

    want: Want
    queue: str
    line: bytes
    item: int = 0
    waits: bool = False
    target: str = ""

    def may_end(self, line: bytes) -> bool:
        if self.want is Want.PING:
            return line == b"NF O%d" % self.item or line.startswith(b"SERVER_ERROR ")
        return (END_OF_READ if self.want in READS else ENDS[self.want]).fullmatch(line) is not None


class Answer(Struct):
    """The whole reply to `request`, or one item of a monitor (`end` is empty then). `ids`: the items' ids, if
    requested.
    """

    request: Request
    items: list[int]
    end: bytes
    is_aborted: bool = False  # at the start: the client has sent an abort after its request
    ids: tuple[int, ...] = ()


class Side(Enum):
    """The state of the client's side of its connection."""

    OPEN = "open"
    ENDED = "ended"  # the client sends nothing more, but still reads
    GONE = "gone"


class NetClient:
    """A client with a socket. `unanswered`: requests without a reply, the oldest first. `why_over`: why the server may
    disconnect the client; "" if it may not.
    """

    def __init__(self, name: str, link: Link) -> None:
        self.name = name
        self.link = link
        self.side = Side.OPEN
        self.unanswered: deque[Request] = deque()
        self.unsaid = bytearray()
        self.why_over = ""
        self.held: dict[str, deque[int]] = {}  # open items, by queue
        self.is_hung_up_on = False
        self._heard = bytearray()
        self._items: list[int] = []
        self._ids: list[int] = []

    def send_requests(self, requests: list[Request]) -> None:
        for request in requests:
            self.unanswered.append(request)
            self.unsaid += request.line

    def push(self, rng: Random, *, all_of_it: bool = False) -> None:
        """Let some of the unsent bytes reach the server's socket."""
        if self.side is Side.OPEN and self.unsaid and not self.link.is_reset:
            size = len(self.unsaid) if all_of_it or rng.random() < 0.7 else rng.randrange(1, len(self.unsaid) + 1)
            self.link.to_server += self.unsaid[:size]
            del self.unsaid[:size]

    def end(self) -> None:
        """Send no more, and continue to read. Unsent requests are dropped."""
        self.side = Side.ENDED
        if self.why_over != "silence":  # "silence" also ends a client that reads slowly in the middle of an answer
            self.why_over = "it has shut its side"
        self.link.client_ended = True
        self._forget_unsaid()

    def _forget_unsaid(self) -> None:
        left = len(self.unsaid)
        while left > 0:
            left -= len(self.unanswered.pop().line)
        self.unsaid.clear()

    def leave(self, *, by_reset: bool) -> None:
        """Close the connection, perhaps by a reset."""
        self.side = Side.GONE
        self.why_over = "it has gone"
        self.unsaid.clear()
        self.link.client_gone = self.link.client_ended = True
        if by_reset or self.link.to_client:
            self.link.reset()

    def hear(self, *, may_time_out: bool = False) -> list[Answer]:
        """Read the received bytes and return the replies. Raises Violation if they are not a reply, or if the server
        has disconnected the client without a reason. `may_time_out`: a client that reads slowly may be disconnected in
        the middle of a reply, whatever else may end its connection.
        """
        link = self.link
        if self.side is Side.GONE:
            return []
        data, link.to_client = bytes(link.to_client), bytearray()
        self._heard += data
        answers = self._answers()
        if (link.server_ended or link.is_reset) and not self.is_hung_up_on:
            self.is_hung_up_on = True
            if not self.why_over:
                raise Violation(Kind.STOLEN, f"{self.name} is hung up on, and {len(self.unanswered)} requests wait")
            may_be_half = may_time_out or self.why_over in ("the server stops", "silence")
            if (self._heard or self._items) and not may_be_half:
                raise Violation(Kind.NO_ANSWER, f"{self.name} hears half an answer: {bytes(self._heard)[:60]!r}")
        return answers

    def _answers(self) -> list[Answer]:
        answers: list[Answer] = []
        while self._heard:
            if not self.unanswered and self._is_cut_short():
                break
            if not self.unanswered:
                raise Violation(Kind.NO_ANSWER, f"{self.name} hears {bytes(self._heard)[:60]!r}, and has asked nothing")
            answer = self._next(self.unanswered[0])
            if answer is None:
                break
            if answer.end:
                self.unanswered.popleft()
            answer.is_aborted = any(request.want is Want.ABORT for request in self.unanswered)
            answers.append(answer)
        return answers

    def may_end(self, request: Request, line: bytes) -> bool:
        """Tell whether this line can end the reply to `request`."""
        return request.may_end(line)

    def _is_cut_short(self) -> bool:
        """Tell whether the read bytes may be the reply to a request that was sent in part."""
        return False

    def _next(self, request: Request) -> Answer | None:
        """Return the next part of the reply to `request`; None if it is incomplete."""
        while True:
            line, newline, remaining = bytes(self._heard).partition(b"\r\n")
            if not newline:
                return None
            if not line.startswith(b"VALUE "):
                break
            words = line.split(b" ")
            if len(words) != 4 + request.line.startswith(b"gets ") or not all(word.isdigit() for word in words[3:]):
                raise Violation(Kind.NO_ANSWER, f"{self.name} hears {line[:60]!r}")
            tail = b"\r\nEND\r\n" if request.want is Want.MONITOR else b"\r\n"
            size = int(words[3])
            if request.want not in READS or words[1].partition(b"/")[0].decode() != request.queue:
                raise Violation(Kind.NO_ANSWER, f"{self.name}: {line!r} is no answer to {request.line[:60]!r}")
            if len(remaining) < size + len(tail):
                return None
            self._heard = bytearray(remaining[size + len(tail) :])
            number = ITEM.match(remaining)
            if number is None or remaining[size : size + len(tail)] != tail:
                raise Violation(Kind.NO_ANSWER, f"{self.name} hears a strange item: {remaining[:40]!r}")
            if request.want is Want.MONITOR:
                return Answer(request, [int(number[1])], b"")
            self._items.append(int(number[1]))
            self._ids += map(int, words[4:])
        self._heard = bytearray(remaining)
        items, self._items = self._items, []
        ids, self._ids = self._ids, []
        if not self.may_end(request, line) or (items and line != b"END"):
            raise Violation(Kind.NO_ANSWER, f"{self.name}: {line!r} is no answer to {request.line[:60]!r}")
        return Answer(request, items, line, ids=tuple(ids))
