"""A history of jobs: its clients, its checker and its promises take part in the steps of history.py."""

from __future__ import annotations

from typing import Any

from staniel.broker import protocols
from staniel.broker.broker import Broker
from staniel.journal.workq.encoder import (
    COMPLETE,
    DELETE,
    MAGIC,
    encode_addition,
    encode_bare,
    encode_finished,
    encode_time,
    with_crc,
)
from staniel.journal.workq.files import segment_name
from staniel.queues.jobs.job import Job, Terms
from staniel.queues.jobs.queue import JobQueue
from staniel.queues.jobs.times import NS_A_MS
from staniel.sim.actor import Actor
from staniel.sim.disk.disk import Disk
from staniel.sim.history import UNABLE, History, SeedPlan
from staniel.sim.jobs.checker import JobChecker
from staniel.sim.jobs.conversation import JobConversation, number_of, raw_id
from staniel.sim.jobs.model import JobModel, JobRecord, record_of
from staniel.sim.jobs.promises import check_jobs
from staniel.sim.jobs.times import JobTimes, WallJobTimes
from staniel.sim.jobs.workload import IDS, JobWorkload
from staniel.sim.queues.promises import Accident
from staniel.sim.violations import Kind, Violation
from staniel.sim.world import LONG_AGO_MS, START_MS, World


class Snapshot(dict[bytes, JobRecord]):
    """Jobs by id, with a readable text. `has_holes`: the log they come from has damage before whole records."""

    has_holes = False

    def __repr__(self) -> str:
        return ", ".join(f"#{number_of(id)} {self[id]}" for id in sorted(self))


class JobRun(History):
    """A seed of a profile that has jobs."""

    paths = ("log/", "cmdlog/", "s/")
    weak_paths = ("log", "cmdlog", "s/.staniel", "s")

    def __init__(self, seed_plan: SeedPlan) -> None:
        super().__init__(seed_plan)
        self.workload = JobWorkload(self.rng, self.profile)
        self.config = self.workload.config
        self.model = JobModel({}, {}, self.workload.honours_max_fails)
        self.times = JobTimes() if self.clocks is None else WallJobTimes(self.clocks)
        if self.profile.forged:
            self._take_over()
        if self.profile.file_numbers:
            self._begin_late()

    def _begin_late(self) -> None:
        """Begin with a command log whose newest segment has one of the last possible numbers."""
        self.disk.make_folder(self.workload.folder)
        file = self.disk.append(f"{self.workload.folder}/{segment_name(self.rng.choice(self.profile.file_numbers))}")
        file.write(MAGIC)
        file.close()
        self.disk.sync_all("")

    def _take_over(self) -> None:
        """Begin with the log of a writer that decides and writes in two steps: results precede their additions, in an
        older segment, and ended jobs precede both.
        """
        time, later = encode_time(START_MS * NS_A_MS), encode_time(START_MS * NS_A_MS + 1)
        ids = [raw_id(number) for number in range(1, IDS + 1)]
        results = [encode_finished(later, COMPLETE, id, b"early") for id in ids[2:]]
        terms = Terms(JobQueue(b"q"), 60_000, 600_000_000)
        adds = [with_crc(encode_addition(Job(id, terms, b"foreign", START_MS * NS_A_MS), time)) for id in ids]
        over = [encode_bare(later, DELETE, id) for id in ids[:2]]
        self.disk.make_folder(self.workload.folder)
        for number, records in enumerate(([*adds[:2], *over, *results], adds[2:], []), 1):
            file = self.disk.append(f"{self.workload.folder}/{segment_name(number)}")
            file.write(MAGIC + b"".join(records))
            file.close()
        self.disk.sync_all("")
        self.go_on_from(self.content_of(self.disk))

    def begin_life(self) -> None:
        self.checker = JobChecker(self.model, self.times)

    def make_world(self) -> World:
        """Start a server. Without room for a copy of a damaged end it starts without jobs; once there is room, a reload
        brings them.
        """
        read = None if self.clocks is None else self.clocks.read
        world = World(self.config, self.disk, self.now_ms, read_clocks=read)
        workq = world.broker.workq
        if workq.trouble and self.has_faults:
            self._free()
            world.broker.reload(self.now_ms)
        if workq.trouble:
            raise Violation(Kind.NO_START, workq.trouble)
        self.watch(world.broker)
        return world

    def watch(self, broker: Broker) -> None:
        self.clock(self.now_ms)
        self.checker.listen(broker)

    def make_request(self) -> None:
        rng = self.rng
        few = len(self.actors_there) < self.profile.clients
        if not self.actors_there or (few and rng.random() < 0.4):
            self.actors += 1
            actor = Actor(self.world, protocols.workq(), self.checker, f"w{self.actors}", JobConversation())
            self.enter(actor)
            self.checker.clients.append(actor)
        wall_ms = self.world.now_ms if self.clocks is None else self.clocks.wall_ms
        rng.choice(self.actors_there).send_requests(self.workload.next_requests(rng, wall_ms))

    def gone(self, actor: Any) -> None:
        self.checker.clients.remove(actor)

    def clock(self, now_ms: int) -> None:
        self.checker.now_ms = now_ms if self.clocks is None else self.clocks.passed_ms

    def settled(self) -> None:
        self.checker.check_turn()
        self.model.committed(self.world.now_ms)

    def synced(self, began_ms: int) -> None:
        self.model.synced(began_ms)

    def promise_all(self) -> None:
        self.model.promised_after_kill = self.model.promised_after_power_loss = len(self.model.facts)

    def end_life(self) -> tuple[list[tuple[str, str, str]], int, int]:
        return self.checker.transcript, self.checker.facts, self.checker.answers

    def content_of(self, disk: Disk) -> Snapshot:
        """Return the jobs that a server on a copy of the disk finds. Its clock is ten days behind, so that no lifetime
        and no lease ends during the check.
        """
        copy = disk.copy()
        copy.capacity_bytes = 1 << 40
        try:
            # If the wall clock was set, the clock is before all additions.
            world = World(self.config, copy, LONG_AGO_MS if self.clocks is None else 0)
        except (*UNABLE, AssertionError) as failure:
            raise Violation(Kind.NO_START, f"a server on a copy of the disk: {failure!r}") from failure
        workq = world.broker.workq
        if workq.trouble:
            raise Violation(Kind.NO_START, f"a server on a copy of the disk: {workq.trouble}")
        snapshot = Snapshot({id: record_of(job) for id, job in workq.jobs.by_id.items()})
        snapshot.has_holes = any(segment.corrupt_ranges for segment in workq.log.segments.values())
        return snapshot

    def judge(self, snapshot: Snapshot, accident: Accident) -> Snapshot:
        check_jobs(self.model, snapshot, accident, has_holes=snapshot.has_holes)
        return snapshot

    def go_on_from(self, judged: Snapshot) -> None:
        self.model = JobModel(dict(judged), self.model.lapsed, self.workload.honours_max_fails)
