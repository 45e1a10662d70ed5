"""A wire of kombu's transport, when an exception of a signal cuts off a call of it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.programs("python:kombu")


class Late(Exception):
    """The exception of the handler."""


class CutOff(socket.socket):
    """A socket at which a signal comes while a part has been sent, or something was received."""

    is_sending_cut_off = is_receiving_cut_off = False

    def send(self, data: Any, *flags: int) -> int:
        if self.is_sending_cut_off:
            super().send(data[:3])
            raise Late
        return super().send(data)

    def recv(self, size: int, *flags: int) -> bytes:
        data = super().recv(size)
        if self.is_receiving_cut_off:
            raise Late
        return data


@pytest.fixture
def wired() -> Iterator[tuple[Any, CutOff, socket.socket]]:
    """A wire, its socket and the server's."""
    from staniel.client.kombu.wire import Wire

    near, far = socket.socketpair()
    mine = CutOff(fileno=near.detach())
    wire = Wire(mine, 30.0)
    yield wire, mine, far
    wire.close()
    far.close()


def test_a_wire_whose_send_was_cut_off_is_not_used_again(wired: tuple[Any, CutOff, socket.socket]) -> None:
    from staniel.client.kombu.errors import ConnectionLost

    wire, mine, far = wired
    mine.is_sending_cut_off = True
    with pytest.raises(Late):
        wire.call(b"ms q 3\r\none\r\n")
    mine.is_sending_cut_off = False
    assert not wire.is_usable_now()
    with pytest.raises(ConnectionLost):
        wire.call(b"ms q 3\r\ntwo\r\n")
    assert far.recv(100) == b"ms "


def test_a_wire_whose_reply_was_cut_off_is_not_used_again(wired: tuple[Any, CutOff, socket.socket]) -> None:
    wire, mine, far = wired
    mine.is_receiving_cut_off = True
    far.sendall(b"HD\r\n")
    with pytest.raises(Late):
        wire.call(b"ms q 3\r\none\r\n")
    mine.is_receiving_cut_off = False
    assert not wire.is_usable_now()


def test_a_wire_takes_a_time_out_that_poll_does_not() -> None:
    from staniel.client.kombu.wire import STORED, Wire

    near, far = socket.socketpair()
    wire = Wire(near, 1e12)
    far.sendall(b"HD\r\n")
    assert wire.call(b"ms q 1\r\n0\r\n") == [STORED]
    wire.close()
    far.close()


class Played:
    """A wire on which a signal comes instead of a reply, which comes later."""

    owed = 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.handlers: list[Callable[[Any], None]] = []

    def send(self, data: bytes, *handlers: Callable[[Any], None], wait_s: float = 0) -> None:
        self.sent.append(data)
        self.handlers += handlers

    def wait_and_receive(self, until: float = 0) -> None:
        raise Late


def test_an_item_that_comes_after_its_read_was_cut_off_goes_back() -> None:
    from staniel.client.kombu.consuming import Consumer, Reader
    from staniel.client.kombu.wire import Reply

    wire: Any = Played()
    reader = Reader(lambda: wire, lambda dropped: None)
    with pytest.raises(Late):
        reader.open_item("q", Consumer("q", True, lambda message: None))
    wire.handlers[0](Reply(b"VA", b"1 c7 h0", b"a"))
    assert not reader.inbox
    assert wire.sent[1:] == [b"touch q/id=7/abort 0\r\n"]
