"""Commit groups and journals on the fake disk, for the tests of this folder."""

from __future__ import annotations

from staniel.journal.disk.ballast import Ballast
from staniel.journal.disk.failed_sync import FailedSyncMarker
from staniel.journal.disk.unsynced_names import UnsyncedNames
from staniel.journal.group_commit import GroupCommit
from staniel.journal.kestrel.log import Log
from staniel.queues.changes import Added
from staniel.queues.config import QueueConfig
from staniel.queues.item import Item
from staniel.sim.disk.disk import Disk
from tests.support.records import NOW_MS

SMALL_BYTES = 64 << 10


def group_on(disk: Disk) -> GroupCommit:
    disk.make_folder("s/.staniel")
    names = UnsyncedNames(disk)
    group = GroupCommit(
        names, "s", Ballast(names, "s", "s/.staniel/ballast"), FailedSyncMarker(names, "s/.staniel/failed_sync")
    )
    assert group.restore_ballast()
    names.sync_folder("s")
    return group


def log_of(group: GroupCommit, name: str = "q", sync_ms: int = 0) -> Log:
    return Log(group.fs, "s", name, group, QueueConfig(sync_ms=sync_ms))


def put(log: Log, data: bytes = b"x") -> None:
    log.record(Added(Item(data, NOW_MS)))


def syncs(disk: Disk) -> list[str]:
    return [op.path for op in disk.log if op.verb == "sync"]
