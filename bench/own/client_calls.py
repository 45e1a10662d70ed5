"""The overhead of our clients over bare sockets: `python -m staniel.bench.own.client_calls`.

Each contestant puts items of 100 bytes, one a call and 500 a call, and takes them reliably (open, then confirm by id).
`sockets` sends the same bytes with no other code: the least that a blocking program can do. `streams` does that on
asyncio, and the clients for a loop are compared with it. redis-py does the same work on redis if both are installed:
LPUSH; LMOVE to a list of items in work, then LREM from it; a pipeline. The contestants run in turns, and the best round
of each counts, because a busy machine only adds time.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import trio
from msgspec import Struct

import staniel.client.aio
from staniel.bench.harness.process import child_setup, free_port
from staniel.bench.harness.served import SERVER_CORE, served
from staniel.client import Client

DATA = b"x" * 100
MANY = 500
Address = tuple[str, int]
WORK = ("put", "take", "put_many")


class Time(Struct, frozen=True):
    """Microseconds an item: by the clock, and of this process's processor time."""

    wall_us: float
    cpu_us: float


Play = Callable[[Address, str, int], Time]


class Timer:
    """A timer of a block with `items` items."""

    def __init__(self, items: int) -> None:
        self._items = items

    def __enter__(self) -> Timer:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        scale = 1e6 / self._items  # from seconds to us an item
        self.time = Time((time.perf_counter() - self._wall) * scale, (time.process_time() - self._cpu) * scale)


def _set(data: bytes) -> bytes:
    return b"set q 0 0 %d\r\n%b\r\n" % (len(data), data)


def sockets(address: Address, work: str, count: int) -> Time:
    """Do the work with bare sockets."""
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(data: bytes, end: bytes, times: int = 1) -> bytes:
        sock.sendall(data)
        heard = sock.recv(65536)
        while heard.count(end) < times:
            heard += sock.recv(65536)
        return heard

    with sock, Timer(count) as timer:
        if work == "put":
            for _ in range(count):
                ask(_set(DATA), b"STORED\r\n")
        elif work == "take":
            for _ in range(count):
                head = ask(b"gets q/open\r\n", b"END\r\n").partition(b"\r\n")[0]
                ask(b"delete q/id=%b\r\n" % head.rpartition(b" ")[2], b"DELETED\r\n")
        else:
            for _ in range(count // MANY):
                ask(b"".join([_set(DATA) for _ in range(MANY)]), b"STORED\r\n", MANY)
    return timer.time


def blocking(address: Address, work: str, count: int) -> Time:
    """Do the work with staniel.client.Client."""
    with Client(*address) as client:
        client.version()
        with Timer(count) as timer:
            if work == "put":
                for _ in range(count):
                    client.put("q", DATA)
            elif work == "take":
                for _ in range(count):
                    client.get("q")
            else:
                for _ in range(count // MANY):
                    client.put_many("q", [DATA] * MANY)
    return timer.time


def pymemcache(address: Address, work: str, count: int) -> Time:
    """Do the work with pymemcache, waiting for each reply."""
    client = importlib.import_module("pymemcache.client.base").Client(address, default_noreply=False, no_delay=True)
    client.version()
    with Timer(count) as timer:
        if work == "put":
            for _ in range(count):
                client.set("q", DATA)
        elif work == "take":
            for _ in range(count):
                client.delete(b"q/id=" + client.gets("q/open")[1])
        else:
            for _ in range(count):  # it cannot put many items to one queue with one call
                client.set("q", DATA, noreply=True)
            client.version()
    client.close()
    return timer.time


def redis_py(address: Address, work: str, count: int) -> Time:
    """Do the work with redis-py, on a redis."""
    client = importlib.import_module("redis").Redis(*address)
    client.ping()
    with Timer(count) as timer:
        if work == "put":
            for _ in range(count):
                client.lpush("q", DATA)
        elif work == "take":
            for _ in range(count):
                client.lrem("working", 1, client.lmove("q", "working", "RIGHT", "LEFT"))
        else:
            for _ in range(count // MANY):
                with client.pipeline(transaction=False) as many:
                    for _ in range(MANY):
                        many.lpush("q", DATA)
                    many.execute()
    if work == "put_many":
        client.flushall()
    client.close()
    return timer.time


def streams(address: Address, work: str, count: int) -> Time:
    """Do the work with asyncio's streams."""

    async def whole() -> Time:
        reader, writer = await asyncio.open_connection(*address)

        async def ask(data: bytes, end: bytes, times: int = 1) -> bytes:
            writer.write(data)
            heard = await reader.read(65536)
            while heard.count(end) < times:
                heard += await reader.read(65536)
            return heard

        with Timer(count) as timer:
            if work == "put":
                for _ in range(count):
                    await ask(_set(DATA), b"STORED\r\n")
            elif work == "take":
                for _ in range(count):
                    head = (await ask(b"gets q/open\r\n", b"END\r\n")).partition(b"\r\n")[0]
                    await ask(b"delete q/id=%b\r\n" % head.rpartition(b" ")[2], b"DELETED\r\n")
            else:
                for _ in range(count // MANY):
                    await ask(b"".join([_set(DATA) for _ in range(MANY)]), b"STORED\r\n", MANY)
        writer.close()
        return timer.time

    return asyncio.run(whole())


def on_loop(run: Callable[[Callable[[], Awaitable[Time]]], Time]) -> Play:
    """Return the play of staniel.client.aio.Client on one kind of loop."""

    def play(address: Address, work: str, count: int) -> Time:
        async def whole() -> Time:
            async with staniel.client.aio.Client(*address) as client:
                await client.version()
                with Timer(count) as timer:
                    await _do(client, work, count)
            return timer.time

        return run(whole)

    return play


async def _do(client: Any, work: str, count: int) -> None:
    if work == "put":
        for _ in range(count):
            await client.put("q", DATA)
    elif work == "take":
        for _ in range(count):
            await client.get("q")
    else:
        for _ in range(count // MANY):
            await client.put_many("q", [DATA] * MANY)


def _on_asyncio(whole: Callable[[], Any]) -> Time:
    found: Time = asyncio.run(whole())
    return found


def _on_trio(whole: Callable[[], Awaitable[Time]]) -> Time:
    return trio.run(whole)


CONTESTANTS: dict[str, Play] = {
    "sockets": sockets,
    "staniel.client": blocking,
    "pymemcache": pymemcache,
    "redis-py": redis_py,
    "streams": streams,
    "staniel.client.aio, asyncio": on_loop(_on_asyncio),
    "staniel.client.aio, trio": on_loop(_on_trio),
}
ON_A_LOOP = ("streams", "staniel.client.aio, asyncio", "staniel.client.aio, trio")


def measured(address: Address, redis: Address | None, count: int, rounds: int) -> dict[str, dict[str, Time]]:
    """Return the best times by contestant and work. Items that are put in a round are taken in it."""
    best: dict[str, dict[str, Time]] = {name: {} for name in CONTESTANTS if redis or name != "redis-py"}
    for _ in range(rounds):
        for name in best:
            for work in WORK:
                where = redis if redis and name == "redis-py" else address
                took = CONTESTANTS[name](where, work, count)
                before = best[name].get(work, took)
                best[name][work] = Time(min(before.wall_us, took.wall_us), min(before.cpu_us, took.cpu_us))
            with Client(*address) as client:
                client.flush("q")
    return best


def table(best: dict[str, dict[str, Time]]) -> str:
    """Return the processor time as a Markdown table: each contestant compared with sockets, or on a loop with
    streams.
    """
    lines = ["| processor µs an item (by the clock) | put | take | put_many |", "|---|---|---|---|"]
    for name, of_work in best.items():
        cells = []
        for work in WORK:
            took, least = of_work[work], best["streams" if name in ON_A_LOOP else "sockets"][work]
            cells.append(f"{took.cpu_us:.1f} ({took.wall_us:.1f}), {took.cpu_us / least.cpu_us:.2f} ×")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


@click.command(help=__doc__.split("\n")[0] if __doc__ else "")
@click.option("--count", type=click.IntRange(min=MANY), default=5000, show_default=True, help="Items a round.")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True)
def main(count: int, rounds: int) -> None:
    count -= count % MANY
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    with served("") as server, _redis() as redis:
        print(table(measured(("127.0.0.1", server.port), redis, count, rounds)))


@contextmanager
def _redis() -> Iterator[Address | None]:
    """Yield the address of a redis that stores nothing; None if it or its client is not installed."""
    program = shutil.which("redis-server")
    if program is None or importlib.util.find_spec("redis") is None:
        print("redis-py is left out: it needs `redis-server` and redis' Python client")
        yield None
        return
    port = free_port()
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=child_setup(SERVER_CORE))
    try:
        _until_it_listens(port)
        yield "127.0.0.1", port
    finally:
        child.terminate()
        child.wait()


def _until_it_listens(port: int) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


if __name__ == "__main__":
    main()
