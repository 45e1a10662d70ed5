"""What kombu's programs rely on, against a real server."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from staniel.client import Client
from tests.client.kombu.conftest import LONG_S, eventually, stored, url
from tests.support.process import Server

pytestmark = pytest.mark.programs("python:kombu")
Connect = Callable[..., Any]
WEIGHTS = {"a": 3, "b": 1, "c": 1}


def drained(connection: Any, messages: int, into: list[Any]) -> list[Any]:
    """Drain events until so many messages have come."""
    while len(into) < messages:
        connection.drain_events(timeout=LONG_S)
    return into


def silent(connection: Any) -> bool:
    """Whether nothing comes any more."""
    try:
        connection.drain_events(timeout=0.1)
    except socket.timeout:  # noqa: UP041 - the name that kombu's programs use
        return True
    return False


def consume(kombu: Any, connection: Any, *queues: str, prefetch: int = 0) -> list[Any]:
    """Consume from queues of the default exchange; messages come into the list that is returned."""
    got: list[Any] = []
    channel = connection.channel()
    consumer = kombu.Consumer(channel, [kombu.Queue(name) for name in queues], on_message=got.append)
    if prefetch:
        consumer.qos(prefetch_count=prefetch)
    consumer.consume()
    return got


def publish(connection: Any, queue: str, *bodies: Any, **options: Any) -> None:
    producer = connection.Producer(connection.default_channel)
    for body in bodies:
        producer.publish(body, routing_key=queue, **options)


def test_messages_are_acknowledged_in_any_order(kombu: Any, connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    publish(connection, "order.any", *range(5))
    got = drained(connection, 5, consume(kombu, connection, "order.any"))
    for message in [got[3], got[0], got[4]]:
        message.ack()
    connection.release()
    again = connected(shared)
    back = drained(again, 2, consume(kombu, again, "order.any"))
    assert [(message.payload, message.delivery_info["redelivered"]) for message in back] == [(1, True), (2, True)]
    assert silent(again)


def test_no_more_messages_come_than_the_prefetch_limit(kombu: Any, connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    publish(connection, "limited", *range(5))
    got = drained(connection, 2, consume(kombu, connection, "limited", prefetch=2))
    assert silent(connection) and len(got) == 2
    got[1].ack()
    assert [message.payload for message in drained(connection, 3, got)] == [0, 1, 2]
    got[0].channel.basic_qos(0, 4, False)
    assert len(drained(connection, 5, got)) == 5


def test_several_queues_take_turns(kombu: Any, connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    publish(connection, "fair.a", *["a"] * 20)
    publish(connection, "fair.b", *["b"] * 4)
    got = consume(kombu, connection, "fair.a", "fair.b", prefetch=1)
    for number in range(1, 13):
        drained(connection, number, got)[-1].ack()
    assert [message.payload for message in got].count("b") == 4


def test_queues_take_turns_however_often_the_loop_looks_for_more(
    kombu: Any, connected: Connect, shared: Server
) -> None:
    connection = connected(shared)
    publish(connection, "looked.a", *["a"] * 8)
    publish(connection, "looked.b", *["b"] * 8)
    got = consume(kombu, connection, "looked.a", "looked.b", prefetch=1)
    for number in range(1, 9):
        message = drained(connection, number, got)[-1]
        message.channel.refill()
        message.ack()
    assert [message.payload for message in got].count("b") == 4


@pytest.mark.parametrize("prefetch", [1, 8])
def test_a_queue_of_three_times_the_weight_gets_three_of_four_turns(
    kombu: Any, connected: Connect, shared: Server, prefetch: int
) -> None:
    heavy, light = f"heavy.{prefetch}", f"light.{prefetch}"
    connection = connected(shared, transport_options={"queue_weights": {heavy: 3}})
    publish(connection, heavy, *["heavy"] * 30)
    publish(connection, light, *["light"] * 30)
    got = consume(kombu, connection, heavy, light, prefetch=prefetch)
    for number in range(prefetch + 16):
        drained(connection, number + 1, got)[number].ack()
    # All that is asked first is asked of the first queue, before the second one is consumed.
    assert [message.payload for message in got[prefetch : prefetch + 16]].count("heavy") == 12


def test_an_empty_queue_leaves_its_turns_to_others(kombu: Any, connected: Connect, shared: Server) -> None:
    connection = connected(shared, transport_options={"queue_weights": {"empty": 1000}})
    publish(connection, "not empty", *range(8))
    got = consume(kombu, connection, "empty", "not empty", prefetch=1)
    for number in range(1, 9):
        drained(connection, number, got)[-1].ack()


def test_weights_are_shared_out_evenly_over_time_and_never_beyond_what_a_connection_is_asked_for() -> None:
    consuming = importlib.import_module("staniel.client.kombu.consuming")
    lanes = [consuming.Lane(name, consuming.Consumer(name, False, None), weight) for name, weight in WEIGHTS.items()]
    turns = [lane.name for _ in range(12) for lane in consuming.share_out(lanes, 1)]
    assert "".join(turns) == "abacaabacaab"
    assert sum(consuming.share_out(lanes, 1000).values()) == 3 * consuming.BURST
    assert consuming.share_out(lanes, -1) == {}


@pytest.mark.parametrize("weight", [0, -1, 1.5, "2"])
def test_a_weight_that_is_no_number_from_one_on_is_refused(
    kombu: Any, connected: Connect, shared: Server, weight: Any
) -> None:
    connection = connected(shared, transport_options={"queue_weights": {"odd": weight}})
    with pytest.raises(ValueError, match=r"queue_weights: the weight of 'odd' is "):
        consume(kombu, connection, "odd")


def test_a_requeued_message_comes_again_and_says_so(kombu: Any, connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    publish(connection, "requeued", "x")
    got = drained(connection, 1, consume(kombu, connection, "requeued"))
    assert not got[0].delivery_info["redelivered"]
    got[0].requeue()
    drained(connection, 2, got)
    assert got[1].delivery_info["redelivered"] and got[1].headers["redelivered"]
    got[1].ack()


def test_a_killed_connection_gives_back_the_messages_and_no_copies(
    kombu: Any, connected: Connect, shared: Server
) -> None:
    connection = connected(shared)
    publish(connection, "given back", *range(3))
    consumer = connected(shared)
    got = drained(consumer, 3, consume(kombu, consumer, "given back"))
    for holder in got[0].channel.reader.holders:
        holder.wire._sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(consumer.connection_errors):
        consumer.drain_events(timeout=LONG_S)
    for message in got:  # their deliveries are over: nothing is confirmed, and nothing is raised
        message.ack()
    consumer.release()
    back = drained(connection, 3, consume(kombu, connection, "given back"))
    assert [message.payload for message in back] == [0, 1, 2] and silent(connection)


def test_a_consumer_may_hold_more_than_one_connection_can(kombu: Any, connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    publish(connection, "none.held", *range(35))
    got = drained(connection, 35, consume(kombu, connection, "none.held"))
    assert len(got[0].channel.reader.holders) == 4  # the server lets a connection hold ten
    for message in got:
        message.ack()
    assert silent(connection)
    connection.release()
    assert stored(shared)["none:held"] == 0


def test_a_program_that_gets_may_hold_more_than_one_connection_can(
    kombu: Any, connected: Connect, shared: Server
) -> None:
    connection = connected(shared)
    publish(connection, "gotten", *range(25))
    got = [connection.default_channel.basic_get("gotten") for _ in range(26)]
    assert [None if message is None else message.payload for message in got] == [*range(25), None]
    for message in got[:25]:
        message.ack()
    connection.release()
    assert stored(shared)["gotten"] == 0


def test_a_cancelled_consumer_leaves_what_it_was_not_given(kombu: Any, connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    publish(connection, "cancelled", *range(6))
    got: list[Any] = []
    consumer = kombu.Consumer(connection.channel(), [kombu.Queue("cancelled")], on_message=got.append)
    consumer.consume()
    drained(connection, 1, got)[0].ack()
    consumer.cancel()
    back = drained(connection, 5, consume(kombu, connection, "cancelled"))
    assert [message.payload for message in back] == [1, 2, 3, 4, 5]


def test_a_consumer_that_is_cancelled_at_once_holds_nothing_back(
    kombu: Any, connected: Connect, shared: Server
) -> None:
    connection, other = connected(shared), connected(shared)
    publish(connection, "not.wanted", *range(6))
    consumer = kombu.Consumer(connection.channel(), [kombu.Queue("not.wanted")], on_message=print)
    consumer.consume()  # six items are on the way
    consumer.cancel()
    back = drained(other, 6, consume(kombu, other, "not.wanted"))
    assert [message.payload for message in back] == list(range(6))


def test_a_full_queue_raises_an_error_that_may_be_retried(connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    publish(connection, "full", 1)
    with pytest.raises(connection.recoverable_connection_errors, match="full"):
        publish(connection, "full", 2)
    assert stored(shared)["full"] == 1


def test_what_can_never_be_stored_raises_a_channel_error(kombu: Any, connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    for queue, body in (("small", "x" * 2000), ("n" * 201, "x")):
        with pytest.raises(connection.channel_errors):
            publish(connection, queue, body)
    task = kombu.Queue("never", kombu.Exchange("tasks"), routing_key="never")
    with pytest.raises(connection.channel_errors, match="no queue is bound"):
        publish(connection, "nobody", "x", exchange=task.exchange, declare=[task.exchange])


def test_fanout_and_transient_topics_reach_who_is_bound(kombu: Any, connected: Connect, shared: Server) -> None:
    connection, other = connected(shared), connected(shared)
    bulletin, events = kombu.Exchange("bulletin", "fanout"), kombu.Exchange("events", "topic")
    queues = [kombu.Queue(name, bulletin, auto_delete=True, durable=False) for name in ("news.1", "news.2")]
    queues.append(kombu.Queue("task.events", events, "task.#", auto_delete=True, durable=False))
    got: list[Any] = []
    consumer = kombu.Consumer(connection.channel(), queues, on_message=got.append, no_ack=True)
    consumer.consume()
    publish(other, "", "all", exchange=bulletin, declare=[bulletin])
    publish(other, "worker.online", "unheard", exchange=events, declare=[events])
    publish(other, "task.sent.x", "heard", exchange=events, declare=[events])
    drained(connection, 3, got)
    assert sorted(message.payload for message in got) == ["all", "all", "heard"] and silent(connection)
    consumer.cancel()
    left = {name: items for name, items in stored(shared).items() if "news" in name or "events" in name}
    assert left == {"!events": 0}  # the queues ended with their consumer; what was for nobody is gone


def test_a_durable_topic_queue_gets_what_its_publisher_declared(kombu: Any, connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    feeds = kombu.Exchange("feeds", "topic")
    queue = kombu.Queue("feed.queue", feeds, "feed.*")
    publish(connection, "feed.one", "x", exchange=feeds, declare=[queue])
    with pytest.raises(connection.channel_errors):
        publish(connection, "else", "y", exchange=feeds, declare=[queue])
    assert stored(shared)["feed:queue"] == 1


def test_what_is_no_message_goes_to_the_dead_letters_and_the_next_is_served(
    kombu: Any, connected: Connect, shared: Server
) -> None:
    with Client(*shared.address) as client:
        client.put_many("poisoned", [b"garbage", b"", b'{"body": 1}', b"\x01K\x00\x00\xff\xff{}"])
        connection = connected(shared)
        publish(connection, "poisoned", "good", "rejected")
        got = drained(connection, 2, consume(kombu, connection, "poisoned"))
        assert [message.payload for message in got] == ["good", "rejected"]
        got[0].ack()
        got[1].reject()
        assert silent(connection)
        dead = [client.get("dead_letters") for _ in range(6)]
        assert [item.data if item else None for item in dead][:4] == [
            b"garbage", b"", b'{"body": 1}', b"\x01K\x00\x00\xff\xff{}",
        ]  # fmt: skip
        assert dead[4] is not None and b"rejected" in dead[4].data and dead[5] is None


def test_sizes_purges_and_passive_declarations(kombu: Any, connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    channel = connection.channel()
    with pytest.raises(connection.channel_errors):
        kombu.Queue("counted")(channel).queue_declare(passive=True)
    publish(connection, "counted", *range(3))
    assert kombu.Queue("counted")(channel).queue_declare(passive=True).message_count == 3
    assert channel.queue_purge("counted") == 3
    assert channel.basic_get("counted") is None
    channel.queue_delete("counted")
    assert "counted" not in stored(shared)


def test_a_message_past_its_expiration_is_not_delivered(connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    publish(connection, "expiring", "x", expiration=0.001)
    assert eventually(lambda: stored(shared)["expiring"] == 0)


def test_a_message_may_live_for_longer_than_a_month(connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    for number, days in enumerate((29, 31, 4000, 40000)):
        publish(connection, "lasting", days, expiration=days * 86_400)
        assert stored(shared)["lasting"] == number + 1


def test_a_child_process_uses_connections_of_its_own(kombu: Any, connected: Connect, shared: Server) -> None:
    connection = connected(shared)
    publish(connection, "forked", "before")
    got = consume(kombu, connection, "forked", prefetch=1)
    drained(connection, 1, got)
    child = os.fork()
    if child == 0:
        try:
            publish(connection, "forked", "in the child")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    publish(connection, "forked", "after")
    got[0].ack()
    assert [message.payload for message in drained(connection, 2, got)] == ["before", "in the child"]
    got[1].ack()
    assert drained(connection, 3, got)[2].payload == "after"


HOLDS_AND_FORKS = """
import os, sys, time, kombu, staniel.kombu
connection = kombu.Connection(sys.argv[1])
message = connection.default_channel.basic_get("inherited")
assert message is not None
if os.fork() == 0:
    time.sleep(60)
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_killed_program_gives_back_its_messages_though_its_child_lives(connected: Connect, shared: Server) -> None:
    publish(connected(shared), "inherited", "x")
    command = [sys.executable, "-c", HOLDS_AND_FORKS, url(shared)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as program:
        try:
            assert program.stdout is not None and program.stdout.readline()
            assert stored(shared)["inherited"] == 0
            program.kill()
            assert eventually(lambda: stored(shared)["inherited"] == 1)
        finally:
            os.killpg(program.pid, signal.SIGKILL)


def test_a_silent_server_does_not_hold_up_a_publisher(kombu: Any, connected: Connect, server: Server) -> None:
    publish(connected(server), "silent", 1)
    connection = connected(server, transport_options={"answer_timeout_s": 0.2})

    def is_connected() -> bool:
        with suppress(*connection.recoverable_connection_errors, kombu.exceptions.OperationalError):
            connection.connect()  # a busy server may not reply in time
        return bool(connection.connected)

    assert eventually(is_connected)
    server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(connection.recoverable_connection_errors, match="did not reply"):
            publish(connection, "silent", 2)
    finally:
        server.signal(signal.SIGCONT)


def test_events_are_not_waited_for_and_all_arrive_in_order(kombu: Any, connected: Connect, server: Server) -> None:
    reader, connection = connected(server), connected(server)
    events = kombu.Exchange("events", "topic")
    queue = kombu.Queue("monitor", events, "#", auto_delete=True, durable=False)
    got: list[Any] = []
    kombu.Consumer(reader.channel(), [queue], on_message=got.append, no_ack=True).consume()
    publish(connection, "task.sent", "first", exchange=events, declare=[events], delivery_mode=1)
    server.signal(signal.SIGSTOP)
    try:
        publish(connection, "task.sent", *range(10), exchange=events, delivery_mode=1)
    finally:
        server.signal(signal.SIGCONT)
    publish(connection, "task.sent", *range(10, 300), exchange=events, delivery_mode=1)
    publish(connection, "task", "waited for")
    publish(connection, "task.sent", "last", exchange=events, delivery_mode=1)
    connection.release()
    bodies = [message.payload for message in drained(reader, 302, got)]
    assert bodies == ["first", *range(300), "last"] and silent(reader)
    assert stored(server)["!events"] == 0 and stored(server)["task"] == 1


def test_events_reach_a_server_that_was_started_again(kombu: Any, connected: Connect, server: Server) -> None:
    connection = connected(server)
    events = kombu.Exchange("events", "topic")
    publish(connection, "task.sent", "before", exchange=events, declare=[events], delivery_mode=1)
    server.options = ("--port", str(server.port))
    server.restart()
    queue = kombu.Queue("monitor", events, "#", auto_delete=True, durable=False)
    got: list[Any] = []
    reader = connected(server)
    kombu.Consumer(reader.channel(), [queue], on_message=got.append, no_ack=True).consume()
    publish(connection, "task.sent", "after", exchange=events, delivery_mode=1)
    assert drained(reader, 1, got)[0].payload == "after"


def test_an_idle_connection_survives_a_restart_of_the_server(kombu: Any, connected: Connect, server: Server) -> None:
    connection = connected(server)
    publish(connection, "kept", 1)
    server.options = ("--port", str(server.port))
    server.restart()
    publish(connection, "kept", 2)
    assert [message.payload for message in drained(connection, 2, consume(kombu, connection, "kept"))] == [1, 2]


def test_children_of_killed_programs_make_room_for_new_ones(kombu: Any, connected: Connect, tmp_path: Any) -> None:
    from tests.support.process import running

    with running(tmp_path, config="[server]\nmax_fanout_children = 3\n") as server:
        connection = connected(server)
        news = kombu.Exchange("news", "fanout")
        with Client(*server.address) as client:
            for number in range(3):
                client.peek(f"!news+gone{number}")
        got: list[Any] = []
        queue = kombu.Queue("reader", news, auto_delete=True, durable=False)
        kombu.Consumer(connection.channel(), [queue], on_message=got.append, no_ack=True).consume()
        publish(connection, "", "x", exchange=news)
        assert drained(connection, 1, got)[0].payload == "x"
        assert [name for name in stored(server) if "gone" in name] == []


def test_without_a_server_the_first_use_raises(kombu: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        connection = kombu.Connection(f"staniel://127.0.0.1:{unused.getsockname()[1]}//")
        with pytest.raises(kombu.exceptions.OperationalError, match="cannot connect"):
            connection.ensure_connection(max_retries=1, interval_start=0.01)


def is_held(lock: Any) -> bool:
    """Whether another thread has the lock."""
    if not lock.acquire(blocking=False):
        return True
    lock.release()
    return False


def test_a_connection_can_be_closed_while_another_thread_waits_for_its_put(
    kombu: Any, connected: Connect, server: Server
) -> None:
    """As a pool does that is told to close all. The server does not reply meanwhile."""
    connection = connected(server)
    connection.connect()
    transport = connection.transport
    ended: list[str] = []

    def put() -> None:
        try:
            transport.put("q", b"x", None)
        except Exception as error:
            ended.append(type(error).__name__)
        else:
            ended.append("stored")

    os.kill(server.pid, signal.SIGSTOP)
    try:
        waiting = threading.Thread(target=put)
        waiting.start()
        assert eventually(lambda: is_held(transport._control_lock))
        connection.close()
    finally:
        os.kill(server.pid, signal.SIGCONT)
    waiting.join(LONG_S)
    assert ended in (["stored"], ["ConnectionLost"])
