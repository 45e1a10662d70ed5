"""Large items, and many small batches: what a task hands on at a time, and errors that name the item. No Spark here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from staniel.pipeline.formats.base import ItemTooLarge
from staniel.pipeline.formats.kestrel import ops
from staniel.pipeline.formats.kestrel.adapter import KestrelAdapter
from staniel.pipeline.formats.kestrel.ops import BATCH_BYTES
from staniel.pipeline.lake import folders
from staniel.pipeline.lake.folders import LocalFolder, LocalOpenFile
from staniel.pipeline.sessions import result_bytes_max
from staniel.pipeline.sources.journal import JournalReader, columns_of
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.journal_partition import TOGETHER_BYTES, put_together
from staniel.queues.config import JournalDialect
from tests.pipeline.spools import history, write
from tests.support.records import NOW_MS, addx, with_xid

MIB = 1 << 20


def batches_of(spool: Path, **given: str) -> list[pa.RecordBatch]:
    options = JournalOptions({"path": str(spool), **given})
    reader = JournalReader(options, columns_of(options))
    return [batch for task in reader.partitions() for batch in reader.read(task)]


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    (tmp_path / "jobs").write_bytes(b"".join(addx(bytes([number]) * 5 * MIB, NOW_MS + number) for number in range(12)))
    with (tmp_path / "jobs").open("ab") as file:
        file.write(
            b"".join(with_xid(9, xid) for xid in range(1, 9)) + b"".join(with_xid(5, xid) for xid in range(1, 5))
        )
    return tmp_path


@pytest.mark.parametrize("view", ["ops", "items", "state"])
def test_a_batch_has_16_mb_of_payload_or_one_item(spool: Path, view: str) -> None:
    batches = batches_of(spool, view=view)
    assert sum(batch.num_rows - batch["value"].null_count for batch in batches) == 12
    assert all(batch["value"].nbytes <= BATCH_BYTES + 5 * MIB for batch in batches) and len(batches) >= 4


@pytest.mark.parametrize("piece", [24, 150])
@pytest.mark.parametrize("dialect", JournalDialect)
def test_views_and_cuts_do_not_depend_on_the_pieces_in_which_a_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, dialect: JournalDialect
) -> None:
    """With items larger than a piece, each row is a batch of its own."""

    def everything() -> list[Any]:
        found: list[Any] = []
        for view in ("ops", "items", "state", "summaries"):
            for value in ("true", "false"):
                for until in (60, 10**6):
                    ending = {"endingTimestamp": str(NOW_MS + until)}
                    batches = batches_of(tmp_path, view=view, includeValue=value, **ending)
                    found += [row for batch in batches for row in batch.to_pylist()]
        place, form = LocalFolder(str(tmp_path)), KestrelAdapter()
        for segment in form.queues(place.list())["jobs"]:
            for size in range(0, segment.bytes, 701):
                found += [form.boundary(place, segment, size, 10**9), form.boundary(place, segment, 10**9, size // 20)]
                found.append(form.as_of(place, replace(segment, end=form.boundary(place, segment, size, 10**9).end)))
        return found

    write(tmp_path, "jobs", history(piece, 160, dialect), 2)
    whole = everything()
    for module in (ops, folders):
        monkeypatch.setattr(module, "PIECE_BYTES", piece)
    assert everything() == whole


@pytest.mark.parametrize("view", ["ops", "items", "state"])
def test_an_item_that_is_larger_than_asked_for_is_an_error_with_its_place(spool: Path, view: str) -> None:
    at = 5 * MIB + 21
    with (spool / "mail").open("wb") as file:
        file.write(addx(b"small") + addx(b"x" * (5 * MIB + 1)))
    assert batches_of(spool, view=view, queue="jobs", maxValueBytes="5m")
    assert batches_of(spool, view=view, queue="mail", includeValue="false", maxValueBytes="1")
    with pytest.raises(
        ItemTooLarge, match=r"queue mail: the item at byte 26 of mail has 5,242,881 bytes, .* maxValueBytes"
    ):
        batches_of(spool, view=view, maxValueBytes="5m")
    with pytest.raises(ItemTooLarge, match=r"queue jobs: the item at byte \d+ of jobs has 5,242,880 bytes"):
        batches_of(spool, view=view, queue="jobs", maxValueBytes=str(at - 30))


def test_a_task_without_memory_says_where(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = LocalOpenFile.read

    def read(self: LocalOpenFile, at: int, count: int) -> bytes:
        if count > 4 * MIB:
            raise MemoryError
        return real(self, at, count)

    monkeypatch.setattr(LocalOpenFile, "read", read)
    with pytest.raises(ItemTooLarge, match="queue jobs: a task has no memory for what stands behind byte 0 of jobs"):
        batches_of(spool)


def test_small_batches_are_put_together_in_order_and_large_ones_are_not(tmp_path: Path) -> None:
    def made(rows: int, size: int = 1) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([b"x" * size] * rows, pa.binary())], ["value"])

    def sizes(*batches: pa.RecordBatch) -> list[int]:
        return [batch.num_rows for batch in put_together(batches)]

    assert sizes(*[made(10)] * 300) == [3000]
    assert sizes(made(10), made(999), made(1000), made(5), made(0)) == [1009, 1000, 5]
    assert sizes(*[made(900)] * 12) == [9900, 900]
    assert sizes(*[made(1, TOGETHER_BYTES // 2)] * 3) == [1, 1, 1] and sizes() == []
    for number in range(40):
        (tmp_path / f"q{number:02}").write_bytes(addx(b"%d" % number))
    (batch,) = batches_of(tmp_path)
    assert batch["value"].to_pylist() == [b"%d" % number for number in range(40)]


def test_the_driver_collects_an_eighth_of_its_memory() -> None:
    told: dict[str, Any] = {"1g": "131072k", "512m": "65536k", "2048": "262144k", "2gb": "262144k", "much": "1g"}
    assert {memory: result_bytes_max(memory) for memory in told} == told
