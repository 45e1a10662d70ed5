"""The number of our functions that a request passes through: `python -m staniel.bench.own.hops`.

Each walk uses the real hub and socket pairs, once to warm up and once counted, on a clock that stands still: the
figures are the same in every run. Only code of the package counts, without bench/. Run as a script in the folder of
another checkout, it counts that checkout.
"""

from __future__ import annotations

import gc
import os
import select
import shutil
import socket
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import click
import msgspec

if not __package__:
    sys.path[0] = os.path.join(os.getcwd(), "src")  # of the checkout to count, not this script's folder

from staniel.bench.own.layers import NOW_MS, PUT, UnsyncedFs
from staniel.bench.own.layers import Crowd as Clients
from staniel.broker import protocols
from staniel.broker.broker import Broker
from staniel.broker.config.load import parse
from staniel.protocol.memcache.requests import Dialect

PACKAGE = protocols.__file__[: -len("broker/protocols.py")]
BENCH = PACKAGE + "bench/"
ITEMS = 100  # in the journal that is recovered
INLINE = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"))  # parts of the function around them


class Hops:
    """A counter of calls. `calls` are in the order in which functions were entered, as (file, name)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.codes: set[CodeType] = set()

    def __enter__(self) -> Hops:
        """Count the calls within, on this thread."""
        gc.disable()  # freed objects with destructors of ours belong to no request
        sys.setprofile(self._called)
        return self

    def __exit__(self, *why: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _called(self, frame: FrameType, event: str, what: object) -> None:
        code = frame.f_code
        path = code.co_filename
        if event != "call" or not path.startswith(PACKAGE) or path.startswith(BENCH) or code.co_name in INLINE:
            return
        self.calls.append((path[len(PACKAGE) :], code.co_qualname))
        self.codes.add(code)

    @property
    def row(self) -> dict[str, int]:
        files = [file for file, _ in self.calls]
        return {
            "functions": len(self.codes),
            "files": len(set(files)),
            "calls": len(files),
            "changes": sum(one != other for one, other in pairwise(files)),
        }

    @property
    def listed(self) -> list[str]:
        """The functions in the order of their first calls, each once, with the number of its calls."""
        return [f"{count:5} {file} {name}" for (file, name), count in Counter(self.calls).items()]


class StandingClock:
    def now_ms(self) -> int:
        return NOW_MS


class Walks:
    """The walks of two clients of one hub. Replies are compared, so that a walk does what its name says."""

    def __init__(self, folder: str, stack: ExitStack) -> None:
        crowd = Clients(folder, "always", 2, stack, "", protocols.memcache(Dialect.MEMCACHED))
        self.hub, self.poller = crowd.hub, crowd.poller
        self.hub.clock = StandingClock()
        self.client, self.other = crowd.clients

    def ask(self, client: socket.socket, request: bytes, *, is_answered: bool = True) -> Hops:
        """Run turns until there is a reply, which takes two turns if a thread has to sync names."""
        client.sendall(request)
        hops = Hops()
        replies = select.poll()
        replies.register(client, select.POLLIN)
        while True:
            events = self.poller.poll(5)
            with hops:
                self.hub.turn(events)
            if not is_answered or replies.poll(0):
                return hops

    def put(self, request: bytes, client: socket.socket | None = None) -> Hops:
        client = client or self.client
        hops = self.ask(client, request)
        assert client.recv(100, socket.MSG_DONTWAIT) == b"STORED\r\n"
        return hops

    def set_known(self) -> Hops:
        self.put(PUT)
        return self.put(PUT)

    def set_new(self) -> Hops:
        self.put(PUT.replace(b"jobs", b"new1"))
        return self.put(PUT.replace(b"jobs", b"new2"))

    def read(self) -> dict[str, Hops]:
        """Open an item, close it and open the next in one request, and close that."""
        name, rows = b"reads", dict[str, Hops]()
        for _ in range(2):
            self.put(PUT.replace(b"jobs", name))
        for ends, row in ((b"open", "open"), (b"close/open", "close and open"), (b"close", "close")):
            rows[row] = self.ask(self.client, b"get %b/%b\r\n" % (name, ends))
            reply = self.client.recv(2000, socket.MSG_DONTWAIT)
            assert reply.startswith(b"VALUE ") == (row != "close") and reply.endswith(b"END\r\n")
        return rows

    def wait(self, queue: bytes) -> tuple[Hops, Hops]:
        """Return both parts of a wait: the queue is empty, and another client puts an item."""
        put = PUT.replace(b"jobs", queue)
        self.put(put)  # the queue then exists, and is empty again
        self.ask(self.client, b"get %b\r\n" % queue)
        assert self.client.recv(2000, socket.MSG_DONTWAIT).endswith(b"END\r\n")
        parked = self.ask(self.client, b"get %b/t=60000/open\r\n" % queue, is_answered=False)
        woken = self.put(put, self.other)
        assert self.client.recv(2000, socket.MSG_DONTWAIT).endswith(b"END\r\n")
        self.ask(self.client, b"get %b/close\r\n" % queue)
        assert self.client.recv(100, socket.MSG_DONTWAIT) == b"END\r\n"
        return parked, woken


def recovery(folder: str) -> Hops:
    """Start on the journal of one queue."""
    with ExitStack() as stack:
        filling = Walks(os.path.join(folder, "filled"), stack)
        for _ in range(ITEMS):
            filling.put(PUT)
    recovered(shutil.copytree(os.path.join(folder, "filled"), os.path.join(folder, "warm")))
    return recovered(shutil.copytree(os.path.join(folder, "filled"), os.path.join(folder, "counted")))


def recovered(folder: str) -> Hops:
    broker = Broker(parse(b'[server]\nspool = "spool"\n', folder), UnsyncedFs())
    with Hops() as hops:
        assert broker.recover(NOW_MS).items == ITEMS
    broker.shutdown(NOW_MS)
    return hops


def walks() -> dict[str, Hops]:
    with tempfile.TemporaryDirectory(prefix="bench-hops-") as folder, ExitStack() as stack:
        served = Walks(os.path.join(folder, "served"), stack)
        served.wait(b"wait1")
        parked, woken = served.wait(b"wait2")
        served.read()
        return {
            "set, queue known": served.set_known(),
            "set, new queue": served.set_new(),
            **served.read(),
            "waiting get: parked": parked,
            "waiting get: woken": woken,
            f"recovery, {ITEMS} items": recovery(os.path.join(folder, "recovered")),
        }


@click.command()
@click.option("--list", "is_listed", is_flag=True, help="Name the functions, in the order of their first calls.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the rows here.")
def main(is_listed: bool, json_file: Path | None) -> None:
    """Count our functions that each walk enters, their files, calls, and changes of the file."""
    found = walks()
    click.echo(f"{'':22}{'functions':>10}{'files':>8}{'calls':>8}{'changes':>9}")
    for name, hops in found.items():
        row = hops.row
        click.echo(f"{name:22}{row['functions']:10}{row['files']:8}{row['calls']:8}{row['changes']:9}")
        if is_listed:
            click.echo("\n".join(hops.listed))
    if json_file:
        rows = {name: hops.row for name, hops in found.items()}
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")


if __name__ == "__main__":
    main()
