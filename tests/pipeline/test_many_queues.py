"""Spools of many queues: what a plan looks at, and how much one task reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from staniel import pipeline
from staniel.pipeline.lake.folders import Entries, LocalFolder, SpoolFs
from staniel.pipeline.sources import planning
from staniel.pipeline.sources.journal import JournalReader, columns_of
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.journal_stream import JournalStream
from tests.support.records import addx

QUEUES = 60


def options_of(spool: Path, **given: str) -> JournalOptions:
    return JournalOptions({"path": str(spool), **given})


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    for number in range(QUEUES):
        (folder / f"q{number:02}").write_bytes(addx(b"a%d" % number) + addx(b"b%d" % number))
    return folder


def test_a_plan_lists_the_folder_once_however_many_files_the_redo_log_names(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlike_log(fs: SpoolFs, folder: str, _: str) -> list[tuple[str, int]]:
        assert {fs.size(f"{folder}/{name}") for name in names} == {len(addx(b"a1") * 2), len(addx(b"a11") * 2)}
        with pytest.raises(FileNotFoundError):
            fs.size(f"{folder}/none")
        return []

    names, listings = [path.name for path in spool.iterdir()], list[str]()
    real = LocalFolder.scan

    def scan(self: LocalFolder) -> Entries:
        listings.append(self.path)
        return real(self)

    monkeypatch.setattr(planning, "unlike_log", unlike_log)
    monkeypatch.setattr(LocalFolder, "scan", scan)
    options = options_of(spool, format="kestrel")
    (task,) = JournalReader(options, columns_of(options)).partitions()
    assert len(task.parts) == QUEUES  # type: ignore[attr-defined]
    assert listings == [str(spool)]


def test_small_queues_share_a_task_of_a_stream_as_they_share_one_of_a_query(spool: Path) -> None:
    options = options_of(spool)
    (task,) = JournalReader(options, columns_of(options)).partitions()
    expected = [row for batch in JournalReader(options, columns_of(options)).read(task) for row in batch.to_pylist()]
    stream = JournalStream(options, columns_of(options))
    end = stream.latestOffset({}, stream.getDefaultReadLimit())
    (piece,) = stream.partitions({}, end)
    assert [row for batch in stream.read(piece) for row in batch.to_pylist()] == expected
    assert len(expected) == 2 * QUEUES


def test_small_queues_share_a_task_of_a_job(spark: SparkSession, spool: Path) -> None:
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("many", "small queues")
    rows = pipeline.state(spark, str(spool)).select("queue", "value").collect()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("many")]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert len(rows) == 2 * QUEUES and stages
    assert all(stage.numTasks <= 4 for stage in stages if stage is not None)
