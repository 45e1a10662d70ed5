"""A thousand open reads, and their clients go: with a goodbye, without one, silently, stopped in their tracks."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.process import Server, die_with_the_tests, running, until
from tests.support.ready import is_readable
from tests.support.wire import Wire, drain, stats

READS = 1000
HOLDERS = 4
EACH = READS // HOLDERS
BACK_SECONDS_MAX = 60.0  # promised is one; the machine may be busy
CONFIG = """
[default]
sync_journal = "os"

[server]
max_open_transactions = 1000

[queues.timed]
open_transaction_timeout = "400ms"
"""
HOLDER = """
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
heard = sock.makefile("rb")
sock.sendall(b"get %b/open\\r\\n" % sys.argv[2].encode() * int(sys.argv[3]))
for _ in range(int(sys.argv[3])):
    size = int(heard.readline().split()[3])
    heard.read(size + 7)
print("holding", flush=True)
sock.sendall(b"get nothing/t=3600000\\r\\n")
heard.readline()
"""
ITEMS = [b"%04d" % number for number in range(READS)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, config=CONFIG) as started:
        yield started


def fill(server: Server, queue: str, items: list[bytes]) -> None:
    with Wire(server.address) as wire:
        wire.say(b"".join(b"set %b 0 0 %d\r\n%b\r\n" % (queue.encode(), len(item), item) for item in items))
        assert [wire.line() for _ in items] == [b"STORED"] * len(items)


def hold(server: Server, queue: str, count: int) -> Wire:
    """A client with so many open reads."""
    wire = Wire(server.address)
    wire.say(b"get %b/open\r\n" % queue.encode() * count)
    for _ in range(count):
        size = int(wire.line().split()[3])
        wire.hear(size + 7)
    return wire


@contextmanager
def holder(server: Server, queue: str, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """The same as a process of its own, which then waits for something that never comes."""
    command = [sys.executable, "-c", HOLDER, str(server.port), queue, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=die_with_the_tests) as child:
        try:
            assert child.stdout is not None
            assert is_readable(child.stdout, 60) and child.stdout.readline() == b"holding\n"
            yield child
        finally:
            child.kill()


def is_open(server: Server, queue: str, count: int) -> bool:
    return stats(server.address)[f"queue_{queue}_open_transactions"] == str(count)


def all_back(server: Server, queue: str) -> float:
    """Seconds until nothing is open any more."""
    began_s = time.monotonic()
    assert until(lambda: is_open(server, queue, 0), BACK_SECONDS_MAX)
    return time.monotonic() - began_s


def reset(wire: Wire) -> None:
    wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.sock.close()


@pytest.mark.parametrize("leave", ["FIN", "RST"])
def test_a_thousand_open_reads_come_back_in_their_order_when_their_clients_hang_up(
    server: Server, leave: str, closing_line: Callable[[str], None]
) -> None:
    fill(server, "jobs", ITEMS)
    wires = [hold(server, "jobs", EACH) for _ in range(HOLDERS)]
    assert is_open(server, "jobs", READS)
    # The last one leaves first: each puts what it held in front of what is there, so that all is as it was.
    for count, wire in enumerate(reversed(wires), 1):
        wire.sock.close() if leave == "FIN" else reset(wire)
        if count < HOLDERS:
            assert until(lambda left=READS - count * EACH: is_open(server, "jobs", left), BACK_SECONDS_MAX)
    closing_line(f"{leave}: {EACH} open reads were back after {all_back(server, 'jobs'):.2f} s")
    assert drain(server.address, "jobs") == ITEMS


def test_a_thousand_open_reads_of_silent_clients_come_back_when_their_time_is_over(server: Server) -> None:
    """Those that were opened earlier come back earlier, so the others stand in front of them."""
    fill(server, "timed", ITEMS)
    with ExitStack() as silent:
        wires = [silent.enter_context(hold(server, "timed", EACH)) for _ in range(HOLDERS)]
        all_back(server, "timed")
        assert sorted(drain(server.address, "timed")) == ITEMS
        assert all(wire.ask(b"version").startswith(b"VERSION") for wire in wires)  # they may stay


def test_clients_that_are_stopped_disturb_nobody_and_give_back_when_they_are_killed(
    server: Server, closing_line: Callable[[str], None]
) -> None:
    fill(server, "jobs", ITEMS)
    with holder(server, "jobs", READS) as stopped:
        os.kill(stopped.pid, signal.SIGSTOP)
        fill(server, "jobs", [b"later"])
        with Wire(server.address) as wire:
            assert wire.get("jobs") == b"later" and wire.get("jobs") is None
        assert is_open(server, "jobs", READS)
        stopped.kill()
        stopped.wait()
        closing_line(f"SIGSTOP and SIGKILL: {READS} open reads were back after {all_back(server, 'jobs'):.2f} s")
    assert drain(server.address, "jobs") == ITEMS


def test_reads_of_a_stopped_client_time_out_and_it_cannot_close_them_once_it_goes_on(server: Server) -> None:
    fill(server, "timed", ITEMS[:10])
    with Wire(server.address) as other, holder(server, "timed", 10) as stopped:
        os.kill(stopped.pid, signal.SIGSTOP)
        all_back(server, "timed")
        first = other.get("timed")  # any of them: they may have come back in two turns, the later in front
        assert first in ITEMS[:10]
        os.kill(stopped.pid, signal.SIGCONT)
        stopped.kill()
        stopped.wait()
    assert sorted([first, *drain(server.address, "timed")]) == ITEMS[:10]


def test_a_stopped_client_that_has_asked_for_megabytes_holds_up_nobody(server: Server) -> None:
    fill(server, "big", [bytes(1 << 20)])
    script = "import socket, sys; sock = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
    script += "sock.sendall(b'get big/peek\\r\\n' * 60); print('asked', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, str(server.port)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, preexec_fn=die_with_the_tests) as child:
        assert child.stdout is not None and child.stdout.readline() == b"asked\n"
        os.kill(child.pid, signal.SIGSTOP)
        before_bytes = server.memory_bytes()
        fill(server, "jobs", ITEMS)
        assert drain(server.address, "jobs") == ITEMS
        assert server.memory_bytes() - before_bytes < 48 << 20
        child.kill()
