"""Celery's workers and tools on a real server, with accidents."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.client.kombu.conftest import LONG_S, eventually, held, stored
from tests.client.kombu.workers import HELD_MAX, STOPS_BEFORE_A_REPORT_IS_READ, application, working
from tests.support.process import Server

pytestmark = [pytest.mark.programs("python:celery"), pytest.mark.slow]


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
        assert eventually(lambda: len(workers.done()) >= 10), workers.log
        server.restart()
        send(app, range(60, 90))
        assert eventually(lambda: len(workers.done()) >= 40), workers.log
        if pool == "prefork":  # other workers are one process, which a kill ends in the same way
            workers.kill()
            workers.start()
        assert eventually(lambda: len(workers.done()) == 90), workers.log
        assert eventually(lambda: stored(server)["celery"] == 0)
        kills = 2 if pool == "prefork" else 1
        assert workers.done().total() - 90 <= kills * HELD_MAX, (workers.done(), workers.log)
        assert "Unrecoverable" not in workers.log


def test_what_a_worker_ran_is_acknowledged_when_it_stops_in_order(server: Server, tmp_path: Path) -> None:
    with application(server) as app, working(tmp_path, server, "threads") as workers:
        for number in range(8):
            app.send_task("note", (number, 0.2))
        assert eventually(lambda: workers.done()), workers.log
        assert workers.process is not None
        workers.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: workers.process.poll() is not None), workers.log
        assert eventually(lambda: held(server, "celery") == 0)
        assert stored(server)["celery"] == 8 - len(workers.done()), (workers.done(), workers.log)


def test_what_a_child_has_begun_is_not_run_again_when_the_worker_stops(server: Server, tmp_path: Path) -> None:
    with (
        application(server) as app,
        working(tmp_path, server, "prefork", STOPS_BEFORE_A_REPORT_IS_READ) as workers,
    ):
        app.send_task("note", (1, 0.05))
        assert workers.process is not None
        assert workers.process.wait(LONG_S) == 0, workers.log
        assert workers.done() == {1: 1}
        assert eventually(lambda: held(server, "celery") == 0)
        assert stored(server)["celery"] == 0, workers.log


def test_workers_are_inspected_revoked_from_watched_and_shut_down(server: Server, tmp_path: Path) -> None:
    with application(server) as app, working(tmp_path, server, "threads") as workers:
        inspect = app.control.inspect(timeout=LONG_S, destination=["w@test"])
        assert eventually(lambda: "ready" in workers.log), workers.log
        assert inspect.ping() == {"w@test": {"ok": "pong"}}
        seen: list[dict[str, Any]] = []
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": seen.append})
            with receiver.consumer_context(wakeup=False) as (live, _, _):
                running = app.send_task("wait_for", ("go",))
                later = app.send_task("note", (2,), countdown=3600)
                assert eventually(lambda: inspect.active()["w@test"] and inspect.scheduled()["w@test"]), workers.log
                assert [task["id"] for task in inspect.active()["w@test"]] == [running.id]
                assert [task["request"]["id"] for task in inspect.scheduled()["w@test"]] == [later.id]
                app.control.revoke("unwanted")
                assert eventually(lambda: inspect.revoked()["w@test"] == ["unwanted"]), workers.log
                app.send_task("note", (3,), task_id="unwanted")
                (tmp_path / "go").touch()
                while not {"task-received", "task-started", "task-succeeded", "task-revoked"} <= kinds(seen):
                    live.drain_events(timeout=LONG_S)
        app.control.shutdown(destination=["w@test"])
        assert workers.process is not None
        assert eventually(lambda: workers.process.poll() is not None), workers.log
        assert not workers.done()
        assert eventually(
            lambda: set(stored(server)) <= {"celery", "!celery:pidbox", "!reply:celery:pidbox", "!celeryev"}
        ), stored(server)
        assert eventually(lambda: stored(server)["celery"] == 1), stored(server)  # what was for later


def kinds(events: list[dict[str, Any]]) -> set[str]:
    return {event["type"] for event in events}


def test_more_tasks_of_the_future_than_a_connection_may_hold_do_not_stop_others(server: Server, tmp_path: Path) -> None:
    with application(server) as app, working(tmp_path, server, "solo") as workers:
        for number in range(120):
            app.send_task("note", (number,), countdown=3600)
        app.send_task("note", (1000,))
        assert eventually(lambda: workers.done() == {1000: 1}), workers.log
        assert eventually(lambda: held(server, "celery") == 120)  # what has run is acknowledged
        workers.kill()
        assert eventually(lambda: held(server, "celery") == 0)
        assert stored(server)["celery"] == 120
