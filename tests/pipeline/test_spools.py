"""Several spools in one load: which there are, what they are called, and what becomes of those that cannot be read."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from staniel import pipeline
from staniel.journal.copy_mark import UNFINISHED, VERSION
from staniel.journal.libkestrel.records import READER_MAGIC, SEGMENT_MAGIC, encode_put
from staniel.pipeline.lake.folders import FileVanished, LocalFolder, folder
from staniel.pipeline.lake.globs import is_pattern, match_folders
from staniel.pipeline.report.figures import gather
from staniel.pipeline.sources.journal import JournalReader, JournalSource, SpoolsReader, columns_of
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.journal_partition import SharedPartition
from staniel.pipeline.sources.spools import SpoolUnreachable, list_spools
from staniel.pipeline.tasks import archive as archive_module
from staniel.queues.item import Item
from tests.support.records import NOW_MS, addx
from tests.support.workq_log import Script, files

Rows = list[dict[str, Any]]


def filled(spool: Path, *queues: str) -> Path:
    """A spool whose queues hold an item each, which says where it is."""
    spool.mkdir(parents=True)
    for queue in queues:
        (spool / queue).write_bytes(addx(f"{spool.parent.name} {queue}".encode()))
    return spool


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for host in ("web1", "web2", "web10"):
        filled(tmp_path / "data" / host / "spool", "jobs", "mail")
    (tmp_path / "data" / "lost+found").mkdir()
    return tmp_path / "data"


def options_of(path: object, **given: object) -> JournalOptions:
    paths = {"paths": json.dumps([str(each) for each in path])} if isinstance(path, list) else {"path": str(path)}
    return JournalOptions((paths if path else {}) | {name: str(value) for name, value in given.items()})


def rows_of(path: object, **given: object) -> Rows:
    options = options_of(path, **given)
    reader = SpoolsReader(options, columns_of(options))
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def told(rows: Rows) -> list[tuple[str, bytes]]:
    return [(row["host"], row["value"]) for row in rows]


EVERY = [("web1", b"web1 jobs"), ("web1", b"web1 mail"), ("web10", b"web10 jobs"), ("web10", b"web10 mail")]
EVERY += [("web2", b"web2 jobs"), ("web2", b"web2 mail")]


def test_a_pattern_reads_every_spool_and_names_it_by_what_its_wildcards_stand_for(data: Path) -> None:
    assert told(rows_of(data / "*" / "spool")) == EVERY
    assert told(rows_of(data / "web?" / "spool", queue="jobs")) == [("web1", b"web1 jobs"), ("web2", b"web2 jobs")]
    assert told(rows_of(data / "{web2,web10,none}" / "spool", queue="mail")) == [
        ("web10", b"web10 mail"),
        ("web2", b"web2 mail"),
    ]
    assert told(rows_of(f"file:{data}/web1*/sp[o]ol", queue="jobs")) == [
        ("web1/spool", b"web1 jobs"),
        ("web10/spool", b"web10 jobs"),
    ]


def test_a_path_that_exists_is_no_pattern(tmp_path: Path) -> None:
    spool = filled(tmp_path / "w*" / "[1]", "jobs")
    filled(tmp_path / "w1" / "1", "jobs")
    assert not is_pattern(str(spool)) and not is_pattern("s3://bucket/spool?region=*")
    assert is_pattern("s3://bucket/*/spool?region=x") and not is_pattern("hdfs://[::1]:8020/spool")
    assert [match.path for match in match_folders(str(tmp_path / "w[*]" / "*"))] == [str(spool)]


def test_hidden_folders_match_only_a_pattern_that_begins_with_a_dot(tmp_path: Path) -> None:
    filled(tmp_path / ".old" / "spool", "jobs")
    (tmp_path / "file").write_bytes(b"")
    assert match_folders(str(tmp_path / "*" / "spool")) == []
    assert [match.name for match in match_folders(str(tmp_path / ".*" / "spool"))] == [".old"]


@pytest.mark.parametrize("view", ["ops", "items", "state", "summaries"])
def test_every_view_says_which_spool_a_row_is_of(data: Path, view: str) -> None:
    options = options_of(data / "*" / "spool", view=view)
    assert columns_of(options).names[0] == "host"
    assert {row["host"] for row in rows_of(data / "*" / "spool", view=view)} == {"web1", "web2", "web10"}


def test_a_list_of_paths_is_named_by_its_paths_and_one_path_has_no_such_column_unless_it_is_asked_for(
    data: Path,
) -> None:
    paths = [data / "web2" / "spool", data / "web1" / "spool"]
    assert {row["host"] for row in rows_of(paths)} == {str(path) for path in paths}
    assert "host" not in columns_of(options_of(paths[0])).names
    assert told(rows_of(paths[0], hostColumn="true", queue="jobs")) == [(str(paths[0]), b"web2 jobs")]
    assert "host" not in rows_of(paths, hostColumn="false")[0]


def test_a_file_names_hosts_and_paths(data: Path, tmp_path: Path) -> None:
    lines = f"# inventory\n\nmain\t{data}/web1/spool\nsecond ../data/web2/spool\n{data}/web10/spool\n"
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "spools").write_text(lines)
    assert told(rows_of("", hostsFile=tmp_path / "etc" / "spools", queue="jobs")) == [
        ("main", b"web1 jobs"),
        ("second", b"web2 jobs"),
        (f"{data}/web10/spool", b"web10 jobs"),
    ]


def test_a_file_of_hosts_alone_fills_in_the_place_in_the_path(data: Path, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("web2\nweb1\nold " + str(filled(tmp_path / "old" / "spool", "jobs")) + "\n")
    assert told(rows_of(f"{data}/{{host}}/spool", hostsFile=tmp_path / "hosts", queue="jobs")) == [
        ("web2", b"web2 jobs"),
        ("web1", b"web1 jobs"),
        ("old", b"old jobs"),
    ]


@pytest.mark.parametrize(
    ("content", "path", "match"),
    [
        (b"", "", "names no spool"),
        (b"# nothing\n", "", "names no spool"),
        (b"web1\n", "", "line 1 of .*: web1 has no path: write `web1 /its/spool`"),
        (b"web1 /a\n", "/data/spool", r"the path is one with \{host\}"),
        (b"\xff\xfe", "", "is not UTF-8"),
        (None, "", "there is no file"),
    ],
)
def test_a_file_that_names_no_spools_is_refused(tmp_path: Path, content: bytes | None, path: str, match: str) -> None:
    if content is not None:
        (tmp_path / "hosts").write_bytes(content)
    with pytest.raises(ValueError, match=match):
        rows_of(path, hostsFile=tmp_path / "hosts")


def test_a_folder_for_the_file_of_hosts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Is a directory"):
        rows_of("", hostsFile=tmp_path)


def test_two_spools_of_one_name_are_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(f"web1 {data}/web1/spool\nweb1 {data}/web2/spool\n")
    with pytest.raises(ValueError, match=r"two spools have the host name web1: .*web1/spool and .*web2/spool; give"):
        rows_of("", hostsFile=tmp_path / "hosts")
    filled(tmp_path / "more" / "web1" / "spool", "jobs")
    with pytest.raises(ValueError, match="two spools have the host name web1"):
        rows_of([data / "*" / "spool", tmp_path / "more" / "*" / "spool"])


def test_a_folder_that_comes_twice_is_refused(data: Path, tmp_path: Path) -> None:
    path = data / "web1" / "spool"
    with pytest.raises(ValueError, match=f"spool {path} is given twice"):
        rows_of([path, path])
    (tmp_path / "hosts").write_text(f"a {path}\nb {path}/\n")
    with pytest.raises(ValueError, match=r"of host a and spool .* of host b are the same folder"):
        rows_of("", hostsFile=tmp_path / "hosts")
    (data / "current").symlink_to(data / "web1")
    with pytest.raises(ValueError, match=r"of host current and spool .* of host web1 are the same folder"):
        rows_of(data / "*" / "spool")
    assert len(list_spools([f"{data}/web*/spool"])) == 3


def no_folder(data: Path) -> Path:
    return data / "web3" / "spool"


def a_file(data: Path) -> Path:
    (data / "file").write_bytes(b"")
    return data / "file"


def without_journals(data: Path) -> Path:
    (data / "web3" / "spool").mkdir(parents=True)
    return data / "web3" / "spool"


def interrupted_copy(data: Path) -> Path:
    spool = filled(data / "web3" / "spool", "jobs")
    (spool / ".staniel").mkdir()
    (spool / ".staniel" / VERSION).write_text(UNFINISHED)
    return spool


def unmatched(data: Path) -> Path:
    return data / "db*" / "spool"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (no_folder, "is no folder"),
        (a_file, "ot a directory"),
        (without_journals, "no journals in"),
        (interrupted_copy, "was interrupted: copy it again"),
        (unmatched, "no folder matches this pattern"),
    ],
)
def test_a_spool_that_cannot_be_read_is_fatal_with_its_name_or_left_out_and_told(
    data: Path, made: Callable[[Path], Path], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [data / "web1" / "spool", made(data)]
    with pytest.raises(SpoolUnreachable) as refused:
        rows_of(paths)
    assert str(refused.value).startswith(f"spool {paths[1]}: ") and why in str(refused.value)
    assert str(refused.value).endswith("; option ignoreUnreachable=true reads the other spools")
    with caplog.at_level(logging.WARNING):
        assert {row["value"] for row in rows_of(paths, ignoreUnreachable="true")} == {b"web1 jobs", b"web1 mail"}
    assert f"spool {paths[1]} is left out" in caplog.text and why in caplog.text
    good, bad = rows_of(paths, view="spools")
    assert (good["format"], good["queues"], good["files"], good["error"]) == ("kestrel", 2, 2, None)
    assert good["bytes"] == len(addx(b"web1 jobs") + addx(b"web1 mail"))
    assert why in bad["error"] and bad["queues"] is None
    with pytest.raises(SpoolUnreachable, match="none of 2 spools can be read"):
        rows_of([paths[1], data / "nothing"], ignoreUnreachable="true")


def test_a_folder_that_may_not_be_listed_is_one_spool_of_a_pattern_that_cannot_be_read(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("web2"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(SpoolUnreachable, match=r"web2/\* of host web2/\?: cannot be listed: Permission denied"):
        rows_of(data / "web*" / "*")
    assert {row["host"] for row in rows_of(data / "web*" / "*", ignoreUnreachable="true")} == {
        "web1/spool",
        "web10/spool",
    }


def test_spools_of_different_formats_are_refused_and_empty_ones_have_none(data: Path) -> None:
    empty = data / "web3" / "spool"
    (empty / ".staniel").mkdir(parents=True)
    assert told(rows_of([empty, data / "web1" / "spool"], queue="jobs"))[0][1] == b"web1 jobs"
    streams = data / "web4" / "spool"
    streams.mkdir(parents=True)
    (streams / "jobs.5").write_bytes(SEGMENT_MAGIC + encode_put(Item(b"c", NOW_MS), 1, 0))
    with pytest.raises(ValueError, match=r"web1/spool holds kestrel's format, .*web4/spool libkestrel's: read them"):
        rows_of(data / "*" / "spool")
    several = rows_of(data / "*" / "spool", view="state", queue="jobs")
    assert [(row["host"], row["value"]) for row in several if row["reader"] is not None] == [("web4", b"c")]
    assert len(several) == 4 and {row["position"] for row in several} == {0}
    assert {row["host"] for row in rows_of(data / "web4" / "spo*")} == {"spool"}


def test_the_state_has_spools_of_all_formats_and_spools_with_several(data: Path) -> None:
    mixed, jobs, script = filled(data / "web4" / "spool", "kept"), data / "web5" / "spool", Script()
    (mixed / "mail.5").write_bytes(SEGMENT_MAGIC + encode_put(Item(b"stream", NOW_MS), 1, 0))
    (mixed / "mail.read.late").write_bytes(READER_MAGIC)
    script.add(7, name="jobs")
    jobs.mkdir(parents=True)
    for number, log in enumerate(files(script.world.disk), start=1):
        (jobs / f"{number:09}.log").write_bytes(log)
    several = rows_of(data / "web[45]" / "spool", view="state")
    assert [(row["host"], row["queue"], row["value"], row["reader"], row["jobId"] is None) for row in several] == [
        ("web4", "kept", b"web4 kept", None, True),
        ("web4", "mail", b"stream", "late", True),
        ("web5", "jobs", b"job 7", None, False),
    ]
    assert [row["host"] for row in rows_of(data / "*" / "spool", view="state", queue="jobs")][-2:] == ["web2", "web5"]
    alone = JournalReader(options_of(mixed, view="state"), columns_of(options_of(mixed, view="state")))
    rows = [row for task in alone.partitions() for batch in alone.read(task) for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == [b"web4 kept", b"stream"]
    with pytest.raises(ValueError, match="holds queues of two formats"):
        rows_of(mixed)
    with pytest.raises(SpoolUnreachable, match="most records name none"):
        rows_of(jobs, queue="jobs", hostColumn="true")


def test_a_queue_must_be_in_one_of_the_spools(data: Path) -> None:
    filled(data / "web3" / "spool", "rare")
    assert told(rows_of(data / "*" / "spool", queue="rare")) == [("web3", b"web3 rare")]
    with pytest.raises(ValueError, match="there is no queue jbos in any of 4 spools; there are jobs, mail, rare"):
        rows_of(data / "*" / "spool", queue="jbos")


def test_damage_in_one_spool_names_it_or_ends_only_that_queue(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    (data / "web10" / "spool" / "mail").write_bytes(addx(b"sound") + b"\xff" * 40)
    with pytest.raises(SpoolUnreachable, match=r"spool .*web10/spool of host web10: queue mail: .*byte "):
        rows_of(data / "*" / "spool")
    with caplog.at_level(logging.WARNING):
        rows = told(rows_of(data / "*" / "spool", ignoreUnreachable="true"))
    assert rows == [("web10", b"sound") if row == ("web10", b"web10 mail") else row for row in EVERY]
    assert "host web10: queue mail" in caplog.text and "the rest of this queue is left out" in caplog.text


def test_a_file_that_goes_before_its_task_names_the_spool(data: Path) -> None:
    options = options_of(data / "*" / "spool")
    reader = SpoolsReader(options, columns_of(options))
    (task,) = reader.partitions()
    (data / "web2" / "spool" / "jobs").unlink()
    with pytest.raises(SpoolUnreachable, match="of host web2: queue jobs: "):
        list(reader.read(task))


def test_a_spool_whose_files_keep_changing_is_the_only_one_that_is_looked_at_again(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, looks = LocalFolder.scan, list[str]()

    def scan(self: LocalFolder) -> Any:
        looks.append(Path(self.path).parent.name)
        if self.path.endswith("web2/spool") and looks.count("web2") < 3:
            raise FileVanished("changed")
        return real(self)

    monkeypatch.setattr(LocalFolder, "scan", scan)
    assert told(rows_of(data / "*" / "spool", format="kestrel")) == EVERY
    assert looks.count("web2") == 3 and looks.count("web1") == 1


def test_small_queues_of_many_spools_share_tasks(tmp_path: Path) -> None:
    for host in range(20):
        filled(tmp_path / f"h{host:02}" / "spool", "a", "b", "c")
    options = options_of(tmp_path / "*" / "spool")
    reader = SpoolsReader(options, columns_of(options))
    (task,) = reader.partitions()
    assert isinstance(task, SharedPartition) and len(task.shares) == 20
    (batch,) = reader.read(task)
    assert batch.num_rows == 60 and batch["host"].to_pylist() == sorted(batch["host"].to_pylist())


def test_large_files_of_several_spools_are_cut(tmp_path: Path) -> None:
    for host in ("a", "b"):
        spool = filled(tmp_path / host / "spool")
        (spool / "jobs").write_bytes(b"".join(addx(b"%d" % n, NOW_MS + n) for n in range(1000)))
    whole = rows_of(tmp_path / "*" / "spool")
    options = options_of(tmp_path / "*" / "spool", minPartitions=6)
    reader = SpoolsReader(options, columns_of(options))
    tasks = reader.partitions()
    assert 6 <= len(tasks) <= 8
    assert [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()] == whole


def test_offsets_as_json_are_for_one_spool(data: Path) -> None:
    with pytest.raises(ValueError, match="offsets as JSON are of one spool's queues"):
        rows_of(data / "*" / "spool", endingOffsets='{"jobs": {"file": "jobs", "at": 0}}')


def test_patterns_in_an_object_store(bucket: str, data: Path) -> None:
    base = bucket.replace("/journals?", "/{}?")
    for host in ("web1", "web2"):
        place = folder(base.format(f"data/{host}/spool"))
        place.write("jobs", addx(f"{host} jobs".encode()))
    assert told(rows_of(base.format("data/*/spool"))) == [("web1", b"web1 jobs"), ("web2", b"web2 jobs")]
    folder(base.format("etc")).write("hosts", b"web2\n")
    rows = rows_of(base.format("data/{host}/spool"), hostsFile=base.format("etc/hosts"))
    assert told(rows) == [("web2", b"web2 jobs")]
    rows = rows_of([base.format("data/web1/spool"), data / "web2" / "spool"], queue="jobs")
    assert [row["host"] for row in rows] == ["s3://spool/data/web1/spool", str(data / "web2" / "spool")]
    with pytest.raises(SpoolUnreachable, match=r"spool s3://spool/none/\*/x: no folder matches"):
        rows_of(base.format("none/*/x"))
    (bad,) = rows_of(base.format("none/*/x"), view="spools")
    assert "testing" not in str(bad)


@pytest.fixture
def archived_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, list[str]]]:
    """Runs the archive job over several spools with its tasks in this process: how many rows, and what it warned of."""
    monkeypatch.setattr(archive_module, "run", lambda spark, tasks, work, _: list(map(work, tasks)))
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))

    def job(path: object, **given: str) -> tuple[int, list[str]]:
        warned: list[str] = []
        out = str(tmp_path / "lake")
        return archive_module.archive_each(spark, str(path), out, given, lambda _: None, warned.append), warned

    return job


def test_an_archive_of_several_spools_has_a_folder_for_each_and_goes_on(
    data: Path, tmp_path: Path, archived_each: Callable[..., tuple[int, list[str]]]
) -> None:
    assert archived_each(data / "*" / "spool") == (6, [])
    (data / "web2" / "spool" / "rare").write_bytes(addx(b"rare"))
    assert archived_each(data / "*" / "spool", queues="rare,mai*") == (1, [])
    assert archived_each(data / "*" / "spool") == (0, [])
    rows = ds.dataset(str(tmp_path / "lake"), partitioning="hive").to_table().to_pylist()
    assert sorted((row["host"], row["value"]) for row in rows) == sorted([*EVERY, ("web2", b"rare")])
    assert (tmp_path / "lake" / "host=web1" / "_archive" / "ledger.json").exists()
    with pytest.raises(ValueError, match="there is no queue none in any of 3 spools"):
        archived_each(data / "*" / "spool", queue="none")


def test_an_archive_writes_nothing_if_a_spool_cannot_be_read_unless_that_is_ignored(
    data: Path, tmp_path: Path, archived_each: Callable[..., tuple[int, list[str]]], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "hosts").write_text("web1\nweb3\nweb2\n")
    given = {"hostsFile": str(tmp_path / "hosts")}
    with pytest.raises(SpoolUnreachable, match="of host web3: there is no folder"):
        archived_each(data / "{host}" / "spool", **given)
    assert not (tmp_path / "lake").exists()
    with caplog.at_level(logging.WARNING):
        assert archived_each(data / "{host}" / "spool", **given, ignoreUnreachable="true") == (4, [])
    assert "of host web3 is left out" in caplog.text
    assert archived_each(data / "web1" / "spool")[0] == 2, "one path alone has no folder of its own"
    assert (tmp_path / "lake" / "queue=jobs").is_dir()


def test_spark_reports_several_spools_by_host_and_queue(spark: SparkSession, data: Path) -> None:
    (data / "web1" / "spool" / "jobs").write_bytes(addx(b"a") + addx(b"b") + b"\1")
    figures = gather(spark, f"{data}/*/spool", {"queue": "jobs"})
    assert {row.queue: (row.added, row.depth) for row in figures.rows} == {
        "web1/jobs": (2, 1),
        "web2/jobs": (1, 1),
        "web10/jobs": (1, 1),
    }


def test_spark_loads_lists_patterns_and_files(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    reader = spark.read.format("staniel-journal")
    pattern = f"{data}/*/spool"
    counts = reader.load(pattern).groupBy("host").count().collect()
    assert {row["host"]: row["count"] for row in counts} == {"web1": 2, "web2": 2, "web10": 2}
    paths = [f"{data}/web1/spool", f"{data}/web2/spool"]
    assert reader.load(paths).filter("queue = 'jobs'").count() == 2  # type: ignore[arg-type]
    (tmp_path / "hosts").write_text("web1\nweb3\n")
    listed = spark.read.format("staniel-journal").option("hostsFile", str(tmp_path / "hosts"))
    assert listed.option("ignoreUnreachable", True).load(f"{data}/{{host}}/spool").count() == 2
    states = pipeline.state(spark, pattern, queue="jobs").select("host", "value").collect()
    assert sorted((row.host, bytes(row.value)) for row in states)[0] == ("web1", b"web1 jobs")
    with pytest.raises(Exception, match="of host web3: there is no folder"):
        spark.read.format("staniel-journal").option("hostsFile", str(tmp_path / "hosts")).load(
            f"{data}/{{host}}/spool"
        ).count()
    assert JournalSource.name() == "staniel-journal"
