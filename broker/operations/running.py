"""Long operations: those that run, and those that ended lately. An operation belongs to the server, so it has an id by
which every operator can watch it and end it early; the same id names it in the audit log and in the list of undos.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

ENDED_MAX = 100  # kept in memory, so that the result can be read after the end
RATE_MS = 2000  # a rate is measured over at least this time
CANCELLED = "it was cancelled"


class OperationState(Enum):
    RUNNING = "running"
    PAUSED = "paused"  # waits for what `why` names, then goes on by itself
    DONE = "done"
    CANCELLED = "cancelled"  # between two items: what was done stays done
    FAILED = "failed"  # ended early for the reason in `why`


class OperationView(Struct, frozen=True):
    """One operation. `id` is its number in the audit log. `done` of `total` items; `remaining_ms` -1: not known. `by`:
    the user, or the address, of the client that began it. `why`: what ended it early or holds it back. `undo` 0: it
    cannot be undone. `open`, `gone`: items that an undo left where they are, because clients hold them or took them.
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


class Operation:
    """The progress of one operation. What carries it out reports here, and asks `is_cancelled` between items."""

    def __init__(self, number: int, name: str, queue: str, target: str, total: int, by: str, now_ms: int) -> None:
        self.id = number
        self.name = name
        self.queue = queue
        self.target = target
        self.total = total
        self.by = by
        self.state = OperationState.RUNNING
        self.done = 0
        self.why = ""
        self.started_ms = now_ms
        self.ended_ms = 0
        self.is_cancelled = False
        self.undo = self.undo_until_ms = 0
        self.open = self.gone = 0
        self._marks = [(now_ms, 0), (now_ms, 0)]  # (time, done): the rate is measured from the older one

    def advance(self, done: int, now_ms: int) -> None:
        """So many items are done by now."""
        self.done = done
        if now_ms - self._marks[1][0] >= RATE_MS:
            self._marks = [self._marks[1], (now_ms, done)]

    def view(self, now_ms: int) -> OperationView:
        is_over = self.state not in (OperationState.RUNNING, OperationState.PAUSED)
        at_ms, before = (self.started_ms, 0) if is_over else self._marks[0]
        rate = (self.done - before) * 1000 // max(1, (self.ended_ms if is_over else now_ms) - at_ms)
        left = max(0, self.total - self.done)
        remaining_ms = 0 if is_over else (left * 1000 // rate if rate > 0 else -1)
        return OperationView(
            id=self.id,
            operation=self.name,
            queue=self.queue,
            target=self.target,
            state=self.state,
            done=self.done,
            total=self.total,
            rate_per_second=rate,
            remaining_ms=remaining_ms,
            started_at_ms=self.started_ms,
            ended_at_ms=self.ended_ms,
            by=self.by,
            why=self.why,
            undo=self.undo,
            undo_until_at_ms=self.undo_until_ms,
            open=self.open,
            gone=self.gone,
        )


class Operations:
    """All of one server, by id."""

    def __init__(self) -> None:
        self.running: dict[int, Operation] = {}
        self._ended: dict[int, Operation] = {}

    def begin(self, number: int, name: str, queue: str, target: str, total: int, by: str, now_ms: int) -> Operation:
        made = self.running[number] = Operation(number, name, queue, target, total, by, now_ms)
        return made

    def end(self, operation: Operation, now_ms: int, why: str = "") -> None:
        """`why`: what ended it early; empty if all is done."""
        if operation.is_cancelled and why:
            operation.state = OperationState.CANCELLED
        else:
            operation.state = OperationState.FAILED if why else OperationState.DONE
        operation.why, operation.ended_ms = why, now_ms
        self.running.pop(operation.id, None)
        self._ended[operation.id] = operation
        while len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def find(self, number: int) -> Operation | None:
        return self.running.get(number) or self._ended.get(number)

    def views(self, now_ms: int) -> list[OperationView]:
        """Those that run, the oldest first, then those that ended, the newest first."""
        ended = reversed(self._ended.values())
        return [each.view(now_ms) for each in (*self.running.values(), *ended)]
