"""A worker: the lanes of one process, from their start to their end."""

from __future__ import annotations

import inspect
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from staniel.client.cluster import Cluster
from staniel.worker.events import Hooks, Log, Teller
from staniel.worker.keeper import Keeper
from staniel.worker.lane import Lane, Shared, Stop
from staniel.worker.ledger import Ledger
from staniel.worker.pace import Pace
from staniel.worker.periodic import Schedule, Ticker
from staniel.worker.processes import ProcessRunner
from staniel.worker.runners import Runner, ThreadRunner
from staniel.worker.settings import Mode, Server, Settings
from staniel.worker.target import find

if TYPE_CHECKING:
    from staniel.worker.loop import LoopThread

FORCED_S = 2.0
"""The time for functions that were cut off to end, before the connections of those that do not are closed."""
LOOK_S = 0.2
START_S_MAX = 60.0
"""The time for a process to import the function, where calls have a limit, if that is not longer."""


class Ending(Struct, frozen=True):
    """The end of a worker: how many items it has done, how many letters are dead, and how many functions did not end;
    their threads are still there, and their items were handed back.
    """

    done: int
    dead: int
    unfinished: int


class Worker:
    """A worker that calls `function` with the data of each item of a queue, or of several.

    `function` is a callable, or its name, `package.module:function`, which the mode PROCESSES needs. A coroutine
    function runs in the mode ASYNC, with the extra `aio`.
    """

    def __init__(
        self,
        function: Callable[[bytes], Any] | str,
        settings: Settings,
        server: Server | None = None,
        *,
        hooks: Hooks | None = None,
        log: Log | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        """Prepare a worker; nothing is sent yet. Raises ValueError, and what the import of the function raises."""
        self._target = function if isinstance(function, str) else ""
        self._function = find(function) if isinstance(function, str) else function
        if inspect.iscoroutinefunction(self._function):
            if settings.mode is Mode.PROCESSES:
                raise ValueError("a coroutine function runs on an event loop: use the mode ASYNC")
            settings = msgspec.structs.replace(settings, mode=Mode.ASYNC)
        elif settings.mode is Mode.ASYNC:
            raise ValueError("the mode ASYNC needs a coroutine function (async def)")
        if settings.mode is Mode.PROCESSES and not self._target:
            raise ValueError("the mode PROCESSES needs the name of a function, package.module:function")
        if not settings.name:
            settings = msgspec.structs.replace(settings, name=f"{socket.gethostname()}:{os.getpid()}")
        teller = Teller(log or Log(settings.name), hooks or Hooks(), settings.queues)
        self.settings = settings
        self.teller = teller
        pace = Pace(settings.rate_per_s)
        server = server or Server()
        cluster = Cluster([server.address, *server.members], random.random)
        self._shared = Shared(settings, server, cluster, Ledger(), pace, teller, Stop(), random.random)
        self._lanes: list[Lane] = []
        self._loop: LoopThread | None = None
        self._ticker = (
            Ticker(settings.queues[0], schedule, self._shared.server, teller)
            if schedule and schedule.periodics
            else None
        )

    @property
    def running(self) -> int:
        """The number of items that are being worked on."""
        return sum(lane.running is not None for lane in self._lanes)

    @property
    def _shown_queues(self) -> str:
        return ",".join(self.settings.queues)

    def metrics(self) -> str:
        """Return the worker's figures, of each queue, as Prometheus reads them."""
        items = [item for lane in self._lanes if (item := lane.running) is not None]
        return self.teller.counters.prometheus(self.settings.name, Counter(item.queue for item in items))

    def stop(self) -> None:
        """Stop taking items; `run` returns when the functions have ended, or after the grace time. A second call stops
        at once. It may be called by any thread, and by a signal's handler.
        """
        stop = self._shared.stop
        (stop.forced if stop.stopping.is_set() else stop.stopping).set()

    def run(self, *, signals: bool = False) -> Ending:
        """Work until `stop`. With `signals`, in the main thread, SIGTERM and SIGINT call it."""
        with ExitStack() as stack:
            if signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    stack.callback(signal.signal, number, signal.signal(number, self._on_signal))
            self._start_loop()
            self.teller.log(
                "info", "worker.started", queue=self._shown_queues, concurrency=self.settings.concurrency,
                mode=self.settings.mode.value, pid=os.getpid(),
            )  # fmt: skip
            for _ in range(self.settings.concurrency):
                self._add_lane()
            keeper = Keeper(self._shared, self._lanes, lambda lane: self._add_lane())
            keeper.thread.start()
            ticking = self._start_ticker()
            while not self._shared.stop.stopping.wait(LOOK_S):
                pass
            unfinished = self._end_lanes()
            keeper.end()
            if ticking is not None:
                ticking.join(FORCED_S)
            if self._loop is not None and not unfinished:
                self._loop.end()
        counts = self.teller.counters.counts
        self.teller.log("info", "worker.stopped", **counts, unfinished=unfinished)
        return Ending(counts["done"], counts["dead"], unfinished)

    def _on_signal(self, *_: object) -> None:
        """Stop by another thread: this one may hold the lock of the event that is to be set."""
        threading.Thread(target=self.stop, daemon=True, name="staniel-signal").start()

    def _start_ticker(self) -> threading.Thread | None:
        if self._ticker is None:
            return None
        thread = threading.Thread(
            target=self._ticker.live, args=[self._shared.stop.stopping], daemon=True, name="staniel-ticker"
        )
        thread.start()
        return thread

    def _start_loop(self) -> None:
        if self.settings.mode is Mode.ASYNC:
            from staniel.worker.loop import LoopThread

            self._loop = LoopThread(lambda why: self.teller.log("error", "background.exited", why=why))

    def _add_lane(self) -> None:
        lane = Lane(self._shared, self._runner(), len(self._lanes))
        self._lanes.append(lane)
        lane.thread.start()

    def _runner(self) -> Runner:
        if self._loop is not None:
            return self._loop.runner(self._function)
        if self.settings.mode is Mode.PROCESSES:
            limit_s = self.settings.limit_s
            start_limit_s = max(START_S_MAX, limit_s) if limit_s else 0
            return ProcessRunner(self._target, self.settings.memory_max_bytes, start_limit_s)
        return ThreadRunner(self._function)

    def _end_lanes(self) -> int:
        """Wait for the lanes to leave, cut off those that do not, and return how many functions did not end."""
        stop = self._shared.stop
        self.teller.log("info", "worker.stopping", running=self.running, grace_s=self.settings.grace_s)
        until_s = time.monotonic() + self.settings.grace_s
        while self._alive() and time.monotonic() < until_s and not stop.forced.wait(0.01):
            pass
        alive = self._alive()
        if not alive:
            return 0
        stop.forced.set()
        for lane in alive:
            lane.runner.interrupt("the worker stops")
        _join([lane.thread for lane in alive], FORCED_S)
        alive = self._alive()
        for lane in alive:
            lane.client.close()
        return len(alive)

    def _alive(self) -> list[Lane]:
        return [lane for lane in self._lanes if lane.thread.is_alive()]


def _join(threads: list[threading.Thread], seconds: float) -> None:
    until_s = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(until_s - time.monotonic(), 0))
