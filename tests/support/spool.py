"""A spool on the fake disk with one queue in service, and what each of its changes has led to so far."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress

from staniel.journal.group_commit import GroupCommit
from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.replay import Replay
from staniel.journal.spool import Spool
from staniel.queues.changes import Change
from staniel.queues.config import QueueConfig
from staniel.queues.interfaces import Journal
from staniel.queues.item import Item
from staniel.queues.queue import Queue
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Choose, Crash
from tests.support.judge import Content
from tests.support.records import NOW_MS, content, state

State = tuple[list[Content], dict[int, Content]]
EMPTY: State = ([], {})


def new_disk(capacity_bytes: int = 1 << 30) -> Disk:
    """A disk with an empty spool folder `s` that is there for good."""
    disk = Disk(capacity_bytes)
    disk.make_folder("s")
    disk.sync_folder("")
    return disk


def crashes(seeds: int) -> list[Crash | Choose]:
    """All lost, all kept, and so many mixtures."""
    return [*Crash, *(random.Random(seed).randrange for seed in range(seeds))]


def cut_at_each_step(base: Disk, run: Callable[[Disk], object]) -> Iterator[tuple[int, Disk]]:
    """The step and the disk of runs on copies of `base`, each cut off one step later. The last one runs to its end."""
    for step in range(1, 400):
        disk = base.copy()
        disk.stop_at = len(disk.log) + step
        has_ended = False
        with suppress(PowerCut):
            run(disk)
            has_ended = True
        yield step, disk
        if has_ended:
            return
    raise AssertionError("it has no end")


def content_of(disk: Disk, path: str) -> bytes:
    return disk.read(path, 0, 1 << 30)


def put_file(disk: Disk, name: str, data: bytes) -> None:
    """A file of the spool that is there for good."""
    file = disk.append(f"s/{name}")
    file.write(data)
    file.sync()
    file.close()
    disk.sync_folder("s")


def journals(disk: Disk) -> list[str]:
    """The files of the spool, without our own folder."""
    return [name for name, regular in disk.list("s") if regular]


def commit(group: GroupCommit, now_ms: int = NOW_MS) -> None:
    """Write the batch and take it to the disk."""
    group.write(now_ms)
    sync = group.start_sync(now_ms)
    if sync is not None:
        sync.run()
        group.finish_sync(sync, now_ms)


class Service(Journal):
    """Queue `q` on a disk. `states[n]` is what n changes led to; `safe` of them must survive a crash from now on."""

    def __init__(self, disk: Disk, config: QueueConfig | None = None) -> None:
        self.disk = disk
        self.config = config or QueueConfig()
        self.now_ms = NOW_MS
        self.states: list[State] = [EMPTY]
        self.safe = 0
        self.put_count = 0
        self.spool = Spool(disk, "s")

    def start(self) -> None:
        self.log: Log = self.spool.create("q", self.config, self.now_ms)
        self.queue = Queue("q", self.config, self, self.now_ms)

    batch = 0

    def record(self, change: Change) -> None:
        self.log.record(change)

    def note(self) -> None:
        items = [content(item) for item in self.queue.line.items()]
        self.states.append((items, {xid: content(taken.item) for xid, taken in self.queue.open_reads.items()}))

    def put(self, count: int = 1, flags: int = 0, size: int = 5) -> None:
        for _ in range(count):
            self.put_count += 1
            data = b"%d." % self.put_count
            self.queue.add(Item(data.ljust(size, b"x"), self.now_ms, 0, flags), self.now_ms)
            self.note()

    def take(self) -> None:
        assert self.queue.remove_head(self.now_ms)
        self.note()

    def open(self) -> None:
        assert self.queue.open(self.now_ms)
        self.note()

    def confirm(self) -> None:
        assert self.queue.confirm(next(iter(self.queue.open_reads.values())))
        self.note()

    def abort(self) -> None:
        assert self.queue.abort(next(iter(self.queue.open_reads.values())), self.now_ms)
        self.note()

    def commit(self) -> None:
        self.now_ms += 1
        count = len(self.states) - 1
        commit(self.spool.group, self.now_ms)
        self.safe = count

    def rotate(self) -> None:
        self.log.rotate(self.now_ms)

    def seal(self) -> None:
        self.log.seal_wanted = True
        self.log.synced(self.now_ms)

    def rewrite(self) -> None:
        self.log.rewrite(self.queue.open_reads, self.queue.line.items(), self.now_ms)

    def possible(self) -> list[State]:
        """What a crash at this moment may leave."""
        return self.states[self.safe :]


def recover(disk: Disk, steps: int | None = None) -> tuple[Spool, Log | None, Replay]:
    """Start on what a crash has left; with `steps`, lose power after so many steps of the recovery."""
    spool = Spool(disk, "s")
    disk.stop_at = None if steps is None else len(disk.log) + steps
    queues = spool.listing().kestrel
    assert set(queues) <= {"q"}
    if "q" not in queues:
        return spool, None, Replay(NOW_MS)
    recovered, log = spool.recover("q", queues["q"], QueueConfig(), NOW_MS + 1000)
    return spool, log, recovered.replay


def recovered_state(disk: Disk) -> State:
    replay = recover(disk)[2]
    items, opened, _ = state(replay)
    return items, opened


Scenario = Callable[[Service], None]
