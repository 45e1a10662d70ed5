"""Many connections at once, and fewer file descriptors than they need."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.process import running, until
from tests.support.wire import Wire, drain, stats

CROWD = 300


def test_three_hundred_clients_are_served(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        wires = [Wire(server.address) for _ in range(CROWD)]
        for number, wire in enumerate(wires):
            wire.say(b"set jobs 0 0 3\r\n%03d\r\n" % number)
        assert [wire.line() for wire in wires] == [b"STORED"] * CROWD
        for wire in wires:
            wire.say(b"get jobs/open\r\n")
        heard = {(wire.line(), wire.line(), wire.line())[1] for wire in wires}
        assert heard == {b"%03d" % number for number in range(CROWD)}
        for wire in wires:
            wire.sock.close()
        assert until(lambda: stats(server.address)["curr_connections"] == "1")
        assert stats(server.address)["queue_jobs_items"] == str(CROWD)


def test_three_hundred_waiters_get_one_item_each_in_the_order_they_came(tmp_path: Path) -> None:
    with running(tmp_path, "--sync", "os") as server, Wire(server.address) as producer:
        wires = [Wire(server.address) for _ in range(CROWD)]
        for wire in wires:
            # In one piece: once the version is answered, the get behind it waits in line.
            wire.say(b"version\r\nget jobs/t=300000\r\n")
            assert wire.line().startswith(b"VERSION ")
        assert until(lambda: stats(server.address)["queue_jobs_waiters"] == str(CROWD))
        producer.say(b"".join(b"set jobs 0 0 3\r\n%03d\r\n" % number for number in range(CROWD)))
        heard = []
        for wire in wires:
            wire.line()
            heard.append(wire.line())
            wire.sock.close()
        assert heard == [b"%03d" % number for number in range(CROWD)]


def test_connections_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        folder = Path("/proc") / str(server.pid) / "fd"
        with Wire(server.address) as wire:
            wire.put("jobs", b"a")
        assert until(lambda: stats(server.address)["curr_connections"] == "1")
        before = len([*folder.iterdir()])
        for _ in range(500):
            Wire(server.address).sock.close()
        assert until(lambda: stats(server.address)["curr_connections"] == "1")
        assert until(lambda: len([*folder.iterdir()]) <= before)


FILES = 160


@pytest.fixture
def few_files() -> tuple[str, ...]:
    """A command line that leaves its program so many file descriptors."""
    return "sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh"


def test_more_clients_than_file_descriptors_wait_until_there_is_room(
    tmp_path: Path, few_files: tuple[str, ...]
) -> None:
    with running(tmp_path, wrapper=few_files) as server, ExitStack() as crowd:
        with Wire(server.address) as early:
            early.put("jobs", b"a")
            wires = [crowd.enter_context(Wire(server.address)) for _ in range(FILES + 40)]
            late = wires[-1]
            late.say(b"get jobs\r\n")
            assert early.put("jobs", b"b") == b"STORED"
            late.sock.settimeout(0.5)
            with pytest.raises(TimeoutError):
                late.line()
            late.sock.settimeout(30)
            cpu_seconds = server.cpu_seconds()
            for wire in wires[:-1]:
                wire.sock.close()
            assert late.line() == b"VALUE jobs 0 1"
            assert server.cpu_seconds() - cpu_seconds < 2
            late.sock.close()
        assert drain(server.address, "jobs") == [b"b"]


def test_more_queues_than_file_descriptors_are_served_and_recovered(tmp_path: Path, few_files: tuple[str, ...]) -> None:
    count = FILES + 40
    with running(tmp_path, wrapper=few_files) as server:
        with Wire(server.address) as wire:
            assert [wire.put(f"q{number}", b"x") for number in range(count)] == [b"STORED"] * count
            assert len([*(Path("/proc") / str(server.pid) / "fd").iterdir()]) < FILES - 20
            assert wire.put("q0", b"y") == b"STORED"
            assert wire.get("q0") == b"x"
        server.kill()
        server.start()
        assert f": {count} queues, {count} items" in server.greeting
        assert drain(server.address, "q0") == [b"y"]
        assert drain(server.address, f"q{count - 1}") == [b"x"]


def test_one_client_more_than_allowed_is_not_served_until_another_leaves(tmp_path: Path) -> None:
    with running(tmp_path, config="[server]\nmax_connections = 2\n") as server:
        assert "max_connections" not in server.stderr
        with Wire(server.address) as first, Wire(server.address) as second, Wire(server.address) as third:
            assert first.ask(b"version") and second.ask(b"version")
            third.sock.settimeout(0.5)
            try:
                refused = not third.ask(b"version").startswith(b"VERSION")
            except (TimeoutError, ConnectionError):
                refused = True
            assert refused
        assert until(lambda: int(stats(server.address)["curr_connections"]) == 1)
