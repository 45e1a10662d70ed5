"""The paths of Kestrel's admin port that scripts and monitoring still use. A path that changes something must be a
POST, unlike in Kestrel. Source: Ostrich's admin service in Kestrel 2.4: /ping, /stats.json, /stats.txt,
/server_info.txt.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from staniel.broker import stats
from staniel.broker.admin.http.exchange import Exchange
from staniel.broker.commands.admin import server_stats
from staniel.broker.commands.batches import BatchCommand
from staniel.broker.version import VERSION, WIRE_VERSION
from staniel.protocol.http import replies
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.queue import Queue

QUEUES_PER_TURN = 64
COUNTERS = frozenset(("total_items", "cmd_get", "cmd_set", "cmd_peek", "get_hits", "get_misses", "total_connections"))
QUEUE_COUNTERS = frozenset(
    ("total_items", "expired_items", "discarded", "transactions", "canceled_transactions", "total_flushes")
)
KINDS = ("counters", "gauges", "labels", "metrics")


class Frame(Struct, frozen=True):
    """The text around and between the values of each kind."""

    begin: bytes
    next: bytes
    between: bytes
    end: bytes
    last: bytes


JSON_FRAME = Frame(b'{"%b":{', b',"%b":{', b",", b"}", b"}\n")
TEXT_FRAME = Frame(b"%b:\n", b"%b:\n", b"", b"", b"")


def ping(exchange: Exchange, now_ms: int) -> None:
    exchange.reply(200, b"pong\n", replies.TEXT)


def server_info(exchange: Exchange, now_ms: int) -> None:
    started_ms = exchange.broker.status.started_ms
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
    """Reply with counters and gauges of the server, and of each queue as q/NAME/STATISTIC, in the order of names."""
    broker = exchange.broker
    is_json = exchange.request.path.endswith(".json")
    show = _as_json if is_json else _as_text
    texts: dict[str, list[bytes]] = {kind: [] for kind in KINDS}  # one text for each queue with such statistics
    totals = stats.QueueTotals()

    def look(queue: Queue, now_ms: int) -> bool:
        totals.add(queue)
        statistics = sorted(stats.queue_stats(queue, broker.spool, now_ms, Dialect.KESTREL))
        values = [(f"q/{queue.name}/{name}", name in QUEUE_COUNTERS, value) for name, value in statistics]
        for kind, of_kind in _by_kind(values).items():
            texts[kind].append(show(of_kind))
        return True

    def send(_: int) -> None:
        values = [(name, name in COUNTERS, value) for name, value in server_stats(exchange.session, totals, now_ms)]
        for kind, facts in _by_kind(sorted(values)).items():
            before = [fact for fact in facts if fact[0] < "q/"]
            texts[kind][:0] = [show(before)] if before else []
            texts[kind] += [show(facts[len(before) :])] if facts[len(before) :] else []
        exchange.begin_pieces(replies.JSON if is_json else replies.TEXT)
        exchange.add_each(_pieces(texts, JSON_FRAME if is_json else TEXT_FRAME))

    queues = sorted(broker.queues, key=lambda queue: f"{queue.name}/")

    def finish() -> None:
        exchange.session.yield_turn(exchange.guarded(send))  # the server's part takes as long as several queues

    BatchCommand(exchange.session, queues, look, finish, QUEUES_PER_TURN).visit_some(now_ms)


def _by_kind(values: list[tuple[str, bool, object]]) -> dict[str, list[tuple[str, object]]]:
    facts: dict[str, list[tuple[str, object]]] = {}
    for name, is_counter, value in values:
        kind = "labels" if isinstance(value, str) else "counters" if is_counter else "gauges"
        facts.setdefault(kind, []).append((name, value))
    return facts


def _as_json(values: list[tuple[str, object]]) -> bytes:
    """Return the members of an object, without its braces."""
    return replies.encode(dict(values))[1:-1]


def _as_text(values: list[tuple[str, object]]) -> bytes:
    return "".join([f"  {name}: {value}\n" for name, value in values]).encode("utf-8", "backslashreplace")


def _pieces(texts: dict[str, list[bytes]], frame: Frame) -> Iterator[bytes]:
    """Yield all kinds in pieces of some queues each."""
    begin = frame.begin
    for kind, parts in texts.items():
        yield begin % kind.encode()
        for at in range(0, len(parts), QUEUES_PER_TURN):
            yield (frame.between if at else b"") + frame.between.join(parts[at : at + QUEUES_PER_TURN])
        begin = frame.end + frame.next
    yield frame.end + frame.last
