"""Items for programs without a client library: reserved over HTTP, then confirmed, handed back or extended by token.

A reservation is a lease. It belongs to no connection, so a lost reply, a load balancer or a program that starts a
process for each request does not end it. It times out after `timeout_ms`, and its item returns to the head of the
queue. A token names the lease and the start of this server process: a restart returns every item, and makes all tokens
invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote

from msgspec import Struct

from staniel.broker import access
from staniel.broker.admin import payloads
from staniel.broker.admin.http.actions import TAKEN_BYTES_MAX, TAKEN_MAX, taken_members, taken_view
from staniel.broker.admin.http.exchange import BadBody, Exchange
from staniel.broker.admin.http.rights import take as take_right
from staniel.broker.leases import Lease
from staniel.broker.several_queues import WaitAtSeveral, has_item_now
from staniel.protocol.http import replies
from staniel.protocol.http.requests import RAW
from staniel.protocol.memcache.keys import QUEUES_MAX
from staniel.queues.item import Delivery
from staniel.queues.past import past_of
from staniel.queues.queue import Queue
from staniel.queues.registry import QueueRefused

TOKENS_MAX = 256  # in one request, so that it fits into a turn
WAIT_MS_MAX = 3_600_000
TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 100, 7 * 86_400_000


class ReserveBody(Struct, forbid_unknown_fields=True):
    """A request to reserve at most `count` items, 1 MB together. It waits for the first one, `wait_ms` at most. Each
    item returns to its queue after `timeout_ms`. `also`: further queues. All items are of the first queue that has one,
    the path's first, then these in their order.
    """

    count: int = 1
    wait_ms: int = 0
    timeout_ms: int = 30_000
    also: list[str] = []


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
    queue: str
    id: str
    deliveries: int
    ends_at_ms: int


class Reserved(Struct, frozen=True):
    """An item that is reserved for the owner of `token`, from `queue`, in whose path it is ended. `id`: the same at
    every delivery of the item. `deliveries` counts this one. `origin`, `reason`: for a dead letter, the queue that it
    left and why; else empty.
    """

    token: str
    queue: str
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
    names = (exchange.names[0], *body.also)
    if len(names) > QUEUES_MAX or len(set(names)) < len(names):
        raise BadBody(f"also has further queues, each once, {QUEUES_MAX - 1} at most")
    if exchange.rights is not None:
        queues = exchange.broker.queues
        if why := next((why for name in body.also if (why := take_right(exchange.rights, queues, (name,)))), ""):
            exchange.forbid(why)
            return
    _Reservation(exchange, names, body, _timeout_ms(body.timeout_ms), now_ms + body.wait_ms).reserve_or_wait(now_ms)


def wants_bytes(exchange: Exchange) -> bool:
    """Tell whether the client asks for the item byte by byte."""
    return exchange.request.headers.get("accept") == RAW


def _timeout_ms(timeout_ms: int) -> int:
    if not TIMEOUT_MS_MIN <= timeout_ms <= TIMEOUT_MS_MAX:
        raise BadBody(f"timeout_ms is a number from {TIMEOUT_MS_MIN} to {TIMEOUT_MS_MAX}")
    return timeout_ms


class _Reservation:
    """A running request to reserve, from the first of its queues that has an item."""

    def __init__(
        self, exchange: Exchange, names: Sequence[str], body: ReserveBody, timeout_ms: int, until_ms: int
    ) -> None:
        self._exchange = exchange
        self._names = names
        self._count = body.count
        self._timeout_ms = timeout_ms
        self._until_ms = until_ms
        self._found: list[tuple[str, int, Delivery]] = []  # token, end, read
        self._from = ""  # the queue of these
        self._bytes = 0

    def reserve_or_wait(self, now_ms: int) -> None:
        """Take the items that are there, or wait for the first. Raises TryNextTurn; nothing has been taken then."""
        exchange, session = self._exchange, self._exchange.session
        if not all(self._may_read(name, now_ms) for name in self._names):
            return
        for queue in self._queues_to_read(now_ms):
            taken = queue.open(now_ms)
            session.depend_on(queue)  # the reply shows that this queue has an item, or that it has none
            if taken is not None:
                self._collect(queue, taken, now_ms)
                return
            if queue.line.read_error is not None:
                exchange.error(503, access.trouble(queue))
                return
            if queue.is_unsettled:
                session.retry_after_sweep(queue, exchange.guarded(self.reserve_or_wait))
                return
        if has_item_now(self._queues_to_read(now_ms), now_ms):
            session.yield_turn(exchange.guarded(self.reserve_or_wait))
        elif now_ms >= self._until_ms:
            self._end_without(list(self._queues_to_read(now_ms)))
        else:
            self._wait(now_ms)

    def _wait(self, now_ms: int) -> None:
        exchange, session = self._exchange, self._exchange.session
        if any(self._is_crowded(queue, now_ms, waits=True) for queue in self._queues_to_read(now_ms)):
            return
        wait = WaitAtSeveral(
            session, list(zip(self._names, self._queues_to_read(now_ms), strict=True)), opens=True, peeks=False
        )

        def deliver(taken: Delivery | None, now_ms: int) -> None:
            if taken is None:
                self._end_without(wait.queues)
            else:
                self._collect(session.waited_at, taken, now_ms)

        session.park(wait, self._until_ms, exchange.guarded(deliver), opens=True, peeks=False)

    def _queues_to_read(self, now_ms: int) -> Iterator[Queue]:
        """Yield each queue when it is needed: one placeholder stands for all queues that do not exist."""
        for name in self._names:
            yield self._exchange.broker.queues.to_read(name, now_ms, creates=False)

    def _may_read(self, name: str, now_ms: int) -> bool:
        """Tell whether this queue may be read. If not, the client has been sent an error."""
        exchange, queues = self._exchange, self._exchange.broker.queues
        if name in queues.aliases:
            exchange.error(404, f"{name} is an alias of {', '.join(queues.aliases[name].targets)}")
            return False
        try:
            queue = queues.to_read(name, now_ms, creates=False)
        except QueueRefused as refused:
            exchange.error(400 if refused.client else 503, refused.why)
            return False
        if why := access.read_refusal(exchange.session, queue):
            exchange.error(503, why)
            return False
        return not self._is_crowded(queue, now_ms, opens=True)

    def _is_crowded(self, queue: Queue, now_ms: int, *, opens: bool = False, waits: bool = False) -> bool:
        """Tell whether no more items may be open, or no more clients may wait. If so, the client has been sent an
        error.
        """
        session = self._exchange.session
        why = access.crowd_refusal(session.broker.limits, session.address, queue, now_ms, opens=opens, waits=waits)
        if why:
            self._exchange.error(409, why)
        return bool(why)

    def _end_without(self, queues: list[Queue]) -> None:
        """Reply that nothing came."""
        exchange, counters = self._exchange, self._exchange.broker.counters
        for queue in queues:
            if queue.line.read_error is not None:
                exchange.error(503, access.trouble(queue))
                return
            exchange.session.depend_on(queue)
        counters.cmd_get += 1
        counters.get_misses += 1
        self._reply()

    def _collect(self, queue: Queue, taken: Delivery | None, now_ms: int) -> None:
        """Reserve this item and those behind it, and reply."""
        exchange, counters = self._exchange, self._exchange.broker.counters
        self._from = queue.name
        counters.cmd_get += 1
        counters.get_hits += 1
        while taken is not None:
            self._grant(queue, taken, now_ms)
            is_full = len(self._found) == self._count or self._bytes >= TAKEN_BYTES_MAX
            may_open = not is_full and len(queue.open_reads) < queue.max_open_reads
            taken = queue.open(now_ms) if may_open and not access.read_refusal(exchange.session, queue) else None
        queue.counters.get_items_hit += len(self._found)
        exchange.session.depend_on(queue)
        self._reply()

    def _reply(self) -> None:
        exchange = self._exchange
        if wants_bytes(exchange):
            self._send_bytes()
            return
        if self._bytes <= payloads.LONG_BYTES:
            exchange.json(Reservations([self._shown(*reserved) for reserved in self._found]))
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
            "staniel-queue": quote(self._from, safe="", errors="surrogateescape"),
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
        return Reserved(token, self._from, str(taken.id), taken.deliveries, ends_ms, *shown)

    def _pieces(self) -> Iterator[bytes]:
        """Yield the reply as JSON, in pieces, and its end."""
        for at, (token, ends_ms, taken) in enumerate(self._found):
            head = ReservedHead(token, self._from, str(taken.id), taken.deliveries, ends_ms)
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
