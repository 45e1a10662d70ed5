"""A reply leaves when what it tells is as safe as its queue promises, and not before: one broker, many accidents."""

from __future__ import annotations

import errno
import random
import re

import pytest

from staniel.journal.group_commit import JournalFailure
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from tests.support.world import World

INTERVAL = 'default.sync_journal = "50ms"'
OS = 'default.sync_journal = "os"'


def test_a_put_is_acknowledged_only_after_its_sync() -> None:
    world = World()
    client = world.client().puts("a")
    assert client.hears() == ""
    sync = world.start_sync()
    assert sync is not None
    sync.run()
    assert client.hears() == ""
    world.finish_sync(sync)
    assert client.hears() == "STORED"


def test_power_fails_between_write_and_sync_and_the_put_was_neither_acknowledged_nor_kept() -> None:
    world = World()
    client = world.client().puts("a")
    world.sync()
    assert client.hears() == "STORED"
    client.puts("b")
    assert client.hears() == "" and world.disk.size("s/q") > 22
    assert world.crash(Crash.DROP).items() == [b"a"]
    assert world.crash(Crash.KEEP).items() == [b"a", b"b"]


def test_power_fails_after_the_sync_and_the_put_is_there() -> None:
    world = World()
    world.client().puts("a").puts("b")
    sync = world.start_sync()
    assert sync is not None
    sync.run()
    assert world.crash(Crash.DROP).items() == [b"a", b"b"]


@pytest.mark.parametrize("config", [INTERVAL, OS])
def test_under_a_laxer_promise_nobody_waits_and_a_kill_loses_nothing(config: str) -> None:
    world = World(config)
    client = world.client().puts("a").says("get q/open")
    assert client.hears() == "STORED VALUE q/open 0 1 a END"
    assert client.says("get q/close").hears() == "END"
    client.puts("b")
    assert World(config, world.disk.kill()).items() == [b"b"]


def test_an_interval_is_synced_when_it_is_due() -> None:
    world = World(INTERVAL)
    world.client().puts("a")
    assert not world.sync()
    world.turn(49)
    assert not world.sync() and world.broker.next_ms() <= world.now_ms + 1
    world.turn(1)
    assert world.sync()
    assert world.crash(Crash.DROP).items() == [b"a"]


def test_a_reply_that_shows_an_item_waits_for_what_made_it_visible() -> None:
    world = World()
    world.client().puts("a")
    reader = world.client().says("get q/peek")
    assert reader.hears() == ""
    world.sync()
    assert reader.hears() == "VALUE q/peek 0 1 a END"
    assert reader.says("get q/peek").hears() == "VALUE q/peek 0 1 a END"


def test_a_peek_in_a_multi_get_waits_too() -> None:
    world = World()
    world.client().puts("a", "p")
    reader = world.client().says("get q/peek p/peek")
    assert reader.hears() == ""
    world.sync()
    assert reader.hears() == "VALUE p/peek 0 1 a END"


def test_replies_keep_their_order_even_if_a_later_one_waits_for_nothing() -> None:
    world = World()
    client = world.client().puts("a").says("version")
    assert client.hears() == ""
    world.sync()
    assert client.hears().startswith("STORED VERSION ")


def test_a_delete_is_answered_once_the_files_are_gone_for_good() -> None:
    world = World()
    client = world.client().puts("a")
    world.sync()
    assert client.says("delete q").hears() == "STORED"
    world.sync()
    assert client.hears() == "DELETED"
    assert world.crash(Crash.DROP).items() == []


def test_every_sync_acknowledges_all_that_was_gathered_while_the_one_before_ran() -> None:
    world = World()
    clients = [world.client() for _ in range(5)]
    clients[0].puts("first")
    running = world.start_sync()
    for client in clients[1:]:
        client.puts("later")
    assert running is not None
    running.run()
    world.finish_sync(running)
    assert [client.hears() for client in clients] == ["STORED", "", "", "", ""]
    world.sync()
    assert [client.hears() for client in clients[1:]] == ["STORED"] * 4
    assert not world.sync()


def acknowledged_survive(seed: int, config: str, how: int) -> None:
    """A random load, a power cut at a random step, a random remainder: what was acknowledged is there, once."""
    choose = random.Random(seed)
    world = World(config)
    world.disk.stop_at = len(world.disk.log) + choose.randrange(150)
    client, holder = world.client(), world.client()
    put, stored, read = 0, "", ""
    try:
        while True:
            if choose.randrange(3):
                put += 1
                client.puts(f"{put:04}")
            else:
                holder.says("get q/open", "get q/close")
            if choose.randrange(2):
                world.sync()
            stored, read = stored + client.hears(), read + holder.hears()
    except PowerCut:
        stored, read = stored + client.hears(), read + holder.hears()
    closed = len(re.findall(r"VALUE q/open 0 4 \d{4} END END", read))
    found = [int(data) for data in world.crash((Crash.DROP, Crash.KEEP, choose.randrange)[how]).items()]
    first, last = (found[0], found[-1]) if found else (put + 1, put)
    assert found == list(range(first, last + 1))
    assert first > closed, "closed, acknowledged, and back"
    assert last >= stored.count("STORED"), "acknowledged and lost"


def test_what_was_acknowledged_survives_any_power_loss() -> None:
    for seed in range(120):
        acknowledged_survive(seed, "", seed % 3)


def test_and_so_it_does_while_journals_rotate_and_start_over() -> None:
    for seed in range(120):
        acknowledged_survive(seed, "default.max_memory_size = 100\ndefault.default_journal_size = 60", seed % 3)


def test_a_disk_that_breaks_acknowledges_nothing_more() -> None:
    world = World()
    client = world.client().puts("a")
    world.disk.fail("sync", "s/q", errno.EIO)
    with pytest.raises(JournalFailure):
        world.sync()
    client.puts("b")
    assert not world.sync() and client.hears() == ""
    assert world.crash(Crash.KEEP).items() in ([], [b"b"])


def test_a_broken_write_ends_service_before_anything_is_said() -> None:
    world = World()
    client = world.client()
    world.disk.fail("write", "s/q", errno.EIO)
    with pytest.raises(JournalFailure):
        client.puts("a")
    assert client.hears() == ""


def test_a_full_disk_stores_what_was_admitted_refuses_puts_serves_reads_and_recovers() -> None:
    disk = Disk(64 << 10)
    disk.make_folder("s")
    disk.sync_folder("")
    world = World(disk=disk)
    client = world.client().puts("a")
    world.sync()
    filler = disk.append("filler")
    filler.write(bytes(disk.free_bytes("")[0] - 10))
    filler.close()
    client.puts("b" * 100)
    world.sync()
    assert client.hears() == "STORED STORED" and world.events[-1] == "disk.full"
    assert client.puts("c").hears() == "SERVER_ERROR disk full, nothing can be stored until there is space"
    client.says("get q")
    world.sync()
    assert client.hears() == "VALUE q 0 1 a END"
    world.turn(1000)
    assert client.puts("c").hears().startswith("SERVER_ERROR")
    disk.remove("filler")
    world.turn(1000)
    assert world.events[-1] == "disk.space"
    client.puts("d")
    world.sync()
    assert client.hears() == "STORED"
    assert world.crash(Crash.DROP).items() == [b"b" * 100, b"d"]


def test_open_reads_come_back_in_order_after_a_crash_and_that_is_durable() -> None:
    world = World()
    client = world.client().puts("a").puts("b").puts("c").says("get q/open", "get q/open")
    world.sync()
    again = world.crash(Crash.DROP)
    assert again.items() == [b"a", b"b", b"c"] == again.crash(Crash.DROP).items()
    assert client.session.reads and again.summary.items == 3


def test_a_queue_whose_files_cannot_be_read_is_blocked_and_the_others_are_served() -> None:
    world = World()
    world.client().puts("a").puts("b", "r")
    world.sync()
    disk = world.disk.crash(Crash.DROP)
    disk.fail("read", "s/q", errno.EIO)
    again = World(disk=disk)
    assert again.events == ["journal.unreadable"] and again.items("r") == [b"b"]
    assert again.client().puts("x").hears().startswith("SERVER_ERROR queue q is not available")
    assert disk.size("s/q") == 22


def test_damage_and_foreign_files_are_reported() -> None:
    world = World()
    world.client().puts("a")
    world.sync()
    for name, data in (("q", b"\xff"), ("notes.txt", b"")):
        file = world.disk.append(f"s/{name}")
        file.write(data)
        file.sync()
        file.close()
    world.disk.sync_folder("s")
    assert world.crash(Crash.DROP).events == ["spool.foreign", "journal.damaged"]


def test_a_shutdown_answers_who_waits_and_leaves_everything_synced() -> None:
    world = World(OS)
    client, waiter = world.client().puts("a"), world.client()
    waiter.says("get r/t=100000")
    world.broker.shutdown(world.now_ms)
    world.collect()
    assert (client.hears(), waiter.hears()) == ("STORED", "END")
    assert world.crash(Crash.DROP).items() == [b"a"]


def test_a_journal_that_cannot_be_created_is_refused_and_tried_again() -> None:
    world = World()
    world.disk.fail("create", "s/q", errno.EACCES)
    client = world.client().puts("a")
    assert client.hears() == "SERVER_ERROR cannot create the journal of queue q: Permission denied"
    client.puts("b")
    world.sync()
    assert client.hears() == "STORED" and world.crash(Crash.DROP).items() == [b"b"]


def test_what_is_shown_after_a_kill_survives_the_power_loss_after_it() -> None:
    world = World()
    world.client().puts("a")
    again = World(disk=world.disk.kill())
    reader = again.client().says("get q/peek")
    again.sync()
    assert reader.hears() == "VALUE q/peek 0 1 a END"
    assert again.crash(Crash.DROP).items() == [b"a"]


def test_a_broken_disk_in_a_rewrite_is_a_failure_like_any_other() -> None:
    world = World("default.default_journal_size = 60")
    client = world.client().puts("x" * 20).says("get q").puts("x" * 20)
    world.sync()
    world.disk.fail("sync", "q~~", errno.EIO)
    with pytest.raises(JournalFailure):
        client.says("get q")


@pytest.mark.parametrize("config", ["", 'default.journal_format = "libkestrel"'])
def test_a_close_behind_the_deletion_of_its_queue_is_answered_when_the_deletion_is_durable(config: str) -> None:
    """Nothing is recorded for the close: the item is gone with the queue."""
    world = World(config)
    reader = world.client().puts("a").says("get q/open")
    world.sync()
    assert reader.hears() == "STORED VALUE q/open 0 1 a END"
    world.client().says("delete q")
    assert reader.says("get q/close").hears() == ""
    world.sync()
    assert reader.hears() == "END" and world.crash(Crash.DROP).items() == []
