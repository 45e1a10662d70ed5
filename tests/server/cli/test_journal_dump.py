"""`staniel journal dump`: what people read, what programs read, and what it says of a file that is damaged."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.libkestrel.records import (
    READER_MAGIC,
    SEGMENT_MAGIC,
    encode_put,
    encode_read_done,
    encode_read_head,
)
from staniel.journal.workq import encoder as cmdlog
from staniel.queues.changes import Aborted, Added, Confirmed, Opened, Removed
from staniel.queues.config import JournalDialect
from staniel.queues.item import Item
from tests.support.process import run_staniel
from tests.support.records import record_of

ADDED_MS = 1321401903634
ITEMS = (
    encode_put(Item(b"one", ADDED_MS), 1)
    + encode_put(Item(b"\x00\xff two", ADDED_MS, ADDED_MS + 9), 2, 3)
    + b"\x30"
    + encode_put(Item(b"", ADDED_MS), 3)
)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    (tmp_path / "jobs.100").write_bytes(SEGMENT_MAGIC + ITEMS + bytes(100))
    (tmp_path / "jobs.read.a").write_bytes(READER_MAGIC + encode_read_head(1) + encode_read_done([3, 2]))
    encoder = Encoder(JournalDialect.DOCUMENTS)
    changes = [Added(Item(b"first", ADDED_MS)), Opened(1, 1), Aborted(1, 1), Opened(1, 2), Confirmed(1, 2)]
    records = [record_of(encoder, change) for change in [*changes, Added(Item(b"next", ADDED_MS)), Removed(2)]]
    (tmp_path / "old").write_bytes(b"".join(records))
    return tmp_path


def dump(*arguments: str | Path) -> str:
    said = run_staniel("journal", "dump", *map(str, arguments))
    assert (said.returncode, said.stderr) == (0, "")
    return said.stdout


def test_a_segment_reads_as_in_the_library_s_own_dumper(spool: Path) -> None:
    assert dump(spool / "jobs.100") == (
        f"Queue: {spool}/jobs.100\n"
        "00000004  PUT 3      @ 2011-11-16 00:05:03 +0000 id=1\n"
        "00000020  PUT 6      @ 2011-11-16 00:05:03 +0000 id=2 expires=2011-11-16 00:05:03 +0000 errors=3\n"
        "00000047  Unknown command=3\n"
        "00000048  PUT 0      @ 2011-11-16 00:05:03 +0000 id=3\n"
        "Journal size: 4 operations, 93 bytes.\n"
        "Ids 1 - 3.\n"
    )


def test_a_reader_file_shows_head_and_ids(spool: Path) -> None:
    lines = dump(spool / "jobs.read.a").splitlines()
    assert lines[1:3] == ["00000004  HEAD 1", "0000000d  DONE (2, 3)"]


def test_a_kestrel_journal_shows_each_operation_and_the_ids_of_reserves(spool: Path) -> None:
    lines = dump(spool / "old").splitlines()
    assert [line.partition("  ")[2].partition(" @")[0].strip() for line in lines[1:-2]] == [
        *("ADD 5", "RSV 1", "CAN 1", "RSV 2", "ACK 2", "ADD 4", "REM"),
    ]
    assert lines[-1] == "2 items totalling 9 bytes were added."


def test_json_lines_are_for_programs(spool: Path) -> None:
    rows = [json.loads(line) for line in dump(spool / "jobs.100", "--json", "--payload", "hex").splitlines()]
    assert rows[1] == {
        "file": f"{spool}/jobs.100",
        "at": 32,
        "bytes": 39,
        "op": "PUT",
        "id": 2,
        "size": 6,
        "errors": 3,
        "added_ms": ADDED_MS,
        "expires_ms": ADDED_MS + 9,
        "data": "00 ff 20 74 77 6f",
    }


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--op", "put"], 3),
        (["--op", "head", "--op", "done"], 2),
        (["--ids", "2"], 2),
        (["--ids", "2:"], 3),
        (["--ids", ":1"], 2),
        (["--at", "0x20:0x48"], 3),
        (["--queue", "jobs"], 6),
        (["--queue", "jobs", "--op", "ADD"], 0),
    ],
)
def test_records_are_chosen_by_operation_id_place_and_queue(spool: Path, options: list[str], count: int) -> None:
    (spool / "old").unlink()
    assert len(dump(spool, "--json", *options).splitlines()) == count


def test_quiet_prints_totals_alone(spool: Path) -> None:
    assert len(dump(spool / "jobs.100", "--quiet").splitlines()) == 3
    assert json.loads(dump(spool / "jobs.100", "--quiet", "--json")) == {
        "file": f"{spool}/jobs.100",
        "records": 4,
        "bytes": 93,
        "items": 3,
        "item_bytes": 9,
        "first_id": 1,
        "last_id": 3,
    }


def test_a_damaged_file_is_printed_as_far_as_it_goes(spool: Path) -> None:
    path = spool / "jobs.7"
    path.write_bytes(SEGMENT_MAGIC + encode_put(Item(b"one", ADDED_MS), 1) + struct.pack("<Bi", 0x86, -1) + bytes(40))
    said = run_staniel("journal", "dump", str(path), str(spool / "jobs.read.a"))
    assert said.returncode == 1
    assert "id=1" in said.stdout
    assert "HEAD 1" in said.stdout
    assert said.stderr == f"{path}: byte 32, 45 bytes: a data size of -1 bytes\n"


def test_a_command_log_is_printed_too(spool: Path) -> None:
    path = spool / "000000001"
    path.write_bytes(cmdlog.MAGIC[: len(cmdlog.MAGIC)])
    assert dump(path).startswith(f"{path}: ")


def test_a_span_that_is_none_is_refused_in_words(spool: Path) -> None:
    said = run_staniel("journal", "dump", str(spool / "old"), "--ids", "one")
    assert said.returncode == 2
    assert "'one' is not a number, FROM:TO, FROM: or :TO" in said.stderr


def test_a_torn_end_of_the_current_file_is_no_error_and_that_of_an_archived_one_is(spool: Path) -> None:
    whole = (spool / "old").read_bytes()
    for name, code, word in (("old", 0, "torn end, "), ("old.1321401903634", 1, "")):
        (spool / name).write_bytes(whole + whole[:10])
        end = "; the next start cuts it off" if word else ""
        said = run_staniel("journal", "dump", "-q", str(spool / name))
        assert (said.returncode, said.stderr) == (
            code,
            f"{spool / name}: byte {len(whole)}, 10 bytes: {word}the file ends inside a record{end}\n",
        )


def test_a_folder_without_journals_is_one_line_that_names_it(tmp_path: Path) -> None:
    for options, of in (((), ""), (("--queue", "jobs"), "of such a queue ")):
        said = run_staniel("journal", "dump", *options, str(tmp_path))
        assert (said.returncode, said.stderr) == (1, f"Error: no journal file {of}in {tmp_path}\n")
