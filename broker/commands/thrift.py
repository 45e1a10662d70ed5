"""Commands of Kestrel's thrift service, one function for each method.

Open reads are leases here: they outlive the connection, and any client may end them. Importing this file imports the
thrift library. Source: the thrift service of Kestrel 2.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from staniel.broker import access
from staniel.broker.commands import changes, gets, puts, rules
from staniel.broker.commands.admin import change_status
from staniel.broker.commands.guarded import guarded
from staniel.broker.commands.memcache import flush_each, invalid, more
from staniel.broker.commands.rules import Commands, handlers_of
from staniel.broker.leases import Lease
from staniel.broker.session import ITEMS_AT_ONCE, OUT_BYTES_PER_TURN, Session
from staniel.broker.status import ServerStatus
from staniel.broker.version import WIRE_VERSION
from staniel.journal.journals import total_bytes
from staniel.protocol.requests import Invalid, More
from staniel.protocol.thrift import requests as thrift
from staniel.protocol.thrift.replies import ThriftReplies
from staniel.protocol.thrift.requests import ThriftStatus
from staniel.queues.item import Delivery
from staniel.queues.queue import Queue
from staniel.queues.registry import QueueRefused
from staniel.queues.time_outs import Ended

replies = ThriftReplies
LEASES_PER_TURN = 256  # that are ended, 3 us each
LEASES_HANDED_PER_TURN = 4096  # that are passed to their queues, which end them in the next turns
ITEMS_MAX = 1000  # of one get: they take some milliseconds
SHOWN = {
    ServerStatus.UP: ThriftStatus.UP,
    ServerStatus.READONLY: ThriftStatus.READ_ONLY,
    ServerStatus.QUIESCENT: ThriftStatus.QUIESCENT,
    ServerStatus.WRITEAVOID: ThriftStatus.NOT_CONFIGURED,
}
MEANT = {shown: status for status, shown in SHOWN.items() if status is not ServerStatus.WRITEAVOID}


def put(session: Session, call: thrift.ThriftPut, now_ms: int) -> None:
    """Store items until one is refused; reply with the number stored."""
    session.client_id = call.client_id

    def finish(stored: int, refused: QueueRefused | None) -> None:
        if refused is None or stored:
            session.out.append(replies.number(call, stored))
        else:
            session.out.append(replies.failure(call, refused.why))

    expires_ms = 0 if call.ttl_ms is None else session.calendar.end_of_life(now_ms, call.ttl_ms)
    puts.PutBatch(session, call.queue, call.items, expires_ms, finish).store_some(now_ms)


class ItemCollector:
    """A running get. It collects items until there are enough, it times out, or too many are open. Items that need no
    confirmation stay open while the get waits for more, so that they return to the queue if its client disconnects
    meanwhile.
    """

    def __init__(self, session: Session, call: thrift.ThriftGet, queue: Queue, now_ms: int) -> None:
        self.session = session
        self.call = call
        self.queue = queue
        self.until_ms = now_ms + call.wait_ms
        self.found: list[tuple[bytes, int]] = []
        self.taken: list[Delivery] = []  # items that have been removed for good
        self.bytes = 0
        self._keeps = not call.auto_abort_ms and call.wait_ms > 0 and call.max_items > 1

    def collect_some(self, now_ms: int) -> None:
        session, queue, opens = self.session, self.queue, self._keeps or self.call.auto_abort_ms != 0
        while self._wants_more():
            taken = queue.open(now_ms) if opens else queue.remove_head(now_ms)
            if taken is None:
                if queue.is_unsettled and not self.found:
                    session.retry_after_sweep(queue, self._retry_after_sweep)
                    return
                if now_ms < self.until_ms and queue.count_waiters() < queue.config.max_waiters:
                    session.park(queue, self.until_ms, self._on_delivery, opens=opens, peeks=False)
                    return
                break
            self._add_item(taken, now_ms)
        self._answer()

    def _retry_after_sweep(self, now_ms: int) -> None:
        """Continue once the expired items at the head are removed. All checks are repeated."""
        queue = queue_for(self.session, self.call, self.call.queue, now_ms)
        if queue is not None:
            self.queue = queue
            self.collect_some(now_ms)

    def _wants_more(self) -> bool:
        session, call = self.session, self.call
        if len(self.found) >= min(call.max_items, ITEMS_MAX) or self.bytes > OUT_BYTES_PER_TURN:
            return False
        if not call.auto_abort_ms:
            return True
        is_full = len(self.queue.open_reads) >= self.queue.max_open_reads
        return not is_full and session.broker.leases.held(session.number, self.queue.name) < session.max_open_reads

    def _on_delivery(self, taken: Delivery | None, now_ms: int) -> None:
        self.queue = self.session.waited_at
        if taken is not None:
            self._add_item(taken, now_ms)
        if taken is None or access.read_refusal(self.session, self.queue):
            self._answer()
        else:
            self.collect_some(now_ms)

    def _add_item(self, taken: Delivery, now_ms: int) -> None:
        number = 0
        if self.call.auto_abort_ms:
            until_ms = now_ms + self.call.auto_abort_ms
            number = self.session.broker.leases.grant(
                self.session.number, self.session.address, self.queue, taken, until_ms
            )
        elif self._keeps:
            gets.hold(self.session, self.queue, taken)
        else:
            self.taken.append(taken)
        self.found.append((taken.item.data, number))
        self.bytes += len(taken.item.data)

    def _confirm(self) -> None:
        """Confirm the reads that are still open. Skip those that have timed out, because other clients may have their
        items.
        """
        held = self.session.reads.pop(self.queue.name, ())
        self.taken = [taken for queue, taken in held if queue.confirm(taken)]
        self.found = [(taken.item.data, 0) for taken in self.taken]

    def _answer(self) -> None:
        session, counters = self.session, self.session.broker.counters
        if self._keeps:
            self._confirm()
        if not self.found and self.queue.line.read_error is not None:
            session.out.append(replies.failure(self.call, access.trouble(self.queue)))
            return
        counters.cmd_get += 1
        if self.found:
            counters.get_hits += 1
        else:
            counters.get_misses += 1
        session.depend_on(self.queue)
        for taken in self.taken:
            session.add_unsent(self.queue, taken)
        if len(self.found) > ITEMS_AT_ONCE:
            session.yield_turn()
        session.out.append(replies.items(self.call, self.found))
        session.out_bytes += self.bytes


def get(session: Session, call: thrift.ThriftGet, now_ms: int) -> None:
    if call.queue in session.broker.queues.aliases:
        session.out.append(replies.items(call, []))
        return
    queue = queue_for(session, call, call.queue, now_ms)
    if queue is None:
        return
    if why := access.crowd_refusal(
        session.broker.limits, session.address, queue, now_ms, opens=call.auto_abort_ms != 0, waits=call.wait_ms > 0
    ):
        session.out.append(replies.failure(call, why))
    else:
        ItemCollector(session, call, queue, now_ms).collect_some(now_ms)


def queue_for(
    session: Session, call: thrift.ThriftCall, name: str, now_ms: int, *, peeks: bool = False
) -> Queue | None:
    """Return the queue to read from, created if reading creates it. Return None after an error reply. Raises
    TryNextTurn.
    """
    session.client_id = call.client_id
    try:
        if why := access.read_refusal(session, None):
            raise QueueRefused(why, client=False)
        queue = session.broker.queues.to_read(name, now_ms, creates=session.creates)
        if why := access.trouble(queue) if peeks else access.read_refusal(session, queue):
            raise QueueRefused(why, client=False)
    except QueueRefused as refused:
        session.out.append(replies.failure(call, refused.why))
        return None
    return queue


class LeaseBatch:
    """A batch of leases to end, some a turn, with one reply: how many were still open. `end` ends some of them and
    returns how many of these were open.
    """

    def __init__(
        self,
        session: Session,
        call: thrift.ThriftConfirm | thrift.ThriftAbort,
        numbers: Sequence[int],
        end: Callable[[list[Lease], int], int],
        count_max: int,
    ) -> None:
        self._session = session
        self._call = call
        self._numbers = numbers
        self._end = end
        self._count_max = count_max
        self._at = self._count = 0

    def end_some(self, now_ms: int) -> None:
        session, leases = self._session, self._session.broker.leases
        until = self._at + self._count_max
        popped = [leases.pop_of(number, self._call.queue) for number in self._numbers[self._at : until]]
        self._count += self._end([lease for lease in popped if lease is not None], now_ms)
        self._at = until
        if until < len(self._numbers):
            session.yield_turn(self.end_some)
            return
        if len(self._numbers) > ITEMS_AT_ONCE:
            session.yield_turn()
        session.out.append(replies.number(self._call, self._count))


def confirm(session: Session, call: thrift.ThriftConfirm, now_ms: int) -> None:
    """Confirm leases: their items are removed for good."""

    def end(leases: list[Lease], now_ms: int) -> int:
        ended = [lease for lease in leases if lease.queue.confirm(lease.taken)]
        for lease in ended:
            session.depend_on(lease.queue)
        return len(ended)

    LeaseBatch(session, call, call.ids, end, LEASES_PER_TURN).end_some(now_ms)


def abort(session: Session, call: thrift.ThriftAbort, now_ms: int) -> None:
    """Give leased items back. The first in the request ends up nearest the head. All of them return to their queues, or
    many to the queues' batches, before any is delivered: otherwise a waiter would get one before the items ahead of it.
    """

    def opened(leases: list[Lease]) -> dict[Queue, list[Delivery]]:
        by_queue: dict[Queue, list[Delivery]] = {}
        for lease in reversed(leases):
            if lease.queue.open_reads.get(lease.taken.xid) is lease.taken:
                by_queue.setdefault(lease.queue, []).append(lease.taken)
        return by_queue

    def end(leases: list[Lease], now_ms: int) -> int:
        by_queue = opened(leases)
        for queue, reads in by_queue.items():
            tell(queue, queue.abort_together(reads, now_ms), now_ms)
            session.depend_on(queue)
        return sum(map(len, by_queue.values()))

    def hand_over(leases: list[Lease], now_ms: int) -> int:
        by_queue = opened(leases)
        for queue, reads in by_queue.items():
            queue.abort_later(reads, partial(tell, queue), now_ms)
        return sum(map(len, by_queue.values()))

    def tell(queue: Queue, ended: list[tuple[Delivery, Ended]], now_ms: int) -> None:
        for taken, fate in ended:
            session.log_last_delivery(queue, taken, fate, now_ms)

    if len(call.ids) <= LEASES_PER_TURN:
        LeaseBatch(session, call, call.ids[::-1], end, LEASES_PER_TURN).end_some(now_ms)
    else:
        LeaseBatch(session, call, call.ids[::-1], hand_over, LEASES_HANDED_PER_TURN).end_some(now_ms)


def peek(session: Session, call: thrift.ThriftPeek, now_ms: int) -> None:
    """Reply with a queue's figures and its head."""
    if call.queue in session.broker.queues.aliases:
        session.out.append(replies.failure(call, f"{call.queue} is an alias, there is nothing to see"))
        return
    queue = queue_for(session, call, call.queue, now_ms, peeks=True)
    if queue is None:
        return
    head, journal = queue.peek(now_ms), queue.journal
    if head is None and queue.is_unsettled:
        session.retry_after_sweep(queue, lambda now_ms: peek(session, call, now_ms))
        return
    if head is None and queue.line.read_error is not None:
        session.out.append(replies.failure(call, access.trouble(queue)))
        return
    session.broker.counters.cmd_peek += 1
    session.depend_on(queue)
    info = replies.queue_info(
        call,
        head=head.item.data if head is not None else None,
        items=queue.waiting_items,
        size_bytes=queue.waiting_bytes,
        journal_bytes=total_bytes(journal),
        age_ms=queue.age_ms(now_ms),
        waiters=len(queue.waiters),
        open_reads=len(queue.open_reads),
    )
    session.out.append(info)


def flush(session: Session, call: thrift.ThriftFlush, now_ms: int) -> None:
    session.client_id = call.client_id
    queue = session.broker.queues.find(call.queue)
    if why := access.flush_refusal(session, [] if queue is None else [queue]) or session.broker.queues.why_blocked(
        call.queue
    ):
        session.out.append(replies.failure(call, why))
        return
    if queue is not None and changes.empty(session, queue, now_ms, partial(flush, session, call)) is None:
        return
    session.out.append(replies.done(call))


def flush_all(session: Session, call: thrift.ThriftFlushAll, now_ms: int) -> None:
    session.client_id = call.client_id
    if why := access.flush_refusal(session, session.broker.queues):
        session.out.append(replies.failure(call, why))
        return

    def finish() -> None:
        why = access.blocked_queues(session.broker.queues)
        session.out.append(replies.failure(call, why) if why else replies.done(call))

    flush_each(session, now_ms, finish).visit_some(now_ms)


def delete(session: Session, call: thrift.ThriftDelete, now_ms: int) -> None:
    if why := access.write_refusal(session, None) or session.broker.queues.why_blocked(call.queue):
        session.out.append(replies.failure(call, why))
        return

    def then(existed: bool, why: str) -> None:
        session.out.append(replies.failure(call, why) if why else replies.done(call))

    changes.delete(session, call.queue, now_ms, then)


def current_status(session: Session, call: thrift.ThriftCurrentStatus, now_ms: int) -> None:
    session.out.append(replies.status(call, SHOWN[session.broker.status.reported]))


def set_status(session: Session, call: thrift.ThriftSetStatus, now_ms: int) -> None:
    try:
        change_status(session, MEANT[call.status], now_ms)
    except OSError as error:
        session.out.append(replies.failure(call, f"the status cannot be kept: {error.strerror}"))
        return
    session.out.append(replies.done(call))


def version(session: Session, call: thrift.ThriftVersion, now_ms: int) -> None:
    session.out.append(replies.version(call, WIRE_VERSION))


def upgrade(session: Session, call: thrift.ThriftUpgrade, now_ms: int) -> None:
    session.out.append(replies.upgrade)


COMMANDS: Commands = {
    thrift.ThriftPut: (put, rules.WRITE),
    thrift.ThriftGet: (get, rules.READ),
    thrift.ThriftConfirm: (confirm, rules.READ),
    thrift.ThriftAbort: (abort, rules.READ),
    thrift.ThriftPeek: (peek, rules.READ),
    thrift.ThriftFlush: (flush, rules.OPERATE),
    thrift.ThriftFlushAll: (flush_all, rules.OPERATE_ALL),
    thrift.ThriftDelete: (delete, rules.OPERATE),
    thrift.ThriftCurrentStatus: (guarded(current_status), rules.known),
    thrift.ThriftSetStatus: (guarded(set_status), rules.ADMIN),
    thrift.ThriftVersion: (version, rules.known),
    thrift.ThriftUpgrade: (upgrade, rules.always),
    Invalid: (invalid, rules.always),
    More: (more, rules.always),
}
HANDLERS = handlers_of(COMMANDS)
