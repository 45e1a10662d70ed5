"""Records of changes are read as they were written; a peer's bytes are read or refused, and cost what they are long."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staniel.cluster.messages import RECORD_BYTES_MAX
from staniel.cluster.spool_changes import (
    CHANGES_MAX,
    PIECE_BYTES,
    BadRecord,
    Change,
    ChangeKind,
    FileAppended,
    FileCreated,
    FileOverwritten,
    FileRemoved,
    FileRenamed,
    FileTruncated,
    decode_changes,
    encode_changes,
)

NAMES = st.sampled_from(
    ["q", "q.17", "q~~17", "q.17.pack", "q.read.a", ".staniel/intents", ".staniel/undo/3", "ö", "\udcff", "q.new"]
)
PLACES = st.integers(0, 1 << 62)
DATA = st.binary(min_size=1, max_size=50)
CHANGES = st.one_of(
    st.builds(FileCreated, NAMES),
    st.builds(FileAppended, NAMES, PLACES, DATA),
    st.builds(FileOverwritten, NAMES, PLACES, DATA),
    st.builds(FileTruncated, NAMES, PLACES),
    st.tuples(NAMES, NAMES).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: FileRenamed(*pair)),
    st.builds(FileRemoved, NAMES),
)


def named(kind: int, name: bytes) -> bytes:
    return b"\x01" + struct.pack(">BH", kind, len(name)) + name


@given(st.lists(CHANGES, min_size=1, max_size=20))
def test_changes_are_decoded_as_they_were_encoded(changes: list[Change]) -> None:
    (record,) = encode_changes(changes)
    assert decode_changes(record) == changes


def test_golden_bytes_of_each_kind() -> None:
    changes: list[Change] = [
        FileCreated("q"),
        FileAppended("q", 258, b"ab"),
        FileOverwritten("q", 1, b"c"),
        FileTruncated("q", 3),
        FileRenamed("q", "q.7"),
        FileRemoved("q.7"),
    ]
    (record,) = encode_changes(changes)
    assert record.hex(" ") == (
        "01 01 00 01 71 02 00 01 71 00 00 00 00 00 00 01 02 00 00 00 02 61 62"
        " 03 00 01 71 00 00 00 00 00 00 00 01 00 00 00 01 63 04 00 01 71 00 00 00 00 00 00 00 03"
        " 05 00 01 71 00 03 71 2e 37 06 00 03 71 2e 37"
    )


def test_large_data_and_many_changes_are_several_records() -> None:
    data = bytes(range(256)) * (9 * PIECE_BYTES // 512 + 1)
    records = list(encode_changes([FileAppended("q", 7, data), FileTruncated("q", 7)]))
    assert len(records) > 2 and all(len(record) <= RECORD_BYTES_MAX for record in records)
    changes = [change for record in records for change in decode_changes(record)]
    pieces = [change for change in changes if isinstance(change, FileAppended)]
    assert b"".join(piece.data for piece in pieces) == data
    assert [piece.at for piece in pieces] == [7 + at for at in range(0, len(data), PIECE_BYTES)]
    assert changes[-1] == FileTruncated("q", 7)
    many = list(encode_changes([FileRemoved("q")] * (CHANGES_MAX + 1)))
    assert [len(decode_changes(record)) for record in many] == [CHANGES_MAX, 1]
    assert list(encode_changes([])) == []


REFUSED = {
    "empty": b"",
    "only a version": b"\x01",
    "a later version": b"\x02" + named(ChangeKind.CREATED, b"q")[1:],
    "an unknown kind": named(7, b"q"),
    "kind zero": named(0, b"q"),
    "a name cut off": named(ChangeKind.CREATED, b"qq")[:-1],
    "no name": named(ChangeKind.CREATED, b""),
    "a name outside": named(ChangeKind.REMOVED, b"../q"),
    "an absolute name": named(ChangeKind.REMOVED, b"/etc/passwd"),
    "a name within a server's own": named(ChangeKind.REMOVED, b".staniel/redo.0"),
    "the place of the follower": named(ChangeKind.REMOVED, b".staniel/follower"),
    "a renaming to a name outside": named(ChangeKind.RENAMED, b"q") + b"\x00\x07../../q",
    "a renaming to itself": named(ChangeKind.RENAMED, b"q") + b"\x00\x01q",
    "a renaming without an end": named(ChangeKind.RENAMED, b"q") + b"\x00",
    "no data": named(ChangeKind.APPENDED, b"q") + struct.pack(">QI", 0, 0),
    "data cut off": named(ChangeKind.APPENDED, b"q") + struct.pack(">QI", 0, 5) + b"four",
    "a length without data": named(ChangeKind.OVERWRITTEN, b"q") + struct.pack(">QI", 0, 0xFFFFFFFF),
    "a place beyond all files": named(ChangeKind.APPENDED, b"q") + struct.pack(">QI", (1 << 62) + 1, 1) + b"x",
    "a size beyond all files": named(ChangeKind.TRUNCATED, b"q") + struct.pack(">Q", 1 << 63),
    "a byte behind the last change": named(ChangeKind.CREATED, b"q") + b"\x01",
    "a record that is too long": b"\x01" + bytes(RECORD_BYTES_MAX),
    "too many changes": b"\x01" + (CHANGES_MAX + 1) * named(ChangeKind.REMOVED, b"q")[1:],
}


@pytest.mark.parametrize("what", REFUSED)
def test_bytes_that_are_no_record_are_refused(what: str) -> None:
    with pytest.raises(BadRecord):
        decode_changes(REFUSED[what])


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for record in (data, b"\x01" + data):
        try:
            changes = decode_changes(record)
        except BadRecord:
            continue
        assert b"".join(encode_changes(changes)) == record


@given(st.lists(CHANGES, min_size=1, max_size=5), st.data())
def test_a_record_with_a_byte_changed_or_lost_is_read_or_refused(changes: list[Change], data: st.DataObject) -> None:
    (record,) = encode_changes(changes)
    at = data.draw(st.integers(0, len(record) - 1))
    changed = bytearray(record)
    changed[at] ^= data.draw(st.integers(1, 255))
    for hostile in (bytes(changed), record[:at]):
        try:
            decode_changes(hostile)
        except BadRecord:
            pass


def test_a_claimed_length_allocates_nothing() -> None:
    hostile = [REFUSED["a length without data"], REFUSED["data cut off"], named(ChangeKind.CREATED, b"q")[:-1]]
    tracemalloc.start()
    try:
        for record in hostile:
            with pytest.raises(BadRecord):
                decode_changes(record)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
