"""The history of one seed: several lives of a server, each ended by an accident, and checked throughout.

Each step draws from random numbers of its own, so that skipping some steps changes the others as little as possible;
that is how a history is shortened. Requests and invariants: `queues/run.py`, `jobs/run.py`, `hub/run.py`.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from random import Random
from typing import Any
from zlib import crc32

from msgspec import Struct

from staniel.broker.broker import Broker
from staniel.journal.group_commit import JournalFailure, Sync
from staniel.journal.kestrel.install import InstallPack
from staniel.journal.kestrel.records import SAVE_XID, WITH_XID, WITH_XID_BYTES
from staniel.journal.libkestrel.records import READER_MAGIC, SEGMENT_MAGIC, encode_put, encode_read_head
from staniel.journal.spool import SpoolError
from staniel.queues.item import Item
from staniel.sim.clocks import Clocks
from staniel.sim.disk.disk import Disk, PowerCut, Where
from staniel.sim.disk.durable import Crash
from staniel.sim.profiles import Profile
from staniel.sim.queues.promises import Accident
from staniel.sim.slices import few_redo_files, last_redo_numbers, small_cuts, small_slices, small_undos, wide_windows
from staniel.sim.violations import Kind, Violation
from staniel.sim.world import START_MS, Client, Contents, Thread, World

STEPS = 120
CAPACITY_BYTES = 1 << 20
SMALL_DISK_BYTES = 6000
STEPS_TO_CRASH = 12
RECOVERY_STEPS = 15
RENEWAL_STEPS = 90  # after a failed sync, files are rewritten first
RESTARTS_MAX = 8
STEPS_TO_REMOVAL = 150
STEPS_TO_GROUP = 150
STEPS_BEHIND_GROUP = 4
CUT_STARTS = 6  # starts tried after one kill
FIRST_LIFE_MS = 4000  # about the time that passes in it
NUMBERED = "abcd"  # queues whose journals may begin with a number
UNABLE = (JournalFailure, OSError, SpoolError)
LOSS_EVENTS = frozenset(("journal.gone", "journal.shortened", "journal.stand_ins", "journal.unreadable_items"))
"""Events that report damaged files. No file is damaged in a history, and no accident takes synced bytes."""


class Outcome(Struct):
    """The result of a seed. `transcript`: requests, replies and accidents, for people."""

    seed: int
    profile: str
    violation: Violation | None
    digest: int
    steps: int
    crashes: int
    facts: int
    answers: int
    transcript: list[tuple[str, str, str]]


class SeedPlan(Struct, frozen=True):
    """The seed to run, and how. `skipped` steps do not happen."""

    seed: int
    profile: Profile
    crashes: int = 4
    steps: int = STEPS
    skipped: frozenset[int] = frozenset()


class ServerDied(Exception):
    """The end of the server's process because a disk refused a call."""


def _put_files(disk: Disk, files: dict[str, bytes]) -> None:
    """Put files into the spool, by name, that no accident changes."""
    for name, data in files.items():
        file = disk.append(f"s/{name}")
        file.write(data)
        file.sync()
        file.close()
    disk.sync_folder("s")


class History:
    """The state of one run. `on_disk` is called with every disk that a life begins with, `on_kill` with the disk after
    a kill, caches included.
    """

    world: World
    config: str
    paths: tuple[str, ...] = ("s/", "s/a", "s/e", "intents")  # with writes that stop in the middle
    synced_paths: tuple[str, ...] = ("s/", "~~", "segments", "intents", "s/f", "read", ".new")  # files by their kind
    placed_paths: tuple[str, ...] = ("s/", "s/a", "s/b", "~~", "intents", "intents")
    weak_paths: tuple[str, ...] = ("s", "s/a", "s/d", ".staniel")  # that fail permanently

    def __init__(self, seed_plan: SeedPlan) -> None:
        self.seed_plan = seed_plan
        self.profile = seed_plan.profile
        self.rng = Random(seed_plan.seed)
        self.transcript: list[tuple[str, str, str]] = []
        self.on_disk: Callable[[Disk], None] = lambda disk: None
        self.on_kill: Callable[[Disk], None] = self._cut_next_start
        self.disk = self.first_disk()
        self.last_accident = Accident.STOP
        self.is_starting = False
        self.cut_by: Accident | None = None
        self.is_due = False  # an accident must happen before this life's last step
        self.now_ms = START_MS  # server time
        if self.profile.began_ms:
            self.now_ms = self.rng.choice(self.profile.began_ms) - self.rng.randrange(FIRST_LIFE_MS)
        self.clocks = Clocks(self.now_ms) if self.profile.wall_steps else None
        self.crashes = self.facts = self.answers = self.actors = self.done = 0
        self.has_faults = False
        self.sync_failed = False  # and the process has ended because of it
        self.lies_before = 0  # syncs that had failed on this disk before the life began
        self.threads: list[Thread] = []
        self.actors_there: list[Any] = []
        self.contents = Contents()  # for the accidents of one life

    # what is told apart by what is served

    def first_disk(self) -> Disk:
        disk = Disk(CAPACITY_BYTES)
        disk.make_folder("s")
        disk.sync_folder("")
        if self.profile.counters:
            counters = self.profile.counters
            _put_files(disk, {queue: WITH_XID.pack(SAVE_XID, self.rng.choice(counters)) for queue in NUMBERED})
        if self.profile.file_numbers and not self.profile.jobs:
            self._make_last_files(disk)
        return disk

    def _make_last_files(self, disk: Disk) -> None:
        """Give some queues a file whose number is near the highest possible one, and which has only items that were
        read.
        """
        is_stream, files = bool(self.profile.streams), {}
        for queue in NUMBERED:
            name = f"{queue}.{self.rng.choice(self.profile.file_numbers)}"
            files[name] = SEGMENT_MAGIC + encode_put(Item(b"read", 1), 1) if is_stream else b""
            if is_stream:
                files[f"{queue}.read."] = READER_MAGIC + encode_read_head(1)
        _put_files(disk, files)

    def begin_life(self) -> None:
        """Prepare to record a new life, before its server starts."""
        raise NotImplementedError

    def make_world(self) -> World:
        """Start a server. Raises the errors of a failing disk."""
        read = None if self.clocks is None else self.clocks.read
        return World(self.config, self.disk, self.now_ms, self.watch, read)

    def watch(self, broker: Broker) -> None:
        """Observe `broker`, which has recovered, from now on."""
        raise NotImplementedError

    def make_request(self) -> None:
        """Make a request of some client. Raises JournalFailure."""
        raise NotImplementedError

    def gone(self, actor: Any) -> None:
        """Note that a client has disconnected."""

    def settled(self) -> None:
        """Check the state after a turn. Its records are written."""
        raise NotImplementedError

    def synced(self, began_ms: int) -> None:
        """Note that everything recorded by `began_ms` is durable: a sync that began then has ended, or none was due."""
        raise NotImplementedError

    def promise_all(self) -> None:
        """Note that everything is durable, because the server has stopped cleanly."""
        raise NotImplementedError

    def end_life(self) -> tuple[list[tuple[str, str, str]], int, int]:
        """Return (transcript, facts, answers) of the life that has ended."""
        raise NotImplementedError

    def content_of(self, disk: Disk) -> Any:
        """Return what a server that starts on a copy of `disk` would serve. Raises Violation."""
        raise NotImplementedError

    def look_at_harmed(self, disk: Disk) -> None:
        """Break a copy of the disk beyond every promise, and check that a server serves only items that were put."""

    def judge(self, content: Any, accident: Accident) -> Any:
        """Check that the promises allow `content` after `accident`. Return the state for the beginning of the next
        life. Raises Violation.
        """
        raise NotImplementedError

    def go_on_from(self, judged: Any) -> None:
        """Continue from the result of the last check."""
        raise NotImplementedError

    def knows_power_cuts(self) -> bool:
        """Tell whether `judge` knows what a power cut at any step may take."""
        return True

    # the run

    def outcome(self) -> Outcome:
        """Run the history to the end, or to the first violation."""
        violation: Violation | None = None
        try:
            with self._slices():
                self._lives()
        except Violation as found:
            violation = found
        except Exception as broken:
            where = traceback.extract_tb(broken.__traceback__)[-1]
            violation = Violation(Kind.BROKEN, f"{broken!r} at {where.filename.rpartition('/')[2]}:{where.lineno}")
        self._note_life(counts=False)
        digest = crc32(repr((self.transcript, violation and violation.why)).encode(), self.crashes)
        seed, name = self.seed_plan.seed, self.profile.name
        return Outcome(
            seed, name, violation, digest, self.done, self.crashes, self.facts, self.answers, self.transcript
        )

    def _slices(self) -> AbstractContextManager[None]:
        if self.profile.undo:
            return small_undos(self.seed_plan.seed, by_terms=self.profile.chosen > 0)
        if self.profile.metered:
            return wide_windows()
        if self.profile.redo_files:
            return few_redo_files(self.profile.redo_files)
        if self.profile.redo_numbers:
            return last_redo_numbers(self.seed_plan.seed)
        if self.profile.cuts:
            return small_cuts()
        if not self.profile.slices:
            return nullcontext()
        return small_slices(self.seed_plan.seed, within_answers=self.profile.hub)

    # lives

    def _lives(self) -> None:
        self._start()
        steps, lives = self.seed_plan.steps, self.seed_plan.crashes + 1
        ends = {steps * life // lives - 1 for life in range(1, lives + 1)}
        armed = {end - STEPS_TO_CRASH for end in ends}
        for step in range(steps):
            if step in self.seed_plan.skipped:
                continue
            self.done += 1
            self.rng.seed(self.seed_plan.seed * 1_000_003 + step)
            try:
                if step in armed:
                    self._arm()
                self._take_step()
                if step in ends and self.is_due:
                    self._end(self.rng.choice(self.profile.accidents))
            except PowerCut:
                assert self.cut_by is not None
                # A process that is killed between a failed sync and its mark leaves no trace of the failure, and no
                # server can find out what the caches have then. So the machine stops too.
                self.sync_failed = self.disk.lies > self.lies_before
                self._accident(Accident.POWER if self.sync_failed else self.cut_by)
            except ServerDied:
                self._accident(self.rng.choice((Accident.POWER, Accident.KILL)))

    def _note_life(self, *, counts: bool = True) -> None:
        transcript, facts, answers = self.end_life()
        self.transcript += transcript
        transcript.clear()
        if counts:
            self.facts += facts
            self.answers += answers

    def _arm(self) -> None:
        """Let the power or the process fail at one of the disk's next steps."""
        self.is_due = True
        sudden = [accident for accident in self.profile.accidents if accident is not Accident.STOP]
        if sudden:
            self.cut_by = self.rng.choice(sudden)
            self.disk.stop_at = len(self.disk.log) + self.rng.randrange(20)
            if self.profile.cut_removals and self.rng.randrange(1000) < self.profile.cut_removals:
                self._arm_removal(self.disk)
            if self.profile.torn_groups and self.rng.randrange(1000) < self.profile.torn_groups:
                self._arm_group(self.disk)

    def _arm_group(self, disk: Disk) -> None:
        """Let the disk fail soon after an operation or a transfer has noted its items, while a change of several
        records is not synced.
        """
        disk.stop_at = len(disk.log) + STEPS_TO_GROUP
        noted = False

        def cut_in_group() -> None:
            nonlocal noted
            if disk.stop_at is None:
                disk.before_step = before  # the moment has come
            elif disk.log:
                noted = noted or (disk.log[-1].verb == "sync" and "/.staniel/" in disk.log[-1].path)
                if noted and self._groups():
                    disk.stop_at = min(disk.stop_at, len(disk.log) + self.rng.randrange(STEPS_BEHIND_GROUP))
                    disk.before_step = before
                    if disk.stop_at == len(disk.log):
                        raise PowerCut("a group of records is written")
            before()

        before, disk.before_step = disk.before_step, cut_in_group

    def _arm_removal(self, disk: Disk) -> None:
        """Let the disk fail after a sidecar was removed and before that is synced, or at some later step."""
        disk.stop_at = len(disk.log) + STEPS_TO_REMOVAL

        def cut_at_removal() -> None:
            if disk.stop_at is None:
                disk.before_step = before  # the moment has come
            elif disk.log and disk.log[-1].verb == "remove" and "/segments/" in disk.log[-1].path:
                disk.stop_at = len(disk.log)
                disk.before_step = before
                raise PowerCut("sidecar removed")
            before()

        before, disk.before_step = disk.before_step, cut_at_removal

    def _end(self, accident: Accident) -> None:
        if accident is Accident.STOP:
            self._stop()
        self._accident(accident)

    def _stop(self) -> None:
        """Stop the server cleanly. Running tasks end first, and a sync that has not run is left to the stop."""
        if self.has_faults and self.rng.random() < 0.5:
            self._free()
        self.world.broker.group.cut_short()
        try:
            for thread in list(self.threads):
                self._finish_thread(thread)
            self.world.broker.shutdown(self.world.now_ms)
        except (JournalFailure, OSError) as failure:
            raise self._died(failure) from failure
        self.promise_all()
        for actor in self.actors_there:
            actor.ran()

    def _accident(self, accident: Accident) -> None:
        """Break the disk as the accident does, check its content, and start again."""
        self.crashes += 1
        self.is_due = False
        self._note_life()
        self.transcript.append(("accident", accident.value, f"{len(self.disk.log)} steps of the disk"))
        self.last_accident = accident
        worst = self._break(accident)
        content = self.content_of(self.disk)
        self.transcript.append(("found", "", repr(content)))
        if self.profile.harmed_copies and self.rng.randrange(1000) < self.profile.harmed_copies:
            self.look_at_harmed(self.disk.copy())
        judged = self.judge(content, worst)
        if accident is Accident.KILL and not self.sync_failed:
            self.on_kill(self.disk)
        is_dirty = self.sync_failed or accident is Accident.KILL  # the caches differ from the disk
        may_fall = self.cut_by is not None or (is_dirty and self.profile.crash_in_renewal)
        while self.rng.randrange(1000) < self.profile.crash_in_recovery and may_fall:
            if self.profile.crash_in_renewal and is_dirty and self.rng.random() < 0.4:
                self._fail_in_renewal()
            else:
                self._crash_in_recovery()
            # Also if the same items are there: the power cut may have taken an open read that the kill had left.
            judged = self.judge(self.content_of(self.disk), Accident.POWER)
        self.go_on_from(judged)
        self._start()

    def _break(self, accident: Accident) -> Accident:
        lied = self.disk.lies and not self.profile.cache_lies
        if lied or accident is Accident.POWER or (accident is Accident.STOP and self.rng.random() < 0.5):
            how = self.rng.choice((Crash.DROP, Crash.KEEP, self.rng.randrange, self.rng.randrange, self.rng.randrange))
            torn = self.rng.randrange(1000) < self.profile.torn_groups if self.profile.torn_groups else False
            self.disk = (self._torn_group() if torn else None) or self.disk.crash(how)
        else:
            self.disk = self.disk.kill()
        return Accident.POWER if lied else accident

    def _torn_group(self) -> Disk | None:
        """Return the disk with one unsynced journal cut off after a SAVE_XID or within the record that follows it; None
        if no journal has such a place.
        """
        places = self._groups()
        if not places:
            return None
        name, size = self.rng.choice(places)
        left = self.disk.crash(Crash.KEEP)
        left.tear(f"s/{name}", max(1, size - self.rng.choice((0, 0, 0, 1, 5, 12))))
        return left

    def _groups(self) -> list[tuple[str, int]]:
        """Return the places after a SAVE_XID that is not synced: a journal, and how many bytes follow there."""
        places: list[tuple[str, int]] = []
        for name, is_file in self.disk.list("s"):
            inode = self.disk.inode_at(f"s/{name}") if is_file else None
            if inode is not None and inode.dirty:
                data, durable = bytes(inode.data), len(inode.durable)
                behind = [at + WITH_XID_BYTES for at, op in enumerate(data) if op == SAVE_XID]
                places += [(name, len(data) - at) for at in behind if durable < at < len(data)]
        return places

    def _crash_in_recovery(self) -> None:
        """Start, and lose the power again during recovery."""
        last = RENEWAL_STEPS if self.profile.crash_in_renewal else RECOVERY_STEPS
        self.disk.stop_at = len(self.disk.log) + self.rng.randrange(1, last)
        try:
            World(self.config, self.disk, self.now_ms)
        except (PowerCut, *UNABLE):
            pass
        self.disk.stop_at = None
        self.transcript.append(("accident", "power loss", "in recovery"))
        self.crashes += 1
        self.disk = self.disk.crash(self.rng.choice((Crash.DROP, Crash.KEEP, self.rng.randrange)))

    def _cut_next_start(self, disk: Disk) -> None:
        """Check starts that lose power at some step after a kill. Their caches are as the kill has left them."""
        if self.rng.randrange(1000) >= self.profile.cut_starts:
            return
        steps = self.steps_of_start(disk)
        for _ in range(CUT_STARTS):
            left = self.cut_start(disk, self.rng.randrange(1, steps + 1))
            how = self.rng.choice((Crash.DROP, Crash.KEEP, self.rng.randrange, self.rng.randrange))
            self.judge(self.content_of(left.crash(how)), Accident.POWER)

    def steps_of_start(self, disk: Disk) -> int:
        """Count the steps that a start on this disk takes."""
        twin = disk.fork()
        with suppress(*UNABLE):
            World(self.config, twin, self.now_ms)
        return len(twin.log)

    def cut_start(self, disk: Disk, steps: int) -> Disk:
        """Return the disk and its caches after `steps` steps of a start."""
        twin = disk.fork()
        twin.stop_at = steps
        with suppress(PowerCut, *UNABLE):
            World(self.config, twin, self.now_ms)
        twin.stop_at = None
        return twin

    def _fail_in_renewal(self) -> None:
        """Start, and end during the renewal because another sync fails. The next start finds the same caches."""
        verb = self.rng.choice(("sync", "sync_folder", "sync_folder"))
        self.disk.fail(verb, self.rng.choice(("s", "s", ".staniel")), errno.EIO, after=self.rng.randrange(8))
        with suppress(*UNABLE):
            World(self.config, self.disk, self.now_ms)
        self.transcript.append(("accident", "failed sync", "in recovery"))
        self.crashes += 1
        self.disk = self.disk.kill()

    def _start(self) -> None:
        """Begin a new life on the present disk. Raises Violation if no server can start."""
        self.cut_by = None
        self.sync_failed = False
        self.lies_before = self.disk.lies
        self.begin_life()
        self.contents = Contents()
        self.threads = []
        self.actors_there = []
        if self.profile.clock_jump and not self.profile.wall_steps and self.rng.random() < 0.5:
            self.now_ms += self.rng.choice((-86_400_000, -5000, 86_400_000))
        self.now_ms += 1000
        if self.clocks is not None:
            self.now_ms = self.clocks.begin_life(self.now_ms, self.rng)
            self.wall_stepped()
        self.is_starting = True
        self.on_disk(self.disk)
        for _ in range(RESTARTS_MAX):
            try:
                self.world = self.make_world()
                self.world.running_sync = self._run_handed_out
                if self.clocks is not None:
                    self.clocks.note_written()
                break
            except UNABLE as failure:
                if not self.has_faults:
                    raise Violation(Kind.NO_START, repr(failure)) from failure
                self._free()
                self.disk = self.disk.kill()
        else:
            raise Violation(Kind.NO_START, "even with room on the disk")
        self.is_starting = False
        self.transcript.append(("start", "", f"{self.world.summary.items} items"))
        self._check_events()

    def _died(self, failure: Exception) -> Exception:
        """Return the exception that ends the process: ServerDied if the disk was made to fail, else a Violation."""
        self.end_life()[0].append(("accident", "process ends", str(failure)))
        if not self.has_faults:
            return Violation(Kind.BROKEN, repr(failure))
        self.sync_failed = self.sync_failed or "sync failed" in str(failure)
        return ServerDied()

    # steps

    def _take_step(self) -> None:
        rng, draw = self.rng, self.rng.randrange(1000)
        if draw < 560 or not self.actors_there:
            try:
                self.make_request()
            except JournalFailure as failure:
                raise self._died(failure) from failure
        elif draw < 900:
            self._turn(rng.choice((0, 0, 1, 1, 3, 12, 60, 300, 1200)) if rng.random() < 0.5 else 1)
        elif draw < 940:
            actor = rng.choice(self.actors_there)
            actor.leave()
            self.forget(actor)
        else:
            self._mishap()
        if rng.random() < 0.5:
            self._turn(0)

    def enter(self, actor: Client) -> None:
        """Add a client that has connected."""
        self.actors_there.append(actor)
        self.world.clients.append(actor)

    def forget(self, actor: Any) -> None:
        self.actors_there.remove(actor)
        self.world.clients.remove(actor)
        self.gone(actor)

    def _turn(self, ms: int) -> None:
        """Run a turn of the hub, with the threads that have finished meanwhile."""
        world, rng = self.world, self.rng
        world.now_ms += ms
        self.now_ms = world.now_ms
        if self.clocks is not None:
            self.clocks.pass_until(self.now_ms)
        self.clock(world.now_ms)
        try:
            for thread in list(self.threads):
                if not thread.has_run and rng.random() < 0.6:
                    self._run(thread)
                if thread.has_run and rng.random() < 0.7:
                    self._finish_thread(thread)
            if self.profile.cuts and rng.randrange(1000) < self.profile.cuts:
                world.broker.streams.reclaim(CAPACITY_BYTES, world.now_ms)
            world.turn()
            self.settled()
            self._check_events()
            self._begin_threads()
        except (JournalFailure, OSError) as failure:
            raise self._died(failure) from failure
        for actor in list(self.actors_there):
            if actor.is_over:
                self.forget(actor)

    def _check_events(self) -> None:
        """Check that the server reports no loss. Raises Violation."""
        for event in LOSS_EVENTS.intersection(self.world.events):
            raise Violation(Kind.FALSE_ALARM, f"{event}: {self.world.reported(event)[0]}")

    def clock(self, now_ms: int) -> None:
        """Note the time of a turn."""

    def wall_stepped(self) -> None:
        """Note that the wall clock was set."""

    def _begin_threads(self) -> None:
        world = self.world
        if not any(isinstance(thread.task, Sync) for thread in self.threads):
            sync = world.start_sync()
            if sync is not None:
                self.threads.append(Thread(sync, sync.run, world.now_ms))
            else:
                self.synced(world.now_ms)
        for task in world.start_tasks():
            self.threads.append(Thread(task, partial(world.run_task, task), world.now_ms))
        for thread in list(self.threads):
            if self.rng.random() < 0.3:
                self._run(thread)
                if self.rng.random() < 0.7:
                    self._finish_thread(thread)

    def _run_handed_out(self, sync: Sync) -> None:
        """Run the thread of `sync`, because a turn waits for it."""
        for thread in self.threads:
            if thread.task is sync and not thread.has_run:
                self._run(thread)

    def _run(self, thread: Thread) -> None:
        if isinstance(thread.task, InstallPack) and self.profile.half_packs:
            self._stop_half_way()
        self.disk.where = Where.THREAD
        try:
            thread.run()
        finally:
            self.disk.where = Where.TURN

    def _finish_thread(self, thread: Thread) -> None:
        if not thread.has_run:
            self._run(thread)
        if thread.failure is not None:
            raise self._died(thread.failure)
        self.threads.remove(thread)
        if isinstance(thread.task, Sync):
            if thread.task.is_done:
                self.synced(thread.began_ms)
            self.world.finish_sync(thread.task)
        else:
            self.world.finish_task(thread.task)

    # mishaps

    def _mishap(self) -> None:
        rng, profile = self.rng, self.profile
        draw = rng.randrange(60)
        if draw < profile.full_disk:
            if rng.random() < 0.5:
                self.has_faults = True
                self.disk.capacity_bytes = max(self.disk.used_bytes, SMALL_DISK_BYTES) + rng.randrange(300)
            else:
                self._free()
        elif draw < profile.full_disk + profile.short_write:
            self.has_faults = True
            path = rng.choice(self.paths)
            self.disk.fail("write", path, errno.ENOSPC, after=rng.randrange(4), short=rng.randrange(30))
        if rng.randrange(60) < profile.eio:
            self.has_faults = True
            verb = rng.choice(("write", "sync", "sync", "sync_folder", "rename", "create", "truncate"))
            path, after, number = rng.choice(self.weak_paths), rng.randrange(6), errno.EIO
            if len(profile.sync_errnos) > 1:
                verb = rng.choice(("sync", "sync", "sync_folder", "sync_folder", "sync_all", "write"))
                number = rng.choice(profile.sync_errnos) if verb.startswith("sync") else number
                path = rng.choice((path, *(self.synced_paths if verb == "sync" else ("s", "segments", ""))))
            self.disk.fail(verb, path, number, after=after)
        if rng.randrange(60) < profile.placed_syncs:
            self._fail_a_sync(rng)
        if profile.stuck_temps and rng.randrange(60) < profile.stuck_temps:
            self.has_faults = True
            self.disk.fail(rng.choice(("write", "sync")), "~~", errno.ENOSPC, after=rng.randrange(3), short=20)
            self.disk.fail("remove", "~~", errno.EIO)
        if profile.refused_files and rng.randrange(60) < profile.refused_files:
            self._refuse_files(rng)
        if profile.stuck_files and rng.randrange(60) < profile.stuck_files:
            self._refuse_removals(rng)
        if self.clocks is not None and rng.randrange(60) < profile.wall_steps and not self._is_wall_held():
            self.clocks.step_wall(rng)
            self.wall_stepped()
            self.world.broker.wall.check_clock(self.world.now_ms)
            self.clocks.note_written()
        if rng.randrange(60) < profile.clock_jump:
            self._turn(rng.choice((5000, 3_600_000, 86_400_000)))

    def _refuse_files(self, rng: Random) -> None:
        """Let the system refuse to make, open or rename files for a while."""
        self.has_faults = True
        verb = rng.choice(("open", "open", "create", "rename"))
        number = rng.choice((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES))
        times = rng.choice((1, 3, 30))
        self.disk.fail(verb, rng.choice(self.weak_paths), number, after=rng.randrange(4), times=times)

    def _refuse_removals(self, rng: Random) -> None:
        """Let the disk refuse to remove files that a pack has replaced, or to give the pack its archive's name."""
        self.has_faults = True
        verb, path = rng.choice((("remove", f"/{rng.choice(('s/a', 's/d', 's/e'))}."), ("rename", ".pack")))
        number = rng.choice((errno.EACCES, errno.EPERM, errno.ENOSPC))
        self.disk.fail(verb, path, number, after=rng.randrange(5), times=rng.choice((1, 3, 30)))

    def _stop_half_way(self) -> None:
        """Let the disk fail while a pack is put in place, when its files have begun to change."""
        self.has_faults = True
        verb, path = self.rng.choice((("remove", "/s/"), ("rename", ".pack")))
        self.disk.fail(verb, path, errno.EIO, after=self.rng.randrange(2) * (verb == "remove"), where=Where.THREAD)

    def _is_wall_held(self) -> bool:
        """Return True if a server would not notice at once that the wall clock is set back."""
        return self.world.broker.transfers.are_copies_to_come

    def _fail_a_sync(self, rng: Random) -> None:
        """Let a sync of one kind fail: of a file or of names, in a turn or in a thread. Sometimes the mark of the
        failed sync has no room either.
        """
        self.has_faults = True
        where = rng.choice((Where.TURN, Where.TURN, Where.THREAD))
        verb = "sync_folder" if self.profile.names_only else rng.choice(("sync", "sync", "sync_folder"))
        path = "" if verb == "sync_folder" else rng.choice(self.placed_paths)
        self.disk.fail(verb, path, rng.choice(self.profile.sync_errnos), after=rng.randrange(3), where=where)
        if rng.random() < 0.3:
            self.disk.fail("write", "failed_sync", errno.ENOSPC, times=2, short=rng.randrange(40))

    def _free(self) -> None:
        self.disk.capacity_bytes = CAPACITY_BYTES
