"""Celery's workers are killed and started again under load, on Staniel and on redis: what became of each task.

`STANIEL_CELERY_KILLS=100` has them killed more often.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.client.kombu.conftest import eventually, held, stored
from tests.client.kombu.workers import HELD_MAX, Workers, application, working
from tests.support.process import Server, die_with_the_tests, until
from tests.support.transcripts import free_port

pytestmark = [pytest.mark.programs("python:celery"), pytest.mark.slow]
KILLS = int(os.environ.get("STANIEL_CELERY_KILLS", "4"))
BETWEEN = 40  # tasks that are done from one start of the worker to its kill, at the least
AHEAD = 100  # tasks that are published and not done, while the producer works


class Story(NamedTuple):
    """What a program published, and how often each task ran that did."""

    published: set[int]
    ran: dict[int, int]

    @property
    def not_run(self) -> set[int]:
        return self.published - self.ran.keys()

    @property
    def repeated(self) -> int:
        return sum(count - 1 for count in self.ran.values())


def publish_until(over: threading.Event, app: Any, workers: Workers, published: set[int]) -> None:
    """Publish numbered tasks, a few more than are done. `published` gets those whose publish returned."""
    number = 0
    while not over.is_set():
        if number - len(workers.done()) >= AHEAD:
            over.wait(0.01)
            continue
        app.send_task("note", (number, 0.01))
        published.add(number)
        number += 1


def killed_again_and_again(folder: Path, broker: Server | str, is_idle: Callable[[], bool]) -> Story:
    """Kill a prefork worker with its children each time that it has done some tasks, while others are published. At the
    end the last one does what there is, until the broker `is_idle`.
    """
    over, published = threading.Event(), set[int]()
    with application(broker) as app, working(folder, broker, "prefork") as workers:
        producer = threading.Thread(target=publish_until, args=(over, app, workers, published))
        producer.start()
        try:
            for _ in range(KILLS):
                before = len(workers.done())
                assert eventually(lambda before=before: len(workers.done()) >= before + BETWEEN), workers.log
                workers.kill()
                workers.start()
        finally:
            over.set()
            producer.join()
        assert eventually(is_idle), workers.log
        workers.kill()
        assert "Unrecoverable" not in workers.log
        return Story(published, dict(workers.done()))


def test_a_worker_killed_under_load_loses_no_task(
    server: Server, tmp_path: Path, closing_line: Callable[[str], None]
) -> None:
    story = killed_again_and_again(
        tmp_path, server, lambda: stored(server)["celery"] == 0 and held(server, "celery") == 0
    )
    assert len(story.published) >= KILLS * BETWEEN
    assert story.not_run == set()
    assert story.ran.keys() == story.published
    assert story.repeated <= KILLS * HELD_MAX
    closing_line(f"Celery: {KILLS} kills amid {len(story.published)} tasks: 0 lost, {story.repeated} repeated")


class Redis:
    """A redis server, and the numbers of the tasks that it has."""

    def __init__(self, port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self._client = importlib.import_module("redis").Redis(port=port)

    def waiting(self) -> set[int]:
        return {number_of(json.loads(text)) for text in self._client.lrange("celery", 0, -1)}

    def unacknowledged(self) -> set[int]:
        """Those that a worker has taken. They return when their visibility time-out of an hour is over."""
        return {number_of(json.loads(text)[0]) for text in self._client.hvals("unacked")}

    def close(self) -> None:
        self._client.close()


def number_of(message: dict[str, Any]) -> int:
    number: int = json.loads(base64.b64decode(message["body"]))[0][0]
    return number


@contextmanager
def running_redis() -> Iterator[Redis]:
    port = free_port()
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=die_with_the_tests)
    try:
        assert until(lambda: is_listening(port)), "redis-server does not start"
        with closing(Redis(port)) as redis:
            yield redis
    finally:
        process.kill()
        process.wait()


def is_listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 30):
        return True
    return False


@pytest.mark.pure  # nothing in it is compiled: once is enough
@pytest.mark.programs("redis-server", "python:redis")
def test_a_worker_killed_under_load_on_redis_leaves_tasks_to_the_visibility_timeout_or_loses_them(
    tmp_path: Path, closing_line: Callable[[str], None]
) -> None:
    """The same story on kombu's own transport: it shows that the story finds what is lost, if something is."""
    with running_redis() as redis:
        story = killed_again_and_again(tmp_path, redis.url, lambda: not redis.waiting())
        waits = redis.waiting() | redis.unacknowledged()
    lost = story.not_run - waits
    assert len(story.published) >= KILLS * BETWEEN
    assert story.ran.keys() <= story.published
    assert len(lost) <= KILLS + 1  # the last worker is killed, too
    assert len(story.not_run - lost) <= (KILLS + 1) * (HELD_MAX + 1)
    later = f"{len(story.not_run - lost)} of them in an hour" if story.not_run - lost else "none of them"
    closing_line(
        f"Celery on redis: {KILLS} kills amid {len(story.published)} tasks: {len(story.not_run)} did not run,"
        f" {later}; {len(lost)} lost"
    )
