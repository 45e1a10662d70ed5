"""A channel: kombu's queues and exchanges on queues of the server, and the deliveries that wait for their end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import count
from queue import Empty
from types import MappingProxyType
from typing import Any, NamedTuple

from amqp.protocol import queue_declare_ok_t
from kombu.log import get_logger
from kombu.transport import virtual
from kombu.utils.uuid import uuid

from staniel.client.kombu import envelope, names
from staniel.client.kombu.consuming import Consumer, Delivery, Holder, Reader
from staniel.client.kombu.envelope import UndecodableItem
from staniel.client.kombu.errors import ConnectionLost, PutRefused, RequestRefused, Undeliverable
from staniel.client.kombu.exchanges import EXCHANGE_TYPES
from staniel.client.kombu.wire import Reply

logger = get_logger(__name__)


class Held(NamedTuple):
    """A delivery that its consumer has not ended."""

    holder: Holder
    name: str  # of the server's queue
    item_id: int
    data: bytes


class QoS(virtual.QoS):
    """The deliveries that are not ended. No item is put back as a copy, because the server returns the open items of a
    lost connection.
    """

    restore_at_shutdown = False

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._on_collect.cancel()
        self.held: dict[Any, Held] = {}

    def append(self, message: Any, delivery_tag: Any) -> None:
        self._delivered[delivery_tag] = message

    def forget(self, delivery_tag: Any) -> None:
        """Forget a delivery that its consumer was not given."""
        self._delivered.pop(delivery_tag, None)
        self.held.pop(delivery_tag, None)

    def can_consume(self) -> bool:
        return not self.prefetch_count or len(self.held) < self.prefetch_count

    def can_consume_max_estimate(self) -> int | None:
        """Return how many more messages may be delivered, None without a limit."""
        return max(0, self.prefetch_count - len(self.held)) if self.prefetch_count else None

    def ack(self, delivery_tag: Any) -> None:
        """Confirm an item, in any order, from any thread."""
        held = self._end(delivery_tag)
        if held is not None:
            held.holder.confirm(held.name, held.item_id)

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """Hand an item back, or set it aside."""
        held = self._end(delivery_tag)
        if held is None:
            return
        if requeue:
            held.holder.abort(held.name, held.item_id)
        else:
            self.channel.set_aside(held, "rejected")

    def _end(self, delivery_tag: Any) -> Held | None:
        self._delivered.pop(delivery_tag, None)
        held = self.held.pop(delivery_tag, None)
        if held is None and not self.channel.closed:
            logger.warning("delivery %s is not held any more: it was ended before", delivery_tag)
        return held

    def restore_unacked(self) -> list[Any]:
        """Hand back all open deliveries, the newest first, which restores their order."""
        for tag in reversed(list(self.held)):
            self.reject(tag, requeue=True)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Forget the open deliveries: the channel's connection ends, and the server returns them to their queues."""
        self._delivered.clear()
        self.held.clear()


class Channel(virtual.Channel):
    """A channel with connections of its own for what it reads; it puts over the transport's."""

    QoS = QoS
    do_restore = False
    supports_fanout = True
    exchange_types = EXCHANGE_TYPES
    body_encoding = None
    from_transport_options = ("deadletter_queue", "dead_letter_queue", "broadcast_ttl_s", "queue_weights")
    dead_letter_queue: str | None = "dead_letters"  # for rejected items and those that are not messages
    broadcast_ttl_s: int = 60  # the life of a message of an exchange that copies
    queue_weights: Mapping[str, Any] = MappingProxyType({})  # a queue that is not named has 1

    closed: bool

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        transport = connection
        self.reader = Reader(transport.open_wire, transport.drop_wire)
        self._by_tag: dict[str, Consumer] = {}
        self._tags = count(1)
        self._own: set[str] = set()  # exclusive queues declared here, which end with the channel
        self._forget: set[str] = set()

    @property
    def transport(self) -> Any:
        """The transport. Raises ConnectionLost if the channel is closed, so that kombu opens another."""
        if self.connection is None:
            raise ConnectionLost("the channel is closed")
        return self.connection

    @property
    def state(self) -> Any:
        return self.transport.state

    # declare

    def queue_declare(self, queue: str | None = None, passive: bool = False, **options: Any) -> Any:
        name = queue or f"amq.gen-{uuid()}"
        if passive:
            if not self._has_queue(name):
                raise RequestRefused(f"NOT_FOUND - no queue {name!r}", (50, 10), "Channel.queue_declare", "404")
        else:
            self._new_queue(name, **options)
        return queue_declare_ok_t(name, self._size(name), 0)

    def _new_queue(self, queue: str, **options: Any) -> None:
        """Note the properties of a queue. The server creates it with its first item."""
        _named(names.encode, queue)
        transport = self.transport
        transport.declared.add(queue)
        if options.get("exclusive") or (options.get("auto_delete") and not options.get("durable", True)):
            transport.transient.add(queue)
        if options.get("exclusive"):
            self._own.add(queue)

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return queue in self.transport.declared or any("items" in self._facts(name) for name in self._names_of(queue))

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **options: Any
    ) -> None:
        super().queue_bind(queue, exchange, routing_key, arguments, **options)
        if self.is_copied(queue, exchange or "amq.direct"):
            self.transport.make_child(exchange or "amq.direct", queue)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        """Do nothing more, because `queue_bind` has done everything."""

    def is_copied(self, queue: str, exchange: str) -> bool:
        """Tell whether a queue gets copies from its exchange's parent. Queues of every fanout exchange do, and
        transient ones, because producers do not know of their bindings.
        """
        kind = self.typeof(exchange).type
        return kind == "fanout" or (bool(exchange) and queue in self.transport.transient)

    def _names_of(self, queue: str) -> list[str]:
        """Return the names of the server's queues that are read for one queue of kombu's."""
        exchanges = {binding.exchange for binding in self.state.queue_bindings(queue)}
        copied = [exchange for exchange in sorted(exchanges) if self.is_copied(queue, exchange)]
        found = [_named(names.child, exchange, queue) for exchange in copied]
        return found if copied and len(copied) == len(exchanges) else [*found, _named(names.encode, queue)]

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any) -> None:
        if if_empty and self._size(queue):
            return
        for name in self._names_of(queue):
            self._delete(name)
        self._forget_bindings(queue)

    def _forget_bindings(self, queue: str) -> None:
        for exchange, routing_key, arguments in list(self.state.queue_bindings(queue)):
            self.queue_unbind(queue, exchange, routing_key, arguments)
        self.state.queue_bindings_delete(queue)
        self._own.discard(queue)
        self.transport.declared.discard(queue)
        self.transport.transient.discard(queue)

    def _delete(self, queue: str, *args: Any, **options: Any) -> None:
        (reply,) = self.transport.call(b"delete %b\r\n" % queue.encode("latin-1"))
        if reply.is_error:
            raise RequestRefused(f"the server refuses to delete {queue}: {reply.why}")

    def _purge(self, queue: str) -> int:
        """Remove the ready items. Return roughly how many there were."""
        size = self._size(queue)
        for name in self._names_of(queue):
            (reply,) = self.transport.call(b"flush %b\r\n" % name.encode("latin-1"))
            if reply.is_error:
                raise RequestRefused(f"the server refuses to flush {name}: {reply.why}")
        return size

    def _size(self, queue: str) -> int:
        return sum(int(self._facts(name).get("items", 0)) for name in self._names_of(queue))

    def _facts(self, name: str) -> dict[str, str]:
        (reply,) = self.transport.call(b"dump_stats %b\r\n" % name.encode("latin-1"))
        lines = [line.decode("latin-1").strip() for line in reply.lines]
        return {key: value for key, is_fact, value in (line.partition("=") for line in lines) if is_fact}

    # publish

    def _next_delivery_tag(self) -> None:
        """Leave the tag to the receiver: each delivery has its own."""

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        """Store a message. On return it is as durable as the queue's sync policy says."""
        found = self._names_of(queue)
        self.transport.put(found[-1], envelope.encode(message), _ttl_s(message))

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **options: Any) -> None:
        """Give a message to all queues of an exchange, any number of them; it does not stay in their parent.

        A transient message of a topic exchange, such as Celery's events, is sent without waiting for the reply, because
        a worker sends three for each task.
        """
        name = _named(names.parent, exchange)
        life_s = min(self.broadcast_ttl_s, _ttl_s(message) or self.broadcast_ttl_s)
        is_event = message["properties"].get("delivery_mode") == 1 and self.typeof(exchange).type == "topic"
        self.transport.put_to_parent(name, envelope.encode(message), life_s, waits=not is_event)

    def set_aside(self, held: Held, why: str) -> None:
        """Put an item into the queue of dead letters, then confirm it. If that is refused, it stays open."""
        if self.dead_letter_queue:
            logger.error("item %d of %s: %s; it goes to %s", held.item_id, held.name, why, self.dead_letter_queue)
            try:
                self.transport.put(_named(names.encode, self.dead_letter_queue), held.data, None)
            except (PutRefused, RequestRefused, ConnectionLost) as error:
                logger.error("item %d of %s stays open, it cannot be set aside: %s", held.item_id, held.name, error)
                return
        held.holder.confirm(held.name, held.item_id)

    # consume

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any) -> None:
        weight = self._weight_of(queue)
        consumer = Consumer(queue, bool(no_ack), callback)
        self._tag_to_queue[consumer_tag] = queue
        self._active_queues.append(queue)
        self._consumers.add(consumer_tag)
        self._by_tag[consumer_tag] = consumer
        for name in self._names_of(queue):
            self.reader.add(name, consumer, weight)
        self.refill()

    def _weight_of(self, queue: str) -> int:
        """Return the weight of a queue. Raises ValueError, which ends a worker that is told nonsense."""
        weight: Any = self.queue_weights.get(queue, 1)
        if not isinstance(weight, int) or weight < 1:
            raise ValueError(f"queue_weights: the weight of {queue!r} is {weight!r}, not a whole number from 1 on")
        return int(weight)

    def basic_cancel(self, consumer_tag: str) -> None:
        consumer = self._by_tag.pop(consumer_tag, None)
        if consumer is None:
            return
        self._consumers.discard(consumer_tag)
        self._tag_to_queue.pop(consumer_tag, None)
        self._active_queues.remove(consumer.queue)
        self.reader.cancel(consumer)
        if consumer.queue in self.transport.transient and consumer.queue not in self._active_queues:
            self._end_transient(consumer.queue)

    def _end_transient(self, queue: str) -> None:
        """Delete a queue that ends with its last consumer, if the server can be asked."""
        try:
            if self.transport.is_alive:
                self.queue_delete(queue)
        except (ConnectionLost, RequestRefused) as error:
            logger.warning("the queue %s is left behind: %s", queue, error)

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        got: list[Any] = []
        consumer = Consumer(queue, no_ack, got.append)
        delivery = None
        try:
            for name in self._names_of(queue):
                while not got and (delivery := self.reader.open_item(name, consumer)) is not None:
                    self.deliver(delivery)
            return got[0] if got else None
        except BaseException:  # the caller does not get the message
            self._take_back(consumer, delivery)
            raise

    def _take_back(self, consumer: Consumer, delivered: Delivery | None) -> None:
        """Hand back the items of a consumer that wait for their delivery, and one that is held already."""
        for delivery in [waiting for waiting in self.reader.inbox if waiting.lane.consumer is consumer]:
            self.reader.hand_back(delivery.lane)
        if delivered is not None:
            for tag, held in list(self.qos.held.items()):
                if (held.holder, held.item_id) == (delivered.holder, delivered.item_id):
                    self.qos.reject(tag, requeue=True)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        message = self.basic_get(queue, no_ack=True)
        if message is None:
            raise Empty
        raw: dict[str, Any] = message._raw
        return raw

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        self.qos.prefetch_count = prefetch_count
        self.refill()

    def refill(self) -> None:
        """Request as many items as the prefetch limit allows."""
        if not self.closed and self.reader.lanes:
            self.reader.refill(self.qos.can_consume_max_estimate())

    def deliver_one(self) -> bool:
        """Give one item to its consumer. Return False if there is none."""
        if not self.reader.inbox:
            return False
        self.deliver(self.reader.inbox[0])
        return True

    def deliver(self, delivery: Delivery) -> None:
        """Give an item of the inbox to its consumer; set it aside if it is not a message. If an exception comes first,
        such as that of a signal, it stays in the inbox.
        """
        consumer, inbox = delivery.lane.consumer, self.reader.inbox
        held = Held(delivery.holder, delivery.lane.name, delivery.item_id, delivery.data)
        tag = next(self._tags)
        try:
            message = self._message_of(delivery, tag)
        except Exception as error:  # no message may end a worker
            if self._is_message(delivery):  # the exception was not about the item
                raise _cause(error)  # noqa: B904 - it is the one that was caught
            self.set_aside(held, f"it is no message of kombu's: {error}")
            inbox.remove(delivery)
            return
        try:
            if message is None or consumer.no_ack:
                held.holder.confirm(held.name, held.item_id)
            else:
                self.qos.held[tag] = held
                self.qos.append(message, tag)
            inbox.remove(delivery)
        except BaseException:
            self.qos.forget(tag)
            if delivery not in inbox:
                inbox.appendleft(delivery)
            raise
        if message is not None:
            consumer.callback(message)

    def _message_of(self, delivery: Delivery, tag: int) -> Any:
        """Return the message of an item, None for a copy that its queue is not bound for. Any exception can mean that
        it is no message.
        """
        raw = envelope.decode(delivery.data)
        if not self._is_wanted(delivery.lane.consumer.queue, delivery.lane.name, raw):
            return None
        raw["properties"]["delivery_tag"] = tag
        raw["properties"]["delivery_info"]["redelivered"] = delivery.redelivered
        if delivery.redelivered:
            raw["headers"]["redelivered"] = True
        return self.Message(raw, channel=self)

    def _is_message(self, delivery: Delivery) -> bool:
        try:
            self._message_of(delivery, 0)
        except Exception:
            return False
        return True

    def _is_wanted(self, queue: str, name: str, raw: dict[str, Any]) -> bool:
        """Tell whether a copy of an exchange's message has a routing key that this queue is bound for."""
        info = raw["properties"]["delivery_info"]
        exchange = info.get("exchange")
        if not name.startswith(names.EXCHANGE) or not exchange:
            return True
        kind = self.typeof(exchange)
        table = [row for row in self.get_table(exchange) if row[2] == queue]
        return bool(kind.lookup(table, exchange, info.get("routing_key") or "", None))

    def basic_ack(self, delivery_tag: Any, multiple: bool = False) -> None:
        if multiple:
            for tag in [held for held in list(self.qos.held) if held <= delivery_tag]:
                self.qos.ack(tag)
        else:
            self.qos.ack(delivery_tag)

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        self.transport.drain_events(self.connection, timeout=timeout)

    def close(self) -> None:
        """Close. Acknowledged items are done, all others return to their queues. Never raises if the server is gone."""
        if self.closed:
            return
        self.reader.close()  # before the consumers are cancelled, which would hand items back one by one
        for tag in list(self._by_tag):
            self.basic_cancel(tag)
        self.closed = True
        if self.connection is not None:
            for queue in list(self._own):
                self._end_transient(queue)
            self.connection.close_channel(self)
        if self._qos is not None:
            self._qos.restore_unacked_once()


def _cause(error: Exception) -> BaseException:
    """Return the exception that the decoder has met, if this is one of its own."""
    return error.__cause__ or error if isinstance(error, UndecodableItem) else error


def _named(make: Any, *parts: str) -> str:
    """Return the server's name. Raises RequestRefused."""
    try:
        name: str = make(*parts)
    except ValueError as error:
        raise RequestRefused(str(error)) from error
    return name


def _ttl_s(message: dict[str, Any]) -> int | None:
    """Return the lifetime of a message in seconds, from its `expiration` in milliseconds."""
    expiration = message["properties"].get("expiration")
    return None if expiration is None else max(1, math.ceil(int(expiration) / 1000))


def put_error(reply: Reply, name: str) -> Exception | None:
    """Return what a put raises, None if the item is stored."""
    if reply.word == b"HD":
        return None
    if reply.word == b"NS":
        return PutRefused(f"the queue {name} is full")
    if reply.word == b"SERVER_ERROR":
        return PutRefused(f"the server refuses to put to {name}: {reply.why}")
    return RequestRefused(f"the server refuses to put to {name}: {reply.why}")


__all__ = ["Channel", "Undeliverable"]
