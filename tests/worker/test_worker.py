"""A worker in this process against a real server: retries, dead letters, limits, lost connections, stops."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from staniel.client import Client
from staniel.protocol.client.replies import Item
from staniel.worker import DeadLetter, Ending, GiveUp, Hooks, Mode, Server, Settings, Worker
from staniel.worker import keeper as keeper_module
from staniel.worker import worker as worker_module
from staniel.worker.events import Log
from staniel.worker.loop import AsyncRunner, LoopThread
from staniel.worker.runners import End, Outcome, ThreadRunner
from tests.client.fake_server import HANG_UP, playing
from tests.client.fake_server import item as item_of
from tests.server.admin.asking import Operator
from tests.support import process
from tests.support.process import running, until
from tests.support.wire import Wire, drain, stats


@pytest.fixture
def server(tmp_path: Path) -> Iterator[process.Server]:
    with running(tmp_path) as started:
        yield started


class Working:
    """A worker in a thread, and the lines of its log."""

    def __init__(self, server: process.Server, function: Callable[[bytes], Any], hooks: Hooks, **settings: Any) -> None:
        self.lines: list[str] = []
        quick: dict[str, Any] = {"queue": "jobs", "backoff_s": 0.001, "wait_s": 0.05, "grace_s": 20, **settings}
        self.worker = Worker(
            function, Settings(**quick), Server(port=server.port), hooks=hooks,
            log=Log("w", write=self.lines.append),
        )  # fmt: skip
        self.ending: Ending | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.ending = self.worker.run()

    @property
    def counts(self) -> dict[str, int]:
        return self.worker.teller.counters.counts

    def logged(self, event: str) -> list[str]:
        return [line for line in self.lines if f" {event} " in line]


@contextmanager
def working(
    server: process.Server, function: Callable[[bytes], Any], hooks: Hooks | None = None, **settings: Any
) -> Iterator[Working]:
    """A worker for the length of the block; it is stopped gracefully at its end."""
    made = Working(server, function, hooks or Hooks(), **settings)
    made.thread.start()
    try:
        yield made
    finally:
        made.worker.stop()
        made.thread.join(60)
        assert not made.thread.is_alive()


def put(server: process.Server, *items: bytes) -> None:
    with Client(*server.address) as client:
        client.put_many("jobs", items)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


class Seen:
    """A function that counts its calls, by item."""

    def __init__(self) -> None:
        self.calls: Counter[bytes] = Counter()

    def __call__(self, data: bytes) -> None:
        self.calls[data] += 1


def test_each_item_is_done_once_and_confirmed(server: process.Server) -> None:
    put(server, *numbered(3000))
    seen = Seen()
    with working(server, seen) as work:
        assert until(lambda: work.counts["done"] == 3000)
    assert seen.calls == Counter(numbered(3000))
    assert work.ending == Ending(3000, 0, 0)
    assert drain(server.address, "jobs") == []
    assert stats(server.address)["queue_jobs_open_transactions"] == "0"


def test_a_coroutine_function_is_done_on_an_event_loop(server: process.Server) -> None:
    put(server, *numbered(200))
    seen = Seen()

    async def function(data: bytes) -> None:
        seen(data)

    with working(server, function) as work:
        assert until(lambda: work.counts["done"] == 200)
    assert work.worker.settings.mode is Mode.ASYNC
    assert seen.calls == Counter(numbered(200))


def test_a_coroutine_function_that_raises_what_ends_programs_fails_alone(server: process.Server) -> None:
    seen = Seen()

    async def function(data: bytes) -> None:
        seen(data)
        if data in (b"1", b"2"):
            raise SystemExit(3) if data == b"1" else KeyboardInterrupt

    put(server, *numbered(20))
    with working(server, function, attempts=2) as work:
        assert until(lambda: work.counts["done"] + work.counts["dead"] == 20)
    assert work.counts["dead"] == 2
    assert seen.calls == Counter(numbered(20)) + Counter([b"1", b"2"])


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("how", ["task", "callback"])
def test_what_a_coroutine_function_starts_in_the_background_does_not_end_the_loop(
    server: process.Server, how: str, raised: type[BaseException]
) -> None:
    seen = Seen()
    started: set[asyncio.Task[None]] = set()

    def leave() -> None:
        raise raised(3)

    async def leave_later() -> None:
        leave()

    async def function(data: bytes) -> None:
        if data == b"1":
            loop = asyncio.get_running_loop()
            loop.call_soon(leave) if how == "callback" else started.add(loop.create_task(leave_later()))
        await asyncio.sleep(0)
        seen(data)

    put(server, *numbered(20))
    with working(server, function) as work:
        assert until(lambda: work.counts["done"] == 20)
    assert all(isinstance(task.exception(), raised) for task in started)
    assert seen.calls == Counter(numbered(20))
    assert any("leave()" in line or "in leave" in line for line in work.logged("background.exited"))


def test_a_failed_item_is_tried_again_and_then_dead_with_its_traceback(server: process.Server) -> None:
    put(server, b"good", b"bad", b"hopeless")
    seen = Seen()

    def function(data: bytes) -> None:
        seen(data)
        if data == b"bad" and seen.calls[data] < 9:
            raise ValueError(f"call {seen.calls[data]}")
        if data == b"hopeless":
            raise GiveUp("never")

    with working(server, function, attempts=3) as work:
        assert until(lambda: (work.counts["done"], work.counts["dead"]) == (1, 2))
    assert seen.calls == {b"good": 1, b"bad": 3, b"hopeless": 1}
    assert drain(server.address, "jobs") == []
    letters = {letter.data: letter for letter in map(DeadLetter.decode, drain(server.address, "jobs-dead"))}
    assert set(letters) == {b"bad", b"hopeless"}
    bad = letters[b"bad"]
    assert (bad.queue, bad.attempts, bad.worker) == ("jobs", 3, work.worker.settings.name)
    assert "ValueError: call 3" in bad.reason and "in function" in bad.reason
    assert "GiveUp: never" in letters[b"hopeless"].reason
    assert len(work.logged("item.failed")) == 2 and len(work.logged("item.died")) == 2


def test_a_dead_letter_that_is_refused_keeps_its_item(tmp_path: Path) -> None:
    def function(data: bytes) -> None:
        raise ValueError

    with running(tmp_path, config="[queues.jobs-dead]\nmax_items = 1\n") as server:
        put(server, b"a", b"b")
        with working(server, function, attempts=1, concurrency=1, backoff_max_s=0.02) as work:
            assert until(lambda: work.logged("dead_letter.refused"))
            with Client(*server.address) as client:
                assert client.get("jobs-dead", wait_s=20) is not None
            assert until(lambda: work.counts["dead"] == 2)
        assert drain(server.address, "jobs") == []
        assert work.counts["failed"] == 2


def test_hooks_are_called_and_cannot_break_the_worker(server: process.Server) -> None:
    told: list[str] = []

    class Mine(Hooks):
        def started(self, item: Item) -> None:
            told.append("started")

        def succeeded(self, item: Item, took_s: float) -> None:
            told.append("succeeded")
            if item.data == b"exit":
                sys.exit("hook")
            raise RuntimeError("hook")

        def failed(self, item: Item, attempts: int, reason: str) -> None:
            told.append(f"failed {attempts}")

        def died(self, item: Item, reason: str) -> None:
            told.append("died")

    def function(data: bytes) -> None:
        if data == b"bad":
            raise ValueError

    put(server, b"good", b"exit", b"bad")
    with working(server, function, Mine(), attempts=1, concurrency=1) as work:
        assert until(lambda: work.counts["dead"] == 1)
    assert told == ["started", "succeeded", "started", "succeeded", "started", "failed 1", "died"]
    assert ["SystemExit: hook" in line for line in work.logged("hook.failed")] == [False, True]


def test_a_lane_survives_what_nobody_expected(server: process.Server) -> None:
    seen = Seen()

    def function(data: bytes) -> None:
        seen(data)
        if seen.calls[data] == 1:
            raise ValueError(data)

    def cannot_tell(line: str) -> None:
        if " item.failed " in line:
            raise RuntimeError("no log")
        work.lines.append(line)

    with working(server, function, concurrency=1) as work:
        work.worker.teller.log._write = cannot_tell
        put(server, b"a")
        assert until(lambda: work.counts["done"] == 1)
    assert drain(server.address, "jobs") == []
    assert "RuntimeError: no log" in work.logged("connection.lost")[0]


def test_no_item_runs_while_a_runner_prepares(server: process.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    running_then: list[int] = []

    class Preparing(ThreadRunner):
        def prepare(self) -> None:
            running_then.append(work.worker.running)

    seen = Seen()
    monkeypatch.setattr(Worker, "_runner", lambda worker: Preparing(seen))
    with working(server, seen, concurrency=1) as work:
        put(server, b"a", b"b")
        assert until(lambda: work.counts["done"] == 2)
    assert running_then == [0, 0]


def test_an_item_that_times_out_while_a_runner_prepares_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[bool] = []

    def is_back() -> bool:
        with Client(*server.address) as other:
            return other.peek("jobs") is not None

    class Slow(ThreadRunner):
        def prepare(self) -> None:
            if not prepared:
                prepared.append(until(is_back, 60))
                server.config.write_text("")  # what comes again has no time that could end before it is confirmed
                with Wire(server.address) as wire:
                    wire.ask(b"reload")

    seen = Seen()
    monkeypatch.setattr(Worker, "_runner", lambda worker: Slow(seen))
    with running(tmp_path, config='[queues.jobs]\nopen_transaction_timeout = "100ms"\n') as server:
        put(server, b"a")
        with working(server, seen, concurrency=1, extend_s=1e-6) as work:
            assert until(lambda: work.counts["done"] == 1, 60)
        assert drain(server.address, "jobs") == []
    assert (prepared, seen.calls, work.counts["timed_out"]) == ([True], {b"a": 1}, 1)


@pytest.fixture
def extended(monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """How often the server has let the time of each item begin again. A time-out of the server would also hit an item
    whose worker stood still for so long, as on a busy machine.
    """
    counted: Counter[bytes] = Counter()
    extend = Client.extend

    def count(client: Client, item: Item) -> None:
        extend(client, item)
        counted[item.data] += 1

    monkeypatch.setattr(Client, "extend", count)
    return counted


def test_a_long_item_is_extended_again_and_again(server: process.Server, extended: Counter[bytes]) -> None:
    release, seen = threading.Event(), Seen()

    def function(data: bytes) -> None:
        seen(data)
        release.wait(120)

    put(server, b"a")
    with working(server, function, concurrency=2, extend_s=0.05):
        assert until(lambda: extended[b"a"] >= 3)
        release.set()
    assert (drain(server.address, "jobs"), seen.calls) == ([], {b"a": 1})


def test_an_item_that_an_operator_gave_back_meanwhile_is_told_and_not_done_twice(server: process.Server) -> None:
    release, seen = threading.Event(), Seen()

    def function(data: bytes) -> None:
        seen(data)
        release.wait(120)

    put(server, b"a")
    with working(server, function, concurrency=1, extend_s=0.02) as work:
        assert until(lambda: seen.calls)
        aborted = process.run_staniel("abort", "jobs", "--all", "--yes", "--spool", str(server.spool))
        assert aborted.returncode == 0, aborted.stderr
        assert until(lambda: not work.worker._lanes[0].client._open)  # an extension has noticed it
        release.set()
        assert until(lambda: (work.counts["timed_out"], work.counts["repeated"]) == (1, 1))
    assert (drain(server.address, "jobs"), seen.calls) == ([], {b"a": 1})
    assert work.logged("connection.lost") == []


def test_an_item_that_timed_out_meanwhile_is_not_done_twice_by_this_worker(tmp_path: Path) -> None:
    seen = Seen()

    def function(data: bytes) -> None:
        seen(data)
        assert until(lambda: int(stats(server.address)["queue_jobs_timed_out_transactions"]) >= 1)
        # What comes again may not time out once more: another lane may hold it, and a busy machine confirms late.
        server.config.write_text("")
        with Wire(server.address) as wire:
            wire.ask(b"reload")

    with running(tmp_path, config='[queues.jobs]\nopen_transaction_timeout = "50ms"\n') as server:
        put(server, b"a")
        with working(server, function, extend_s=1000) as work:
            assert until(lambda: work.counts["timed_out"] >= 1)
            assert until(lambda: work.counts["repeated"] >= 1)
        assert (drain(server.address, "jobs"), seen.calls) == ([], {b"a": 1})


@pytest.mark.parametrize("asynchronous", [False, True])
def test_items_behind_a_slow_one_go_to_another_lane(server: process.Server, asynchronous: bool) -> None:
    release, seen = threading.Event(), Seen()

    def function(data: bytes) -> None:
        seen(data)
        if data == b"slow":
            release.wait(120)

    async def awaited(data: bytes) -> None:
        await asyncio.to_thread(function, data) if data == b"slow" else seen(data)

    put(server, *numbered(2000))
    with working(server, awaited if asynchronous else function, concurrency=1) as work:
        assert until(lambda: work.counts["done"] == 2000)
        put(server, b"slow", *numbered(20))
        assert until(lambda: seen.calls[b"slow"] == 1)
        with working(server, seen, concurrency=1) as other:
            assert until(lambda: other.counts["done"] == 20)
            release.set()
    assert drain(server.address, "jobs") == []
    assert seen.calls == Counter(numbered(2000)) + Counter(numbered(20)) + Counter([b"slow"])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_call_that_takes_too_long_is_interrupted_and_fails(server: process.Server, asynchronous: bool) -> None:
    def function(data: bytes) -> None:
        while True:
            time.sleep(0.001)

    async def awaited(data: bytes) -> None:
        await asyncio.sleep(600)

    put(server, b"a")
    with working(server, awaited if asynchronous else function, attempts=2, limit_s=0.05) as work:
        assert until(lambda: work.counts["dead"] == 1)
    (letter,) = drain(server.address, "jobs-dead")
    assert "took longer than 0.05 s" in DeadLetter.decode(letter).reason
    assert work.counts["limited"] == 2


def test_a_thread_that_hangs_is_replaced_and_its_item_is_not_lost(
    server: process.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "HUNG_S", 0.05)
    release, seen = threading.Event(), Seen()

    def function(data: bytes) -> None:
        seen(data)
        if data == b"hang":
            release.wait(120)  # in C, where no exception comes through

    put(server, b"hang")
    with working(server, function, concurrency=1, limit_s=0.05, grace_s=0.1) as work:
        assert until(lambda: work.counts["hung"] == 1)
        monkeypatch.setattr(keeper_module, "HUNG_S", 1000)  # on a busy machine a short call may last as long as that
        put(server, *numbered(50))
        assert until(lambda: work.counts["done"] == 50)
    assert work.ending == Ending(50, 0, 1)
    assert drain(server.address, "jobs") == [b"hang"]
    release.set()


def test_a_coroutine_that_ignores_its_cancellation_is_given_up(
    server: process.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "FORCED_S", 0.05)
    import anyio

    begun, release = threading.Event(), threading.Event()

    async def function(data: bytes) -> None:
        begun.set()
        while not release.is_set():
            with suppress(anyio.get_cancelled_exc_class()):
                await anyio.sleep(0.01)

    put(server, b"a", b"b")
    with working(server, function, concurrency=1, grace_s=600) as work:
        assert begun.wait(60)
        work.worker.stop()
        work.worker.stop()
        was_given_up = until(lambda: work.ending is not None)
        release.set()
    assert was_given_up and work.ending == Ending(0, 0, 1)
    assert drain(server.address, "jobs") == [b"a", b"b"]


EXITING = """
import sys
import threading
from contextlib import suppress
import anyio
from staniel.worker import Server, Settings, Worker, worker as worker_module
from staniel.worker.events import Log

async def function(data):
    threading.Thread(target=lambda: (worker.stop(), worker.stop())).start()
    while True:
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep(600)

worker_module.FORCED_S = 0.05
settings = Settings(queue="jobs", concurrency=1, wait_s=0.05, grace_s=600)
worker = Worker(function, settings, Server(port=int(sys.argv[1])), log=Log("w", write=lambda line: None))
print(worker.run().unfinished)
"""


def test_a_program_with_a_coroutine_that_ignores_its_cancellation_exits_without_a_word(server: process.Server) -> None:
    put(server, b"a")
    command = [sys.executable, "-c", EXITING, str(server.port)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (said.returncode, said.stdout, said.stderr) == (0, "1\n", "")


def test_a_call_that_is_interrupted_before_the_loop_begins_it_is_not_made() -> None:
    class Waiting(LoopThread):
        """A loop whose first callback comes after an interruption."""

        def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
            calls.append((callback, arguments))
            if len(calls) == 1:
                runner.interrupt("the worker stops")
                for later, its_arguments in reversed(calls):
                    super().call_soon(later, *its_arguments)

    calls: list[tuple[Callable[..., object], tuple[object, ...]]] = []
    seen = Seen()

    async def function(data: bytes) -> None:
        seen(data)

    runner = AsyncRunner(function, Waiting(cast(Any, None)))
    assert runner.run(b"a") == Outcome(End.FAILED, "the worker stops")
    assert seen.calls == {}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_second_stop_hands_items_back_at_once(server: process.Server, asynchronous: bool) -> None:
    import anyio

    begun = threading.Event()

    def function(data: bytes) -> None:
        begun.set()
        while True:
            time.sleep(0.001)

    async def awaited(data: bytes) -> None:
        begun.set()
        await anyio.sleep(600)

    put(server, b"a", b"b")
    with working(server, awaited if asynchronous else function, concurrency=1, grace_s=600) as work:
        assert begun.wait(60)
        work.worker.stop()
    assert work.ending == Ending(0, 0, 0)
    assert drain(server.address, "jobs") == [b"a", b"b"]
    assert work.counts["failed"] == 0


class Interrupted(threading.Event):
    """An event that gets a signal while the main thread holds its lock, as it does for an instant of each wait."""

    is_over = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_over:
            self.is_over = True
            with self._cond:  # type: ignore[attr-defined]
                signal.raise_signal(signal.SIGTERM)
        return super().wait(timeout)

    def set(self) -> None:
        if threading.current_thread() is threading.main_thread():
            raise AssertionError("this would wait for ever")
        super().set()


def test_a_signal_may_come_at_any_moment(server: process.Server) -> None:
    settings = Settings(queue="jobs", concurrency=1, wait_s=0.05)
    worker = Worker(Seen(), settings, Server(port=server.port), log=Log("w", write=lambda line: None))
    worker._shared.stop.stopping = Interrupted()
    assert worker.run(signals=True) == Ending(0, 0, 0)


def test_resting_items_are_handed_back_at_a_stop(server: process.Server) -> None:
    def function(data: bytes) -> None:
        raise ValueError

    put(server, b"a", b"b")
    with working(server, function, backoff_s=1000, concurrency=1) as work:
        assert until(lambda: work.counts["failed"] == 2)
    assert sorted(drain(server.address, "jobs")) == [b"a", b"b"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_server_that_is_killed_under_load_loses_nothing_and_nothing_is_done_twice(
    server: process.Server, asynchronous: bool
) -> None:
    items = numbered(4000)
    put(server, *items)
    seen = Seen()

    def function(data: bytes) -> None:
        time.sleep(0.0005)
        seen(data)

    async def awaited(data: bytes) -> None:
        await asyncio.sleep(0.0005)
        seen(data)

    with working(server, awaited if asynchronous else function) as work:
        for done in (500, 1500, 2500):
            assert until(lambda done=done: work.counts["done"] > done)
            port = server.port
            server.kill()
            server.options = ("--port", str(port))
            server.start()
        assert until(lambda: len(seen.calls) == 4000)
        assert until(lambda: stats(server.address).get("queue_jobs_items") == "0")
    assert seen.calls == Counter(items)
    assert drain(server.address, "jobs") == []
    assert work.counts["connections_lost"] >= 3


def test_a_worker_waits_for_a_server_that_is_not_there_yet(server: process.Server) -> None:
    put(server, b"a")
    port = server.port
    server.kill()
    seen = Seen()
    with working(server, seen, concurrency=1) as work:
        assert until(lambda: work.logged("connection.lost"))
        server.options = ("--port", str(port))
        server.start()
        assert until(lambda: work.counts["done"] == 1)
    assert seen.calls == {b"a": 1}


@pytest.mark.parametrize("bad", [HANG_UP, b"STORED\r\n", b"\x16\x03\x01\r\n", item_of(b"a", b"other/open"), None])
def test_a_server_that_answers_wrong_or_not_at_all_gives_no_item_and_is_asked_again(bad: bytes | None) -> None:
    seen = Seen()
    lines: list[str] = []

    def answers() -> Iterator[bytes | None]:
        """By the request, because the time-out is short: on a busy machine each may be made again."""
        bad_ones, is_confirmed = 3, False
        while True:
            asked = fake.heard[-1]
            if asked.startswith(b"client_name "):
                yield b"OK\r\n"
            elif asked.startswith(b"delete "):
                is_confirmed = True
                yield b"DELETED\r\nEND\r\n"
            elif bad_ones:
                bad_ones -= 1
                yield bad
            else:
                yield None if is_confirmed else item_of(b"right", b"jobs/t=50/open", 7)

    with playing() as fake:
        fake._script = answers()
        settings = Settings(queue="jobs", concurrency=1, prefetch=1, wait_s=0.05)
        to = Server(port=fake.address[1], answer_timeout_s=0.1)
        worker = Worker(seen, settings, to, log=Log("w", write=lines.append))
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        assert until(lambda: worker.teller.counters.counts["done"] == 1), lines
        worker.stop()
        thread.join(60)
    assert seen.calls == {b"right": 1}
    assert len([line for line in lines if "connection.lost" in line]) >= 3


def test_a_wall_clock_that_jumps_moves_no_pause(server: process.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    now_s = time.time

    def function(data: bytes) -> None:
        seen(data)
        monkeypatch.setattr("time.time", lambda: now_s() + (-1) ** seen.calls[data] * 86_400)
        if seen.calls[data] < 4:
            raise ValueError

    put(server, b"a")
    with working(server, function, concurrency=1) as work:
        assert until(lambda: work.counts["done"] == 1)
    assert seen.calls == {b"a": 4}


def test_two_workers_of_one_name_share_a_queue(server: process.Server) -> None:
    put(server, *numbered(1000))
    seen = Seen()
    with working(server, seen, name="w") as one, working(server, seen, name="w") as two:
        assert until(lambda: one.counts["done"] + two.counts["done"] == 1000)
    assert seen.calls == Counter(numbered(1000))


def test_a_rate_is_kept_over_all_lanes(server: process.Server) -> None:
    put(server, *numbered(12))
    times: list[float] = []

    def function(data: bytes) -> None:
        times.append(time.monotonic())

    began_s = time.monotonic()  # not at the first call, which may be late where the last one is not
    with working(server, function, rate_per_s=20) as work:
        assert until(lambda: work.counts["done"] == 12)
    assert max(times) - began_s >= 11 / 20


def test_an_item_that_waits_for_its_turn_stays_the_workers(server: process.Server, extended: Counter[bytes]) -> None:
    seen = Seen()
    put(server, b"a", b"b")
    with working(server, seen, rate_per_s=0.001, concurrency=2, extend_s=0.02) as work:
        assert until(lambda: work.counts["done"] == 1 and max(extended.values(), default=0) >= 3)
    (done,) = seen.calls
    assert drain(server.address, "jobs") == [b"b" if done == b"a" else b"a"] == list(extended)
    assert work.counts["timed_out"] == 0


def test_the_kestrel_dialect_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with running(tmp_path, config='[memcache]\ndialect = "kestrel"\n') as server:
        put(server, b"a")
        seen = Seen()
        with working(server, seen) as work:
            assert until(lambda: any("dialect = memcached" in line for line in work.lines))
        assert (seen.calls, drain(server.address, "jobs")) == ({}, [b"a"])


def test_operators_see_the_name_of_a_worker(tmp_path: Path) -> None:
    with running(tmp_path, config="admin.port = 0\n") as server:
        operator = Operator(server.second_port)
        with working(server, lambda data: None, name="mail worker 7"):
            assert until(lambda: {each["name"] for each in operator.get("/api/clients")} >= {"mail_worker_7"})
