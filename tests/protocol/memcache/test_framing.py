"""Where requests begin and end, and what a parser keeps meanwhile."""

from __future__ import annotations

import ctypes
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staniel.protocol.limits import Limits
from staniel.protocol.memcache.item_requests import Get, Set
from staniel.protocol.memcache.parser import (
    KEPT_READ_BYTES_MAX,
    KEPT_REQUESTS_MAX,
    KNOWN_LINE_BYTES_MAX,
    LineCache,
    MemcacheParser,
    MemcacheState,
)
from staniel.protocol.memcache.requests import Dialect, Request, Version
from staniel.protocol.memo import ENTRIES_MAX
from staniel.protocol.requests import Invalid
from tests.support.feeding import SMALL, cut, read

BOTH = pytest.mark.parametrize("dialect", list(Dialect))


@BOTH
def test_requests_of_one_feed_come_in_order(dialect: Dialect) -> None:
    data = b"set q 0 0 1\r\n1\r\nget q\r\nset q 0 0 2\n22\r\nversion\r\n"
    assert read(dialect, data) == ([Set("q", b"1"), Get(b"q", "q"), Set("q", b"22"), Version()], MemcacheState.LINE)


@BOTH
def test_a_block_may_hold_every_byte_and_look_like_requests(dialect: Dialect) -> None:
    for body in (bytes(range(256)), b"get q\r\n" * 3, b"\n", b"\r\n"):
        data = b"set q 0 0 %d\r\n%b\r\n" % (len(body), body)
        assert read(dialect, data) == ([Set("q", body)], MemcacheState.LINE)


@BOTH
@pytest.mark.parametrize(
    ("data", "state", "pending_bytes"),
    [
        (b"", MemcacheState.START, 0),
        (b"get q", MemcacheState.LINE, 5),
        (b"get q\r", MemcacheState.LINE, 6),
        (b"set q 0 0 5\r\n", MemcacheState.BODY, 0),
        (b"set q 0 0 5\r\nhel", MemcacheState.BODY, 3),
        (b"set q 0 0 5\r\nhello", MemcacheState.TRAILER, 5),
        (b"set q 0 0 5\r\nhello\r", MemcacheState.TRAILER, 6),
        (b"add q 0 0 5\r\nhel", MemcacheState.SKIP, 0),
        (b"add q 0 0 5\r\nhello", MemcacheState.TRAILER, 0),
    ],
)
def test_what_is_kept_of_an_unfinished_request(
    dialect: Dialect, data: bytes, state: MemcacheState, pending_bytes: int
) -> None:
    parser = MemcacheParser(dialect, Limits())
    assert parser.feed(data) == []
    assert parser.pending_bytes == pending_bytes
    assert parser.state is state


@BOTH
def test_a_line_of_the_greatest_length_is_read_and_one_byte_more_closes(dialect: Dialect) -> None:
    line = b"get " + b"q" * (SMALL.line_bytes_max - 4)
    assert read(dialect, line + b"\n", SMALL)[0] == [Get(line[4:], line[4:].decode())]
    for data in (line + b"q\n", line + b"q", line + b"q" * 1000):
        requests, state = read(dialect, data, SMALL)
        assert [type(request) for request in requests] == [Invalid]
        assert isinstance(requests[0], Invalid)
        assert requests[0].hang_up
        assert requests[0].why == "line too long, at most 64 bytes"
        assert requests[0].reply.startswith(b"CLIENT_ERROR")
        assert state is MemcacheState.CLOSED


@pytest.mark.parametrize(("dialect", "reply"), [(Dialect.MEMCACHED, b""), (Dialect.KESTREL, b"CLIENT_ERROR\r\n")])
def test_the_binary_protocol_is_hung_up_on_and_to_kestrel_is_an_unknown_command(dialect: Dialect, reply: bytes) -> None:
    requests, state = read(dialect, b"\x80\x0b" + bytes(22) + b"\n")
    assert requests == [Invalid(reply, hang_up=True, why="binary protocol")]
    assert state is MemcacheState.CLOSED


def test_the_binary_magic_later_in_a_connection_is_a_byte_like_any_other() -> None:
    requests, state = read(Dialect.MEMCACHED, b"version\r\n\x80\r\n")
    assert requests == [Version(), Invalid(b"ERROR\r\n", why="unknown command")]
    assert state is MemcacheState.LINE


@BOTH
def test_after_a_hang_up_everything_is_ignored_and_nothing_kept(dialect: Dialect) -> None:
    parser = MemcacheParser(dialect, Limits())
    assert len(parser.feed(b"set q 0 0 x\r\nget q\r\n")) == 1
    assert parser.feed(b"get q\r\nset q 0 0 5\r\nhel") == []
    assert parser.state is MemcacheState.CLOSED
    assert parser.pending_bytes == 0


@BOTH
def test_a_promised_length_allocates_nothing(dialect: Dialect) -> None:
    limits = Limits(item_bytes_max=2**31 - 1)
    tracemalloc.start()
    try:
        MemcacheParser(dialect, limits).feed(b"set q 0 0 2147483647\r\nabc")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@BOTH
def test_a_block_that_drips_in_costs_little_more_than_its_bytes(dialect: Dialect) -> None:
    parser = MemcacheParser(dialect, Limits())
    parser.feed(b"set q 0 0 200000\r\n")
    tracemalloc.start()
    try:
        for n in range(50_000):
            parser.feed(b"%02d" % (n % 100))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert parser.pending_bytes == 100_000
    assert kept < 200_000


@BOTH
def test_a_skipped_block_is_never_kept(dialect: Dialect) -> None:
    parser = MemcacheParser(dialect, SMALL)
    parser.feed(b"set q 0 0 1000000\r\n")
    for _ in range(100):
        parser.feed(b"x" * 10_000)
        assert parser.pending_bytes == 0
    assert len(parser.feed(b"\r\nget q\r\n")) == 2


@BOTH
def test_ten_megabytes_in_small_pieces_arrive_whole(dialect: Dialect) -> None:
    body = bytes(range(256)) * 40_960
    data = b"set q 0 0 %d\r\n%b\r\n" % (len(body), body)
    parser = MemcacheParser(dialect, Limits())
    requests = [request for at in range(0, len(data), 65_536) for request in parser.feed(data[at : at + 65_536])]
    assert requests == [Set("q", body)]


@BOTH
def test_known_lines_are_bounded_in_number_and_length(dialect: Dialect) -> None:
    lines = LineCache(dialect, Limits())
    for n in range(ENTRIES_MAX + 10):
        lines.parse(b"get q%d\n" % n)
        assert len(lines.known) <= ENTRIES_MAX
    lines.known.clear()
    lines.parse(b"get " + b"q" * KNOWN_LINE_BYTES_MAX + b"\n")
    lines.parse(b"get a b\n")
    lines.parse(b"bogus\n")
    assert set(lines.known) == ({b"get a b\n"} if dialect is Dialect.KESTREL else set())


@BOTH
def test_a_line_means_the_same_the_second_time(dialect: Dialect) -> None:
    for line in (b"get q/t=5/open\r\n", b"set q 0 7 2\r\nab\r\n", b"confirm q 2\r\n"):
        parser = MemcacheParser(dialect, Limits())
        assert parser.feed(line) == parser.feed(line)


@BOTH
def test_parsers_of_different_limits_do_not_share_what_they_know(dialect: Dialect) -> None:
    data = b"set q 0 0 20\r\n" + b"x" * 20 + b"\r\n"
    assert isinstance(MemcacheParser(dialect, Limits()).feed(data)[0], Set)
    assert isinstance(MemcacheParser(dialect, SMALL).feed(data)[0], Invalid)


FRAGMENTS = st.sampled_from(
    (
        *(b"\r\n", b"\n", b"\r", b" ", b"/", b"set q 0 0 ", b"add q 0 0 ", b"get q", b"gets a b", b"/open", b"/t="),
        *(b"0", b"3", b"16", b"17", b"-1", b"abc", b"x" * 16, b"x" * 17, b"x" * 65, b"\x80", b"version", b"noreply"),
        *(b"set q 0 0 3\r\nabc\r\n", b"add q 0 0 3\r\nabc\r\n", b"get q\r\n", b"set q 0 0 3\r\n", b"set q 0 0 17\r\n"),
    )
)
STREAMS = st.one_of(st.binary(max_size=300), st.lists(FRAGMENTS, max_size=25).map(b"".join))


@settings(max_examples=600, deadline=None)
@given(dialect=st.sampled_from(Dialect), data=STREAMS, sizes=st.lists(st.integers(0, 20), max_size=40))
def test_any_bytes_cut_anywhere_give_the_same_requests_within_bounds(
    dialect: Dialect, data: bytes, sizes: list[int]
) -> None:
    whole = MemcacheParser(dialect, SMALL)
    expected = whole.feed(data)
    parser = MemcacheParser(dialect, SMALL)
    requests: list[Request] = []
    fed = 0
    for piece in cut(data, sizes):
        requests += parser.feed(piece)
        fed += len(piece)
        assert parser.pending_bytes <= min(fed, SMALL.line_bytes_max + SMALL.item_bytes_max)
    assert requests == expected
    assert parser.state is whole.state
    assert parser.pending_bytes == whole.pending_bytes
    hang_ups = [request for request in requests if isinstance(request, Invalid) and request.hang_up]
    assert hang_ups == (requests[-1:] if parser.state is MemcacheState.CLOSED else [])


@settings(max_examples=200, deadline=None)
@given(
    dialect=st.sampled_from(Dialect),
    bodies=st.lists(st.one_of(st.binary(max_size=40), st.just(b"\r\nget q\r\n")), max_size=8),
    sizes=st.lists(st.integers(1, 30), max_size=40),
)
def test_every_block_comes_out_as_it_went_in(dialect: Dialect, bodies: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(b"set q 0 0 %d\r\n%b\r\n" % (len(body), body) for body in bodies)
    parser = MemcacheParser(dialect, Limits())
    requests = [request for piece in cut(stream, sizes) for request in parser.feed(piece)]
    assert requests == [Set("q", body) for body in bodies]


@BOTH
@pytest.mark.parametrize(
    "data",
    [
        b"set q 0 0 5\r\nworld\r\n",
        b"set q 0 0 5\r\nworld!\r\n",
        b"set q 0 0 5\r\nworld\n\n",
        b"set q 0 0 5\r\nworld",
        b"set q 0 0 5\r\n",
        b"set q 0 0 5\nworld\r\n",
        b"set q 0 0 3\r\nabc\r\n",
        b"set longer 0 0 5\r\nworld\r\n",
        b"set q 0 0 5\r\nworld\r\nget q\r\n",
        b"add q 0 0 5\r\nworld\r\n",
    ],
)
def test_what_was_read_before_changes_nothing_of_what_comes(dialect: Dialect, data: bytes) -> None:
    fresh, used = MemcacheParser(dialect, Limits()), MemcacheParser(dialect, Limits())
    for _ in range(2):
        assert used.feed(b"set q 0 0 5\r\nhello\r\n") == [Set("q", b"hello")]
    fresh.feed(b"version\r\n")
    assert used.feed(data) == fresh.feed(data)
    assert (used.state, used.pending_bytes) == (fresh.state, fresh.pending_bytes)


PIPELINE = b"get q/t=5/open\r\nget other\r\nget q/t=5/open\r\n"
FOLLOWING = (
    b"get q/t=5/open\r\nget ot",
    PIPELINE + b"get ot",
    PIPELINE[:-1],
    PIPELINE[:-2] + b"\n",
    PIPELINE.replace(b"other", b"third"),
    PIPELINE + b"set q 0 0 5\r\nworld\r\n",
    PIPELINE + b"set q 0 0 5\r\nwor",
    PIPELINE + b"set q 0 0 5\r\nworld!\r\n",
    PIPELINE + b"set q 0 0 17\r\n" + b"x" * 17 + b"\r\n",
    PIPELINE + b"bogus\r\n",
    PIPELINE + b"x" * 65,
    PIPELINE * 60,
    b"get other\r\n",
    b"\n",
)


@BOTH
def test_the_same_pipeline_again_is_not_parsed_again(dialect: Dialect) -> None:
    parser = MemcacheParser(dialect, Limits())
    first, second = parser.feed(PIPELINE), parser.feed(PIPELINE)  # only in the second one are all lines known
    third = parser.feed(bytes(bytearray(PIPELINE)))
    assert third is second and third == first and len(third) == 3
    assert (parser.state, parser.pending_bytes) == (MemcacheState.LINE, 0)


@BOTH
def test_a_pipeline_is_kept_across_puts_between(dialect: Dialect) -> None:
    parser = MemcacheParser(dialect, Limits())
    found = []
    for _ in range(3):
        assert parser.feed(b"set q 0 0 5\r\nhello\r\n") == [Set("q", b"hello")]
        found.append(parser.feed(PIPELINE))
    assert found[2] is found[1] and found[2] == found[0]


@BOTH
@pytest.mark.parametrize("data", FOLLOWING)
def test_a_kept_pipeline_changes_nothing_of_what_comes(dialect: Dialect, data: bytes) -> None:
    fresh, used = MemcacheParser(dialect, SMALL), MemcacheParser(dialect, SMALL)
    expected = fresh.feed(PIPELINE)
    for _ in range(3):
        assert used.feed(PIPELINE) == expected
    for _ in range(3):
        assert used.feed(data) == fresh.feed(data)
        assert (used.state, used.pending_bytes) == (fresh.state, fresh.pending_bytes)
        for each in (PIPELINE, b"\r\n", PIPELINE):
            assert used.feed(each) == fresh.feed(each)
            assert (used.state, used.pending_bytes) == (fresh.state, fresh.pending_bytes)


@BOTH
def test_other_limits_forget_the_kept_pipeline(dialect: Dialect) -> None:
    parser = MemcacheParser(dialect, Limits())
    line = b"get q\r\nget " + b"x" * 70 + b"\r\n"
    for _ in range(3):
        found = parser.feed(line)
    parser.limit(SMALL)
    assert parser.feed(line) == MemcacheParser(dialect, SMALL).feed(line) != found


@BOTH
@pytest.mark.parametrize(
    "data",
    [
        (b"get " + b"q" * 40 + b"\r\n") * (KEPT_READ_BYTES_MAX // 46 + 1),
        b"get q\r\n" * (KEPT_REQUESTS_MAX + 1),
        b"get q\r\nbogus\r\nget q\r\n",
        b"get q\r\nget q\r\nget",
        b"get q\r\nset q 0 0 5\r\nwor",
        b"get q\r\nset q 0 0 5\r\nworld\r\n",
    ],
)
def test_what_is_long_or_unknown_or_unfinished_is_not_kept(dialect: Dialect, data: bytes) -> None:
    parser = MemcacheParser(dialect, Limits())
    parser.feed(b"get q\r\n")
    for _ in range(3):
        before = sys.getrefcount(data)
        parser.feed(data)
        assert sys.getrefcount(data) == before
        parser = MemcacheParser(dialect, Limits())
        parser.feed(b"get q\r\n")


@BOTH
def test_a_pipeline_is_not_looked_up_as_one_line(dialect: Dialect) -> None:
    """A look-up computes the hash of the whole read; a bytes object has -1 in its place before that."""
    parser = MemcacheParser(dialect, Limits())
    parser.feed(PIPELINE)
    data = bytes(bytearray(PIPELINE))
    hash_of = ctypes.c_ssize_t.from_address(id(data) + bytes.__basicsize__ - 1 - ctypes.sizeof(ctypes.c_ssize_t))
    assert hash_of.value == -1
    assert len(parser.feed(data)) == 3
    assert hash_of.value == -1
    assert hash(data) == hash_of.value, "this is where CPython keeps it"
