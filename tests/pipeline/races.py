"""Every way to read or change a spool, beside a server that puts, rotates, packs, deletes and makes queues anew as fast
as it can, in all three formats: nothing is lost, doubled or invented, and every refusal has a name.

    python -m tests.pipeline.races --minutes 10 [--seed 1]

Clients note when they asked for what and when they heard of it. A query that ran from t0 to t1 has to show what was
stored before t0 and not asked for by t1; must not show what was gone before t0 or came after t1; and nothing twice.
Streams and archives have to show every item once, but for queues whose gaps they have counted. Now and then the server
is stopped or killed; then the spool is packed and converted, with the same figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pyarrow.dataset as ds

from staniel.pipeline.formats.kestrel.state import live_rows
from staniel.pipeline.lake.folders import FileVanished
from staniel.pipeline.lake.lake import Lake
from staniel.pipeline.sources.journal import JournalReader, columns_of
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.journal_stream import JournalStream
from staniel.pipeline.sources.offsets import DataLoss
from staniel.pipeline.tasks import summarise as summarise_module
from staniel.pipeline.tasks import verify as verify_module
from staniel.pipeline.tasks.archive import archive
from staniel.pipeline.tasks.convert import convert_spool
from staniel.pipeline.tasks.pack import SpoolInUse, pack
from staniel.pipeline.tasks.summarise import pinned
from staniel.pipeline.tasks.verify import verify
from staniel.queues.config import Format, JournalDialect
from tests.support.job_world import job_id
from tests.support.process import Server
from tests.support.wire import Wire

CONFIG = """
[queues.default]
sync_journal = "os"
max_memory_size = 3000
default_journal_size = 2000
max_journal_size = 9000
min_journal_compact_delay = "10ms"
[queues.calm]
max_memory_size = 60000
default_journal_size = "1GB"
max_journal_size = "1GB"
%s
[workq]
port = 0
cmdlog_path = "%s"
cmdlog_sync = "os"
cmdlog_clean_int = "%s"
cmdlog_seg_size = 24000
"""
STREAMED = '[queues.%s]\njournal_format = "libkestrel"\ndefault_journal_size = %d\n'
KESTREL = ["k1", "k2", "k3", "calm"]
LIBKESTREL = ["l1", "l2", "lcalm"]
CALM = {"calm", "lcalm"}  # put to, and never taken from
JOBS_MAX = 300  # a log of ever more jobs is never cleaned, and takes ever longer to read
JOBS = {"workq": "jobs"}  # a log is read as one queue
NEVER = float("inf")
Rows = list[dict[str, Any]]


class Fact:
    """What is known of one item or job, in seconds of the machine's clock."""

    __slots__ = ("came", "gone", "leaves", "sent")

    def __init__(self, sent: float) -> None:
        self.sent = sent
        self.came = self.leaves = self.gone = NEVER


class CutOffGet:
    """A plain get whose reply never came whole: of the items that were there, the server took one out, or none.

    `facts`: those that it may have been. Only one item may be missing for it, and from then on that one has to be.
    """

    def __init__(self, sent: float, facts: dict[bytes, Fact]) -> None:
        self.sent, self.facts = sent, facts


class Client(Wire):
    """A connection to a server that may not be there. Raises OSError for whatever ends before it is whole, so that
    what is heard is what the server says."""

    def __init__(self, address: tuple[str, int]) -> None:
        try:
            super().__init__(address)
        except OSError:
            self.sock.close()
            raise

    def _receive(self) -> bytes:
        if not (data := super()._receive()):
            raise ConnectionError("the server closed the connection")
        return data


class Load(Thread):
    """One client. `facts`: by queue, then by payload. `address`: the server's, None while there is none. Another
    program's server may soon listen where ours did."""

    def __init__(self, address: Callable[[], tuple[str, int] | None], queues: list[str], seed: int) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.queues = queues
        self.chance = random.Random(seed)
        self.facts: dict[str, dict[bytes, Fact]] = {queue: {} for queue in queues}
        self.cut_off: dict[str, list[CutOffGet]] = {queue: [] for queue in queues}
        self.rounds = 0
        self.number = 0
        self.wrong = ""
        self.ended = Event()

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                if (address := self.address()) is not None:
                    with Client(address) as wire:
                        while not self.ended.is_set():
                            self.step(wire)
                            self.rounds += 1
            except OSError:
                pass  # whatever was asked for and not heard of may have happened or not
            except Exception as wrong:
                self.wrong = repr(wrong)
            self.rounds += 1
            time.sleep(0.02)

    def snapshot(self) -> dict[str, dict[bytes, Fact]]:
        """`facts` at this moment, for another thread. dict.copy is one step; list(facts.items()) makes a tuple for each
        item, and the garbage collection that this may start lets the client's thread add one meanwhile."""
        return {queue: facts.copy() for queue, facts in self.facts.items()}

    def fresh(self, queue: str) -> tuple[bytes, Fact]:
        self.number += 1
        value = b"%b %d %b" % (queue.encode(), self.number, b"x" * self.chance.randrange(120))
        fact = self.facts[queue][value] = Fact(time.monotonic())
        return value, fact

    def step(self, wire: Wire) -> None:
        queue = self.chance.choice(self.queues)
        roll = self.chance.random()
        if queue in CALM:
            self.put(wire, queue, 3)
        elif roll < 0.4:
            self.put(wire, queue, self.chance.randrange(1, 12))
        elif roll < 0.97:
            self.take(wire, queue, self.chance.randrange(1, 16))
        else:
            self.delete(wire, queue)

    def put(self, wire: Wire, queue: str, count: int) -> None:
        fresh = [self.fresh(queue) for _ in range(count)]
        flags = self.chance.choice([0, 0, 7])
        wire.say(
            b"".join(b"set %b %d 0 %d\r\n%b\r\n" % (queue.encode(), flags, len(value), value) for value, _ in fresh)
        )
        for _, fact in fresh:
            expect(wire.line(), b"STORED")
            fact.came = time.monotonic()

    def take(self, wire: Wire, queue: str, count: int) -> None:
        for _ in range(count):
            sent = time.monotonic()
            reliable = self.chance.random() < 0.5
            try:
                value = wire.get(f"{queue}/open" if reliable else queue)
            except OSError:
                if not reliable:  # an item that was opened returns
                    there = {value: fact for value, fact in self.facts[queue].items() if fact.leaves == NEVER}
                    self.cut_off[queue].append(CutOffGet(sent, there))
                raise
            if value is None:
                return
            fact = self.facts[queue][value]
            if reliable:
                sent = time.monotonic()
                ending = self.chance.choice(["close", "close", "abort"])
                fact.leaves = sent if ending == "close" else fact.leaves
                expect(wire.ask(f"get {queue}/{ending}".encode()), b"END")
                if ending == "abort":
                    continue
            fact.leaves = min(sent, fact.leaves)
            fact.gone = time.monotonic()

    def delete(self, wire: Wire, queue: str) -> None:
        sent = time.monotonic()
        there = [fact for fact in self.facts[queue].values() if fact.leaves == NEVER]
        for fact in there:
            fact.leaves = sent
        expect(wire.ask(b"delete " + queue.encode()), b"DELETED", b"END", b"NOT_FOUND")
        for fact in there:
            # A put that was not heard of may have come later, if it was this client that gave up the connection.
            fact.gone = time.monotonic() if fact.came < NEVER else NEVER


class JobLoad(Load):
    """The same with jobs; a fact is gone when its job was deleted."""

    def step(self, wire: Wire) -> None:
        facts = self.facts["jobs"]
        if not self.left or self.chance.random() < (0.6 if len(self.left) < JOBS_MAX else 0.4):
            self.number += 1
            value = b"job %d %b" % (self.number, b"x" * self.chance.randrange(90))
            fact = facts[value] = Fact(time.monotonic())
            line = b"add %b jobs 60000 86400000 %d\r\n%b" % (job_id(self.number).encode(), len(value), value)
            expect(wire.ask(line), b"+OK")
            fact.came = time.monotonic()
            self.left.append((self.number, value))
        else:
            number, value = self.left.pop(self.chance.randrange(len(self.left)))
            facts[value].leaves = time.monotonic()
            expect(wire.ask(b"delete " + job_id(number).encode()), b"+OK")
            facts[value].gone = time.monotonic()

    left: list[tuple[int, bytes]]


def expect(answer: bytes, *wanted: bytes) -> None:
    assert answer in wanted, answer


class Races:
    """One spool and its server, and what has been found wrong. `told`: how often each check was made, by name."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.log = folder / "log"
        streamed = "".join(STREAMED % (queue, 30000 if queue in CALM else 3000) for queue in LIBKESTREL)
        cleaned = "none" if seed % 2 else "200ms"  # a log that is cleaned has a gap wherever it was not read in time
        self.server = Server(folder, config=CONFIG % (streamed, self.log, cleaned))
        self.spools = {"kestrel": folder / "spool", "libkestrel": folder / "spool", "workq": self.log}
        jobs = JobLoad(lambda: self.server.workq_address if self.is_up else None, ["jobs"], seed + 3)
        jobs.left = []
        loads = [
            Load(lambda: self.server.address if self.is_up else None, queues, seed + n)
            for n, queues in enumerate((KESTREL, LIBKESTREL))
        ]
        self.loads = [*loads, jobs]
        self.of = dict(zip(("kestrel", "libkestrel", "workq"), self.loads, strict=True))
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.is_up = False
        self.seen: dict[tuple[str, str], float] = {}
        self.ends: dict[str, dict[str, Any]] = {form: {} for form in self.of}
        self.streamed: dict[str, Counter[bytes]] = {form: Counter() for form in self.of}
        self.gaps: dict[str, set[str]] = {form: set() for form in self.of}

    # what is checked

    def query(self, name: str, form: str, ask: Callable[[], Rows], is_item: Callable[[dict[str, Any]], bool]) -> bool:
        """A query that shows what is there; whether it was answered. Its rows have `queue` and `value`."""
        t0 = time.monotonic()
        rows = self.attempt(name, ask)
        if rows is None:
            return False
        t1 = time.monotonic()
        self.settle()
        found = Counter(row["value"] for row in rows if is_item(row))
        known = {value: fact for some in self.of[form].snapshot().values() for value, fact in some.items()}
        self.fault(name, "doubled", [value for value, count in found.items() if count > 1])
        self.fault(name, "invented", [v for v in found if v not in known or known[v].sent > t1 or known[v].gone < t0])
        lost = [v for v, f in known.items() if f.came < t0 and f.leaves > t1 and v not in found]
        self.fault(name, "lost", self.not_explained(form, lost))
        return True

    def not_explained(self, form: str, lost: list[bytes]) -> list[bytes]:
        """Without one item for each get whose reply never came whole. That item is gone from now on."""
        rest = []
        for value in lost:
            cut_off = [each for some in self.of[form].cut_off.values() for each in some]
            cut = next((each for each in cut_off if value in each.facts), None)
            if cut is None:
                rest.append(value)
                continue
            fact = cut.facts[value]
            fact.leaves, fact.gone = cut.sent, time.monotonic()
            for some in self.of[form].cut_off.values():
                some[:] = [each for each in some if each is not cut]
            self.counts["replies cut off, and the item is gone"] += 1
        return rest

    def settle_cut_off(self, form: str) -> None:
        """The queues are at rest: a get for which nothing is missing now took nothing, or what has left since."""
        if self.query(f"{form} at rest", form, lambda: self.view(form, "state"), lambda row: True):
            for cut_off in self.of[form].cut_off.values():
                self.counts["replies cut off, and nothing is missing"] += len(cut_off)
                cut_off.clear()

    def attempt(self, name: str, ask: Callable[[], Any]) -> Any:
        """What `ask` says; None, and a note, if it refuses by name."""
        self.counts[name] += 1
        try:
            return ask()
        except (FileVanished, DataLoss, SpoolInUse, ValueError) as refusal:
            if isinstance(refusal, ValueError) and not re.search("holds no queue|there is no queue", str(refusal)):
                raise
            why = re.sub(r"[a-z]+\d?(\.read\.|\.\d+|\d{9}\.log)?\b(?= are gone|:)|\d+|/\S+", "…", str(refusal))
            self.refused[f"{name}: {type(refusal).__name__}: {why[:90]}"] += 1
        return None

    def fault(self, name: str, kind: str, values: list[Any]) -> None:
        if values:
            self.wrong.append(f"{name}: {len(values)} {kind}, {values[0][:20]!r}")

    def settle(self) -> None:
        """Every client has heard of what it had asked for, or has noted that it never will."""
        wanted = [load.rounds + 2 for load in self.loads]
        give_up = time.monotonic() + 30
        while any(load.is_alive() and load.rounds < want for load, want in zip(self.loads, wanted, strict=True)):
            assert time.monotonic() < give_up, [load.wrong for load in self.loads]
            time.sleep(0.002)

    # who asks

    def view(self, form: str, view: str) -> Rows:
        options = JournalOptions({"path": str(self.spools[form]), "format": form, "view": view})
        reader = JournalReader(options, columns_of(options))
        return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]

    def state_of_many_tasks(self) -> Rows:
        path = str(self.spools["kestrel"])
        spark: Any = None
        tasks = [
            task
            for queue in summarise_module.queues_of(spark, path, {"format": "kestrel"})
            for task in summarise_module._live_tasks(queue)
        ]
        made = ((pinned(path, [one.segment for one in task.found]), task) for task in tasks)
        return [row for place, task in made for batch in live_rows(place, task, True) for row in batch.to_pylist()]

    def stream(self, form: str, size: str = "40k") -> None:
        """One batch further."""
        given = {"path": str(self.spools[form]), "format": form, "failOnDataLoss": "false"}
        options = JournalOptions({**given, "maxBytesPerTrigger": size})
        stream = JournalStream(options, columns_of(options), replans=True)
        start = self.ends[form]
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        rows = [
            row
            for part in stream.pieces(start, end)
            for batch in part.rows(stream.columns)
            for row in batch.to_pylist()
        ]
        self.gaps[form] |= {JOBS.get(queue, queue) for queue in stream.lost}
        self.note(f"stream of {form}", end)
        self.streamed[form].update(row["value"] for row in rows if row["op"] in ("add", "put"))
        self.ends[form] = end

    def archive(self, form: str) -> None:
        spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
        where = str(self.folder / f"lake-{form}")
        archive(spark, str(self.spools[form]), where, {"format": form}, lambda told: None, lambda text: None)

        ledger = Path(where) / "_archive" / "ledger.json"
        self.note(f"archive of {form}", json.loads(ledger.read_text())["end"] if ledger.exists() else {})

    def note(self, name: str, end: dict[str, Any]) -> None:
        """From now on nothing of these queues may be missing without a gap."""
        for queue in end:
            self.seen.setdefault((name, JOBS.get(queue, queue)), time.monotonic())

    def verify(self, form: str) -> None:
        spark: Any = None
        for each in verify(spark, str(self.spools[form]), {"format": form}):
            if each.bad:
                self.wrong.append(f"verify: {each}")

    def once(self) -> None:
        """Everything once."""
        for form in self.of:
            if form == "workq":
                self.query(
                    "jobs of workq", form, lambda: self.view("workq", "jobs"), lambda row: row["state"] != "deleted"
                )
            else:
                self.query(f"state of {form}", form, lambda form=form: self.view(form, "state"), lambda row: True)  # type: ignore[misc]
            self.records(form)
            self.attempt(f"stream of {form}", lambda form=form: self.stream(form))  # type: ignore[misc]
            self.attempt(f"archive of {form}", lambda form=form: self.archive(form))  # type: ignore[misc]
            self.attempt(f"verify of {form}", lambda form=form: self.verify(form))  # type: ignore[misc]
        self.query("pipeline.state", "kestrel", self.state_of_many_tasks, lambda row: True)
        if self.is_up:
            spark: Any = None
            assert (
                self.attempt("pack", lambda: pack(spark, str(self.spools["kestrel"]), {}, JournalDialect.DOCUMENTS))
                is None
            )
            self.counts["convert"] += 1
            (refused,) = convert_spool((str(self.spools["kestrel"]), "k1", Format.LIBKESTREL, 1))
            self.refused[f"convert: {re.sub('[0-9]+|/[^ ]+', '…', refused.refusal)}"] += 1
            assert "stop it first" in refused.refusal, refused

    def records(self, form: str) -> None:
        """The view `ops`: nothing invented, nothing added twice."""
        rows = self.attempt(f"ops of {form}", lambda: self.view(form, "ops"))
        if rows is not None:
            found = Counter(row["value"] for row in rows if row["op"] in ("add", "put"))
            self.settle()
            known = {value for some in self.of[form].snapshot().values() for value in some}
            self.fault(f"ops of {form}", "doubled", [value for value, count in found.items() if count > 1])
            self.fault(f"ops of {form}", "invented", [value for value in found if value not in known])

    # a server's life

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        self.server.start()
        self.is_up = True
        try:
            yield
        finally:
            self.is_up = False
            if self.chance.random() < 0.5:
                self.server.kill()
            else:
                self.server.stop()
            self.settle()

    def at_rest(self) -> None:
        """No server: packed, converted there and back."""
        spool = str(self.spools["kestrel"])
        spark: Any = None
        self.once()
        self.settle_cut_off("kestrel")
        self.settle_cut_off("libkestrel")
        self.attempt("pack at rest", lambda: pack(spark, spool, {"queues": "k*"}, JournalDialect.DOCUMENTS))
        self.query("state of a packed spool", "kestrel", lambda: self.view("kestrel", "state"), lambda row: True)
        for wanted in (Format.LIBKESTREL, Format.KESTREL):
            self.counts[f"convert to {wanted.value}"] += 1
            for each in convert_spool((spool, "k2", wanted, round(time.time() * 1000))):
                assert each.refusal in ("", "there is no such queue"), each  # whether that is so, the query knows
            self.query("state of a converted spool", "kestrel", self.state_of_both, lambda row: row["queue"] in KESTREL)
        for queue in (self.folder / "spool" / ".staniel").glob("aside.*"):
            shutil.rmtree(queue)

    def state_of_both(self) -> Rows:
        return self.view("kestrel", "state") + self.view("libkestrel", "state")

    def judge(self) -> None:
        """Streams and archives, once all has been read."""
        for form in self.of:
            while (before := self.ends[form]) != (self.stream(form, "4m"), self.ends[form])[1]:
                assert before is not None
            self.archive(form)
            table = ds.dataset(str(self.folder / f"lake-{form}"), partitioning="hive").to_table(columns=["op", "value"])
            lake = Counter(row["value"] for row in table.to_pylist() if row["op"] in ("add", "put"))
            with Lake(str(self.folder / f"lake-{form}")) as kept:
                gaps = {JOBS.get(queue, queue) for queue in kept.entry.gaps}
            self.compare(f"stream of {form}", form, self.streamed[form], self.gaps[form])
            self.compare(f"archive of {form}", form, lake, gaps)

    def compare(self, name: str, form: str, found: Counter[bytes], gaps: set[str]) -> None:
        facts = self.of[form].snapshot()
        whole = {value: fact for queue, some in facts.items() if queue not in gaps for value, fact in some.items()}
        known = {value for some in facts.values() for value in some}
        self.fault(name, "invented", [value for value in found if value not in known])
        self.fault(name, "doubled", [value for value in whole if found[value] > 1])
        self.fault(
            name,
            "lost",
            [
                value
                for queue, some in facts.items()
                for value, fact in some.items()
                if queue not in gaps
                and self.seen.get((name, queue), NEVER) < fact.sent <= fact.came < NEVER
                and not found[value]
            ],
        )
        self.counts[f"{name}: items"] += sum(found.values())
        self.counts[f"{name}: queues with gaps"] += len(gaps)


def in_this_process(
    spark: object, tasks: list[Any], work: Callable[[Any], Any], size: Callable[[Any], int] | None = None
) -> list[Any]:
    """As run_each of pipeline/tasks/summarise.py, without Spark: a race is lost in milliseconds, a job of Spark's
    takes seconds."""
    found: list[Any] = []
    for task in tasks:
        try:
            found.append(work(task))
        except FileVanished as gone:
            found.append(gone)
    return found


def race(folder: Path, seconds: float, seed: int) -> Races:
    """Race for so long; what was checked and what was wrong."""
    with without_spark():
        return _race(Races(folder, seed), seconds)


@contextlib.contextmanager
def without_spark() -> Iterator[None]:
    before = summarise_module.run_each
    summarise_module.run_each = verify_module.run_each = in_this_process
    try:
        yield
    finally:
        summarise_module.run_each = verify_module.run_each = before


def _race(races: Races, seconds: float) -> Races:
    until = time.monotonic() + seconds
    try:
        started = False
        while time.monotonic() < until and not races.wrong:
            with races.serving():
                if not started:
                    for load in races.loads:
                        load.start()
                    started = True
                leg = min(until, time.monotonic() + races.chance.uniform(3, 12))
                while time.monotonic() < leg and not races.wrong:
                    races.once()
            races.at_rest()
            assert not any(load.wrong for load in races.loads), [load.wrong for load in races.loads]
        races.judge()
    finally:
        for load in races.loads:
            load.ended.set()
        races.server.kill()
        for load in races.loads:
            if load.is_alive():
                load.join(20)
    races.counts["items put"] = sum(len(some) for load in races.loads for some in load.facts.values())
    return races


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="races-") as folder:
        races = race(Path(folder), given.minutes * 60, given.seed)
        for name, count in [*sorted(races.counts.items()), *sorted(races.refused.items())]:
            print(f"{count:>9,}  {name}")
        print("\n".join(races.wrong) or "0 lost, 0 doubled, 0 invented")


if __name__ == "__main__":
    main()
