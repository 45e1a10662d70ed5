"""Servers that take no connection, take no bytes, reset, or end in the middle of an answer: each call comes back in the
time that it was given, and says what is known.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from staniel.client import ConnectionLost, Outcome
from tests.client.fake_server import item, playing
from tests.client.kinds import each_kind, play

Make = Callable[..., Any]
LARGE = bytes(64 << 20)  # more than the buffers of both sockets take


@contextmanager
def listening(backlog: int = 5) -> Iterator[socket.socket]:
    """Yield a listener that takes connections into its backlog, and reads nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as listener:
        yield listener


@each_kind
def test_a_server_that_takes_no_connection_times_out(kind: str) -> None:
    async def body(make: Make) -> None:
        with pytest.raises(ConnectionLost, match=r"no connection to 127.*too slow, 0\.2 s") as lost:
            await make(*listener.getsockname(), connect_timeout_s=0.2).put("q", b"a")
        assert lost.value.outcome is Outcome.NOT_DONE

    with listening(backlog=0) as listener, ExitStack() as stack:
        for _ in range(8):  # then the backlog is full, and the kernel answers no further one
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        play(kind, body)


@each_kind
def test_a_handshake_that_does_not_end_times_out(kind: str) -> None:
    async def body(make: Make) -> None:
        client = make(*listener.getsockname(), tls=ssl.create_default_context(), connect_timeout_s=0.2)
        with pytest.raises(ConnectionLost, match="no connection to 127") as lost:
            await client.put("q", b"a")
        assert lost.value.outcome is Outcome.NOT_DONE

    with listening() as listener:
        play(kind, body)


@each_kind
def test_a_server_that_takes_no_bytes_times_out(kind: str) -> None:
    async def body(make: Make) -> None:
        client = make(*listener.getsockname(), answer_timeout_s=0.3)
        with pytest.raises(ConnectionLost, match=r"the server took nothing for 0\.3 s") as lost:
            await client.put("q", LARGE)
        assert lost.value.outcome is Outcome.UNKNOWN
        with pytest.raises(ConnectionLost) as later:
            await client.version()
        assert later.value.outcome is Outcome.NOT_DONE

    with listening() as listener:
        play(kind, body)


@each_kind
def test_a_server_that_reads_slowly_gets_a_large_item_whole(kind: str) -> None:
    def read() -> None:
        connection, _ = listener.accept()
        with connection:
            left = len(b"set q 0 0 %d\r\n\r\n" % len(LARGE)) + len(LARGE)
            while left:
                left -= len(connection.recv(min(left, 1 << 18)))
            connection.sendall(b"STORED\r\n")
            connection.recv(1)

    async def body(make: Make) -> None:
        async with make(*listener.getsockname()) as client:
            await client.put("q", LARGE)

    with listening() as listener:
        thread = threading.Thread(target=read)
        thread.start()
        play(kind, body)
        thread.join()


@each_kind
def test_a_connection_that_is_reset_is_lost(kind: str) -> None:
    def reset() -> None:
        connection, _ = listener.accept()
        connection.recv(100)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    async def body(make: Make) -> None:
        client = make(*listener.getsockname())
        with pytest.raises(ConnectionLost, match=r"the connection broke: .*reset") as lost:
            await client.put("q", b"a")
        assert lost.value.outcome is Outcome.UNKNOWN

    with listening() as listener:
        thread = threading.Thread(target=reset)
        thread.start()
        play(kind, body)
        thread.join()


WHOLE = item(b"abc")


@each_kind
@pytest.mark.parametrize("length", [1, 10, len(WHOLE) - 8, len(WHOLE) - 1])
def test_a_server_that_ends_within_its_answer_has_given_no_item(kind: str, length: int) -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(WHOLE[:length])

    async def body(make: Make) -> None:
        client = make(*listener.getsockname())
        with pytest.raises(ConnectionLost, match="the server closed the connection") as lost:
            await client.open("q")
        assert (lost.value.outcome, lost.value.item) == (Outcome.UNKNOWN, None)

    with listening() as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        play(kind, body)
        thread.join()


@each_kind
def test_what_comes_beyond_an_answer_is_nobodys_answer(kind: str) -> None:
    """A server that answers twice: the second answer is not taken for that of the next request."""

    async def body(make: Make) -> None:
        client = make(*server.address)
        await client.put("q", b"a")
        with pytest.raises(ConnectionLost) as later:
            await client.put("q", b"b")
        assert later.value.outcome is Outcome.NOT_DONE

    with playing(b"STORED\r\nSTORED\r\n") as server:
        play(kind, body)
        assert len(server.heard) == 1


@each_kind
@pytest.mark.parametrize(("second", "why"), [(b"STORED\r\n", "not asked for"), (b"", "server closed the connection")])
def test_what_comes_between_two_requests_is_noticed_before_the_second_is_sent(
    kind: str, second: bytes, why: str
) -> None:
    """A second answer is not taken for that of the next request, and a put to a server that ended is known not to be
    done.
    """
    goes_on, is_sent, heard = threading.Event(), threading.Event(), []

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            heard.append(connection.recv(100))
            connection.sendall(b"STORED\r\n")
            goes_on.wait(60)
            connection.sendall(second)
            if not second:
                connection.shutdown(socket.SHUT_WR)
            is_sent.set()
            heard.append(connection.recv(100))

    async def body(make: Make) -> None:
        client = make(*listener.getsockname())
        await client.put("q", b"a")
        goes_on.set()
        assert is_sent.wait(60)
        with pytest.raises(ConnectionLost, match=why) as lost:
            await client.put("q", b"b")
        assert lost.value.outcome is Outcome.NOT_DONE

    with listening() as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        play(kind, body)
        thread.join()
    assert heard[1:] == [b""]
