"""The results of one cycle of the kill loop, and of all of them: counts, and the printed lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from staniel.bench.soak.victim import Victim

END_SECONDS_MAX = 2.0  # from the signal to the end of the process, whatever its clients do
RATE_MIN = 1000.0  # operations a second; a slower cycle is checked but not counted


class Cycle(Struct):
    """The results of one life and death. `wrong` is empty if every promise was kept."""

    operations: int
    seconds: float
    ready_s: float
    recovery_s: float
    found: int
    counted: dict[str, int]
    kills: int
    reloads: int
    wrong: list[str]
    end_s: float

    @property
    def rate(self) -> float:
        return self.operations / self.seconds


class Totals(Struct):
    """The results of all cycles."""

    cycles: int = 0
    counting: int = 0  # those with enough load
    kills: int = 0
    reloads: int = 0
    operations: int = 0
    rotations: int = 0
    rewrites: int = 0
    ready_s_max: float = 0.0
    end_s_max: float = 0.0
    wrong: int = 0

    def add(self, cycle: Cycle) -> None:
        self.cycles += 1
        self.counting += cycle.rate >= RATE_MIN
        self.kills += cycle.kills
        self.reloads += cycle.reloads
        self.operations += cycle.operations
        self.rotations += cycle.counted["journal_rotations"]
        self.rewrites += cycle.counted["journal_rewrites"]
        self.ready_s_max = max(self.ready_s_max, cycle.ready_s)
        self.end_s_max = max(self.end_s_max, cycle.end_s)
        self.wrong += len(cycle.wrong)

    def text(self) -> str:
        journals = f"{self.rotations} rotations and {self.rewrites} rewrites seen, {self.reloads} reloads"
        load = f"{self.counting} of {self.cycles} cycles at {RATE_MIN:.0f} operations a second or more"
        ready = f"ended in {self.end_s_max:.2f} s and ready again in {self.ready_s_max:.2f} s at most"
        return f"{self.kills} deaths amid {self.operations} operations; {load}; {journals}; {ready}; {self.wrong} wrong"


def describe(cycle: Cycle) -> str:
    """Return the cycle in one line."""
    load = f"{cycle.operations:5} operations in {cycle.seconds:.2f} s, {cycle.rate:6.0f}/s"
    journals = f"{cycle.counted['journal_rotations']:3} rotations, {cycle.counted['journal_rewrites']:3} rewrites"
    slow = "" if cycle.rate >= RATE_MIN else ", too little load: does not count"
    rest = f"{cycle.found:4} items found, ready in {cycle.ready_s:.2f} s ({cycle.recovery_s:.2f} s of recovery)"
    extra = f", {cycle.kills} kills" * (cycle.kills > 1) + ", reloaded" * cycle.reloads
    return f"{load}, {journals}, {rest}{extra}{slow}" + "".join(f"\n  WRONG: {line}" for line in cycle.wrong)


class Mortal(Protocol):
    """A server that lives, dies and is checked."""

    victim: Victim

    def cycle(self) -> Cycle:
        """Work, die, recover, and be checked."""


def play(loop: Mortal, cycles: int, say: Callable[[str], None]) -> Totals:
    """Run cycles until `cycles` of them count, or twice as many in all, or up to the first that is wrong."""
    totals = Totals()
    with loop.victim:
        while totals.counting < cycles and totals.cycles < 2 * cycles and not totals.wrong:
            cycle = loop.cycle()
            totals.add(cycle)
            say(f"{totals.cycles:5}: {describe(cycle)}")
    return totals
