"""A queue longer than its memory behaves like any other: nobody but the statistics can tell."""

from __future__ import annotations

import random

import pytest

from staniel.journal.kestrel import recovery
from staniel.journal.kestrel.log import Log
from staniel.queues.queue import Queue
from staniel.queues.transfer_recovery import set_aside_found
from staniel.sim.disk.durable import Crash
from tests.support.world import World

SMALL = "default.max_memory_size = 200\ndefault.default_journal_size = 300\ndefault.max_journal_size = 2000\n"
LIMITS = "queues.narrow.max_items = 9\nqueues.old.discard_old_when_full = true\nqueues.old.max_items = 12\n"
REST = "default.min_journal_compact_delay = 1\nqueues.e.expire_to_queue = 'late'\nqueues.e.max_age = 40\n"


def queue_of(world: World, name: str = "q") -> Queue:
    queue = world.broker.queues.find(name)
    assert queue is not None
    return queue


def log_of(world: World, name: str = "q") -> Log:
    log = queue_of(world, name).journal
    assert isinstance(log, Log)
    return log


def filled(config: str, count: int, size: int = 20) -> World:
    """Queue q with items 0000, 0001, … of so many bytes."""
    world = World(config)
    client = world.client()
    for number in range(count):
        client.puts(f"{number:04}".ljust(size, "."))
        world.sync()
    client.hears()
    return world


def got(world: World, count: int, in_one_go: bool = False) -> list[int]:
    """The numbers of the next items."""
    client = world.client()
    asked = ["get q"] * count
    for lines in [asked] if in_one_go else [[line] for line in asked]:
        client.says(*lines)
        while client.session.wants_turn:
            world.turn()
        world.sync()
    return [int(word[:4]) for word in client.hears().split() if word[:4].isdigit() and len(word) > 4]


def test_a_start_makes_few_items_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "START_MEMORY_BYTES", 200)
    world = filled("", 3000)
    client = world.client()
    client.says("set q 0 1000 4\r\nlast")
    world.sync()
    assert got(world, 25) == list(range(25))
    world = world.crash(Crash.DROP)
    line = queue_of(world).line
    assert (len(line), line.bytes, line.expiring) == (2976, 2975 * 20 + 4, 1)
    assert line.memory_bytes <= 200
    assert line.full_bytes == queue_of(world).config.max_memory_bytes
    world.turn()
    assert not line.on_disk
    queue_of(world).check()
    assert got(world, 3000) == list(range(25, 3000))


@pytest.mark.parametrize("in_one_go", [True, False])
def test_only_the_head_is_in_memory_and_everything_comes_out_in_order(in_one_go: bool) -> None:
    world = filled(SMALL, 100)
    line = queue_of(world).line
    assert (len(line), line.bytes) == (100, 2000)
    assert line.memory_items == 10 and line.memory_bytes == 200
    assert got(world, 60, in_one_go) == list(range(60))
    assert line.memory_bytes <= 220 and len(line) == 40 and line.bytes == 800
    assert got(world, 50, in_one_go) == list(range(60, 100))
    assert len(line) == line.bytes == line.on_disk == line.on_disk_bytes == 0
    queue_of(world).check()


def test_a_restart_reads_no_more_into_memory_than_the_queue_may_keep() -> None:
    world = filled(SMALL, 100)
    assert got(world, 25) == list(range(25))
    world = world.crash(Crash.DROP)
    line = queue_of(world).line
    assert (len(line), line.bytes) == (75, 1500) and line.memory_bytes <= 200
    world.turn()
    assert 200 <= line.memory_bytes <= 220
    assert got(world, 80) == list(range(25, 100))


def test_small_items_are_bounded_by_what_they_really_cost() -> None:
    world = World("default.max_memory_size = '1MB'")
    client = world.client()
    for _ in range(200):
        client.says(*["set q 0 0 1", "x"] * 100)
        while client.session.wants_turn:
            world.turn()
    line = queue_of(world).line
    assert line.bytes == 20_000 and line.on_disk > 0
    assert line.weight_bytes() <= 1.5 * (1 << 20)


def test_all_queues_together_keep_to_the_total_and_go_on() -> None:
    world = World("server.max_memory_size_total = '1MB'")
    client = world.client()
    for number in range(60):
        client.puts("x" * 30_000, f"q{number % 5}")
    memory = world.broker.maintenance.memory
    assert memory.is_tight and memory.used_bytes < 1.5 * (1 << 20)
    assert sum(queue.line.bytes for queue in world.broker.queues) == 60 * 30_000
    world.sync()
    client.hears()
    for number in range(60):
        client.says(f"get q{number % 5}")
        world.sync()
    assert client.hears().count("VALUE") == 60 and not memory.is_tight and memory.used_bytes == 0


def script(choose: random.Random, steps: int) -> list[tuple[int, str]]:
    """(which client, what it says)."""
    names = ["q", "q", "q", "narrow", "old", "e", "q+audit"]
    lines = []
    for number in range(steps):
        name = choose.choice(names)
        data = f"{number:04}".ljust(choose.choice([4, 30, 90]), ".")
        verbs = [f"set {name} {choose.randrange(3)} {choose.choice([0, 0, 9])} {len(data)}\r\n{data}"] * 5
        verbs += [f"get {name}", f"get {name}", f"get {name}/peek", f"get {name}/open", f"get {name}/close"]
        verbs += [f"get {name}/abort", f"get {name}/close/open"]
        if choose.randrange(30) == 0:
            verbs = [f"flush {name}", "flush_all_expired", f"delete {name}", f"monitor {name} 1 5"]
        lines.append((choose.randrange(3), choose.choice(verbs)))
    return lines


def transcript(config: str, seed: int) -> list[str]:
    """What three clients hear of one random script, the server being killed now and then."""
    choose = random.Random(seed)
    lines, moments = script(choose, 160), random.Random(seed + 1)
    world, heard = World(config), []
    clients = [world.client() for _ in range(3)]
    for which, said in lines:
        clients[which].says(*said.split("\r\n"))
        if moments.randrange(3):
            world.sync()
        world.turn(moments.randrange(20))
        if moments.randrange(40) == 0:
            world.sync()
            heard += [client.hears() for client in clients]
            world = World(config, world.disk.kill(), world.now_ms)
            clients = [world.client() for _ in range(3)]
    world.sync()
    world.turn(2000)
    return (
        heard
        + [client.hears() for client in clients]
        + [f"{queue.name} {len(queue.line)}" for queue in world.broker.queues]
    )


@pytest.mark.parametrize("seed", range(40))
def test_clients_hear_the_same_however_little_memory_there_is(seed: int) -> None:
    assert transcript(SMALL + LIMITS + REST, seed) == transcript(LIMITS + REST, seed)


def test_an_aborted_read_comes_first_although_the_memory_is_full() -> None:
    world = filled(SMALL, 40)
    holder = world.client().says("get q/open", "get q/open")
    world.sync()
    holder.hangs_up()
    assert got(world, 45) == list(range(40))


def test_a_long_queue_is_flushed_at_once_and_for_good() -> None:
    world = filled(SMALL, 80)
    holder = world.client().says("get q/open")
    world.client().says("flush q").puts("new".ljust(20, "."))
    world.sync()
    assert len(queue_of(world).line) == 1
    holder.says("get q/abort")
    world.sync()
    world = world.crash(Crash.DROP)
    assert world.items() == [b"0000".ljust(20, b"."), b"new".ljust(20, b".")]


def test_what_is_put_behind_a_torn_end_that_was_cut_off_is_read_back() -> None:
    world = filled(SMALL, 20)
    file = world.disk.append("s/q")
    file.write(b"\x02\xff\x01\x00\x00" + bytes(30))
    file.close()
    world = World(world.config, world.disk.kill(), world.now_ms)
    assert "journal.torn" in world.events
    client = world.client()
    for number in range(20, 60):
        client.puts(f"{number:04}".ljust(20, "."))
        world.sync()
    assert got(world, 61) == list(range(60))


def test_damage_met_while_reading_back_costs_what_it_hits_and_no_get() -> None:
    world = filled(SMALL, 60)
    sealed = log_of(world).segments.sealed
    victim = sealed[len(sealed) // 2]
    hit = range(victim.first, sealed[sealed.index(victim) + 1].first)
    assert hit.start > queue_of(world).line.memory_items
    inode = world.disk._inode(f"s/{victim.name}")
    inode.data[0] = 0xFF
    assert got(world, 60) == [number for number in range(60) if number not in hit]
    assert world.events.count("journal.unreadable_items") == 1
    assert len(queue_of(world).line) == 0
    client = world.client().puts("after")
    world.sync()
    assert client.hears() == "STORED"


@pytest.mark.parametrize("which", [0, 3, 11, 30, 49])
def test_an_item_taken_out_of_the_middle_of_a_long_line_leaves_all_others_once(which: int) -> None:
    world = World(SMALL)
    client = world.client()
    names = [f"{number:04}".ljust(60, ".") for number in range(50)]
    for name in names:
        client.puts(name)
        world.sync()
    line = queue_of(world).line
    assert line.on_disk
    queue = queue_of(world)
    taken = set_aside_found(queue, 0, lambda item, item_id: item.data == names[which].encode())
    assert taken is not None
    queue.release(taken)
    left = [name.encode() for name in names if name != names[which]]
    assert [item.data for item in line.items()] == left and len(line) == 49
    assert line.bytes == 49 * 60
    world.turn()
    world.sync()
    assert [item.data for item in queue_of(world.crash(Crash.DROP)).line.items()] == left


@pytest.mark.parametrize("gone", [1, 2, 40, 97])
def test_ids_go_on_after_a_start_that_has_dropped_items_unread(gone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them were added within one millisecond, where only counting tells their ids."""
    monkeypatch.setattr(recovery, "START_MEMORY_BYTES", 1)
    world = filled(SMALL, 100)
    got(world, gone)
    client = world.client()
    client.says("get q/open", "get q/open")
    ids = [taken.id for taken in queue_of(world).open_reads.values()]
    world.sync()
    again = queue_of(world.crash(Crash.DROP))
    found = [again.line.pop().id for _ in range(2)]
    assert found == ids
