"""The speed of a worker: items a second that one process takes, passes to an empty function and confirms.

`python -m staniel.bench.own.worker` starts a server with its default settings, so a confirm is durable before its
reply, and for each mode a worker with its default settings. It puts the items first, and measures from the first call
to the last. The exit status is 1 if an item was left or done twice.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import threading
import time

import click

from staniel.bench.harness.served import served
from staniel.client import Client
from staniel.worker import Mode, Server, Settings, Worker
from staniel.worker.events import Log

QUEUE = "bench"
ITEMS = 50_000


class Meter:
    """An empty function that notes the times of its first and its last call."""

    def __init__(self, items: int) -> None:
        self.is_over = threading.Event()
        self.began_s = self.ended_s = 0.0
        self._items = items
        self._count = itertools.count(1)

    def __call__(self, data: bytes) -> None:
        number = next(self._count)
        if number == 1:
            self.began_s = time.perf_counter()
        elif number == self._items:
            self.ended_s = time.perf_counter()
            self.is_over.set()

    async def awaited(self, data: bytes) -> None:
        """Do the same on an event loop."""
        self(data)


def measure(port: int, mode: Mode, items: int, payload: bytes) -> float:
    """Return items a second. Raises SystemExit if an item is left, or was done twice."""
    with Client("127.0.0.1", port) as client:
        client.put_many(QUEUE, [payload] * items)
    meter = Meter(items)
    settings = Settings(queue=QUEUE, mode=mode)
    worker = Worker(
        meter.awaited if mode is Mode.ASYNC else meter,
        settings, Server(port=port), log=Log("bench", write=lambda line: None),
    )  # fmt: skip
    thread = threading.Thread(target=worker.run)
    thread.start()
    in_time = meter.is_over.wait(300)
    worker.stop()
    thread.join()
    counts = worker.teller.counters.counts
    with Client("127.0.0.1", port) as client:
        left = client.peek(QUEUE)
    if not in_time or left is not None or counts["done"] != items or counts["failed"]:
        raise SystemExit(f"{mode.value}: items were left or done twice: {counts}")
    return items / (meter.ended_s - meter.began_s)


@click.command()
@click.option("--items", default=ITEMS, show_default=True)
@click.option("--size", default=100, show_default=True, help="Bytes of an item.")
@click.option("--rounds", default=3, show_default=True)
def main(items: int, size: int, rounds: int) -> None:
    """Measure threads and the event loop; processes cost a pipe and a switch for each item."""
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(served("")).port
        for mode in (Mode.THREADS, Mode.ASYNC):
            rates = [measure(port, mode, items, bytes(size)) for _ in range(rounds)]
            print(f"{mode.value:8} {statistics.median(rates):8,.0f} items/s of {size} bytes, median of {rounds}")


if __name__ == "__main__":
    main()
