"""workq's parser: whole or byte by byte, sound or not, the same requests come out, and no peer's bytes raise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staniel.protocol.limits import Limits
from staniel.protocol.requests import Invalid
from staniel.protocol.workq.fields import (
    is_job_id,
    read_flags,
    read_id,
    read_time,
    show_id,
    show_time,
    signed,
    unsigned,
)
from staniel.protocol.workq.parser import WorkqParser, WorkqState
from staniel.protocol.workq.requests import AddJob, DeleteJob, FinishJob, LeaseJob, RunJob, ScheduleJob, WorkqRequest

ID = b"6ba7b810-9dad-41d1-80b4-00c04fd430c4"
RAW = bytes.fromhex(ID.decode().replace("-", ""))


def whole(data: bytes) -> list[WorkqRequest]:
    return WorkqParser(Limits()).feed(data)


def in_bytes(data: bytes) -> list[WorkqRequest]:
    parser = WorkqParser(Limits())
    return [request for at in range(len(data)) for request in parser.feed(data[at : at + 1])]


def comparable(requests: list[WorkqRequest]) -> list[str]:
    return [repr(request) for request in requests]


lines = st.sampled_from([
    b"add %b q 1000 2000 3\r\nabc\r\n" % ID, b"add %b q 1000 2000 3 -priority=5\r\nabc\r\n" % ID.upper(),
    b"add %b q 1000 2000 3\r\nabcd\r\n" % ID, b"add nope q 1 1 1\r\nx\r\n", b"add %b q 1 1 x\r\n" % ID,
    b"schedule %b q 1000 2000 2200-01-01T00:00:00Z 1\r\nx\r\n" % ID, b"run %b q 1000 50 0\r\n\r\n" % ID,
    b"lease q 100\r\n", b"lease a b c 100\r\n", b"lease q! 1\r\n", b"delete %b\r\n" % ID, b"delete x\r\n",
    b"complete %b 2\r\nok\r\n" % ID, b"fail %b 0\r\n\r\n" % ID, b"result %b 5\r\n" % ID, b"inspect server\r\n",
    b"inspect jobs q 0 10\r\n", b"quit -=1\r\n", b" lease q 1\r\n", b"\r\n", b"x\n", b"lease\tq 1\r\n",
])  # fmt: skip


@settings(deadline=None)
@given(st.lists(lines, max_size=8))
def test_it_does_not_matter_how_bytes_arrive(parts: list[bytes]) -> None:
    data = b"".join(parts)
    assert comparable(whole(data)) == comparable(in_bytes(data))


@settings(deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=60), lines), max_size=6), st.integers(1, 50))
def test_no_bytes_raise(parts: list[bytes], cut: int) -> None:
    parser, data = WorkqParser(Limits()), b"".join(parts)
    for at in range(0, len(data), cut):
        parser.feed(data[at : at + cut])
        assert parser.pending_bytes <= len(data)


def test_adds_that_are_alike_share_their_terms() -> None:
    line = b"add %b some-name 60000 600000 1 -priority=3 -max-attempts=2\r\nx\r\n"
    first, second = (whole(line % id)[0] for id in (ID, ID.replace(b"6ba7", b"0000")))
    assert isinstance(first, AddJob) and isinstance(second, AddJob) and first.terms is second.terms
    assert (first.id, first.payload, first.terms.priority, first.terms.max_attempts) == (RAW, b"x", 3, 2)


def test_what_each_line_asks() -> None:
    terms = (b"q", 1000, 2000)
    [add, run, schedule, done, lease, gone] = whole(
        b"add %b q 1000 2000 1\r\nx\r\nrun %b q 1000 50 1\r\ny\r\n"
        b"schedule %b q 1000 2000 1970-01-01T0:00:01.5Z 1\r\nz\r\n"
        b"fail %b 2\r\nno\r\nlease a b 7\r\ndelete %b\r\n" % (ID, ID, ID, ID, ID)
    )
    assert isinstance(add, AddJob) and (add.terms.name, add.terms.ttr_ms, add.terms.ttl_ms) == terms
    assert isinstance(run, RunJob) and (run.terms.ttl_ms, run.wait_ms, run.payload) == (0, 50, b"y")
    assert isinstance(schedule, ScheduleJob) and schedule.time_ns == 1_500_000_000
    assert done == FinishJob(RAW, b"no", False) and lease == LeaseJob((b"a", b"b"), 7) and gone == DeleteJob(RAW)


def test_a_line_may_be_long_but_not_endless() -> None:
    parser = WorkqParser(Limits(), line_bytes_max=100)
    assert parser.feed(b"x" * 60) == [] and parser.feed(b"y" * 39) == []
    [end] = parser.feed(b"z")
    assert end == Invalid(b"", True, "a line without CR LF") and parser.state is WorkqState.CLOSED
    assert parser.feed(b"lease q 1\r\n") == [] and parser.pending_bytes == 0


@pytest.mark.parametrize(("size", "is_read"), [(99, True), (100, True), (101, False)])
def test_the_longest_line_ends_with_its_last_byte(size: int, is_read: bool) -> None:
    line = b"x" * (size - 2) + b"\r\n"
    [whole] = WorkqParser(Limits(), line_bytes_max=100).feed(line)
    assert isinstance(whole, Invalid) and whole.hang_up is not is_read
    dripping = WorkqParser(Limits(), line_bytes_max=100)
    [last] = [request for at in range(size) for request in dripping.feed(line[at : at + 1])]
    assert last == whole


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"-x=1 -x=2", "Invalid command flags"), (b"-x=1 -y=2", "Unknown command"),
        (b"-x= lease", "Invalid command flags"),
        # A TTR has 32 bits: a longer one is no number, which is told before names and flags.
        (b"add %b bad! 4294967295 1 0 -priority=z" % ID, "Invalid Priority"),
        (b"add %b bad! 4294967295 1 0" % ID, "Invalid Name"), (b"add %b bad! 4294967296 x 0" % ID, "Invalid TTR"),
        (b"run %b bad! 4294967296 x 0 -priority=z" % ID, "Invalid TTR"),
        (b"schedule %b bad! 4294967296 1 never 0" % ID, "Invalid TTR"),
    ],
)  # fmt: skip
def test_a_line_with_several_mistakes_is_told_the_first_that_workq_tells(line: bytes, why: str) -> None:
    [request] = whole(line + b"\r\n" + b"\r\n" * line.startswith((b"add", b"run", b"schedule")))
    assert isinstance(request, Invalid) and request.why == why


def test_nothing_is_kept_for_what_is_only_announced() -> None:
    parser = WorkqParser(Limits())
    parser.feed(b"add %b q 1 1 1048576\r\nabc" % ID)
    assert parser.pending_bytes == 3


@pytest.mark.parametrize(
    ("word", "is_one"),
    [(ID, True), (ID.upper(), True), (ID[:-1], False), (ID + b"0", False), (ID.replace(b"-", b""), False),
     (b"{%b}" % ID, False), (b"urn:uuid:" + ID, False), (ID.replace(b"c4", b"cg"), False),
     (b"6ba7b8109-dad-41d1-80b4-00c04fd430c4", False), (ID.replace(b"b8", b"-8"), False)],
)  # fmt: skip
def test_ids(word: bytes, is_one: bool) -> None:
    raw = read_id(word)
    assert (raw is not None) is is_one
    if raw is not None:
        assert show_id(raw) == word.lower() and is_job_id(raw)


@pytest.mark.parametrize("text", ["11d1-80b4", "41d1-c0b4", "41d1-00b4", "01d1-80b4"])
def test_ids_of_other_versions_and_variants_are_no_job_ids(text: str) -> None:
    raw = read_id(ID.replace(b"41d1-80b4", text.encode()))
    assert raw is not None and not is_job_id(raw)


@pytest.mark.parametrize(
    ("word", "seconds"),
    [(b"1970-01-01T00:00:00Z", 0), (b"2000-02-29T23:59:59Z", 951_868_799), (b"0001-01-01T00:00:00Z", -62_135_596_800),
     (b"0000-02-29T00:00:00Z", -62_162_121_600), (b"9999-12-31T23:59:59Z", 253_402_300_799),
     (b"2001-02-29T00:00:00Z", None), (b"2001-01-01T24:00:00Z", None), (b"2001-01-01 00:00:00Z", None),
     (b"2001-01-01T00:00:00", None), (b"2001-1-01T00:00:00Z", None), (b"2001-01-01T00:60:00Z", None)],
)  # fmt: skip
def test_times(word: bytes, seconds: int | None) -> None:
    at_ns = read_time(word)
    assert at_ns == (None if seconds is None else seconds * 10**9)
    if at_ns is not None and not word.startswith(b"0000"):
        assert show_time(at_ns) == word


def test_fractions_count_to_the_ninth_digit() -> None:
    assert read_time(b"1970-01-01T00:00:00.1234567899Z") == 123_456_789
    assert read_time(b"1970-01-01T00:00:00.5Z") == 500_000_000


@pytest.mark.parametrize("word", [b"", b"+", b"-", b"1.5", b"1_0", b" 1", b"0x1", b"\xb2", b"9" * 65])
def test_words_that_are_no_numbers(word: bytes) -> None:
    assert unsigned(word, 10**100) is None and signed(word, -(10**100), 10**100) is None


def test_numbers() -> None:
    zeros = b"0" * 10_000  # Python alone refuses to read so many digits
    assert unsigned(zeros, 0) == 0 and unsigned(zeros + b"7", 7) == 7 and signed(b"-" + zeros + b"7", -7, 0) == -7
    assert unsigned(b"007", 7) == 7 and unsigned(b"8", 7) is None and unsigned(b"+7", 9) is None
    assert signed(b"+7", 0, 9) == 7 and signed(b"-7", -7, 0) == -7 and signed(b"-8", -7, 0) is None


def test_flags() -> None:
    assert read_flags([b"a", b"-x=1", b"-y", b"--z=2=3"]) == ([b"a", b"-y"], {b"x": b"1", b"-z": b"2"})
    for wrong in ([b"-=1"], [b"-x="], [b"-x=1", b"-x=2"], [b"-="]):
        assert read_flags(wrong)[1] is None
