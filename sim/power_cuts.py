"""Power-loss states: one history, and the power cut before every step of its disk, each time in many ways.

At every step copies of the disk are taken as a power loss may leave it: unsynced steps dropped, kept, torn at sectors
and at bytes, reordered. A server starts on each copy, and its content is compared with what clients had been told by
then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

from msgspec import Struct

from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import SECTOR_BYTES, Crash
from staniel.sim.history import History, Outcome, SeedPlan
from staniel.sim.queues.promises import Accident
from staniel.sim.run import history_of
from staniel.sim.violations import Violation

MIXED = 3  # copies of a step that the seed's chances decide
TORN_BYTES_MAX = 48  # a write up to this long is torn at every byte


@contextmanager
def unmetered() -> Iterator[None]:
    """Start servers inside a turn that is metered (work_meter.py): their lines are not the turn's."""
    meter = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(meter)


class States(Struct):
    """The result of a trace."""

    outcome: Outcome
    states: int


class Tracer:
    """A tracer of every power loss that could have happened during a history, up to `states_max` of them."""

    def __init__(self, history: History, states_max: int) -> None:
        self.history = history
        self.states = 0
        self.states_max = states_max
        self.chances = Random(history.seed_plan.seed)
        if history.knows_power_cuts():
            history.on_disk = self._follow
            history.on_kill = self._cut_next_start

    def _follow(self, disk: Disk) -> None:
        disk.before_step = partial(self._cut_here, disk)

    def _cut_here(self, disk: Disk) -> None:
        history = self.history
        # After a kill, the content is compared with what the kill has left: see _cut_next_start.
        if self.states >= self.states_max or (history.is_starting and history.last_accident is Accident.KILL):
            return
        for how, copy in self._copies(disk):
            self.states += 1
            try:
                with unmetered():
                    history.judge(history.content_of(copy), Accident.POWER)
            except Violation as found:
                raise Violation(found.kind, f"{found.why}; cut after step {len(disk.log)}, {how}") from None

    def _cut_next_start(self, disk: Disk) -> None:
        """Cut the power at each step of the next start after a kill, which has left its caches."""
        history = self.history
        for steps in range(1, history.steps_of_start(disk) + 1):
            if self.states >= self.states_max:
                return
            left = history.cut_start(disk, steps)
            for how, copy in self._copies(left):
                self.states += 1
                try:
                    history.judge(history.content_of(copy), Accident.POWER)
                except Violation as found:
                    why = f"{found.why}; killed, then cut after step {steps} of the start, {how}"
                    raise Violation(found.kind, why) from None

    def _copies(self, disk: Disk) -> Iterator[tuple[str, Disk]]:
        yield "dropped", disk.crash(Crash.DROP)
        yield "kept", disk.crash(Crash.KEEP)
        for _ in range(MIXED):
            yield "mixed", disk.crash(self.chances.randrange)
        last = disk.log[-1] if disk.log else None
        if last is None or last.verb != "write" or not last.size:
            return
        sizes = range(1, last.size + 1) if last.size <= TORN_BYTES_MAX else self._cuts(last.size)
        for size in sizes:
            copy = disk.crash(Crash.KEEP)
            if copy.tear(last.path, size):
                yield f"torn {size} bytes before the end of {last.path}", copy

    def _cuts(self, size: int) -> list[int]:
        """Return every sector, and some bytes in between."""
        some = {self.chances.randrange(1, size) for _ in range(8)}
        return sorted({1, 2, size, *some, *range(SECTOR_BYTES, size, SECTOR_BYTES)})


def states_of(seed_plan: SeedPlan, states_max: int = 1 << 30) -> States:
    """Trace one seed, checking at most `states_max` states."""
    history = history_of(seed_plan)
    tracer = Tracer(history, states_max)
    return States(history.outcome(), tracer.states)
