"""A served spool whose every change goes to a second disk, for tests that compare the two."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from staniel.broker import protocols
from staniel.cluster.follower_spool import Applied, FollowerSpool, forget_place
from staniel.cluster.places import Place
from staniel.cluster.recording_fs import ChangeRecorder, RecordingFs
from staniel.cluster.spool_changes import encode_changes
from staniel.cluster.spool_names import SpoolPaths
from staniel.journal.disk.fs import Fs
from staniel.sim.disk.disk import Disk
from tests.broker.operations.test_undo import asked
from tests.support.job_world import job_id
from tests.support.streams import asks, settle
from tests.support.world import START_MS, Client, World

EPOCH = 1
CONFIG = """
default.sync_journal = "always"
server.redo_log = "1MB"
admin.port = 0
admin.audit_log = "64KB"
workq.port = 0
default.default_journal_size = "4KB"
queues.big.max_memory_size = "8KB"
queues.big.max_journal_size = "24KB"
queues.mail.journal_format = "libkestrel"
queues.mail.default_journal_size = "2KB"
queues.brief.max_age = "1ms"
queues.brief.expire_to_queue = "late"
"""
JOBS = "log"


def empty_disk(*folders: str) -> Disk:
    disk = Disk()
    for folder in ("s", *folders):
        disk.make_folder(folder)
    disk.sync_all("")
    return disk


def contents(disk: Fs, paths: SpoolPaths) -> dict[str, bytes]:
    """The bytes of all replicated files by name."""
    return {name: disk.read(paths.path_of(name), 0, 1 << 30) for name in paths.replicated_files(disk)}


def to_lead(disk: Disk, paths: SpoolPaths | None = None) -> Disk:
    """Have a follower's disk be that of a member that leads: a start takes no follower's."""
    forget_place(disk, paths or SpoolPaths("s"))
    return disk


class FollowedWorld(World):
    """A server on a recording Fs, and what follows it. `records` is the whole stream; the follower's spool is compared
    with the leader's after each turn and each sync.
    """

    def __init__(self, config: str = CONFIG, jobs: str = "", before: FollowedWorld | None = None) -> None:
        """Begin with empty disks, or go on after the server of `before` was killed."""
        self.paths = SpoolPaths("s", jobs)
        self.recorder = ChangeRecorder()
        if before is None:
            folders = [jobs] if jobs else []
            self.leader, self.follower_disk = empty_disk(*folders), empty_disk(*folders)
            self.follower = FollowerSpool(self.follower_disk, self.paths)
            self.records: list[bytes] = []
        else:
            self.leader, self.follower_disk = before.leader.kill(), before.follower_disk
            self.follower, self.records = before.follower, before.records
        fs = RecordingFs(self.leader, self.paths, self.recorder)
        super().__init__(config, cast(Disk, fs), START_MS if before is None else before.now_ms + 1000)
        self.follow()

    def turn(self, ms: int = 0) -> None:
        super().turn(ms)
        self.follow()

    def sync(self) -> bool:
        ran = super().sync()
        self.follow()
        return ran

    def follow(self) -> None:
        """Bring the follower up to date."""
        new = list(encode_changes(self.recorder.take_changes()))
        for record in new:
            self.records.append(record)
            assert self.follower.apply(Place(EPOCH, len(self.records)), record) is Applied.APPLIED
        if new:
            self.follower.sync()
            assert self.follower.durable == (EPOCH, len(self.records))
            assert contents(self.follower_disk, self.paths) == contents(self.leader, self.paths)


def everything(world: World, *, scale: int = 1) -> None:
    """Make a server do everything that writes to its spool: each act settles before the next."""
    for act in ACTS:
        act(world, scale)
        settle(world)


def _puts(world: World, scale: int) -> None:
    asks(world, "get mail+a", "get mail+b")
    for number in range(30 * scale):
        asks(world, "set q 0 0 300", f"{number:03}".ljust(300, "x"))
        asks(world, "set mail 0 0 200", f"{number:03}".ljust(200, "m"))
    asks(world, "set other/key=k 0 0 1", "k", "set other 0 0 2", "oo", "set gone 0 0 1", "g")


def _rotation_and_packs(world: World, scale: int) -> None:
    for number in range(40 * scale):
        asks(world, "set big 0 0 800", f"{number:03}".ljust(800, "b"))
    for _ in range(30 * scale):
        asks(world, "get big")
        asks(world, "get mail+a")
    asks(world, "get big/open")
    world.turn(2000)


def _transfers(world: World, scale: int) -> None:
    for number in range(3):
        asks(world, "set brief 0 0 1", str(number))
    world.turn(2000)
    asks(world, "peek brief", "peek late")


def _operations(world: World, scale: int) -> None:
    assert asked(world, "POST", "/api/queues/q/pause", {})[0] == 200
    assert asked(world, "POST", "/api/queues/other/purge", {})[0] == 200
    assert asked(world, "POST", "/api/queues/q/move", {"to": "target", "count": 10})[0] == 200
    assert asked(world, "POST", "/api/backup/made", {"made_at_ms": world.now_ms, "where": "/b"})[0] == 200
    undos = asked(world, "GET", "/api/undo")[1]
    assert len(undos) == 2
    for undo in undos:
        assert asked(world, "POST", f"/api/undo/{undo['id']}")[0] == 200


def _deletions(world: World, scale: int) -> None:
    asks(world, "delete gone", "flush late")
    assert asked(world, "DELETE", "/api/queues/target", {})[0] == 200


def use_jobs(world: World, scale: int) -> None:
    worker = Client(world, protocols.workq())
    world.clients.append(worker)
    for number in range(6 * scale):
        worker.says(f"add {job_id(number)} work 60000 600000 7", "payload")
        settle(world)
    worker.says("lease work 0")
    worker.says(f"complete {job_id(0)} 2", "ok")
    worker.says(f"delete {job_id(3)}")
    settle(world)


ACTS: list[Callable[[World, int], None]] = [_puts, _rotation_and_packs, _transfers, _operations, _deletions, use_jobs]
