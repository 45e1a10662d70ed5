"""The socket of a client, compiled and plain: what its calls return and raise."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from staniel.compiled import IS_COMPILED
from staniel.server import client_socket as module
from staniel.server.interfaces import Sock
from tests.support.ready import is_writable

Pair = tuple[Sock, socket.socket]
LONG = bytes(range(256)) * 4096


@pytest.fixture(params=["the hub's", "plain"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A socket as the hub has it, or a plain one, and its other end."""
    ours, other = socket.socketpair()
    ours.setblocking(False)
    other.settimeout(30)
    with ours, other:
        yield (module.client_socket(ours) if request.param == "the hub's" else ours), other


def raised(call: Callable[[], Any]) -> tuple[type[BaseException], int | None]:
    with pytest.raises(OSError) as caught:
        call()
    return caught.type, caught.value.errno


@pytest.mark.compiled
def test_the_compiled_one_is_there() -> None:
    ours, other = socket.socketpair()
    with ours, other:
        assert IS_COMPILED
        assert not isinstance(module.client_socket(ours), socket.socket)


def test_bytes_come_and_go(pair: Pair) -> None:
    ours, other = pair
    assert ours.fileno() > 0
    assert ours.send(b"abc") == 3
    assert ours.send(memoryview(b"abcdef")[3:]) == 3
    assert ours.send(b"") == ours.send(memoryview(b"")) == 0
    assert other.recv(10) == b"abcdef"
    other.sendall(b"12345")
    assert ours.recv(2) == b"12"
    assert ours.recv(1 << 20) == b"345"


def test_nothing_there_and_no_room_are_told(pair: Pair) -> None:
    ours, _ = pair
    assert raised(lambda: ours.recv(10))[0] is BlockingIOError
    for _ in range(100):
        try:
            ours.send(LONG)
        except BlockingIOError:
            return
    pytest.fail("the socket has taken 100 MB that are not read")


def test_a_long_reply_arrives_whole(pair: Pair) -> None:
    ours, other = pair
    left, arrived = memoryview(LONG), bytearray()
    while left:
        try:
            left = left[ours.send(left) :]
        except BlockingIOError:
            arrived += other.recv(1 << 20)
    ours.shutdown(socket.SHUT_WR)
    while more := other.recv(1 << 20):
        arrived += more
    assert arrived == LONG


def test_more_than_the_buffer_is_read_in_pieces(pair: Pair) -> None:
    ours, other = pair
    other.setblocking(False)
    left, arrived = memoryview(LONG), bytearray()
    while len(arrived) < len(LONG):
        if left and is_writable(other):
            left = left[other.send(left) :]
        try:
            arrived += ours.recv(1 << 30)
        except BlockingIOError:
            continue
    assert arrived == LONG


def test_ends_and_errors_are_the_sockets_own(pair: Pair) -> None:
    ours, other = pair
    other.close()
    assert ours.recv(10) == b""
    assert raised(lambda: ours.send(b"x"))[0] is BrokenPipeError
    ours.close()
    assert ours.fileno() == -1
    for call in (lambda: ours.recv(1), lambda: ours.send(b"x"), lambda: ours.shutdown(socket.SHUT_WR)):
        assert raised(call) == (OSError, 9)
    ours.close()


def test_a_closed_socket_never_touches_the_next_ones_descriptor(pair: Pair) -> None:
    ours, _ = pair
    number = ours.fileno()
    ours.close()
    next_ours, next_other = socket.socketpair()
    with next_ours, next_other:
        assert number in (next_ours.fileno(), next_other.fileno()), "the descriptor is used again"
        raised(lambda: ours.send(b"stray"))
        for each in (next_ours, next_other):
            each.setblocking(False)
            assert raised(lambda each=each: each.recv(9))[0] is BlockingIOError


def test_what_is_no_bytes_is_refused(pair: Pair) -> None:
    ours, _ = pair
    with pytest.raises(TypeError):
        ours.send("text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="negative"):
        ours.recv(-1)


def test_options_are_those_of_the_plain_socket() -> None:
    ours, other = socket.socketpair()
    with ours, other:
        assert module.plain_socket(module.client_socket(ours)) is ours
        assert module.plain_socket(ours) is ours
        assert module.plain_socket(object()) is None


def test_what_was_read_stays_as_it_is_when_the_next_read_is_as_long(pair: Pair) -> None:
    ours, other = pair
    other.sendall(b"a" * 1000)
    first = ours.recv(4096)
    table = {first: 1}  # its hash is known now
    other.sendall(b"b" * 1000)
    second = ours.recv(4096)
    assert (first, second) == (b"a" * 1000, b"b" * 1000)
    del first, table
    hash(second)
    held = [second]
    del second
    for letter in (b"c", b"d"):
        other.sendall(letter * 1000)
        assert {ours.recv(4096): 1} == {letter * 1000: 1}
    assert held == [b"b" * 1000]


@pytest.mark.compiled
def test_a_read_as_long_as_the_one_before_needs_no_allocation(pair: Pair) -> None:
    ours, other = pair
    if isinstance(ours, socket.socket):
        return  # the standard library's socket allocates
    other.sendall(b"a" * 2000)
    first = ours.recv(4096)
    address = id(first)
    del first
    filler = bytes(2000)  # would be given the memory of the first read, had that been freed
    other.sendall(b"b" * 2000)
    second = ours.recv(4096)
    assert (id(second), second) == (address, b"b" * 2000)
    assert id(filler) != address


PIECES = [b"VALUE q 0 3\r\n", b"abc", b"\r\nEND\r\n"]


def test_pieces_leave_in_one_call_in_their_order(pair: Pair) -> None:
    ours, other = pair
    pieces = PIECES * 2
    assert module.send_pieces(module.channel_of(ours), pieces, 100) == 46
    assert pieces == []
    assert other.recv(100) == b"".join(PIECES * 2)


def test_pieces_that_are_too_long_together_are_not_sent(pair: Pair) -> None:
    ours, other = pair
    pieces = [*PIECES]
    assert module.send_pieces(module.channel_of(ours), pieces, 22) == -1
    assert pieces == PIECES
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        other.recv(1)


@pytest.mark.parametrize("size_max", [10, 1 << 20])
def test_a_piece_that_is_no_bytes_is_an_error_and_nothing_is_sent(pair: Pair, size_max: int) -> None:
    ours, other = pair
    for wrong in ("text", None, 5):
        pieces: list[Any] = [b"before", wrong, b"behind"]
        with pytest.raises(TypeError):
            module.send_pieces(module.channel_of(ours), pieces, size_max)
        assert pieces == [b"before", wrong, b"behind"]
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        other.recv(1)


def test_the_rest_of_pieces_is_what_the_socket_did_not_take(pair: Pair) -> None:
    ours, other = pair
    channel, arrived, whole = module.channel_of(ours), bytearray(), bytearray()
    short_sends = 0
    for count in range(8):
        sent = [b"%06d" % count, bytes(400_000), b"\r\n"]
        whole += b"".join(sent)
        try:
            module.send_pieces(channel, sent, 1 << 20)
        except BlockingIOError:
            arrived += other.recv(1 << 20)
            module.send_pieces(channel, sent, 1 << 20)
        while sent:
            short_sends += 1
            arrived += other.recv(1 << 20)
            if short_sends % 2:
                sent = [b"", sent[0]]
            module.send_pieces(channel, sent, 1 << 20)
    ours.shutdown(socket.SHUT_WR)
    while more := other.recv(1 << 20):
        arrived += more
    assert arrived == whole
    assert short_sends


@pytest.mark.compiled
@pytest.mark.parametrize("count", [1, 3, 96])
def test_a_list_of_few_pieces_keeps_its_memory_for_the_next_reply(pair: Pair, count: int) -> None:
    ours, _ = pair
    if isinstance(ours, socket.socket):
        return  # the standard library's socket
    pieces = [b"STORED\r\n"] * count
    before = sys.getsizeof(pieces)
    assert module.send_pieces(module.channel_of(ours), pieces, 1000) == 8 * count
    assert pieces == [] and sys.getsizeof(pieces) == before
    pieces.append(b"END\r\n")
    assert pieces == [b"END\r\n"] and sys.getsizeof(pieces) == before
    many = [b"1"] * 129
    assert module.send_pieces(module.channel_of(ours), many, 1000) == 129
    assert many == [] and sys.getsizeof(many) == sys.getsizeof([])


@pytest.mark.compiled
def test_a_piece_that_was_sent_is_released(pair: Pair) -> None:
    ours, _ = pair
    piece = b"%d\r\n" % len(PIECES)
    before = sys.getrefcount(piece)
    for count in (1, 2, 100):
        pieces = [piece] * count
        module.send_pieces(module.channel_of(ours), pieces, 1000)
        assert pieces == [] and sys.getrefcount(piece) == before
