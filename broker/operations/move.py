"""Moving items from one queue to another, for an operator: a slice a turn, each item by an intent, so that no crash
loses or doubles one.

A move is not a put: it has no fan-out, and the target is one queue, never an alias. So that it can be undone (see
moved_back.py) the items of a slice are set aside first, what their copies will be known by is written to the undo file
and synced, and then they are sent.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.broker import access
from staniel.broker.operations.audit import Result
from staniel.broker.operations.running import CANCELLED
from staniel.broker.operations.undo import UndoRecord
from staniel.broker.session import Session, SessionState
from staniel.journal.disk.fs import take_back
from staniel.journal.journals import removal_log
from staniel.journal.undo_file import AppendFrames, Moved, MovedItem, frame
from staniel.queues.interfaces import Admission, Reason
from staniel.queues.item import Delivery, Item
from staniel.queues.names import name_error
from staniel.queues.queue import Queue, QueueState
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
    called when everything has been sent; `why`: what ended it early, if that is to be told. `undo`: by which it can be
    undone, None if it cannot.
    """

    def __init__(
        self,
        session: Session,
        source: Queue,
        target: str,
        count: int | None,
        finish: Callable[[int, str], None],
        now_ms: int,
        operation: str = "move",
    ) -> None:
        self.session = session
        self.operation = operation
        self.number = session.broker.audit.next_id()
        self.source = source
        self.target = target
        self.finish = finish
        there = source.line.present
        self.left = there if count is None else min(count, there)
        self.moved = 0
        self.is_ahead = False  # of the disk: as much of the source as may be is under way
        self.is_target_full = False  # which ended it early
        self.undo: UndoRecord | None = None
        self.progress = session.broker.operations.begin(
            self.number, operation, source.name, target, self.left, session.broker.audit.asker(session), now_ms
        )
        self._is_begun = False  # the audit log knows of it
        self._is_noted = False  # the undo file is told of each slice
        self._slice: list[Delivery] = []  # set aside, and not sent yet
        self._slice_bytes = 0

    def begin(self, now_ms: int, *, undoably: bool = False) -> None:
        """The first slice; `undoably`: if there is room for that."""
        broker = self.session.broker
        if undoably and self.left and broker.undos.can_note(self.left):
            self._make_record(now_ms)
        self.step(now_ms)

    def _make_record(self, now_ms: int) -> None:
        session = self.session
        try:
            self.undo = session.broker.undos.make_for_move(
                self.number, self.operation, self.source, self.target, self.left, now_ms
            )
        except OSError:
            return  # it is moved all the same, and the answer names no undo
        self.undo.mover, self._is_noted = session, True

    def step(self, now_ms: int) -> None:
        """Send a slice; then yield to other clients, or finish."""
        why = ""
        self.progress.advance(self.moved, now_ms)
        if self.progress.is_cancelled and self.left:
            self._end(CANCELLED, now_ms)
            return
        try:
            more = self._take_slice(now_ms)
        except Refused as refused:
            more, why = False, refused.why
        if not self._slice:
            self._go_on(more, why, now_ms)
        elif self.undo is None or not self._is_noted:
            self._go_on(more, self._send(why, now_ms), now_ms)
        else:
            self._seal(self.undo, more, why, now_ms)

    def _go_on(self, more: bool, why: str, now_ms: int) -> None:
        log = removal_log(self.source.journal)
        more = more and not self.is_target_full and not why
        if (more or self.is_ahead) and not why and not self._is_begun:
            self._note(now_ms, Result.BEGUN, self.moved + self.left, "")
            self._is_begun = True
        if self.is_ahead and not why and log is not None:
            self.session.retry_after_sync(log, self.step)
        elif more or (self.is_ahead and not why):
            self.session.yield_turn(self.step)
        else:
            self._end(why, now_ms)

    def _end(self, why: str, now_ms: int) -> None:
        undos, record = self.session.broker.undos, self.undo
        if record is not None:
            record.mover = None
            if record.content.counts()[0]:
                undos.add(record)
            else:
                undos.drop(record, "")
                self.undo = None
        if self.undo is not None:
            self.progress.undo, self.progress.undo_until_ms = self.undo.id, self.undo.content.began.until_ms
        self.progress.advance(self.moved, now_ms)
        self.session.broker.operations.end(self.progress, now_ms, "the queue is full" if self.is_target_full else why)
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

    # a slice

    def _take_slice(self, now_ms: int) -> bool:
        """Set the next items aside. Whether there is more to do. Raises Refused."""
        self.is_ahead = self.is_target_full = False
        self._slice_bytes = 0
        if not self.left:
            return False
        target = self._check_target(now_ms)
        has_more = True
        while self.left and len(self._slice) < ITEMS_PER_SLICE and self._slice_bytes < BYTES_PER_SLICE and has_more:
            has_more = self._take_one(target, now_ms)
        return self.left > 0 and (has_more or self.source.is_unsettled)

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

    def _take_one(self, target: Queue, now_ms: int) -> bool:
        """Whether there was one that may go. Raises Refused."""
        deletions = self.session.broker.deletions
        if deletions.is_postponed(self.source) or deletions.is_postponed(target):
            return False
        head = self.source.peek(now_ms)
        if head is None:
            return False
        if not self._has_room(target, head.item, now_ms):
            self.is_target_full = True
            return False
        size = len(head.item.data) + OVERHEAD_BYTES
        if not self.session.broker.group.admits(self._slice_bytes + size):
            raise Refused(access.DISK_FULL, client=False)
        match self.session.broker.transfers.admits(self.source, len(head.item.data)):
            case Admission.SOON:
                self.is_ahead = True
                return False
            case Admission.LATER:
                raise Refused(f"too much of {self.source.name} waits for a queue that cannot be used", client=False)
        self._slice.append(self.source.open_to_leave())
        self._slice_bytes += size
        self.moved += 1
        self.left -= 1
        return True

    def _has_room(self, target: Queue, item: Item, now_ms: int) -> bool:
        """Whether the target takes this one, too."""
        config, line = target.config, target.line
        if config.discard_old_when_full or not self._slice:
            return target.has_room(item, now_ms)
        size = self._slice_bytes - OVERHEAD_BYTES * len(self._slice)
        is_full = line.present + len(self._slice) >= config.max_items or line.bytes + size >= config.max_bytes
        return not is_full and target.has_room(item, now_ms)

    def _send(self, why: str, now_ms: int, at_ms: int = 0) -> str:
        """Send what was set aside, as far as the target has room; what ends the move early. `at_ms`: the time that the
        undo file names for the copies.
        """
        source, broker = self.source, self.session.broker
        taken, self._slice = self._slice, []
        if source.state is QueueState.CLOSED:
            self.moved -= len(taken)
            self._note_left(0, len(taken))
            return why or f"{source.name} is deleted"
        target = broker.queues.find(self.target)
        if target is not None and (broker.deletions.is_postponed(source) or broker.deletions.is_postponed(target)):
            target = None
        sent = 0
        for each in taken:
            if target is None or not target.has_room(each.item, now_ms):
                self.is_target_full = target is not None
                break
            times = (at_ms, each.item.expires_ms) if at_ms else None
            broker.transfers.accept(source, each, Reason.MOVED, now_ms, self.target, times)
            sent += 1
        if sent < len(taken):
            self._return(taken, sent, now_ms)
        self.session.depend_on(source)
        if target is None:
            return why or f"{source.name} or {self.target} is deleted"
        self.session.depend_on(target)
        return why

    def _return(self, taken: list[Delivery], sent: int, now_ms: int) -> None:
        """Those behind the first `sent` do not go: they are the head again."""
        self.moved -= len(taken) - sent
        self.left += len(taken) - sent
        for each in reversed(taken[sent:]):
            each.deliveries -= 1  # no client has seen it
            self.source.take_back(each)
        self.source.time_out(now_ms)  # a waiting reader gets it
        self._note_left(sent, len(taken))

    def _note_left(self, sent: int, there: int) -> None:
        """An undo finds only the first `sent` of a slice in the target. That the others are not counted need not
        survive a crash.
        """
        if self.undo is not None and self.undo.content.slices:
            content = self.undo.content
            content.kept[len(content.slices) - 1] = frozenset(range(sent, there))

    # the undo file

    def _seal(self, record: UndoRecord, more: bool, why: str, now_ms: int) -> None:
        """Have the undo file tell of the slice, then send it."""
        broker, is_first = self.session.broker, not record.content.end
        fs = broker.spool.fs
        head = Moved(now_ms, [MovedItem.of(each.item) for each in self._slice])
        began = frame(record.content.began) if is_first else b""
        data = frame(head)
        try:
            file = fs.append(record.path)
        except OSError:
            self._is_noted = False
            self._go_on(more, self._send(why, now_ms), now_ms)
            return

        def sealed(error: OSError | None, then_ms: int) -> None:
            if error is None:
                record.content.end += len(began)
                record.content.apply(head, record.content.end, len(data))
                if record.id not in broker.undos.by_id:
                    broker.undos.add(record)
            else:
                take_back(fs, record.path, file, record.content.end)
                self._is_noted = False
            file.close()
            self._sealed(more, why, head.at_ms, then_ms)

        self.session.suspend(lambda ended, then_ms: self._go_on(more, ended, then_ms))
        folder = broker.undos.folder if is_first else ""
        broker.maintenance.tasks.submit(AppendFrames(file, began + data, fs, folder, sealed), urgent=True)

    def _sealed(self, more: bool, why: str, at_ms: int, now_ms: int) -> None:
        """The disk knows what is going to be moved, or there will be no undo. A move ends with its client."""
        session = self.session
        if session.state is SessionState.SUSPENDED:
            session.deliver(self._send(why, now_ms, at_ms))
        elif self._slice and self.source.state is not QueueState.CLOSED:
            taken, self._slice = self._slice, []
            self._return(taken, 0, now_ms)
