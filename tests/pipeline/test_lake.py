"""A lake takes every record once, whatever is killed and when. No Spark here."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from staniel.journal.disk.fs import SyncFailed
from staniel.journal.disk.os_fs import OsFs
from staniel.pipeline.formats.adapters import check_converted
from staniel.pipeline.lake.arrow import TIME
from staniel.pipeline.lake.folders import folder
from staniel.pipeline.lake.lake import OWN, Lake, LakeTaken, RemoteLakeFolder, lake_folder_of, staged_name, table_folder
from staniel.pipeline.lake.parquet import ParquetTables

COLUMNS = pa.schema([("queue", pa.string()), ("n", pa.int64()), ("asOf", TIME), ("value", pa.binary())])
DAY_US = 86_400_000_000


def rows(*given: tuple[str | None, int, int | None]) -> pa.RecordBatch:
    """(queue, number, day)."""
    table = [
        {"queue": queue, "n": n, "asOf": None if day is None else day * DAY_US + 1, "value": b"%d" % n}
        for queue, n, day in given
    ]
    return pa.RecordBatch.from_pylist(table, schema=COLUMNS)


def written(out: Path, batch: int, *batches: pa.RecordBatch, day: int = 0) -> ParquetTables:
    tables = ParquetTables(lake_folder_of(str(out)), COLUMNS, "asOf", batch, day)
    for each in batches:
        tables.add(each)
    tables.close()
    return tables


def lake(out: Path) -> dict[int, tuple[str, str]]:
    """Each number with its queue and day, as a reader of Hive's folders finds them; a number twice is an error."""
    files = [str(path) for path in out.rglob("*.parquet") if "_archive" not in path.parts]
    parts = ds.partitioning(pa.schema([("queue", pa.string()), ("day", pa.string())]), flavor="hive")
    found = ds.dataset(files, partitioning=parts, partition_base_dir=str(out)).to_table().to_pylist() if files else []
    told = {row["n"]: (row["queue"], row["day"]) for row in found}
    assert len(told) == len(found), "a row is there twice"
    return told


def test_rows_go_to_their_queue_and_day_and_those_without_a_time_to_their_neighbours(tmp_path: Path) -> None:
    first = rows(("a", 0, None), ("a", 1, 3), ("b", 2, 3), ("a", 3, 4), ("a", 4, None), (None, 5, 4))
    tables = written(tmp_path, 1, first, rows(("a/b", 6, None)))
    assert lake(tmp_path) == {}, "not before it is committed"
    with Lake(str(tmp_path)) as place:
        assert lake(tmp_path) == {}, "nobody has committed it"
        place.commit({"a": {"at": 1}}, written(tmp_path, 1, first, rows(("a/b", 6, None))).files, tables.days)
        assert place.entry.days == {"a": 4, "b": 3, "a/b": 4}
    days = {3: "1970-01-04", 4: "1970-01-05"}
    assert lake(tmp_path) == {
        0: ("a", days[3]), 1: ("a", days[3]), 2: ("b", days[3]), 3: ("a", days[4]), 4: ("a", days[4]),
        5: (None, days[4]), 6: ("a/b", days[4]),
    }  # fmt: skip


def test_a_task_that_meets_no_time_uses_the_day_that_it_was_given(tmp_path: Path) -> None:
    with Lake(str(tmp_path)) as place:
        place.commit({}, written(tmp_path, 1, rows(("a", 0, None)), day=2).files, {})
    assert lake(tmp_path) == {0: ("a", "1970-01-03")}


def test_many_queues_are_written_with_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("staniel.pipeline.lake.parquet.OPEN_MAX", 3)
    monkeypatch.setattr("staniel.pipeline.lake.parquet.HELD_BYTES", 200)
    batch = rows(*[(f"q{n % 8}", n, n % 2) for n in range(40)])
    with Lake(str(tmp_path)) as place:
        place.commit({}, written(tmp_path, 1, batch, batch.slice(0, 0)).files, {})
    assert {n: queue for n, (queue, _) in lake(tmp_path).items()} == {n: f"q{n % 8}" for n in range(40)}


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Path]:
    """A lake with one batch, and the files of a second one staged."""
    with Lake(str(tmp_path)) as place:
        place.commit({"a": 1}, written(tmp_path, 1, rows(("a", 1, 0))).files, {})
    return tmp_path


def test_a_batch_that_was_not_committed_is_thrown_away(begun: Path) -> None:
    written(begun, 2, rows(("a", 2, 0)))
    with Lake(str(begun)) as place:
        assert (place.entry.batch, place.entry.end) == (1, {"a": 1})
        assert place.place.names(staged_name("")) == []
        place.commit({"a": 2}, written(begun, 2, rows(("a", 2, 0))).files, {})
    assert set(lake(begun)) == {1, 2}


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_a_batch_that_was_committed_is_published_at_the_next_start(
    begun: Path, moved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = written(begun, 2, rows(("a", 2, 0), ("b", 3, 0)))
    with Lake(str(begun)) as place:
        tables = written(begun, 2, rows(("a", 2, 0), ("b", 3, 0)))
        publish = place.place.move

        def die(moves: list[tuple[str, str]]) -> None:
            publish(moves[:moved])
            raise KeyboardInterrupt

        monkeypatch.setattr(place.place, "move", die)
        with pytest.raises(KeyboardInterrupt):
            place.commit({"a": 2}, tables.files, {})
    assert set(lake(begun)) == {1, *[2, 3][:moved]}
    with Lake(str(begun)) as place:
        assert (place.entry.batch, place.entry.end) == (2, {"a": 2})
    assert set(lake(begun)) == {1, 2, 3}


def test_one_job_at_a_time_adds_to_a_lake_and_none_to_a_streams_table(begun: Path) -> None:
    with Lake(str(begun)), pytest.raises(LakeTaken, match="adds to"):
        Lake(str(begun)).__enter__()
    (begun / "_spark_metadata").mkdir()
    (begun / "_spark_metadata" / "0").write_text("v1")
    for _ in range(2):
        with pytest.raises(LakeTaken, match="the table of a stream"):
            Lake(str(begun)).__enter__()


def test_folders_are_named_as_hive_names_them() -> None:
    assert table_folder("jobs", "2024-02-29") == "queue=jobs/day=2024-02-29"
    assert table_folder("a:b=c/d e%", "1970-01-01") == "queue=a%3Ab%3Dc%2Fd e%25/day=1970-01-01"
    assert table_folder(None, "1970-01-01").startswith("queue=__HIVE_DEFAULT_PARTITION__/")


def remote_numbers(url: str) -> list[int]:
    """What a remote lake's tables hold."""
    place = lake_folder_of(url)
    assert isinstance(place, RemoteLakeFolder)
    files = [name for name in place.names("") if name.endswith(".parquet") and not name.startswith(OWN)]
    return sorted(
        n for name in files for n in pq.read_table(f"{place.path}/{name}", filesystem=place.fs)["n"].to_pylist()
    )


def remote_batch(url: str, batch: int, n: int) -> list[str]:
    tables = ParquetTables(lake_folder_of(url), COLUMNS, "asOf", batch, 0)
    tables.add(rows(("a", n, 0)))
    tables.close()
    return tables.files


def test_of_two_jobs_that_add_to_one_remote_lake_the_first_is_told(bucket: str) -> None:
    with Lake(bucket) as first:
        first.commit({"a": 1}, remote_batch(bucket, 1, 1), {})
        staged = remote_batch(bucket, 2, 2)
        with Lake(bucket) as second:
            again = remote_batch(bucket, 2, 2)
            with pytest.raises(LakeTaken, match="another job adds to s3://"):
                first.commit({"a": 2}, staged, {})
            second.commit({"a": 2}, again, {})
    assert remote_numbers(bucket) == [1, 2]
    with Lake(bucket) as later:
        assert (later.entry.batch, later.entry.end) == (2, {"a": 2})


def test_a_job_that_comes_while_an_entry_is_on_its_way_adds_nothing(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lake(bucket) as first, Lake(bucket) as second:
        second.commit({"a": 1}, remote_batch(bucket, 1, 1), {})
        staged = remote_batch(bucket, 2, 2)
        write = second._own.write

        def slowly(name: str, data: bytes) -> None:
            first.__enter__()
            write(name, data)

        with monkeypatch.context() as patch:
            patch.setattr(second._own, "write", slowly)
            second.commit({"a": 2}, staged, {})
        with pytest.raises(LakeTaken):
            first.commit({"a": 2}, remote_batch(bucket, 2, 2), {})
        with pytest.raises(LakeTaken):
            second.commit({"a": 3}, remote_batch(bucket, 3, 3), {})
    assert remote_numbers(bucket) == [1, 2]


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE])
def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    place, scandir = lake_folder_of(str(tmp_path)), os.scandir
    (tmp_path / "staged/queue=a").mkdir(parents=True)
    (tmp_path / "staged/queue=a/0.parquet").write_bytes(b"rows")

    def refuse(path: str) -> object:
        if path == f"{tmp_path}/staged/queue=a":
            raise OSError(code, os.strerror(code), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(OSError, match=os.strerror(code)):
        place.names("staged")
    with pytest.raises(OSError, match=os.strerror(code)):
        place.clear("staged")
    assert place.names("not there") == []


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE])
@pytest.mark.parametrize("unseen", ["", "/.staniel/convert.plan"])
def test_a_spool_that_cannot_be_looked_at_is_neither_missing_nor_without_a_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unseen: str, code: int
) -> None:
    (tmp_path / ".staniel").mkdir()

    def refuse(path: str, **options: bool) -> os.stat_result:
        if path == f"{tmp_path}{unseen}":
            raise OSError(code, os.strerror(code), path)
        return stat(path, **options)

    stat = os.stat
    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "lstat", lambda path: refuse(path, follow_symlinks=False))
    with pytest.raises(OSError, match=os.strerror(code)):
        folder(str(tmp_path)).exists() if not unseen else check_converted(folder(str(tmp_path)))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were synced, in their order."""
    found: list[str] = []
    sync_folder = OsFs.sync_folder

    def sync(self: OsFs, folder: str) -> None:
        sync_folder(self, folder)
        found.append(folder)

    monkeypatch.setattr(OsFs, "sync_folder", sync)
    return found


def around(top: Path, path: Path) -> set[str]:
    """The folder at `path`, and those around it up to `top`."""
    return {str(each) for each in (path, *path.parents) if each.is_relative_to(top)}


def test_a_file_in_a_folder_that_another_task_has_made_syncs_the_names_of_its_folders(
    tmp_path: Path, synced: list[str]
) -> None:
    """The other task may be killed before it does."""
    name = staged_name("queue=a/day=1970-01-01/1.parquet")
    where = (tmp_path / name).parent
    where.mkdir(parents=True)
    lake_folder_of(str(tmp_path)).create(name).close()
    assert set(synced) == around(tmp_path, where)


def test_a_file_that_a_killed_job_has_moved_is_durable_before_the_next_batch_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[str]
) -> None:
    """Otherwise a power cut brings it back to where no entry names it any more, and it would be removed."""
    where = tmp_path / table_folder("a", "1970-01-01")

    def killed(moves: list[tuple[str, str]]) -> None:
        where.mkdir(parents=True)
        for old, new in moves:
            os.rename(tmp_path / old, tmp_path / new)
        raise InterruptedError

    with Lake(str(tmp_path)) as place:
        monkeypatch.setattr(place.place, "move", killed)
        staged = written(tmp_path, 1, rows(("a", 1, 0))).files
        with pytest.raises(InterruptedError):
            place.commit({"a": 1}, staged, {})
    synced.clear()
    with Lake(str(tmp_path)):
        assert around(tmp_path, where) <= set(synced)
    assert set(lake(tmp_path)) == {1}


def test_a_file_whose_sync_failed_is_not_synced_again_by_a_second_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = lake_folder_of(str(tmp_path)).create("x")
    file.write(b"rows")
    synced: list[str] = []

    def fail(self: object) -> None:
        synced.append("x")
        raise SyncFailed(errno.EIO, "it is lost", "x")

    monkeypatch.setattr(type(file._file), "sync", fail)
    with pytest.raises(SyncFailed):
        file.close()
    file.close()
    assert synced == ["x"]
