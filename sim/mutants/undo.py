"""Broken rules of purges that can be undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from staniel.broker.operations.move import RunningMove
from staniel.broker.operations.moved_back import RunningReturn
from staniel.broker.operations.undo import RunningUndo, UndoOperation
from staniel.broker.session import SessionState
from staniel.broker.transfers import Transfers
from staniel.broker.undo_recovery import UndoRecovery
from staniel.journal.undo_file import AppendFrames
from staniel.queues.item import Delivery, Item
from staniel.queues.queue import Queue
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced


@mutant("items are purged before the undo file is synced", "hub-undo")
def unsealed() -> Any:
    def make(right: Any) -> Any:
        def work(self: AppendFrames) -> None:
            self._file.write(self._data)

        return work

    return replaced(AppendFrames, "work", make)


@mutant("a start takes all items of a purge that was cut off for gone", "hub-undo")
def all_gone() -> Any:
    return replaced(UndoRecovery, "_still_there", lambda right: lambda self, record, queue: [])


@mutant("a start does not look for the copies of an undo that was cut off", "hub-undo")
def copies_not_looked_for() -> Any:
    return replaced(UndoRecovery, "_look", lambda right: lambda self, record, content: None)


@mutant("a slice counts as returned before the disk has it", "hub-undo")
def returned_early() -> Any:
    def make(right: Any) -> Any:
        def after_sync(self: UndoOperation, then: Callable[[int], None], now_ms: int, *, of_items: bool) -> None:
            if of_items:
                then(now_ms)
            else:
                right(self, then, now_ms, of_items=of_items)

        return after_sync

    return replaced(UndoOperation, "after_sync", make)


@mutant("a purge is over before the disk has its removals", "hub-undo")
def over_early() -> Any:
    def make(right: Any) -> Any:
        def after_sync(self: UndoOperation, then: Callable[[int], None], now_ms: int, *, of_items: bool) -> None:
            if of_items:
                right(self, then, now_ms, of_items=of_items)
            else:
                then(now_ms)

        return after_sync

    return replaced(UndoOperation, "after_sync", make)


@mutant("a journal is rewritten under a purge or an undo", "hub-undo")
def unpinned() -> Any:
    return replaced(Transfers, "pin", lambda right: lambda self, queue: [])


@mutant("items are returned before the undo file says so", "hub-undo")
def unannounced() -> Any:
    def make(right: Any) -> Any:
        def append(self: RunningUndo, head: Any, then: Callable[[int], None], now_ms: int) -> None:
            if then == self._announced:
                then(now_ms)
            else:
                right(self, head, then, now_ms)

        return append

    return replaced(RunningUndo, "_append", make)


@mutant("what is moved back has no intent", "hub-undo")
def moved_back_without_intents() -> Any:
    def make(right: Any) -> Any:
        def accept(self: Transfers, source: Queue, taken: Delivery, *rest: Any) -> None:
            *_, target, times = (*rest, None) if len(rest) < 4 else rest
            if times is None or not self.queues.known(target):
                right(self, source, taken, *rest)
                return
            item = taken.item
            self.queues.by_name[target].add(Item(item.data, times[0], times[1], item.flags), rest[1], forced=True)
            source.release(taken)

        return accept

    return replaced(Transfers, "accept", make)


@mutant("what is moved back stays where it was moved to", "hub-undo")
def moved_back_twice() -> Any:
    def make(right: Any) -> Any:
        def take(self: RunningReturn, there: Queue, count: int) -> Any:
            found = right(self, there, count)
            for taken, _ in found:
                there.add(taken.item, taken.item.added_ms, forced=True)
            return found

        return take

    return replaced(RunningReturn, "_take", make)


@mutant("what is passed on the way to a moved item is dropped", "hub-undo")
def passed_dropped() -> Any:
    def make(right: Any) -> Any:
        def take(self: RunningReturn, there: Queue, count: int) -> Any:
            while (head := there.line.head()) is not None and self._lookup.key(head) is None:
                there.drop_head()
            return right(self, there, count)

        return take

    return replaced(RunningReturn, "_take", make)


@mutant("a move whose client has gone forgets what it had set aside", "hub-undo")
def aside_forgotten() -> Any:
    def make(right: Any) -> Any:
        def sealed(self: RunningMove, more: bool, why: str, at_ms: int, now_ms: int) -> None:
            if self.session.state is SessionState.CLOSED:
                for taken in self._slice:
                    self.source.release(taken)
            right(self, more, why, at_ms, now_ms)

        return sealed

    return replaced(RunningMove, "_sealed", make)


__all__ = ["MUTANTS"]
