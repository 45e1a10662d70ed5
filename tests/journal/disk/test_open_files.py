"""Many queues, few open files: what is closed meanwhile is opened again, and nothing that was promised is lost."""

from __future__ import annotations

import pytest

from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash, Inode
from tests.support.world import World

LIMIT = 16
QUEUES = 2000


def open_files(disk: Disk) -> int:
    return sum(inode.handles for inode in journals(disk))


def journals(disk: Disk) -> list[Inode]:
    return [disk._inode(f"s/{name}") for name, regular in disk.list("s") if regular]


def small_world(config: str = "") -> World:
    world = World(config)
    world.broker.group.open_files.limit = LIMIT
    return world


def items_of(world: World, count: int) -> list[list[bytes]]:
    return [world.items(f"q{number}") for number in range(count)]


def test_two_thousand_queues_need_sixteen_files_and_are_durable() -> None:
    world = small_world()
    client = world.client()
    for word in ("a", "b"):
        for number in range(QUEUES):
            client.puts(f"{word}{number}", f"q{number}")
            if number % 5 == 4:
                world.sync()
                world.turn()
        assert open_files(world.disk) <= LIMIT + 5
    assert client.hears() == " ".join(["STORED"] * 2 * QUEUES)
    again = world.crash(Crash.DROP)
    assert items_of(again, QUEUES) == [[b"a%d" % number, b"b%d" % number] for number in range(QUEUES)]


@pytest.mark.parametrize("sync", ["always", "20ms", "os"])
def test_many_queues_made_and_filled_in_one_batch_are_durable(sync: str) -> None:
    world = small_world(f'default.sync_journal = "{sync}"')
    client = world.client()
    count = 10 * LIMIT
    for _ in range(2):
        client.says(*(line for number in range(count) for line in (f"set q{number} 0 0 1", "x")))
    while client.session.wants_turn:
        world.turn()
    world.turn(20)
    while world.sync():
        world.turn(20)
    assert client.hears() == " ".join(["STORED"] * 2 * count)
    assert items_of(World(world.config, world.disk.kill()), count) == [[b"x"] * 2] * count
    if sync != "os":
        assert items_of(world.crash(Crash.DROP), count) == [[b"x"] * 2] * count


def test_queues_that_are_written_most_stay_open() -> None:
    world = small_world()
    client = world.client()
    for number in range(LIMIT * 3):
        client.puts("x", f"q{number}")
        world.sync()
        client.puts("x", "busy")
        world.sync()
    before = len(world.disk.log)
    assert open_files(world.disk) <= LIMIT
    client.puts("y", "q0")
    world.sync()
    assert [op.verb for op in world.disk.log[before:]] == ["write", "sync"]
    assert world.crash(Crash.DROP).items("q0") == [b"x", b"y"]


def test_a_server_with_few_files_stops_cleanly() -> None:
    world = small_world('default.sync_journal = "os"')
    client = world.client()
    for number in range(LIMIT * 3):
        client.puts("x", f"q{number}")
    world.broker.shutdown(world.now_ms)
    assert items_of(world.crash(Crash.DROP), LIMIT * 3) == [[b"x"]] * LIMIT * 3
    assert open_files(world.disk) == 0


def test_transfers_into_many_queues_that_are_left_to_the_os_sync_files_that_are_open() -> None:
    count = LIMIT * 3
    config = 'default.sync_journal = "os"\n'
    config += "".join(f'[queues.q{number}]\nexpire_to_queue = "late{number}"\n' for number in range(count))
    world = small_world(config)
    client = world.client()
    for number in range(count):
        client.says(f"set q{number} 0 1 1", "x")
    world.turn(2500)
    while world.sync():
        world.turn()
    assert [world.items(f"late{number}") for number in range(count)] == [[b"x"]] * count
    assert not any(items_of(world, count))
