"""Broken rules of starts: what they make of files that a crash has left."""

from __future__ import annotations

from typing import Any

from staniel.broker import undo_recovery
from staniel.journal.kestrel.replay import Replay
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced


@mutant("flags whose item is cut off are taken for the number of a transaction", "torn-groups")
def torn_flags_believed() -> Any:
    def make(right: Any) -> Any:
        return lambda self, is_sealed: right(self, is_sealed=True)

    return replaced(Replay, "end_file", make)


@mutant("a purge's numbers of transactions are compared as if they did not wrap", "hub-wrapped")
def numbers_of_purges_do_not_wrap() -> Any:
    return replaced(undo_recovery, "steps_past", lambda right: lambda last, xid: xid - last)


__all__ = ["MUTANTS"]
