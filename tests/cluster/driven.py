"""The driver of a member on real files, without a process, an etcd and other members: the test plays them."""

from __future__ import annotations

import select
from pathlib import Path

from staniel.broker.events import Level
from staniel.cluster.core import MemberConfig
from staniel.cluster.durable import Appended, Entries, Joined, Promised, Seen, encode_entry, new_file
from staniel.cluster.effects import ReadKey, Transact
from staniel.cluster.key import Key
from staniel.cluster.spool_changes import FileAppended, FileCreated, encode_changes
from staniel.cluster.spool_names import SpoolPaths
from staniel.cluster.stream import RecordKind
from staniel.journal.disk.os_fs import OsFs
from staniel.server.cluster.driver import Driver, Outside
from staniel.server.cluster.reactor import Reactor

A, B, C, CLUSTER = b"a" * 16, b"b" * 16, b"c" * 16, b"x" * 16
ITEM = next(iter(encode_changes([FileCreated("q"), FileAppended("q", 0, b"item")])))
FOLLOWED = (
    Joined(CLUSTER, 0),
    Promised(1),
    Seen(5),
    Appended(1, 1, RecordKind.EPOCH, A),
    Appended(1, 2, RecordKind.PUT, ITEM),
)


def ignore(level: Level, event: str, **fields: object) -> None:
    """Report nothing."""


def key(epoch: int, leader: bytes) -> Key:
    return Key(CLUSTER, epoch, leader, "x:1", (A, B, C))


def write_member(folder: Path, *entries: Entries) -> SpoolPaths:
    """Write the file of member B."""
    own = folder / ".staniel"
    own.mkdir()
    own.joinpath("member").write_bytes(new_file(B) + b"".join(map(encode_entry, entries)))
    return SpoolPaths(str(folder))


class Process:
    """A member's driver on real files, in a process of which the test plays the rest."""

    def __init__(self, paths: SpoolPaths) -> None:
        self.asked: list[ReadKey | Transact] = []
        self.connects = 0
        self.driver = Driver(MemberConfig("b:1"), OsFs(), paths, Reactor(), 5000, ignore)
        self.driver.outside = Outside(
            self.asked.append, self._count_connect, lambda upto: None, lambda: None, lambda: None
        )
        self.driver.start()
        self.end_syncs()

    def end_syncs(self) -> None:
        """Wait for the syncs that run."""
        while self.driver.file.running is not None:
            assert select.select([self.driver.file.fd], [], [], 60)[0]
            self.driver._on_synced(0)

    def end_work(self) -> None:
        """Wait for the work on the files."""
        while self.driver.files.running is not None:
            assert select.select([self.driver.files.fd], [], [], 60)[0]
            self.driver._on_files_ready(0)

    def end_copies(self) -> None:
        """Wait until the copies for other members stand still, and the work on this one's files is done."""
        while self.driver.copies.is_busy or self.driver.files.running is not None:
            assert select.select([self.driver.reactor.fileno()], [], [], 60)[0]
            self.driver.reactor.handle_events(0)

    def _count_connect(self, leader_id: bytes) -> None:
        self.connects += 1

    def read_key(self, key: Key, revision: int) -> None:
        """Answer the question that is open with this key, if it is one for the key."""
        asking = self.driver.member.core.asking
        if asking is not None and asking.key is None:
            self.driver.member.key_read(asking.number, key, revision)
            self.driver.carry_out()
            self.end_syncs()

    def elect(self) -> None:
        """Have this member elected for epoch 2; its promise is not synced yet."""
        self.read_key(key(1, A), 5)
        self.driver.key_watched(key(2, B), 6)

    def lead(self) -> None:
        """Have this member elected, recover nothing, and serve."""
        self.elect()
        self.end_syncs()
        self.driver.member.recovered(())
        self.driver.carry_out()
        self.end_syncs()
        assert self.driver.member.is_serving

    def close(self) -> None:
        """Close what the driver has open."""
        self.driver.close()
