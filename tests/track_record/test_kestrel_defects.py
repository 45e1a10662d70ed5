"""Defects of Kestrel 2.4 that nothing else in the tests plays through, each as the accident that it was there.

README.md has the whole list; most rows name a test of another file.
"""

from __future__ import annotations

import errno

import pytest

from staniel.broker import protocols
from staniel.broker.session import Session
from staniel.journal.kestrel.log import Log
from staniel.journal.spool import Spool
from staniel.protocol.memcache.requests import Dialect
from staniel.protocol.thrift.requests import ThriftAbort, ThriftConfirm, ThriftGet
from staniel.queues.config import QueueConfig
from staniel.queues.journal_view import JournalView
from staniel.queues.time_outs import READS_PER_STEP
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from tests.support.records import NOW_MS, addx, with_xid
from tests.support.spool import crashes, new_disk, put_file
from tests.support.world import START_MS, World

SMALL_FILES = "default.max_memory_size = 60\ndefault.default_journal_size = 50\n"
PACKING = f'{SMALL_FILES}default.max_journal_size = 150\ndefault.min_journal_compact_delay = "none"\n'
RESERVE = b"\3"


def world_on(files: dict[str, bytes], config: str = "") -> World:
    """A server started on a spool that holds these files."""
    disk = new_disk()
    for name, data in files.items():
        put_file(disk, name, data)
    return World(config, disk)


def settle(world: World) -> None:
    """Sync until nothing is due: what was asked for is done."""
    while world.sync():
        world.turn()


def log_of(world: World) -> Log:
    """The journal of `q`."""
    queue = world.broker.queues.find("q")
    assert queue is not None and isinstance(queue.journal, Log)
    return queue.journal


def pack(world: World) -> None:
    """Replace the sealed files of `q`, of which there is one at least, by their summary."""
    queue, log = world.broker.queues.find("q"), log_of(world)
    assert queue is not None
    if not log.archives:
        log.rotate(world.now_ms)
    log.rewrite(*JournalView(queue).snapshot(), world.now_ms)
    world.now_ms += 1


def thrift_session(world: World) -> Session:
    return world.broker.connect(protocols.thrift(Dialect.KESTREL))


def lease(session: Session, world: World, count: int = 1, auto_abort_ms: int = 500) -> None:
    session.execute([ThriftGet(1, "", False, "q", count, 0, auto_abort_ms)], world.now_ms)


# 1: the reserve without a number


def test_two_reserves_without_a_number_are_two_open_reads_after_a_restart() -> None:
    journal = addx(b"a") + addx(b"b") + addx(b"c") + RESERVE + RESERVE
    assert world_on({"q": journal}).items() == [b"a", b"b", b"c"]
    assert world_on({"q": journal + with_xid(6, 1)}).items() == [b"b", b"c"]
    assert world_on({"q": journal + with_xid(5, 1) + with_xid(6, 2)}).items() == [b"a", b"c"]


# 2, 3, 5, 7, 8: summaries of sealed files


def test_reads_opened_and_confirmed_around_a_pack_keep_their_items() -> None:
    world = World()
    client = world.client()
    for data in "abcdef":
        client.puts(data)
    client.says("get q/open", "get q/open", "get q/open", "get q/close")
    settle(world)
    pack(world)
    client.says("get q/open", "get q/close")
    settle(world)
    pack(world)
    for how in crashes(20):
        assert world.crash(how).items() == [b"c", b"d", b"e", b"f"]


def test_a_read_given_back_and_opened_again_before_a_pack_keeps_its_item() -> None:
    world = World()
    client = world.client()
    for data in "abc":
        client.puts(data)
    client.says("get q/open")
    settle(world)
    log_of(world).rotate(world.now_ms)
    client.says("get q/abort", "get q/open", "get q/open")
    settle(world)
    pack(world)
    client.says("get q/close")
    settle(world)
    for how in crashes(20):
        assert world.crash(how).items() == [b"b", b"c"]


def test_a_pack_gets_its_name_only_once_it_is_complete() -> None:
    world = World()
    world.client().puts("a").puts("b")
    settle(world)
    before = len(world.disk.log)
    pack(world)
    steps = world.disk.log[before:]
    named = next(at for at, op in enumerate(steps) if op.verb == "rename" and op.new.endswith(".pack"))
    assert not any(op.verb == "create" and op.path.endswith(".pack") for op in steps)
    assert any(op.verb == "sync" and op.path == steps[named].path for op in steps[:named])
    assert not any(op.verb == "remove" for op in steps[:named])


def test_filling_and_draining_across_packs_leaves_what_was_left() -> None:
    world = World(PACKING)
    client, number, left = world.client(), 0, []
    for _ in range(40):
        for _ in range(8):
            number += 1
            left.append(b"%04d" % number)
            client.puts(f"{number:04}")
        for _ in range(7):
            left.pop(0)
            client.says("get q")
        world.turn(10)
        settle(world)
    assert log_of(world).rotations > 10 and log_of(world).rewrites > 10
    assert world.crash(Crash.DROP).items() == left == world.crash(Crash.KEEP).items()


def test_an_archive_numbered_in_the_future_stays_in_order_and_is_covered_by_the_next_pack() -> None:
    future = START_MS * 5
    world = world_on({f"q.{future}": addx(b"1"), "q": addx(b"2")})
    world.client().puts("3")
    settle(world)
    log_of(world).rotate(world.now_ms)
    assert log_of(world).newest_number == future + 1
    assert world.crash(Crash.DROP).items() == [b"1", b"2", b"3"]
    world.client().says("get q")
    settle(world)
    pack(world)
    assert [name for name, _ in world.disk.list("s") if name.startswith("q.")] == [f"q.{future + 2}"]
    assert world.crash(Crash.DROP).items() == [b"2", b"3"]


def test_a_queue_whose_rewrite_found_no_room_can_be_deleted_and_the_server_stopped() -> None:
    world = World(PACKING)
    client = world.client()
    world.disk.fail("write", "q~~", errno.ENOSPC, times=1000)
    for _ in range(12):
        client.puts("x" * 20).says("get q")
        settle(world)
    assert "journal.rewrite_failed" in world.events
    client.hears()
    world.disk.kill()
    world.disk.fail("write", "q~~", errno.ENOSPC)  # there is room only once the reserve has gone
    client.says("delete q")
    settle(world)
    assert client.hears() == "DELETED"
    world.broker.shutdown(world.now_ms)


# 28: what a start knows of its files


def test_sealed_files_count_towards_the_limit_straight_after_a_restart() -> None:
    world = world_on({"q.5": addx(bytes(100)), "q.6": addx(bytes(200)), "q": addx(b"1")})
    assert log_of(world).archived_bytes == 121 + 221
    world = world_on({"q.5": addx(bytes(200)) + b"\1", "q": addx(b"1")}, PACKING)
    world.client().puts("2").puts("3")
    settle(world)
    assert log_of(world).rewrites == 1


class CountingDisk(Disk):
    """Counts how often each folder is listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listings: list[str] = []

    def list(self, folder: str) -> list[tuple[str, bool]]:
        self.listings.append(folder)
        return super().list(folder)


def test_a_start_lists_the_spool_once_however_many_queues_it_holds() -> None:
    listings = []
    for queues in (1, 50):
        disk = CountingDisk()
        disk.make_folder("s")
        for number in range(queues):
            put_file(disk, f"q{number}", addx(b"1"))
        assert World(disk=disk).summary.queues == queues
        assert disk.listings.count("s") == 1
        listings.append(disk.listings)
    assert listings[0] == listings[1]  # the others are the server's own folders


def test_a_size_of_two_gigabytes_or_below_zero_costs_only_what_follows_it() -> None:
    for size in (2**31 - 1, -1, -(2**31), 15):
        lie = b"\2" + size.to_bytes(4, "little", signed=True) + bytes(16)
        spool = Spool(disk := new_disk(), "s")
        put_file(disk, "q", addx(b"1") + lie)
        recovered, _ = spool.recover("q", spool.listing().kestrel["q"], QueueConfig(), NOW_MS)
        assert [item.data for item in recovered.replay.line.items()] == [b"1"]
        assert [damage.at for damage in recovered.damages] == [22]


# 11, 13, 18, 20, 21, 24, 25: what clients met


def test_an_old_queue_whose_items_are_all_open_is_kept() -> None:
    world = World('default.max_queue_age = "1s"')
    client = world.client().puts("a").says("get q/open")
    settle(world)
    world.turn(5000)
    assert world.broker.queues.find("q") is not None
    client.says("get q/abort")
    settle(world)
    assert world.items() == [b"a"]
    client.says("get q")
    settle(world)
    world.turn(5000)
    assert world.broker.queues.find("q") is None


def test_a_put_that_one_fan_out_child_refuses_is_stored_nowhere() -> None:
    world = World('[queues."q+small"]\nmax_items = 1')
    client = world.client().says("get q+small", "get q+large").puts("a").puts("b")
    settle(world)
    assert client.hears() == "END END STORED NOT_STORED"
    assert [world.items(name) for name in ("q", "q+small", "q+large")] == [[b"a"]] * 3


def test_a_put_that_one_destination_of_an_alias_refuses_is_stored_nowhere() -> None:
    world = World('[queues.small]\nmax_items = 1\n[aliases]\nall = ["large", "small"]')
    client = world.client().puts("a", "all").puts("b", "all")
    settle(world)
    assert client.hears() == "STORED NOT_STORED"
    assert [world.items(name) for name in ("small", "large")] == [[b"a"]] * 2


def test_open_reads_time_out_together_and_without_anybody_asking() -> None:
    world = World('default.open_transaction_timeout = "1s"')
    client = world.client().puts("a").puts("b").says("get q/open", "get q/open")
    settle(world)
    waiter = world.client().says("get q/t=60000")
    world.turn(1020)
    settle(world)
    assert waiter.hears() == "VALUE q/t=60000 0 1 a END"
    assert world.items() == [b"b"]
    assert client.hears().count("VALUE") == 2


def test_whoever_closes_a_read_that_has_timed_out_does_not_remove_it() -> None:
    world = World('default.open_transaction_timeout = "1s"')
    client = world.client().puts("a").says("get q/open")
    settle(world)
    world.turn(1020)
    client.says("get q/close")
    settle(world)
    assert world.items() == [b"a"] == world.crash(Crash.DROP).items()


def test_a_request_behind_a_monitor_is_answered_when_the_monitor_ends() -> None:
    world = World()
    client = world.client().puts("a")
    client.says("monitor q 1", "version")
    settle(world)
    assert "VERSION" not in client.hears()
    world.turn(1020)
    settle(world)
    assert client.hears().startswith("END VERSION")


def test_a_client_that_hangs_up_in_a_monitor_gives_everything_back_at_once() -> None:
    world = World()
    client = world.client().puts("a").puts("b").says("monitor q 1000")
    settle(world)
    assert world.items() == []
    client.hangs_up()
    settle(world)
    assert world.items() == [b"a", b"b"]


def test_two_queues_that_expire_into_each_other_come_to_an_end() -> None:
    config = '[default]\nmax_age = "1s"\n[queues.q]\nexpire_to_queue = "r"\n[queues.r]\nexpire_to_queue = "q"\n'
    world = World(config)
    world.client().puts("a").puts("b", "r")
    settle(world)
    for _ in range(5):
        world.turn(1500)
        settle(world)
    assert sorted(world.items("q") + world.items("r")) == [b"a", b"b"]


def test_confirming_less_than_one_or_more_than_are_open_closes_nothing() -> None:
    world = World()
    client = world.client().puts("a").puts("b").says("get q/open")
    settle(world)
    client.hears()
    client.says("confirm q -1", "confirm q 0", "confirm q 2")
    settle(world)
    assert "END" not in client.hears()
    client.hangs_up()
    settle(world)
    assert world.items() == [b"a", b"b"]


def test_a_confirm_from_another_connection_frees_the_limit_of_the_one_that_opened() -> None:
    world = World("server.max_open_transactions = 1")
    world.client().puts("a").puts("b")
    opener, other = thrift_session(world), thrift_session(world)
    lease(opener, world)
    lease(opener, world)
    assert world.items() == [b"b"], "one may be open at a time"
    other.execute([ThriftConfirm(2, "", False, "q", (1,))], world.now_ms)
    lease(opener, world)
    assert world.items() == []


def test_what_was_leased_to_a_client_that_vanished_comes_back_in_time() -> None:
    world = World()
    world.client().puts("a")
    settle(world)
    session = thrift_session(world)
    lease(session, world, auto_abort_ms=500)
    session.close(world.now_ms)
    settle(world)
    assert world.items() == []
    world.turn(520)
    settle(world)
    assert world.items() == [b"a"] == world.crash(Crash.DROP).items()


def leased(*items: str, auto_abort_ms: int = 500) -> tuple[World, Session]:
    """All items of a queue in the hands of one thrift client."""
    world = World("default.keep_journal = false")
    for item in items:
        world.client().puts(item)
    session = thrift_session(world)
    lease(session, world, len(items), auto_abort_ms)
    world.turn()
    return world, session


def test_what_was_leased_together_comes_back_in_its_order() -> None:
    world, session = leased("a", "b", "c")
    session.close(world.now_ms)
    world.turn(520)
    world.turn()
    assert world.items() == [b"a", b"b", b"c"]


def test_leases_of_several_gets_that_are_over_together_come_back_in_the_order_in_which_they_were_opened() -> None:
    world, session = leased("a", "b", auto_abort_ms=500)
    world.client().puts("c").puts("d")
    world.now_ms += 20
    lease(session, world, 2, 480)
    world.turn(520)
    world.turn()
    assert world.items() == [b"a", b"b", b"c", b"d"]


def test_many_leases_that_are_over_together_come_back_in_their_order() -> None:
    count = 2 * READS_PER_STEP + 7
    world = World(f"default.keep_journal = false\nserver.max_open_transactions = {count}")
    for number in range(count):
        world.client().puts(f"{number:04}")
    session = thrift_session(world)
    lease(session, world, count, 500)
    for _ in range(100):
        world.turn()
    assert world.items() == []
    world.turn(520)
    for _ in range(100):
        world.turn()
    assert world.items() == [b"%04d" % number for number in range(count)]


@pytest.mark.parametrize("how", ["their time is over", "they are given back"])
def test_a_waiter_gets_the_first_of_leases_that_end_together(how: str) -> None:
    world, session = leased("a", "b", "c")
    waiter = world.client().says("get q/t=5000")
    if how == "they are given back":
        session.execute([ThriftAbort(2, "", False, "q", (1, 2, 3))], world.now_ms)
    world.turn(520)
    world.turn()
    assert waiter.hears() == "VALUE q/t=5000 0 1 a END"
    assert world.items() == [b"b", b"c"]


def test_a_lease_of_less_than_no_time_is_a_lease_and_back_at_once() -> None:
    world = World()
    world.client().puts("a")
    settle(world)
    session = thrift_session(world)
    lease(session, world, auto_abort_ms=-1)
    settle(world)
    world.turn(20)
    settle(world)
    assert world.items() == [b"a"] == world.crash(Crash.DROP).items()


def test_a_queue_in_memory_alone_does_not_keep_the_others_from_closing() -> None:
    world = World('[default]\nsync_journal = "os"\n[queues.m]\nkeep_journal = false')
    client = world.client()
    for name in ("a", "m", "z"):
        client.puts(name, name)
    world.broker.shutdown(world.now_ms)
    left = world.crash(Crash.DROP)
    assert [left.items(name) for name in ("a", "m", "z")] == [[b"a"], [], [b"z"]]
