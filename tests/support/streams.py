"""Queues in libkestrel's format on the fake disk: what tests say to them and look at."""

from __future__ import annotations

from staniel.journal.libkestrel.position import Position, ReaderFileScan
from staniel.journal.libkestrel.records import READER_MAGIC
from staniel.sim.disk.disk import Disk
from tests.support.world import World

LIB = 'default.journal_format = "libkestrel"\n'
SMALL = LIB + "default.default_journal_size = 100\n"


def settle(world: World) -> None:
    while world.sync():
        world.turn()


def asks(world: World, *lines: str) -> str:
    client = world.client().says(*lines)
    settle(world)
    return client.hears()


def fill(world: World, *items: str, queue: str = "q") -> None:
    for item in items:
        assert asks(world, f"set {queue} 0 0 {len(item)}", item) == "STORED"


def all_of(world: World, queue: str) -> list[str]:
    found = world.broker.queues.find(queue)
    assert found is not None
    found.check()
    return [item.data.decode() for item in found.line.items()]


def names(disk: Disk) -> list[str]:
    return [name for name, regular in disk.list("s") if regular]


def segments(disk: Disk) -> list[str]:
    return [name for name in names(disk) if ".read." not in name]


def position_in(disk: Disk, reader: str) -> Position:
    read = ReaderFileScan()
    data = disk.read(f"s/q.read.{reader}", 0, 1 << 30)
    assert data.startswith(READER_MAGIC)
    read.consume(data[len(READER_MAGIC) :], 0)
    read.position.done.drop_through(read.position.head)
    return read.position
