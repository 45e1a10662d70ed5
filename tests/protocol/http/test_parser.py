"""Requests of HTTP, however their bytes arrive; what is none ends the connection with a reply that says why."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from staniel.protocol.http.parser import BODY_BYTES_MAX, HEAD_BYTES_MAX, HttpParser, HttpState
from staniel.protocol.http.requests import RAW, HttpHead, HttpRequest
from staniel.protocol.limits import Limits
from staniel.protocol.requests import Invalid, More
from tests.support.feeding import all_of, cut, whole

GET = b"GET /api/queues?prefix=a%20b&x= HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nX-A: 2\r\n\r\n"
POST = b'POST /api/queues/q/put HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\n{"data":""}'
CHUNKED = b"POST /p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


def fed(pieces: list[bytes]) -> tuple[list[object], HttpState]:
    parser = HttpParser(Limits())
    found: list[object] = []
    for piece in pieces:
        found += whole(parser.feed(piece))
    return found, parser.state


def test_a_request_has_its_path_query_headers_and_body() -> None:
    first, second, third = all_of(HttpParser(Limits()), GET + POST + CHUNKED)
    assert first == HttpRequest(
        "GET", "/api/queues", {"prefix": "a b", "x": ""}, {"host": "h", "x-a": "1, 2"}, b"", True, "1.1"
    )
    assert (second.method, second.body) == ("POST", b'{"data":""}')
    assert (third.path, third.body) == ("/p", b"abcde")


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [("1.1", "", True), ("1.1", "close", False), ("1.0", "", False), ("1.0", "Keep-Alive", True)],
)
def test_what_follows_a_last_request_is_ignored(version: str, connection: str, kept: bool) -> None:
    header = f"Connection: {connection}\r\n" if connection else ""
    head = f"GET / HTTP/{version}\r\nHost: h\r\n{header}\r\n".encode()
    found, state = fed([head + GET])
    assert [request.keep_alive for request in found if isinstance(request, HttpRequest)] == [kept, True][: 1 + kept]
    assert state is (HttpState.HEAD if kept else HttpState.CLOSED)


def test_a_client_that_waits_before_its_body_is_told_to_go_on() -> None:
    head = b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    parser = HttpParser(Limits())
    (told,) = parser.feed(head)
    assert isinstance(told, HttpHead) and told.waits and not told.request.body and not told.request.keep_alive
    (request,) = parser.feed(b"ok")
    assert isinstance(request, HttpRequest) and request.body == b"ok"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"set q 0 0 1\r\n\r\n", b"400"),
        (b"GET /\x00 HTTP/1.1\r\nHost: h\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"x: y\r\n" * HEAD_BYTES_MAX, b"431"),
        (b"GET /" + b"a" * HEAD_BYTES_MAX + b" HTTP/1.1\r\nHost: h\r\n\r\n", b"431"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1), b"413"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
    ],
)
def test_what_is_no_request_ends_the_connection_with_a_reason(data: bytes, status: bytes) -> None:
    found, state = fed([data])
    (last,) = found
    assert isinstance(last, Invalid) and last.hang_up and last.why
    assert last.reply.startswith(b"HTTP/1.1 " + status) and b'{"error":"' in last.reply
    assert state is HttpState.CLOSED


def test_a_body_in_pieces_ends_where_it_becomes_too_large() -> None:
    head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    parser = HttpParser(Limits())
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    found = whole(parser.feed(head))
    for _ in range(BODY_BYTES_MAX // 0x10000 + 1):
        assert not found
        assert parser.pending_bytes <= BODY_BYTES_MAX + len(piece)
        found = whole(parser.feed(piece))
    assert isinstance(found[-1], Invalid) and b" 413 " in found[-1].reply
    assert parser.pending_bytes == 0


RAW_POST = b"POST /q HTTP/1.1\r\nHost: h\r\nContent-Type: %b\r\nContent-Length: %%d\r\n\r\n" % RAW.encode()


def test_an_item_byte_by_byte_is_as_long_as_an_item_may_be_and_its_head_is_told_first() -> None:
    limit = 3 << 20
    for size, heads in ((BODY_BYTES_MAX, 0), (BODY_BYTES_MAX + 1, 1), (limit, 1)):
        parser = HttpParser(Limits(item_bytes_max=limit))
        found = whole(parser.feed(RAW_POST % size))
        for at in range(0, size, 65_537):
            assert not any(isinstance(each, HttpRequest) for each in found)
            found += whole(parser.feed(bytes(min(65_537, size - at))))
        *first, request = found
        assert [(each.waits, each.request.path) for each in first] == [(False, "/q")] * heads
        assert isinstance(request, HttpRequest) and request.content_type == RAW and request.body == bytes(size)
        assert parser.pending_bytes == 0
    (refused,) = HttpParser(Limits(item_bytes_max=limit)).feed(RAW_POST % (limit + 1))
    assert isinstance(refused, Invalid) and b" 413 " in refused.reply


def test_a_length_that_is_claimed_costs_nothing_before_its_bytes_arrive() -> None:
    tracemalloc.start()
    try:
        parser = HttpParser(Limits(item_bytes_max=1 << 30))
        assert parser.feed(RAW_POST % (1 << 30)) == [] and parser.feed(b"x" * 1000) == []
        assert parser.pending_bytes == 1000 and tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_two_types_are_none_and_an_item_in_chunks_has_the_same_limit() -> None:
    twice = RAW_POST.replace(b"Content-Length", b"Content-Type: %b\r\nContent-Length" % RAW.encode()) % (2 << 20)
    (refused,) = HttpParser(Limits()).feed(twice)
    assert isinstance(refused, Invalid) and b" 413 " in refused.reply
    chunked = RAW_POST.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked")
    pieces = [chunked] + [b"80000\r\n" + bytes(0x80000) + b"\r\n"] * 5
    parser = HttpParser(Limits(item_bytes_max=2 << 20))
    found = [each for piece in pieces for each in whole(parser.feed(piece))]
    assert [type(each) for each in found] == [HttpHead, Invalid] and parser.pending_bytes == 0


def test_a_turn_has_time_for_a_few_requests_or_pieces_of_a_body() -> None:
    in_pieces = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 5000
    for data in (GET * 1000, in_pieces):
        parser = HttpParser(Limits())
        found = parser.feed(data)
        assert len(found) < 10 and isinstance(found[-1], More)
        assert parser.state is HttpState.PAUSED and parser.feed(b"later") == []
        assert 0 < parser.pending_bytes <= len(data) + 5


@given(st.lists(st.sampled_from([GET, POST, CHUNKED]), max_size=4), st.lists(st.integers(0, 40), max_size=30))
def test_how_the_bytes_are_cut_up_makes_no_difference(requests: list[bytes], sizes: list[int]) -> None:
    data = b"".join(requests)
    assert fed(cut(data, sizes)) == fed([data])
    assert len(fed([data])[0]) == len(requests)


@given(st.binary(max_size=300), st.booleans())
@example(b"\r\n\r\n", False)
def test_no_bytes_raise(data: bytes, after_a_head: bool) -> None:
    found, state = fed([POST[:-11] + data if after_a_head else data])
    assert state is not HttpState.PAUSED
    assert all(isinstance(each, HttpRequest | HttpHead | Invalid) for each in found)
