"""A browser can be made to post anything to a port of its own machine: no protocol of lines runs what it sends. A
client of TLS on a plain port is told apart, too.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

import pytest

from staniel.protocol.http.detect import HTTP_REFUSED, TLS_REFUSED, is_http
from staniel.protocol.http.parser import HttpParser
from staniel.protocol.limits import Limits
from staniel.protocol.memcache.item_requests import Get, Set
from staniel.protocol.memcache.parser import MemcacheState
from staniel.protocol.memcache.requests import Dialect, Shutdown
from staniel.protocol.parser import Parser
from staniel.protocol.text.parser import TextParser, TextState
from staniel.protocol.text.requests import TextGet, TextPut
from staniel.protocol.thrift.parser import ThriftParser
from staniel.protocol.workq.parser import WorkqParser, WorkqState
from tests.support.feeding import read

MALICIOUS = [
    # memcached's t/malicious-commands.t
    b"GET / HTTP/1.0",
    b"PUT /asdf/asd/fasdfasdf/sadf HTTP/1.1",
    b"DELETE HTTP/1.1",
    b"POST / HTTP/1.1",
    b"HTTP/1.1",
    b"OPTIONS * HTTP/2.0",
    b"set q 0 0 5 HTTP/1.1",
    b"GET /jobs HTTP/1.1 ",
    b"Host: 127.0.0.1:22133",
    b"host:localhost",
    b"HOST: x:",
]
BODY = b"Content-Length: 22\r\n\r\nflush_all\r\nshutdown\r\n"


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("line", MALICIOUS)
def test_memcache_hangs_up_at_the_first_such_line_and_runs_nothing_behind_it(line: bytes, dialect: Dialect) -> None:
    assert read(dialect, line + b"\r\n" + BODY) == ([HTTP_REFUSED], MemcacheState.CLOSED)
    assert read(dialect, line + b"\n" + BODY) == ([HTTP_REFUSED], MemcacheState.CLOSED)


@pytest.mark.parametrize("line", MALICIOUS)
def test_text_hangs_up_too(line: bytes) -> None:
    whole, dripped = TextParser(Limits()), TextParser(Limits())
    data = line + b"\r\n" + BODY
    assert whole.feed(data) == [HTTP_REFUSED] and whole.state is TextState.CLOSED
    assert [request for byte in data for request in dripped.feed(bytes([byte]))] == [HTTP_REFUSED]


@pytest.mark.parametrize("line", MALICIOUS)
def test_workq_hangs_up_too(line: bytes) -> None:
    whole, dripped = WorkqParser(Limits()), WorkqParser(Limits())
    data = line + b"\r\n" + BODY
    assert whole.feed(data) == [HTTP_REFUSED] and whole.state is WorkqState.CLOSED
    assert [request for byte in data for request in dripped.feed(bytes([byte]))] == [HTTP_REFUSED]


def test_what_is_before_it_is_executed_and_a_known_line_does_not_hide_it() -> None:
    requests, state = read(Dialect.MEMCACHED, b"get q\r\nget q\r\nget q HTTP/1.1\r\nshutdown\r\n")
    assert requests == [Get(b"q", "q"), Get(b"q", "q"), HTTP_REFUSED] and state is MemcacheState.CLOSED


def test_an_item_that_looks_like_http_is_an_item() -> None:
    data = b"GET / HTTP/1.1\r\nHost: x\r\n"
    requests, _ = read(Dialect.MEMCACHED, b"set q 0 0 %d\r\n%b\r\nshutdown\r\n" % (len(data), data))
    assert requests == [Set("q", data), Shutdown()]
    assert TextParser(Limits()).feed(b"put q:\nGET / HTTP/1.1\nHost: x\n\n") == [
        TextPut("q", (b"GET / HTTP/1.1", b"Host: x"))
    ]


@pytest.mark.parametrize("line", [b"PUT q:", b"GET q", b"get q/t=5", b"get HTTP", b"host", b"get xHTTP/1.1", b"HTTP/1"])
def test_other_lines_are_no_http(line: bytes) -> None:
    assert is_http(line) == (line == b"HTTP/1")


def test_the_text_protocols_own_words_are_understood() -> None:
    assert TextParser(Limits()).feed(b"PUT q:\na\n\nGET q\n") == [TextPut("q", (b"a",)), TextGet("q")]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("kind", [HttpParser, TextParser, ThriftParser, WorkqParser])
def test_how_tls_begins_is_told_apart(kind: Callable[[Limits], Parser], version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context()
    context.minimum_version = context.maximum_version = version
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()
    whole, dripped = kind(Limits()), kind(Limits())
    assert whole.feed(hello + hello) == [TLS_REFUSED]
    assert [request for byte in hello for request in dripped.feed(bytes([byte]))] == [TLS_REFUSED]


def test_such_bytes_within_an_item_are_part_of_it() -> None:
    assert TextParser(Limits()).feed(b"put q:\n\x16\x03\x01\n\n") == [TextPut("q", (b"\x16\x03\x01",))]
