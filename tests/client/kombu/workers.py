"""Celery in a folder: an application with its tasks, and workers as processes that are killed and started again."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.client.kombu.conftest import url
from tests.support.process import Server, die_with_the_tests

TASKS = """
import os, time
from celery import Celery
import staniel.kombu
app = Celery("tasks", broker=os.environ["BROKER"], backend=os.environ.get("BACKEND"))
app.conf.update(
    task_acks_late=True, broker_connection_retry_on_startup=True, worker_send_task_events=True,
    broker_connection_max_retries=None,
    broker_transport_options={"interval_start": 0.05, "interval_step": 0.05, "interval_max": 0.2},
)
@app.task(name="note")
def note(number, seconds=0.0):
    time.sleep(seconds)
    with open("done", "a") as file:
        file.write(f"{number}\\n")
    return number
@app.task(name="wait_for")
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
"""
STOPS_BEFORE_A_REPORT_IS_READ = """
import signal
from celery.concurrency.asynpool import ResultHandler
make_reader, begun = ResultHandler._make_process_result, []
def make_one_that_stops(self, hub):
    read = make_reader(self, hub)
    def stop_first(descriptor):
        if not begun and any(job._write_to for job in self.cache.values()):  # the report is that a task has begun
            begun.append(True)
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            read(descriptor)
    return stop_first
ResultHandler._make_process_result = make_one_that_stops
"""
HELD_MAX = 8  # two processes or threads, four times as many messages ahead


def application(broker: Server | str, **settings: Any) -> Any:
    """A producer's application, which knows the tasks by name. `broker`: a server of ours, or a URL."""
    importlib.import_module("staniel.kombu")
    app = importlib.import_module("celery").Celery("producer", broker=url_of(broker), set_as_current=False)
    app.conf.update(**settings)
    return app


def url_of(broker: Server | str) -> str:
    return broker if isinstance(broker, str) else url(broker)


class Workers:
    """Worker processes in one folder; what they have done is counted."""

    def __init__(self, folder: Path, broker: Server | str, pool: str, more: str = "", **environment: str) -> None:
        self.folder = folder
        (folder / "tasks.py").write_text(TASKS + more)
        self._environment = {**os.environ, "BROKER": url_of(broker), **environment}
        self._command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-P", pool, "-c", "2", "-n", "w@test"]
        self._command += ["-l", "INFO", "--without-heartbeat"]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command, cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=die_with_the_tests,
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL to the worker and its children."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
            self.process = None

    def done(self) -> Counter[int]:
        path = self.folder / "done"
        return Counter(map(int, path.read_text().split())) if path.exists() else Counter()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


@contextmanager
def working(folder: Path, broker: Server | str, pool: str, more: str = "", **environment: str) -> Iterator[Workers]:
    """A running worker, whose tasks are TASKS and `more`."""
    workers = Workers(folder, broker, pool, more, **environment)
    workers.start()
    try:
        yield workers
    finally:
        workers.kill()
