"""Celery's workers and tools on a real server, with accidents."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.client.kombu.test_channels import stored
from tests.client.kombu.workers import HELD_MAX, application, working
from tests.support.process import Server, until

pytestmark = [pytest.mark.programs("python:celery"), pytest.mark.slow]
LONG_S = 60.0


def send(app: Any, numbers: range) -> None:
    """Publish numbered tasks; kombu repeats what the server did not answer."""
    policy = {"max_retries": 100, "interval_start": 0.05, "interval_step": 0.05, "interval_max": 0.2}
    for number in numbers:
        app.send_task("note", (number, 0.01), retry=True, retry_policy=policy)


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_every_task_runs_though_server_and_worker_are_killed(server: Server, tmp_path: Path, pool: str) -> None:
    server.options = ("--port", str(server.port))  # clients find it again
    with application(server) as app, working(tmp_path, server, pool) as workers:
        send(app, range(60))
        assert until(lambda: len(workers.done()) >= 10, LONG_S), workers.log
        server.restart()
        send(app, range(60, 90))
        assert until(lambda: len(workers.done()) >= 40, LONG_S), workers.log
        if pool == "prefork":  # other workers are one process, which a kill ends in the same way
            workers.kill()
            workers.start()
        assert until(lambda: len(workers.done()) == 90, LONG_S), workers.log
        assert until(lambda: stored(server)["celery"] == 0)
        kills = 2 if pool == "prefork" else 1
        assert workers.done().total() - 90 <= kills * HELD_MAX, (workers.done(), workers.log)
        assert "Unrecoverable" not in workers.log


def test_what_a_worker_ran_is_acknowledged_when_it_stops_in_order(server: Server, tmp_path: Path) -> None:
    with application(server) as app, working(tmp_path, server, "threads") as workers:
        for number in range(8):
            app.send_task("note", (number, 0.2))
        assert until(lambda: workers.done(), LONG_S), workers.log
        assert workers.process is not None
        workers.process.send_signal(signal.SIGTERM)
        assert workers.process.wait(LONG_S) == 0, workers.log
        assert stored(server)["celery"] == 8 - len(workers.done()), (workers.done(), workers.log)


def test_workers_are_inspected_revoked_from_watched_and_shut_down(server: Server, tmp_path: Path) -> None:
    with application(server) as app, working(tmp_path, server, "threads") as workers:
        inspect = app.control.inspect(timeout=10, destination=["w@test"])
        assert until(lambda: "ready" in workers.log, LONG_S), workers.log
        assert inspect.ping() == {"w@test": {"ok": "pong"}}
        events: list[dict[str, Any]] = []
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": events.append})
            with receiver.consumer_context(wakeup=False) as (live, _, _):
                held = app.send_task("note", (1, 1.0))
                later = app.send_task("note", (2,), countdown=1)
                assert until(lambda: inspect.active()["w@test"] and inspect.scheduled()["w@test"], LONG_S)
                assert [task["id"] for task in inspect.active()["w@test"]] == [held.id]
                assert [task["request"]["id"] for task in inspect.scheduled()["w@test"]] == [later.id]
                later.revoke()
                assert until(lambda: inspect.revoked()["w@test"] == [later.id], LONG_S)
                give_up = time.monotonic() + LONG_S
                while "task-revoked" not in {each["type"] for each in events} and time.monotonic() < give_up:
                    live.drain_events(timeout=LONG_S)
        assert {"task-received", "task-started", "task-succeeded", "task-revoked"} <= {each["type"] for each in events}
        app.control.shutdown(destination=["w@test"])
        assert workers.process is not None
        assert workers.process.wait(LONG_S) == 0, workers.log
        assert workers.done() == {1: 1}
        assert until(
            lambda: set(stored(server)) <= {"celery", "!celery:pidbox", "!reply:celery:pidbox", "!celeryev"}
        ), stored(server)


def test_more_tasks_of_the_future_than_a_connection_may_hold_do_not_stop_others(server: Server, tmp_path: Path) -> None:
    with application(server) as app, working(tmp_path, server, "solo") as workers:
        for number in range(120):
            app.send_task("note", (number,), countdown=3600)
        app.send_task("note", (1000,))
        assert until(lambda: workers.done() == {1000: 1}, LONG_S), workers.log
        workers.kill()
        assert until(lambda: stored(server)["celery"] == 120)
