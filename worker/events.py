"""Log, counters and hooks: all that a worker tells of its work."""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from staniel.protocol.client.replies import Item
from staniel.worker.dead import escaped

Value = str | int | float


class Hooks:
    """The hooks of a program: a subclass overrides those that it wants. They are called by the thread of the lane; an
    exception in one is logged, and changes nothing.
    """

    def started(self, item: Item) -> None:
        """Learn that the function is about to be called."""

    def succeeded(self, item: Item, took_s: float) -> None:
        """Learn that the function has returned; the item is confirmed afterwards."""

    def failed(self, item: Item, attempts: int, reason: str) -> None:
        """Learn that the function has failed, for the `attempts`th time."""

    def died(self, item: Item, reason: str) -> None:
        """Learn that the item has been put on the queue of dead letters."""


def to_stderr(line: str) -> None:
    """Write a line of the log, if that is possible: a full disk, a pipe without a reader, or a program that has closed
    standard error ends no lane.
    """
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class Log:
    """A log of lines such as `time level event name=value`, or of JSON objects."""

    def __init__(self, worker: str, *, as_json: bool = False, write: Callable[[str], None] = to_stderr) -> None:
        self._worker = worker
        self._as_json = as_json
        self._write = write

    def __call__(self, level: str, event: str, **values: Value) -> None:
        """Write a line."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        values = {"worker": self._worker, **values}
        if self._as_json:
            self._write(json.dumps({"time": time, "level": level, "event": event, **values}))
        else:
            self._write(f"{time} {level} {event} " + " ".join(f"{name}={_shown(v)}" for name, v in values.items()))


def _shown(value: Value) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)


COUNTERS = {
    "done": "Items that the function has done.",
    "failed": "Calls of the function that failed.",
    "dead": "Items put on the queue of dead letters.",
    "handed_back": "Items handed back undone: at a stop, or because others of their lane took long.",
    "limited": "Calls that took longer than the time limit.",
    "timed_out": "Items that were not open any more when their function had ended.",
    "repeated": "Items that came again after a lost connection and were not done twice.",
    "connections_lost": "Connections that were lost.",
    "hung": "Threads that a function does not leave.",
}
OF_NO_QUEUE = ("connections_lost",)


class Counters:
    """The counters of a worker, over all queues and of each, and the seconds that functions took."""

    def __init__(self, queues: Sequence[str] = ()) -> None:
        """Begin with zeros for these queues."""
        self._lock = threading.Lock()
        self.counts = dict.fromkeys(COUNTERS, 0)
        self._of_queue = {queue: dict.fromkeys(COUNTERS, 0) for queue in queues}
        self._busy_s = dict.fromkeys(queues, 0.0)

    def add(self, name: str, queue: str = "") -> None:
        """Count one, of a queue if it is of any."""
        with self._lock:
            self.counts[name] += 1
            if queue:
                self._counts_of(queue)[name] += 1

    def did(self, took_s: float, queue: str) -> None:
        """Count an item that is done."""
        with self._lock:
            self.counts["done"] += 1
            self._counts_of(queue)["done"] += 1
            self._busy_s[queue] += took_s

    def _counts_of(self, queue: str) -> dict[str, int]:
        counts = self._of_queue.get(queue)
        if counts is None:
            counts = self._of_queue[queue] = dict.fromkeys(COUNTERS, 0)
            self._busy_s[queue] = 0.0
        return counts

    def prometheus(self, worker: str, running: Mapping[str, int]) -> str:
        """Return the counters as Prometheus reads them. `running`: the items that are worked on, by queue."""
        with self._lock:
            of_queue = {queue: dict(counts) for queue, counts in self._of_queue.items()}
            busy_s = dict(self._busy_s)
        of_worker = f"worker={json.dumps(escaped(worker), ensure_ascii=False)}"
        labels = {queue: f"{{{of_worker},queue={json.dumps(queue, ensure_ascii=False)}}}" for queue in of_queue}
        lines = []
        for name, text in COUNTERS.items():
            metric = f"staniel_worker_{name}_total"
            lines += [f"# HELP {metric} {text}", f"# TYPE {metric} counter"]
            if name in OF_NO_QUEUE:
                lines.append(f"{metric}{{{of_worker}}} {self.counts[name]}")
            else:
                lines += [f"{metric}{labels[queue]} {counts[name]}" for queue, counts in of_queue.items()]
        lines.append("# TYPE staniel_worker_busy_seconds_total counter")
        lines += [f"staniel_worker_busy_seconds_total{labels[queue]} {value:.6f}" for queue, value in busy_s.items()]
        lines.append("# TYPE staniel_worker_running gauge")
        lines += [f"staniel_worker_running{labels[queue]} {running.get(queue, 0)}" for queue in of_queue]
        return "\n".join(lines) + "\n"


class Teller:
    """The log, the counters and the hooks of one worker."""

    def __init__(self, log: Log, hooks: Hooks, queues: Sequence[str] = ()) -> None:
        self.log = log
        self.counters = Counters(queues)
        self.hooks = hooks
        self.has_hooks = type(hooks) is not Hooks

    def call(self, hook: Callable[..., None], *values: object) -> None:
        """Call a hook. What it raises ends no lane, not even `sys.exit`."""
        if not self.has_hooks:
            return
        try:
            hook(*values)
        except BaseException:
            self.log("error", "hook.failed", hook=hook.__name__, why=traceback.format_exc())
