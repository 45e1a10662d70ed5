"""Defects of the libkestrel library, numbered as in README.md: each provoked, none of them ours."""

from __future__ import annotations

import pytest

from staniel.journal.libkestrel.position import Position, encode_reader_file
from staniel.journal.libkestrel.records import (
    DATA_BYTES_MAX,
    READER_MAGIC,
    SEGMENT_MAGIC,
    encode_put,
    encode_read_done,
    encode_read_head,
)
from staniel.queues.item import Item
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from tests.support.spool import crashes, new_disk, put_file
from tests.support.world import START_MS, World

LIB = 'default.journal_format = "libkestrel"\n'
SMALL = LIB + "default.default_journal_size = 100\n"


def spool(files: dict[str, bytes]) -> Disk:
    disk = new_disk()
    for name, content in files.items():
        put_file(disk, name, content)
    return disk


def segment(*ids: int, size: int = 2) -> bytes:
    items = [(Item(b"%d" % item_id + b"x" * (size - 2), START_MS), item_id) for item_id in ids]
    return SEGMENT_MAGIC + b"".join(encode_put(item, item_id) for item, item_id in items)


def reader(head: int, *done: int) -> bytes:
    return encode_reader_file(Position(head, done))


def asks(world: World, *lines: str) -> str:
    client = world.client().says(*lines)
    while world.sync():
        world.turn()
    return client.hears()


def waiting(world: World, queue: str = "jobs") -> list[str]:
    found = world.broker.queues.find(queue)
    assert found is not None
    return [item.data.decode() for item in found.line.items()]


def test_01_confirmed_items_do_not_come_back_after_a_restart_and_do_not_count() -> None:
    world = World(LIB, spool({"jobs.1": segment(10, 11, 12, 13), "jobs.read.": reader(10, 12)}))
    assert waiting(world) == ["11", "13"]
    assert "STAT queue_jobs_items 2 " in asks(world, "stats")


def test_02_stopping_a_queue_deletes_nothing_that_is_unread() -> None:
    world = World(SMALL)
    for number in range(12):
        asks(world, "set jobs 0 0 40", f"{number:040}")
    world.broker.shutdown(world.now_ms)
    for _ in range(3):
        world.turn(1000)
    assert waiting(World(SMALL, world.disk.crash(Crash.KEEP))) == [f"{number:040}" for number in range(12)]


def test_03_a_hole_in_the_ids_and_a_torn_older_segment_stop_no_reader() -> None:
    files = {"jobs.1": segment(10, 11)[:-1], "jobs.3": segment(14, 15), "jobs.read.": reader(9)}
    world = World(LIB, spool(files))
    assert [asks(world, "get jobs") for _ in range(4)] == [
        *("VALUE jobs 0 2 10 END", "VALUE jobs 0 2 14 END", "VALUE jobs 0 2 15 END", "END"),
    ]


@pytest.mark.parametrize("content", [b"", b"\x26", b"garbage", READER_MAGIC + b"\x02\x01"])
def test_04_a_damaged_reader_file_costs_no_item_and_no_reader(content: bytes) -> None:
    files = {"jobs.1": segment(10, 11), "jobs.read.a": content, "jobs.read.b": reader(10)}
    world = World(LIB, spool(files))
    assert (waiting(world, "jobs+a"), waiting(world, "jobs+b")) == (["10", "11"], ["11"])


def test_04_a_missing_reader_file_costs_no_item() -> None:
    assert waiting(World(LIB, spool({"jobs.1": segment(10, 11)}))) == ["10", "11"]


def test_05_a_flush_ends_although_a_read_is_open_or_an_id_is_missing() -> None:
    world = World(LIB, spool({"jobs.1": segment(10, 11, 20, 21), "jobs.read.": reader(9)}))
    world.client().says("get jobs/open")
    asks(world, "flush jobs")
    assert waiting(world) == []
    assert waiting(world.crash(Crash.DROP)) == ["10"]


def test_06_an_item_that_fits_no_segment_hurts_nothing_around_it() -> None:
    world = World(SMALL)
    asks(world, "set jobs 0 0 1", "a", "set jobs 0 0 300", "b" * 300, "set jobs 0 0 1", "c")
    for each in (world, world.crash(Crash.DROP)):
        assert waiting(each) == ["a", "b" * 300, "c"]


def test_06_an_item_of_the_formats_whole_16_mib_is_kept() -> None:
    disk = spool(
        {"jobs.1": SEGMENT_MAGIC + encode_put(Item(b"x" * DATA_BYTES_MAX, START_MS), 1), "jobs.read.": reader(0)}
    )
    world = World(LIB, disk)
    asks(world, "set jobs 0 0 1", "y")
    assert [len(data) for data in waiting(world.crash(Crash.DROP))] == [DATA_BYTES_MAX, 1]


def test_07_ids_that_no_item_has_do_not_hold_the_head_and_its_segments() -> None:
    files = {"jobs.1": segment(10, 11), "jobs.3": segment(30, 31), "jobs.read.": reader(9)}
    world = World(LIB, spool(files))
    asks(world, *["get jobs"] * 3)
    world.turn()
    assert [name for name, regular in world.disk.list("s") if regular] == ["jobs.3", "jobs.read."]


def test_08_counts_are_right_when_the_parent_gets_its_name_and_another_reader_comes() -> None:
    world = World(LIB)
    asks(world, *["set jobs 0 0 1", "x"] * 5)
    asks(world, "get jobs+a", "get jobs+b")
    text = asks(world, "stats")
    assert "STAT queue_jobs_items 5 " in text
    assert "STAT queue_jobs+a_items 0 " in text
    assert "STAT queue_jobs+b_items 0 " in text


@pytest.mark.parametrize(
    "files",
    [
        {"jobs.1": segment(1, 2, size=500), "jobs.read.": reader(0)},
        {"jobs.1": segment(1, 2), "jobs.": b"x", "jobs.read.": reader(0)},
        {"jobs.1": segment(1, 2) + b"\x86\x00\x00\x00\x80" + bytes(40), "jobs.read.": reader(0)},
        {"jobs.1": segment(1, 2) + b"\x80", "jobs.read.": reader(0)},
        {"jobs.1": segment(1, 2), "jobs.read.": READER_MAGIC + encode_read_head(0) + b"\x91\xff\xff\xff\xff"},
    ],
    ids=["segment longer than allowed", "foreign name", "negative size", "no size", "negative READ_DONE"],
)
def test_09_nothing_in_the_folder_keeps_a_queue_from_opening(files: dict[str, bytes]) -> None:
    world = World(SMALL, spool(files))
    assert [item[:1] for item in waiting(world)] == ["1", "2"]
    assert asks(world, "set jobs 0 0 1", "3") == "STORED"
    assert [item[:1] for item in waiting(world.crash(Crash.DROP))] == ["1", "2", "3"]


def test_10_temporary_files_of_other_queues_are_left_alone() -> None:
    disk = spool({"jobs.1": segment(1), "jobs.read.~~4": b"", "other.read.~~5": reader(4)})
    World(LIB, disk)
    assert disk.read("s/other.read.~~5", 0, 100) == reader(4)
    assert "jobs.read.~~4" not in dict(disk.list("s"))


def test_11_an_error_count_that_was_put_counts_towards_the_last_chance() -> None:
    config = LIB + 'queues.jobs.max_deliveries = 3\nqueues.jobs.dead_letter_queue = "dead"\n'
    files = {"jobs.1": SEGMENT_MAGIC + encode_put(Item(b"poison", START_MS), 1, 2), "jobs.read.": reader(0)}
    world = World(config, spool(files))
    asks(world, "get jobs/open", "get jobs/abort")
    assert waiting(world, "dead") == ["poison"]


def test_12_no_waiting_reader_misses_a_put() -> None:
    world = World(LIB)
    for number in range(50):
        reader_ = world.client().says("get jobs/t=1000")
        asks(world, "set jobs 0 0 4", f"{number:04}")
        assert reader_.hears() == f"VALUE jobs/t=1000 0 4 {number:04} END"


def test_13_an_item_that_expires_while_it_waits_is_confirmed_and_the_head_goes_on() -> None:
    world = World(LIB)
    asks(world, f"set jobs 0 {START_MS // 1000 + 1} 1", "x", "set jobs 0 0 1", "y")
    world.turn(5000)
    assert asks(world, "get jobs") == "VALUE jobs 0 1 y END"
    assert waiting(world.crash(Crash.DROP)) == []


def test_14_a_queue_with_open_or_returned_reads_is_not_too_old_and_empty() -> None:
    world = World(LIB + 'queues.jobs.max_queue_age = "1s"\n')
    asks(world, "set jobs 0 0 1", "x")
    holder = world.client().says("get jobs/open")
    world.turn(5000)
    world.turn(5000)
    holder.hangs_up()
    world.turn(5000)
    assert waiting(world) == ["x"]


def test_15_returned_items_keep_their_order() -> None:
    world = World(LIB)
    asks(world, "set jobs 0 0 1", "a", "set jobs 0 0 1", "b", "set jobs 0 0 1", "c")
    first, second = world.client().says("get jobs/open"), world.client().says("get jobs/open")
    second.says("get jobs/abort")
    first.says("get jobs/abort")
    assert waiting(world) == ["a", "b", "c"]


def test_16_the_size_of_the_journal_is_that_of_its_files() -> None:
    world = World(LIB, spool({"jobs.1": segment(1, 2) + bytes(1000), "jobs.read.": reader(0)}))
    assert f"STAT queue_jobs_logsize {len(segment(1, 2))} " in asks(world, "stats")


def test_17_a_crashed_segment_gives_its_padding_back() -> None:
    disk = spool({"jobs.1": segment(1, 2) + bytes(10_000), "jobs.read.": reader(0)})
    world = World(LIB, disk)
    assert disk.size("s/jobs.1") == len(segment(1, 2))
    assert world.events == []


def test_18_a_reader_that_was_deleted_does_not_come_back_and_a_position_is_never_lost() -> None:
    world = World(LIB)
    asks(world, "get jobs", "get jobs+a")
    asks(world, "set jobs 0 0 1", "x")
    asks(world, "get jobs", "delete jobs+a")
    for how in crashes(5):
        again = world.crash(how)
        assert again.broker.queues.find("jobs+a") is None
        assert waiting(again) == []


@pytest.mark.parametrize("second", [segment(1, 2, 3, 4), segment(2, 3, 4), segment(3, 4)])
def test_19_overlapping_segments_give_each_item_once(second: bytes) -> None:
    world = World(LIB, spool({"jobs.1": segment(1, 2, 3), "jobs.2": second, "jobs.read.": reader(0)}))
    assert waiting(world) == [f"{number}" for number in (1, 2, 3, 4)]


@pytest.mark.parametrize("name", ["a~b", "a~~5", "a/b"])
def test_20_a_reader_name_that_could_not_be_kept_is_refused(name: str) -> None:
    world = World(LIB)
    asks(world, f"set jobs+{name} 0 0 1", "x")
    assert not [file_name for file_name, _ in world.disk.list("s") if "~" in file_name]


def test_done_ids_in_several_records_add_up_and_a_later_head_wins() -> None:
    content = READER_MAGIC + encode_read_head(5) + encode_read_done([8]) + encode_read_head(6) + encode_read_done([9])
    world = World(LIB, spool({"jobs.1": segment(5, 6, 7, 8, 9), "jobs.read.": content}))
    assert waiting(world) == ["7"]
