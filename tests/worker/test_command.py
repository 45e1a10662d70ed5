"""`staniel work` as a process: signals under load with every item accounted for, kill -9, metrics, wrong options."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from staniel.client import Client
from tests.support.guarded import PASSWORD, guarded
from tests.support.process import STANIEL, Server, die_with_the_tests, run_staniel, running, until
from tests.support.wire import drain, stats
from tests.worker.functions import DONE

ITEMS = 3000
FUNCTIONS = "tests.worker.functions"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path) as started:
        yield started


class Process:
    """A worker, its log and the file of what was done."""

    def __init__(self, server: Server, function: str, *options: str) -> None:
        self.done_file = server.folder / "done"
        self.log_file = server.folder / "log"
        with self.log_file.open("ab") as log:
            self.child = subprocess.Popen(
                [*STANIEL, "work", f"{FUNCTIONS}:{function}", "-q", "jobs", "-p", str(server.port), *options],
                stderr=log, preexec_fn=die_with_the_tests, env={**os.environ, DONE: str(self.done_file)},
            )  # fmt: skip

    @property
    def done(self) -> list[bytes]:
        return self.done_file.read_bytes().split() if self.done_file.exists() else []

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def is_ready_for_signals(self) -> bool:
        """Whether this process, of those that share the log, has begun: from then on it stops by a signal."""
        return re.search(rf" worker\.started .* pid={self.child.pid}\n", self.log) is not None


@contextmanager
def worker(server: Server, function: str, *options: str) -> Iterator[Process]:
    started = Process(server, function, *options)
    try:
        yield started
    finally:
        started.child.kill()
        started.child.wait()


def put(server: Server, count: int = ITEMS) -> list[bytes]:
    items = [b"%d" % number for number in range(count)]
    with Client(*server.address) as client:
        client.put_many("jobs", items)
    return items


@pytest.mark.parametrize("mode", ["threads", "processes", "async"])
def test_every_item_is_done_once_although_workers_are_stopped_under_load(server: Server, mode: str) -> None:
    items = put(server, 1000 if mode == "processes" else ITEMS)
    function = "waits" if mode == "async" else "slow"
    for share in (10, 3, 2):
        with worker(server, function, "--mode", mode, "-c", "4") as one:
            # The worker before may have done so many by itself.
            assert until(lambda one=one, share=share: one.is_ready_for_signals and len(one.done) > len(items) // share)
            one.child.send_signal(signal.SIGTERM)
            assert one.child.wait(60) == 0, one.log
    with worker(server, function, "--mode", mode) as last:
        assert until(lambda: last.is_ready_for_signals and len(last.done) >= len(items))
        last.child.send_signal(signal.SIGINT)
        assert last.child.wait(60) == 0, last.log
    assert Counter(last.done) == Counter(items)
    assert drain(server.address, "jobs") == []


@pytest.mark.parametrize("function", ["slow", "waits"])
def test_no_item_is_lost_if_workers_are_killed(server: Server, function: str) -> None:
    items = put(server)
    for share in (10, 3, 2):
        with worker(server, function) as one:
            assert until(lambda one=one, share=share: len(set(one.done)) > ITEMS // share)
    with worker(server, function) as last:
        assert until(lambda: last.is_ready_for_signals and set(last.done) == set(items))
        last.child.send_signal(signal.SIGTERM)
        assert last.child.wait(60) == 0, last.log
    assert set(last.done) == set(items)
    assert drain(server.address, "jobs") == []


@pytest.mark.parametrize("mode", ["threads", "processes", "async"])
def test_a_second_signal_ends_a_worker_whose_function_hangs(server: Server, mode: str) -> None:
    put(server, 3)
    function = "hang_on_the_loop" if mode == "async" else "hang"
    with worker(server, function, "--mode", mode, "-c", "1", "--grace", "600") as one:
        assert until(lambda: one.done)
        one.child.send_signal(signal.SIGTERM)
        assert until(lambda: "worker.stopping" in one.log)
        one.child.send_signal(signal.SIGTERM)
        assert one.child.wait(60) == (1 if mode == "threads" else 0), one.log
    assert drain(server.address, "jobs") == [b"0", b"1", b"2"]


@pytest.mark.parametrize("mode", ["threads", "processes", "async"])
def test_a_function_that_forks_and_returns_twice_is_no_second_worker(server: Server, mode: str) -> None:
    put(server, 3)
    with worker(server, "fork_on_the_loop" if mode == "async" else "forks", "-c", "1", "--mode", mode) as one:
        assert until(lambda: len(one.done) == 3)
        one.child.send_signal(signal.SIGTERM)
        assert one.child.wait(60) == 0, one.log
    assert one.done == [b"70"] * 3
    assert drain(server.address, "jobs") == []


def test_a_worker_logs_in_under_tls(tmp_path: Path) -> None:
    with guarded(tmp_path) as place:
        trusted = ssl.create_default_context(cafile=str(place.ca))
        with Client("127.0.0.1", place.server.second_port, tls=trusted, user="analyst", secret=PASSWORD) as client:
            client.put("jobs", b"1")
        options = ("--ca", str(place.ca), "--user", "analyst", "--secret-file", str(place.password_file))
        place.server.port = place.server.second_port
        with worker(place.server, "slow", "--host", "localhost", *options) as one:
            assert until(lambda: one.done == [b"1"]), one.log
            one.child.send_signal(signal.SIGTERM)
            assert one.child.wait(60) == 0, one.log


def test_a_stop_waits_for_the_grace_time_alone(server: Server) -> None:
    put(server, 1)
    with worker(server, "hang", "--mode", "processes", "--grace", "0.1") as one:
        assert until(lambda: one.done)
        one.child.send_signal(signal.SIGTERM)
        assert one.child.wait(60) == 0, one.log
    assert drain(server.address, "jobs") == [b"0"]


def test_a_log_that_cannot_be_written_ends_no_lane(server: Server) -> None:
    with Client(*server.address) as client:
        client.put_many("jobs", [b"raise why"] * 3)
    with Path("/dev/full").open("wb") as full:
        one = subprocess.Popen(
            [*STANIEL, "work", f"{FUNCTIONS}:odd", "-q", "jobs", "-p", str(server.port), "--attempts", "1"],
            stderr=full, preexec_fn=die_with_the_tests,
        )  # fmt: skip
        try:
            assert until(lambda: stats(server.address).get("queue_jobs-dead_items") == "3"), one.poll()
        finally:
            one.kill()
            one.wait()


def test_the_metrics_and_the_name_are_shown(server: Server) -> None:
    put(server, 10)
    with worker(server, "slow", "--metrics-port", "0", "--name", "mine", "--log-format", "json") as one:
        assert until(lambda: len(one.done) == 10)
        found = re.search(r"127\.0\.0\.1:(\d+)", one.log)
        assert found
        url = f"http://127.0.0.1:{found[1]}/metrics"

        def read() -> str:
            with urllib.request.urlopen(url, timeout=60) as reply:
                return str(reply.read().decode())

        assert until(lambda: 'staniel_worker_done_total{worker="mine",queue="jobs"} 10\n' in read())
        one.child.send_signal(signal.SIGTERM)
        assert one.child.wait(60) == 0
    assert '"event": "worker.stopped", "worker": "mine", "done": 10' in one.log


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("nothing", "-q", "q"), "package.module:function"),
        (("no_such_module:f", "-q", "q"), "No module named"),
        ((f"{FUNCTIONS}:none", "-q", "q"), "has no none"),
        ((f"{FUNCTIONS}:slow",), "--queue"),
        ((f"{FUNCTIONS}:slow", "-q", "q", "-c", "0"), "concurrency"),
        ((f"{FUNCTIONS}:slow", "-q", "a b"), "not one word"),
        ((f"{FUNCTIONS}:slow", "-q", "q", "--dead-letters", "a b"), "not one word"),
        ((f"{FUNCTIONS}:slow", "-q", "q", "--mode", "async"), "async def"),
        ((f"{FUNCTIONS}:slow", "-q", "q", "--hooks", f"{FUNCTIONS}:slow"), "Hooks"),
        ((f"{FUNCTIONS}:slow", "-q", "q", "--secret-file", "/no/such/file"), "cannot be used"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_taken(arguments: tuple[str, ...], why: str) -> None:
    ended = run_staniel("work", *arguments)
    assert ended.returncode == 2 and why in ended.stderr, ended.stderr
