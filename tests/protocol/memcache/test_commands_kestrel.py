"""Kestrel 2.4's dialect, line by line."""

from __future__ import annotations

import pytest

from staniel.protocol.memcache.item_requests import Get, Set
from staniel.protocol.memcache.parser import MemcacheState
from staniel.protocol.memcache.requests import (
    Confirm,
    Delete,
    Dialect,
    DumpStats,
    Flush,
    FlushAll,
    FlushAllExpired,
    FlushExpired,
    Monitor,
    Quit,
    Reload,
    Request,
    Shutdown,
    Stats,
    Status,
    Version,
)
from staniel.protocol.requests import Invalid
from tests.support.feeding import SMALL, read

ACCEPTED: list[tuple[bytes, Request]] = [
    (b"set q 0 0 5\r\nhello\r\n", Set("q", b"hello")),
    (b"sEt q 0 0 5\nhello\r\n", Set("q", b"hello")),
    (b"set q 0 0 3\r\nabcXY", Set("q", b"abc")),
    (b"set q 0 0 0\r\n\r\n", Set("q", b"")),
    (b"set q 7 0 1\r\nx\r\n", Set("q", b"x")),
    (b"set q -7 0 1\r\nx\r\n", Set("q", b"x")),
    (b"set q 0 0 1 noreply\r\nx\r\n", Set("q", b"x")),
    (b"set q 0 999999 1\r\nx\r\n", Set("q", b"x", ttl_ms=999_999_000)),
    (b"set q 0 1000000 1\r\nx\r\n", Set("q", b"x", expires_ms=1_000_000_000)),
    (b"set q 0 2000000000 1\r\nx\r\n", Set("q", b"x", expires_ms=2_000_000_000_000)),
    (b"set q 0 -1 1\r\nx\r\n", Set("q", b"x", ttl_ms=-1000)),
    (b"set a~b 0 0 1\r\nx\r\n", Set("a~b", b"x")),
    (b"get q\r\n", Get(b"q", "q")),
    (b"get q   \r\n", Get(b"q", "q")),
    (b"gets q\r\n", Get(b"q", "q")),
    (b"get q r\r\n", Get(b"q", "q")),
    (b"get q /open\r\n", Get(b"q", "q")),
    (b"get q/OPEN\r\n", Get(b"q/OPEN", "q")),
    (b"get q//open\r\n", Get(b"q//open", "q", open=True)),
    (b"get q\topen\r\n", Get(b"q\topen", "q\topen")),
    (b"get q/t=5/close/open\r\n", Get(b"q/t=5/close/open", "q", wait_ms=5, open=True, close=True)),
    (b"get ../x\r\n", Get(b"../x", "..")),
    (b"monitor q 5\r\n", Monitor(b"q", "q", 5000)),
    (b"monitor q 5 2 extra\r\n", Monitor(b"q", "q", 5000, 2)),
    (b"confirm q 0\r\n", Confirm("q", 0)),
    (b"confirm q -1\r\n", Confirm("q", -1)),
    (b"delete q 0\r\n", Delete("q")),
    (b"delete q/id=7\r\n", Delete("q/id=7")),
    (b"delete q noreply\r\n", Delete("q")),
    (b"flush a.b\r\n", Flush("a.b")),
    (b"flush  q\r\n", Flush("")),
    (b"delete  q\r\n", Delete("")),
    (b"confirm  1\r\n", Confirm("", 1)),
    (b"flush_expired  q\r\n", FlushExpired("")),
    (b"flush_all 10 noreply\r\n", FlushAll()),
    (b"flush_expired q\r\n", FlushExpired("q")),
    (b"flush_all_expired\r\n", FlushAllExpired()),
    (b"stats items\r\n", Stats()),
    (b"dump_stats q\r\n", DumpStats(("q",))),
    (b"status\r\n", Status()),
    (b"status down\r\n", Status("down")),
    (b"reload\r\n", Reload()),
    (b"version\r\n", Version()),
    (b"QUIT\r\n", Quit()),
    (b"shutdown\r\n", Shutdown()),
]

SURVIVED = [
    b"get\r\n",
    b"gets\r\n",
    b"get /\r\n",
    b"get //\r\n",
    b"flush\r\n",
    b"delete\r\n",
    b"confirm\r\n",
    b"confirm q\r\n",
    b"set q xyz 0 3\r\nabc\r\n",
    b"set q 2147483648 0 3\r\nabc\r\n",
]

FATAL = [
    b"\r\n",
    b"   \r\n",
    b" get q\r\n",
    b"bogus\r\n",
    b"dump_config\r\n",
    b"verbosity 1\r\n",
    b"touch q 0\r\n",
    b"incr q 1\r\n",
    b"mn\r\n",
    b"set q 0 0\r\n",
    b"set q 0 0 x\r\n",
    b"set q 0 0 -1\r\n",
    b"set q 0 0 2147483648\r\n",
    b"set q 0 soon 3\r\nabc\r\n",
    b"set q x soon 3\r\nabc\r\n",
    b"set q 0 2147483648 3\r\nabc\r\n",
    b"set  0 0 3\r\nabc\r\n",
    b"add q 0 0 3\r\nabc\r\n",
    b"replace q 0 0 3\r\nabc\r\n",
    b"append q 0 0 3\r\nabc\r\n",
    b"prepend q 0 0 3\r\nabc\r\n",
    b"cas q 0 0 3 1\r\nabc\r\n",
    b"add q 0 0\r\n",
    b"get  q\r\n",
    b"get /open\r\n",
    b"get q/t=abc\r\n",
    b"get q/t=2147483648\r\n",
    b"get q/open/peek\r\n",
    b"get q/close/peek\r\n",
    b"get q/open/abort\r\n",
    b"get q/close/abort\r\n",
    b"get q/peek/abort\r\n",
    b"monitor q\r\n",
    b"monitor q x\r\n",
    b"monitor q 1 x\r\n",
    b"monitor q 2147483648\r\n",
    b"confirm q x\r\n",
    b"flush_expired\r\n",
]


@pytest.mark.parametrize(("data", "request_"), ACCEPTED, ids=lambda value: repr(value)[:50])
def test_a_good_line_becomes_its_request(data: bytes, request_: Request) -> None:
    assert read(Dialect.KESTREL, data) == ([request_], MemcacheState.LINE)


@pytest.mark.parametrize("data", SURVIVED, ids=repr)
def test_a_mistake_that_kestrel_survives_is_a_bare_client_error(data: bytes) -> None:
    requests, state = read(Dialect.KESTREL, data + b"get next\r\n")
    assert isinstance(requests[0], Invalid)
    assert (requests[0].reply, requests[0].hang_up) == (b"CLIENT_ERROR\r\n", False)
    assert requests[1:] == [Get(b"next", "next")]
    assert state is MemcacheState.LINE


@pytest.mark.parametrize("data", FATAL, ids=repr)
def test_a_mistake_that_closes_is_a_bare_client_error_and_nothing_after_it_is_read(data: bytes) -> None:
    requests, state = read(Dialect.KESTREL, data + b"get next\r\n")
    assert len(requests) == 1
    assert isinstance(requests[0], Invalid)
    assert (requests[0].reply, requests[0].hang_up) == (b"CLIENT_ERROR\r\n", True)
    assert state is MemcacheState.CLOSED


def test_a_length_too_short_skips_two_bytes_and_reads_on_in_the_middle_of_the_data() -> None:
    requests, state = read(Dialect.KESTREL, b"set q 0 0 3\r\nabcdef\r\n")
    assert requests[0] == Set("q", b"abc")
    assert isinstance(requests[1], Invalid)
    assert requests[1].why == "unknown command"
    assert state is MemcacheState.CLOSED


def test_a_block_over_the_item_limit_is_not_stored_and_the_connection_goes_on() -> None:
    data = b"set q 0 0 17\r\n" + b"x" * 17 + b"\r\nset q 0 0 16\r\n" + b"y" * 16 + b"\r\n"
    requests, _ = read(Dialect.KESTREL, data, SMALL)
    assert requests == [Invalid(b"NOT_STORED\r\n", why="object too large"), Set("q", b"y" * 16)]
