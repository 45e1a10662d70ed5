"""The order of a run: a long life with accidents and rests, then death after death, then another long life.

At a rest, producers stop, consumers take all items, all clients disconnect. The server's contents are then compared
with the clients' knowledge, and memory, descriptors and disk are those of a server without clients and items, so that
two rests of one life are comparable.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import trio

from staniel.bench.soak.clients import ServerBroken
from staniel.bench.soak.jobs import Book
from staniel.bench.soak.ledger import Fate, Ledger
from staniel.bench.soak.mix.accidents import Accidents, Say
from staniel.bench.soak.mix.clients import Shift, hired, read_queues
from staniel.bench.soak.mix.jobs import delete_jobs, job_clients, look_at_jobs
from staniel.bench.soak.mix.stage import FAMILIES, Figures, Stage
from staniel.bench.soak.mix.verdict import Latency, Life, Seen
from staniel.bench.soak.mix.warm_up import warm_up
from staniel.bench.soak.mix.wires import ConnectionGone

LONG_LIFE_SHARE = 0.4
PHASES = 36  # of a run, if they are neither too short nor too long then
PHASES_MIN = 2  # of a long life, even in a short run
PHASE_SECONDS = (2.0, 600.0)
WORK_SHARE = 0.75  # of a phase; in the rest of it all items are taken
ACCIDENTS_A_PHASE = 5
MORTAL_SECONDS = (1.0, 20.0)
KILL_AGAIN_ONE_IN = 6
CALM_SECONDS = 1.0  # before figures are taken at a rest
SAMPLES = 700
WRONG_MAX = 20


Task = Callable[[], Awaitable[None]]
Guest = Callable[[Shift], Awaitable[None]]
"""A guest that takes part in each shift. Tests use one to break promises."""


class Run:
    """A run. `rate`: roughly the number of items and jobs put a second, while nothing is wrong. `guests` join each
    shift.
    """

    def __init__(self, stage: Stage, seconds: float, rate: float, say: Say, guests: tuple[Guest, ...] = ()) -> None:
        self.stage = stage
        self.seconds = seconds
        self._say = say
        self.guests = guests
        self.random = stage.random
        self.pace_s = 12 / rate  # the approximate number of producers
        self.ledgers = [Ledger(*family) for family in FAMILIES]
        self.book = Book()
        self.seen = Seen(stage.name)
        self.phase_s = min(max(seconds / PHASES, PHASE_SECONDS[0]), PHASE_SECONDS[1])
        self.shift: Shift | None = None

    def report(self, text: str) -> None:
        self._say(f"{self.stage.now_s:8.1f} s  {self.stage.name}: {text}")

    async def run(self) -> None:
        """Run to the end, or to the first thing that is wrong."""
        self.stage.began_s = time.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.watch)
            try:
                await self.begin_life("a long life")
                await read_queues(self.stage)  # children of a fan-out exist after the first read
                await self.live(LONG_LIFE_SHARE * self.seconds)
                await self.die(self.seconds * (1 - LONG_LIFE_SHARE))
                await self.live(self.seconds)
                await self.stop()
                await self.begin_life("the end")
                await self.check("after the last start")
            except (ServerBroken, ConnectionGone, OSError, SoakFailed) as error:
                if not isinstance(error, SoakFailed):
                    self.seen.wrong.append(repr(error))
                self.seen.wrong.append(f"the server said: {self.stage.victim.said[-1500:]}")
            self.seen.left_out = self.stage.left_out
            nursery.cancel_scope.cancel()

    async def begin_life(self, name: str) -> None:
        await self.stage.start()
        self.seen.starts_s.append(self.stage.victim.ready_s)
        self.seen.lives.append(Life(name, self.stage.now_s))

    async def live(self, until_s: float) -> None:
        """Run phases of work, each with a rest behind it."""
        rests = self.seen.lives[-1].rests
        await warm_up(self.stage)
        while self.stage.now_s < until_s or len(rests) < PHASES_MIN:
            shift = self.new_shift()
            accidents = Accidents(shift, self.phase_s / 8, self.report)
            await self.work(shift, self.phase, partial(accidents.happen, self.phase_s / ACCIDENTS_A_PHASE))
            await self.check_at_rest()

    async def work(self, shift: Shift, rule: Callable[[Shift], Awaitable[None]], *others: Task) -> None:
        """Let all clients work while `rule` lasts. Raises SoakFailed if something is wrong then."""
        tasks: list[Task] = [client.run for client in hired(shift)]
        tasks += [client.run for client in job_clients(shift)]
        async with trio.open_nursery() as nursery:
            for task in (*tasks, *others):
                nursery.start_soon(task)
            for guest in self.guests:
                nursery.start_soon(guest, shift)
            await rule(shift)
        self.blame(*shift.wrong, *(line for ledger in self.ledgers for line in ledger.wrong))

    async def phase(self, shift: Shift) -> None:
        with trio.move_on_after(WORK_SHARE * self.phase_s):
            await shift.broke.wait()
        await shift.drained()
        shift.is_over = True

    async def check_at_rest(self) -> None:
        await self.check("at a rest")
        await delete_jobs(self.stage, self.book)
        await trio.sleep(CALM_SECONDS)
        found = []
        for _ in range(5):
            found.append(self.stage.figures())
            await trio.sleep(0.2)
        names = ("at_s", "rss_kb", "files", "disk_kb")
        figures = Figures(*(median(getattr(sample, name) for sample in found) for name in names))
        self.seen.lives[-1].rests.append(figures)
        self.report(
            f"at rest: {figures.rss_kb} KB of memory, {figures.files} descriptors, {figures.disk_kb} KB on disk"
        )

    async def die(self, until_s: float) -> None:
        """End the long life, and run short ones."""
        await self.stop()
        await self.begin_life("deaths")
        await self.check("after a stop")
        is_first = True
        while self.stage.now_s < until_s or is_first:
            shift, is_first = self.new_shift(), False
            is_kill = self.random.random() < 0.75
            await self.work(shift, partial(self.mortal, is_kill))
            code = await self.stage.wait()
            self.seen.counts["kills" if is_kill else "stops in full flight"] += 1
            self.expect_code(code, -signal.SIGKILL if is_kill else 0)
            if not self.random.randrange(KILL_AGAIN_ONE_IN):
                self.stage.victim.spawn()
                await trio.sleep(self.random.uniform(0.1, 0.5))
                self.stage.victim.send_signal(signal.SIGKILL)
                await self.stage.wait()
                self.seen.counts["kills during a start"] += 1
            self.seen.lives[-1].end_s = self.stage.now_s
            await self.begin_life("deaths")
            await self.check("after a death")
        self.seen.lives[-1].name = "another long life"

    async def mortal(self, is_kill: bool, shift: Shift) -> None:
        with trio.move_on_after(min(self.random.uniform(*MORTAL_SECONDS), self.phase_s)):
            await shift.broke.wait()
        shift.die()
        self.stage.victim.send_signal(signal.SIGKILL if is_kill else signal.SIGTERM)

    async def stop(self) -> None:
        """Stop the server, without clients."""
        self.stage.victim.send_signal(signal.SIGTERM)
        code = await self.stage.wait()
        self.seen.lives[-1].end_s = self.stage.now_s
        self.seen.counts["stops"] += 1
        self.expect_code(code, 0)

    def expect_code(self, code: int, expected: int) -> None:
        if code != expected:
            self.blame(f"the server ended with {code}, not {expected}")

    async def check(self, when: str) -> None:
        """Check that the contents are those that the clients know."""
        found = await self._settled()
        wrong = []
        for ledger in self.ledgers:
            wrong += ledger.check(found)
            ledger.accept_recovered(found)
        jobs = await look_at_jobs(self.stage, self.book)
        wrong += self.book.judge(jobs)
        self.book.accept_recovered(jobs)
        self.seen.counts["checks of everything"] += 1
        if "Traceback" in self.stage.victim.said:
            wrong.append("a traceback on standard error")
        self.blame(*(f"{when}: {line}" for line in wrong))

    async def _settled(self) -> dict[str, list[bytes]]:
        """Return the contents once no item is moving from queue to queue, or leased to a vanished client."""
        found = await read_queues(self.stage)
        with trio.move_on_after(8.0):
            while self._lacks(found):
                await trio.sleep(0.2)
                found = await read_queues(self.stage)
        return found

    def _lacks(self, found: dict[str, list[bytes]]) -> bool:
        for ledger in self.ledgers:
            there = {item.partition(b" ")[0] for queue in ledger.queues for item in found[queue]}
            if any(entry.fate is Fate.STORED and key not in there for key, entry in ledger.entries.items()):
                return True
        return False

    def blame(self, *wrong: str) -> None:
        """Note what is wrong. Raises SoakFailed if anything is."""
        for line in wrong[:WRONG_MAX]:
            self.report(f"WRONG: {line}")
        self.seen.wrong += [f"{self.stage.now_s:.1f} s: {line}" for line in wrong[:WRONG_MAX]]
        if wrong:
            raise SoakFailed

    def new_shift(self) -> Shift:
        self.shift = Shift(self.stage, self.ledgers, self.book, self.seen.counts, self.pace_s)
        return self.shift

    async def watch(self) -> None:
        """Take samples, until cancelled."""
        every_s = max(0.5, self.seconds / SAMPLES)
        while True:
            await trio.sleep(every_s)
            try:
                self.seen.figures.append(self.stage.figures())
            except (OSError, AssertionError, IndexError):
                continue  # between two lives
            shift = self.shift
            if shift is not None:
                puts, closes = sorted(shift.puts_ms), sorted(shift.closes_ms)
                shift.puts_ms, shift.closes_ms = [], []
                answers = len(puts) + len(closes)
                times = (_share(puts, 0.5), _share(puts, 0.99), _share(closes, 0.5), _share(closes, 0.99))
                self.seen.latencies.append(Latency(self.stage.now_s, *times, answers))


class SoakFailed(Exception):
    """The run failed; the reason has been reported."""


def _share(sorted_ms: list[float], share: float) -> float:
    return sorted_ms[int(share * (len(sorted_ms) - 1))] if sorted_ms else float("nan")


def play(
    folder: Path, seconds: float, rate: float, seed: int, say: Say, redo_logs: Mapping[str, str],
    guests: tuple[Guest, ...] = (), environment: Mapping[str, str] | None = None,
) -> list[Seen]:  # fmt: skip
    """Run one server for each of `redo_logs`, side by side."""

    async def main() -> list[Seen]:
        runs = [Run(stage, seconds, rate, say, guests) for stage in stages]
        async with trio.open_nursery() as nursery:
            for run in runs:
                nursery.start_soon(run.run)
        return [run.seen for run in runs]

    stages = [Stage(name, folder / name, redo_log, seed) for name, redo_log in redo_logs.items()]
    with ExitStack() as stack:
        for stage in stages:
            stack.enter_context(stage.open(environment))
        return trio.run(main)
