"""Queues in libkestrel's format as their clients know them: one set of files, many readers, nothing twice."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from staniel.journal.libkestrel.position import Position, encode_reader_file
from staniel.journal.libkestrel.records import (
    READER_MAGIC,
    SEGMENT_MAGIC,
    encode_put,
    encode_read_done,
    encode_read_head,
)
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.item import Item
from staniel.sim.disk.disk import PowerCut
from staniel.sim.disk.durable import Crash
from tests.support.spool import crashes, new_disk, put_file
from tests.support.streams import LIB, SMALL, all_of, asks, fill, names, position_in, settle
from tests.support.world import START_MS, World

# fan-out


def test_an_item_is_on_the_disk_once_however_many_read_it() -> None:
    world = World(LIB)
    asks(world, *[f"get q+r{number}" for number in range(10)])
    fill(world, "x" * 1000)
    content = b"".join(world.disk.read(f"s/{name}", 0, 1 << 20) for name in names(world.disk))
    assert content.count(b"x" * 1000) == 1
    assert all(all_of(world, f"q+r{number}") == ["x" * 1000] for number in range(10))


def test_the_first_named_reader_leaves_the_parents_backlog_alone() -> None:
    world = World(LIB)
    fill(world, "a", "b")
    assert names(world.disk) == [f"q.{START_MS}", "q.read."]
    asks(world, "get q+audit")
    assert names(world.disk) == [f"q.{START_MS}", "q.read.audit", "q.read.q"]
    fill(world, "c")
    assert (all_of(world, "q"), all_of(world, "q+audit")) == (["a", "b", "c"], ["c"])
    again = world.crash(Crash.DROP)
    assert (all_of(again, "q"), all_of(again, "q+audit")) == (["a", "b", "c"], ["c"])


def test_a_reader_cannot_be_called_like_its_queue() -> None:
    assert "kept as its own reader" in asks(World(LIB), "set q+q 0 0 1", "x")


@pytest.mark.parametrize("name", ["b&b", "\u00e9", "q+a+b", "q+b&b"])
def test_a_name_outside_the_formats_letters_is_refused(name: str) -> None:
    world = World(LIB)
    assert "only letters, digits and : _ -" in asks(world, f"set {name} 0 0 1", "x")
    assert names(world.disk) == []


def test_a_reader_with_dots_in_its_name_is_reached_if_the_spool_has_it() -> None:
    disk = new_disk()
    put_file(disk, "jobs.7", SEGMENT_MAGIC + encode_put(Item(b"x", START_MS), 1))
    put_file(disk, "jobs.read.a.b.c", encode_reader_file(Position(0)))
    world = World(LIB, disk)
    assert asks(world, "get jobs+a.b.c") == "VALUE jobs+a.b.c 0 1 x END"
    assert "cannot hold" in asks(world, "set jobs+d.e 0 0 1", "x") or "only letters" in asks(world, "get jobs+d.e")


def test_what_is_put_to_one_reader_reaches_no_other() -> None:
    world = World(LIB)
    asks(world, "get q", "get q+a", "get q+b")
    fill(world, "all")
    fill(world, "alone", queue="q+a")
    fill(world, "more")
    for each in (world, world.crash(Crash.DROP)):
        assert all_of(each, "q+a") == ["all", "alone", "more"]
        assert all_of(each, "q") == all_of(each, "q+b") == ["all", "more"]


def test_each_reader_has_its_own_limits_and_a_full_one_misses_what_the_others_get() -> None:
    world = World(LIB + 'queues."q+small".max_items = 2\n')
    client = world.client(Dialect.KESTREL).says("get q", "get q+small", "get q+large")
    for number in range(4):
        client.says("set q 0 0 1", str(number))
    settle(world)
    for each in (world, world.crash(Crash.DROP)):
        assert all_of(each, "q+small") == ["0", "1"]
        assert all_of(each, "q") == all_of(each, "q+large") == ["0", "1", "2", "3"]


def test_a_full_reader_that_drops_its_oldest_drops_nobody_elses() -> None:
    world = World(LIB + 'queues."q+small".max_items = 2\nqueues."q+small".discard_old_when_full = true\n')
    asks(world, "get q", "get q+small")
    fill(world, "0", "1", "2", "3")
    assert (all_of(world, "q+small"), all_of(world, "q")) == (["2", "3"], ["0", "1", "2", "3"])
    assert all_of(world.crash(Crash.DROP), "q+small") == ["2", "3"]


def test_each_reader_expires_by_its_own_max_age() -> None:
    world = World(LIB + 'queues."q+brief".max_age = "1s"\n')
    asks(world, "get q", "get q+brief")
    fill(world, "old")
    world.turn(1500)
    fill(world, "new")
    assert asks(world, "get q+brief") == "VALUE q+brief 0 3 new END"
    assert asks(world, "get q") == "VALUE q 0 3 old END"


def test_fanout_only_leaves_the_parent_nothing_and_no_file() -> None:
    world = World(LIB + "queues.q.fanout_only = true\n")
    asks(world, "get q+a")
    fill(world, "x")
    assert (all_of(world, "q"), all_of(world, "q+a")) == ([], ["x"])
    assert [name for name in names(world.disk) if ".read." in name] == ["q.read.a"]
    assert all_of(world.crash(Crash.DROP), "q+a") == ["x"]


def test_a_parent_takes_again_once_fanout_only_is_taken_back() -> None:
    world = World(LIB + "queues.q.fanout_only = true\n")
    asks(world, "get q+a")
    fill(world, "x")
    world.config = LIB
    world.broker.reload(world.now_ms)
    fill(world, "y")
    for each in (world, world.crash(Crash.DROP)):
        assert (all_of(each, "q"), all_of(each, "q+a")) == (["y"], ["x", "y"])


def test_a_reader_is_deleted_by_itself_and_the_queue_with_its_last_reader() -> None:
    world = World(LIB)
    asks(world, "get q", "get q+a")
    fill(world, "x")
    assert asks(world, "delete q+a") == "DELETED"
    assert all_of(world.crash(Crash.DROP), "q") == ["x"]
    assert asks(world, "delete q") == "DELETED"
    assert names(world.disk.crash(Crash.DROP)) == []


def left_by_a_cut(text: str, stop: int) -> World | None:
    """Return a world whose power was lost at step `stop` of a deletion; None if the deletion has fewer steps."""
    world = World(text)
    fill(world, *"abcdefghijkl")
    world.disk.stop_at = len(world.disk.log) + stop
    try:
        asks(world, "delete q")
    except PowerCut:
        return world
    return None


@pytest.mark.parametrize("policy", ["always", "os", "50ms"])
def test_a_power_cut_amid_a_deletion_leaves_the_whole_queue_or_none_of_it(policy: str) -> None:
    """What comes afterwards is served: the reader's file may know of later items than the segments have."""
    text = f'{SMALL}default.sync_journal = "{policy}"\n'
    steps = 1
    while (world := left_by_a_cut(text, steps)) is not None:
        for how in crashes(4):
            again = World(text, world.disk.crash(how), world.now_ms)
            found = all_of(again, "q") if again.broker.queues.find("q") is not None else []
            assert "".join(found) in ("abcdefghijkl"[:count] for count in range(13)), (steps, how, found)
            assert policy != "always" or len(found) in (0, 12)
            fill(again, "x", "y")
            later = World(text, again.disk.kill(), again.now_ms)
            assert all_of(again, "q") == all_of(later, "q") == [*found, "x", "y"]
        steps += 1
    assert steps > 8


@pytest.mark.parametrize("is_released", [False, True])
def test_a_queue_of_several_segments_is_deleted_on_a_full_disk_with_and_without_the_ballast(is_released: bool) -> None:
    world = World(SMALL, new_disk(1 << 20))
    fill(world, *(letter * 90 for letter in "abcdef"))
    if is_released:
        world.broker.group.release_ballast()
    hog = world.disk.append("other")
    while free := world.disk.free_bytes("")[0]:
        hog.write(b"z" * free)
    assert len(names(world.disk)) > 4
    assert asks(world, "delete q") == "DELETED"
    assert names(world.disk) == []


def test_readers_stay_when_the_parent_is_deleted() -> None:
    world = World(LIB)
    asks(world, "get q", "get q+a")
    fill(world, "x")
    asks(world, "delete q")
    fill(world, "y")
    for each in (world, world.crash(Crash.DROP)):
        assert (all_of(each, "q"), all_of(each, "q+a")) == (["y"], ["x", "y"])


def test_a_waiting_reader_is_served_by_a_put_to_the_queue() -> None:
    world = World(LIB)
    waiting = world.client().says("get q+a/t=5000")
    fill(world, "x")
    assert waiting.hears() == "VALUE q+a/t=5000 0 1 x END"
    assert all_of(world, "q") == ["x"]


def test_statistics_count_for_each_reader() -> None:
    world = World(LIB)
    asks(world, "get q", "get q+a")
    fill(world, "xx", "y")
    fill(world, "z", queue="q+a")
    asks(world, "get q+a", "flush q")
    text = asks(world, "stats")
    for stat in ("q_total_items 2", "q_items 0", "q_total_flushes 1", "q+a_total_items 3", "q+a_items 2"):
        assert f"STAT queue_{stat} " in text
    assert "STAT queue_q+a_mem_items 2 " in text
    assert "STAT total_items 5 " in text


# what a crash leaves


def test_a_reader_that_is_deleted_while_statistics_are_gathered_is_counted_up_to_then() -> None:
    world = World(LIB)
    asks(world, "get q+a")
    reader = world.broker.queues.by_name["q+a"]
    fill(world, "x", "yy")
    asks(world, "delete q+a")
    reader.sync_counters()
    assert (reader.counters.total_items, reader.counters.put_bytes) == (2, 3)


def test_items_confirmed_out_of_order_are_not_delivered_again() -> None:
    world = World(LIB)
    fill(world, *"abcd")
    first, second, third = (world.client().says("get q/open") for _ in range(3))
    second.says("get q/close")
    third.says("get q/close")
    settle(world)
    assert position_in(world.disk, "") == Position(0, [2, 3])
    assert all_of(world.crash(Crash.DROP), "q") == ["a", "d"]
    first.says("get q/close")
    settle(world)
    assert position_in(world.disk, "") == Position(3)


def test_a_flush_with_an_open_read_keeps_that_item_and_no_other() -> None:
    world = World(LIB)
    fill(world, *"abc")
    world.client().says("get q/open")
    asks(world, "flush q")
    assert all_of(world.crash(Crash.DROP), "q") == ["a"]


def test_flags_live_until_the_server_stops() -> None:
    world = World(LIB + "default.max_memory_size = 20\n")
    asks(world, *(line for number in range(9) for line in (f"set q {number % 3} 0 9", f"{number:09}")))
    found = [asks(world, "get q") for _ in range(4)]
    assert found == [f"VALUE q {number % 3} 9 {number:09} END" for number in range(4)]
    assert asks(world.crash(Crash.DROP), "get q") == f"VALUE q 0 9 {4:09} END"


def test_a_reader_file_starts_over_before_it_grows_large() -> None:
    world = World(LIB + 'default.sync_journal = "os"\n')
    client = world.client()
    largest = 0
    for number in range(9000):
        client.says("set q 0 0 1", "x", "get q")
        largest = max(largest, world.disk.size("s/q.read."))
        if not number % 100:
            client.hears()
    assert 60_000 < largest < 70_000
    assert world.disk.size("s/q.read.") < largest
    settle(world)
    assert all_of(World(LIB, world.disk.kill()), "q") == []


@pytest.mark.parametrize("config", [LIB, SMALL], ids=["as it is", "segments change"])
def test_what_was_acknowledged_survives_any_power_loss_for_every_reader(config: str) -> None:
    for seed in range(40):
        choose = random.Random(seed)
        world = World(config)
        asks(world, "set q 0 0 1", "x", "get q", "get q+a")
        world.disk.stop_at = len(world.disk.log) + choose.randrange(150)
        writer, readers = world.client(), {name: world.client() for name in ("q", "q+a")}
        number, stored = 0, ""
        confirmed = Counter[str]()
        heard = dict.fromkeys(readers, "")
        try:
            while True:
                number += 1
                writer.puts(f"{number:04}")
                name = choose.choice(list(readers))
                readers[name].says(f"get {name}/open", f"get {name}/close")
                if choose.randrange(2):
                    world.sync()
                stored += writer.hears()
                for reader in readers:
                    heard[reader] += readers[reader].hears()
        except PowerCut:
            stored += writer.hears()
            for reader in readers:
                heard[reader] += readers[reader].hears()
        confirmed.update({reader: heard[reader].count(" END END") for reader in readers})
        for how in crashes(3):
            again = world.crash(how)
            for name in readers:
                found = [int(item) for item in all_of(again, name)]
                first, last = (found[0], found[-1]) if found else (number + 1, number)
                assert found == list(range(first, last + 1)), (seed, name)
                assert first > confirmed[name], (seed, name, "closed, acknowledged, and back")
                assert last >= stored.count("STORED"), (seed, name, "acknowledged and lost")


def test_the_power_may_fail_while_the_first_named_reader_comes() -> None:
    world = World(LIB)
    fill(world, "a", "b")
    begin = len(world.disk.log)
    asks(world, "get q+audit")
    steps = len(world.disk.log) - begin
    for step in range(steps):
        world = World(LIB)
        fill(world, "a", "b")
        world.disk.stop_at = len(world.disk.log) + step
        with pytest.raises(PowerCut):
            asks(world, "get q+audit")
        for how in crashes(4):
            again = world.crash(how)
            assert all_of(again, "q") == ["a", "b"]
            assert again.broker.queues.find("q+audit") is None or all_of(again, "q+audit") == []


# formats beside each other


def test_files_say_which_format_they_are_and_settings_do_not_change_that() -> None:
    world = World('default.journal_format = "kestrel"\n')
    fill(world, "a")
    again = World(LIB, world.disk.crash(Crash.DROP))
    assert "journal.format" in again.events
    fill(again, "b")
    asks(again, "get q+a")
    assert sorted(names(again.disk)) == ["q", "q+a"]
    world = World(LIB)
    fill(world, "a")
    again = World("", world.disk.crash(Crash.DROP))
    assert "journal.format" in again.events
    fill(again, "b")
    assert all_of(again, "q") == ["a", "b"]


def test_a_queue_with_files_of_both_formats_is_not_served_and_says_so() -> None:
    disk = new_disk()
    put_file(disk, "q.7", SEGMENT_MAGIC + encode_put(Item(b"x", START_MS), 1))
    put_file(disk, "q", b"")
    world = World(LIB, disk)
    assert world.events == ["journal.mixed"]
    assert "both journal formats" in asks(world, "set q 0 0 1", "x")
    assert "both journal formats" in asks(world, "set q+a 0 0 1", "x")
    assert names(disk) == ["q", "q.7"]


@pytest.mark.parametrize(("away", "is_there"), [("q", "x"), ("q.7", "")])
def test_a_reload_serves_a_queue_whose_files_are_of_one_format_again(away: str, is_there: str) -> None:
    disk = new_disk()
    put_file(disk, "q.7", SEGMENT_MAGIC + encode_put(Item(b"x", START_MS), 1))
    put_file(disk, "q", b"")
    world = World(LIB, disk)
    world.broker.recovery.retry(world.now_ms, world.broker.commit)
    assert world.events == ["journal.mixed"] * 2 and "both journal formats" in asks(world, "set q+a 0 0 1", "x")
    disk.remove(f"s/{away}")
    world.broker.recovery.retry(world.now_ms, world.broker.commit)
    assert world.broker.queues.blocked == {} and all_of(world, "q") == [is_there] * bool(is_there)
    assert asks(world, "set q 0 0 1", "y") == "STORED"
    again = World(LIB, world.disk.kill())
    assert all_of(again, "q") == [*([is_there] if is_there else []), "y"] and again.broker.queues.blocked == {}


def test_an_item_expires_into_a_queue_of_the_other_format() -> None:
    config = LIB + 'queues.q.expire_to_queue = "late"\nqueues.late.journal_format = "kestrel"\n'
    world = World(config)
    asks(world, f"set q 0 {START_MS // 1000 + 1} 1", "x")
    world.turn(3000)
    settle(world)
    world.turn(1000)
    for each in (world, world.crash(Crash.DROP)):
        assert (all_of(each, "q"), all_of(each, "late")) == ([], ["x"])


def test_an_id_beyond_the_last_item_is_not_skipped_when_it_comes() -> None:
    disk = new_disk()
    put_file(disk, "q.7", SEGMENT_MAGIC + encode_put(Item(b"a", START_MS), 1))
    put_file(disk, "q.read.", READER_MAGIC + encode_read_head(9) + encode_read_done([11]))
    world = World(LIB, disk)
    fill(world, *(str(number) for number in range(2, 13)))
    assert all_of(world.crash(Crash.DROP), "q") == [str(number) for number in range(2, 13)]


@pytest.mark.parametrize("sync", ["always", "1s"])
def test_an_item_that_goes_back_unheard_and_its_copy_are_never_both_there_after_a_power_cut(sync: str) -> None:
    world = World(f'{LIB}default.sync_journal = "{sync}"\n')
    fill(world, "x")
    world.turn(2000)
    settle(world)
    reader, broker = world.client(), world.broker
    reader.sends(b"get q/n=2\r\n")
    handed = broker.unsent.pop(reader.session)
    reader.hangs_up()
    broker.take_back(handed, world.now_ms)
    after = []
    while broker.unsettled:
        world.turn()
        if (running := world.start_sync()) is not None:
            for file in reversed(running.files):  # the kernel writes them in the order that it likes
                file.sync()
                after += [all_of(world.crash(how), "q") for how in crashes(8)]
            world.finish_sync(running)
    assert all_of(world, "q") == ["x"] and ["x", "x"] not in after and len(after) > 2
