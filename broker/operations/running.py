"""Long operations: the running ones, and those that ended lately. An operation belongs to the server, not to the client
that began it, and continues when that client disconnects. Its id names it in the audit log and in the list of undos.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum

from msgspec import Struct

from staniel.broker.counters import ServerCounters
from staniel.broker.events import Level, RateLimitedSink
from staniel.broker.operations.audit import Audit, Requester, Result
from staniel.broker.operations.deletions import Deletions
from staniel.broker.operations.undo import OperationHead, Undos
from staniel.broker.rights import Rights
from staniel.broker.selection.chosen import Chosen
from staniel.broker.status import StatusControl
from staniel.broker.timers import Timers
from staniel.broker.transfers import Transfers
from staniel.broker.wall_clock import by_the_wall
from staniel.journal.background import TaskQueue
from staniel.journal.disk.fs import Fs
from staniel.journal.group_commit import GroupCommit
from staniel.queues.calendar import Calendar
from staniel.queues.queue import Queue
from staniel.queues.registry import Queues

ENDED_MAX = 100  # kept in memory, so that clients can read the result after the end
RATE_MS = 2000  # a rate is measured over at least this time
LOOK_AGAIN_MS = 20  # between checks whether an operation that waits can go on
CANCELLED = "it was cancelled"
CUT_OFF = "the server was restarted; the remaining items stay"


class OperationState(Enum):
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"  # between two items: finished items stay finished
    FAILED = "failed"  # ended early for the reason in `why`


_ENDS = (OperationState.DONE, OperationState.CANCELLED, OperationState.FAILED)
_NEXT = {OperationState.RUNNING: _ENDS, **dict.fromkeys(_ENDS, ())}
"""The states that may follow a state; `end` asserts it."""


class OperationView(Struct, frozen=True):
    """An operation. `id` is its number in the audit log. `done` of `total` items; `remaining_ms` -1: unknown. `by`: the
    user, or the address, of the client that began it. `why`: the reason for an early end. `undo` 0: it
    cannot be undone. `open`, `gone`: items that an undo could not return, because clients have them open or have taken
    them. `returning`: items ahead of the chosen ones that are still set aside when everything else is done.
    """

    id: int
    operation: str
    queue: str
    target: str
    state: OperationState
    done: int
    total: int
    rate_per_second: int
    remaining_ms: int
    started_at_ms: int
    ended_at_ms: int
    by: str
    why: str
    undo: int = 0
    undo_until_at_ms: int = 0
    open: int = 0
    gone: int = 0
    returning: int = 0


class ClientSide(Struct, frozen=True, eq=False):
    """The clients, as operations know them: what the server's status allows, whether they put and get (`counters`), and
    their part of the log. `rights_of` returns the present rights of a user; None: there is no such user any more.
    """

    status: StatusControl
    counters: ServerCounters
    report: RateLimitedSink
    rights_of: Callable[[str], Rights | None]


class OperationTools(Struct, frozen=True, eq=False):
    """The tools of operations: what carries items and removes queues, what keeps undo files and the audit log, what
    calls them again, in a turn or when a task has run, and what they know of clients.
    """

    transfers: Transfers
    deletions: Deletions
    undos: Undos
    audit: Audit
    tasks: TaskQueue
    timers: Timers
    clients: ClientSide

    @property
    def queues(self) -> Queues:
        return self.transfers.queues

    @property
    def group(self) -> GroupCommit:
        return self.transfers.group

    @property
    def fs(self) -> Fs:
        return self.transfers.spool.fs

    @property
    def calendar(self) -> Calendar:
        return self.transfers.queues.calendar


class OperationRequest(Struct, frozen=True, eq=False):
    """A request for an operation: who asks, the operation's name, and its items: the first `count` that wait (None:
    all), or the `chosen` ones. `undoably`: it can be undone, and takes items from a paused queue, too.
    """

    by: Requester
    name: str
    count: int | None = None
    chosen: Chosen | None = None
    undoably: bool = True


class Operation(ABC):
    """An operation and its progress. A subclass does its work in `on_timer`, a piece a turn, and calls `end`. For
    access checks and the audit log it stands for its client; `refuse_reads` and `refuse_writes` were checked before.
    """

    refuse_reads = refuse_writes = False

    def __init__(self, operations: Operations, head: OperationHead, queue: str, target: str, now_ms: int) -> None:
        self.operations = operations
        self.tools = operations.tools
        self.id, self.name, self.total, self.by = head.id, head.name, head.total, head.by
        self.queue_name = queue
        self.target = target
        self.state = OperationState.RUNNING
        self.done = 0
        self.why = ""
        self.started_ms = now_ms
        self.ended_ms = 0
        self.is_cancelled = False
        self.undo = self.undo_until_ms = 0
        self.open = self.gone = 0
        self.on_end: Callable[[], None] | None = None  # resumes the client that waits
        self._left_aside = ""  # the text of `Operations.left_aside` when the operation began
        self.sets_aside_of: Queue | None = None  # the queue whose items ahead of the chosen ones are set aside
        self._marks = [(now_ms, 0), (now_ms, 0)]  # (time, done): the rate is measured from the older one

    @property
    def address(self) -> str:
        return self.by.address

    @property
    def protocol(self) -> str:
        return self.by.protocol

    @property
    def user(self) -> str:
        return self.by.user

    @property
    def client_id(self) -> str:
        return self.by.client_id

    @property
    def head(self) -> OperationHead:
        return OperationHead(self.id, self.name, self.total, self.by)

    @property
    def status(self) -> StatusControl:
        return self.tools.clients.status

    @abstractmethod
    def on_timer(self, now_ms: int) -> int | None:
        """Do a turn's piece of the work. Return its amount, as TimerOwner counts."""

    def stop(self, now_ms: int) -> bool:
        """Make the files ready for the next startup to continue, because the server stops. Return whether that
        is done.
        """
        return True

    def begin(self, now_ms: int, about: str = "", terms: str = "") -> None:
        """Show the operation to operators, and record its beginning. `about`: the target in the audit log. `terms`: the
        terms that choose its items.
        """
        self.operations.running[self.id] = self
        self._left_aside = self.operations.left_aside(self.queue_name, self)
        self.audit_result(now_ms, Result.BEGUN, self.total, f"where {terms}" if terms else "", about)

    def audit_result(self, now_ms: int, result: Result, items: int, why: str, about: str) -> None:
        self.tools.audit.record_operation(
            self,
            self.name,
            now_ms,
            queue=self.queue_name,
            target=about or self.target,
            items=items,
            result=result,
            why=why,
            number=self.id,
        )

    def log_event(self, event: str, now_ms: int, /, **fields: object) -> None:
        self.tools.clients.report(Level.INFO, event, now_ms, client=self.address, **fields)

    def advance(self, done: int, now_ms: int) -> None:
        """Note that `done` items are done."""
        self.done = done
        if now_ms - self._marks[1][0] >= RATE_MS:
            self._marks = [self._marks[1], (now_ms, done)]

    def cancel(self) -> None:
        self.is_cancelled = True
        self.tools.timers.soon(self)

    def end(self, why: str, now_ms: int, about: str = "") -> None:
        """End the operation. `why`: the reason for an early end; "" if all is done."""
        state = OperationState.FAILED if why else OperationState.DONE
        if self.is_cancelled and why:
            state = OperationState.CANCELLED
        assert state in _NEXT[self.state], f"{state} after {self.state}"
        self.state = state
        left_aside = self.operations.left_aside(self.queue_name, self) or self._left_aside
        self.why, self.ended_ms = why or left_aside, now_ms
        record = self.tools.undos.by_id.get(self.id)
        if record is not None:
            self.undo, self.undo_until_ms = record.id, self.tools.undos.until_ms(record, now_ms)
        self.audit_result(now_ms, Result.REFUSED if why and not self.done else Result.DONE, self.done, why, about)
        self.tools.timers.drop(self)
        self.operations.ended(self)
        if self.on_end is not None:
            self.on_end()

    @property
    def returning(self) -> int:
        """The number of items that are set aside and must be returned, once everything else is done."""
        return 0

    @property
    def undo_until_at_ms(self) -> int:
        """The end of the time for an undo, by the wall clock; 0: the operation cannot be undone."""
        return self.tools.calendar.wall_ms(self.undo_until_ms) if self.undo_until_ms else 0

    def view(self, now_ms: int) -> OperationView:
        at_ms, before = (self.started_ms, 0) if self.ended_ms else self._marks[0]
        rate = (self.done - before) * 1000 // max(1, (self.ended_ms or now_ms) - at_ms)
        left = max(0, self.total - self.done)
        returning = 0 if self.ended_ms else self.returning
        remaining_ms = 0 if self.ended_ms else (left * 1000 // rate if rate > 0 and not returning else -1)
        can_be_undone = self.undo in self.tools.undos.by_id
        view = OperationView(
            id=self.id,
            operation=self.name,
            queue=self.queue_name,
            target=self.target,
            state=self.state,
            done=self.done,
            total=self.total,
            rate_per_second=rate,
            remaining_ms=remaining_ms,
            started_at_ms=self.started_ms,
            ended_at_ms=self.ended_ms,
            by=self.user or self.address,
            why=self.why,
            undo=self.undo if can_be_undone else 0,
            undo_until_at_ms=self.undo_until_ms if can_be_undone else 0,
            open=self.open,
            gone=self.gone,
            returning=returning,
        )
        return by_the_wall(view, self.tools.calendar.ahead_ms)


class Operations:
    """All operations of a server, by id. `commit_all` commits until nothing is under way between two queues."""

    def __init__(self, tools: OperationTools, commit_all: Callable[[int], None]) -> None:
        self.tools = tools
        self._commit_all = commit_all
        self.running: dict[int, Operation] = {}
        self.is_stopping = False
        self._ended: dict[int, Operation] = {}

    def ended(self, operation: Operation) -> None:
        self.running.pop(operation.id, None)
        self._ended[operation.id] = operation
        while len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def by_terms(self, queue: Queue) -> Operation | None:
        """Return the operation that searches `queue` by terms and has set aside some of its items."""
        return next((operation for operation in self.running.values() if operation.sets_aside_of is queue), None)

    def left_aside(self, name: str, besides: Operation | None = None) -> str:
        """Return a text about the items of a whole queue that another operation leaves out, because an operation by
        terms has set them aside; "" if there are none.
        """
        queue = self.tools.queues.find(name)
        other = self.by_terms(queue) if queue is not None else None
        if queue is None or other is None or other is besides or not queue.in_transfer:
            return ""
        return f"operation {other.id} had {len(queue.in_transfer)} items of {name} set aside until its end"

    def find(self, number: int) -> Operation | None:
        return self.running.get(number) or self._ended.get(number)

    def views(self, now_ms: int) -> list[OperationView]:
        """Return the running operations, the oldest first, then the ended ones, the newest first."""
        ended = reversed(self._ended.values())
        return [operation.view(now_ms) for operation in (*self.running.values(), *ended)]

    def stop(self, now_ms: int) -> None:
        """End all operations after their present step, because the server stops. No sync may be running. Raises
        JournalFailure.
        """
        self.is_stopping = True
        while [operation for operation in list(self.running.values()) if not operation.stop(now_ms)]:
            self._commit_all(now_ms)
        self._commit_all(now_ms)
