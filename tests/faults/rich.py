"""A spool with everything in it that a spool can hold, and what becomes of it when one of its files is harmed.

`python -m tests.faults.rich --seconds 60` harms files by chance for so long; the suite takes a share. Every start on a
harmed spool must serve, with the damage named, or refuse in one line, which only the version file may cause, and a file
of the server's own that cannot be read just now; and no
queue may lose or double an item but the one whose file was harmed.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import NamedTuple

import click

import staniel.journal.tools.convert
from staniel.broker import protocols
from staniel.broker.events import Level
from staniel.broker.status import ServerStatus
from staniel.journal.spool import Spool, SpoolError
from staniel.journal.tools.convert import Conversion
from staniel.queues.calendar import MARKS
from staniel.queues.config import Format
from staniel.sim.disk.disk import Disk
from staniel.sim.mutants.queues import replaced
from tests.support.job_world import job_id
from tests.support.world import START_MS, Client, World

CONFIG = """
default.sync_journal = "always"
server.expiration_timer_frequency = "none"
queues.big.max_memory_size = "40KB"
queues.big.max_journal_size = "160KB"
queues.big.default_journal_size = "10KB"
queues.sealed.max_memory_size = "30KB"
queues.sealed.max_journal_size = "10MB"
queues.old.expire_to_queue = "late"
queues.mail.journal_format = "libkestrel"
queues.mail.default_journal_size = "4KB"
queues.news.journal_format = "libkestrel"
queues.moving.max_memory_size = "3KB"
[workq]
port = 0
"""
LATER_MS = START_MS + 60_000
OWN = "s/.staniel"
REFUSERS = frozenset((f"{OWN}/version",))
Content = dict[str, list[bytes]]


class Served(NamedTuple):
    """What a start has led to: items by queue, or why it refused; and what it said."""

    content: Content
    refusal: str
    reports: list[str]
    blocked: frozenset[str] = frozenset()


class Harm(NamedTuple):
    """What is done to one file."""

    path: str
    what: str
    seed: int


HARMS = ("flip", "flips", "cut", "empty", "folder", "gone", "garbage", "zeros", "unreadable")


def _puts(world: World, queue: str, count: int, size: int, first: int = 0) -> None:
    client = world.client()
    for number in range(first, first + count):
        data = f"{queue}.{number}.".ljust(size, "x")
        client.says(f"set {queue} 0 0 {len(data)}", data)
        world.sync()
        world.turn(1)
    assert client.hears().split().count("STORED") == count


def _asks(world: World, *lines: str) -> None:
    client = world.client()
    for line in lines:
        client.says(line)
        while world.sync():
            world.turn()
    world.turn(1)


@cache
def rich() -> Disk:
    """The spool, as a killed server has left it, with a transfer and a conversion half done."""
    disk = Disk()
    disk.make_folder("s")
    disk.sync_folder("")
    world = World(CONFIG, disk)
    _puts(world, "moving", 12, 500)
    _puts(world, "plain", 12, 40)
    _asks(world, "get plain", "get plain", "get plain/open")
    _puts(world, "big", 150, 1000)
    _asks(world, *["get big"] * 60)
    _puts(world, "big", 90, 1000, 150)
    _asks(world, *["get big"] * 115)
    _puts(world, "sealed", 100, 1000)
    _asks(world, *["get sealed"] * 10, "get sealed/open")
    _puts(world, "other", 5, 30)
    _asks(world, "get mail+a", "get mail+b")
    _puts(world, "mail", 40, 300)
    _asks(world, *["get mail+a"] * 25, *["get mail+b"] * 3)
    _puts(world, "news", 5, 20)
    _asks(world, "get news")
    _asks(world, "pause other gets", "status writeavoid")
    _jobs(world)
    _transfers(world)
    left = world.disk.copy()
    _convert(left)
    own = [name for name, _ in left.list(OWN)]
    assert {"intents", "paused", "status", "version", "segments", "cmdlog", "convert.plan"} <= set(own), own
    return left


def _convert(disk: Disk) -> None:
    """Move queue `moving` to another format, but for the last step."""
    spool = Spool(disk, "s")
    with replaced(staniel.journal.tools.convert, "carry_out", lambda right: lambda *args: True):
        assert Conversion(spool, "moving", START_MS + 500, lambda *args: None).run(Format.LIBKESTREL) == 12
    disk.kill()


def _jobs(world: World) -> None:
    client = Client(world, protocols.workq())
    world.clients.append(client)
    for number in range(12):
        client.says(f"add {job_id(number)} work 60000 600000 9", f"payload-{number % 10}")
        world.sync()
        world.turn(1)
    client.says(f"delete {job_id(3)}")
    world.sync()
    world.turn(1)
    assert client.hears().count("+OK") == 13


def _transfers(world: World) -> None:
    """Items of `old` whose copies in `late` are on the disk and whose removal is not."""
    client = world.client()
    for number in range(4):
        data = f"old.{number}."
        client.says(f"set old 0 {1 + number} {len(data)}", data)
        world.sync()
        world.turn(1)
    world.turn(MARKS)  # a life ends so much later at most
    for _ in range(3):
        world.turn(1000)
        client.says("peek old")
        world.broker.queues.by_name["old"].expire(world.now_ms, 100)
        world.broker.commit(world.now_ms)
        sync = world.start_sync()
        if sync is not None:
            sync.run()  # and nobody is told
    assert len(world.items("late")) == 3


class Told(World):
    """A world that keeps whole events."""

    @property
    def lines(self) -> list[str]:
        """Errors and warnings so far."""
        found: list[str] = self.__dict__.setdefault("_lines", [])
        return found

    def _report(self, level: Level, event: str, /, **fields: object) -> None:
        self.events.append(event)
        if level in (Level.ERROR, Level.WARNING):
            self.lines.append(f"{event} {fields}")


def start(disk: Disk) -> Served:
    """Start on `disk`, and take everything out of every queue."""
    try:
        world = Told(CONFIG, disk, LATER_MS)
    except SpoolError as refused:
        return Served({}, str(refused), [])
    broker = world.broker
    broker.set_status(ServerStatus.UP, world.now_ms)
    found: Content = {}
    for queue in list(broker.queues):
        queue.pause(gets=False, puts=False)
        items = found.setdefault(queue.name, [])
        for _ in range(10_000):
            taken = queue.remove_head(LATER_MS - 3_600_000)
            if taken is not None:
                items.append(taken.item.data)
            elif len(queue.line) and getattr(queue.line, "trouble", None) is None:
                world.turn()
            else:
                break
        else:
            raise AssertionError(f"{queue.name} can never be emptied")
        world.turn()
    found["jobs"] = sorted(id.hex().encode() + job.payload for id, job in broker.workq.jobs.by_id.items())
    blocked = frozenset(broker.queues.blocked) | ({"jobs"} if broker.workq.trouble else set())
    said = world.lines
    for queue in [queue for queue in broker.queues if getattr(queue.line, "trouble", None) is not None]:
        blocked |= {queue.name}
    world.broker.shutdown(world.now_ms)
    return Served(found, "", said, blocked)


@cache
def sound() -> Content:
    return {name: items for name, items in start(rich().copy()).content.items() if items}


def files(disk: Disk, folder: str = "s") -> Iterator[str]:
    """Every file there is."""
    for name, regular in disk.list(folder):
        path = f"{folder}/{name}"
        if regular:
            yield path
        else:
            yield from files(disk, path)


def harmed(harm: Harm) -> Disk:
    """The rich spool with one file harmed."""
    disk = rich().copy()
    path, what, chance = harm.path, harm.what, Random(harm.seed)
    data = bytearray(disk.read(path, 0, 1 << 30))
    if what in ("flip", "flips"):
        for _ in range(1 if what == "flip" else 1 + chance.randrange(20)):
            if data:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif what == "cut":
        del data[chance.randrange(len(data) + 1) :]
    elif what == "empty":
        data.clear()
    elif what == "garbage":
        data[:] = chance.randbytes(chance.randrange(1, 2 * len(data) + 2))
    elif what == "zeros":
        at = chance.randrange(len(data) + 1)
        data[at:] = bytes(len(data) - at)
    if what == "unreadable":
        disk.fail("read", path, 5, times=1 << 30)
        return disk
    disk.remove(path)
    if what == "folder":
        disk.make_folder(path)
    elif what != "gone":
        file = disk.append(path)
        file.write(bytes(data))
        file.close()
    disk.sync_all("")
    return disk


def owner(path: str) -> str:
    """The queue or family whose items a file holds; none: nobody's."""
    name = path.rpartition("/")[2]
    if path.startswith(f"{OWN}/cmdlog/"):
        return "jobs"
    if path.startswith(f"{OWN}/convert/"):
        return "moving"
    if path.startswith(f"{OWN}/"):
        return ""
    return name.partition(".")[0].partition("~")[0]


def family(name: str) -> str:
    return name.partition("+")[0]


def check(harm: Harm) -> list[str]:
    """What is wrong with a start on this."""
    try:
        served = start(harmed(harm))
    except Exception as error:  # whatever it is, it is what we look for
        where = traceback.extract_tb(error.__traceback__)[-1]
        return [f"{harm}: {type(error).__name__}: {error} at {where.filename.rpartition('/')[2]}:{where.lineno}"]
    if served.refusal:
        may = harm.path in REFUSERS or (harm.what == "unreadable" and harm.path in served.refusal)
        return [] if may and "\n" not in served.refusal else [f"{harm}: refused: {served.refusal}"]
    own = owner(harm.path)
    wrong: list[str] = []
    before = sound()
    for name in sorted({*before, *served.content}):
        old, new = before.get(name, []), served.content.get(name, [])
        if family(name) == own:
            doubled = [data for data, count in Counter(new).items() if count > 1]
            empty = new.count(b"")
            if doubled:
                wrong.append(f"{harm}: {name}: doubled {doubled[0][:20]!r}, {len(doubled)} of them")
            strange = [data for data in new if not data.startswith(name.partition("+")[0].encode())]
            if strange and harm.what in ("cut", "empty", "gone", "unreadable") and name not in ("late", "jobs"):
                wrong.append(f"{harm}: {name}: invented {strange[0][:20]!r}, {len(strange)} of them")
            if empty:
                wrong.append(f"{harm}: {name}: {empty} empty items")
        elif family(name) in served.blocked:
            if harm.path != f"{OWN}/convert.plan" or family(name) != "moving":
                wrong.append(f"{harm}: {name}: not served")
        elif old != new:
            missing, more = Counter(old) - Counter(new), Counter(new) - Counter(old)
            if name == "old" and own == "late":
                more -= Counter(before["late"])  # the copy is gone, or cannot be known, so the item is where it was
            if name == "old" and harm.path == f"{OWN}/intents" and harm.what != "flip":
                more -= Counter(before["late"])  # nobody can know any more that these are copies
            if not missing and not more:
                continue
            short = [data[:12] for data in missing][:3], [data[:12] for data in more][:3]
            wrong.append(f"{harm}: {name}: {missing.total()} missing, {more.total()} too many: {short}")
    return wrong


def chosen(rng: Random) -> Harm:
    every = list(files(rich()))
    return Harm(rng.choice(every), rng.choice(HARMS), rng.randrange(1 << 30))


@click.command()
@click.option("--seconds", default=60.0)
@click.option("--seed", default=0)
@click.option("--only", default="")
def main(seconds: float, seed: int, only: str) -> None:
    rng = Random(seed)
    until = time.monotonic() + seconds
    count = bad = 0
    while time.monotonic() < until:
        harm = chosen(rng)
        if only not in harm.path:
            continue
        count += 1
        for line in check(harm):
            bad += 1
            print(line, flush=True)
    print(f"{count} starts, {bad} complaints")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
