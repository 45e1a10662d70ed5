"""Broken rules of purges that can be undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from staniel.broker.operations.undo import RunningUndo, UndoOperation
from staniel.broker.transfers import Transfers
from staniel.broker.undo_recovery import UndoRecovery
from staniel.journal.undo_file import AppendFrames
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


__all__ = ["MUTANTS"]
