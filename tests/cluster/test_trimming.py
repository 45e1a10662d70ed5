"""Records that are kept for followers that return: rounds without data count, too, and no turn counts them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from staniel.cluster.core import MemberConfig
from staniel.cluster.durable import Appended, Joined, Kept, compacted, encode_entry, record_bytes_max
from staniel.cluster.places import Place
from staniel.cluster.spool_names import SpoolPaths
from staniel.cluster.stream import RECORD_COST, Record, RecordKind, Stream
from staniel.journal.disk.os_fs import OsFs
from staniel.server.cluster import driver as driver_module
from staniel.server.cluster import member_file
from staniel.server.cluster.driver import Driver
from staniel.server.cluster.member_file import MemberFile, is_large
from staniel.server.cluster.reactor import Reactor
from tests.cluster.test_member_file import OWN, member_disk

C = b"c" * 16


def stream_of(sizes: list[int]) -> Stream:
    stream = Stream()
    for number, size in enumerate(sizes, start=1):
        stream.append(Record(Place(1, number), RecordKind.PUT if size else RecordKind.EMPTY, b"x" * size))
    return stream


def test_what_is_kept_is_counted_as_records_come_and_go() -> None:
    stream = stream_of([0, 10, 0, 30, 5, 0])
    for change in (lambda: stream.cut(5), lambda: stream.forget(2), lambda: stream.forget(1), lambda: stream.cut(2)):
        change()
        assert stream.data_bytes == sum(len(record.data) for record in stream.records)
        assert stream.kept_bytes == stream.data_bytes + RECORD_COST * len(stream.records)
    assert stream.kept_bytes == 0


@pytest.mark.parametrize(
    ("bytes_max", "records_max", "upto"),
    [
        (1000 * RECORD_COST, 1000, 0),
        (40 * RECORD_COST, 1000, 60),
        (40 * RECORD_COST - 1, 1000, 61),
        (1000 * RECORD_COST, 30, 70),
        (40 * RECORD_COST, 30, 70),
        (0, 0, 100),
    ],
)
def test_rounds_without_data_are_given_up(bytes_max: int, records_max: int, upto: int) -> None:
    assert stream_of([0] * 100).spare_upto(bytes_max, records_max) == upto


def test_large_records_are_given_up_sooner() -> None:
    assert stream_of([1000, 1000, 0, 0]).spare_upto(1000 + 3 * RECORD_COST, 10) == 1


def test_a_file_is_written_anew_only_if_that_makes_it_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_file, "REWRITE_BYTES_MIN", 1000)
    file = MemberFile(member_disk(), OWN)
    entries = [Joined(C, 0), *[Appended(1, number, RecordKind.EMPTY, b"") for number in range(1, 200)]]
    for entry in entries:
        assert file.kept.apply(entry)
    file.write(entries)
    before = file._file
    file.rewrite_if_large()
    assert file._file is before and before.size > 2000
    file.kept.stream.forget(190)
    file.rewrite_if_large()
    assert file._file is not before and file._file.size < 1000
    file.close()


@pytest.mark.parametrize("size", [0, 1, 300, 100_000])
def test_the_size_of_a_compacted_file_is_known_without_making_it(size: int) -> None:
    kept = Kept()
    kept.member_id = C
    assert kept.apply(Joined(C, (1 << 62)))
    empty = len(compacted(kept))
    for number in range(1, 20):
        assert kept.apply(Appended(1 << 62, (1 << 62) + number, RecordKind.PUT, bytes(size)))
    assert len(encode_entry(Appended(1 << 62, 1 << 62, RecordKind.PUT, bytes(size)))) <= size + 40
    assert record_bytes_max(kept) / 2 < len(compacted(kept)) <= empty + record_bytes_max(kept) + 100
    assert not is_large(len(compacted(kept)), kept)


def test_a_member_gives_up_rounds_without_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(driver_module, "KEPT_BYTES_MAX", 40 * RECORD_COST)
    (tmp_path / ".staniel").mkdir()
    config = MemberConfig("b:1", 1)
    driver = Driver(config, OsFs(), SpoolPaths(str(tmp_path)), Reactor(), 5000, lambda *event, **fields: None)
    for number in range(1, 101):
        assert driver.kept.apply(Appended(1, number, RecordKind.EMPTY, b""))
    asked: list[int] = []
    monkeypatch.setattr(driver.member, "trim", lambda number, must: asked.append(number))
    for durable in (90, 50):
        driver.files.durable = durable
        driver.trim()
    assert asked == [60, 50]
    driver.close()
