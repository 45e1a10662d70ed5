"""Deliveries that an exception of a signal cuts off at any line: the message comes again, or its consumer has it."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from tests.client.kombu.conftest import eventually, held, stored
from tests.client.kombu.test_channels import Connect, publish
from tests.client.test_signals import Interrupting, Late, each_way, explained
from tests.support.process import Server

pytestmark = pytest.mark.programs("python:kombu")
PARTS = ("client/kombu/channel.py", "client/kombu/envelope.py", "kombu/utils/json.py")


def received(channel: Any) -> bool:
    """Whether a message waits for its delivery."""
    channel.refill()
    channel.transport._receive(0.1)
    return bool(channel.reader.inbox)


@each_way
@pytest.mark.parametrize("no_ack", [False, True])
def test_a_message_whose_delivery_was_cut_off_comes_again(
    kombu: Any, connected: Connect, shared: Server, no_ack: bool, after_calls: bool
) -> None:
    queue = f"cut off {no_ack} {after_calls}".replace(" ", ".")
    connection = connected(shared)
    got: list[Any] = []
    channel = connection.channel()
    kombu.Consumer(channel, [kombu.Queue(queue)], on_message=got.append, no_ack=no_ack).consume()
    for at in count(1):
        got.clear()
        publish(connection, queue, at)
        assert eventually(lambda: received(channel))
        interrupting = Interrupting(at, *PARTS, after_calls=after_calls)
        try:
            with interrupting:
                channel.deliver_one()
        except Late:
            pass
        with explained(interrupting.where):
            channel.deliver_one()
            assert [message.payload for message in got] == [at] or (not got and len(channel.qos.held) == (not no_ack))
            assert not channel.reader.inbox
            for tag in list(channel.qos.held):
                channel.basic_ack(tag)
        if not interrupting.where:
            break
    connection.release()
    assert stored(shared)[queue.replace(".", ":")] == 0
    assert "dead_letters" not in stored(shared)


@each_way
def test_a_message_whose_get_was_cut_off_goes_back(connected: Connect, shared: Server, after_calls: bool) -> None:
    queue = f"gotten.{after_calls}"
    connection = connected(shared)
    channel = connection.default_channel
    publish(connection, queue, "x")
    name = queue.replace(".", ":")
    for at in count(1):
        interrupting = Interrupting(at, *PARTS, after_calls=after_calls)
        try:
            with interrupting:
                got = channel.basic_get(queue)
        except Late:
            pass
        with explained(interrupting.where):
            if not interrupting.where:  # the program has the message
                channel.basic_reject(got.delivery_tag, requeue=True)
            assert not channel.reader.inbox and not channel.qos.held
            assert eventually(lambda: (stored(shared)[name], held(shared, name)) == (1, 0))
        if not interrupting.where:
            return
