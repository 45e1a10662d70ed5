"""The routing of a message: to queues whose bindings this process knows, and to the parent that copies to all others.

Processes do not share bindings. A durable queue gets messages of producers that have declared it, as Celery's do.
Transient ones, of other processes, are fan-out children of their exchange and filter what they read.
"""

from __future__ import annotations

from typing import Any

from kombu.transport.virtual.exchange import DirectExchange, FanoutExchange, TopicExchange

from staniel.client.kombu.errors import Undeliverable


def _deliver(exchange_type: Any, message: dict[str, Any], exchange: str, routing_key: str, always_copies: bool) -> None:
    """Put a message to the known queues, and to the parent if there may be others. Raises Undeliverable."""
    channel = exchange_type.channel
    found = [queue for queue in channel._lookup(exchange, routing_key) if queue]
    known = [queue for queue in found if not channel.is_copied(queue, exchange)]
    declared = channel.state.exchanges.get(exchange, {})
    has_own = any(not channel.is_copied(row[2], exchange) for row in declared.get("table", ()))
    must_arrive = has_own or (declared.get("durable", False) and not always_copies)
    if must_arrive and not found:
        raise Undeliverable(
            f"no queue is bound to the exchange {exchange!r} for the routing key {routing_key!r}; "
            "declare the queue in the program that publishes"
        )
    for queue in known:
        channel._put(queue, message)
    if always_copies or len(known) < len(found) or not found:
        channel._put_fanout(exchange, message, routing_key)


class Direct(DirectExchange):
    def deliver(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> None:
        _deliver(self, message, exchange, routing_key, always_copies=False)


class Topic(TopicExchange):
    def deliver(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> None:
        _deliver(self, message, exchange, routing_key, always_copies=True)


EXCHANGE_TYPES = {"direct": Direct, "topic": Topic, "fanout": FanoutExchange}
