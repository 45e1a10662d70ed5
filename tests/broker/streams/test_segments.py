"""Segments of queues in libkestrel's format: when the next begins, when the old go, and reading from them."""

from __future__ import annotations

from staniel.sim.disk.durable import Crash
from tests.support.streams import LIB, SMALL, all_of, asks, fill, segments, settle
from tests.support.world import START_MS, World


def test_a_segment_goes_once_every_reader_has_passed_it() -> None:
    world = World(SMALL)
    asks(world, "get q", "get q+a")
    fill(world, *(f"{number:040}" for number in range(6)))
    count = len(segments(world.disk))
    assert count >= 5
    for number in range(6):
        assert asks(world, "get q") == f"VALUE q 0 40 {number:040} END"
    assert len(segments(world.disk)) == count
    asks(world, "get q+a", "get q+a", "get q+a/open")
    world.turn()
    assert len(segments(world.disk)) == count - 2
    assert all_of(world.crash(Crash.DROP), "q+a") == [f"{number:040}" for number in range(2, 6)]


def test_a_segment_that_an_open_read_needs_stays() -> None:
    world = World(SMALL)
    fill(world, *(f"{number:040}" for number in range(5)))
    holder = world.client().says("get q/open")
    for _ in range(4):
        asks(world, "get q")
    world.turn()
    assert all_of(world.crash(Crash.DROP), "q") == [f"{0:040}"]
    holder.says("get q/close")
    settle(world)
    world.turn()
    assert len(segments(world.disk)) == 1


def test_retired_segments_go_to_the_archive() -> None:
    world = World(SMALL + 'default.archive_path = "old"\n')
    fill(world, *(f"{number:040}" for number in range(5)))
    first = segments(world.disk)[0]
    content = world.disk.read(f"s/{first}", 0, 1000)
    for _ in range(3):
        asks(world, "get q")
    world.turn()
    assert world.disk.read(f"old/archive~{first}", 0, 1000) == content
    assert all_of(world.crash(Crash.DROP), "q") == [f"{number:040}" for number in (3, 4)]


def test_an_item_that_no_segment_can_hold_gets_one_of_its_own() -> None:
    world = World(SMALL)
    fill(world, "a", "x" * 500, "b")
    assert [world.disk.size(f"s/{name}") for name in segments(world.disk)] == [4 + 26, 4 + 525, 4 + 26]
    assert all_of(world.crash(Crash.DROP), "q") == ["a", "x" * 500, "b"]


def test_a_segment_may_be_exactly_as_long_as_allowed() -> None:
    world = World(SMALL)
    fill(world, "x" * 23, "y" * 23, "z" * 23)
    assert [world.disk.size(f"s/{name}") for name in segments(world.disk)] == [100, 52]


def test_file_numbers_rise_although_the_clock_steps_back() -> None:
    world = World(SMALL)
    fill(world, "x" * 60)
    world.now_ms -= 5000
    fill(world, "y" * 60)
    assert segments(world.disk) == [f"q.{START_MS}", f"q.{START_MS + 1}"]


def test_a_slow_reader_reads_from_the_files_what_memory_no_longer_holds() -> None:
    world = World(LIB + 'default.max_memory_size = "10KB"\ndefault.default_journal_size = "20KB"\n')
    asks(world, "get q", "get q+slow")
    wanted = [f"{number:03}".ljust(1000, "x") for number in range(100)]
    fill(world, *wanted)
    slow = world.broker.queues.find("q+slow")
    assert slow is not None
    assert slow.line.memory_items < 20
    for item in wanted:
        assert asks(world, "get q+slow") == f"VALUE q+slow 0 1000 {item} END"
    assert all_of(world, "q") == wanted
