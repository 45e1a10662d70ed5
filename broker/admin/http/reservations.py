"""Items for programs without a client library: reserved over HTTP, then confirmed, handed back or extended by token.

A reservation is a lease. It belongs to no connection, so a lost reply, a load balancer or a program that starts a
process for each request does not end it. It times out after `timeout_ms`, and its item returns to the head of the
queue. A token names the lease and the start of this server process: a restart returns every item, and makes all tokens
invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from staniel.broker import access
from staniel.broker.admin import payloads
from staniel.broker.admin.http.actions import TAKEN_BYTES_MAX, TAKEN_MAX, taken_members, taken_view
from staniel.broker.admin.http.exchange import BadBody, Exchange
from staniel.broker.leases import Lease
from staniel.protocol.http import replies
from staniel.protocol.http.requests import RAW
from staniel.queues.item import Delivery
from staniel.queues.past import past_of
from staniel.queues.queue import Queue
from staniel.queues.registry import QueueRefused

TOKENS_MAX = 256  # in one request, so that it fits into a turn
WAIT_MS_MAX = 3_600_000
TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 100, 7 * 86_400_000


class ReserveBody(Struct, forbid_unknown_fields=True):
    """A request to reserve at most `count` items, 1 MB together. It waits for the first one, `wait_ms` at most. Each
    item returns to its queue after `timeout_ms`.
    """

    count: int = 1
    wait_ms: int = 0
    timeout_ms: int = 30_000


class TokensBody(Struct, forbid_unknown_fields=True):
    """The tokens of reservations, 256 at most."""

    tokens: list[str]


class ExtendBody(Struct, forbid_unknown_fields=True):
    """The tokens of reservations, 256 at most. Each ends `timeout_ms` from now."""

    tokens: list[str]
    timeout_ms: int = 30_000


class ReservedHead(Struct, frozen=True):
    """The first members of a Reserved, which are sent before the payload."""

    token: str
    id: str
    deliveries: int
    ends_at_ms: int


class Reserved(Struct, frozen=True):
    """An item that is reserved for the owner of `token`. `id`: the same at every delivery of the item. `deliveries`
    counts this one. `origin`, `reason`: for a dead letter, the queue that it left and why; else empty.
    """

    token: str
    id: str
    deliveries: int
    ends_at_ms: int
    encoding: str
    data: str
    flags: int
    added_at_ms: int
    origin: str = ""
    reason: str = ""


class Reservations(Struct, frozen=True):
    """The reserved items; empty if none came within `wait_ms`."""

    items: list[Reserved]


class EndedReservations(Struct, frozen=True):
    """The number of reservations that were ended or extended, `done`. `gone`: the tokens of reservations that were not
    open any more; other clients may have their items.
    """

    done: int
    gone: list[str]


def reserve(exchange: Exchange, now_ms: int) -> None:
    """Reserve items for a time, the oldest first; wait for the first of them."""
    body = exchange.body(ReserveBody)
    if not 1 <= body.count <= TAKEN_MAX:
        raise BadBody(f"count is a number from 1 to {TAKEN_MAX}")
    if body.count > 1 and wants_bytes(exchange):
        raise BadBody(f"one item at a time goes with accept: {RAW}")
    if not 0 <= body.wait_ms <= WAIT_MS_MAX:
        raise BadBody(f"wait_ms is a number from 0 to {WAIT_MS_MAX}")
    _Reservation(exchange, body, _timeout_ms(body.timeout_ms), now_ms + body.wait_ms).reserve_or_wait(now_ms)


def wants_bytes(exchange: Exchange) -> bool:
    """Tell whether the client asks for the item byte by byte."""
    return exchange.request.headers.get("accept") == RAW


def _timeout_ms(timeout_ms: int) -> int:
    if not TIMEOUT_MS_MIN <= timeout_ms <= TIMEOUT_MS_MAX:
        raise BadBody(f"timeout_ms is a number from {TIMEOUT_MS_MIN} to {TIMEOUT_MS_MAX}")
    return timeout_ms


class _Reservation:
    """A running request to reserve."""

    def __init__(self, exchange: Exchange, body: ReserveBody, timeout_ms: int, until_ms: int) -> None:
        self._exchange = exchange
        self._count = body.count
        self._timeout_ms = timeout_ms
        self._until_ms = until_ms
        self._found: list[tuple[str, int, Delivery]] = []  # token, end, read
        self._bytes = 0

    def reserve_or_wait(self, now_ms: int) -> None:
        """Take the items that are there, or wait for the first. Raises TryNextTurn; nothing has been taken then."""
        exchange, session = self._exchange, self._exchange.session
        queue = self._queue(now_ms)
        if queue is None:
            return
        taken = queue.open(now_ms)
        if taken is None and queue.is_unsettled:
            session.retry_after_sweep(queue, exchange.guarded(self.reserve_or_wait))
        elif taken is None and now_ms < self._until_ms:
            session.park(queue, self._until_ms, exchange.guarded(self._deliver), opens=True, peeks=False)
        else:
            self._collect(queue, taken, now_ms)

    def _queue(self, now_ms: int) -> Queue | None:
        """Return the queue to read from. If it cannot be read from, send an error and return None."""
        exchange, session, name = self._exchange, self._exchange.session, self._exchange.names[0]
        queues = exchange.broker.queues
        if name in queues.aliases:
            exchange.error(404, f"{name} is an alias of {', '.join(queues.aliases[name].targets)}")
            return None
        try:
            queue = queues.to_read(name, now_ms, creates=False)
        except QueueRefused as refused:
            exchange.error(400 if refused.client else 503, refused.why)
            return None
        if why := access.read_refusal(session, queue):
            exchange.error(503, why)
        elif why := access.crowd_refusal(
            session.broker.limits, session.address, queue, now_ms, opens=True, waits=now_ms < self._until_ms
        ):
            exchange.error(409, why)
        else:
            return queue
        return None

    def _deliver(self, taken: Delivery | None, now_ms: int) -> None:
        queue = self._exchange.session.waited_at
        self._collect(queue, taken, now_ms)

    def _collect(self, queue: Queue, taken: Delivery | None, now_ms: int) -> None:
        exchange, counters = self._exchange, self._exchange.broker.counters
        if taken is None and queue.line.read_error is not None:
            exchange.error(503, access.trouble(queue))
            return
        counters.cmd_get += 1
        counters.get_hits += taken is not None
        counters.get_misses += taken is None
        while taken is not None:
            self._grant(queue, taken, now_ms)
            is_full = len(self._found) == self._count or self._bytes >= TAKEN_BYTES_MAX
            may_open = not is_full and len(queue.open_reads) < queue.max_open_reads
            taken = queue.open(now_ms) if may_open and not access.read_refusal(exchange.session, queue) else None
        queue.counters.get_items_hit += len(self._found)
        exchange.session.depend_on(queue)
        if wants_bytes(exchange):
            self._send_bytes()
            return
        if self._bytes <= payloads.LONG_BYTES:
            exchange.json(Reservations([self._shown(*entry) for entry in self._found]))
            return
        exchange.begin_pieces(replies.JSON)
        exchange.add(b'{"items":[')
        exchange.add_each(self._pieces())

    def _grant(self, queue: Queue, taken: Delivery, now_ms: int) -> None:
        ends_ms, broker, session = now_ms + self._timeout_ms, self._exchange.broker, self._exchange.session
        number = broker.leases.grant(session.number, session.address, queue, taken, ends_ms)
        self._found.append((f"{number}-{broker.status.started_ms}", broker.calendar.wall_ms(ends_ms), taken))
        self._bytes += len(taken.item.data)

    def _send_bytes(self) -> None:
        """Send the item as it was put, and its other values in headers, for use in shells."""
        if not self._found:
            self._exchange.reply(replies.NO_CONTENT, b"", RAW)
            return
        ((token, ends_ms, taken),) = self._found
        about = {
            "staniel-token": token,
            "staniel-id": str(taken.id),
            "staniel-deliveries": str(taken.deliveries),
            "staniel-ends-at-ms": str(ends_ms),
            "staniel-flags": str(taken.item.flags),
        }
        self._exchange.reply(200, taken.item.data, RAW, about)

    def _shown(self, token: str, ends_ms: int, taken: Delivery) -> Reserved:
        item, past = taken_view(taken.item), past_of(taken.item)
        origin, reason = ("", "") if past is None else (past.origin_name, past.why.name.lower())
        shown = (item.encoding, item.data, item.flags, item.added_at_ms, origin, reason)
        return Reserved(token, str(taken.id), taken.deliveries, ends_ms, *shown)

    def _pieces(self) -> Iterator[bytes]:
        """Yield the reply as JSON, in pieces, and its end."""
        for at, (token, ends_ms, taken) in enumerate(self._found):
            head = ReservedHead(token, str(taken.id), taken.deliveries, ends_ms)
            yield (b"," if at else b"") + replies.encode(head)[:-1] + b","
            yield from taken_members(taken.item)
            past = past_of(taken.item)
            if past is not None:
                yield b',"origin":%b,"reason":"%b"' % (replies.encode(past.origin_name), past.why.name.lower().encode())
            yield b"}"
        yield b"]}\n"


def confirm(exchange: Exchange, now_ms: int) -> None:
    """Remove reserved items for good."""
    body, leases = exchange.body(TokensBody), exchange.broker.leases

    def end(lease: Lease) -> bool:
        leases.pop(lease.number)
        return lease.queue.confirm(lease.taken)

    _answer_each(exchange, body.tokens, end)


def abort(exchange: Exchange, now_ms: int) -> None:
    """Hand reserved items back. The item of the first token becomes the head."""
    body, leases = exchange.body(TokensBody), exchange.broker.leases
    given_back: dict[Queue, list[Delivery]] = {}  # by queue; a queue that was deleted and created again is another one

    def note(lease: Lease) -> bool:
        leases.pop(lease.number)
        is_open = lease.queue.open_reads.get(lease.taken.xid) is lease.taken
        if is_open:
            given_back.setdefault(lease.queue, []).append(lease.taken)
        return is_open

    def end() -> None:
        for queue, reads in given_back.items():
            for taken, fate in queue.abort_together(reads, now_ms):
                exchange.session.log_last_delivery(queue, taken, fate, now_ms)

    _answer_each(exchange, body.tokens, note, end)


def extend(exchange: Exchange, now_ms: int) -> None:
    """Let reservations end later."""
    body, leases = exchange.body(ExtendBody), exchange.broker.leases
    ends_ms = now_ms + _timeout_ms(body.timeout_ms)

    def postpone(lease: Lease) -> bool:
        is_open = lease.queue.extend(lease.taken, now_ms)
        if is_open:
            leases.extend(lease, ends_ms)
        return is_open

    _answer_each(exchange, body.tokens, postpone)


def _answer_each(
    exchange: Exchange, tokens: list[str], act: Callable[[Lease], bool], then: Callable[[], None] = lambda: None
) -> None:
    """Call `act` with the lease of each token, then `then`, and reply. `act` returns whether the lease was open."""
    done, gone = 0, []
    for token in _checked(tokens):
        lease = exchange.broker.leases.of(_number(exchange, token), exchange.names[0])
        if lease is not None and act(lease):
            exchange.session.depend_on(lease.queue)
            done += 1
        else:
            gone.append(token)
    then()
    exchange.json(EndedReservations(done, gone))


def _checked(tokens: list[str]) -> list[str]:
    if not 1 <= len(tokens) <= TOKENS_MAX:
        raise BadBody(f"tokens has 1 to {TOKENS_MAX} of them")
    return tokens


def _number(exchange: Exchange, token: str) -> int:
    """Return the number of a lease. For a token of another process return 0, which is no lease's number."""
    number, _, started = token.partition("-")
    is_number = number.isascii() and number.isdigit() and len(number) < 19
    is_ours = is_number and started == str(exchange.broker.status.started_ms)
    return int(number) if is_ours else 0
