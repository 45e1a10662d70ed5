"""The parts of a worker by themselves: settings, pauses, pace, ledger, dead letters, log, runners."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from staniel.protocol.client.replies import Item
from staniel.worker import DeadLetter, GiveUp, Mode, Order, Settings, Worker
from staniel.worker.dead import REASON_CHARACTERS_MAX, shortened
from staniel.worker.events import Counters, Log
from staniel.worker.lane import Lane
from staniel.worker.ledger import Ledger, Standing
from staniel.worker.pace import Pace
from staniel.worker.processes import ProcessRunner
from staniel.worker.runners import End, Outcome, ThreadRunner
from staniel.worker.settings import rest_s
from staniel.worker.target import find
from tests.support.process import until
from tests.worker.slow_import import SLOW_IMPORT

ODD = "tests.worker.functions:odd"


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"attempts": 0},
        {"limit_s": -1},
        {"backoff_s": float("nan")},
        {"grace_s": float("inf")},
        {"prefetch": 0},
        {"prefetch": 46},
        {"wait_s": 0},
        {"memory_max_bytes": 1},
        {"queue": ()},
        {"queue": ("q", "q")},
        {"queue": ("q", "a b")},
        {"queue": ("q", "a,b")},
        {"queue": ("a,b", "q")},  # in turns it would not stay the first
        {"queue": tuple(f"q{number}" for number in range(65))},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Settings(**{"queue": "q", **wrong})


def test_several_queues_are_read_in_turns_or_by_priority() -> None:
    queues = ("a", "b", "c")
    assert Settings(queue=queues).reads == [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")]
    assert Settings(queue=queues, order=Order.PRIORITY).reads == [queues]
    assert Settings(queue="a,b").reads == Settings(queue=("a,b",)).reads == [("a,b",)]
    assert Settings(queue=("a,b", "c"), order=Order.PRIORITY).reads == [("a,b", "c")]
    settings = Settings(queue=queues)
    assert [settings.dead_queue(queue) for queue in settings.queues] == ["a-dead", "b-dead", "c-dead"]
    assert Settings(queue=queues, dead_letters="dead").dead_queue("b") == "dead"


def test_a_pause_doubles_up_to_the_longest_less_a_random_part() -> None:
    settings = Settings(queue="q", backoff_s=1, backoff_max_s=10)
    assert [rest_s(settings, attempts, lambda: 0.0) for attempts in (1, 2, 3, 4, 5, 5000)] == [1, 2, 4, 8, 10, 10]
    assert rest_s(settings, 3, lambda: 1.0) == 2


def test_a_pace_spaces_calls_evenly_and_makes_up_for_no_pause() -> None:
    pace = Pace(10)
    assert [round(pace.delay_s(100.0), 6) for _ in range(3)] == [0, 0.1, 0.2]
    assert [round(pace.delay_s(200.0), 6) for _ in range(2)] == [0, 0.1]
    assert (Pace(0).delay_s(1.0), Pace(0).is_limited) == (0, False)


def test_a_batch_grows_while_it_is_quick_and_shrinks_to_what_would_not_have_been_slow() -> None:
    def plain(data: bytes) -> None: ...

    lane = Lane(Worker(plain, Settings(queue="q"))._shared, ThreadRunner(plain))
    sizes = []
    for took_s in (0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.04, 0.1, 0.06, 10, 10):
        lane._learn_batch(lane._batch, took_s)
        sizes.append(lane._batch)
    assert sizes == [2, 4, 8, 16, 32, 32, 32, 16, 13, 1, 1]


def test_a_ledger_knows_what_became_of_an_item() -> None:
    ledger, item, other = Ledger(), Item(b"a", id=1), Item(b"b", id=1)
    assert ledger.begin_item(item, 0) is Standing.NEW
    assert (ledger.begin_item(item, 0), ledger.begin_item(other, 0)) == (Standing.RUNNING, Standing.NEW)
    assert [ledger.fail(item), ledger.begin_item(item, 0), ledger.fail(item)] == [1, Standing.NEW, 2]
    ledger.schedule_retry(item, 50)
    assert (ledger.begin_item(item, 49), ledger.due_s(item, 0)) == (Standing.RESTING, 50)
    assert ledger.begin_item(item, 50) is Standing.NEW
    ledger.succeed(item)
    assert ledger.begin_item(item, 51) is Standing.DONE
    ledger.forget_confirmed([item])
    assert ledger.begin_item(item, 52) is Standing.NEW
    ledger.cut_off(item)
    assert [ledger.begin_item(item, 53), ledger.fail(item)] == [Standing.NEW, 1]
    one, its_twin = [Item(b"a", id=2, key=key) for key in (b"mail", b"reports")]  # two queues give the same ids
    again = Item(b"a", id=2, key=b"mail/t=500/open")
    standings = [ledger.begin_item(delivered, 0) for delivered in (one, its_twin, again)]
    assert standings == [Standing.NEW, Standing.NEW, Standing.RUNNING]


def test_a_dead_letter_is_read_back_and_its_reason_is_kept_short() -> None:
    letter = DeadLetter("q", 7, 3, 5, "2026-11-29", "w", "why", bytes(range(256)))
    assert DeadLetter.decode(letter.encode()) == letter
    assert json.loads(letter.encode())["reason"] == "why"
    long = "a" * 10_000 + "b" * 10_000
    assert shortened(long)[0] == "a" and shortened(long)[-1] == "b" and len(shortened(long)) < REASON_CHARACTERS_MAX + 9
    with pytest.raises(ValueError):
        DeadLetter.decode(b"{}")


def test_a_dead_letter_may_tell_of_a_name_that_is_not_utf_8() -> None:
    name = os.fsdecode(b"\xff.png")
    letter = DeadLetter.decode(DeadLetter("q", 7, 3, 5, "2026-11-29", name, f"cannot read {name}", b"").encode())
    assert (letter.worker, letter.reason) == ("\\udcff.png", "cannot read \\udcff.png")
    assert 'worker="\\\\udcff.png"' in Counters(["q"]).prometheus(name, {}).encode().decode()


def test_a_log_without_a_standard_error_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        monkeypatch.setattr(sys, "stderr", stream)
        Log("w")("info", "x")


def test_a_log_line_is_one_line_whatever_is_in_it() -> None:
    lines: list[str] = []
    Log("w", write=lines.append)("error", "item.died", why='a "b"\nc', id=3)
    Log("w", as_json=True, write=lines.append)("info", "x", why="a\nb")
    assert lines[0].partition("Z ")[2] == 'error item.died worker=w why="a \\"b\\"\\nc" id=3'
    assert json.loads(lines[1])["why"] == "a\nb"


def test_a_label_shows_letters_beyond_ascii_as_they_are() -> None:
    assert 'staniel_worker_done_total{worker="büro",queue="bü"} 0' in Counters(["bü"]).prometheus("büro", {})


def test_counters_are_text_for_prometheus_by_queue() -> None:
    counters = Counters(["urgent", "jobs"])
    counters.did(0.5, "jobs")
    counters.did(0.25, "jobs")
    counters.add("failed", "urgent")
    counters.add("dead", 'alias"')
    counters.add("connections_lost")
    counters.add("hung")
    assert (counters.counts["done"], counters.counts["failed"], counters.counts["hung"]) == (2, 1, 1)
    lines = counters.prometheus('a"b', {"jobs": 2}).splitlines()
    for line in (
        'staniel_worker_done_total{worker="a\\"b",queue="jobs"} 2',
        'staniel_worker_done_total{worker="a\\"b",queue="urgent"} 0',
        'staniel_worker_failed_total{worker="a\\"b",queue="urgent"} 1',
        'staniel_worker_dead_total{worker="a\\"b",queue="alias\\""} 1',
        'staniel_worker_busy_seconds_total{worker="a\\"b",queue="jobs"} 0.750000',
        'staniel_worker_running{worker="a\\"b",queue="jobs"} 2',
        'staniel_worker_running{worker="a\\"b",queue="urgent"} 0',
        'staniel_worker_connections_lost_total{worker="a\\"b"} 1',
    ):
        assert line in lines
    assert len({line for line in lines if not line.startswith("#")}) == 3 * 10 + 1
    assert [line for line in lines if line.startswith("# TYPE")] == list(
        dict.fromkeys(line for line in lines if line.startswith("# TYPE"))
    )


def test_a_function_is_found_by_its_name() -> None:
    assert find("tests.worker.functions:odd").__name__ == "odd"
    for wrong in (
        "odd",
        ":odd",
        "tests.worker.functions:",
        "tests.worker.functions:none",
        "tests.worker.functions:DONE",
    ):
        with pytest.raises(ValueError):
            find(wrong)


def test_a_mode_that_does_not_fit_the_function_is_refused() -> None:
    def plain(data: bytes) -> None: ...

    async def awaited(data: bytes) -> None: ...

    with pytest.raises(ValueError, match="coroutine"):
        Worker(plain, Settings(queue="q", mode=Mode.ASYNC))
    with pytest.raises(ValueError, match="event loop"):
        Worker(awaited, Settings(queue="q", mode=Mode.PROCESSES))
    with pytest.raises(ValueError, match="name"):
        Worker(plain, Settings(queue="q", mode=Mode.PROCESSES))
    assert Worker(awaited, Settings(queue="q")).settings.mode is Mode.ASYNC


def raising(error: BaseException) -> Callable[[bytes], None]:
    def function(data: bytes) -> None:
        raise error

    return function


def test_a_thread_survives_what_a_function_raises() -> None:
    for error, end in ((ValueError("x"), End.FAILED), (SystemExit(3), End.FAILED), (GiveUp("no"), End.GAVE_UP)):
        outcome = ThreadRunner(raising(error)).run(b"")
        assert outcome.end is end and type(error).__name__ in outcome.reason


def test_a_function_that_takes_long_is_interrupted_and_the_next_call_is_not() -> None:
    begun = threading.Event()

    def function(data: bytes) -> None:
        begun.set()
        while data:
            time.sleep(0.001)

    runner = ThreadRunner(function)
    ends = []
    thread = threading.Thread(target=lambda: ends.extend([runner.run(b"x"), runner.run(b"")]))
    thread.start()
    begun.wait()
    runner.interrupt("longer than 1 s")
    thread.join()
    runner.interrupt("nothing runs")
    assert ends[0].end is End.FAILED and ends[0].reason.startswith("longer than 1 s\nTraceback")
    assert (ends[1].end, runner.run(b"").end) == (End.DONE, End.DONE)


def test_a_call_is_not_interrupted_for_an_earlier_one() -> None:
    def function(data: bytes) -> None:
        runner.interrupt("longer than 1 s", lambda: False)

    runner = ThreadRunner(function)
    assert runner.run(b"") == Outcome(End.DONE)


def test_a_process_survives_what_a_function_does_or_is_replaced() -> None:
    runner = ProcessRunner(ODD, 1 << 30)
    try:
        assert runner.run(b"print").end is End.DONE
        first = runner._child
        for data, reason in ((b"raise why", "RuntimeError: why"), (b"exit", "SystemExit"), (b"memory", "MemoryError")):
            outcome = runner.run(data)
            assert outcome.end is End.FAILED and reason in outcome.reason
        assert runner._child is first
        assert runner.run(b"vanish 7").reason == "the process of the function ended with status 7"
        assert runner.run(b"fine").end is End.DONE
        assert runner._child is not first
    finally:
        runner.close()


def test_a_process_that_hangs_is_killed() -> None:
    runner = ProcessRunner(ODD, 0)
    runner.run(b"fine")
    ends = []
    thread = threading.Thread(target=lambda: ends.append(runner.run(b"hang")))
    thread.start()
    assert until(lambda: not runner._child.stdin.closed if runner._child and runner._child.stdin else False)
    runner.interrupt("longer than 1 s")
    thread.join()
    runner.close()
    assert (ends[0].end, ends[0].reason) == (End.FAILED, "longer than 1 s")


def test_a_call_that_is_interrupted_before_it_has_begun_fails() -> None:
    runner = ProcessRunner(ODD, 0)
    runner.prepare()
    runner.interrupt("longer than 1 s")
    assert runner.run(b"hang") == Outcome(End.FAILED, "longer than 1 s")


def test_a_process_that_was_killed_between_two_calls_costs_no_item_an_attempt() -> None:
    runner = ProcessRunner(ODD, 0)
    assert runner.run(b"fine").end is End.DONE
    assert runner._child is not None
    os.kill(runner._child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, runner._child.pid, os.WEXITED | os.WNOWAIT)
    runner.prepare()
    assert runner.run(b"fine") == Outcome(End.DONE)
    runner.close()


def test_a_process_that_imports_its_function_for_too_long_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOW_IMPORT, "600")
    outcome = ProcessRunner("tests.worker.slow_import:function", 0, 0.01).run(b"")
    assert outcome == Outcome(End.FAILED, "the process took longer than 0.01 s to import the function")


def test_a_program_with_a_thousand_descriptors_can_start_a_process_whose_import_has_a_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1024)]
    try:
        runner = ProcessRunner(ODD, 0, 600)
        assert runner.run(b"fine") == Outcome(End.DONE)
        runner.close()
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_has_ended_though_a_child_of_its_function_lives(tmp_path: Path) -> None:
    child = tmp_path / "child"
    assert ProcessRunner(ODD, 0).run(b"orphan %b" % bytes(child)).reason.endswith("ended with status 3")
    os.kill(int(child.read_text()), signal.SIGKILL)  # it is still there


def test_what_a_function_starts_in_a_process_can_be_terminated() -> None:
    runner = ProcessRunner(ODD, 0)
    assert runner.run(b"terminate") == Outcome(End.DONE)
    runner.close()


def test_a_process_that_cannot_import_the_function_says_why() -> None:
    outcome = ProcessRunner("tests.worker.no_such_module:odd", 0).run(b"")
    assert outcome.end is End.FAILED and "ModuleNotFoundError" in outcome.reason
