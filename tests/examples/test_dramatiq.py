"""Dramatiq's workers with the broker of examples/dramatiq_tasks.py; a worker and the server are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from staniel.client import Client
from tests.support.process import Server, die_with_the_tests, running, until

pytestmark = [pytest.mark.programs("python:dramatiq"), pytest.mark.slow]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LONG_S = 60.0
HELD_MAX = 4  # two threads, and Dramatiq's prefetch of two messages for each


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path) as started:
        started.options = ("--port", str(started.port))  # clients find it again
        yield started


def environment(server: Server) -> dict[str, str]:
    return {**os.environ, "STANIEL": f"127.0.0.1:{server.port}", "PYTHONPATH": str(EXAMPLES)}


def send(server: Server, folder: Path, *options: str) -> None:
    command = [sys.executable, str(EXAMPLES / "dramatiq_tasks.py"), "--done", str(folder / "done"), *options]
    subprocess.run(command, env=environment(server), check=True, timeout=LONG_S)


@contextlib.contextmanager
def working(server: Server, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Dramatiq's worker in a session of its own, killed at the end."""
    command = [sys.executable, "-m", "dramatiq", "dramatiq_tasks", "--processes", "1", "--threads", "2"]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(server), stdout=log, stderr=log, start_new_session=True,
            preexec_fn=die_with_the_tests,
        )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def done(folder: Path) -> Counter[str]:
    path = folder / "done"
    return Counter(path.read_text().split()) if path.exists() else Counter()


def left(server: Server) -> dict[str, int]:
    """The numbers of items of each queue, those that are open included."""
    with Client(*server.address) as client:
        stats = client.stats()
    ending = "_open_transactions"
    names = [key.removeprefix("queue_").removesuffix(ending) for key in stats if key.endswith(ending)]
    found = [name for name in names if f"queue_{name}_items" in stats]  # limits have no items
    return {name: int(stats[f"queue_{name}_items"]) + int(stats[f"queue_{name}{ending}"]) for name in found}


def test_every_task_runs_though_worker_and_server_are_killed(server: Server, tmp_path: Path) -> None:
    send(server, tmp_path, "--count", "30", "--work-ms", "20")
    with working(server, tmp_path):
        assert until(lambda: len(done(tmp_path)) >= 5, LONG_S), (tmp_path / "log").read_text()
    with working(server, tmp_path) as worker:
        assert until(lambda: len(done(tmp_path)) >= 15, LONG_S), (tmp_path / "log").read_text()
        server.restart()
        assert until(lambda: len(done(tmp_path)) == 30, LONG_S), (tmp_path / "log").read_text()
        assert until(lambda: set(left(server).values()) == {0}, LONG_S), left(server)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LONG_S) == 0, (tmp_path / "log").read_text()
    assert done(tmp_path).total() - 30 <= 2 * HELD_MAX, done(tmp_path)


def test_dead_letters_that_are_refused_hold_up_no_other_task_and_are_put_when_there_is_room(tmp_path: Path) -> None:
    with running(tmp_path, config="[queues.dead_letters]\nmax_items = 1\n") as server:
        send(server, tmp_path, "--count", "12", "--work-ms", "-1")  # time.sleep refuses that
        with working(server, tmp_path):
            assert until(lambda: "wait for room" in (tmp_path / "log").read_text(), LONG_S)
            assert until(lambda: left(server) == {"default": 11, "default:DQ": 0, "dead_letters": 1}, LONG_S)
            send(server, tmp_path, "--count", "3", "--first", "100", "--work-ms", "0")
            assert until(lambda: set(done(tmp_path)) == {"100", "101", "102"}, LONG_S), (tmp_path / "log").read_text()
            with Client(*server.address) as client:
                for _ in range(12):
                    assert client.get("dead_letters", wait_s=LONG_S) is not None
            assert until(lambda: set(left(server).values()) == {0}, LONG_S), left(server)


def test_delayed_tasks_run_and_what_fails_for_good_or_is_no_message_is_set_aside(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "log").touch()
    with Client(*server.address) as client:
        client.put("default", b"no message")
    send(server, tmp_path, "--count", "110", "--work-ms", "0", "--delay-ms", "3600000")
    send(server, tmp_path, "--count", "2", "--first", "200", "--work-ms", "0", "--delay-ms", "1")
    send(server, tmp_path, "--count", "1", "--work-ms", "-1")  # time.sleep refuses that
    with working(server, tmp_path):
        assert until(lambda: set(done(tmp_path)) == {"200", "201"}, LONG_S), (tmp_path / "log").read_text()
        ended = {"default": 0, "default:DQ": 110, "dead_letters": 2}
        assert until(lambda: left(server) == ended, LONG_S), (left(server), (tmp_path / "log").read_text())
    assert until(lambda: left(server) == ended, LONG_S), left(server)
