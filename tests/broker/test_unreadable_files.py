"""Files that cannot be read any more while their queue is in service, and at a start: that queue says which, all others
go on; repaired or removed, it comes back.
"""

from __future__ import annotations

import errno

import pytest

from staniel.broker import protocols
from staniel.broker.protocols import Dialect
from staniel.protocol.thrift.requests import ThriftDelete, ThriftFlush, ThriftFlushAll
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from tests.support.streams import asks, fill
from tests.support.world import Client, World

CONFIG = """
default.max_memory_size = "4KB"
default.max_journal_size = "1GB"
default.default_journal_size = 2000
queues.mail.journal_format = "libkestrel"
server.expiration_timer_frequency = "none"
"""
COUNT = 40


def item(number: int) -> str:
    return f"{number:06}".ljust(500, ".")


def long_queue(*queues: str) -> World:
    """A world in which the last items of these queues are only in files."""
    world = World(CONFIG)
    for queue in queues:
        fill(world, *(item(number) for number in range(COUNT)), queue=queue)
    fill(world, "other", queue="other")
    return world


def sealed(world: World, queue: str) -> list[str]:
    return sorted(name for name, _ in world.disk.list("s") if name.startswith(f"{queue}.1"))


def drained(world: World, queue: str) -> tuple[list[int], str]:
    """The numbers of the items that come, and what is heard then."""
    found = []
    while (heard := asks(world, f"get {queue}")).startswith(f"VALUE {queue} 0 500 "):
        found.append(int(heard.split()[4][:6]))
    return found, heard


def repair(world: World) -> None:
    world.disk._faults.clear()


@pytest.mark.parametrize("queue", ["q", "mail"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_file_that_cannot_be_read_back_stops_its_queue_alone_until_a_reload(queue: str, number: int) -> None:
    world = long_queue(queue)
    file = sealed(world, queue)[3]
    world.disk.fail("read", f"s/{file}", number, times=1 << 30)
    before, heard = drained(world, queue)
    assert 0 < len(before) < COUNT
    why = {errno.EIO: "Input/output error", errno.EACCES: "Permission denied"}[number]
    assert heard == f"SERVER_ERROR queue {queue} is not available: {file}: {why}"
    assert world.events.count("journal.unreadable") == 1
    assert asks(world, "get other") == "VALUE other 0 5 other END"
    for line in ("get {}/open", "get {}/peek", "get {}/t=1000", "monitor {} 1", "mg {} v"):
        assert asks(world, line.format(queue)) == heard, line
    assert asks(world, "reload") != "" and asks(world, f"get {queue}") == heard  # still so
    repair(world)
    asks(world, "reload")
    fill(world, item(COUNT), queue=queue)
    assert before + drained(world, queue)[0] == list(range(COUNT + 1))


def test_puts_go_on_and_who_waits_is_told() -> None:
    world = long_queue("q")
    file = sealed(world, "q")[-1]
    held = world.client().says("get q/open")
    world.sync()
    world.turn()
    assert held.hears().startswith("VALUE q/open ")
    world.disk.fail("read", f"s/{file}", errno.EIO, times=1 << 30)
    before, heard = drained(world, "q")
    fill(world, item(COUNT), queue="q")
    assert asks(world, "get q/t=5000") == heard
    held.says("get q/close")
    world.sync()
    world.turn()
    assert held.hears() == "END"
    repair(world)
    asks(world, "reload")
    assert before + drained(world, "q")[0] == list(range(1, COUNT + 1))


def test_a_restart_without_the_fault_has_everything() -> None:
    world = long_queue("q", "mail")
    for queue in ("q", "mail"):
        world.disk.fail("read", f"s/{sealed(world, queue)[3]}", errno.EIO, times=1 << 30)
    before = {queue: drained(world, queue)[0] for queue in ("q", "mail")}
    world.broker.shutdown(world.now_ms)
    after = World(CONFIG, world.disk.kill(), world.now_ms + 1)
    for queue, numbers in before.items():
        assert numbers + drained(after, queue)[0] == list(range(COUNT))


def test_a_file_that_is_removed_in_service_costs_its_items_after_a_reload_and_is_named() -> None:
    world = long_queue("q")
    file = sealed(world, "q")[2]
    world.disk.remove(f"s/{file}")
    before, heard = drained(world, "q")
    assert heard == f"SERVER_ERROR queue q is not available: {file}: No such file or directory"
    asks(world, "reload")
    found = before + drained(world, "q")[0]
    assert found == sorted(set(found)) and COUNT - 12 < len(found) < COUNT and found[-1] == COUNT - 1
    assert "journal.gone" in world.events
    # And the queue can be deleted, and made anew.
    assert asks(world, "delete q") == "DELETED"
    fill(world, item(0), queue="q")
    assert drained(world, "q")[0] == [0]


def test_a_queue_with_an_unreadable_file_can_be_flushed_and_goes_on() -> None:
    world = long_queue("q")
    world.disk.fail("read", f"s/{sealed(world, 'q')[2]}", errno.EIO, times=1 << 30)
    drained(world, "q")
    assert asks(world, "flush q") == "END"
    fill(world, item(7), queue="q")
    assert drained(world, "q") == ([7], "END")


def test_a_queue_that_cannot_be_read_is_not_rewritten_without_its_items() -> None:
    world = long_queue("q")
    queue = world.broker.queues.by_name["q"]
    world.disk.fail("read", f"s/{sealed(world, 'q')[2]}", errno.EIO, times=1 << 30)
    assert not world.broker.maintenance.rewrite(queue, world.now_ms)
    repair(world)
    asks(world, "reload")
    assert drained(world, "q")[0] == list(range(COUNT))


def test_the_text_protocol_tells_it_too() -> None:
    world = long_queue("q")
    world.disk.fail("read", f"s/{sealed(world, 'q')[2]}", errno.EIO, times=1 << 30)
    drained(world, "q")
    client = Client(world, protocols.text(Dialect.MEMCACHED))
    world.clients.append(client)
    client.sends(b"get q\n")
    world.turn()
    assert "Input/output error" in client.hears()


@pytest.mark.parametrize("queue", ["q", "mail"])
def test_a_queue_that_a_start_could_not_read_comes_back_by_a_reload(queue: str) -> None:
    world = long_queue("q", "mail")
    asks(world, "pause q gets", "get mail+late")
    disk: Disk = world.disk.crash(Crash.KEEP)
    file = sealed(world, queue)[1]
    disk.fail("read", f"s/{file}", errno.EIO, times=1 << 30)
    after = World(CONFIG, disk, world.now_ms + 1)
    why = f"SERVER_ERROR queue {queue} is not available: {file}: Input/output error"
    assert asks(after, f"get {queue}") == why == asks(after, f"set {queue} 0 0 1", "x")
    assert asks(after, "get other") == "VALUE other 0 5 other END"
    asks(after, "reload")
    assert asks(after, f"get {queue}") == why
    repair(after)
    asks(after, "reload")
    if queue == "q":
        assert asks(after, "get q") == "END"  # it is paused, as it was
        asks(after, "resume q gets")
    assert drained(after, queue)[0] == list(range(COUNT))
    again = World(CONFIG, after.disk.crash(Crash.DROP), after.now_ms + 1)
    assert asks(again, f"get {queue}") == "END"


def unread_at_a_start(*queues: str) -> tuple[World, dict[str, str]]:
    """A world whose start could not read these queues, and why that is of each."""
    world = long_queue(*queues)
    disk: Disk = world.disk.crash(Crash.KEEP)
    why = {}
    for queue in queues:
        file = sealed(world, queue)[1]
        disk.fail("read", f"s/{file}", errno.EIO, times=1 << 30)
        why[queue] = f"queue {queue} is not available: {file}: Input/output error"
    return World(CONFIG, disk, world.now_ms + 1), why


OPERATIONS = (
    "delete {}", "md {}", "flush {}", "flush_expired {}", "pause {}", "resume {} gets", "move {} other",
    "move other {}",
)  # fmt: skip


@pytest.mark.parametrize("queue", ["q", "mail"])
def test_what_changes_a_queue_that_a_start_could_not_read_is_refused_with_the_file(queue: str) -> None:
    world, why = unread_at_a_start(queue)
    kept = world.disk.list("s")
    for line in OPERATIONS:
        assert asks(world, line.format(queue)) == f"SERVER_ERROR {why[queue]}", line
    for line in (f"flush {queue}", f"delete {queue}"):
        client = Client(world, protocols.text(Dialect.MEMCACHED))
        world.clients.append(client)
        client.sends(line.encode() + b"\n")
        world.turn()
        assert client.hears() == f"-{why[queue]}", line
    for request in (ThriftFlush, ThriftDelete):
        session = world.broker.connect(protocols.thrift(Dialect.MEMCACHED))
        session.execute([request(1, "", True, queue)], world.now_ms)
        assert why[queue].encode() in b"".join(session.out)
    assert world.disk.list("s") == kept and asks(world, "get other/peek").startswith("VALUE other/peek ")
    repair(world)
    asks(world, "reload")
    assert drained(world, queue)[0] == list(range(COUNT))


def test_flush_all_empties_the_others_and_names_what_it_could_not() -> None:
    world, why = unread_at_a_start("q", "mail")
    assert (
        asks(world, "flush_all")
        == f"SERVER_ERROR {why['mail'].replace('mail is', 'mail and 1 more is')}; all others are empty"
    )
    assert asks(world, "get other") == "END"
    session = world.broker.connect(protocols.thrift(Dialect.MEMCACHED))
    session.execute([ThriftFlushAll(1, "", True)], world.now_ms)
    world.turn()
    assert b"all others are empty" in b"".join(session.out)


def test_stats_count_and_name_what_cannot_be_read_whether_at_the_start_or_in_service() -> None:
    world, why = unread_at_a_start("q")
    assert "STAT unreadable_queues 1 " in asks(world, "stats server")
    assert f"STAT queue_q_unreadable {why['q'].partition(': ')[2]} " in asks(world, "stats")
    assert f"unreadable={why['q'].partition(': ')[2]}" in asks(world, "dump_stats q")
    repair(world)
    asks(world, "reload")
    assert "STAT unreadable_queues 0 " in asks(world, "stats server")
    file = sealed(world, "q")[3]
    world.disk.fail("read", f"s/{file}", errno.EIO, times=1 << 30)
    drained(world, "q")
    heard = asks(world, "stats")
    assert "STAT unreadable_queues 1 " in heard and f"STAT queue_q_unreadable {file}: Input/output error " in heard
