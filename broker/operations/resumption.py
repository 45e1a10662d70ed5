"""Begins operations that a client asks for, and continues them after a crash or a stop."""

from __future__ import annotations

from staniel.broker.operations.audit import Requester
from staniel.broker.operations.move import RunningMove
from staniel.broker.operations.moved_back import RunningReturn
from staniel.broker.operations.purge import RunningPurge, RunningUndo
from staniel.broker.operations.redrive import RunningRedrive
from staniel.broker.operations.running import Operation, OperationRequest, Operations
from staniel.broker.operations.undo import UndoRecord
from staniel.journal.undo_file import DELETE, DeleteEnded, Over, UndoEnded, frame
from staniel.queues.queue import Queue
from staniel.queues.registry import QueueRefused


def begin_undo(operations: Operations, by: Requester, record: UndoRecord, now_ms: int) -> Operation | None:
    """Begin the undo of an operation; return None if none of its items is left. Raises QueueRefused and OSError before
    any change.
    """
    queues, content = operations.tools.queues, record.content
    if not content.began.carries_items:
        return RunningUndo(operations, by, queues.make_to_take(record.queue, now_ms), record, now_ms)
    targets = [queue for queue in map(queues.find, content.targets) if queue is not None]
    if targets:
        return RunningReturn(operations, by, targets[0], record, now_ms)
    if why := next(filter(None, map(queues.why_blocked, content.targets)), ""):
        raise QueueRefused(why, client=False)
    return None


def resume(operations: Operations, record: UndoRecord, now_ms: int) -> None:
    """Continue the operation of `record`, or its undo. Raises QueueRefused or OSError if it cannot continue now."""
    content, began = record.content, record.content.began
    if (undoing := content.undoing) is not None:
        by = Requester(undoing.client, undoing.protocol, undoing.user)
        if begin_undo(operations, by, record, now_ms) is None:
            operations.tools.undos.drop(record, "")
        return
    source = _source(operations, record)
    by = Requester(began.client, began.protocol, began.user)
    request = OperationRequest(by, began.operation, content.wanted, undoably=began.is_kept)
    if source is None:
        _end(operations, record)
        if not began.is_kept or not content.counts()[0]:
            operations.tools.undos.drop(record, "")
    elif began.is_homeward:
        RunningRedrive(operations, request, source, now_ms, record)
    elif record.target:
        RunningMove(operations, request, source, record.target, now_ms, record)
    else:
        RunningPurge(operations, request, source, now_ms, record)


def _source(operations: Operations, record: UndoRecord) -> Queue | None:
    """Return the queue that an operation takes items from; None if it is deleted. Raises QueueRefused if that queue or
    a target cannot be read.
    """
    for name in record.content.queues:
        if why := operations.tools.queues.why_blocked(name):
            raise QueueRefused(why, client=False)
    return operations.tools.queues.find(record.queue)


def _end(operations: Operations, record: UndoRecord) -> None:
    """End an operation whose queue is deleted, together with the items still to be taken. Raises OSError."""
    file = operations.tools.fs.append(record.path)
    # Without its end, the next start would carry out a deletion on another queue of that name.
    ends = (Over(), UndoEnded(), DeleteEnded()) if record.content.began.operation == DELETE else (Over(), UndoEnded())
    try:
        for head in ends:
            data = frame(head)
            file.write(data)
            record.content.apply(head, record.content.end, len(data))
        file.sync()
    finally:
        file.close()
