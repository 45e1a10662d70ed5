"""A full disk ends when consumers have read: journals shrink by what is read, whatever their settings allow them."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from staniel.broker.access import NO_INODES, puts_are_refused
from staniel.broker.admin.reasons import ReasonName
from staniel.journal.disk.fs import UNKNOWN_INODES
from staniel.journal.libkestrel.family import StreamJournal
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from staniel.sim.world import START_MS
from staniel.sim.world import World as SlowWorld
from tests.broker.operations.test_undo import goes_on
from tests.support.job_world import JobWorld, job_id
from tests.support.streams import asks
from tests.support.world import World

ITEM_BYTES = 20_000


def fill(world: World, queues: list[str]) -> dict[str, int]:
    """Put items in turns until the disk is full; how many each queue has."""
    stored = dict.fromkeys(queues, 0)
    for number in range(10_000):
        queue = queues[number % len(queues)]
        data = f"{stored[queue]:05}".ljust(ITEM_BYTES, "x")
        if asks(world, f"set {queue} 0 0 {len(data)}", data) != "STORED":
            return stored
        stored[queue] += 1
    raise AssertionError("the disk is never full")


def turns(world: World, count: int) -> None:
    """Seconds that pass."""
    for _ in range(count):
        world.turn(1000)
        world.sync()
        world.turn()


@pytest.mark.parametrize("form", ["kestrel", "libkestrel"])
@pytest.mark.parametrize("memory", ["128MB", "500KB"])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_a_full_disk_whose_items_are_read_to_nine_tenths_accepts_puts_within_ten_seconds(
    count: int, memory: str, form: str
) -> None:
    disk = Disk(8 << 20)
    disk.make_folder("s")
    config = f"default.max_memory_size = {memory!r}\ndefault.journal_format = {form!r}\n"
    world = World(config, disk)
    stored = fill(world, [f"q{number}" for number in range(count)])
    for queue, many in stored.items():
        for _ in range(many * 9 // 10):
            assert asks(world, f"get {queue}").startswith("VALUE")
    turns(world, 10)
    assert asks(world, "set other 0 0 1", "x") == "STORED" and "disk.space" in world.events
    again = World(config, world.disk.kill(), world.now_ms)
    for queue, many in stored.items():
        left = [int(data[:5]) for data in again.items(queue)]
        assert left == list(range(many * 9 // 10, many))


@pytest.mark.parametrize("form", ["kestrel", "libkestrel"])
def test_what_was_read_is_given_back_before_the_disk_is_full_once_it_takes_a_quarter_of_it(form: str) -> None:
    disk = Disk(32 << 20)
    disk.make_folder("s")
    config = f"default.journal_format = {form!r}\n"
    world = World(config, disk)
    world.broker.watch.begin_rounds(world.now_ms)
    data = "x" * ITEM_BYTES
    for number in range(600):
        assert asks(world, f"set q{number % 6} 0 0 {len(data)}", data) == "STORED"
    used = disk.used_bytes
    for number in range(180):
        assert asks(world, f"get q{number % 6}").startswith("VALUE")
    turns(world, 12)
    assert disk.used_bytes >= used, "less than a quarter"
    for number in range(380):
        assert asks(world, f"get q{number % 6}").startswith("VALUE")
    turns(world, 30)
    assert "disk.full" not in world.events
    kept = world.broker.group.ballast.bytes + 40 * (ITEM_BYTES + 100)
    assert disk.used_bytes - kept < (32 << 20) // 4, "a quarter at most has been read"
    again = World(config, world.disk.kill(), world.now_ms)
    assert sum(len(again.items(f"q{number}")) for number in range(6)) == 40


LIBKESTREL = 'default.journal_format = "libkestrel"\n'


def half_read(reader: str = "") -> tuple[World, int]:
    """A disk full of items of one libkestrel queue, of which all but ten have been read; how many there were."""
    disk = Disk(8 << 20)
    disk.make_folder("s")
    world = World(LIBKESTREL, disk)
    if reader:
        asks(world, f"get q+{reader}")
    many = fill(world, ["q"])["q"]
    for _ in range(many - 10):
        assert asks(world, "get q").startswith("VALUE")
    return world, many


def segments(world: World) -> list[str]:
    return [name for name, _ in world.disk.list("s") if name.startswith("q.") and ".read." not in name]


def numbers(world: World, queue: str = "q") -> list[int]:
    return [int(data[:5]) for data in world.items(queue)]


def test_a_segment_is_cut_before_the_first_item_that_somebody_needs() -> None:
    world, many = half_read()
    turns(world, 3)
    old, fresh = segments(world)
    assert 10 * ITEM_BYTES < world.disk.size(f"s/{old}") < 10 * ITEM_BYTES + 1000
    assert world.disk.size(f"s/{fresh}") == 4
    for number in range(many, many + 5):
        data = f"{number:05}".ljust(ITEM_BYTES, "x")
        assert asks(world, f"set q 0 0 {len(data)}", data) == "STORED"
    disk = world.disk.kill()
    assert numbers(world) == list(range(many - 10, many + 5))
    assert numbers(World(LIBKESTREL, disk, world.now_ms)) == list(range(many - 10, many + 5))


def test_a_reader_that_has_read_nothing_keeps_its_items_and_the_disk_full() -> None:
    world, many = half_read("slow")
    turns(world, 5)
    assert asks(world, "set other 0 0 1", "x").startswith("SERVER_ERROR disk full")
    assert len(segments(world)) == 1 and numbers(world, "q+slow") == list(range(many))


def test_an_item_that_is_open_is_not_cut_off() -> None:
    world, many = half_read()
    client = world.client().says("get q/open")
    world.sync()
    assert "VALUE" in client.hears()
    for _ in range(9):
        assert asks(world, "get q").startswith("VALUE")
    turns(world, 3)
    assert len(segments(world)) == 2
    assert numbers(World(LIBKESTREL, world.disk.kill(), world.now_ms)) == [many - 10]


def test_the_last_item_of_an_empty_queue_stays_so_that_ids_go_on() -> None:
    world, many = half_read()
    for _ in range(10):
        assert asks(world, "get q").startswith("VALUE")
    turns(world, 3)
    assert asks(world, "set q 0 0 1", "x") == "STORED"
    disk = world.disk.kill()
    again = World(LIBKESTREL, disk, world.now_ms)
    assert again.items("q") == [b"x"]
    family = again.broker.spool.streams.families["q"]
    assert family.segments.last_id == many + 1


@pytest.mark.parametrize("verb", ["create", "write", "rename", "read"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EDQUOT])
def test_a_cut_that_is_refused_leaves_the_segment_as_it_is(verb: str, number: int) -> None:
    world, many = half_read()
    turns(world, 1)
    world.disk.fail(verb, "s/q.1" if verb == "read" else "~~", number, times=1 << 30)
    turns(world, 3)
    disk = world.disk.kill()
    assert len([name for name, _ in disk.list("s") if "~~" in name]) <= 1
    again = World(LIBKESTREL, disk, world.now_ms)
    assert numbers(again) == list(range(many - 10, many)) and not [n for n, _ in again.disk.list("s") if "~~" in n]


@pytest.mark.parametrize("how", list(Crash))
@pytest.mark.parametrize("step", range(8))
def test_a_power_cut_amid_a_cut_leaves_what_nobody_has_read(how: Crash, step: int) -> None:
    world, many = half_read()
    for number in range(step):
        world.turn(1000 if number % 3 == 0 else 0)
        if number % 3 == 1:
            world.sync()
    again = World(LIBKESTREL, world.disk.crash(how), world.now_ms)
    assert numbers(again) == list(range(many - 10, many))


def cut_amid_a_move(steps: int, how: Crash) -> tuple[int, Counter[bytes]]:
    """An item is moved to a queue of which nearly all has been read. So many steps later that is cut off, then the
    power is lost: the size of the segment, and what a start finds.
    """
    world = SlowWorld(f'{LIBKESTREL}queues.q.sync_journal = "1s"\n')
    client = world.client()
    for number in range(9):
        client.puts(f"{number}".ljust(5000, "x"), "r")
        world.sync()
    for _ in range(8):
        client.says("get r")
        world.sync()
    client.puts("moved")
    world.sync()
    client.sends(b"move q r 1\r\n")
    for step in range(steps):
        if step % 2:
            sync_without_the_patient(world)
        else:
            world.turn(1)
    for _ in range(3):
        world.broker.streams.reclaim(1 << 30, world.now_ms)
        world.turn(1)
        sync_without_the_patient(world)
        world.do_tasks()
    again = world.crash(how)
    while goes_on(again):
        pass
    found = Counter(data[:5] for name in ("q", "r") for data in again.items(name))
    return world.disk.size(f"s/r.{START_MS}"), found


def sync_without_the_patient(world: SlowWorld) -> None:
    sync = world.start_sync()
    if sync is not None:
        sync.run()
        world.finish_sync(sync)


@pytest.mark.parametrize("how", list(Crash))
@pytest.mark.parametrize("steps", range(9))
def test_a_segment_in_which_a_start_may_look_for_a_copy_is_not_cut(steps: int, how: Crash) -> None:
    size, found = cut_amid_a_move(steps, how)
    assert found == {b"8xxxx": 1, b"moved": 1}
    assert size > 40_000


@pytest.mark.pure  # a compiled class has no methods to replace
def test_a_start_knows_a_copy_by_its_id_though_its_segment_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def beside_transfers(right: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: StreamJournal, *args: Any) -> Any:
            before, self.writer.open_transfers = self.writer.open_transfers, 0
            try:
                return right(self, *args)
            finally:
                self.writer.open_transfers += before

        return call

    for name in ("reclaimable", "_cut_is_written"):
        monkeypatch.setattr(StreamJournal, name, beside_transfers(getattr(StreamJournal, name)))
    size, found = cut_amid_a_move(3, Crash.KEEP)
    assert size < 40_000 and found == {b"8xxxx": 1, b"moved": 1}


@pytest.mark.parametrize("segment", ["64MB", "1MB"])
@pytest.mark.parametrize("is_run", [False, True])
def test_a_disk_full_of_jobs_of_which_nine_tenths_are_over_accepts_jobs_and_items_within_ten_seconds(
    is_run: bool, segment: str
) -> None:
    disk = Disk(8 << 20)
    disk.make_folder("s")
    world = JobWorld(f'cmdlog_seg_size = "{segment}"\n', disk)
    worker, many = world.worker(), 0
    while worker.adds(many, "x" * ITEM_BYTES).startswith("+OK"):
        many += 1
    for number in range(many * 9 // 10):
        if is_run:
            assert worker.leases() == str(number) and worker.finishes(number).startswith("+OK")
        assert worker.asks(f"delete {job_id(number)}").startswith("+OK")
    world.pass_time(10_000)
    assert asks(world, "set other 0 0 1", "x") == "STORED"
    assert worker.adds(many, "x" * ITEM_BYTES).startswith("+OK")
    assert world.again().jobs.keys() == {job_id(number) for number in range(many * 9 // 10, many + 1)}


@pytest.mark.parametrize("form", ["kestrel", "libkestrel"])
def test_a_disk_without_inodes_is_full_and_says_so(form: str) -> None:
    config = f"default.journal_format = {form!r}\n"
    world = World(config)
    assert asks(world, "set q 0 0 1", "x") == "STORED"
    world.disk.free_inodes_count = 15
    world.turn(1000)
    assert asks(world, "set q 0 0 1", "y") == f"SERVER_ERROR {NO_INODES}"
    assert len(world.reported("disk.full")) == 1
    assert "no inodes are left" in puts_are_refused(world.broker.group)
    (reason,) = world.broker.health.check(world.now_ms).reasons
    assert reason.name is ReasonName.DISK_FULL and "no inodes" in reason.text and "df -i" in reason.mend
    again = World(config, world.disk.kill(), world.now_ms)
    assert asks(again, "set q 0 0 1", "y") == f"SERVER_ERROR {NO_INODES}" and len(again.reported("disk.full")) == 1
    again.disk.free_inodes_count = 20
    turns(again, 2)
    assert asks(again, "set q 0 0 1", "y") == f"SERVER_ERROR {NO_INODES}"
    again.disk.free_inodes_count = 40
    turns(again, 2)
    assert asks(again, "set q 0 0 1", "y") == "STORED" and "disk.space" in again.events
    assert again.items("q") == [b"x", b"y"]


def test_a_file_system_without_a_limit_of_inodes_is_not_full_of_them() -> None:
    world = World("")
    world.disk.free_inodes_count = UNKNOWN_INODES
    turns(world, 2)
    assert asks(world, "set q 0 0 1", "x") == "STORED" and "disk.full" not in world.events
