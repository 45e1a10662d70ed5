"""Numbers, lengths and frames that no honest client sends, in each protocol, to one server: an answer and in step, or
hung up on; never a wait, never memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.server.test_limits import EVERY, ports
from tests.support.job_world import job_id
from tests.support.process import Server, running
from tests.support.thrift_calls import call
from tests.support.wire import Wire

GROWTH_BYTES_MAX = 32 << 20  # text does not say how long an item is before it has come
LARGE = b"x" * 60_000_000  # an item may have 16 MB
NUMBERS = (
    *(b"-1", b"2147483648", b"4294967296", b"9223372036854775808", b"18446744073709551616", b"9" * 400),
    *(b"1e9", b"0x10", b"+3", b"3.0", b" 3", b""),
)
LINES = (
    *(b"get " + b"k" * 3000, b"get " + b"k " * 1400, b"set " + b"k" * 3000 + b" 0 0 1\r\nx", b"x" * 40_000),
    *(b"\0" * 3000, b"\xff" * 3000, b"", b"\r" * 500, b" " * 3000),
)
JOB = job_id(1).encode()


def memcache() -> Iterator[bytes]:
    """In both dialects."""
    for number in NUMBERS:
        for line in (b"set q 0 0 %b", b"ms q %b", b"get q/t=%b", b"get q/n=%b", b"monitor q 0 %b", b"confirm q %b",
                     b"touch q %b", b"move q r %b"):  # fmt: skip
            yield line % number + b"\r\n"
        for line in (b"set q %b 0 3", b"set q 0 %b 3", b"ms q 3 T%b", b"ms q 3 F%b"):
            yield line % number + b"\r\nabc\r\n"
    yield from (line + b"\r\n" for line in LINES)
    yield b"set q 0 0 3\r\nabcdef\r\n"
    yield b"set q 0 0 3\r\nabc\n\n\n"
    yield b"ms q 3\r\nabcdefgh\r\n"
    yield b"set q 0 0 60000000\r\n" + LARGE + b"\r\n"


def text() -> Iterator[bytes]:
    for number in NUMBERS:
        yield b"put q %b:\nx\n\n" % number
        yield from (line % number for line in (b"get q %b\n", b"peek q %b\n", b"monitor q %b\n", b"confirm q %b\n"))
    yield from (line + b"\n" for line in LINES)
    yield b"put q:\n\n"
    yield b"put q:\n" + LARGE + b"\n\n"


def workq() -> Iterator[bytes]:
    for number in NUMBERS:
        for at in range(5):
            words = [JOB, b"q", b"1", b"1", b"1"]
            words[at] = number
            yield b"add " + b" ".join(words) + b"\r\nx\r\n"
            yield b"run " + b" ".join(words) + b"\r\nx\r\n"
        yield b"add %b q 1 1 1 priority=%b\r\nx\r\n" % (JOB, number)
        yield b"schedule %b q 1 1 %b 1\r\nx\r\n" % (JOB, number)
        yield b"complete %b %b\r\nx\r\n" % (JOB, number)
        yield from (b"%b %b\r\n" % (line, number) for line in (b"lease q", b"result " + JOB, b"inspect jobs q 0"))
    yield from (line + b"\r\n" for line in LINES)
    yield b"add %b q 1 1 3\r\nabcdef\r\n" % JOB
    yield b"lease " + b"q " * 5000 + b"1\r\n"


def thrift() -> Iterator[bytes]:
    """A number in the place of each byte of a call, its frame's length included."""
    good = call("put", queue_name="q", items=[b"x"])
    for number in (-1, 0, 2**31 - 1, -(2**31), 17 << 20):
        word = struct.pack("!i", number)
        yield from (good[:at] + word + good[at + 4 :] for at in range(len(good) - 3))


HEAD = b"Host: localhost\r\nContent-Type: application/json\r\n"
PUT = b"POST /api/queues/q/put HTTP/1.1\r\n" + HEAD


def admin() -> Iterator[bytes]:
    for number in (*NUMBERS, b"99999999999", b"3, 4"):
        yield PUT + b"Content-Length: %b\r\n\r\n{}" % number
        yield b"GET /api/clients?offset=%b&limit=%b HTTP/1.1\r\n%b\r\n" % (number, number, HEAD)
    for chunk in (b"-1\r\n", b"ffffffffffffffff\r\n", b"7fffffff\r\n", b"zz\r\n", b"1\r\nab\r\n"):
        yield PUT + b"Transfer-Encoding: chunked\r\n\r\n" + chunk
    yield b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n" + HEAD + b"\r\n"
    yield b"GET / HTTP/1.1\r\n" + HEAD + b"X-A: b\r\n" * 20_000 + b"\r\n"
    yield PUT + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"
    yield PUT + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"


MEMCACHE = (memcache, b"version\r\n", b"VERSION 1.6.0-staniel-")
PROTOCOLS = {
    "memcache": MEMCACHE,
    "kestrel": MEMCACHE,
    "text": (text, b"version\n", b":1.6.0-staniel-"),
    "workq": (workq, b"inspect server\r\n", b"\r\nactive-clients "),
    "thrift": (thrift, call("get_version"), b"get_version"),
    "admin": (admin, b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"\r\n\r\npong\n"),
}


def answered(address: tuple[str, int], data: bytes) -> bytes:
    """All that a client hears that says this and no more. Raises TimeoutError if the server does not end it then."""
    heard = b""
    with Wire(address) as wire, suppress(ConnectionError):
        wire.say(data).end_sending()
        while piece := wire.sock.recv(1 << 16):
            heard += piece
    return heard


def peak_bytes(proc: Path) -> int:
    (line,) = (line for line in (proc / "status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    dialect = "kestrel" if request.node.callspec.params["protocol"] == "kestrel" else "memcached"
    with running(tmp_path, config=f'[memcache]\ndialect = "{dialect}"\n{EVERY}') as started:
        yield started


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_they_are_answered_in_step_or_hung_up_on_and_cost_no_memory(server: Server, protocol: str) -> None:
    hostile, mark, found = PROTOCOLS[protocol]
    address = ("127.0.0.1", ports(server)["memcache" if protocol == "kestrel" else protocol])
    assert found in answered(address, mark)
    proc = Path("/proc") / str(server.pid)
    (proc / "clear_refs").write_text("5")  # the peak is that from now on
    before, in_step = peak_bytes(proc), 0
    for data in hostile():
        heard = answered(address, data + mark)
        assert heard.count(found) <= 1, (data[:100], heard[-200:])
        in_step += found in heard
        assert peak_bytes(proc) - before < GROWTH_BYTES_MAX, data[:100]
    assert in_step, "not all can be hung up on"
    assert found in answered(address, mark)
