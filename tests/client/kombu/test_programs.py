"""What kombu's own tests ask of a transport, against a real server; docs/decisions/0031 lists what does not apply."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from tests.client.kombu.conftest import LONG_S, eventually, stored, url
from tests.client.kombu.test_channels import consume, drained, publish, silent
from tests.support.process import Server

pytestmark = pytest.mark.programs("python:kombu")
Connect = Callable[..., Any]


def test_a_connection_is_closed_and_made_again(connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    for _ in range(2):
        assert connection.connect() and connection.connected
        connection.close()
        assert not connection.connected
    assert connection.default_channel and connection.connected  # by itself


def test_an_operation_is_tried_on_the_default_channel(connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    used: list[Any] = []
    result, channel = connection.autoretry(lambda channel: used.append(channel) or "done", max_retries=0)()
    assert result == "done" and used == [channel] == [connection.default_channel]


def test_a_dead_server_of_a_list_is_passed_over(kombu: Any, shared: Server) -> None:
    with kombu.Connection(f"staniel://127.0.0.1:1//;{url(shared)}") as connection:
        connection.ensure_connection(max_retries=3, interval_start=0, interval_step=0)
        assert connection.port == shared.port
        publish(connection, "passed.over", "x")
    assert stored(shared)["passed:over"] == 1


def test_connections_do_not_share_what_they_declare(kombu: Any, connected: Connect, shared: Server) -> None:
    one, other = connected(shared), connected(shared)
    kombu.Queue("mine", kombu.Exchange("mine"), routing_key="mine")(one.default_channel).declare()
    assert ("mine", "mine", "mine") in list(one.default_channel.list_bindings())
    assert not list(other.default_channel.list_bindings())


@pytest.mark.parametrize("kind", ["SimpleQueue", "SimpleBuffer"])
def test_simple_queues_keep_body_type_and_headers(connected: Connect, shared: Server, kind: str) -> None:
    with closing(getattr(connected(shared), kind)(f"simple.{kind}")) as queue:
        queue.put({"hello": "world"}, headers={"key": "value"})
        message = queue.get(timeout=LONG_S)
        assert (message.payload, message.headers) == ({"hello": "world"}, {"key": "value"})
        assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
        message.ack()
        with pytest.raises(queue.Empty):
            queue.get_nowait()


def test_pickled_bodies_are_bytes_from_end_to_end(kombu: Any, connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    publish(connection, "pickled", {"a": (1, b"\x00\xff")}, serializer="pickle")
    got: list[Any] = []
    queue = kombu.Queue("pickled")
    kombu.Consumer(connection.channel(), [queue], on_message=got.append, accept=["pickle"]).consume()
    assert drained(connection, 1, got)[0].payload == {"a": (1, b"\x00\xff")}


def test_a_rejected_message_is_gone_and_a_requeued_one_comes_again(connected: Connect, shared: Server) -> None:
    with closing(connected(shared).SimpleQueue("simple.rejected")) as queue:
        queue.put("first")
        queue.get(timeout=LONG_S).reject(requeue=True)
        queue.get(timeout=LONG_S).requeue()
        last = queue.get(timeout=LONG_S)
        assert last.payload == "first"
        last.reject(requeue=False)
        with pytest.raises(queue.Empty):
            queue.get_nowait()


@pytest.mark.parametrize("kind", ["SimpleQueue", "SimpleBuffer"])
def test_a_message_expires_in_a_queue_of_tasks_and_in_one_that_gets_copies(
    connected: Connect, shared: Server, kind: str
) -> None:
    connection = connected(shared)
    with closing(getattr(connection, kind)(f"expires.{kind}")) as queue:
        name = queue.channel._names_of(f"expires.{kind}")[0]
        queue.put("x", expiration=0.001)
        assert eventually(lambda: stored(shared)[name] == 0)
        with pytest.raises(queue.Empty):
            queue.get_nowait()


def test_a_message_is_acknowledged_from_another_thread_through_the_event_loop(
    kombu: Any, connected: Connect, shared: Server
) -> None:
    from kombu.asynchronous.hub import Hub

    connection, hub, ended = connected(shared), Hub(), []
    publish(connection, "other.thread", *range(3))

    def ack(message: Any) -> None:
        message.ack()
        ended.append(message.payload)

    def on_message(message: Any) -> None:
        threading.Thread(target=hub.call_soon, args=(ack, message)).start()

    consumer = kombu.Consumer(connection, [kombu.Queue("other.thread")], on_message=on_message, prefetch_count=1)
    consumer.consume()
    connection.register_with_event_loop(hub)
    assert eventually(lambda: hub.run_once() or len(ended) == 3)
    assert ended == [0, 1, 2]
    connection.release()
    assert not hub.on_tick
    hub.close()
    assert eventually(lambda: stored(shared)["other:thread"] == 0)


def test_the_event_loop_gets_one_message_a_tick_and_does_not_wait_for_the_next(
    kombu: Any, connected: Connect, shared: Server
) -> None:
    from kombu.asynchronous.hub import Hub

    connection, hub = connected(shared), Hub()
    publish(connection, "one.a.tick", *range(4))
    got = consume(kombu, connection, "one.a.tick")
    (channel,) = (each for each in connection.transport.channels if each.reader.lanes)
    while len(channel.reader.inbox) < 4:
        connection.transport._receive(LONG_S)
    connection.register_with_event_loop(hub)
    poll = hub.poller.poll
    hub.poller.poll = lambda timeout: poll(0)  # what is not ready at once does not come
    for number in range(1, 5):
        hub.run_once()
        assert [message.payload for message in got] == list(range(number))
    hub.close()


def test_a_queue_with_messages_is_not_deleted_if_it_must_be_empty(
    kombu: Any, connected: Connect, shared: Server
) -> None:
    connection = connected(shared)
    channel = connection.default_channel
    publish(connection, "not.empty", "x")
    queue = kombu.Queue("not.empty", channel=channel)
    queue.delete(if_empty=True)
    assert stored(shared)["not:empty"] == 1
    assert queue.purge() == 1
    queue.delete(if_empty=True)
    assert "not:empty" not in stored(shared)
    queue.delete()  # of nothing


def test_topics_are_matched_word_by_word(kombu: Any, connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    stocks = kombu.Exchange("stocks", "topic")
    queues = [kombu.Queue(f"stocks.{key}", stocks, key) for key in ("us.*", "us.#", "#", "us.nasdaq")]
    for key in ("us.nasdaq", "us.nasdaq.tech", "xus.nasdaq"):
        publish(connection, key, key, exchange=stocks, declare=queues)
    items = stored(shared)
    assert [items[f"stocks:{key}"] for key in ("us:=2A", "us:=23", "=23", "us:nasdaq")] == [1, 2, 3, 1]


def test_priorities_change_nothing(kombu: Any, connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    for number, priority in enumerate((3, 9, 0)):
        publish(connection, "no.priorities", number, priority=priority)
    got = drained(connection, 3, consume(kombu, connection, "no.priorities"))
    assert [message.payload for message in got] == [0, 1, 2] and silent(connection)


def test_copies_that_kombu_would_put_back_are_switched_off(kombu: Any, connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    publish(connection, "no.copies", *range(2))
    got = drained(connection, 2, consume(kombu, connection, "no.copies"))
    channel = got[0].channel
    assert not channel.do_restore and channel.qos.restore_unacked() == []
    channel.qos.restore_unacked_once()
    assert [message.payload for message in drained(connection, 4, got)[2:]] == [0, 1]
