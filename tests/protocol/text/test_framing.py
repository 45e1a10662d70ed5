"""Where the text protocol's requests begin and end, and what a parser keeps meanwhile."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staniel.protocol.limits import Limits
from staniel.protocol.memcache.requests import Delete, Flush, Status, Version
from staniel.protocol.requests import Invalid
from staniel.protocol.text.parser import ITEM_OVERHEAD_BYTES, TextParser, TextState
from staniel.protocol.text.requests import TextConfirm, TextGet, TextPut, TextRequest
from tests.support.feeding import SMALL, all_of, cut

PUT_BYTES_MAX = 3 * (SMALL.item_bytes_max + ITEM_OVERHEAD_BYTES)


def small_parser() -> TextParser:
    return TextParser(SMALL, PUT_BYTES_MAX)


def read(data: bytes) -> tuple[list[TextRequest], TextState]:
    """The requests in `data` and the state they leave, fed whole and byte by byte, with small limits."""
    whole, dripped = small_parser(), small_parser()
    requests = whole.feed(data)
    assert [request for byte in data for request in dripped.feed(bytes([byte]))] == requests
    assert dripped.state is whole.state
    assert dripped.pending_bytes == whole.pending_bytes
    return requests, whole.state


def refused(why: bytes, hang_up: bool = False) -> Invalid:
    return Invalid(b"-" + why + b"\n", hang_up, why.decode("latin-1"))


TOO_LARGE = refused(b"Put too large; limit=16 an item, %d in all" % PUT_BYTES_MAX)


def test_requests_of_one_feed_come_in_order() -> None:
    data = b"put q:\none\ntwo\n\nget q\r\nconfirm q 1\nflush q\ndelete q\nstatus\nversion\n"
    expected = [
        TextPut("q", (b"one", b"two")),
        *(TextGet("q"), TextConfirm("q", 1), Flush("q"), Delete("q"), Status(), Version()),
    ]
    assert read(data) == (expected, TextState.LINE)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (b"", ()),
        (b"a\n", (b"a",)),
        (b"a\r\nb\r\n", (b"a", b"b")),
        (b"a\r\r\n", (b"a\r",)),
        (b"\r\r\n", (b"\r",)),
        (b" \n", (b" ",)),
        (b"get q\nput q:\n", (b"get q", b"put q:")),
        (bytes(range(128, 144)) + b"\n", (bytes(range(128, 144)),)),
        (b"\0\n\x80\xff\n", (b"\0", b"\x80\xff")),
        (b"x" * 16 + b"\r\n", (b"x" * 16,)),
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_items_are_lines_up_to_an_empty_one_and_their_bytes_are_unchanged(
    items: bytes, expected: tuple[bytes, ...], end: bytes
) -> None:
    assert read(b"put q:\n" + items + end) == ([TextPut("q", expected)], TextState.LINE)


def test_a_put_without_a_colon_is_followed_by_no_items() -> None:
    assert read(b"put q\nversion\n") == ([TextPut("q", ()), Version()], TextState.LINE)


def test_any_command_may_announce_items_and_only_a_put_wants_them() -> None:
    data = b"get q:\nversion\n\nfoo:\nversion\r\n\r\nversion\n"
    assert read(data) == ([TextGet("q"), refused(b"Unknown command: foo"), Version()], TextState.LINE)


def test_a_put_in_error_is_answered_after_its_items() -> None:
    parser = small_parser()
    assert parser.feed(b"put q soon:\nversion\n\r") == []
    assert parser.state is TextState.SKIP
    assert parser.feed(b"\nput:\nversion\n") == [refused(b"Error parsing expiration time.")]
    assert parser.feed(b"\nversion\n") == [refused(b"Queue name required."), Version()]


@pytest.mark.parametrize(
    ("data", "state", "pending_bytes"),
    [
        (b"", TextState.LINE, 0),
        (b"get q", TextState.LINE, 5),
        (b"put q:\n", TextState.ITEMS, 0),
        (b"put q:\nhel", TextState.ITEMS, 3),
        (b"put q:\nhello\nwo", TextState.ITEMS, 5 + ITEM_OVERHEAD_BYTES + 2),
        (b"put q x:\nhello\n", TextState.SKIP, 0),
        (b"put q x:\nhello", TextState.SKIP, 2),
    ],
)
def test_what_is_kept_of_an_unfinished_request(data: bytes, state: TextState, pending_bytes: int) -> None:
    parser = small_parser()
    assert parser.feed(data) == []
    assert parser.state is state
    assert parser.pending_bytes == pending_bytes


def test_a_line_of_the_greatest_length_is_read_and_one_byte_more_closes() -> None:
    line = b"get " + b"q" * (SMALL.line_bytes_max - 4)
    assert read(line + b"\n")[0] == [TextGet(line[4:].decode())]
    for data in (line + b"q\n", line + b"q", line + b"q" * 1000, line + b":\n"):
        assert read(data) == ([refused(b"Line too long; limit=64", hang_up=True)], TextState.CLOSED)


def test_an_item_of_the_greatest_length_is_stored_and_one_byte_more_refuses_the_put() -> None:
    item = b"x" * SMALL.item_bytes_max
    assert read(b"put q:\n" + item + b"\n\n")[0] == [TextPut("q", (item,))]
    for longer in (item + b"x", item + b"x\r", item + b"\r\r", item * 100):
        expected = [TOO_LARGE, Version()]
        assert read(b"put q:\na\n" + longer + b"\nb\n\nversion\n") == (expected, TextState.LINE)


def test_a_put_of_the_greatest_size_is_stored_and_one_byte_more_refuses_it() -> None:
    full = (b"x" * SMALL.item_bytes_max + b"\n") * 3
    assert read(b"put q:\n" + full + b"\n")[0] == [TextPut("q", (b"x" * SMALL.item_bytes_max,) * 3)]
    for more in (b"y\n", b"\r\r\n", b"yyyyyyyyyyyyyy\n"):
        expected = [TOO_LARGE, Version()]
        assert read(b"put q:\n" + full + more + b"\nversion\n") == (expected, TextState.LINE)


def test_a_refused_put_keeps_nothing_of_what_follows() -> None:
    parser = small_parser()
    parser.feed(b"put q:\nitem\n" + b"x" * 10)
    for _ in range(100):
        parser.feed(b"x" * 10_000)
        assert parser.state is TextState.SKIP
        assert parser.pending_bytes <= 2
    assert parser.feed(b"\n\nversion\n") == [TOO_LARGE, Version()]


def test_an_item_is_refused_before_its_end_has_come() -> None:
    assert read(b"put q:\n" + b"x" * 17) == ([], TextState.ITEMS)
    assert read(b"put q:\n" + b"x" * 18) == ([], TextState.SKIP)


def test_after_a_hang_up_everything_is_ignored_and_nothing_kept() -> None:
    parser = small_parser()
    assert len(parser.feed(b"monitor q x\nget q\nput q:\nhel")) == 1
    assert parser.feed(b"get q\nput q:\nhel") == []
    assert parser.state is TextState.CLOSED
    assert parser.pending_bytes == 0


def test_more_than_1024_items_are_one_put() -> None:
    items = tuple(b"%d" % n for n in range(5000))
    assert all_of(TextParser(Limits()), b"put q:\n" + b"\n".join(items) + b"\n\n") == [TextPut("q", items)]


def test_ten_megabytes_in_small_pieces_arrive_whole() -> None:
    item = bytes(range(32, 256)) * 45_000
    data = b"put q:\n" + item + b"\n\n"
    parser = TextParser(Limits())
    requests = [request for at in range(0, len(data), 65_536) for request in parser.feed(data[at : at + 65_536])]
    assert requests == [TextPut("q", (item,))]


def test_a_put_that_never_ends_costs_no_more_than_is_counted() -> None:
    parser = TextParser(Limits())
    parser.feed(b"put q:\n")
    tracemalloc.start()
    try:
        for n in range(20_000):
            parser.feed(b"%05d\n" % n)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert parser.pending_bytes == 20_000 * (5 + ITEM_OVERHEAD_BYTES)
    assert kept < parser.pending_bytes


FRAGMENTS = st.sampled_from(
    (
        *(
            b"\r\n",
            b"\n",
            b"\n\n",
            b"\r",
            b" ",
            b":",
            b":\n",
            b"put q",
            b"put q 5",
            b"PUT q x",
            b"get q",
            b"monitor q ",
        ),
        *(b"0", b"-1", b"abc", b"x" * 16, b"x" * 17, b"x" * 65, b"\x80", b"version\n", b"confirm q ", b"status"),
        *(b"put q:\nabc\n\n", b"put q:\n", b"put:\n", b"foo:\n", b"get q\n", (b"x" * 16 + b"\n") * 3, b"quit\n"),
    )
)
STREAMS = st.one_of(st.binary(max_size=300), st.lists(FRAGMENTS, max_size=25).map(b"".join))


@settings(max_examples=600, deadline=None)
@given(data=STREAMS, sizes=st.lists(st.integers(0, 20), max_size=40))
def test_any_bytes_cut_anywhere_give_the_same_requests_within_bounds(data: bytes, sizes: list[int]) -> None:
    whole = small_parser()
    expected = whole.feed(data)
    parser = small_parser()
    requests: list[TextRequest] = []
    for piece in cut(data, sizes):
        requests += parser.feed(piece)
        assert parser.pending_bytes <= PUT_BYTES_MAX + SMALL.line_bytes_max
    assert requests == expected
    assert parser.state is whole.state
    assert parser.pending_bytes == whole.pending_bytes
    hang_ups = [request for request in requests if isinstance(request, Invalid) and request.hang_up]
    assert hang_ups == (requests[-1:] if parser.state is TextState.CLOSED else [])


ITEMS = st.binary(min_size=1, max_size=40).filter(lambda item: b"\n" not in item and not item.endswith(b"\r"))


@settings(max_examples=200, deadline=None)
@given(puts=st.lists(st.lists(ITEMS, max_size=5), max_size=5), sizes=st.lists(st.integers(1, 30), max_size=40))
def test_every_item_comes_out_as_it_went_in(puts: list[list[bytes]], sizes: list[int]) -> None:
    stream = b"".join(b"put q:\n" + b"".join(item + b"\n" for item in items) + b"\n" for items in puts)
    parser = TextParser(Limits())
    requests = [request for piece in cut(stream, sizes) for request in parser.feed(piece)]
    assert requests == [TextPut("q", tuple(items)) for items in puts]
