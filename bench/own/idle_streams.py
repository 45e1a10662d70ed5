"""The cost of a poll of a Spark stream over many queues in which nothing has changed, without Spark.

A poll is what Spark's runner does: it reads the offset from JSON, asks the stream, and writes the answer as JSON.
Processor time is this process's own and the kernel's on its behalf. A look is a poll that has to list the folder.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import click
from msgspec import Struct

from staniel.pipeline.sources.journal import columns_of, format_of_spools
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.journal_stream import LOOK_ANYWAY_S, JournalStream
from staniel.pipeline.sources.spool_streams import SpoolStreams

REMOVE_RECORD = b"\1"


class PollCost(Struct, frozen=True):
    """The milliseconds of processor time of each part of a poll."""

    queues: int
    spools: int
    json_ms: float
    idle_ms: float
    look_ms: float

    @property
    def poll_ms(self) -> float:
        return self.json_ms + self.idle_ms


class SteppedClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def write_spools(folder: Path, spools: int, queues: int) -> None:
    """Write spools with so many queues in all, of one record each."""
    for number in range(queues):
        spool = folder / f"host{number % spools:03}" / "spool"
        spool.mkdir(parents=True, exist_ok=True)
        (spool / f"a-queue-with-a-name-{number:05}").write_bytes(REMOVE_RECORD)


def stream_over(folder: Path, spools: int, clock: Callable[[], float]) -> JournalStream | SpoolStreams:
    if spools == 1:
        options = JournalOptions({"path": str(folder / "host000" / "spool")})
        return JournalStream(options, columns_of(options), clock=clock)
    options = JournalOptions({"path": f"{folder}/*/spool"})
    return SpoolStreams(options, columns_of(options), format_of_spools(options), clock)


def timed_ms(work: Callable[[], Any], rounds: int) -> float:
    """Return the median of the processor time of `work`."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        times.append(1000 * (time.process_time() - began))
    return median(times)


def measure(folder: Path, spools: int, queues: int, rounds: int) -> PollCost:
    write_spools(folder, spools, queues)
    clock = SteppedClock()
    stream = stream_over(folder, spools, clock)
    limit = stream.getDefaultReadLimit()
    end = stream.latestOffset(stream.initialOffset(), limit)
    text = json.dumps(end)
    assert stream.latestOffset(end, limit) == end

    def look_at_files() -> None:
        clock.now_s += LOOK_ANYWAY_S
        assert stream.latestOffset(end, limit) == end

    def convert() -> None:
        assert len(json.dumps(json.loads(text))) == len(text)

    starts = [json.loads(text) for _ in range(rounds)]
    look_ms = timed_ms(look_at_files, max(3, rounds // 10))
    idle_ms = timed_ms(lambda: stream.latestOffset(starts.pop(), limit), rounds)
    return PollCost(queues, spools, timed_ms(convert, rounds), idle_ms, look_ms)


@click.command()
@click.option("--queues", default=5000, show_default=True, help="Queues in all.")
@click.option("--rounds", default=100, show_default=True)
@click.option("--most-ms", default=0.0, help="Exit status 1 if an idle poll takes more. [default: any]")
def main(queues: int, rounds: int, most_ms: float) -> None:
    """Measure polls of one spool, and of 200."""
    failed = False
    click.echo("queues  spools  poll ms  of it JSON ms  stream ms  a look ms")
    for spools in (1, 200):
        with tempfile.TemporaryDirectory() as folder:
            cost = measure(Path(folder), spools, queues, rounds)
        click.echo(
            f"{queues:6}  {spools:6}  {cost.poll_ms:7.2f}  {cost.json_ms:13.2f}"
            f"  {cost.idle_ms:9.2f}  {cost.look_ms:9.1f}"
        )
        failed |= bool(most_ms) and cost.poll_ms > most_ms
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
