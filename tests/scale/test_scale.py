"""Many of everything against the real server: whatever the number, nothing falls over and nothing is lost."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.process import Server, running, until
from tests.support.wire import Wire, drain, stats

QUEUES = 2_000
CHILDREN = 200
READS = 5_000
WAITERS = 1_000
BURST = 250
MEMORY = "/dev/shm"
FEW_FILES = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")


def burst(wire: Wire, requests: Sequence[bytes], lines_each: int) -> list[bytes]:
    """Every line of the answers, the requests being sent many at a time."""
    heard = []
    for at in range(0, len(requests), BURST):
        some = requests[at : at + BURST]
        wire.say(b"".join(some))
        heard += [wire.line() for _ in range(lines_each * len(some))]
    return heard


def fill(wire: Wire, queue: str, data: Sequence[bytes]) -> None:
    sets = [b"set %b 0 0 %d\r\n%b\r\n" % (queue.encode(), len(one), one) for one in data]
    assert burst(wire, sets, 1) == [b"STORED"] * len(data)


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def open_files(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: nothing here is about what a sync is worth, and there are thousands."""
    with TemporaryDirectory(dir=MEMORY if os.path.isdir(MEMORY) else None) as made:
        yield Path(made)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Connections entered here are closed in the end."""
    with ExitStack() as entered:
        yield entered


def crowd(server: Server, stack: ExitStack, count: int) -> list[Wire]:
    return [stack.enter_context(Wire(server.address)) for _ in range(count)]


def one_put_each(word: bytes) -> list[bytes]:
    return [b"set q%d 0 0 %d\r\n%b\r\n" % (number, len(word), word) for number in range(QUEUES)]


@pytest.mark.parametrize("sync", ["always", "1s", "os"])
def test_two_thousand_queues_are_served_and_restarted_with_few_files(folder: Path, sync: str) -> None:
    with running(folder, "--sync", sync, wrapper=FEW_FILES) as server:
        with Wire(server.address) as wire:
            # All in one piece: hundreds of journals are written within one tick.
            wire.say(b"".join(one_put_each(b"first") + one_put_each(b"second")))
            assert [wire.line() for _ in range(2 * QUEUES)] == [b"STORED"] * 2 * QUEUES
            assert open_files(server) < 128
            gets = [b"get q%d/open\r\n" % number for number in range(QUEUES)]
            assert burst(wire, gets, 3)[1::3] == [b"first"] * QUEUES
        server.restart()
        assert f": {QUEUES} queues, {2 * QUEUES} items" in server.greeting
        assert open_files(server) < 128
        with Wire(server.address) as wire:
            gets = [b"get q%d\r\n" % number for number in range(QUEUES)]
            assert burst(wire, gets, 3)[1::3] == [b"first"] * QUEUES
            assert wire.ask(b"flush_all").startswith(b"OK")
            assert stats(server.address)["curr_items"] == "0"
            assert open_files(server) < 128
        assert not any("accept.failed" in line for line in server.stderr.splitlines())


def test_two_hundred_fan_out_children_get_every_item_in_order_and_keep_them(folder: Path) -> None:
    names = [f"jobs+{number}" for number in range(CHILDREN)]
    with running(folder, config=f"[server]\nmax_fanout_children = {CHILDREN}\n") as server:
        with Wire(server.address) as wire:
            assert all(wire.get(name) is None for name in names)
            fill(wire, "jobs", numbered(20))
        server.restart()
        assert f": {CHILDREN + 1} queues, {20 * (CHILDREN + 1)} items" in server.greeting
        with Wire(server.address) as wire:
            for name in ["jobs", *names]:
                gets = [b"get %b\r\n" % name.encode()] * 20
                assert burst(wire, gets, 3)[1::3] == numbered(20), name


@pytest.mark.parametrize("timeout", ["none", "1h"])
def test_five_thousand_open_reads_come_back_in_order_after_a_kill(folder: Path, stack: ExitStack, timeout: str) -> None:
    config = f'[server]\nmax_open_transactions = {READS}\n[default]\nopen_transaction_timeout = "{timeout}"\n'
    with running(folder, config=config) as server:
        with Wire(server.address) as producer:
            fill(producer, "jobs", numbered(READS))
        wires = crowd(server, stack, 5)
        for at in range(0, READS, BURST):
            # In turn, so that no connection holds a run of neighbours for long.
            lines = burst(wires[at // BURST % 5], [b"get jobs/open\r\n"] * BURST, 3)
            assert lines[1::3] == numbered(READS)[at : at + BURST]
        assert burst(wires[0], [b"get jobs/close\r\n"] * 100, 1) == [b"END"] * 100
        assert stats(server.address)["queue_jobs_open_transactions"] == str(READS - 100)
        server.restart()
        assert drain(server.address, "jobs") == numbered(READS)[100:]


def test_five_thousand_open_reads_come_back_in_order_after_hang_ups(folder: Path) -> None:
    with running(folder, "--sync", "os", config=f"[server]\nmax_open_transactions = {READS}\n") as server:
        with Wire(server.address) as wire:
            fill(wire, "jobs", numbered(READS))
            assert burst(wire, [b"get jobs/open\r\n"] * READS, 3)[1::3] == numbered(READS)
        assert until(lambda: stats(server.address)["queue_jobs_open_transactions"] == "0")
        assert drain(server.address, "jobs") == numbered(READS)


def test_a_thousand_waiters_are_served_in_the_order_they_came_and_hang_ups_lose_nothing(
    folder: Path, stack: ExitStack
) -> None:
    with running(folder, "--sync", "os") as server, Wire(server.address) as producer:
        wires = crowd(server, stack, WAITERS)
        for wire in wires:
            # In one piece: once the version is answered, the get behind it waits in line.
            wire.say(b"version\r\nget jobs/open/t=600000\r\n")
            assert wire.line().startswith(b"VERSION ")
        assert stats(server.address)["queue_jobs_waiters"] == str(WAITERS)
        for wire in wires[::10]:
            wire.sock.close()
        # The items come while the server learns of the hang-ups: some may be handed to a client that has just gone.
        fill(producer, "jobs", numbered(WAITERS))
        staying = [wire for number, wire in enumerate(wires) if number % 10]
        heard = [(wire.line(), wire.line(), wire.line())[1] for wire in staying]
        assert heard == sorted(heard)
        assert until(lambda: stats(server.address)["curr_connections"] == str(len(staying) + 2))
        rest = drain(server.address, "jobs")
        assert sorted(heard + rest) == numbered(WAITERS)
        for wire in staying:
            wire.sock.close()
        assert until(lambda: stats(server.address)["queue_jobs_open_transactions"] == "0")
        assert sorted(drain(server.address, "jobs")) == heard


def test_connections_beyond_the_limit_wait_outside_and_get_in_later(folder: Path, stack: ExitStack) -> None:
    limit, more = 100, 150
    with running(folder, config=f"[server]\nmax_connections = {limit}\n") as server:
        inside = crowd(server, stack, limit)
        assert all(wire.ask(b"version").startswith(b"VERSION") for wire in inside)
        outside = crowd(server, stack, more)
        for number, wire in enumerate(outside):
            wire.say(b"set jobs 0 0 6\r\n%06d\r\n" % number)
        assert until(lambda: "connections.full" in server.stderr)
        found = dict(re.findall(rb"STAT (\S+) (\S+)", b"\n".join(stats_lines(inside[0]))))
        assert found[b"curr_connections"] == b"%d" % limit and found[b"curr_items"] == b"0"
        for wire in inside:
            wire.sock.close()
        # Each that leaves lets one in, from the first to the last.
        for wire in outside:
            assert wire.line() == b"STORED"
            wire.sock.close()
        assert sorted(drain(server.address, "jobs")) == numbered(more)


def stats_lines(wire: Wire) -> list[bytes]:
    return list(iter(wire.say(b"stats\r\n").line, b"END"))
