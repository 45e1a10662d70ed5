"""Broken rules of items that are all alike: which copy belongs to which operation, and which item is no copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import structs

from staniel.broker.operations.move import RunningMove
from staniel.broker.operations.transfer import SliceUnderWay, TransferOperation
from staniel.broker.operations.undo_recovery import UndoRecovery
from staniel.broker.transfer_recovery import TransferRecovery
from staniel.broker.transfers import Transfers
from staniel.journal.undo_file import Kept
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced


@mutant("two operations note copies for one queue at once", "hub-equal-items")
def no_turns() -> Any:
    return replaced(Transfers, "may_announce", lambda right: lambda self, target, operation, keeps_times=False: True)


@mutant("two undos at once claim equal copies each for itself", "hub-equal-items")
@contextmanager
def claims_of_ones_own() -> Iterator[None]:
    """Let undos run without taking turns: a start gives a copy to each that looks for an equal one."""

    def make(right: Any) -> Any:
        def look_for(self: TransferRecovery, intents: Any) -> Any:
            self._claimed.clear()
            return right(self, intents)

        return look_for

    with no_turns(), replaced(TransferRecovery, "_look_for", make):
        yield


@mutant("an undo returns items with times that a put may have", "hub-equal-items")
@contextmanager
def times_of_puts() -> Iterator[None]:
    def make(right: Any) -> Any:
        def search_all_ages(self: UndoRecovery, record: Any, content: Any, now_ms: int) -> None:
            content.returning = structs.replace(content.returning, before_ms=0)
            right(self, record, content, now_ms)

        return search_all_ages

    as_it_was = replaced(Transfers, "earlier", lambda right: lambda self, item, now_ms: item)
    with as_it_was, replaced(UndoRecovery, "_find_landed", make):
        yield


@mutant("a move gives its copies the time that a put has", "hub-equal-items")
def time_of_puts() -> Any:
    return replaced(
        RunningMove,
        "_send",
        lambda right: lambda self, taken, target, now_ms: right(self, taken, target, now_ms + 1),
    )


@mutant("what finds no room at its target goes back before the file says that it stays", "hub-full-targets")
@contextmanager
def kept_is_late() -> Iterator[None]:
    """Say which items stay only when their slice is settled. By then they are in their line again, and may be read."""

    def at_once(right: Any) -> Any:
        return lambda self, then, now_ms: then(now_ms)

    def copy(right: Any) -> Any:
        def copy(self: RunningMove, slice_: SliceUnderWay, now_ms: int) -> None:
            unsaid = replaced(RunningMove, "note_kept", lambda right: lambda self, slice_: None)
            with unsaid, replaced(TransferOperation, "after_file", at_once):
                right(self, slice_, now_ms)

        return copy

    def settled_with_kept(right: Any) -> Any:
        def note_settled(self: RunningMove, slice_: SliceUnderWay) -> None:
            if self.record is not None and slice_.sent < len(slice_.taken):
                self.write(Kept(self.record.content.settled, list(range(slice_.sent, len(slice_.taken)))))
            right(self, slice_)

        return note_settled

    with (
        replaced(TransferOperation, "_copy", copy),
        replaced(RunningMove, "note_settled", settled_with_kept),
    ):
        yield


@mutant("a start looks for the copies of items that found no room", "hub-full-targets")
def kept_are_looked_for() -> Any:
    def make(right: Any) -> Any:
        def moving(self: UndoRecovery, record: Any, number: int) -> Any:
            kept, record.content.kept = record.content.kept, {}
            try:
                return right(self, record, number)
            finally:
                record.content.kept = kept

        return moving

    return replaced(UndoRecovery, "_moving", make)


__all__ = ["MUTANTS"]
