"""What the simulator has found, as the shortest stories: each was lost, repeated or a lie once."""

from __future__ import annotations

import errno

import pytest

from staniel.journal.group_commit import JournalFailure
from staniel.queues.item import REMNANT_MS, Item
from staniel.sim.disk.durable import Crash
from staniel.sim.jobs.conversation import job_id
from staniel.sim.queues.model import SWEPT
from staniel.sim.world import World as WorldWithThreads
from staniel.sim.world import content
from tests.support.job_world import JobWorld
from tests.support.spool import crashes
from tests.support.streams import LIB, SMALL, all_of, asks, fill
from tests.support.world import START_MS, World, send_copies

EXPIRING = """
server.expiration_timer_frequency = "10ms"
queues.e.expire_to_queue = "ex"
queues.e.max_age = "15ms"
"""


def expired_world() -> World:
    """An item has expired in `e`; its copy is in `ex`, and the disk does not know yet."""
    world = World(EXPIRING)
    world.client().puts("a", "e")
    world.sync()
    world.turn(30)
    assert world.items("ex") == [b"a"]
    return world


def test_a_clean_stop_during_a_transfer_leaves_the_item_in_one_queue() -> None:
    world = expired_world()
    world.broker.shutdown(world.now_ms)
    assert content(world.disk) == {"ex": [b"a"]}


def test_a_close_behind_a_wait_is_not_answered_by_a_stop_unless_it_is_done() -> None:
    world = World()
    client = world.client().puts("a")
    world.sync()
    client.says("get q/open", "get other/t=3000", "get q/close")
    world.sync()
    client.hears()
    world.broker.shutdown(world.now_ms)
    world.collect()
    assert client.hears().count("END") <= 1
    assert content(world.disk) == {"q": [b"a"]}


def test_a_queue_can_be_deleted_while_an_item_leaves_it() -> None:
    world = expired_world()
    world.client().says("delete e")
    while world.sync():
        world.turn()
    assert content(world.disk.crash(Crash.DROP)) == {"ex": [b"a"]}


def test_a_duration_counts_from_the_reload_that_brings_it() -> None:
    world = World('default.sync_journal = "os"')
    client = world.client().puts("a")
    world.config = 'default.sync_journal = "50ms"'
    client.says("reload").puts("b")
    world.turn(60)
    world.sync()
    assert content(world.disk.crash(Crash.DROP)) == {"q": [b"a", b"b"]}


def test_an_answer_that_was_promised_durable_is_so_even_if_a_reload_follows_at_once() -> None:
    world = World()
    client = world.client()
    world.config = 'default.sync_journal = "os"'
    client.sends(b"set q 0 0 1\r\na\r\nreload\r\n")
    world.turn()
    world.sync()
    assert client.hears().startswith("STORED")
    assert content(world.disk.crash(Crash.DROP)) == {"q": [b"a"]}


def test_a_move_that_ends_early_is_answered_when_the_disk_has_it() -> None:
    world = World("queues.t.max_items = 1")
    client = world.client().puts("a").puts("b")
    world.sync()
    client.hears()
    client.says("move q t")
    assert client.hears() == ""
    while world.sync():
        world.turn()
    assert client.hears() == "MOVED 1"
    assert content(world.disk.crash(Crash.DROP)) == {"q": [b"b"], "t": [b"a"]}


def test_a_deleted_queue_leaves_the_file_of_its_successor_alone() -> None:
    world = World("default.max_memory_size = 10")
    client = world.client().puts("a" * 30)
    world.sync()
    client.puts("b" * 30)
    sync = world.start_sync()
    assert sync is not None
    client.says("delete q").puts("x")
    sync.run()
    world.finish_sync(sync)
    client.puts("y")
    while world.sync():
        world.turn()
    assert content(world.disk.crash(Crash.DROP)) == {"q": [b"x", b"y"]}


def test_a_close_beside_items_that_are_not_written_yet_ends() -> None:
    world = World(SMALL)
    fill(world, *(letter * 40 for letter in "abcde"))
    asks(world, "get q", "get q", "get q")
    holder = world.client().says("get q/open")
    asks(world, "get q")
    world.client().sends(b"set q 0 0 1\r\nf\r\nget q\r\n")
    holder.sends(b"get q/close\r\n")
    assert asks(world, "set q 0 0 1", "g") == "STORED"
    for each in (world, world.crash(Crash.DROP)):
        assert all_of(each, "q") == ["g"]


def test_a_queue_made_beside_its_children_begins_at_the_end_although_its_file_is_lost() -> None:
    world = World(LIB)
    assert asks(world, "set q+a 0 0 1", "x") == "STORED"
    world.client().says("get q")
    for how in crashes(8):
        assert all_of(world.crash(how), "q+a") == ["x"]
        assert world.crash(how).items("q") == []


def test_an_item_is_as_safe_as_the_strictest_of_its_readers_wants_it() -> None:
    world = World(LIB + 'queues."q".sync_journal = "os"\nqueues."q+a".sync_journal = "always"\n')
    asks(world, "get q+a")
    client = world.client().puts("x")
    assert client.hears() == ""
    assert world.sync()
    assert client.hears() == "STORED"
    assert world.crash(Crash.DROP).items("q+a") == [b"x"]


def test_an_item_put_to_the_parent_is_safe_before_a_child_shows_it() -> None:
    world = World(LIB)
    asks(world, "get q+a")
    asks(world, "get q")
    for line in ("get q+a/peek", "get q+a/open"):
        world.client().sends(b"set q 0 0 1\r\nx\r\n")
        reader = world.client().says(line)
        assert reader.hears() == ""
        assert world.sync()
        assert reader.hears().startswith("VALUE")


def test_what_clients_had_taken_away_does_not_come_back_with_a_queue_that_is_being_deleted() -> None:
    world = World(LIB)
    asks(world, "set q 0 0 1", "x", "get q")
    world.client().says("delete q")
    for how in crashes(20):
        assert world.crash(how).items("q") == []


def test_an_item_that_waits_to_leave_a_queue_goes_with_it() -> None:
    world = World(EXPIRING + 'queues.ex.max_age = "15ms"\nqueues.ex.expire_to_queue = "ey"')
    world.client().puts("a", "e")
    world.sync()
    world.turn(30)
    world.turn(30)
    world.client().says("delete ex")
    while world.sync():
        world.turn()
    assert [world.items(name) for name in ("e", "ex", "ey")] == [[], [], []]


@pytest.mark.parametrize("policy", ["always", "interval", "os"])
@pytest.mark.parametrize("turns", range(5))
def test_a_finished_job_is_not_done_again_because_its_delete_is_lost_and_its_result_cleaned_away(
    policy: str, turns: int
) -> None:
    world = JobWorld(f'cmdlog_seg_size = 9\ncmdlog_clean_int = 200\ncmdlog_sync = "{policy}"')
    worker = world.worker()
    assert [worker.adds(1, "once"), worker.adds(2)] == ["+OK", "+OK"]
    assert [worker.leases(), worker.finishes(1), worker.adds(3)] == ["1", "+OK", "+OK"]
    world.turn(190)
    world.disk.sync_all("")
    world.syncs = False
    world.turn(10)
    for _ in range(turns):
        world.turn()
    worker.says(f"delete {job_id(1)}")
    for _ in range(10):
        for how in crashes(4):
            job = world.crash(how).job(1)
            assert job is None or job.is_processed
        world.sync()
        world.turn()


def test_a_stricter_policy_counts_for_what_a_reader_has_confirmed_before_it() -> None:
    world = World(LIB + 'default.sync_journal = "os"\n')
    asks(world, "set q 0 0 1", "x", "get q")
    world.disk.sync_folder("s")
    world.config = LIB
    asks(world, "reload", "set q 0 0 1", "y")
    assert world.crash(Crash.DROP).items("q") == [b"y"]


def test_the_end_of_a_lease_counts_although_a_crash_has_taken_the_end_of_the_one_before() -> None:
    world = JobWorld()
    worker = world.worker()
    assert worker.adds(1, ttr=30) == "+OK"
    assert worker.leases() == "1"
    world.broker.workq.log.timed_out = lambda job, now_ms: None  # type: ignore[method-assign]
    world.pass_time(60)
    assert worker.leases() == "1"
    again = world.crash(Crash.DROP)
    again.pass_time(60)
    job = again.crash(Crash.DROP).job(1)
    assert job is not None and job.state.name == "PENDING"


def test_what_is_left_of_a_lost_job_is_over_with_the_restart_whatever_the_clock_says() -> None:
    world = JobWorld()
    worker = world.worker()
    world.broker.workq.log.added = lambda job, limit_ms: None  # type: ignore[method-assign]
    assert worker.adds(1) == "+OK"
    assert worker.leases() == "1"
    again = JobWorld(disk=world.disk.crash(Crash.DROP), now_ms=world.now_ms - 5000)
    assert again.job(1) is None
    again.pass_time(4800, step_ms=100)
    assert again.worker().adds(1) == "+OK"
    job = again.crash(Crash.DROP).job(1)
    assert job is not None and (job.state.name, job.attempts) == ("NEW", 0)


def test_cleaning_keeps_the_end_of_a_job_while_an_older_segment_still_tells_of_it() -> None:
    """Else what is left there would be told of the next job of that id, if the clock has stepped back since."""
    world = JobWorld("cmdlog_seg_size = 80\ncmdlog_clean_int = 100")
    worker = world.worker()
    assert [worker.adds(1), worker.leases(), worker.adds(2)] == ["+OK", "1", "+OK"]
    assert [worker.asks(f"delete {job_id(1)}"), worker.adds(3), worker.adds(4)] == ["+OK"] * 3
    assert world.segments() == [f"{number:09}.log" for number in (1, 2, 3, 4)]  # the lease is in the second
    again = JobWorld(world.workq_toml, world.disk.kill(), world.now_ms - 500)
    worker = again.worker()
    assert [worker.adds(1), worker.asks(f"delete {job_id(3)}")] == ["+OK"] * 2
    again.pass_time(300)
    assert "cmdlog.cleaned" in again.events
    assert "000000001.log" not in again.segments()
    job = again.crash(Crash.DROP).job(1)
    assert job is not None and (job.state.name, job.attempts) == ("NEW", 0)


def test_a_full_disk_leaves_no_item_in_two_pieces() -> None:
    for short in (3, 27, 30):
        world = World(LIB)
        asks(world, "get q")
        world.disk.fail("write", "s/q.", errno.ENOSPC, short=short)
        world.client().puts("abcdefgh")
        for how in crashes(60):
            assert world.crash(how).items("q") in ([], [b"abcdefgh"])


def test_a_stricter_policy_counts_for_what_was_put_before_it_once_somebody_is_shown_it() -> None:
    world = World(LIB + 'default.sync_journal = "os"\n')
    asks(world, "set q 0 0 1", "x")
    world.config = LIB
    client = world.client().says("reload", "get q/open")
    assert "VALUE" not in client.hears()
    assert world.sync()
    assert "VALUE" in client.hears()
    assert world.crash(Crash.DROP).items("q") == [b"x"]


def test_a_child_that_was_deleted_does_not_come_back_with_what_was_put_after_it() -> None:
    world = World(LIB + 'default.sync_journal = "os"\n')
    asks(world, "get q+a", "get q+b", "delete q+a")
    asks(world, "set q+b 0 0 1", "x")
    for how in crashes(20):
        assert world.crash(how).items("q+a") == []


def test_a_segment_on_its_way_out_goes_with_its_queue() -> None:
    world = WorldWithThreads(SMALL)
    client = world.client().puts("a" * 40).puts("b" * 40)
    client.says("get q")
    while world.sync():
        world.turn()
    client.says("delete q")
    for how in crashes(20):
        assert "a" * 40 not in [data.decode() for data in world.crash(how).items("q")]


@pytest.mark.parametrize("config", ["", LIB])
def test_nobody_hears_that_a_queue_is_empty_before_its_deletion_is_safe(config: str) -> None:
    world = World(config)
    fill(world, "x")
    world.client().says("delete q")
    other = world.client().says("get q")
    if other.hears() != "END":
        assert world.sync() and other.hears() == "END"
    assert world.crash(Crash.DROP).items("q") == []


@pytest.mark.parametrize(
    ("verb", "number"), [("create", errno.EIO), ("rename", errno.EIO), ("sync_folder", errno.ENOSPC)]
)
def test_a_queue_that_cannot_be_removed_is_whole_or_gone(verb: str, number: int) -> None:
    world = WorldWithThreads("default.max_memory_size = 200\n")
    client = world.client()
    for each in "abcdefghij":
        client.puts(each * 60)
        world.sync()
    assert any("q.1" in name for name, _ in world.disk.list("s"))
    before = world.crash(Crash.DROP).items("q")
    world.disk.fail(verb, "s", number)
    if verb == "sync_folder":
        with pytest.raises(JournalFailure, match=r"^sync failed: "):
            client.says("delete q")
    else:
        assert "SERVER_ERROR queue q is not deleted: cannot " in client.says("delete q").hears()
        assert world.broker.queues.find("q") is not None
    assert before and world.crash(Crash.DROP).items("q") in (before, [])


def test_remnants_at_the_head_are_found_also_when_a_move_was_cut_off() -> None:
    world = World()
    world.client().puts("x", "from").puts("head")
    queue = world.broker.queues.find("q")
    assert queue is not None
    for item in (Item(b"", START_MS, REMNANT_MS), Item(b"", START_MS, REMNANT_MS), Item(b"live", START_MS)):
        assert queue.add(item, world.now_ms)
    send_copies(world, "move from to")
    world.client().says("get q")
    assert world.broker.operations.running
    assert content(world.disk.crash(Crash.KEEP))["q"] == [SWEPT, SWEPT, b"live"]
