"""A simulated client: a connection of a `World` that reports to a judge what it sends and receives, and when.

A reply is read as soon as the session has made it, and counts as received once the sync that it waits for has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from msgspec import structs

from staniel.broker.session import ProtocolSpec, Session, SessionState
from staniel.sim.conversation import Conversation
from staniel.sim.queues.checker import Checker, audit, audit_stats
from staniel.sim.queues.conversation import Answer, QueueConversation, Request, Want
from staniel.sim.queues.model import Reading
from staniel.sim.violations import Kind, Violation
from staniel.sim.world import Client, World

Handler = Callable[[Session, Any, int], None]
GONE = (SessionState.CLOSING, SessionState.CLOSED)


class Judge(Protocol):
    """A judge, which gets everything that clients send and receive."""

    transcript: list[tuple[str, str, str]]

    def on_request(self, who: str, request: Any) -> None: ...

    def on_answer(self, client: Any, who: str, answer: Any) -> list[Any]:
        """Note a part of a reply. Return what it promises once it has reached the client. Raises Violation."""

    def on_arrival(self, mark: Any) -> None:
        """Note that a part of a reply has reached its client. `mark`: a promise that `on_answer` returned."""

    def on_leave(self, client: Any) -> None: ...


class Actor(Client):
    """A client that reports its requests and replies to a judge."""

    def __init__(
        self, world: World, protocol: ProtocolSpec, judge: Judge, name: str, conversation: Conversation
    ) -> None:
        handlers = {kind: partial(self._handle, handler) for kind, handler in protocol.handlers.items()}
        super().__init__(world, structs.replace(protocol, handlers=handlers))
        self.judge = judge
        self.name = name
        self.is_leaving = False
        self.conversation = conversation
        self._parsed = 0
        self._marks: list[Any] = []
        self._promised: deque[tuple[int, list[Any]]] = deque()
        self._alone: Any = None

    @property
    def has_delivery(self) -> bool:
        """True if the client was delivered an item and has not read all of the reply."""
        return self.session.has_delivery or self.conversation.is_unfinished

    def _handle(self, handler: Handler, session: Session, request: Any, now_ms: int) -> None:
        """Serve one request, and note what each reply depends on before anything else happens."""
        for client in self.world.clients:
            client.ran()
        handler(session, request, now_ms)
        self.ran()

    @property
    def unanswered(self) -> deque[Any]:
        return self.conversation.waiting

    def send_requests(self, requests: list[Any]) -> None:
        """Send requests in one piece."""
        was_idle = not self.conversation.waiting and not self.session.backlog
        for request in requests:
            self.judge.on_request(self.name, request)
            self.conversation.expect(request)
        self._alone = requests[0] if len(requests) == 1 and was_idle else None
        self.sends(b"".join(request.line for request in requests))
        self._alone = None

    def leave(self) -> None:
        """Disconnect, without waiting for replies."""
        self.judge.transcript.append(("hang-up", self.name, ""))
        self.is_leaving = True
        self.judge.on_leave(self)
        self.session.close(self.world.now_ms)
        self.ran()

    def ran(self) -> None:
        """Read what the session has sent since the last call."""
        out = self.session.out
        if len(out) == self._parsed:
            return
        data = b"".join(out[self._parsed :])
        self._parsed = len(out)
        try:
            parts = self.conversation.feed(data)
        except ValueError as wrong:
            raise Violation(Kind.NO_ANSWER, f"{self.name}: {wrong}") from wrong
        for part in parts:
            self._marks += self.judge.on_answer(self, self.name, part)
            self.look_at(part, is_alone=part.request is self._alone)

    def look_at(self, part: Any, *, is_alone: bool) -> None:
        """Check a part of a reply that was just made. `is_alone`: nothing else has happened since the request. Raises
        Violation.
        """

    def collect(self, durable: int) -> None:
        session = self.session
        if session.out:
            self.ran()
            self._promised.append((session.batch, self._marks))
            self._marks = []
            self._parsed = 0
            session.clear_out()
        self.release(durable)

    def release(self, durable: int) -> None:
        while self._promised and self._promised[0][0] <= durable:
            for mark in self._promised.popleft()[1]:
                self.judge.on_arrival(mark)

    @property
    def is_over(self) -> bool:
        """True if the server has disconnected the client and all of its replies have arrived."""
        return self.session.state in GONE and not self._promised and not self.session.out


class QueueActor(Actor):
    """A client of the memcache protocol or the text protocol. `held`: its open reads, by queue."""

    def __init__(self, world: World, protocol: ProtocolSpec, checker: Checker, name: str, is_text: bool) -> None:
        super().__init__(world, protocol, checker, name, QueueConversation(is_text))
        self.checker = checker
        self.is_text = is_text
        self.held: dict[str, deque[Reading]] = {}

    def look_at(self, part: Answer, *, is_alone: bool) -> None:
        request: Request = part.request
        models = self.checker.models
        if is_alone and request.queue in models and request.queue not in self.checker.aliases:
            audit(models[request.queue], part, self.checker.now_ms)
        if request.want is Want.STATS:
            # the reply shows its queues in a later turn, but all in the same one, because there are few
            audit_stats(models, part, self.checker.now_ms)
