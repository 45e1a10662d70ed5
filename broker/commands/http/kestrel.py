"""The paths of Kestrel's admin port that scripts and monitoring still ask for. What changes something is a POST here.
Source: Ostrich's admin service in Kestrel 2.4: /ping, /stats.json, /stats.txt, /server_info.txt.
"""

from __future__ import annotations

import msgspec

from staniel.broker import stats
from staniel.broker.commands.batches import BatchCommand
from staniel.broker.commands.http.exchange import Exchange
from staniel.broker.version import VERSION, WIRE_VERSION
from staniel.protocol.http import replies
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.queue import Queue

QUEUES_PER_TURN = 64
COUNTERS = frozenset(("total_items", "cmd_get", "cmd_set", "cmd_peek", "get_hits", "get_misses", "total_connections"))
QUEUE_COUNTERS = frozenset(
    ("total_items", "expired_items", "discarded", "transactions", "canceled_transactions", "total_flushes")
)


def ping(exchange: Exchange, now_ms: int) -> None:
    exchange.reply(200, b"pong\n", replies.TEXT)


def server_info(exchange: Exchange, now_ms: int) -> None:
    started_ms = exchange.broker.started_ms
    lines = {
        "name": "staniel",
        "version": VERSION,
        "wire_version": WIRE_VERSION,
        "start_time": started_ms,
        "uptime": now_ms - started_ms,
    }
    if exchange.request.path.endswith(".json"):
        exchange.json(lines)
    else:
        text = "".join([f"{name}: {value}\n" for name, value in lines.items()])
        exchange.reply(200, text.encode(), replies.TEXT)


def show_stats(exchange: Exchange, now_ms: int) -> None:
    """Counters and gauges of the server, and of each queue as q/NAME/STATISTIC."""
    broker = exchange.broker
    counters: dict[str, object] = {}
    gauges: dict[str, object] = {}
    labels: dict[str, object] = {}
    totals = stats.QueueTotals()

    def sort(name: str, value: object, is_counter: bool) -> None:
        kind = labels if isinstance(value, str) else counters if is_counter else gauges
        kind[name] = value

    def look(queue: Queue, now_ms: int) -> bool:
        totals.add(queue)
        for name, value in stats.queue_stats(queue, now_ms, Dialect.KESTREL):
            sort(f"q/{queue.name}/{name}", value, name in QUEUE_COUNTERS)
        return True

    def send() -> None:
        for name, value in stats.server_stats(broker, now_ms, totals):
            sort(name, value, name in COUNTERS)
        found = {"counters": counters, "gauges": gauges, "labels": labels, "metrics": {}}
        if exchange.request.path.endswith(".json"):
            exchange.begin(replies.JSON)
            exchange.add(msgspec.json.encode(found) + b"\n")
        else:
            exchange.begin(replies.TEXT)
            for kind, values in found.items():
                lines = [f"  {name}: {value}\n" for name, value in sorted(values.items())]
                exchange.add(f"{kind}:\n{''.join(lines)}".encode())
        exchange.end()

    BatchCommand(exchange.session, broker.queues, look, send, QUEUES_PER_TURN).step(now_ms)
