"""A producer and a worker of each kind: the worker is killed in the middle of a job, the server is killed once."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError

from tests.support.process import Server, running, until
from tests.support.ready import is_readable
from tests.support.wire import Wire, drain, stats

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PRODUCERS = ("producer_pymemcache.py", "producer_trio.py")
WORKERS = ("worker_pymemcache.py", "worker_trio.py")
JOBS = 30
SECONDS_MAX = 60


class Program:
    """A running example; `heard` holds the lines it has printed."""

    def __init__(self, name: str, *options: str) -> None:
        command = [sys.executable, str(EXAMPLES / name), *options]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self.heard: list[str] = []

    def hear(self, pattern: str) -> str:
        """The first line from here on that matches; everything up to it is kept in `heard`."""
        assert self.child.stdout is not None
        give_up = time.monotonic() + SECONDS_MAX
        while True:
            ready = is_readable(self.child.stdout, give_up - time.monotonic())
            line = self.child.stdout.readline() if ready else ""
            assert line, f"ended, or silent for {SECONDS_MAX} s: {self.heard}"
            self.heard.append(line.rstrip("\n"))
            if re.fullmatch(pattern, self.heard[-1]):
                return self.heard[-1]

    def kill(self) -> None:
        self.child.kill()
        self._read_rest()

    def end(self) -> None:
        """Wait until it ends by itself, well."""
        self._read_rest()
        assert self.child.returncode == 0, self.heard

    def _read_rest(self) -> None:
        rest, _ = self.child.communicate(timeout=SECONDS_MAX)
        self.heard += rest.splitlines()

    def said(self, word: str) -> list[str]:
        """What follows `word` in the lines that begin with it."""
        return [line.partition(" ")[2] for line in self.heard if line.startswith(word + " ")]


@contextlib.contextmanager
def example(name: str, *options: str) -> Iterator[Program]:
    program = Program(name, *options)
    try:
        yield program
    finally:
        if program.child.poll() is None:
            program.child.kill()
        program.child.communicate()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """One that comes back on the same port."""
    with running(tmp_path / "server") as started:
        started.options = ("--port", str(started.port))
        yield started


def where(server: Server) -> tuple[str, ...]:
    return ("--port", str(server.port), "--queue", "jobs")


@pytest.mark.parametrize(("producer", "worker"), list(zip(PRODUCERS, WORKERS, strict=True)))
def test_every_job_is_done_though_the_worker_and_the_server_are_killed(
    server: Server, tmp_path: Path, producer: str, worker: str
) -> None:
    with example(producer, *where(server), "--count", str(JOBS)) as putting:
        putting.end()
    options = (*where(server), "--done", str(tmp_path / "done.txt"), "--idle-s", "6")
    with example(worker, *options, "--work-ms", "1000") as first:  # so it is killed amid its second job
        first.hear("begin job-1")
        first.kill()
    with example(worker, *options, "--work-ms", "20") as second:
        second.hear("begin job-15")
        server.restart()
        second.end()
    assert first.said("done") == ["job-0"] and "job-1" in second.said("begin")
    assert second.said("lost")
    done = Counter(first.said("done") + second.said("done"))
    assert set(done) == {f"job-{number}" for number in range(JOBS)}
    assert drain(server.address, "jobs") == []
    assert stats(server.address)["queue_jobs_open_transactions"] == "0"


@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_producer_waits_for_a_server_that_is_away(server: Server, producer: str) -> None:
    server.kill()
    with example(producer, *where(server), "--count", "5") as putting:
        putting.hear("not put.*")
        server.start()
        putting.end()
    assert drain(server.address, "jobs") == [b"job-%d" % number for number in range(5)]


SECRET = "0123456789abcdef"
USERS = "[users.me]\nroles = ['read', 'write']\nqueues = ['jobs']\ntoken_file = 'secret'\n"


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "secured"
    folder.mkdir()
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o600)
    with running(folder, config=USERS) as started:
        yield started


def test_a_producer_and_a_worker_log_in(secured: Server, tmp_path: Path) -> None:
    options = (*where(secured), "--user", "me", "--secret-file", str(secured.folder / "secret"))
    with example("producer_pymemcache.py", *options, "--count", "5") as putting:
        putting.end()
    with example(
        "worker_pymemcache.py", *options, "--done", str(tmp_path / "done.txt"), "--idle-s", "1"
    ) as working:  # fmt: skip
        working.end()
        assert working.said("done") == [f"job-{number}" for number in range(5)]


def test_pymemcache_connects_again_after_a_refusal_and_has_to_log_in_again(
    secured: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from login_pymemcache import LoginClient

    plain = Client(secured.address, timeout=60, default_noreply=False)
    assert plain.set("login", f"me {SECRET}".encode()) and plain.set("jobs", b"1")
    with pytest.raises(MemcacheClientError, match="may not read others"):
        plain.get("others")
    with pytest.raises(MemcacheClientError, match="the first set of each connection is its login"):
        plain.set("jobs", b"2")
    plain.close()

    client = LoginClient(secured.address, user="me", secret=SECRET.encode(), timeout=60, default_noreply=False)
    with pytest.raises(MemcacheClientError, match="may not read others"):
        client.get("others")
    assert client.set("jobs", b"2")
    assert [client.get("jobs") for _ in range(3)] == [b"1", b"2", None]
    client.close()
    wrong = LoginClient(secured.address, user="me", secret=b"wrong", timeout=60)
    with pytest.raises(MemcacheClientError, match="authentication failure"):
        wrong.get("jobs")


@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_producer_waits_for_room(tmp_path: Path, producer: str) -> None:
    with running(tmp_path / "small", config="[queues.jobs]\nmax_items = 2\n") as small:
        with example(producer, *where(small), "--count", "4") as putting:
            putting.hear(".*full.*")
            found: list[bytes] = []
            assert until(lambda: found.extend(drain(small.address, "jobs")) or len(found) == 4, SECONDS_MAX)
            putting.end()
        assert sorted(found) == [b"job-%d" % number for number in range(4)]


def pauses(working: Program, pattern: str, count: int) -> Iterator[float]:
    """The times between such lines: one of them may be too short, or too long, because the machine is busy."""
    for _ in range(count):
        began_s = time.monotonic()
        working.hear(pattern)
        yield time.monotonic() - began_s


@pytest.mark.parametrize("worker", WORKERS)
def test_a_worker_outlives_a_server_that_refuses_reads_for_a_while(server: Server, tmp_path: Path, worker: str) -> None:
    with Wire(server.address) as wire, example(
        worker, *where(server), "--done", str(tmp_path / "done.txt"), "--idle-s", "12"
    ) as working:  # fmt: skip
        assert wire.ask(b"status quiescent") == b"END"
        refused = "lost .*SERVER_ERROR.*|lost .*quiescent.*"
        working.hear(refused)
        assert any(pause_s > 0.4 for pause_s in pauses(working, refused, 7)), "it asks as often as ever"
        assert wire.ask(b"status up") == b"END"
        assert wire.put("jobs", b"job-1") == b"STORED"
        working.hear("done job-1")
        working.end()


@pytest.mark.parametrize("worker", WORKERS)
def test_a_job_that_comes_again_after_its_work_was_done_is_closed_without_work(
    server: Server, tmp_path: Path, worker: str
) -> None:
    """The close never arrives: the server is stopped as if the network were gone, and the worker killed."""
    options = (*where(server), "--done", str(tmp_path / "done.txt"), "--idle-s", "5")
    with Wire(server.address) as wire:
        wire.put("jobs", b"once")
    with example(worker, *options, "--work-ms", "2000") as first:
        first.hear("begin once")
        server.kill()
        first.hear("done once")
        first.hear("lost .*")
        first.kill()
    server.start()
    with example(worker, *options) as second:
        second.end()
    assert second.said("again") == ["once"]
    assert second.said("begin") == []
    assert drain(server.address, "jobs") == []


@pytest.mark.parametrize("name", PRODUCERS + WORKERS)
def test_every_example_explains_its_options(name: str) -> None:
    with example(name, "--help") as helped:
        helped.end()
    assert any(line.strip().startswith("--port") for line in helped.heard)
