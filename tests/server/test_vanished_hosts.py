"""A client's host that vanishes, and one that lives while its client does not read.

A socket whose filter drops all that arrives acknowledges nothing, as a host without power.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import Server, running, until
from tests.support.wire import Wire

SO_ATTACH_FILTER = 26
BPF_RET_0 = struct.pack("HBBI", 6, 0, 0, 0)  # of each segment, keep 0 bytes
CONFIG = """
[server]
tcp_keepalive = "2s"
tcp_user_timeout = "1s"
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, config=CONFIG) as started:
        yield started


def vanish(wire: Wire) -> None:
    """From now on the system ignores all that comes for this client."""
    code = ctypes.create_string_buffer(BPF_RET_0)
    program = struct.pack("HL", 1, ctypes.addressof(code))
    wire.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def test_open_reads_of_a_vanished_host_come_back_be_it_silent_or_sent_something(
    server: Server,
) -> None:
    with Wire(server.address) as silent, Wire(server.address) as waiting, Wire(server.address) as other:
        other.put("q", b"1")
        assert silent.get("q/open") == b"1"
        waiting.say(b"get r/t=60000/open\r\n")
        assert other.ask(b"get q") == b"END"
        vanish(silent)
        vanish(waiting)
        other.put("r", b"2")
        for queue, data in (("q", b"1"), ("r", b"2")):
            assert until(lambda queue=queue, data=data: other.get(f"{queue}/peek") == data), queue


def test_a_client_that_does_not_read_keeps_its_connection_as_long_as_its_host_answers(server: Server) -> None:
    with Wire(server.address, receive_buffer_bytes=4096) as slow, Wire(server.address) as other:
        data = b"x" * 1_000_000
        other.put("q", b"1")
        other.put("large", data)
        assert slow.get("q/open") == b"1"
        slow.say(b"get large/peek\r\n" * 12)
        time.sleep(4)  # four of its time-outs; only the system's own clock knows them
        assert other.get("q") is None
        for _ in range(12):
            assert slow.line() == b"VALUE large/peek 0 1000000"
            assert slow.hear(len(data)) == data
            assert (slow.line(), slow.line()) == (b"", b"END")
        assert slow.ask(b"get q/close") == b"END"
