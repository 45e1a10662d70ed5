"""A client without its socket: requests in, reply bytes out, and its open reads.

A session executes its requests in order. A command may make it wait for an item or for the disk, or end its part of a
turn and continue in a later one; later requests stay in the backlog. The tables of transitions list which state may
follow which. Sockets and parsers are elsewhere. The protocol maps each request to its function.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from staniel.broker.events import LAST_TIME, Level, dead_letter
from staniel.broker.rights import STRANGER, Rights
from staniel.broker.several_queues import WaitAtSeveral
from staniel.broker.share import Share
from staniel.journal.group_commit import GroupMember
from staniel.journal.journals import removal_log
from staniel.protocol.limits import Limits
from staniel.protocol.memcache.item_requests import Get
from staniel.protocol.memcache.replies import replies_for
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.calendar import NS_A_MS
from staniel.queues.item import Delivery
from staniel.queues.placeholder import PlaceholderQueue
from staniel.queues.queue import Queue
from staniel.queues.registry import TryLater, TryNextTurn
from staniel.queues.time_outs import ENDED_AS_MANY, READS_PER_STEP, Ended

if TYPE_CHECKING:
    from staniel.broker.broker import Broker
    from staniel.broker.jobs import JobService
    from staniel.broker.status import StatusControl

Answer = Callable[[Any, int], None]
Reads = deque[tuple[Queue, Delivery]]
OUT_BYTES_PER_TURN = 1 << 20  # a short line can request a long item, and a pipeline has thousands of lines
ITEMS_AT_ONCE = 16  # a request for more items or keys than this is the last one of its turn
REQUESTS_PER_TURN = 64  # then other clients are served: a long pipeline must not starve them
REQUESTS_PER_LOOK = 8  # between two reads of the clock, so that these cost short requests little
# The same for comparisons after each request: compiled, these are C numbers (session.pxd).
_OUT_BYTES_PER_TURN, _REQUESTS_PER_LOOK = OUT_BYTES_PER_TURN, REQUESTS_PER_LOOK

REST_MS_MAX = 1000  # after a command that waited for the disk
TRY_LATER_MS = 2
WORK_PER_STEP = 50_000  # in dropped items
UNHEARD_HINT = "the client believes that it is stored: make it wait for replies (no noreply); see docs/libraries.md"
QUEUE_COST = 15  # in dropped items: returning reads to one queue, in addition to one for each read


class SessionState(Enum):
    READY = "ready"
    PARKED = "parked"  # waits for an item; its later requests stay in the backlog
    SUSPENDED = "suspended"  # waits for disk work, which ends by itself; its later requests stay in the backlog
    CLOSING = "closing"  # no request is executed any more; the rest of `out` may still be sent
    CLOSED = "closed"


# Python looks up a global ten times as fast as a member of an Enum, and each request needs these.
READY = SessionState.READY
PARKED = SessionState.PARKED
SUSPENDED = SessionState.SUSPENDED
CLOSING = SessionState.CLOSING
CLOSED = SessionState.CLOSED


class Transitions(dict[SessionState, SessionState]):
    """The next state after an event, for each state. A state that is not listed never gets the event, unless the server
    has a defect.
    """

    def __init__(self, event: str, states: dict[SessionState, SessionState]) -> None:
        super().__init__(states)
        self._event = event

    def __missing__(self, state: SessionState) -> SessionState:
        raise AssertionError(f"can't {self._event} in state {state.value}")


ON_PARK = Transitions("park", {READY: PARKED})
ON_SUSPEND = Transitions("suspend", {READY: SUSPENDED})
ON_RESUME = Transitions("resume", {PARKED: READY, SUSPENDED: READY})
# The hub may disconnect a client that waits, or that it has disconnected before.
ON_HANG_UP = Transitions("hang up", dict.fromkeys((READY, PARKED, SUSPENDED, CLOSING), CLOSING) | {CLOSED: CLOSED})
ON_CLOSE = Transitions("close", dict.fromkeys((READY, PARKED, SUSPENDED, CLOSING), CLOSED))


class Continuation(Struct, frozen=True):
    """The rest of a command that has let other clients go first. It is kept in the backlog like a request."""

    run: Callable[[int], None]


def _do_nothing(now_ms: int) -> None:
    """Do nothing: the rest of a command that is done."""


PAUSE = Continuation(_do_nothing)


class FrequentCommands:
    """A protocol's table of handlers for compiled code. None in plain Python, where a dict is as fast."""

    __slots__ = ()

    def serve(self, session: Session, request: Any, now_ms: int) -> None:
        """Call the handler of `request`. Frequent requests need no look-up in the table and no boxed numbers."""
        raise NotImplementedError


class ProtocolSpec(Struct, frozen=True):
    """A protocol: the parser of its bytes, and the functions that serve its requests. `create_on_read`: reading from a
    queue that does not exist creates it. `name`: for operators. `farewell`: makes the reply to a client that is not
    served at all; b"": nothing can be sent before its first request. `refusal`: makes it from what the client has asked
    so far, and tells whether it is whole; None: more has to come. `handlers_for` makes the table of a client with
    limited rights from any table of its listener. `blocked`: the table while the files that requests need cannot be
    read.
    """

    parser: Callable[[Limits], RequestParser]
    handlers: dict[type, Callable[[Session, Any, int], None]]
    dialect: Dialect = Dialect.MEMCACHED
    create_on_read: bool = False
    name: str = "memcache"
    commands: FrequentCommands | None = None
    farewell: Callable[[str], bytes] = lambda why: b""
    handlers_for: Callable[[Any, Rights], Any] = lambda handlers, rights: handlers
    blocked: dict[type, Callable[[Session, Any, int], None]] | None = None
    refusal: Callable[[bytes, str], tuple[bytes, bool] | None] | None = None


class RequestParser(Protocol):
    """A sans-IO parser: bytes in, requests out."""

    @property
    def pending_bytes(self) -> int:
        """The number of bytes that are kept for an incomplete request."""

    def feed(self, data: bytes) -> list[Any]: ...

    def limit(self, limits: Limits) -> None:
        """Set other limits for bytes that have not been read yet."""


class Source(Protocol):
    """A source that a session waits at: a queue or a job. The source passes an item to the session with `deliver`. An
    item that is not wanted any more is returned with `abort`.
    """

    def park(self, waiter: Session) -> None: ...

    def unpark(self, waiter: Session) -> None: ...

    def abort(self, taken: Any, now_ms: int) -> object: ...


class Pulse:
    """A source that never delivers: the session continues by itself at a given time."""

    name = ""

    def park(self, waiter: Session) -> None:
        """Do nothing: the timer ends the wait."""

    def unpark(self, waiter: Session) -> None:
        """Do nothing."""

    def abort(self, taken: Any, now_ms: int) -> None:
        raise AssertionError("nothing was delivered")


PULSE = Pulse()


class Session:
    """The state of one connection. `address` is the client's, for the log.

    `out`: replies that the driver has not taken yet. They may leave once the group is durable up to `batch`.
    """

    __slots__ = (
        "_answer",
        "_delivered",
        "_queue",
        "address",
        "backlog",
        "batch",
        "broker",
        "by_name",
        "calendar",
        "client_id",
        "client_name",
        "commands",
        "counters",
        "creates",
        "dialect",
        "failures",
        "group",
        "handlers",
        "makes",
        "max_open_reads",
        "needs_check",
        "number",
        "opens",
        "out",
        "out_bytes",
        "peeks",
        "protocol",
        "readable",
        "reads",
        "refuse_reads",
        "refuse_writes",
        "replies",
        "rights",
        "shown",
        "spec",
        "state",
        "stored",
        "user",
        "waited_at",
        "workq",
        "writable",
    )

    def __init__(self, broker: Broker, protocol: ProtocolSpec, address: str = "") -> None:
        self.broker = broker
        if broker.serves_jobs:
            self.workq: JobService = broker.workq
        self.counters, self.group, self.by_name = broker.counters, broker.group, broker.queues.by_name
        self.calendar = broker.calendar
        self.address = address
        self.spec = protocol
        self.handlers, self.commands, self.protocol = protocol.handlers, protocol.commands, protocol.name
        self.dialect = protocol.dialect
        self.creates = protocol.create_on_read
        self.replies = replies_for(protocol.dialect)
        self.stored = self.replies.stored
        self.number = broker.counters.total_connections
        self.client_id = ""
        self.client_name = ""  # what the client calls itself
        self.refuse_reads = False
        self.refuse_writes = False
        self.user = ""  # of the configuration; "": no user
        self.rights: Any = None  # a Rights, if the client's rights are limited; see `limit_to`
        self.readable: dict[str, bool] | None = None  # queues that the rights are known to allow; None: all
        self.writable: dict[str, bool] | None = None
        self.makes = True  # may create queues
        self.failures = 0  # failed logins
        self.needs_check = False  # some requests may be refused to this session now
        self.out: list[bytes] = []
        self.out_bytes = 0  # size of the items shown in `out`
        self.shown: Get | None = None  # the last memcache get whose reply had an item
        self.batch = 0
        self.state = READY
        self.backlog: deque[Any] = deque()
        self.reads: dict[str, Reads] = {}
        self.max_open_reads = broker.config.server.max_open_transactions  # of each name; Broker.reload changes it
        self.waited_at: Any = None  # the source of the last wait: its queue, or the one created meanwhile
        self.opens = False
        self.peeks = False
        self._answer: Answer | None = None
        self._queue: Source | None = None
        self._delivered: Any = None

    def limit_to(self, rights: Rights) -> None:
        """Limit the client to `rights` from now on."""
        self.rights, self.makes = rights, rights.creates
        self.readable, self.writable = rights.readable, rights.writable

    def block(self) -> None:
        """Refuse all requests, because the files that they need cannot be read. An unauthenticated client is not told
        why.
        """
        if self.spec.blocked is not None and self.rights is not STRANGER:
            self.handlers = self.spec.blocked

    def unblock(self) -> None:
        """Serve the client again."""
        if self.handlers is self.spec.blocked:
            self.handlers = self.spec.handlers
            if self.rights is not None:
                self.broker.authorize(self, self.user, self.rights)

    def knows(self, allowed: dict[str, bool] | None, name: str) -> bool:
        """Tell whether the queue needs no check of the rights: it is in `allowed`, and serving the request cannot
        create it.
        """
        return allowed is None or (name in allowed and (self.makes or name in self.by_name))

    def execute(self, requests: list[Any], now_ms: int) -> None:
        """Execute requests in order, at most REQUESTS_PER_TURN and for STEP_NS. The others wait in the backlog."""
        if len(requests) == 1 and not self.backlog and self.state is READY:
            request = requests[0]
            try:
                if self.commands is None:
                    self.handlers[type(request)](self, request, now_ms)
                else:
                    self.commands.serve(self, request, now_ms)
            except TryNextTurn as refusal:
                self._again(request, refusal, now_ms)
        elif requests:
            self._execute_many(requests, now_ms)

    def _execute_many(self, requests: list[Any], now_ms: int) -> None:
        handlers, backlog, commands = self.handlers, self.backlog, self.commands
        if backlog or self.state is not READY or len(requests) > REQUESTS_PER_TURN:
            backlog.extend(requests)
            self.run_backlog(now_ms)
            return
        share = Share(self.broker.step_clock) if len(requests) > REQUESTS_PER_LOOK else None
        for done, request in enumerate(requests, 1):
            try:
                if commands is None:
                    handlers[type(request)](self, request, now_ms)
                else:
                    commands.serve(self, request, now_ms)
            except TryNextTurn as refusal:
                self._again(request, refusal, now_ms)
            if self.state is not READY or self.out_bytes > _OUT_BYTES_PER_TURN or backlog:
                backlog.extend(requests[done:])
                return
            if share is not None and not done % _REQUESTS_PER_LOOK and share.is_spent:
                backlog.extend(requests[done:])
                return

    def run_backlog(self, now_ms: int) -> None:
        """Execute requests of the backlog, at most REQUESTS_PER_TURN and for STEP_NS."""
        backlog, handlers = self.backlog, self.handlers
        left, share = REQUESTS_PER_TURN, Share(self.broker.step_clock)
        while backlog and left and self.state is READY and self.out_bytes <= _OUT_BYTES_PER_TURN:
            left -= 1
            request = backlog.popleft()
            try:
                if type(request) is Continuation:
                    request.run(now_ms)
                else:
                    handlers[type(request)](self, request, now_ms)
            except TryNextTurn as refusal:
                self._again(request, refusal, now_ms)
            if (backlog and type(backlog[0]) is Continuation) or share.is_spent:
                return

    def _again(self, request: Any, refusal: TryNextTurn, now_ms: int) -> None:
        """Continue the request, or start it again, in the next turn, or later. So far it has had no effect."""
        if type(request) is Continuation:
            self.yield_turn(request.run)
        else:
            self.yield_turn(partial(self.handlers[type(request)], self, request))
        self.pause_after(refusal, now_ms)

    def pause_after(self, refusal: TryNextTurn, now_ms: int) -> None:
        """Pause this session if what it waits for needs longer than a turn. It has yielded this turn."""
        if type(refusal) is TryLater:
            self._suspend_for(TRY_LATER_MS, now_ms)

    @property
    def wants_turn(self) -> bool:
        """True if `run_backlog` has something to do."""
        return self.state is READY and bool(self.backlog)

    def clear_out(self) -> None:
        """Clear `out`, which the driver has taken."""
        self.out.clear()
        self.out_bytes = 0

    def close(self, now_ms: int) -> None:
        """End the session after its client has disconnected: stop waiting, and return its open reads to their queues in
        their original order.
        """
        if self.state is CLOSED:
            return
        counters = self.broker.counters
        counters.curr_connections -= 1
        if self._queue is not None:
            self._stop_waiting(self._queue)
            counters.cmd_get_timeout_dropped += self._queue is not PULSE
            if self._delivered is not None:
                counters.finished_but_add += 1
                if not isinstance(self._queue, Queue):
                    self._queue.abort(self._delivered, now_ms)
                elif self.opens:
                    self.give_back(self._queue, self._delivered, now_ms)
                elif not self.peeks:
                    self.broker.take_back([(self._queue, self._delivered)], now_ms)
        # Most callbacks refer to their session, and such a cycle would wait for the garbage collector.
        self._answer = self._queue = self._delivered = None
        self.state = ON_CLOSE[self.state]
        self.waited_at = None
        self.backlog.clear()
        if self.reads:
            OpenReadReturn(self).on_timer(now_ms)
            self.reads.clear()
        self.broker.forget(self)

    def park(self, queue: Source, until_ms: int, answer: Answer, *, opens: bool, peeks: bool) -> None:
        """Wait for an item of `queue`. `answer` is called with it, or with None if the wait ends without one."""
        assert self._answer is None
        self.state = ON_PARK[self.state]
        self._queue = self.waited_at = queue
        self._answer = answer
        if type(queue) is PlaceholderQueue:
            self.depend_on(queue)  # now: when the wait ends, the queue's name may be another queue's
        self.opens, self.peeks = opens, peeks
        self.broker.timers.set(self, until_ms)
        queue.park(self)

    @property
    def status(self) -> StatusControl:
        """The server's status, which may refuse reads or writes."""
        return self.broker.status

    def suspend(self, answer: Answer) -> None:
        """Wait for `deliver`, which is always called. `answer` is called with its argument."""
        assert self._answer is None
        self.state, self._answer = ON_SUSPEND[self.state], answer

    def suspend_until_told(self, answer: Answer) -> Callable[[object], None]:
        """Wait for the end of work that does not need this client. Return a function that takes the result and passes
        it to `answer`, unless the client has disconnected by then.
        """
        self.suspend(answer)

        def deliver_outcome(outcome: object) -> None:
            if self.state is SUSPENDED:
                self.deliver(outcome)

        return deliver_outcome

    def yield_turn(self, rest: Callable[[int], None] | None = None) -> None:
        """End this session's part of the turn, so that other clients go first. In the next turn `rest` is called before
        the next request. With `rest` None the command is done, but took long enough to end the turn.
        """
        self.backlog.appendleft(PAUSE if rest is None else Continuation(rest))

    def rest_since(self, began_ns: int) -> None:
        """End this session's part of the turn, and pause it for as long as the command took. The command began at
        `began_ns` and waited for the disk, and so did all clients: without a pause a pipeline of such commands would
        use up every turn.
        """
        took_ms = min((self.broker.step_clock.now_ns() - began_ns) // NS_A_MS, REST_MS_MAX)
        self.yield_turn(partial(self._suspend_for, took_ms) if took_ms else None)

    def _suspend_for(self, rest_ms: int, now_ms: int) -> None:
        self.suspend(lambda _, now_ms: None)  # not `park`: a client that has closed its side still gets its replies
        self.broker.timers.set(Rest(self), now_ms + rest_ms)

    def cancel_yield(self) -> bool:
        """Cancel a `yield_turn` without a pause, because the turn ends in another way. Return False if there is
        none.
        """
        is_paused = bool(self.backlog) and self.backlog[0] is PAUSE
        if is_paused:
            self.backlog.popleft()
        return is_paused

    def retry_after_sweep(self, queue: Queue, retry: Callable[[int], None]) -> None:
        """Call `retry` in the next turn, because the sweep of `queue` is unfinished. If the sweep waits for a sync,
        call it after that, instead of in every turn until then.
        """
        log = removal_log(queue.journal)
        if log is None or not queue.expiry_is_ahead:
            self.yield_turn(retry)
        else:
            self.retry_after_sync(log, retry)

    def retry_after_sync(self, log: GroupMember, retry: Callable[[int], None]) -> None:
        """Suspend until the records of `log` are durable, then call `retry` in a turn of its own."""
        self.suspend(lambda _, now_ms: self.yield_turn(retry))
        self.broker.group.call_when_durable(log, lambda now_ms: self.deliver(True))

    def deliver(self, taken: Any) -> None:
        """Take the awaited item, in the step that made it available."""
        self._delivered = taken
        self.broker.timers.drop(self)
        self.broker.woken.append(self)

    def moved(self, queue: Queue) -> None:
        """Continue the wait at `queue`, which has been created meanwhile."""
        self._queue = self.waited_at = queue

    def dismiss(self) -> None:
        """End the wait without an item, because the queue is closing."""
        self.broker.timers.drop(self)
        self.broker.woken.append(self)

    def on_timer(self, now_ms: int) -> None:
        """End the wait because it has timed out."""
        assert self._queue is not None
        self._queue.unpark(self)
        self.broker.woken.append(self)

    def add_unsent(self, queue: Queue, taken: Delivery) -> None:
        """Note that the next piece of the reply shows an item that was removed for good. If the client disconnects
        before any byte of that piece is sent, the item is returned (see Broker.take_back).
        """
        self.broker.unsent.add(self, queue, taken)

    def leave_queue(self) -> None:
        """Stop waiting at the queue, because the client is about to be disconnected and must not get another item."""
        if isinstance(self._queue, Queue | WaitAtSeveral):
            self._queue.unpark(self)

    def stop_waiting(self, now_ms: int) -> None:
        """End the wait as at its timeout, because the server stops."""
        if self.state is PARKED:
            self.broker.timers.drop(self)
            self.on_timer(now_ms)

    def shown_added_ms(self, now_ms: int) -> int:
        """Return when the item shown last was added, in server time, if it has left its queue. Return 0 if there is
        none, or if the time is unknown. Only requests of memcache's protocol set `shown`.
        """
        request = self.shown
        if request is None or request.peek or (queue := self.by_name.get(request.queue)) is None:
            return 0
        if not request.open:
            added_ms = queue.last_removed_added_ms
            return self.calendar.moment_ms(added_ms, now_ms) if added_ms else 0
        held = self.reads.get(request.queue)
        item = held[-1][1].item if held else None
        return self.calendar.added_ms(item, now_ms) if item is not None and item.added_ms else 0

    @property
    def has_delivery(self) -> bool:
        """True if the awaited item has been delivered, and its reply is not made yet."""
        return self._delivered is not None

    def resume(self, now_ms: int) -> None:
        """Reply to the wait that has ended. The backlog continues after all other replies."""
        if self.state is not PARKED and self.state is not SUSPENDED:
            return
        answer, taken = self._answer, self._delivered
        assert answer is not None
        self._answer = self._queue = self._delivered = None
        self.state = ON_RESUME[self.state]
        answer(taken, now_ms)
        if self.state is READY:
            self.waited_at = None

    def _stop_waiting(self, queue: Source) -> None:
        queue.unpark(self)
        self.broker.timers.drop(self)

    def log_event(self, event: str, now_ms: int, /, **fields: object) -> None:
        """Log an event of this client; a few lines for each event in SELDOM_MS."""
        self.broker.client_events(Level.INFO, event, now_ms, client=self.address, **fields)

    def note_unheard(self, queue: str, why: str, now_ms: int) -> None:
        """Count a refusal that is not sent, because the client asked for no reply, and log it: one line for all clients
        in SELDOM_MS. `queue` "": unknown.
        """
        self.counters.noreply_refused += 1
        fields = {"client": self.address, "queue": queue or "unknown", "why": why, "hint": UNHEARD_HINT}
        self.broker.rate_limited.of_kind("noreply", Level.WARNING, "refusal.unheard", now_ms, **fields)

    def log_refusal(self, why: str, now_ms: int) -> None:
        """Log that the rights of this client do not allow a request. `why` contains the name of the requested queue."""
        fields = {"client": self.address, "why": why}
        self.broker.client_events.of_kind(self.user, Level.INFO, "command.refused", now_ms, **fields)

    def give_back(self, queue: Queue, taken: Delivery, now_ms: int) -> bool:
        """End an open read that was not confirmed. Return False if it was not open any more."""
        ended = queue.abort(taken, now_ms)
        self.log_last_delivery(queue, taken, ended, now_ms)
        return bool(ended)

    def log_last_delivery(self, queue: Queue, taken: Delivery, ended: Ended, now_ms: int) -> None:
        """Log the fate of an item that was delivered for the last time."""
        if ended in LAST_TIME:
            self.log_event(LAST_TIME[ended], now_ms, **dead_letter(queue, taken))

    def holds(self, queue: Queue, taken: Delivery) -> bool:
        """Tell whether this client has that read open."""
        return any(held is taken for _, held in self.reads.get(queue.name, ()))

    def depend_on(self, queue: Queue) -> None:
        """Hold the reply back until `queue`'s last change, which the reply shows, is as durable as promised. Every
        reply depends on it that shows an item, or shows that an item or a queue exists, was removed or is absent.
        Figures of `stats` and /metrics do not.
        """
        batch = queue.journal.reply_batch()
        if batch > self.batch:
            self.batch = batch

    def client_error(self, why: str, kestrel: bytes = b"", noreply: bool = False) -> None:
        """Refuse a wrong request. In Kestrel's dialect disconnect the client, mostly without a reply."""
        if self.dialect is Dialect.KESTREL:
            self.hang_up(kestrel)
        elif not noreply:
            self.out.append(self.replies.client_error(why))

    def refuse(self, why: str, noreply: bool = False) -> None:
        """Refuse a request that the server cannot serve now. In Kestrel's dialect disconnect the client after the
        reply.
        """
        if not noreply:
            self.out.append(self.replies.server_error(why))
        if self.dialect is Dialect.KESTREL:
            self.state = ON_HANG_UP[self.state]

    def hang_up(self, reply: bytes) -> None:
        """Send `reply`, execute nothing more, and disconnect once `out` is sent. A wait ends at once: an item that
        arrived before the disconnection would count a delivery that no client has seen.
        """
        if self._queue is not None and self._delivered is None:
            self._stop_waiting(self._queue)
        if reply:
            self.out.append(reply)
        self.state = ON_HANG_UP[self.state]
        self.backlog.clear()


class Rest:
    """The pause of a session that has waited for the disk, or tries a request again later."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def on_timer(self, now_ms: int) -> None:
        if self._session.state is SUSPENDED:
            self._session.deliver(True)


class OpenReadReturn:
    """An operation that returns a closed session's open reads, the oldest of each queue first, over as many turns as it
    takes. Many reads are passed to their queues before any of them ends: otherwise a client that sees this one gone
    could find nothing in a queue whose turn comes later.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._left: deque[Reads] = deque(session.reads.values())
        self._are_few = sum(map(len, self._left)) <= READS_PER_STEP

    def on_timer(self, now_ms: int) -> int:
        """Return a turn's share of the reads to their queues. Return the work, in dropped items."""
        return self._end(now_ms) if self._are_few else self._hand_over(now_ms)

    def _end(self, now_ms: int) -> int:
        count = 0
        for reads in self._left:
            count += len(reads)
            for queue, together in _by_queue(reads).items():
                self._report_ended(queue, queue.abort_together(together, now_ms), now_ms)
        return count * ENDED_AS_MANY

    def _hand_over(self, now_ms: int) -> int:
        left, work = self._left, 0
        while left and work < WORK_PER_STEP:
            together = left.popleft()
            by_queue = _by_queue(together)
            for queue, reads in by_queue.items():
                queue.abort_later(reads, partial(self._report_ended, queue), now_ms)
            work += len(by_queue) * QUEUE_COST + len(together)
        if left:
            self._session.broker.timers.soon(self)
        return work

    def _report_ended(self, queue: Queue, ended: list[tuple[Delivery, Ended]], now_ms: int) -> None:
        self._session.broker.counters.cmd_get_open_dropped += len(ended)
        for taken, fate in ended:
            self._session.log_last_delivery(queue, taken, fate, now_ms)


def _by_queue(reads: Reads) -> dict[Queue, list[Delivery]]:
    """Sort reads by queue. Reads under one name may belong to several queues: each was created when the one before it
    was deleted.
    """
    found: dict[Queue, list[Delivery]] = {}
    for queue, taken in reads:
        found.setdefault(queue, []).append(taken)
    return found
