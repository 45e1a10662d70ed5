"""The reading of a channel's queues: lanes, the connections that watch them, and the one that holds what is read.

While a connection waits for an item, it cannot end another one. So each lane (a queue of the server that is consumed)
has a connection that waits until there is something (`mg QUEUE/t=…`, which takes nothing), and one holder for all lanes
opens items without a wait and ends them by id. Closing a watch loses nothing; closing a holder gives back what it held.

    lane     means                                then
    READY    there may be items                   items are asked for while there is credit
    EMPTY    the last request found none          the watch waits; its reply makes the lane READY
    RESTING  the server refused to read it        READY when its time is over
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from kombu.log import get_logger

from staniel.client.kombu.errors import ConnectionLost, RequestRefused
from staniel.client.kombu.wire import Reply, Wire

WATCH_S = 15  # of a watch, which then asks again, so that a lost server is noticed
REST_S = 1.0
BURST = 32  # outstanding requests for one lane
CLOSE_S = 5.0  # for the replies to the last acknowledgements

logger = get_logger(__name__)


class LaneState(Enum):
    READY = "ready"
    EMPTY = "empty"
    RESTING = "resting"


class Consumer:
    """A consumer of one of kombu's queues, which may be several queues of the server."""

    def __init__(self, queue: str, no_ack: bool, callback: Any) -> None:
        self.queue = queue
        self.no_ack = no_ack
        self.callback = callback


class Delivery(NamedTuple):
    """An item that was opened but not given to its consumer yet."""

    lane: Lane
    holder: Holder
    item_id: int
    redelivered: bool
    data: bytes


class Lane:
    """A queue of the server that a consumer reads."""

    def __init__(self, name: str, consumer: Consumer, weight: int = 1) -> None:
        self.name = name
        self.consumer = consumer
        self.weight = weight
        self.turn = 0  # the lane with most is asked next; asking costs the weights of all
        self.chosen_last = 0  # the number of its last turn
        self.state = LaneState.READY
        self.asked = 0  # outstanding requests for an item
        self.is_cancelled = False
        self.watch: Wire | None = None
        self.ready_at = 0.0
        self.open_request = b"mg %b/open v c h\r\n" % name.encode("latin-1")
        self.watch_request = b"mg %b/t=%d\r\n" % (name.encode("latin-1"), WATCH_S * 1000)

    def retry_later(self) -> None:
        self.state = LaneState.RESTING
        self.ready_at = time.monotonic() + REST_S


def share_out(lanes: list[Lane], credit: int) -> Counter[Lane]:
    """Return how many items to request of each lane, by their weights over this and later calls: weights of 3 and 1
    make `aaba`, not `aaab`. No lane gets more than BURST outstanding requests.
    """
    counts: Counter[Lane] = Counter()
    for _ in range(credit):
        open_lanes = [lane for lane in lanes if lane.asked + counts[lane] < BURST]
        if not open_lanes:
            break
        for lane in open_lanes:
            lane.turn += lane.weight
        chosen = max(open_lanes, key=lambda lane: (lane.turn, -lane.chosen_last))
        chosen.turn -= sum(lane.weight for lane in open_lanes)
        chosen.chosen_last = 1 + max(lane.chosen_last for lane in open_lanes)
        counts[chosen] += 1
    return counts


class Holder:
    """A connection whose open reads are the channel's deliveries."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.full: set[str] = set()  # queues of which this connection may open no more

    def confirm(self, name: str, item_id: int) -> None:
        """Confirm an item. If it is not open any more it is delivered again, and logged."""
        self._end(b"delete %b/id=%d\r\n", name, item_id)

    def abort(self, name: str, item_id: int) -> None:
        """Hand an item back to the head of its queue."""
        self._end(b"touch %b/id=%d/abort 0\r\n", name, item_id)

    def _end(self, form: bytes, name: str, item_id: int) -> None:
        def ended(reply: Reply) -> None:
            if reply.is_error or reply.word == b"NOT_FOUND":
                logger.warning("item %d of %s was not open any more: %s %s", item_id, name, reply.word, reply.why)

        self.full.discard(name)
        try:
            self.wire.send(form % (name.encode("latin-1"), item_id), ended)
        except ConnectionLost:  # the server has the item again, and the owner of the event loop will notice
            logger.warning("item %d of %s was not ended, the connection is lost; it comes again", item_id, name)


class Reader:
    """The lanes of a channel, and the items received for them."""

    def __init__(self, open_wire: Callable[[], Wire], drop_wire: Callable[[Wire], None]) -> None:
        self.lanes: list[Lane] = []
        self.inbox: deque[Delivery] = deque()
        self.holders: list[Holder] = []
        self._open_wire = open_wire
        self._drop_wire = drop_wire

    def add(self, name: str, consumer: Consumer, weight: int = 1) -> None:
        """Read a queue of the server for a consumer. `weight`: its share while other queues have items, too."""
        self.lanes.append(Lane(name, consumer, weight))

    def cancel(self, consumer: Consumer) -> None:
        """Stop reading for a consumer, and hand back its undelivered items in their order."""
        lanes = [lane for lane in self.lanes if lane.consumer is consumer]
        for lane in lanes:
            self.lanes.remove(lane)
            if lane.watch is not None:
                self._drop_wire(lane.watch)
                lane.watch = None
        self._receive_what_was_asked(lanes)
        for lane in lanes:
            lane.is_cancelled = True  # items that come after this are handed back at once
        kept = [delivery for delivery in self.inbox if delivery.lane.consumer is not consumer]
        for delivery in reversed(self.inbox):  # the newest first, so that their order is restored
            if delivery.lane.consumer is consumer:
                delivery.holder.abort(delivery.lane.name, delivery.item_id)
        self.inbox.clear()
        self.inbox.extend(kept)

    def _receive_what_was_asked(self, lanes: list[Lane]) -> None:
        """Wait for the requested items: one that came later would be handed back before older ones."""
        until = time.monotonic() + CLOSE_S
        for holder in self.holders:
            try:
                while holder.wire.owed and any(lane.asked for lane in lanes) and time.monotonic() < until:
                    holder.wire.wait_and_receive(until)
            except (ConnectionLost, RequestRefused) as error:  # the server returns what the connection had open
                logger.warning("while a consumer was cancelled: %s", error)

    def refill(self, credit: int | None) -> None:
        """Request up to `credit` items (None: any number) of the ready lanes by their weights; watch the empty ones."""
        now = time.monotonic()
        for lane in self.lanes:
            if lane.state is LaneState.RESTING and now >= lane.ready_at:
                lane.state = LaneState.READY
            if lane.state is LaneState.EMPTY and not lane.asked:
                self._watch(lane)
        ready = [lane for lane in self.lanes if lane.state is LaneState.READY]
        if not ready:
            return
        limited = [] if credit is None else [lane for lane in ready if not lane.consumer.no_ack]
        for lane in ready:
            room = BURST - lane.asked - len(self.inbox)
            if lane not in limited and room > 0:
                self._ask(lane, room)
        if credit is not None and limited:
            waiting = sum(not delivery.lane.consumer.no_ack for delivery in self.inbox)
            asked = sum(lane.asked for lane in self.lanes if not lane.consumer.no_ack)
            for lane, count in share_out(limited, credit - waiting - asked).items():
                self._ask(lane, count)

    def open_item(self, name: str, consumer: Consumer) -> Delivery | None:
        """Open one item, and return it from the inbox; None if there is none now."""
        lane = Lane(name, consumer)
        try:
            while True:
                holder = self._holder(lane)
                self._ask(lane, 1, holder)
                while lane.asked:
                    holder.wire.wait_and_receive()
                for delivery in self.inbox:
                    if delivery.lane is lane:
                        return delivery
                if name not in holder.full:  # otherwise there may be one for another connection
                    return None
        except BaseException:
            self.hand_back(lane)
            raise

    def hand_back(self, lane: Lane) -> None:
        """Hand back the items of a lane that no consumer waits for any more, also those that come after this."""
        lane.is_cancelled = True
        for delivery in [delivery for delivery in self.inbox if delivery.lane is lane]:
            self.inbox.remove(delivery)
            delivery.holder.abort(lane.name, delivery.item_id)

    def _ask(self, lane: Lane, count: int, holder: Holder | None = None) -> None:
        found = holder or self._holder(lane)

        def on_reply(reply: Reply) -> None:
            self._on_item(lane, found, reply)

        lane.asked += count
        found.wire.send(lane.open_request * count, *(on_reply,) * count)

    def _on_item(self, lane: Lane, holder: Holder, reply: Reply) -> None:
        lane.asked -= 1
        if reply.word == b"VA":
            _, number, again = reply.rest.split(b" ", 2)
            delivery = Delivery(lane, holder, int(number[1:]), again == b"h1", reply.data)
            if lane.is_cancelled:
                holder.abort(lane.name, delivery.item_id)
            else:
                self.inbox.append(delivery)
        elif reply.word == b"EN":
            lane.state = LaneState.EMPTY
        elif "are open on this connection" in reply.why:
            holder.full.add(lane.name)
        else:
            self._refused(lane, reply)

    def _refused(self, lane: Lane, reply: Reply) -> None:
        """Try a refused lane again later, if that can help."""
        if reply.word != b"SERVER_ERROR":
            raise RequestRefused(f"the server refuses to read {lane.name}: {reply.why}")
        logger.warning("the server refuses to read %s: %s", lane.name, reply.why)
        lane.retry_later()

    def _watch(self, lane: Lane) -> None:
        if lane.watch is None:
            lane.watch = self._open_wire()
        if lane.watch.owed:
            return

        def on_reply(reply: Reply) -> None:
            if reply.is_error:
                self._refused(lane, reply)
            elif reply.word == b"HD":
                lane.state = LaneState.READY

        lane.watch.send(lane.watch_request, on_reply, wait_s=WATCH_S)

    def _holder(self, lane: Lane) -> Holder:
        """Return a connection that may open more items of this queue; the server limits the open reads of each."""
        for holder in self.holders:
            if lane.name not in holder.full:
                return holder
        holder = Holder(self._open_wire())
        self.holders.append(holder)
        return holder

    def close(self) -> None:
        """Wait for the replies to acknowledgements, then close; the server returns the other items. Never raises."""
        until = time.monotonic() + CLOSE_S
        for lane in self.lanes:
            lane.is_cancelled = True
            if lane.watch is not None:
                self._drop_wire(lane.watch)
        self.lanes = []
        for holder in self.holders:
            holder.wire.drain_replies(until - time.monotonic())
            self._drop_wire(holder.wire)
        self.holders = []
        self.inbox.clear()
