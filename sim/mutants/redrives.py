"""Broken rules of redrives that send each item home, and of their undos."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from staniel.broker.operations.moved_back import RunningReturn
from staniel.broker.operations.redrive import RunningRedrive
from staniel.broker.operations.transfer import TransferOperation
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced


@mutant("an undo looks for all items of a redrive in the first home", "hub-redrive")
def first_home() -> Any:
    def make(right: Any) -> Any:
        def learn(self: RunningReturn, read_back: Any, now_ms: int) -> None:
            assert self.record is not None
            content = self.record.content
            before = content.slices
            content.slices = [replace(slice_, target=before[0].target) for slice_ in before]
            right(self, read_back, now_ms)
            content.slices = before

        return learn

    return replaced(RunningReturn, "_learn", make)


@mutant("a redriven item leaves before the disk has its copy", "hub-redrive")
def sent_unsynced() -> Any:
    def make(right: Any) -> Any:
        def after(self: TransferOperation, log: Any, then: Callable[[int], None], now_ms: int) -> None:
            if isinstance(self, RunningRedrive):
                then(now_ms)
            else:
                right(self, log, then, now_ms)

        return after

    return replaced(TransferOperation, "after_copies", make)


__all__ = ["MUTANTS"]
