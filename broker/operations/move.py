"""Moving items from one queue to another, for an operator: a slice a turn, each item by an intent, so that no crash
loses or doubles one.

A move is not a put: it has no fan-out, and the target is one queue, never an alias.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.broker import access
from staniel.broker.operations.audit import Result
from staniel.broker.session import Session
from staniel.journal.journals import removal_log
from staniel.queues.interfaces import Admission
from staniel.queues.names import name_error
from staniel.queues.queue import Queue
from staniel.queues.registry import Queues, Refused

ITEMS_PER_SLICE = 256  # some milliseconds; then it is the other clients' turn, and the disk's
BYTES_PER_SLICE = 1 << 20
OVERHEAD_BYTES = 512  # an item's intent, its copy's head and its records in the source, generously


def move_error(queues: Queues, source: str, target: str) -> str:
    """What is wrong with the two names; empty if nothing is."""
    for name in (source, target):
        if queues.find(name) is None and (why := name_error(name)):
            return why
        if name in queues.aliases:
            return f"{name} is an alias, name a queue"
    return "the two queues are the same" if source == target else ""


class RunningMove:
    """One running move of `count` items, or of as many as there are when it begins. It ends early when the source has
    nothing live left, when the target is full, or when one of them may no longer be used. `finish(moved, why)` is
    called when everything has been sent; `why`: what ended it early, if that is to be told.
    """

    def __init__(
        self,
        session: Session,
        source: Queue,
        target: str,
        count: int | None,
        finish: Callable[[int, str], None],
        operation: str = "move",
    ) -> None:
        self.session = session
        self.operation = operation
        self.number = 0  # in the audit log, once it is there
        self.source = source
        self.target = target
        self.finish = finish
        there = len(source.line)
        self.left = there if count is None else min(count, there)
        self.moved = 0
        self.is_ahead = False  # of the disk: as much of the source as may be is under way
        self.is_target_full = False  # which ended it early

    def step(self, now_ms: int) -> None:
        """Send a slice; then yield to other clients, or finish."""
        why = ""
        try:
            more = self._send_slice(now_ms)
        except Refused as refused:
            more, why = False, refused.why
        log = removal_log(self.source.journal)
        if (more or self.is_ahead) and not self.number:
            self._note(now_ms, Result.BEGUN, self.moved + self.left, "")
        if self.is_ahead and log is not None:
            self.session.retry_after_sync(log, self.step)
        elif more or self.is_ahead:
            self.session.yield_turn(self.step)
        else:
            self.finish(self.moved, why)
            self._note(now_ms, Result.REFUSED if why and not self.moved else Result.DONE, self.moved, why)
            if self.moved or not why:
                source, target = self.source.name, self.target
                self.session.log_event("queue.moved", now_ms, queue=source, target=target, items=self.moved)

    def _note(self, now_ms: int, result: Result, items: int, why: str) -> None:
        source, audit = self.source.name, self.session.broker.audit
        self.number = audit.note(
            self.session,
            self.operation,
            now_ms,
            queue=source,
            target=self.target,
            items=items,
            result=result,
            why=why,
            number=self.number,
        )

    def _send_slice(self, now_ms: int) -> bool:
        """Whether there is more to do. Raises Refused."""
        self.is_ahead = self.is_target_full = False
        if not self.left:
            return False
        target = self._check_target(now_ms)
        last = self.moved + ITEMS_PER_SLICE
        size = 0
        sent: int | None = 0
        while self.left and self.moved < last and size < BYTES_PER_SLICE and sent is not None:
            sent = self._send_one(target, now_ms)
            size += sent or 0
        self.session.depend_on(self.source)
        self.session.depend_on(target)
        return self.left > 0 and (sent is not None or self.source.is_unsettled)

    def _check_target(self, now_ms: int) -> Queue:
        """The target, made if need be. A lot may have happened since the last slice. Raises Refused and Later."""
        session = self.session
        queues = session.broker.queues
        for name in (self.target, self.source.name):
            if name in queues.aliases:
                raise Refused(f"{name} is an alias now", client=False)
        if why := access.write_refusal(session, None) or access.read_refusal(session, self.source):
            raise Refused(why, client=False)
        target = queues.make_for_client(self.target, now_ms)
        if why := access.write_refusal(session, target):
            raise Refused(why, client=False)
        return target

    def _send_one(self, target: Queue, now_ms: int) -> int | None:
        """The bytes of the item that was sent; None if none can be. Raises Refused."""
        deletions = self.session.broker.deletions
        if deletions.is_postponed(self.source) or deletions.is_postponed(target):
            return None
        head = self.source.peek(now_ms)
        if head is None:
            return None
        if not target.has_room(head.item):
            self.is_target_full = True
            return None
        size = len(head.item.data) + OVERHEAD_BYTES
        if not self.session.broker.group.admits(size):
            raise Refused(access.DISK_FULL, client=False)
        match self.session.broker.transfers.admits(self.source, len(head.item.data)):
            case Admission.SOON:
                self.is_ahead = True
                return None
            case Admission.LATER:
                raise Refused(f"too much of {self.source.name} waits for a queue that cannot be used", client=False)
        self.source.send_head(self.target, now_ms)
        self.moved += 1
        self.left -= 1
        return size
