"""Broken rules of operations that can be undone and that continue after a crash."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from staniel.broker.admin.http import actions
from staniel.broker.commands import changes
from staniel.broker.operations.deletions import Deletions, Postponed
from staniel.broker.operations.moved_back import RunningReturn
from staniel.broker.operations.purge import FileOperation, RunningPurge, RunningUndo
from staniel.broker.operations.transfer import SliceUnderWay, TransferOperation
from staniel.broker.operations.undo_recovery import UndoRecovery
from staniel.broker.selection.chosen import Chosen
from staniel.broker.session import Session
from staniel.broker.transfers import Transfers
from staniel.journal.disk.fs import remove_each
from staniel.journal.disk.removal import FileRemoval
from staniel.journal.kestrel.log import Log
from staniel.journal.undo_file import AppendFrames, Returning
from staniel.queues.item import Item
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
    return replaced(UndoRecovery, "_find_landed", lambda right: lambda self, record, content, now_ms: None)


@mutant("a purge is over before the disk has its removals", "hub-undo")
def over_early() -> Any:
    def make(right: Any) -> Any:
        def after_sync(self: FileOperation, then: Callable[[int], None], now_ms: int, *, of_items: bool) -> None:
            if of_items:
                right(self, then, now_ms, of_items=of_items)
            else:
                then(now_ms)

        return after_sync

    return replaced(FileOperation, "after_sync", make)


@mutant("a journal is rewritten under a purge or an undo", "hub-undo")
def unpinned() -> Any:
    return replaced(Transfers, "pin", lambda right: lambda self, queue: [])


@mutant("items are returned before the undo file says so", "hub-undo")
def unannounced() -> Any:
    def make(right: Any) -> Any:
        def append_head(self: FileOperation, head: Any, then: Callable[[int], None], failed: Any) -> None:
            if isinstance(self, RunningUndo) and isinstance(head, Returning):
                then(self.started_ms)
            else:
                right(self, head, then, failed)

        return append_head

    return replaced(FileOperation, "append_head", make)


def _at_once(name: str) -> Any:
    """Replace a method of a transfer that waits for durability by one that calls `then` at once."""

    def make(right: Any) -> Any:
        def after(self: TransferOperation, *rest: Any) -> None:
            *_, then, now_ms = rest
            then(now_ms)

        return after

    return replaced(TransferOperation, name, make)


@mutant("a slice is copied before the operation's file is durable", "hub-undo")
def copied_unframed() -> Any:
    return _at_once("after_file")


@mutant("a moved item leaves before the disk has its copy", "hub-undo")
def removed_early() -> Any:
    return _at_once("after_copies")


@mutant("a journal is rewritten under a move", "hub-undo")
def unpinned_slices() -> Any:
    def make(right: Any) -> Any:
        def send(self: TransferOperation, *rest: Any) -> None:
            right(self, *rest)
            slice_ = self._under_way[-1]
            for end in slice_.ends:
                end.open_transfers -= 1
            slice_.ends = []

        return send

    return replaced(TransferOperation, "send", make)


@mutant("a slice is settled before its removal is durable", "hub-undo")
def settled_early() -> Any:
    return _at_once("after_removal")


@mutant("a start takes every slice of a move that was cut off for settled", "hub-undo")
def cut_off_forgotten() -> Any:
    return replaced(UndoRecovery, "intents", lambda right: lambda self: [])


@mutant("what is moved back stays where it was moved to", "hub-undo")
def moved_back_twice() -> Any:
    def make(right: Any) -> Any:
        def remove(self: TransferOperation, slice_: SliceUnderWay, now_ms: int) -> None:
            if isinstance(self, RunningReturn):
                for taken in slice_.taken[: slice_.sent]:
                    item = taken.item
                    slice_.source.add(Item(item.data, item.added_ms, item.expires_ms), now_ms, forced=True)
            right(self, slice_, now_ms)

        return remove

    return replaced(TransferOperation, "_remove", make)


@mutant("what is passed on the way to a moved item is dropped", "hub-undo")
def passed_dropped() -> Any:
    def make(right: Any) -> Any:
        def drop_passed(self: RunningReturn, source: Queue) -> Any:
            while (head := source.line.head()) is not None and self._lookup.key(head) is None:
                source.drop_head()
            return right(self, source)

        return drop_passed

    return replaced(RunningReturn, "_set_aside_passing", make)


@mutant("what is set aside on the way to a chosen item is dropped", "hub-chosen")
def aside_dropped() -> Any:
    def make(right: Any) -> Any:
        def give_back(self: Chosen, queue: Queue, now_ms: int, count_max: int) -> bool:
            while self.aside:
                queue.release(self.aside.pop())
            return right(self, queue, now_ms, count_max)  # type: ignore[no-any-return]

        return give_back

    return replaced(Chosen, "give_back", make)


@mutant("a deletion that waits forgets how many items it may remove", "hub-deletions")
def limit_forgotten() -> Any:
    return replaced(changes, "Postponed", lambda right: lambda asker, items_max, tell: Postponed(asker, None, tell))


@mutant("an empty queue goes without an undo though an operation brings items back to it", "hub-deletions")
def goes_without_an_undo() -> Any:
    def make(right: Any) -> Any:
        def must_wait(self: Deletions, queue: Queue) -> bool:
            caller = sys._getframe(1).f_code
            return caller is not actions.delete.__code__ and right(self, queue)

        return must_wait

    return replaced(Deletions, "must_wait", make)


@mutant("a queue goes without what has come since its items were written to the undo file", "hub-deletions")
def late_items_not_written() -> Any:
    def make(right: Any) -> Any:
        def is_wanted(self: RunningPurge) -> bool:
            caller = sys._getframe(1).f_code
            return caller is not RunningPurge._delete.__code__ and right(self)

        return is_wanted

    return replaced(RunningPurge, "_is_wanted", make)


@mutant("a deletion ends before the removal of its pack is durable", "hub-deletions")
def pack_not_removed_durably() -> Any:
    def make(right: Any) -> Any:
        def carry_out(self: FileRemoval) -> None:
            last, self._last = self._last, ""
            right(self)
            if last:
                remove_each(self._fs, self._folder, [last])

        return carry_out

    return replaced(FileRemoval, "carry_out", make)


@mutant("a request asks in each turn whether a deletion has ended", "hub-redrive")
def asks_each_turn() -> Any:
    return replaced(Session, "pause_after", lambda right: lambda self, refusal, now_ms: None)


@mutant("the empty pack of a deletion forgets the number of the last transaction", "hub-deletions")
def number_forgotten_by_deletion() -> Any:
    def make(right: Any) -> Any:
        def remove_all(self: Log) -> Any:
            self.encoder.counter = 0
            return right(self)

        return remove_all

    return replaced(Log, "_remove_all", make)


__all__ = ["MUTANTS"]
