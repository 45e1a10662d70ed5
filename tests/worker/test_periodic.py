"""Periodic items: one for each time over several workers, whatever clocks, workers and the server do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from staniel.client import Client, ClientError, Jobs
from staniel.worker import Hooks, Periodic, Schedule, Server, Settings, Worker
from staniel.worker import periodic as periodic_module
from staniel.worker.events import Log, Teller
from staniel.worker.periodic import Ticker, Times, parse
from tests.support import process
from tests.support.process import running, until
from tests.support.wire import drain

pytestmark = pytest.mark.programs("python:cronsim")

START = datetime(2026, 11, 29, 12, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[process.Server]:
    with running(tmp_path, "--workq-port", "0") as started:
        yield started


class Clock:
    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


def ticker(server: process.Server, clock: Clock, *periodics: Periodic, queue: str = "jobs") -> Ticker:
    schedule = Schedule(periodics or (Periodic("tick", "* * * * *"),), server.second_port)
    return Ticker(queue, schedule, Server(port=server.port), Teller(Log("w", write=print), Hooks()), wall=clock)


def test_of_times_that_have_passed_the_last_one_counts() -> None:
    times = Times(Periodic("a", "*/5 * * * *"), START)
    assert times.passed(START + 4 * MINUTE) is None
    assert times.passed(START.replace(minute=5, second=0)) == START.replace(minute=5, second=0)
    assert times.passed(START + 21 * MINUTE) == START.replace(minute=20, second=0)
    assert times.passed(START) is None
    assert times.passed(START + timedelta(days=20_000)) == START.replace(second=0) + timedelta(days=20_000)


def test_a_clock_that_was_ahead_and_is_put_right_misses_no_later_time() -> None:
    times = Times(Periodic("a", "*/5 * * * *"), START)
    assert times.passed(START + timedelta(days=365)) is not None
    assert times.passed(START + MINUTE) is None
    assert times.passed(START + 5 * MINUTE) == START.replace(minute=5, second=0)
    assert times.passed(START + 6 * MINUTE) is None


def test_each_periodic_item_has_a_name_of_its_own() -> None:
    for names in (["a", "a"], ["a", ""]):
        periodics = tuple(Periodic(name, "* * * * *", b"1") for name in names)
        with pytest.raises(ValueError, match="a name for each periodic item, each once"):
            Worker(print, Settings(queue="jobs"), schedule=Schedule(periodics))


def test_a_surprise_does_not_end_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    stopping, lines = threading.Event(), list[str]()

    def add_due(ticker: Ticker, wait_s: float) -> None:
        if lines:
            stopping.set()
        else:
            raise RuntimeError("a surprise")

    monkeypatch.setattr(Ticker, "add_due", add_due)
    monkeypatch.setattr(periodic_module, "PAUSE_S", 0)
    teller = Teller(Log("w", write=lines.append), Hooks())
    Ticker("jobs", Schedule((Periodic("tick", "* * * * *"),)), Server(), teller).live(stopping)
    assert len(lines) == 1 and "schedule.lost" in lines[0] and "RuntimeError: a surprise" in lines[0]


def test_times_are_those_of_the_zone_also_when_clocks_change() -> None:
    spring = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)
    times = Times(Periodic("a", "30 3 * * *", zone="Europe/Berlin"), spring)
    assert times.passed(datetime(2026, 3, 29, 1, 29, tzinfo=UTC)) is None
    assert times.passed(datetime(2026, 3, 29, 1, 30, tzinfo=UTC)) == datetime(2026, 3, 29, 1, 30, tzinfo=UTC)


def test_a_wrong_expression_zone_or_option_is_a_value_error() -> None:
    for wrong in (Periodic("a", "61 * * * *"), Periodic("a", "x"), Periodic("a", "* * * * *", zone="Nowhere/At all")):
        with pytest.raises(ValueError):
            Times(wrong, START)
    assert parse(["a=* * * * *", "b = 0 3 * * *"], "UTC")[1] == Periodic("b", "0 3 * * *")
    for texts in (["a"], ["=x"], ["a="], ["a=1", "a=2"]):
        with pytest.raises(ValueError, match="NAME=CRON"):
            parse(texts, "UTC")


def test_each_time_has_one_item_over_three_workers(server: process.Server) -> None:
    clock = Clock()
    workers = [ticker(server, clock) for _ in range(3)]
    for _ in range(5):
        clock.now += MINUTE
        for each in (*workers, *workers):
            each.add_due(0)
    assert drain(server.address, "jobs") == [b"tick"] * 5
    for each in workers:
        each.close()


def test_a_clock_that_is_put_back_repeats_nothing_and_one_that_jumps_has_one_item(server: process.Server) -> None:
    clock = Clock()
    one = ticker(server, clock)
    clock.now += MINUTE
    one.add_due(0)
    clock.now -= 10 * MINUTE
    one.add_due(0)
    fresh = ticker(server, Clock(START - MINUTE))  # a worker that starts while the clock is wrong
    fresh._wall = clock  # type: ignore[assignment]
    clock.now = START + MINUTE
    fresh.add_due(0)
    assert drain(server.address, "jobs") == [b"tick"]
    clock.now += 100 * MINUTE
    one.add_due(0)
    fresh.add_due(0)
    assert drain(server.address, "jobs") == [b"tick"]
    one.close()
    fresh.close()


def test_names_data_and_queues_of_any_characters(server: process.Server) -> None:
    clock = Clock()
    daily = Periodic("daily", "0 0 * * *", b"\x00\r\n")
    one = ticker(server, clock, daily, Periodic("tick", "* * * * *"), queue="a+b:c")
    clock.now += timedelta(days=1)
    one.add_due(0)
    one.close()
    assert sorted(drain(server.address, "a+b:c")) == [b"\x00\r\n", b"tick"]


def test_what_a_killed_worker_had_leased_is_put_by_another(
    server: process.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic_module, "TTR_S", 0.05)
    clock = Clock()
    one, other = ticker(server, clock), ticker(server, clock)
    clock.now += MINUTE
    with monkeypatch.context() as patch:
        patch.setattr(Ticker, "_put", killed)
        with pytest.raises(KeyboardInterrupt):
            one.add_due(0)
    assert drain(server.address, "jobs") == []
    other.add_due(0)
    assert until(lambda: bool(other.add_due(0.1)) or drain(server.address, "jobs") == [b"tick"])
    other.add_due(0.2)
    assert drain(server.address, "jobs") == []
    one.close()
    other.close()


def killed(self: Any, jobs: Jobs, id: str, data: bytes) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("when", ["before a time", "between add and lease"])
def test_a_server_that_was_away_has_the_item_when_it_is_back(server: process.Server, when: str) -> None:
    clock = Clock()
    one = ticker(server, clock)
    one.add_due(0)
    if when == "between add and lease":
        clock.now += MINUTE
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Jobs, "lease", lambda *_, **__: None)
            one.add_due(0)
    ports = (server.port, server.second_port)
    server.kill()
    if when == "before a time":
        clock.now += MINUTE
    with pytest.raises(ClientError):
        one.add_due(0)
    one.close()
    server.options = ("--port", str(ports[0]), "--workq-port", str(ports[1]))
    server.start()
    one.add_due(0)
    one.add_due(0)
    assert drain(server.address, "jobs") == [b"tick"]
    one.close()


def test_a_full_queue_gets_the_item_when_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic_module, "TTR_S", 0.05)
    clock = Clock()
    with running(tmp_path, "--workq-port", "0", config="[queues.jobs]\nmax_items = 1\n") as server:
        with Client(*server.address) as client:
            client.put("jobs", b"other")
            one = ticker(server, clock)
            clock.now += MINUTE
            one.add_due(0)
            assert client.get("jobs") is not None
            item = None
            while item is None:
                one.add_due(0.1)
                item = client.get("jobs")
            assert item.data == b"tick"
        one.close()


def test_a_worker_calls_its_function_with_a_periodic_item(server: process.Server) -> None:
    seen: list[bytes] = []
    schedule = Schedule((Periodic("tick", "* * * * * *"),), server.second_port)
    worker = Worker(
        seen.append, Settings(queue="jobs", wait_s=0.05), Server(port=server.port),
        log=Log("w", write=lambda line: None), schedule=schedule,
    )  # fmt: skip
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert until(lambda: len(seen) >= 2)
    worker.stop()
    thread.join()
    assert set(seen) == {b"tick"}
