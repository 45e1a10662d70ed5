"""A step of Celery's workers: before the worker stops, it reads which tasks the children of a prefork pool have begun.

A worker that stops drops the tasks that its pool is not known to have begun, because the broker delivers them again.
Celery 5.7.0 also drops a task that a child has begun if the report is not read yet. Such a task runs to its end, is not
acknowledged and runs once more elsewhere, and its child waits half a minute until its result is read. So this step
reads the reports first. The pool's attributes have no public names; if a version has other names, the step does
nothing.
"""

from __future__ import annotations

import select
import time
from collections.abc import Generator
from typing import Any

from celery import bootsteps, signals
from kombu.log import get_logger

REPORT_S = 5.0  # a child reports within milliseconds
LOOK_MS = 100

logger = get_logger(__name__)


class ReadsReports(bootsteps.StartStopStep):
    requires = ("celery.worker.components:Pool",)

    def close(self, worker: Any) -> None:
        """Read the children's reports until every task that was given to one is known to have begun."""
        try:
            read_reports(worker.pool._pool, worker.hub, time.monotonic() + REPORT_S)
        except AttributeError:  # no prefork pool
            return
        except Exception:
            logger.exception("the reports of the pool's children cannot be read; a task may run twice")


def read_reports(pool: Any, hub: Any, until: float) -> None:
    """Read what the children of a pool say, as its event loop does. Raises AttributeError if it has no children."""
    while time.monotonic() < until:
        given = [job for job in list(pool._cache.values()) if job._write_to is not None and not job._accepted]
        if not any(job._write_to._is_alive() for job in given):
            return
        poll = select.poll()
        for descriptor in pool._fileno_to_outq:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(LOOK_MS):
            callback, arguments = hub.readers[descriptor]
            if isinstance(callback, Generator):  # the rest of an incomplete report
                next(callback, None)
            else:
                callback(*arguments)


def _add_step(instance: Any = None, **options: Any) -> None:
    instance.app.steps["worker"].add(ReadsReports)


signals.celeryd_init.connect(_add_step)
