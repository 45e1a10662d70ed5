"""The views of libkestrel's files: items, and how far each reader is. No Spark here."""

from __future__ import annotations

from pathlib import Path

import pytest

from staniel.journal.libkestrel.records import (
    READER_MAGIC,
    SEGMENT_MAGIC,
    encode_put,
    encode_read_done,
    encode_read_head,
)
from staniel.pipeline.formats.adapters import list_segments
from staniel.pipeline.formats.base import CorruptJournal, OnCorrupt, Part, Reading
from staniel.pipeline.lake.folders import LocalFolder
from staniel.queues.item import Item

NOW_MS = 1_700_000_000_000


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Two segments with the items 1 to 9, item 4 in doubt once; a reader that has done 1, 2, 3 and 5, and a new one."""
    records = [
        encode_put(Item(b"item %d" % n, NOW_MS + n, (n == 9) * (NOW_MS + 99)), n, int(n == 4)) for n in range(1, 10)
    ]
    (tmp_path / "jobs.100").write_bytes(SEGMENT_MAGIC + b"".join(records[:6]))
    (tmp_path / "jobs.200").write_bytes(SEGMENT_MAGIC + b"".join(records[6:]) + bytes(50))
    (tmp_path / "jobs.read.").write_bytes(
        READER_MAGIC + encode_read_head(1) + encode_read_head(3) + encode_read_done([5])
    )
    (tmp_path / "jobs.read.late").write_bytes(READER_MAGIC + encode_read_head(0) + encode_read_done([]))
    return tmp_path


def rows(folder: Path, view: str, on_corrupt: OnCorrupt = OnCorrupt.FAIL) -> list[dict[str, object]]:
    place = LocalFolder(str(folder))
    form, queues = list_segments(place, "auto")
    assert form.name == "libkestrel"
    segments = queues["jobs"]
    batches = form.view(view)(place, Part("jobs", segments), Reading(on_corrupt=on_corrupt))
    return [row for batch in batches for row in batch.to_pylist()]


def test_every_put_is_a_row_with_its_id_and_errors(spool: Path) -> None:
    found = rows(spool, "ops")
    assert [(row["op"], row["id"], row["value"]) for row in found] == [("put", n, b"item %d" % n) for n in range(1, 10)]
    assert [row["errorCount"] for row in found] == [0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert found[8]["expireTime"] is not None and found[7]["expireTime"] is None


def test_readers_tell_how_far_they_are(spool: Path) -> None:
    found = [(row["reader"], row["head"], row["done"]) for row in rows(spool, "readers")]
    assert found == [("", 3, [5]), ("late", 0, [])]


def test_each_reader_has_its_own_state(spool: Path) -> None:
    found = rows(spool, "state")
    assert [row["id"] for row in found if row["reader"] == ""] == [4, 6, 7, 8, 9]
    late = [(row["position"], row["id"]) for row in found if row["reader"] == "late"]
    assert late == list(enumerate(range(1, 10)))
    errors = [(row["state"], row["deliveries"]) for row in found if row["id"] == 4]
    assert errors == [("returned", 1)] * 2 and {row["state"] for row in found if row["id"] != 4} == {"queued"}
    done = [row["id"] for row in rows(spool, "items") if row["reader"] == "" and row["state"] == "done"]
    assert done == [1, 2, 3, 5]


def test_a_damaged_segment_is_told_and_the_next_one_read(spool: Path) -> None:
    segment = spool / "jobs.100"
    segment.write_bytes(segment.read_bytes() + b"\xff\xff\xff\xff\xff")
    with pytest.raises(CorruptJournal, match=r"jobs\.100: byte \d+: "):
        rows(spool, "ops")
    assert len([row for row in rows(spool, "ops", OnCorrupt.PERMISSIVE) if row["_corrupt"] is None]) == 9
    assert len([row for row in rows(spool, "ops", OnCorrupt.PERMISSIVE) if row["_corrupt"]]) == 1


def test_items_larger_than_a_piece_are_read_whole(tmp_path: Path) -> None:
    sizes = [10, 3 << 20, 5, 1 << 20]
    data = b"".join(encode_put(Item(b"x" * size, NOW_MS), n, 0) for n, size in enumerate(sizes, start=1))
    (tmp_path / "jobs.100").write_bytes(SEGMENT_MAGIC + data)
    assert [row["size"] for row in rows(tmp_path, "ops")] == sizes
