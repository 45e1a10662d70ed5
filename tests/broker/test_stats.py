"""The statistics say what has happened, under Kestrel's names."""

from __future__ import annotations

import itertools

from staniel.broker.commands.admin import server_stats
from staniel.broker.stats import QueueTotals, named_stats, other_stats
from staniel.protocol.memcache.requests import Dialect
from tests.support.job_world import JobWorld
from tests.support.world import World


def stats(world: World | JobWorld, dialect: Dialect = Dialect.MEMCACHED) -> dict[str, object]:
    """What the plain `stats` shows."""
    broker = world.broker
    found = dict(server_stats(next(iter(broker.sessions)), QueueTotals(broker.queues), world.now_ms))
    for queue in broker.queues:
        found |= named_stats(queue, world.broker.spool, world.now_ms, dialect)
    return {**found, **dict(itertools.chain(*other_stats(broker.queues, broker.workq if broker.serves_jobs else None)))}


def test_the_server_counts_what_its_clients_do() -> None:
    world = World()
    client, gone = world.client(), world.client()
    client.puts("abc").puts("de").says("get q", "get q/open", "get q", "get r/peek")
    gone.hangs_up()
    world.turn(5500)
    found = stats(world)
    assert (found["curr_connections"], found["total_connections"], found["uptime"]) == (1, 2, 5)
    assert (found["cmd_set"], found["total_items"], found["cmd_get"], found["cmd_peek"]) == (2, 2, 2, 1)
    assert (found["get_hits"], found["get_misses"]) == (2, 1)
    assert (found["curr_items"], found["bytes"], found["queue_creates"], found["queue_deletes"]) == (0, 0, 1, 0)


def test_a_queue_counts_its_own() -> None:
    world = World("queues.q.max_items = 2\nqueues.q.discard_old_when_full = true")
    client, waiter = world.client(), world.client().puts("x", "r").says("get r", "get r/t=1000")
    waiter.hears()
    for data in ("a", "bb", "ccc"):
        client.puts(data)
    client.says("get q/open", "get q/abort", "get q", "set q 0 -1 1", "x", "get q/open", "get q/peek", "flush q")
    world.turn(7)
    found = {
        name.removeprefix("queue_q_"): value for name, value in stats(world).items() if name.startswith("queue_q_")
    }
    assert (found["items"], found["bytes"], found["total_items"], found["discarded"]) == (0, 0, 4, 1)
    assert (found["transactions"], found["canceled_transactions"], found["open_transactions"]) == (2, 1, 1)
    assert (found["expired_items"], found["total_flushes"], found["waiters"]) == (1, 1, 0)
    assert stats(world)["queue_r_waiters"] == 1 and waiter.hears() == ""
    assert found["logsize"] == world.disk.size("s/q")


def test_rotations_and_rewrites_are_counted() -> None:
    world = World("default.max_memory_size = 100\ndefault.default_journal_size = 60")
    client = world.client()
    for _ in range(6):
        client.puts("x" * 20)
        world.sync()
    for _ in range(6):
        client.says("get q")
        world.sync()
    for _ in range(3):
        client.puts("x" * 20).says("get q")
        world.sync()
    found = stats(world)
    assert found["queue_q_journal_rotations"] >= 1 and found["queue_q_journal_rewrites"] >= 1  # type: ignore[operator]
    assert [name for name, regular in world.disk.list("s") if regular and name.startswith("q")][:1] == ["q"]


def test_stats_are_told_line_by_line() -> None:
    world = World()
    heard = world.client().puts("a").says("stats")
    world.sync()
    words = heard.hears().split()
    assert words[:3] == ["STORED", "STAT", "uptime"] and words[-1] == "END"
    assert words[words.index("queue_q_items") + 1] == "1"
    assert world.client().says("stats items").hears() == "END"


def test_a_queue_counts_what_was_put_and_how_often_a_get_found_something() -> None:
    world = World()
    client = world.client()
    client.puts("abc").puts("de")
    client.says("get q").says("get q/peek").says("get q/open").says("get q").says("get q/close").says("get q")
    counters = world.broker.queues.by_name["q"].counters
    assert (counters.total_items, counters.put_bytes) == (2, 5)
    assert (counters.get_items_hit, counters.get_items_miss) == (3, 1)


def test_an_alias_counts_what_comes_through_another() -> None:
    world = World('[aliases]\nouter = ["inner", "r"]\ninner = ["q"]')
    world.client().puts("abc", "outer").puts("de", "inner")
    found = stats(world)
    assert [found[f"queue_{name}_put_items"] for name in ("outer", "inner")] == [1, 2]
    assert [found[f"queue_{name}_put_bytes"] for name in ("outer", "inner")] == [3, 5]


def test_the_age_is_that_of_an_item_that_waits_and_kestrels_in_its_dialect() -> None:
    world = World()
    client, kestrel = world.client(), world.client(Dialect.KESTREL)
    client.puts("a")
    world.turn(500)
    client.puts("b")
    world.turn(300)
    world.sync()
    client.hears()
    for asked, expected in ((client, "800"), (kestrel, "0")):
        assert f"STAT queue_q_age {expected} " in asked.says("stats").hears()
    client.says("get q")
    world.sync()
    client.hears()
    assert "age=300" in client.says("dump_stats q").hears()
    assert "age=800" in kestrel.says("dump_stats q").hears()


def test_reads_that_time_out_dead_letters_and_items_at_rest_are_counted() -> None:
    world = World(
        "[queues.q]\nopen_transaction_timeout = 500\nretry_delay = 1000\nmax_deliveries = 2\ndead_letter_queue = 'dead'"
    )
    client = world.client()
    client.puts("a").puts("b").says("get q/open", "get q/open", "get q/abort")
    assert stats(world)["queue_q_delayed_items"] == 1
    world.turn(550)
    found = stats(world)
    assert (found["queue_q_delayed_items"], found["queue_q_timed_out_transactions"]) == (2, 1)
    assert (found["queue_q_canceled_transactions"], found["queue_q_dead_letters"]) == (2, 0)
    assert found["queue_q_age"] == 0 and found["queue_q_age_of_all"] == 550
    world.turn(1000)
    client.says("get q/open", "get q/open")
    world.turn(550)
    found = stats(world)
    assert (found["queue_q_timed_out_transactions"], found["queue_q_dead_letters"]) == (3, 2)
    assert found["queue_dead_items"] == 2


def test_leases_of_jobs_that_time_out_are_counted() -> None:
    world = JobWorld()
    client = world.worker()
    assert client.adds(1, ttr=10) == "+OK"
    assert client.leases() == "1"
    world.pass_time(50)
    assert stats(world)["jobs_timed_out"] == 1
