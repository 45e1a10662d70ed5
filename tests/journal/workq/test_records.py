"""Records of the command log: the original's, byte for byte, and what must not be taken for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staniel.journal.errors import CorruptRecord, IncompleteRecord
from staniel.journal.workq import encoder as cmdlog
from staniel.journal.workq.files import holes, segment_name, segment_numbers
from staniel.journal.workq.records import (
    find_frame,
    kind_of,
    read_added,
    read_fields,
    read_frame,
    read_result,
    read_signed,
    read_time,
    read_unsigned,
)
from staniel.queues.jobs.job import Job, Terms
from staniel.queues.jobs.queue import JobQueue

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "conformance" / "workq" / "vectors.json").read_text("utf-8")
)
ADDS = [vector for vector in VECTORS if vector["command"] in ("add", "schedule")]
OTHERS = [vector for vector in VECTORS if vector not in ADDS]


def ns(moment: dict[str, int]) -> int:
    return moment["unix"] * 10**9 + moment["nanos"]


def raw(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["id"].replace("-", ""))


def job_of(vector: dict[str, Any]) -> Job:
    terms = Terms(JobQueue(vector["name"].encode()), vector["ttr"], vector["ttl"], vector["priority"],
                  vector["max_attempts"], vector["max_fails"])  # fmt: skip
    time_ns = ns(vector["time"]) if vector["command"] == "schedule" else 0
    return Job(raw(vector), terms, bytes.fromhex(vector["payload_hex"]), ns(vector["created"]), time_ns)


@pytest.mark.parametrize("vector", ADDS, ids=lambda vector: f"{vector['from']}-{vector['id'][:8]}")
def test_an_addition_of_the_original_is_read_and_written_byte_for_byte(vector: dict[str, Any]) -> None:
    record, job = bytes.fromhex(vector["record_hex"]), job_of(vector)
    start, end = read_frame(record, 0)
    assert end == len(record) and read_time(record, 0) == ns(vector["record_time"])
    add = read_added(record, start, end - 4)
    assert (add.id, add.payload, add.created_ns, add.time_ns) == (job.id, job.payload, job.created_ns, job.time_ns)
    fields = read_fields(add.coded)
    assert (fields.name, fields.ttr_ms, fields.ttl_ms) == (job.terms.queue.name, vector["ttr"], vector["ttl"])
    assert (fields.priority, fields.max_attempts) == (vector["priority"], vector["max_attempts"])
    mine = cmdlog.with_crc(cmdlog.encode_addition(job, cmdlog.encode_time(job.created_ns)))
    # The original reads the clock twice, we once: the record's own time is the only difference.
    assert mine[15:-4] == record[15:-4] and read_frame(mine, 0)[1] == len(mine)


@pytest.mark.parametrize("vector", OTHERS, ids=lambda vector: f"{vector['command']}-{vector['from']}")
def test_every_other_record_of_the_original_is_written_byte_for_byte(vector: dict[str, Any]) -> None:
    record, time = bytes.fromhex(vector["record_hex"]), cmdlog.encode_time(ns(vector["record_time"]))
    kind = cmdlog.COMMANDS.index(vector["command"])
    start, end = read_frame(record, 0)
    assert kind_of(record, start, end - 4) == kind == vector["type"]
    if "result_hex" in vector:
        result = bytes.fromhex(vector["result_hex"])
        assert read_result(record, start, end - 4) == result
        assert cmdlog.encode_finished(time, kind, raw(vector), result) == record
    else:
        assert cmdlog.encode_bare(time, kind, raw(vector)) == record


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_unsigned_numbers(number: int) -> None:
    encoded = cmdlog.encode_unsigned(number)
    assert read_unsigned(encoded + b"\xff", 0) == (number, len(encoded))
    assert len(encoded) == max(1, -(-number.bit_length() // 7))


@settings(deadline=None)
@given(st.integers(-(2**31), 2**31 - 1))
def test_signed_numbers(number: int) -> None:
    encoded = cmdlog.encode_signed(number)
    assert read_signed(encoded, 0) == (number, len(encoded))


def test_a_number_may_be_longer_than_needed_but_not_than_64_bits() -> None:
    assert read_unsigned(b"\x81\x80\x00", 0) == (1, 3)
    with pytest.raises(CorruptRecord):
        read_unsigned(b"\xff" * 9 + b"\x7f", 0)
    with pytest.raises(IncompleteRecord):
        read_unsigned(b"\x80\x80", 0)


@settings(deadline=None)
@given(st.integers(-62_135_596_800 * 10**9, 253_402_300_799 * 10**9))
def test_times(at_ns: int) -> None:
    assert read_time(cmdlog.encode_time(at_ns), 0) == (at_ns if at_ns != -62_135_596_800 * 10**9 else 0)


@pytest.mark.parametrize("zone", [b"\xff\xff", b"\x00\x00", b"\x00\x3c"])
def test_the_zone_of_a_time_does_not_matter(zone: bytes) -> None:
    assert read_time(cmdlog.encode_time(10**18 + 5)[:13] + zone, 0) == 10**18 + 5


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_damaged_or_too_short(data: bytes) -> None:
    try:
        read_frame(b"\x01" + data, 0)
    except (CorruptRecord, IncompleteRecord):
        pass
    assert 0 <= find_frame(data, 0, True) <= len(data)


@settings(deadline=None)
@given(st.binary(max_size=120), st.integers(0, 3))
def test_a_record_is_found_behind_anything(garbage: bytes, kind: int) -> None:
    record = cmdlog.encode_bare(cmdlog.encode_time(1_700_000_000 * 10**9), 5 + kind, b"i" * 16)
    data = garbage + record
    at = find_frame(data, 0, True)
    assert at <= len(garbage) and read_frame(data, at)


def test_segments_have_nine_digits_and_other_names_are_nobodys() -> None:
    assert segment_name(1) == "000000001.log"
    names = ["000000003.log", "000000001.log", "1.log", "0000000001.log", "000000002.LOG", "000000004.log.rw", "x"]
    assert segment_numbers([(name, True) for name in names] + [("000000009.log", False)]) == [1, 3]
    assert holes([3, 4, 7, 9]) == [(5, 6), (8, 8)] and holes([]) == []
