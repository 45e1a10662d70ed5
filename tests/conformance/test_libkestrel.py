"""What the libkestrel library left on a disk, and what it wrote: every documented case and record, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from staniel.journal.disk.os_fs import OsFs
from staniel.journal.libkestrel import records as libkestrel
from staniel.journal.libkestrel.files import StreamFiles, group_by_queue
from staniel.journal.libkestrel.recovery import RecoveredStream, StreamRecovery
from staniel.journal.libkestrel.segments import StreamSegments
from staniel.queues.item import Item, Numbered
from tests.conformance import cases

NOW_MS = 1_800_000_000_000
CASES = cases.load("libkestrel/cases.json")
VECTORS = cases.load("libkestrel/vectors.json")


def recovered(folder: Path, queue: str) -> RecoveredStream:
    fs = OsFs()
    files = group_by_queue(fs.list(str(folder))).get(queue, StreamFiles(queue, {}, {}, []))
    try:
        return StreamRecovery(fs, str(folder), str(folder / "damaged")).recover(files, NOW_MS)
    finally:
        fs.close()


def delivered(found: RecoveredStream, reader: str) -> list[Numbered]:
    """What GETs of this reader give."""
    position = found.readers[reader]
    return [
        item
        for item in found.segments.items()
        if item.id > position.head
        and item.id not in position.done
        and not (item.expires_ms and item.expires_ms < NOW_MS)
    ]


def read_folder(folder: Path) -> dict[str, str]:
    return {path.name: path.read_bytes().hex() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_recovered_folder_is_what_its_files_say(case: dict[str, Any], tmp_path: Path) -> None:
    for name, content in case["files"].items():
        (tmp_path / name).write_bytes(bytes.fromhex(content))
    check(case, recovered(tmp_path, case["queue"]))
    after = read_folder(tmp_path)
    for name, content in case["expect"].get("files_after", {}).items():
        if case["files"]:  # a queue that was not there is nobody's to recover
            assert after.get(name) == content, name
    again = recovered(tmp_path, case["queue"])
    check(case, again)
    assert not again.damages
    assert read_folder(tmp_path) == after


def check(case: dict[str, Any], found: RecoveredStream) -> None:
    wanted = case["expect"]
    answers = [wanted["readers"], *wanted.get("readers_also", [])]
    if case["files"]:
        items = {name: [item.data.decode("latin-1") for item in delivered(found, name)] for name in found.readers}
        assert items in answers
    assert found.segments.last_id + 1 in (wanted["next_id"], *wanted.get("next_id_also", []))
    for reader, counts in case.get("error_counts", {}).items():
        assert [item.errors for item in delivered(found, reader)] == counts


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['record']}-{vector['file_hex'][8:40]}")
def test_a_record_is_written_as_the_library_writes_it(vector: dict[str, Any]) -> None:
    if vector["record"] == "PUT":
        expires_ms = vector["expire_time"]
        item = Item(bytes.fromhex(vector["data_hex"]), vector["add_time"], expires_ms or 0)
        record = libkestrel.encode_put(item, vector["id"], vector["error_count"])
        if expires_ms == 0:  # an Item has no word for it: never written, only read
            item.expires_ms = libkestrel.LONG_AGO_MS
            record = libkestrel.encode_put(item, vector["id"], vector["error_count"])
            record = record[:25] + bytes(8) + record[33:]
        assert (libkestrel.SEGMENT_MAGIC + record).hex() == vector["file_hex"]
    elif vector["record"] == "READ_HEAD":
        assert (libkestrel.READER_MAGIC + libkestrel.encode_read_head(vector["id"])).hex() == vector["file_hex"]
    else:
        assert (libkestrel.READER_MAGIC + libkestrel.encode_read_done(vector["ids"])).hex() == vector["file_hex"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['record']}-{vector['file_hex'][8:40]}")
def test_a_record_is_read_as_the_library_wrote_it(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["file_hex"])[libkestrel.MAGIC_BYTES :]
    record = libkestrel.read_record(data, 0, len(data), 0)
    assert record is not None
    assert record.stop == len(data)
    if vector["record"] == "PUT":
        assert libkestrel.decode_put_id(data, record) == vector["id"]
        item = libkestrel.decode_item(data, record)
        assert (item.id, item.added_ms, item.errors) == (vector["id"], vector["add_time"], vector["error_count"])
        assert item.data.hex() == vector["data_hex"]
        wanted = vector["expire_time"]
        assert item.expires_ms == (0 if wanted is None else wanted or libkestrel.LONG_AGO_MS)
    elif vector["record"] == "READ_HEAD":
        assert libkestrel.decode_read_head(data, record) == vector["id"]
    else:
        assert list(libkestrel.decode_read_done(data, record)) == vector["ids"]


def test_a_folder_without_files_recovers_to_nothing(tmp_path: Path) -> None:
    found = recovered(tmp_path, "jobs")
    assert found.readers == {}
    assert isinstance(found.segments, StreamSegments)
    assert found.segments.last_id == 0
