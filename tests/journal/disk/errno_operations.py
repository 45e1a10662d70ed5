"""What a server does on its disk, one operation at a time, with a ledger of what clients have been told.

Each operation begins on a disk that another server has left, so that it can be repeated call by call (errno_walk.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from staniel.broker import protocols
from staniel.broker.events import Level
from staniel.journal.disk.fs import JournalFailure
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from staniel.sim.world import START_MS, Client, World
from tests.broker.operations.test_undo import Admin, goes_on
from tests.support.job_world import job_id

TURNS_MAX = 160
COUNT = 8
SMALL_FILES = "default.default_journal_size = 200\n"
FORMS = {
    "kestrel": SMALL_FILES,
    "libkestrel": SMALL_FILES + 'default.journal_format = "libkestrel"\n',
    "redo": SMALL_FILES + 'server.redo_log = "64KB"\n',
}
JOBS = "[workq]\nport = 0\ncmdlog_seg_size = 260\ncmdlog_clean_int = 200\n"
Items = Counter[tuple[str, bytes]]


class Watched(World):
    """Keeps what was said as a warning or an error."""

    def __init__(self, config: str, disk: Disk | None = None, now_ms: int = START_MS) -> None:
        self.warnings: list[str] = []
        super().__init__(config, disk, now_ms)

    def _report(self, level: Level, event: str, /, **fields: object) -> None:
        super()._report(level, event, **fields)
        if level in (Level.WARNING, Level.ERROR):
            self.warnings.append(event)


def settle(world: World) -> None:
    """Until there is nothing left to do, or what an error keeps from its end has been tried again a few times."""
    for turn in range(TURNS_MAX):
        if not goes_on(world):
            world.turn(1)
            return
        if turn > TURNS_MAX // 2 and world.broker.operations.running:
            world.now_ms += 500
    if not world.broker.operations.running:
        raise AssertionError("it never comes to rest")


class Run:
    """One server, and what its clients know. `must`: items that were acknowledged, by queue; each is there exactly
    once. `may`: those of which no answer has come; each is there once or not at all.
    """

    def __init__(self, world: Watched, must: Items, may: Items) -> None:
        self.world = world
        self.must, self.may = must.copy(), may.copy()
        self.refused: list[str] = []
        self.cuts_off = 0  # the server is killed so many turns behind the next request to operators
        self.client = world.client()
        self.worker: Client | None = None

    def says(self, *lines: str) -> str:
        """The answers, once the disk has what they promise."""
        self.client.says(*lines)
        settle(self.world)
        return self.client.hears()

    @contextmanager
    def _unsure(self, *items: tuple[str, bytes], leaves: bool = False) -> Iterator[None]:
        """Until it is over nobody knows whether these items have come, or gone."""
        if leaves:
            self.must.subtract(items)
        self.may.update(items)
        yield
        self.may.subtract(items)

    def puts(self, item: str, queue: str = "q", seconds: int = 0, copies: tuple[str, ...] = ()) -> None:
        """Into `queue`, or into the `copies` of it."""
        items = [(name, item.encode()) for name in copies or (queue,)]
        with self._unsure(*items):
            heard = self.says(f"set {queue} 0 {seconds} {len(item)}", item)
        if heard == "STORED":
            self.must.update(items)
        else:
            self._refuse(heard)

    def takes(self, count: int, queue: str = "q") -> None:
        """Reliable reads, one after the other."""
        for _ in range(count):
            heard = self.says(f"get {queue}/open")
            if not heard.startswith("VALUE"):
                if heard != "END":
                    self._refuse(heard)
                return
            item = queue, heard.split(" ", 4)[4].removesuffix(" END").encode()
            with self._unsure(item, leaves=True):
                heard = self.says(f"get {queue}/close")
            if heard != "END":
                self._refuse(heard)
                self.may[item] += 1

    def asks(self, method: str, path: str, body: object = None) -> object:
        admin = Admin(self.world)
        admin.asks(method, path, body)
        if self.cuts_off and method != "GET":
            for _ in range(self.cuts_off):
                goes_on(self.world)
            return None
        settle(self.world)
        if (heard := admin.hears()) is None:
            assert self.world.broker.operations.running, "never answered"
            return None
        if heard[0] >= 400:
            self._refuse(str(heard))
        return heard[1]

    def undo_all(self) -> None:
        undoes = self.asks("GET", "/api/undo")
        assert isinstance(undoes, list)
        for each in undoes:
            self.asks("POST", f"/api/undo/{each['id']}")

    def _refuse(self, heard: str) -> None:
        assert "SERVER" in heard or "ERROR" in heard or heard.startswith("("), heard
        self.refused.append(heard)

    # jobs

    def job(self, line: str, number: int, payload: str | None = None) -> str:
        if self.worker is None:
            self.worker = Client(self.world, protocols.workq())
            self.world.clients.append(self.worker)
        words = line.split(" ", 1)
        size = f" {len(payload)}" if payload is not None else ""
        text = f"{words[0]} {job_id(number)}{' ' + words[1] if len(words) > 1 else ''}{size}"
        self.worker.says(text, *([payload] if payload is not None else []))
        settle(self.world)
        heard = self.worker.hears()
        if not heard.startswith("+"):
            self._refuse(heard)
        return heard

    def adds(self, *numbers: int) -> None:
        for number in numbers:
            item = "jobs", b"%d" % number
            with self._unsure(item):
                heard = self.job("add q 60000 600000", number, f"job {number}".ljust(40, "."))
            if heard == "+OK":
                self.must[item] += 1

    def deletes(self, *numbers: int) -> None:
        for number in numbers:
            item = "jobs", b"%d" % number
            with self._unsure(item, leaves=True):
                heard = self.job("delete", number)
            if heard != "+OK":
                self.may[item] += 1

    def waits(self, ms: int) -> None:
        for _ in range(ms // 20):
            self.world.turn(20)
            settle(self.world)


Step = Callable[[Run], None]


class Operation(Struct):
    """`fill`: what an earlier server has done. `before`: what this one has done just before it does `act`. Without
    `act` it is the start that is looked at, after `accident`. `places`: queues that count as others, because items go
    from one to the other. `lax`: queues of which a power cut may take what was answered.
    """

    fill: Step
    act: Step | None
    before: Step = lambda run: None
    config: str = ""
    forms: tuple[str, ...] = ("kestrel", "libkestrel", "redo")
    accident: Callable[[Disk], Disk] = Disk.kill
    places: dict[str, str] = {}
    lax: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()  # of what is put into `q`
    unsure: tuple[str, ...] = ()  # items in `q` of which no answer has come

    @property
    def serves(self) -> bool:
        """Whether clients are served meanwhile."""
        return self.act is not None and self.act is not stop


def nothing(run: Run) -> None:
    """An empty spool, or an operation that needs no other one."""


def items(run: Run) -> None:
    for number in range(COUNT):
        run.puts(f"item {number}")


def one_more(run: Run) -> None:
    """The files are open."""
    run.puts("one more")


def long_items(run: Run) -> None:
    for number in range(10):
        run.puts(f"{number:03}".ljust(130, "."))


def puts_more(run: Run) -> None:
    for number in range(3):
        run.puts(f"more {number}".ljust(60, "."))


def purge(run: Run) -> None:
    run.asks("POST", "/api/queues/q/purge")


def move(run: Run) -> None:
    run.asks("POST", "/api/queues/q/move", {"to": "r"})


def delete(run: Run) -> None:
    run.asks("DELETE", "/api/queues/q", {})


def redrive(run: Run) -> None:
    run.asks("POST", "/api/queues/dead/redrive", {})


def undo(run: Run) -> None:
    run.undo_all()


def stop(run: Run) -> None:
    run.world.broker.shutdown(run.world.now_ms)


def flush(run: Run) -> None:
    gone = [each for each in run.must.elements() if each[0] == "q"]
    with run._unsure(*gone, leaves=True):
        heard = run.says("flush q")
    if heard != "END":
        run._refuse(heard)
        run.may.update(gone)


def pause(run: Run) -> None:
    run.asks("POST", "/api/queues/q/pause", {})
    run.asks("POST", "/api/queues/q/resume", {})


def die(run: Run) -> None:
    for _ in range(2):
        for verb in ("open", "abort"):
            heard = run.says(f"get q/{verb}")
            if "SERVER_ERROR" in heard:
                run._refuse(heard)
                return
        run.world.turn(1)
        settle(run.world)


def short_lived(run: Run) -> None:
    for number in range(2):
        run.puts(f"short {number}", seconds=100)
    run.puts("long")


def expire(run: Run) -> None:
    run.world.turn(101_000)
    settle(run.world)
    for _ in range(3):
        run.world.turn(1000)
        settle(run.world)


def fan_out(run: Run) -> None:
    for number in range(2):
        run.puts(f"both {number}", "q", copies=("q", "q+a"))


def children(run: Run) -> None:
    for name in ("q+a",):
        run.says(f"get {name}/peek")
    fan_out(run)


def take_some(run: Run) -> None:
    run.takes(6)
    run.waits(40)


def take_all(run: Run) -> None:
    run.takes(100)
    run.waits(40)


def create(run: Run) -> None:
    run.puts("first", "new")


def fill_log(run: Run) -> None:
    """The redo log retires segments."""
    for number in range(3):
        run.puts(f"large {number}".ljust(15_000, "."))


def lax_puts(run: Run) -> None:
    for number in range(2):
        run.puts(f"lax {number}", "lax")
    run.waits(1500 // 20 * 20)


def jobs(run: Run) -> None:
    run.adds(1, 2, 3, 4)


def more_jobs(run: Run) -> None:
    run.adds(5, 6, 7)


def clean_jobs(run: Run) -> None:
    run.deletes(1, 2, 3)
    run.waits(500)


def one_job(run: Run) -> None:
    run.adds(90)


def after(*steps: Step) -> Step:
    """One after the other."""

    def all_of_them(run: Run) -> None:
        for step in steps:
            step(run)

    return all_of_them


def cut_off(step: Step, turns: int, before: Step = nothing) -> Step:
    """The server is killed amid `step`."""

    def fill(run: Run) -> None:
        items(run)
        before(run)
        settle(run.world)
        run.cuts_off = turns
        step(run)

    return fill


def failed_sync(disk: Disk) -> Disk:
    """The server before has ended because a sync failed, and left its mark."""
    world = Watched(FORMS["kestrel"], disk.kill())
    disk.fail("sync", "s/q", 5)
    world.client().puts("lost")
    try:
        settle(world)
    except JournalFailure:
        return disk.kill()
    raise AssertionError("no sync has failed")


def power_loss(disk: Disk) -> Disk:
    return disk.crash(Crash.DROP)


PACKING = "default.max_memory_size = 300\ndefault.max_journal_size = 600\ndefault.min_journal_compact_delay = 0\n"
REWRITING = "default.max_journal_size = 900\ndefault.min_journal_compact_delay = 0\n"
EXPIRING = '[queues.q]\nexpire_to_queue = "r"\n'
DEAD = '[queues.q]\nmax_deliveries = 2\ndead_letter_queue = "dead"\n'
SHARED_DEAD = f'{DEAD}[queues.p]\ndead_letter_queue = "dead"\n[queues.dead]\njournal_format = "kestrel"\n'
TO_R, TO_DEAD = {"r": "q"}, {"dead": "q"}
LAX = 'server.redo_log = "checksums"\nqueues.lax.sync_journal = "100ms"\n'
STREAMS = ("kestrel", "libkestrel")

OPERATIONS: dict[str, Operation] = {
    "first start": Operation(nothing, None),
    "start": Operation(items, None),
    "start after a power loss": Operation(items, None, accident=power_loss, forms=("redo",)),
    "start after a failed sync": Operation(items, None, accident=failed_sync, forms=("kestrel",), unsure=("lost",)),
    "start behind a purge": Operation(after(items, purge), None),
    "start behind a move": Operation(after(items, move), None, places=TO_R),
    "start behind half a purge": Operation(cut_off(purge, 1), None, forms=STREAMS),
    "start behind half a move": Operation(cut_off(move, 4), None, forms=STREAMS, places=TO_R),
    "start behind half an undo": Operation(cut_off(undo, 3, purge), None, forms=STREAMS),
    "start on many files": Operation(long_items, None, config=PACKING),
    "stop": Operation(items, stop, before=one_more),
    "put": Operation(items, lambda run: run.puts("next"), before=one_more),
    "create a queue": Operation(items, create),
    "rotate": Operation(items, puts_more, before=one_more, config="default.max_memory_size = 300\n"),
    "read to the end": Operation(long_items, take_all, before=one_more),
    "pack": Operation(long_items, take_some, before=one_more, config=PACKING),
    "rewrite": Operation(long_items, take_some, before=one_more, config=REWRITING, forms=("kestrel", "redo")),
    "start over": Operation(items, take_all, before=one_more),
    "purge": Operation(items, purge),
    "undo of a purge": Operation(items, undo, before=purge),
    "move": Operation(items, move, places=TO_R),
    "undo of a move": Operation(items, undo, before=move, places=TO_R),
    "delete": Operation(items, delete, forms=STREAMS),
    "undo of a delete": Operation(items, undo, before=delete, forms=STREAMS),
    "purge of many files": Operation(long_items, purge, config=PACKING, forms=STREAMS),
    "move of many files": Operation(long_items, move, config=PACKING, places=TO_R, forms=STREAMS),
    "delete of many files": Operation(long_items, delete, config=PACKING, forms=STREAMS),
    "flush": Operation(items, flush, forms=STREAMS),
    "pause and resume": Operation(items, pause, forms=STREAMS),
    "fan out": Operation(children, fan_out, copies=("q", "q+a")),
    "expire into a queue": Operation(short_lived, expire, config=EXPIRING, places=TO_R),
    "die into a queue": Operation(items, die, config=DEAD, places=TO_DEAD),
    "redrive": Operation(after(items, die), redrive, config=SHARED_DEAD, places=TO_DEAD, forms=STREAMS),
    "undo of a redrive": Operation(
        after(items, die), undo, before=redrive, config=SHARED_DEAD, places=TO_DEAD, forms=STREAMS
    ),
    "fill the redo log": Operation(items, fill_log, before=one_more, forms=("redo",)),
    "put a log of checksums into use": Operation(items, lax_puts, config=LAX, forms=STREAMS, lax=("lax",)),
    "jobs: start": Operation(jobs, None, config=JOBS, forms=("kestrel",)),
    "jobs: add": Operation(jobs, one_job, config=JOBS, forms=("kestrel",)),
    "jobs: rotate": Operation(jobs, more_jobs, before=one_job, config=JOBS, forms=("kestrel",)),
    "jobs: clean": Operation(jobs, clean_jobs, before=one_job, config=JOBS, forms=("kestrel",)),
    "jobs: stop": Operation(jobs, stop, before=one_job, config=JOBS, forms=("kestrel",)),
}
