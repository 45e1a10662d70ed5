"""Kombu's publishes a second over Staniel and over redis, without Celery, in turns.

    python -m staniel.bench.peers.kombu_publishes
    python -m staniel.bench.peers.kombu_publishes --sync always --bytes 10000 --rounds 9

One program publishes to a direct exchange with one queue, and waits for the reply to each. Needs the extra `celery`,
redis' Python client and `redis-server`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import click
from msgspec import Struct

from staniel.bench.harness.contestant import Contestant, Sync
from staniel.bench.harness.process import exit_on_signals, running
from staniel.bench.peers.celery_tasks import WAIT_S, TasksFailed, url
from staniel.bench.peers.servers import DEFAULT_SERVER, PEERS, ours

PUBLISH = """
import sys, time
import kombu
import staniel.kombu
count, size = int(sys.argv[2]), int(sys.argv[3])
with kombu.Connection(sys.argv[1]) as connection:
    exchange = kombu.Exchange("jobs", type="direct")
    kombu.Queue("jobs", exchange, routing_key="jobs")(connection.default_channel).declare()
    producer = kombu.Producer(connection.default_channel)
    def publish(times):
        for _ in range(times):
            producer.publish({"data": "x" * size}, exchange="jobs", routing_key="jobs", serializer="json")
    publish(20)
    wall, cpu = time.perf_counter(), time.process_time()
    publish(count)
    print(count / (time.perf_counter() - wall), (time.process_time() - cpu) / count * 1e6)
"""


class Publishes(Struct, frozen=True):
    """Publishes a second, and the processor time of the publishing program for each, in us."""

    rate_per_s: float
    cpu_us: float


def measured(contestant: Contestant, sync: Sync, count: int, size: int) -> Publishes:
    """Publish once, on a server of its own. Raises TasksFailed, StartFailed."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-kombu-") as name,
        running(contestant, sync, Path(name), None) as server,
    ):
        command = [sys.executable, "-c", PUBLISH, url(contestant, server), str(count), str(size)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    if done.returncode:
        raise TasksFailed(done.stderr)
    rate, cpu_us = map(float, done.stdout.split())
    return Publishes(rate, cpu_us)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--count", default=1500, type=click.IntRange(10), show_default=True, help="Publishes a round.")
@click.option("--bytes", "size", default=100, type=click.IntRange(0), show_default=True, help="Size of a body.")
@click.option("--rounds", default=7, type=click.IntRange(1), show_default=True)
@click.option("--sync", type=click.Choice(["always", "1s"]), default="1s", show_default=True)
@click.option("--goal", default=1.0, show_default=True, help="Exit status 1 if the ratio is lower; 0: never.")
def main(count: int, size: int, rounds: int, sync: str, goal: float) -> None:
    """Compare kombu over Staniel and over redis, in turns of which every other begins with redis."""
    exit_on_signals()
    redis = next(peer for peer in PEERS if peer.name == "redis")
    publishes_of: dict[str, list[Publishes]] = {}
    loads = [os.getloadavg()[0]]
    for number in range(rounds):
        contestants = [ours(DEFAULT_SERVER), redis]
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            publishes_of.setdefault(contestant.name, []).append(measured(contestant, Sync(sync), count, size))
        loads.append(os.getloadavg()[0])
    click.echo(f"{count} publishes of {size} bytes, sync {sync}, medians of {rounds} rounds in turns")
    click.echo(f"load of this machine with {os.cpu_count()} cores: {min(loads):.1f} to {max(loads):.1f}")
    rates = {name: [publishes.rate_per_s for publishes in of_name] for name, of_name in publishes_of.items()}
    ratios = [our / their for our, their in zip(rates["ours"], rates["redis"], strict=True)]
    for name, of_name in publishes_of.items():
        cpu_us = median(publishes.cpu_us for publishes in of_name)
        click.echo(f"{name:6} {median(rates[name]):7.0f} a second   {cpu_us:5.0f} us of the program's processor time")
    ratio = median(rates["ours"]) / median(rates["redis"])
    click.echo(f"ratio {ratio:.2f}   by round {min(ratios):.2f} to {max(ratios):.2f}, median {median(ratios):.2f}")
    if ratio < goal:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
