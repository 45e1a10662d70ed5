"""Queues of any name, through a lake and back into a server; and what is not there is told, and is no empty table."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from staniel.pipeline.lake import folders as files
from staniel.pipeline.lake.folders import FolderMissing, below, folder
from staniel.pipeline.lake.lake import OWN, FileNotOnDriver, Lake, staged_name
from staniel.pipeline.lake.names import NO_QUEUE, partition_name, real_name, shown_name
from staniel.pipeline.sources.connection import ServerLost
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.options import Options, QueuePatterns, as_option
from staniel.pipeline.tasks.archive import archive
from staniel.pipeline.tasks.convert import convert
from staniel.pipeline.tasks.refill import INFERRING, items_of
from staniel.pipeline.tasks.summarise import run as run_tasks
from staniel.queues.config import Format
from tests.pipeline.test_cli import Run, run  # noqa: F401 - a fixture
from tests.pipeline.test_drain import fill, server_address
from tests.pipeline.test_live_source import taken
from tests.support.process import running
from tests.support.records import NOW_MS, addx

NAMES = [
    "jobs", "007", "7", "1e3", "NaN", "-1", "2024-02-29", "café", "cafÃ©", "日本", "caf\udce9", r"caf\xE9", r"a\x5Cb",
    "a=b", "100%", "%37", "a,b", "[a]", "mail*", "what?", " ", "\u00a0", NO_QUEUE, "null", 'say"it', "a:b#c{d}^",
]  # fmt: skip


def spool_of(folder: Path, names: list[str]) -> Path:
    """A queue each, with one item that says its number."""
    folder.mkdir()
    for number, name in enumerate(names):
        path = os.fsencode(folder / name)
        with open(path, "wb") as file:
            file.write(addx(b"%d" % number, NOW_MS + number))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_shown_as_text_and_known_again(name: str) -> None:
    shown = shown_name(name)
    assert real_name(shown) == name and shown.encode()
    assert "/" not in partition_name(shown) and not partition_name(shown).isdigit()


def test_every_queue_keeps_its_name_in_a_lake_whatever_it_is_called(spark: SparkSession, tmp_path: Path) -> None:
    spool, out = spool_of(tmp_path / "spool", NAMES), tmp_path / "lake"
    wanted = {str(number).encode(): shown_name(name) for number, name in enumerate(NAMES)}
    assert archive(spark, str(spool), str(out), {}, lambda _: None) == len(NAMES)
    found = {bytes(row.value): row.queue for row in items_of(spark, str(out), True, {}).collect()}
    assert found == wanted
    spark.conf.set(INFERRING, "true")
    plain = {bytes(row.value): row.queue for row in spark.read.parquet(str(out)).collect()}
    spark.conf.set(INFERRING, "false")
    assert plain == wanted, "whatever the session makes of folders"
    paths = [str(path) for path in out.rglob("*.parquet")]
    parts = ds.partitioning(pa.schema([("queue", pa.string()), ("day", pa.string())]), flavor="hive")
    rows = ds.dataset(paths, partitioning=parts, partition_base_dir=str(out)).to_table().to_pylist()
    pyarrow = {row["value"]: row["queue"] for row in rows}
    assert pyarrow == {n: None if name == NO_QUEUE else name for n, name in wanted.items()}, "it has no name for none"
    batch = spark.read.format("staniel-journal").option("queues", as_option([shown_name("caf\udce9"), "a,b"]))
    assert {row.queue for row in batch.load(str(spool)).collect()} == {r"caf\xE9", "a,b"}


def test_queues_with_numbers_for_names_stay_apart_in_a_lake_that_holds_no_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One name that is no number, and readers take all of them for text."""
    spool, out = spool_of(tmp_path / "spool", ["007", "7", "1e3", "1000"]), tmp_path / "lake"
    archive(spark, str(spool), str(out), {}, lambda _: None)
    spark.conf.set(INFERRING, "true")
    plain = {bytes(row.value): row.queue for row in spark.read.parquet(str(out)).collect()}
    assert plain == {bytes(row.value): row.queue for row in items_of(spark, str(out), True, {}).collect()}
    spark.conf.set(INFERRING, "false")
    assert plain == {b"0": "007", b"1": "7", b"2": "1e3", b"3": "1000"}


def test_a_lake_in_a_folder_with_a_question_mark_keeps_its_ledger(spark: SparkSession, tmp_path: Path) -> None:
    spool, out = spool_of(tmp_path / "spool", ["jobs"]), tmp_path / "what?[x]" / "lake"
    for rows in (1, 0):
        assert archive(spark, str(spool), str(out), {}, lambda _: None) == rows
    assert (out / OWN / "ledger.json").exists() and [path.name for path in tmp_path.iterdir()].count("what?[x]") == 1
    assert items_of(spark, str(out), True, {}).count() == 1
    assert below("s3://bucket/lake?region=x", "y") == "s3://bucket/lake/y?region=x"


def test_names_and_patterns_of_queues_are_replayed(run: Run, tmp_path: Path) -> None:  # noqa: F811
    names = ["mail1", "mail2", "café", "007", "7", "jobs"]
    spool, out = spool_of(tmp_path / "spool", names), tmp_path / "lake"
    run("archive", spool, out)
    words = ("-q", "mail*", "-q", "café", "-q", "007")
    with running(tmp_path / "server") as server:
        address = server_address(server)
        assert run("replay", out, "-s", address, *words).stderr.endswith("4 items put\n")
        put = {name: [item.data for item in taken(address, name)] for name in names}
        assert put == {"mail1": [b"0"], "mail2": [b"1"], "café": [b"2"], "007": [b"3"], "7": [], "jobs": []}
        told = run("replay", out, "-s", address, "-q", "mail*", "-q", "male*", code=1).stderr
        assert "Error: there is no queue male* in what is to be put; there are 007, 7, café, jobs, mail1, mail2" in told
        told = run("replay", spool, "--spool", "-s", address, "-q", "mail9", code=1).stderr
        assert f"Error: there is no queue mail9 in {spool}; there are 007, 7, café" in told


def commands(spool: str, tmp_path: Path) -> dict[str, tuple[object, ...]]:
    return {
        "archive": (spool, tmp_path / "lake"),
        "report": (spool, tmp_path / "report"),
        "verify": (spool,),
        "pack": (spool,),
        "convert": (spool, "--to", "libkestrel"),
        "replay": (spool, "--spool"),
    }


def test_what_is_not_there_is_one_line_in_every_command(
    run: Run,  # noqa: F811
    tmp_path: Path,
    bucket: str,
) -> None:
    spool = spool_of(tmp_path / "spool", ["jobs"])
    (tmp_path / "empty").mkdir()
    with running(tmp_path / "server") as server:
        to = ("-s", server_address(server))
        for name, rest in commands(str(spool), tmp_path).items():
            told = run(name, *rest, *(to if name == "replay" else ()), "-q", "job", code=1)
            said = told.stdout if name == "convert" else told.stderr
            assert "there is no such queue" in said or f"there is no queue job in {spool}; there are jobs" in said
            if name not in ("pack", "convert"):
                told = run(name, *rest, *(to if name == "replay" else ()), "--format", "libkestrel", code=1)
                assert "holds no queue of libkestrel's format; there are some with option format=kestrel" in told.stderr
        for name, rest in commands(str(tmp_path / "empty"), tmp_path).items():
            told = run(name, *rest, *(to if name == "replay" else ()), code=1)
            assert "there are no journals" in (told.stdout if name == "convert" else told.stderr)
        assert list((tmp_path / "empty").iterdir()) == []
        for url in (bucket, bucket.replace("spool/journals", "nowhere/journals")):
            for name, rest in commands(url, tmp_path).items():
                if name not in ("pack", "convert"):
                    told = run(name, *rest, *(to if name == "replay" else ()), code=1)
                    (line,) = [line for line in told.stderr.splitlines() if line.startswith("Error: ")]
                    assert "there is no folder s3://" in line and "testing" not in line


def test_a_stream_over_what_is_not_there_does_not_wait_for_it(tmp_path: Path) -> None:
    from staniel.pipeline.sources.journal import columns_of
    from staniel.pipeline.sources.journal_stream import JournalStream

    spool_of(tmp_path / "spool", ["jobs"])
    for path, queue, said in ((tmp_path / "spool", "job", "no queue job"), (tmp_path / "spol", "jobs", "no folder")):
        options = JournalOptions({"path": str(path), "queue": queue, "format": "kestrel"})
        with pytest.raises((ValueError, FolderMissing), match=said):
            JournalStream(options, columns_of(options)).initialOffset()
    (tmp_path / "fresh" / ".staniel").mkdir(parents=True)
    options = JournalOptions({"path": str(tmp_path / "fresh")})
    assert JournalStream(options, columns_of(options)).initialOffset() == {}, "a server's spool may still be empty"


def test_a_dead_server_is_one_line_before_anything_starts(run: Run, tmp_path: Path) -> None:  # noqa: F811
    spool = spool_of(tmp_path / "spool", ["jobs"])
    with running(tmp_path / "server") as server:
        dead = "127.0.0.1:1"
        for words in (("replay", spool, "--spool"), ("drain", tmp_path / "out", "-q", "jobs")):
            told = run(*words, "-s", server_address(server), "-s", dead, code=1).stderr.splitlines()
            assert len(told) == 1 and told[0].startswith(f"Error: no answer from {dead}")
        told_all = run("drain", tmp_path / "out", "-q", "nowhere", "-s", server_address(server), code=1).stderr
        assert f"Error: there is no queue nowhere on {server_address(server)}" in told_all


def test_a_spark_master_that_does_not_answer_is_one_line_at_once(tmp_path: Path) -> None:
    """Run as a user runs it: the session that the tests share is never asked to start."""
    spool = spool_of(tmp_path / "spool", ["jobs"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"spark://127.0.0.1:{taken.getsockname()[1]}"
    command = [
        sys.executable,
        "-m",
        "staniel",
        "pipeline",
        "report",
        str(spool),
        str(tmp_path / "out"),
        "--master",
        dead,
    ]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].startswith(f"Error: no Spark master answers at {dead}: ")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--master", "nonsense", "nonsense is not local[N], spark://host:port"),
        ("--memory", "lots", "lots is not a size like 512m"),
        ("--memory", "1k", "1k is not a size like 512m"),
        ("--py-files", "nowhere.whl", "there is no file nowhere.whl"),
    ],
)
def test_a_session_that_cannot_start_is_one_line(
    run: Run,  # noqa: F811
    tmp_path: Path,
    option: str,
    value: str,
    said: str,
) -> None:
    (told,) = run("verify", spool_of(tmp_path / "spool", ["jobs"]), option, value, code=2).stderr.splitlines()
    assert told.startswith("Error: ") and said in told


def test_an_executor_that_does_not_see_the_files_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Played by a folder that goes away between plan and task."""
    spool = spool_of(tmp_path / "spool", ["jobs"])
    gone = str(spool)

    def look(_: int) -> bytes:
        from staniel.pipeline.lake.folders import folder

        return folder(gone).open("jobs").read(0, 1)

    rows = spark.read.format("staniel-journal").load(gone)
    rows._jdf.queryExecution().toRdd().getNumPartitions()  # which files are read is known now
    spool.rename(tmp_path / "elsewhere")
    with pytest.raises(FolderMissing, match=f"^there is no folder {gone} on .*: every executor must see it"):
        run_tasks(spark, [1], look)
    spool.mkdir()  # as where a disk is not mounted
    with pytest.raises(Exception, match=f"there are no files in {gone} on .*: every executor must see it"):
        rows.collect()
    (refused,) = convert(spark, [gone], [], Format.LIBKESTREL)
    assert re.match(f"there are no journals in {gone} on .*: every executor must see it", refused.refusal)
    monkeypatch.setattr(files, "task_host", lambda: "")
    spool.rmdir()
    with pytest.raises(FolderMissing, match=f"there is no folder {gone}$"):
        folder(gone).open("jobs")


def test_a_batch_that_an_executor_wrote_to_a_disk_of_its_own_does_not_count(tmp_path: Path) -> None:
    with Lake(str(tmp_path)) as lake:
        with pytest.raises(FileNotOnDriver, match="every executor must see this folder"):
            lake.commit({"jobs": 1}, ["queue=jobs/day=1970-01-01/1.parquet"], {})
        assert lake.entry.batch == 0
        lake.place.create(staged_name("queue=jobs/day=1970-01-01/1.parquet")).close()
        lake.commit({"jobs": 1}, ["queue=jobs/day=1970-01-01/1.parquet"], {})


def test_a_queue_that_is_called_like_a_pattern_is_meant_by_its_name() -> None:
    queues = QueuePatterns(
        Options({"queues": as_option(["[a]", "x,y", "mail*"])}, {"queue", "queues", "queuePattern"}, "test")
    )
    assert all(name in queues for name in ("[a]", "x,y", "mail1", "a")) and "x" not in queues
    assert queues.unmet(["[a]", "mail1"]) == ["x,y"]


def test_a_server_that_is_gone_when_rows_are_put_is_told_even_if_there_are_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    from staniel.pipeline.tasks.refill import refill

    with running(tmp_path / "server") as server:
        address = server_address(server)
        fill(address, "jobs", 1)
    rows = spark.createDataFrame([], "queue string, value binary")
    with pytest.raises(ServerLost, match="no answer"):
        refill(rows, "", "", [], {"servers": address}, 0)
