"""max_memory_size_total: what all queues together keep in memory, however many are made and whatever their journals."""

from __future__ import annotations

import pytest

from staniel.queues.stream.queue import StreamQueue
from tests.support.world import Client, World

MB = 1 << 20
TOTAL = "server.max_memory_size_total = '1MB'\ndefault.sync_journal = 'os'\n"
STREAMS = "default.journal_format = 'libkestrel'\n"


def really_used(world: World) -> int:
    """What the items of all queues weigh, counted anew."""
    queues = list(world.broker.queues)
    streams = {queue.stream for queue in queues if isinstance(queue, StreamQueue)}
    windows = sum(stream.window_bytes + 128 * stream.window_items for stream in streams)
    return windows + sum(queue.line.weight_bytes() for queue in queues)


def fill(client: Client, queue: str, items: int, size: int) -> None:
    for _ in range(items):
        client.sends(b"set %b 0 0 %d\r\n%b\r\n" % (queue.encode(), size, bytes(size)))
        client.world.turn()
    client.world.sync()


@pytest.mark.parametrize("settings", [TOTAL, TOTAL + STREAMS])
def test_queues_made_while_memory_is_tight_get_their_share(settings: str) -> None:
    world = World(settings)
    client = world.client()
    fill(client, "first", 12, 100_000)
    for number in range(40):
        for _ in range(5):
            fill(client, f"q{number}", 3, 20_000)
    assert client.hears().count("STORED") == 12 + 40 * 15
    assert really_used(world) <= 2.5 * MB
    assert abs(world.broker.maintenance.memory.used_bytes - really_used(world)) < 4096
    for number in range(40):
        for _ in range(15):
            assert "VALUE" in ask(client, f"get q{number}")


def ask(client: Client, line: str) -> str:
    client.says(line)
    client.world.sync()
    return client.hears()


def test_many_queues_of_tiny_items_keep_to_the_total() -> None:
    world = World(TOTAL)
    client = world.client()
    fill(client, "first", 12, 100_000)
    for number in range(50):
        for _ in range(10):
            fill(client, f"q{number}", 50, 1)
    assert really_used(world) <= 2 * MB


def test_followers_of_a_stream_are_weighed_each() -> None:
    world = World(TOTAL + STREAMS)
    client = world.client()
    names = ["orders", *(f"orders+{number}" for number in range(10))]
    for name in names:
        ask(client, f"get {name}/open")
    for _ in range(20):
        fill(client, "orders", 2, 30_000)
    client.hears()
    for name in names:
        for _ in range(4):
            assert "VALUE" in ask(client, f"get {name}/open")
    memory = world.broker.maintenance.memory
    assert memory.used_bytes >= really_used(world) > 0
    for name in names:
        ask(client, f"get {name}/close")
    assert abs(memory.used_bytes - really_used(world)) < 4096
    for name in names:
        ask(client, f"delete {name}")
    world.turn()
    assert memory.used_bytes == 0


def test_tiny_items_that_a_slow_follower_has_not_read_are_left_to_the_files() -> None:
    world = World(STREAMS + "default.sync_journal = 'os'\ndefault.max_memory_size = '64KB'\n")
    client = world.client()
    ask(client, "get orders+slow")
    ask(client, "get orders")
    for _ in range(100):
        fill(client, "orders", 60, 1)
    assert really_used(world) < 400_000
    client.hears()
    assert "VALUE orders+slow" in ask(client, "get orders+slow")


def test_a_queue_without_a_journal_is_weighed_and_refuses_what_the_total_has_no_room_for() -> None:
    world = World(TOTAL + "queues.m.keep_journal = false\nqueues.n.keep_journal = false\n")
    client = world.client()
    fill(client, "m", 30, 100_000)
    heard = client.hears()
    assert heard.count("STORED") - heard.count("NOT_STORED") < 20 and heard.endswith("NOT_STORED")
    memory = world.broker.maintenance.memory
    assert memory.is_tight and memory.used_bytes == really_used(world) < 1.5 * MB
    fill(client, "n", 30, 100_000)
    assert really_used(world) < 2 * MB
    client.hears()
    while "VALUE" in ask(client, "get m"):
        pass
    while "VALUE" in ask(client, "get n"):
        pass
    assert memory.used_bytes == 0 and not memory.is_tight
    fill(client, "m", 3, 100_000)
    assert client.hears() == "STORED STORED STORED"


def test_a_queue_without_a_journal_that_discards_drops_its_oldest_instead() -> None:
    world = World(TOTAL + "queues.m.keep_journal = false\nqueues.m.discard_old_when_full = true\n")
    client = world.client()
    for number in range(40):
        client.puts(f"{number:02}".ljust(100_000, "."), "m")
    world.turn()
    assert client.hears().count("STORED") == 40 and really_used(world) < 1.5 * MB
    assert world.items("m")[-1].startswith(b"39")


def test_a_start_keeps_to_the_total() -> None:
    world = World("default.sync_journal = 'os'")
    client = world.client()
    for number in range(20):
        fill(client, f"q{number}", 20, 20_000)
    again = World(TOTAL, world.disk.kill(), world.now_ms)
    assert really_used(again) < 2 * MB
    assert sum(len(queue.line) for queue in again.broker.queues) == 400


@pytest.mark.parametrize("journal_format", ["kestrel", "libkestrel"])
def test_queues_that_come_and_go_under_ever_new_names_leave_nothing_behind(journal_format: str) -> None:
    world = World(f'[default]\njournal_format = "{journal_format}"\n')
    client = world.client()
    client.says("set stays 0 0 1", "x", "set stays+child 0 0 1", "x")

    def kept() -> tuple[int, ...]:
        broker = world.broker
        while world.sync():
            world.turn()
        return len(broker.queues._children), len(broker.spool._kestrel), len(broker.spool.streams.families)

    before = kept()
    for number in range(20):
        name = f"reply-{number}"
        client.says(f"set {name} 0 0 1", "x", f"set {name}+child 0 0 1", "x", f"set {name}+other 0 0 1", "x")
        for each in (
            (f"{name}+child", name, f"{name}+other") if number % 2 else (name, f"{name}+other", f"{name}+child")
        ):
            client.says(f"delete {each}")
            while world.sync() or client.session.wants_turn:
                world.turn()
    assert client.hears().count("DELETED") == 60
    assert kept() == before
