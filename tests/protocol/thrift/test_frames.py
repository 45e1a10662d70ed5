"""What each thrift frame asks for, what is answered when it asks for nothing, and what a parser keeps meanwhile."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thriftpy2.thrift import TMessageType

from staniel.protocol.limits import Limits
from staniel.protocol.requests import Invalid
from staniel.protocol.thrift.frames import framed
from staniel.protocol.thrift.parser import ThriftParser, ThriftState
from staniel.protocol.thrift.requests import (
    ThriftAbort,
    ThriftConfirm,
    ThriftCurrentStatus,
    ThriftDelete,
    ThriftFlush,
    ThriftFlushAll,
    ThriftGet,
    ThriftPeek,
    ThriftPut,
    ThriftRequest,
    ThriftSetStatus,
    ThriftStatus,
    ThriftUpgrade,
    ThriftVersion,
)
from staniel.protocol.thrift.service import ELEMENTS_MAX
from tests.support.feeding import cut
from tests.support.thrift_calls import SMALL, SMALL_FRAME, UPGRADE, call, header, hear, message, parse

PLAIN = (7, "", False)
Q = "q"
CALLS: list[tuple[str, dict[str, Any], ThriftRequest]] = [
    ("put", {"queue_name": Q, "items": [b"a", b"\xff\0"]}, ThriftPut(*PLAIN, Q, (b"a", b"\xff\0"), None)),
    ("put", {"queue_name": Q, "items": [], "expiration_msec": 300}, ThriftPut(*PLAIN, Q, (), 300)),
    ("put", {"queue_name": Q, "items": [b""], "expiration_msec": -1}, ThriftPut(*PLAIN, Q, (b"",), -1)),
    ("put", {"queue_name": Q}, ThriftPut(*PLAIN, Q, (), None)),
    ("get", {"queue_name": Q, "max_items": 9}, ThriftGet(*PLAIN, Q, 9, 0, 0)),
    ("get", {"queue_name": Q}, ThriftGet(*PLAIN, Q, 0, 0, 0)),
    (
        "get",
        {"queue_name": "caf\u00e9", "max_items": 2, "timeout_msec": 5, "auto_abort_msec": 6},
        ThriftGet(*PLAIN, "caf\u00e9", 2, 5, 6),
    ),
    ("confirm", {"queue_name": Q, "ids": [3, 1, 3, -(2**63)]}, ThriftConfirm(*PLAIN, Q, (3, 1, -(2**63)))),
    ("confirm", {"queue_name": Q}, ThriftConfirm(*PLAIN, Q, ())),
    ("abort", {"queue_name": Q, "ids": [2**40]}, ThriftAbort(*PLAIN, Q, (2**40,))),
    ("peek", {"queue_name": Q}, ThriftPeek(*PLAIN, Q)),
    ("peek", {"queue_name": ""}, ThriftPeek(*PLAIN, "")),
    ("flush_queue", {"queue_name": Q}, ThriftFlush(*PLAIN, Q)),
    ("flush_all_queues", {}, ThriftFlushAll(*PLAIN)),
    ("delete_queue", {"queue_name": Q}, ThriftDelete(*PLAIN, Q)),
    ("current_status", {}, ThriftCurrentStatus(*PLAIN)),
    ("set_status", {"status": 2}, ThriftSetStatus(*PLAIN, ThriftStatus.READ_ONLY)),
    ("get_version", {}, ThriftVersion(*PLAIN)),
]


@pytest.mark.parametrize(("method", "arguments", "request_"), CALLS)
@pytest.mark.parametrize("strict", [True, False])
def test_a_call_becomes_a_request(
    method: str, arguments: dict[str, Any], request_: ThriftRequest, strict: bool
) -> None:
    assert parse(call(method, strict=strict, **arguments)) == ([request_], ThriftState.PLAIN)


def test_calls_of_one_feed_come_in_order() -> None:
    data = call("get_version", seqid=1) + call("put", seqid=-2, queue_name=Q, items=[b"a"]) + call("get_version")[:-1]
    assert parse(data)[0] == [ThriftVersion(1, "", False), ThriftPut(-2, "", False, Q, (b"a",), None)]


def test_unknown_fields_are_skipped_and_so_is_what_follows_the_arguments() -> None:
    begin = message("peek", queue_name=Q)[:-1]
    nested = b"\x0d\x00\x09\x0b\x0f\x00\x00\x00\x01\x00\x00\x00\x01k\x0c\x00\x00\x00\x01\x04\x00\x01" + bytes(8) + b"\0"
    empty = b"\x0d\x00\x08\x00\x00\x00\x00\x00\x00" + b"\x0f\x00\x07\x00\x00\x00\x00\x00"
    assert parse(framed(begin + nested + empty + b"\0" + b"rest"))[0] == [ThriftPeek(*PLAIN, Q)]


def answer(data: bytes, upgraded: bool = False) -> tuple[str, int, int, str]:
    """Method, sequence number, type and text of the exception that answers the last of `data`."""
    requests, state = parse(data)
    assert state is (ThriftState.UPGRADED if upgraded else ThriftState.PLAIN)
    invalid = requests[-1]
    assert isinstance(invalid, Invalid)
    assert not invalid.hang_up
    method, seqid, exception = hear(invalid.reply, upgraded)
    return method, seqid, exception.type, exception.message


def test_an_unknown_method_is_named_in_the_answer() -> None:
    assert answer(call("nope")) == ("nope", 7, 1, "Invalid method name: 'nope'")


def test_the_upgrade_is_an_unknown_method_once_it_is_done() -> None:
    data = call(UPGRADE) + framed(header(None) + message(UPGRADE))
    assert answer(data, upgraded=True) == (UPGRADE, 7, 1, f"Invalid method name: '{UPGRADE}'")


@pytest.mark.parametrize("kind", [TMessageType.REPLY, TMessageType.EXCEPTION, TMessageType.ONEWAY, 0, 99])
def test_only_calls_are_served(kind: int) -> None:
    assert answer(call("get_version", kind=kind)) == ("get_version", 7, 2, f"Invalid message type: {kind}")


@pytest.mark.parametrize(
    ("method", "arguments", "why"),
    [
        ("peek", {}, "queue_name is missing"),
        ("put", {"items": [b"a"]}, "queue_name is missing"),
        ("flush_queue", {"queue_name": b"\xff"}, "queue_name is not UTF-8"),
        ("put", {"queue_name": Q, "items": [b"", b"x" * 17]}, "item too large, at most 16 bytes"),
        ("set_status", {"status": 0}, "status 0 cannot be set"),
        ("set_status", {"status": 9}, "status 9 cannot be set"),
        ("set_status", {}, "status None cannot be set"),
    ],
)
def test_arguments_that_make_no_sense_are_an_internal_error(method: str, arguments: dict[str, Any], why: str) -> None:
    assert answer(call(method, **arguments)) == (method, 7, 6, f"Internal error processing {method}: {why}")


STRING = b"\x0b\x00\x01"
LIST = b"\x0f\x00\x02"
DEEP = b"\x0c\x00\x09" * 40
MALFORMED = [
    (b"", "cut short"),
    (b"\x0b", "cut short"),
    (STRING + b"\x00\x00\x00\x02q", "cut short"),
    (STRING + b"\x7f\xff\xff\xffq\0", "cut short"),
    (STRING + b"\xff\xff\xff\xffq\0", "a string of -1 bytes"),
    (STRING + b"\x00\x00\x00\x01q", "cut short"),
    (b"\x08\x00\x01\x00\x00\x00\x01\0", "a field of type 8, not 11"),
    (b"\x0b\x00\x02\x00\x00\x00\x05\x01\x7f\xff\xff\xff\0", "a field of type 11, not 15"),
    (LIST + b"\x08\x00\x00\x00\x01\x00\x00\x00\x01\0", "elements of type 8, not 11"),
    (LIST + b"\x0b\x7f\xff\xff\xff\0", "more than 8192 elements"),
    (LIST + b"\x0b\xff\xff\xff\xff\0", "-1 elements"),
    (LIST + b"\x0b\x00\x00\x00\x02\x00\x00\x00\x00\0", "cut short"),
    (b"\x0f\x00\x09\x01\x00\x00\x00\x05\0", "unknown type 1"),
    (b"\x0f\x00\x09\x63\x7f\xff\xff\xff\0", "more than 8192 elements"),
    (b"\x0f\x00\x09\x0a\x00\x00\x00\x02" + bytes(9), "cut short"),
    (b"\x0d\x00\x09\x08\x0b\x00\x00\x00\x02\x00", "cut short"),
    (b"\x12\x00\x01\x00\x00\x00\x00\0", "a field of type 18, not 11"),
    (b"\x11\x00\x09\x00\x00\x00\x00\0", "unknown type 17"),
    (DEEP, "nested deeper than 16"),
    (b"\x0f\x00\x09" + b"\x0f\x00\x00\x00\x01" * 40, "nested deeper than 16"),
    (b"\x0d\x00\x09" + b"\x03\x0d\x00\x00\x00\x01\x00" * 35, "nested deeper than 16"),
]


@pytest.mark.parametrize(("arguments", "why"), MALFORMED)
def test_malformed_arguments_are_a_protocol_error_and_the_next_call_is_served(arguments: bytes, why: str) -> None:
    begin = message("put")[: -len(b"\x08\x00\x03" + bytes(4) + b"\0")]
    assert answer(framed(begin + arguments)) == ("put", 7, 7, f"put: {why}")
    assert parse(framed(begin + arguments) + call("get_version"))[0][1:] == [ThriftVersion(*PLAIN)]


@pytest.mark.parametrize(
    "data",
    [
        framed(b"\0"),
        framed(b"\x80\x02\x00\x01\x00\x00\x00\x04peek\x00\x00\x00\x07\0"),
        framed(b"\x80\x01\x00\x01\x00\x00\x00\xffpeek\x00\x00\x00\x07\0"),
        framed(b"\x80\x01\x00\x01\xff\xff\xff\xffpeek\x00\x00\x00\x07\0"),
        framed(b"\x80\x01\x00\x01\x00\x00\x00\x04pe\xffk\x00\x00\x00\x07\0"),
        framed(b"\x7f\xff\xff\xffpeek\x01\x00\x00\x00\x07\0"),
        framed(message("peek", queue_name=Q)[:14]),
        call("p" * 65),
        call(UPGRADE) + call("get_version"),
        call(UPGRADE) + framed(header(None)),
        call(UPGRADE) + framed(b"\x0b\x00\x06\x00\x00\x00\x01x\0" + message("get_version")),
        call(UPGRADE) + framed(b"\x0c\x00\x06\x0b\x00\x01\x00\x00\x00\x01\xff\0\0" + message("get_version")),
    ],
)
def test_a_message_that_cannot_be_answered_hangs_up_without_a_word(data: bytes) -> None:
    requests, state = parse(data + call("get_version"))
    assert isinstance(requests[-1], Invalid)
    assert requests[-1].reply == b""
    assert requests[-1].hang_up
    assert requests[-1].why
    assert state is ThriftState.CLOSED


@pytest.mark.parametrize("size", [0, -1, -(2**31), SMALL_FRAME + 1, 2**31 - 1, int.from_bytes(b"GET ", "big")])
def test_a_frame_of_an_impossible_length_hangs_up_before_it_arrives(size: int) -> None:
    requests, state = parse(call("get_version") + size.to_bytes(4, "big", signed=True))
    why = f"a frame of {size} bytes, at most 300"
    assert requests == [ThriftVersion(*PLAIN), Invalid(b"", hang_up=True, why=why)]
    assert state is ThriftState.CLOSED


def test_a_frame_of_the_greatest_length_is_read() -> None:
    items = [b"x" * 10] * 16 + [b"x" * 14, b"x" * 15]
    data = call("put", queue_name=Q, items=items)
    assert len(data) == 4 + SMALL_FRAME
    assert parse(data) == ([ThriftPut(*PLAIN, Q, tuple(items), None)], ThriftState.PLAIN)


def test_after_a_hang_up_everything_is_ignored_and_nothing_kept() -> None:
    parser = ThriftParser(SMALL, SMALL_FRAME)
    assert len(parser.feed(framed(b"\0") + call("get_version") + b"\0\0")) == 1
    assert parser.feed(call("get_version") + b"\0\0") == []
    assert parser.state is ThriftState.CLOSED
    assert parser.pending_bytes == 0


def test_after_the_upgrade_every_frame_has_a_header_which_may_name_the_client() -> None:
    named = framed(header("me") + message("peek", queue_name=Q))
    nameless = framed(header(None) + message("peek", queue_name=Q))
    bare = framed(b"\0" + message("get_version"))
    requests, state = parse(call("get_version") + call(UPGRADE, seqid=4) + named + nameless + bare)
    assert requests == [
        ThriftVersion(7, "", False),
        ThriftUpgrade(),
        ThriftPeek(7, "me", True, Q),
        ThriftPeek(7, "", True, Q),
        ThriftVersion(7, "", True),
    ]
    assert state is ThriftState.UPGRADED


@pytest.mark.parametrize("bad", [message("nope"), message("peek"), message("peek")[:-1]])
def test_an_exception_to_an_upgraded_client_has_a_header_too(bad: bytes) -> None:
    assert answer(call(UPGRADE) + framed(header("me") + bad), upgraded=True)[1] == 7


@pytest.mark.parametrize(
    "many",
    [
        b"\x02\x00\x09\x00" * (ELEMENTS_MAX + 1),
        b"\x0f\x00\x09\x0c" + (ELEMENTS_MAX // 2).to_bytes(4, "big") + b"\x02\x00\x01\x00\x00" * (ELEMENTS_MAX // 2),
    ],
)
def test_fields_and_elements_are_counted_together(many: bytes) -> None:
    (invalid,) = ThriftParser(Limits()).feed(framed(message("get_version")[:-1] + many + b"\0"))
    assert isinstance(invalid, Invalid)
    assert invalid.why == f"get_version: more than {ELEMENTS_MAX} elements"


def test_a_promised_length_allocates_nothing() -> None:
    tracemalloc.start()
    try:
        ThriftParser(Limits()).feed((60 << 20).to_bytes(4, "big") + b"abc")
        ThriftParser(Limits()).feed(framed(message("put")[:-8] + b"\x0b\x00\x01\x03\xff\xff\xffq"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_ten_megabytes_in_small_pieces_arrive_whole() -> None:
    items = [bytes(range(256)) * 400] * 100
    data = call("put", queue_name=Q, items=items)
    parser = ThriftParser(Limits())
    requests = [request for at in range(0, len(data), 65_536) for request in parser.feed(data[at : at + 65_536])]
    assert requests == [ThriftPut(*PLAIN, Q, tuple(items), None)]


def test_without_thrift_configured_the_library_is_not_needed() -> None:
    """The requests are for everybody; only the parser, the replies and the service need it."""
    program = "import sys; sys.modules['thriftpy2'] = None; from staniel.protocol.thrift import frames, requests"
    subprocess.run([sys.executable, "-c", program], check=True)


FRAGMENTS = st.sampled_from(
    (
        *(call(method, **arguments) for method, arguments, _ in CALLS),
        *(call(UPGRADE), framed(header("me") + message("peek", queue_name=Q)), framed(b"\0" + message("get_version"))),
        *(call("nope"), call("peek"), framed(message("put")[:-8] + MALFORMED[7][0]), framed(b"\0"), framed(b"")),
        *(message("peek", queue_name=Q), b"\0\0\0\x01", b"\0\0\0", b"\0\0\1\0", b"\x80\x01\x00\x01", header("x")),
    )
)
STREAMS = st.one_of(
    st.binary(max_size=300),
    st.lists(FRAGMENTS, max_size=8).map(b"".join),
    st.binary(max_size=100).map(lambda arguments: framed(message("put")[:-8] + arguments)),
    st.binary(max_size=100).map(lambda rest: call(UPGRADE) + framed(rest + message("get_version"))),
)


@settings(max_examples=600, deadline=None)
@given(data=STREAMS, sizes=st.lists(st.integers(0, 40), max_size=40))
def test_any_bytes_cut_anywhere_give_the_same_requests_within_bounds(data: bytes, sizes: list[int]) -> None:
    whole = ThriftParser(SMALL, SMALL_FRAME)
    expected = whole.feed(data)
    parser = ThriftParser(SMALL, SMALL_FRAME)
    requests: list[ThriftRequest] = []
    for piece in cut(data, sizes):
        requests += parser.feed(piece)
        assert parser.pending_bytes < 4 + SMALL_FRAME
    assert requests == expected
    assert parser.state is whole.state
    assert parser.pending_bytes == whole.pending_bytes
    hang_ups = [request for request in requests if isinstance(request, Invalid) and request.hang_up]
    assert hang_ups == (requests[-1:] if parser.state is ThriftState.CLOSED else [])


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_call_with_any_bytes_overwritten_never_raises(data: st.DataObject) -> None:
    method, arguments, _ = data.draw(st.sampled_from(CALLS))
    upgraded = data.draw(st.booleans())
    frame = bytearray((header("me") if upgraded else b"") + message(method, **arguments))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(
            st.sampled_from((0, 1, 2, 8, 11, 12, 13, 14, 15, 18, 127, 255))
        )
    requests, _ = parse((call(UPGRADE) if upgraded else b"") + framed(bytes(frame)))
    assert len(requests) == 1 + upgraded
