"""Inputs to begin with: what the conformance cases say and hold, examples, and what a server of ours has written."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from staniel.journal.redo.records import HEAD, decode_head
from staniel.server.backup.manifest import BackedUpFile, FilePart, Manifest, encode
from staniel.sim.profiles import PROFILES
from staniel.sim.world import START_MS, World
from tests.fuzz.readers import IN_SEGMENT, NEXT, OTHER_BOOT
from tests.fuzz.sessions import OTHER, READER, WRITER

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests/conformance"
FILE_BYTES_MAX = 4096


def _cases(name: str) -> Any:
    return json.loads((CASES / f"{name}.json").read_text("utf-8"))


def spoken(name: str, first: bytes) -> Callable[[], Iterator[bytes]]:
    """What the clients of these cases say, behind `first`."""

    def seeds() -> Iterator[bytes]:
        for case in _cases(name):
            sent = [step["send"].encode("latin-1") for step in case["steps"] if isinstance(step.get("send"), str)]
            yield first + b"".join(sent)
            yield first + OTHER.join(sent)

    return seeds


def reads_by_id(first: bytes) -> Callable[[], Iterator[bytes]]:
    """What the clients of Kestrel's cases say, and the ends of open reads by the ids of their items, behind `first`."""

    def seeds() -> Iterator[bytes]:
        ids = [START_MS * 65536 + number for number in range(3)]
        puts = b"".join(b"set q 0 0 1\r\n%d\r\ngets q/open\r\n" % number for number in range(3))
        for number in (ids[1], ids[2], 7):
            for line in (b"delete q/id=%d\r\n", b"touch q/id=%d 0\r\n", b"touch q/id=%d/abort 0\r\n"):
                yield first + puts + line % number + b"get q/close\r\n" + OTHER + line % ids[0]
        yield from spoken("kestrel/protocol_cases", first)()

    return seeds


def files(name: str, *, reader_first: bool) -> Callable[[], Iterator[bytes]]:
    """The journals of these cases."""

    def seeds() -> Iterator[bytes]:
        for case in _cases(name):
            there = sorted(case["files"].items(), key=lambda each: (".read." not in each[0]) == reader_first)
            data = NEXT.join(bytes.fromhex(text) for _, text in there)
            if len(data) < FILE_BYTES_MAX:
                yield data

    return seeds


def logs() -> Iterator[bytes]:
    for fixture in _cases("workq/fixtures").values():
        data = NEXT.join(zlib.decompress(base64.b64decode(text)) for text in fixture["files"].values())
        if len(data) < FILE_BYTES_MAX:
            yield data


def every_format() -> Iterator[bytes]:
    kinds = (files("kestrel/journal_cases", reader_first=False), files("libkestrel/cases", reader_first=True), logs)
    for number, kind in enumerate(kinds):
        for data in kind():
            yield bytes([number]) + data


def thrift(first: bytes) -> Callable[[], Iterator[bytes]]:
    def seeds() -> Iterator[bytes]:
        for name in (b"put", b"get", b"confirm", b"abort", b"peek", b"flush_queue", b"get_version"):
            head = b"\x80\x01\x00\x01" + len(name).to_bytes(4, "big") + name + bytes(4)
            message = head + b"\x0b\x00\x01\x00\x00\x00\x01q\x00"
            yield first + len(message).to_bytes(4, "big") + message

    return seeds


def http(first: bytes) -> Callable[[], Iterator[bytes]]:
    def seeds() -> Iterator[bytes]:
        for request in (
            b"GET /api/queues?prefix=a%20 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            (
                b"POST /p HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"
                b"GET / HTTP/1.0\r\n\r\n"
            ),
            b"POST /p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ):
            yield first + request

    return seeds


LOOKS = ("api/queues", "api/server", "api/clients", "api/audit", "api/undo", "health/ready", "metrics", "stats.json",
         "api/queues/q", "api/queues/q/items", "api/queues/q/open", "api/queues/q/waiters", "api/openapi.json",
         "api/events", "", "admin/ping", "config.json")  # fmt: skip
ACTS = (("put", '{"data": "x"}'), ("take", '{"count": 2}'), ("move", '{"to": "r"}'), ("purge", "{}"), ("pause", "{}"),
        ("resume", "{}"), ("abort", "{}"), ("redrive", "{}"))  # fmt: skip


def operators() -> Iterator[bytes]:
    """Behind a put of the other client."""
    puts = OTHER + b"set q 0 0 4\r\nitem\r\nset r 0 0 2\r\nhi\r\nget q/open\r\n" + OTHER
    head = "Host: staniel\r\nContent-Type: application/json\r\n"
    for path in LOOKS:
        yield puts + f"GET /{path} HTTP/1.1\r\n{head}\r\n".encode()
    yield puts + f"GET /api/queues HTTP/1.0\r\n{head}\r\n".encode()  # a body that ends with the connection
    for act, body in ACTS:
        text = f"POST /api/queues/q/{act} HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n{body}"
        yield puts + text.encode() + f"POST /api/undo/1 HTTP/1.1\r\n{head}\r\n".encode()
    yield puts + f"DELETE /api/queues/q HTTP/1.1\r\n{head}\r\n".encode()
    yield from http(puts)()


def logins() -> Iterator[bytes]:
    """Right, wrong and none, with requests before and behind them, also of queues that others may use."""
    asks = b"get reader\r\nset writer 0 0 1\r\nx\r\nget secret\r\nset writer+x,secret 0 0 1\r\ny\r\ndelete secret\r\n"
    for name, password in (READER, WRITER, ("reader", "battery staple"), ("", ""), ("nobody", "at all")):
        said = f"{name} {password}"
        login = f"set login 0 0 {len(said)}\r\n{said}\r\n".encode()
        yield b"\0" + asks + login + asks
        yield b"\1" + login + asks + OTHER + b"get secret\nput reader:\nx\n\n" + OTHER + asks
        yield b"\2" + login + asks + OTHER + b"add 1 q 1000 1000 1\r\nx\r\n"


def handshakes() -> Iterator[bytes]:
    """In each place, version and size of pieces: requests, and what looks like records of each kind."""
    for first in range(32):
        yield bytes([first]) + b"set q 0 0 2\r\nhi\r\nget q\r\n"
        yield bytes([first]) + b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03\x15\x03\x03\x00\x02\x02\x28\x14\x03\x03\0\1\1"


def histories() -> Iterator[bytes]:
    for number in range(len(PROFILES)):
        yield bytes([number]) + bytes(range(200))


def redo() -> Iterator[bytes]:
    """What a server has written, as it is, and after a power cut that has taken the end of the queue's file."""
    world = World('server.redo_log = "64KB"\n')
    for text in ("first", "second", "third"):
        world.client().puts(text)
        world.do_tasks()
        world.sync()
    journal = world.disk.read("s/q", 0, 1 << 20)
    log = world.disk.read("s/.staniel/redo.0", 0, 1 << 20)
    batches, at = [], 0
    while (head := decode_head(log[at : at + HEAD.size])) is not None:
        batches.append(log[at + HEAD.size : at + HEAD.size + head.records_bytes])
        at += -(-(HEAD.size + head.records_bytes) // 4096) * 4096
    assert batches
    for flags in range(OTHER_BOOT * 2):
        yield NEXT.join((journal, *(bytes([flags]) + batch for batch in batches[-4:])))
    cut = journal[: len(journal) // 2]
    yield NEXT.join((cut, *(bytes([OTHER_BOOT | (n & IN_SEGMENT)]) + each for n, each in enumerate(batches[-4:]))))


def manifests() -> Iterator[bytes]:
    part = FilePart(5, "0" * 64)
    listed = [BackedUpFile("q", [part], (1, 2, 3)), BackedUpFile(".staniel/intents", [part, part])]
    yield encode(
        Manifest(
            format=1, id="20260101T000000Z", made_at_ms=1, took_ms=2, version="0.1.0", origin="h:/s", was_running=True,
            queues=1, items=2, jobs=3, sync="always", other_syncs={"a": "os"}, bytes=15, copied_files=2,
            copied_bytes=15, files=listed,
        )
    )  # fmt: skip


def configurations() -> Iterator[bytes]:
    for path in sorted((ROOT / "examples").glob("*.toml")):
        yield path.read_bytes()
    yield b'[users.a]\nroles = ["read"]\nqueues = ["a*"]\nuids = [1]\n[tls]\ncertificate = "c"\n[text]\ntls_port = 1\n'
    yield b'[queues."a+b"]\nmax_age = "7d"\nmax_size = "1GB"\nsync_journal = "50ms"\n[aliases]\nx = ["a", "b"]\n'


def answers() -> Iterator[bytes]:
    for first in range(8):
        yield bytes([first]) + b"STORED\r\nVALUE q 0 2\r\nhi\r\nEND\r\nDELETED\r\n"
        yield bytes([first]) + b"VALUE a 1 1\r\nx\r\nVALUE b 0 1\r\ny\r\nEND\r\nVERSION 1\r\n"
        yield bytes([first]) + b"STAT a 1\r\nEND\r\nqueue 'q' {\r\n}\r\nEND\r\nCLIENT_ERROR no\r\n"
