"""Broken rules of items that are all alike: which copy belongs to which operation."""

from __future__ import annotations

from typing import Any

from staniel.broker.transfers import Transfers
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced


@mutant("two operations note copies for one queue at once", "hub-equal-items")
def no_turns() -> Any:
    return replaced(Transfers, "may_announce", lambda right: lambda self, target, operation: True)


__all__ = ["MUTANTS"]
