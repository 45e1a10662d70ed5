"""Every figure of a queue under its name in each interface, of a fixed state in which no two figures are equal.

    python -m tests.broker.figures_state > tests/broker/figures.txt

writes the expected text anew, after a figure was added: look at the difference before you commit it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec

from staniel.broker.protocols import http
from staniel.broker.stats import named_stats
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.queue import Queue
from staniel.server.cli.top.frame import help_frame, whole
from staniel.server.cli.top.model import TopEvent, TopModel
from staniel.sim.world import Client
from tests.support.world import World

CONFIG = """
default.max_memory_size = "4KB"
queues.later.retry_delay = "1h"
queues.later.keep_journal = false
queues.held.journal_format = "libkestrel"
queues.held.default_journal_size = "64KB"
queues.busy.max_items = 500
queues.busy.dead_letter_queue = "dead"
queues.busy.sync_journal = "20ms"
"""
COUNTERS = (
    *("total_items", "put_bytes", "get_items_hit", "get_items_miss", "expired_items", "discarded", "transactions"),
    *("canceled_transactions", "total_flushes", "timed_out_transactions", "dead_letters"),
)


def made() -> World:
    """Return a server with queues that are busy, empty with waiters, delayed, held by an open read, and unreadable."""
    world = World(CONFIG)
    client = world.client()
    for number in range(41):
        client.puts("x" * (300 + number), "busy")
    world.turn(7_000)
    world.sync()
    client.puts("w" * 50, "busy")
    client.puts("w", "empty")
    client.says("get empty")
    reader = world.client()
    for _ in range(3):
        reader.says("get busy/open")
        reader.says("get busy/open")
        world.turn(100)
    for _ in range(2):
        world.client().sends(b"get empty/t=3600000\r\n")
    client.puts("y", "later")
    client.says("get later/open")
    client.says("get later/abort")
    for _ in range(9):
        client.puts("z" * (24 << 10), "held")
    reader.says("get held/open")
    for _ in range(6):
        client.says("get held")
    world.turn(5_000)
    client.puts("x", "broken")
    client.says("pause broken")
    client.says("get busy+child")
    for at, name in enumerate(COUNTERS):
        setattr(queue(world, "busy").counters, name, 1_000 + 37 * at)
    queue(world, "broken").line.read_error = OSError(5, "Input/output error")
    world.turn(1)
    return world


def queue(world: World, name: str) -> Queue:
    return world.broker.queues.by_name[name]


def asks(world: World, path: str) -> str:
    """Return the body of a GET."""
    client = Client(world, http())
    world.clients.append(client)
    client.sends(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    while client.session.wants_turn:
        world.turn()
    world.turn()
    world.sync()
    head, _, body = client._heard.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    return (_joined(body) if b"chunked" in head else body).decode()


def _joined(chunks: bytes) -> bytes:
    found = b""
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        found += rest[: int(size, 16)]
        chunks = rest[int(size, 16) + 2 :]
    return found


def events(world: World) -> list[dict[str, object]]:
    """Return the events of a page that has just been opened."""
    client = Client(world, http())
    world.clients.append(client)
    client.sends(b"GET /api/events HTTP/1.1\r\nHost: h\r\n\r\n")
    for _ in range(30):
        world.turn(100)
        world.sync()
    return [json.loads(line) for line in re.findall(r"data: (\{.*\})\n", client.hears())]


def top_model(told: list[dict[str, object]]) -> TopModel:
    model = TopModel()
    for event in told:
        model.learn(msgspec.convert(event, TopEvent), 0)
    return model


def lines() -> Iterator[str]:
    world = made()
    for dialect in Dialect:
        yield f"[stats, {dialect.name}]"
        for each in list(world.broker.queues):
            yield from (
                f"{name} {value}" for name, value in named_stats(each, world.broker.spool, world.now_ms, dialect)
            )
    yield "[/metrics]"
    shown = (line for line in asks(world, "/metrics").splitlines() if "staniel_queue_" in line)
    yield from (line for line in shown if "staniel_queue_reason" not in line)
    yield "[/api/queues]"
    body = asks(world, "/api/queues")
    yield from (json.dumps(each) for each in json.loads(body))
    yield "[/openapi.json]"
    body = asks(world, "/openapi.json")
    schemas = json.loads(body)["components"]["schemas"]
    yield from (json.dumps(schemas[name]) for name in ("QueueSnapshot", "QueueRow"))
    yield "[top]"
    model = top_model(events(made()))
    yield from (line.plain.replace("\t", " ") for line in whole(model, "h", 200, 0)[3:])
    yield from (line.plain for line in help_frame((100, 24)))


def text() -> str:
    return "".join([f"{line.rstrip()}\n" for line in lines()])


if __name__ == "__main__":
    print(text(), end="")
