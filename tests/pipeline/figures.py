"""The figures of docs/pipeline.md: the same jobs in plain Python and in Spark, alternated, on journals made for it.

    python -m tests.pipeline.figures FOLDER [many] [ops] [scale] [state] [archive] [pack] [report] [drain] [--rounds 5]

Prints, for each job and way, the median of the rounds: seconds of the clock and of the processor; and the most that was
resident, in a round before these, of this process and all below it (Java, workers, a server). Makes up to 4 GB in
FOLDER.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from staniel import pipeline
from staniel.journal.kestrel import records
from staniel.journal.kestrel.replay import Replay
from staniel.pipeline.formats.adapters import list_segments
from staniel.pipeline.formats.base import Part, Reading
from staniel.pipeline.formats.kestrel.queue import hold
from staniel.pipeline.lake.folders import LocalFolder, feed
from staniel.pipeline.report.figures import gather
from staniel.pipeline.report.page import write as write_page
from staniel.pipeline.sessions import close
from staniel.pipeline.sources.drain import BatchLimits, Drain
from staniel.pipeline.sources.drain_spool import DrainSpool
from staniel.pipeline.sources.journal import JournalReader, columns_of
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.tasks.archive import archive
from staniel.pipeline.tasks.drain_to_lake import drain
from staniel.pipeline.tasks.pack import pack
from staniel.queues.config import JournalDialect
from tests.pipeline.test_drain import fill, server_address
from tests.support.process import Server, running, until

HEAD = struct.Struct("<Biqq")
XID = struct.Struct("<Bi")
NOW_MS = 1_700_000_000_000
FILES = 8
MANY = (100, 1000, 5000, 20_000)  # queues
FEW_ITEMS = 10
ITEMS = 300_000  # to drain
TIMES = (1, 4, 16)  # million rows, whose times show that they grow in proportion
WARM = 10  # queries until Java has compiled what they need
FEW = "op string, size bigint, value binary"


def make(folder: Path, items: int, payload: int, consumed: int, removes: bool = False) -> Path:
    """A queue of `items`, the first `consumed` of them reserved and confirmed, in eight files."""
    if folder.exists():
        return folder
    folder.mkdir(parents=True)
    text = random.Random(1).randbytes(1 << 20).hex().encode()
    xid = 0
    for number in range(FILES):
        out = []
        for at in range(items * number // FILES, items * (number + 1) // FILES):
            start = at * 977 % (len(text) - payload)
            out.append(HEAD.pack(2, payload + 16, NOW_MS + at, 0) + text[start : start + payload])
            if at < consumed:
                xid += 1
                out.append(b"\1" if removes else XID.pack(9, xid) + XID.pack(6, xid))
        name = "jobs" if number == FILES - 1 else f"jobs.{NOW_MS + number}"
        (folder / name).write_bytes(b"".join(out))
    return folder


def processes() -> Iterator[tuple[int, list[int]]]:
    """This process and all below it: (number, the numbers of /proc/PID/stat behind the name, from the parent's on)."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = list(map(int, (entry / "stat").read_text().rpartition(")")[2].split()[1:]))
            except OSError:
                continue
    for process, fields in found.items():
        at = process
        while at not in (0, os.getpid()):
            at = found[at][0] if at in found else 0
        if at:
            yield process, fields


def processor_s() -> float:
    """Of this process and all below it, ended ones included."""
    return sum(sum(fields[10:14]) for _, fields in processes()) / os.sysconf("SC_CLK_TCK")


def resident_mb() -> float:
    """Of the same, Java and workers included; what they share counts once."""
    return sum(proportional_kb(process) for process, _ in processes()) / 1000


def proportional_kb(process: int) -> int:
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0  # it has just ended
    return int(text.partition("\nPss:")[2].split()[0]) if "\nPss:" in text else 0


class Watch(threading.Thread):
    """The most that was resident while it ran, looked at five times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most_mb = resident_mb()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.2):
            self.most_mb = max(self.most_mb, resident_mb())

    def stop(self) -> float:
        self._over.set()
        self.join()
        return self.most_mb


class Clock:
    """Collects rounds: way to (seconds, seconds of processor). The first round of each warms up and is watched, which
    costs it a tenth: it counts only if there is no other.
    """

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[float, float]]] = {}
        self.most_mb: dict[str, float] = {}

    def time(self, way: str, work: Callable[[], object]) -> None:
        watch = None if way in self.found else Watch()
        began, used = time.monotonic(), processor_s()
        if watch is not None:
            watch.start()
        work()
        took = time.monotonic() - began, processor_s() - used
        self.found.setdefault(way, []).append(took)
        if watch is not None:
            self.most_mb[way] = watch.stop()

    def tell(self, job: str, amount: float, unit: str) -> None:
        for way, rounds in self.found.items():
            wall, cpu = (statistics.median(each[at] for each in rounds[1:] or rounds) for at in range(2))
            figures = f"{wall:6.2f} s ({cpu:5.2f} processor, {self.most_mb[way]:5.0f} MB)"
            print(f"{job:8} {way:36} {figures}  {amount / wall:12,.1f} {unit}", flush=True)


def paths(folder: Path) -> list[Path]:
    return [*sorted(folder.glob("jobs.*")), folder / "jobs"]


def replay(folder: Path) -> None:
    place, found = LocalFolder(str(folder)), Replay(0)
    for path in paths(folder):
        file = place.open(path.name)
        feed(file, 0, path.stat().st_size, found.consume)
        file.close()


def decode(path: Path) -> int:
    """Every record of one file, its payload cut out; as a plain loop would."""
    data, at, count = path.read_bytes(), 0, 0
    end = len(data)
    while at < end:
        if data[at] == 2:
            size = int.from_bytes(data[at + 1 : at + 5], "little")
            count += len(data[at + 21 : at + 5 + size])
            at += 5 + size
        else:
            at = records.decode(data, at, end, 0).stop
    return count


def decode_all(folder: Path, workers: int) -> None:
    if workers == 1:
        sum(map(decode, paths(folder)))
        return
    with ProcessPoolExecutor(workers) as pool:
        sum(pool.map(decode, paths(folder)))


def with_sidecars(spool: Path) -> Path:
    """A server has been started on the spool, and has made its sidecars; it was not let rotate or rewrite anything."""
    sealed = {path.name for path in spool.glob("jobs.*")}
    own = spool / ".staniel" / "segments"
    if own.exists() and {path.name for path in own.iterdir()} == sealed:
        return spool
    server = Server(spool.parent, config='default.max_journal_size = "1TB"\ndefault.max_memory_size = "1GB"\n')
    server.spool = spool
    server.start()
    assert until(lambda: own.exists() and {path.name for path in own.iterdir()} == sealed, 600)
    server.stop()
    assert {path.name for path in spool.glob("jobs.*")} == sealed
    return spool


def hold_plainly(folder: Path, reading: Reading) -> None:
    place = LocalFolder(str(folder))
    hold(place, Part("jobs", list_segments(place, "kestrel")[1]["jobs"]), reading)


def read(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    return spark.read.format("staniel-journal").options(**options).load(str(folder))


def total(rows: DataFrame) -> None:
    rows.agg(F.count("*"), F.sum("size"), F.max(F.length("value"))).collect()


def whole_query(spark: SparkSession, spool: Path) -> None:
    total(read(spark, spool))


def ops(spark: SparkSession, folder: Path, rounds: int) -> None:
    spool = make(folder / "small", 500_000, 100, 250_000)
    clock = Clock()
    for _ in range(WARM):
        total(read(spark, spool))
    for _ in range(rounds):
        clock.time("plain, one process: replay", lambda: replay(spool))
        clock.time("plain, one process: decode", lambda: decode_all(spool, 1))
        clock.time("plain, two processes: decode", lambda: decode_all(spool, 2))
        clock.time("ops", lambda: total(read(spark, spool)))
        clock.time("ops, includeValue=false", lambda: total(read(spark, spool, includeValue="false")))
        clock.time(
            "ops, three columns", lambda: total(spark.read.format("staniel-journal").schema(FEW).load(str(spool)))
        )
    clock.tell("ops", 1.0, "M rows/s")


def scale(spark: SparkSession, folder: Path, rounds: int) -> None:
    for _ in range(WARM):
        total(read(spark, make(folder / "small", 500_000, 100, 250_000)))
    for times in TIMES:
        clock, spool = Clock(), make(folder / f"times{times}", 500_000 * times, 100, 250_000 * times)
        for _ in range(rounds):
            clock.time(f"ops, {times} M rows", partial(whole_query, spark, spool))
        clock.tell("scale", float(times), "M rows/s")


def state(spark: SparkSession, folder: Path, rounds: int) -> None:
    spool = with_sidecars(make(folder / "large", 1_000_000, 2048, 998_000))
    told, read_all = Reading(), Reading(use_summaries=False)
    without = {"view": "state", "useSummaries": "false"}
    clock = Clock()
    for _ in range(rounds):
        clock.time("plain, one process: replay", lambda: replay(spool))
        clock.time("plain, two processes: decode", lambda: decode_all(spool, 2))
        clock.time("plain, one process: summaries", lambda: hold_plainly(spool, read_all))
        clock.time("plain, one process: by sidecars", lambda: hold_plainly(spool, told))
        clock.time("view ops: everything decoded", lambda: total(read(spark, spool)))
        clock.time("view state, useSummaries=false", lambda: total(read(spark, spool, **without)))
        clock.time("view state", lambda: total(read(spark, spool, view="state")))
        clock.time("pipeline.state, useSummaries=false", lambda: total(pipeline.state(spark, str(spool), **without)))
        clock.time("pipeline.state", lambda: total(pipeline.state(spark, str(spool))))
    clock.tell("state", 2100.0, "MB/s")


def lake(spark: SparkSession, folder: Path, rounds: int) -> None:
    spool = make(folder / "archive", 950_000, 1000, 900_000)
    clock = Clock()
    for _ in range(rounds):
        out = folder / "lake"
        shutil.rmtree(out, ignore_errors=True)
        clock.time("archive", lambda: archive(spark, str(spool), str(folder / "lake"), {}, print))
    size = sum(path.stat().st_size for path in paths(spool)) / 1e6
    clock.tell("archive", size, "MB/s")


def packed(spark: SparkSession, folder: Path, rounds: int) -> None:
    spool = make(folder / "pack", 500_000, 500, 250_000)
    clock = Clock()
    for _ in range(rounds):
        copy = folder / "packed"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(spool, copy, copy_function=os.link)
        clock.time("pack", lambda: pack(spark, str(folder / "packed"), {}, JournalDialect.DOCUMENTS))
    size = sum(path.stat().st_size for path in paths(spool)[:-1]) / 1e6
    clock.tell("pack", size, "MB/s")


def report(spark: SparkSession, folder: Path, rounds: int) -> None:
    spool = make(folder / "small", 500_000, 100, 250_000)
    clock = Clock()
    for _ in range(rounds):
        clock.time("report", lambda: write_page(gather(spark, str(spool), {}), folder / "report"))
    clock.tell("report", 1.0, "M records/s")


def live(spark: SparkSession, folder: Path, rounds: int) -> None:
    clock = Clock()
    for number in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as place, running(Path(place) / "server") as server:
            address = server_address(server)

            def plain(number: int = number, place: str = place, address: str = address) -> None:
                spool = DrainSpool(f"{place}/plain{number}")
                with spool:
                    tap = Drain([address], ["jobs"], spool)
                    for batch in count(1):
                        if not tap.fill(batch, BatchLimits(50_000, 1 << 40), 0):
                            break
                    tap.close()

            def sparks(number: int = number, place: str = place, address: str = address) -> None:
                drain(spark, f"{place}/out{number}", {"queues": "jobs", "servers": address}, True, print)

            for way, work in (("plain, one process", plain), ("drain", sparks)):
                for at in range(0, ITEMS, 1000):
                    fill(address, "jobs", min(1000, ITEMS - at))
                clock.time(way, work)
    clock.tell("drain", ITEMS, "items/s")


def many(spark: SparkSession, folder: Path, rounds: int) -> None:
    for queues in MANY:
        many_queues(spark, make_many(folder / f"many{queues}", queues), queues, rounds)


def many_queues(spark: SparkSession, spool: Path, queues: int, rounds: int) -> None:
    options = JournalOptions({"path": str(spool)})
    columns = columns_of(options)
    clock, batches = Clock(), list[float]()
    for _ in range(rounds):
        clock.time("planning", lambda: JournalReader(options, columns).partitions())
        clock.time("count()", lambda: read(spark, spool).count())
        clock.time("view=state", lambda: read(spark, spool, view="state").count())
        clock.time("pipeline.state", lambda: pipeline.state(spark, str(spool)).count())
        clock.time("a stream to its end", lambda: batches.append(stream(spark, spool, queues * FEW_ITEMS)))
    clock.tell(f"{queues:,}", queues, "queues/s")
    print(
        f"{queues:8,} its batch, Spark's triggerExecution {statistics.median(batches[1:] or batches):17.2f} s",
        flush=True,
    )


def stream(spark: SparkSession, spool: Path, rows: int) -> float:
    """Seconds that its one batch took. Besides, Spark starts a Python process for the source, and ends the query."""
    with tempfile.TemporaryDirectory(dir=spool.parent) as place:
        source = spark.readStream.format("staniel-journal").load(str(spool))
        start = source.writeStream.format("noop").option("checkpointLocation", place)
        query = start.trigger(availableNow=True).start()
        query.awaitTermination()
        done = query.recentProgress
        assert sum(each.numInputRows for each in done) == rows
        return sum(each.durationMs["triggerExecution"] for each in done) / 1000


def make_many(folder: Path, queues: int) -> Path:
    """Queues of FEW_ITEMS items each."""
    if not folder.exists():
        folder.mkdir(parents=True)
        items = b"".join(HEAD.pack(2, 116, NOW_MS + at, 0) + b"x" * 100 for at in range(FEW_ITEMS))
        for number in range(queues):
            (folder / f"q{number:05}").write_bytes(items)
    return folder


JOBS = {
    "many": many,
    "ops": ops,
    "scale": scale,
    "state": state,
    "archive": lake,
    "pack": packed,
    "report": report,
    "drain": live,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}", flush=True)
    began = time.monotonic()
    spark = pipeline.session("local[2]")
    print(f"session {time.monotonic() - began:.1f} s", flush=True)
    for job in args.jobs:
        JOBS[job](spark, args.folder, args.rounds + 1)
    print(f"load average {os.getloadavg()[0]:.1f}", flush=True)
    close(spark)


if __name__ == "__main__":
    main()
