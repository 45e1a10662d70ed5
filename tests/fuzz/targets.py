"""What is fuzzed: each target is a function of bytes that raises if a promise is broken, with seeds for it.

The promises: a parser gives the same requests however its bytes arrive, and keeps no more than its limits; no bytes
make a session raise; a server starts on any file, serves what was sound before the damage, and says the same after
another start. The seeds come from the conformance cases.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from staniel.broker import protocols
from staniel.protocol.http.parser import BODY_BYTES_MAX, HEAD_BYTES_MAX, HttpParser
from staniel.protocol.limits import Limits
from staniel.protocol.memcache.parser import MemcacheParser
from staniel.protocol.memcache.requests import Dialect
from staniel.protocol.requests import More
from staniel.protocol.text.parser import TextParser
from staniel.protocol.thrift.parser import ThriftParser
from staniel.protocol.workq.parser import WorkqParser
from staniel.sim.disk.disk import Disk
from staniel.sim.world import Client, World

CASES = Path(__file__).resolve().parents[1] / "conformance"
SMALL = Limits(line_bytes_max=256, item_bytes_max=128)
PUT_BYTES_MAX = 512
FRAME_BYTES_MAX = 4096
LOG = "s/.staniel/cmdlog"
WORKQ = f'[workq]\nport = 0\ncmdlog_path = "{LOG}"\n'
NOW_MS = 1_700_000_000_000


class Target(NamedTuple):
    """`check` raises; `seeds` are inputs to begin with."""

    check: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


def _parsed_alike(make: Callable[[], Any], data: bytes, kept_bytes_max: int) -> None:
    """The first byte says how the rest is cut."""
    if not data:
        return
    size, data = 1 + data[0] % 16, data[1:]
    whole, pieces = make(), make()
    wanted = _fed(whole, data)
    found = []
    for at in range(0, len(data), size):
        found += _fed(pieces, data[at : at + size])
        assert pieces.pending_bytes <= kept_bytes_max, "keeps more than its limits"
    assert repr(found) == repr(wanted), "other requests when the bytes arrive in pieces"
    assert pieces.pending_bytes == whole.pending_bytes


def _fed(parser: Any, data: bytes) -> list[Any]:
    """All requests, also those of later slices."""
    requests = parser.feed(data)
    while requests and isinstance(requests[-1], More):
        requests = [*requests[:-1], *requests[-1].resume()]
    return list(requests)


def memcache_parser(data: bytes) -> None:
    for dialect in Dialect:
        _parsed_alike(lambda dialect=dialect: MemcacheParser(dialect, SMALL), data, 256 + 128)


def http_parser(data: bytes) -> None:
    """A head may end anywhere in what is kept; a piece of a body more than its limit is not."""
    _parsed_alike(lambda: HttpParser(SMALL), data, HEAD_BYTES_MAX + BODY_BYTES_MAX)


def text_parser(data: bytes) -> None:
    _parsed_alike(lambda: TextParser(SMALL, PUT_BYTES_MAX), data, PUT_BYTES_MAX + 256)


def thrift_parser(data: bytes) -> None:
    _parsed_alike(lambda: ThriftParser(SMALL, FRAME_BYTES_MAX), data, 4 + FRAME_BYTES_MAX)


def workq_parser(data: bytes) -> None:
    _parsed_alike(lambda: WorkqParser(SMALL), data, len(data))


def conversation(data: bytes) -> None:
    """Two clients of one server: the first byte says which protocol, each ESC lets the other one speak."""
    if not data:
        return
    spoken = (
        protocols.memcache(Dialect.MEMCACHED),
        protocols.memcache(Dialect.KESTREL),
        protocols.text(Dialect.MEMCACHED),
        protocols.workq(),
    )
    world = World(WORKQ, disk_with({}))
    clients = [Client(world, spoken[data[0] % 4]), Client(world, spoken[data[0] // 4 % 4])]
    world.clients += clients
    for number, piece in enumerate(data[1:].split(b"\x1b")):
        client = clients[number % 2]
        if not client.is_cut_off:
            client.sends(piece)
        world.turn(7)
        world.sync()
    for client in clients:
        client.hangs_up()
    world.sync()
    held = {queue.name: world.items(queue.name) for queue in world.broker.queues}
    world.broker.shutdown(world.now_ms)
    again = World(WORKQ, world.disk.kill(), world.now_ms)
    assert {queue.name: again.items(queue.name) for queue in again.broker.queues} == held, "a restart changes queues"


def disk_with(files: dict[str, bytes]) -> Disk:
    """A spool of these files; those named `.log` are the command log's."""
    disk = Disk()
    disk.make_folder(LOG)
    for name, data in files.items():
        file = disk.append(f"{LOG}/{name}" if name.endswith(".log") else f"s/{name}")
        if data:
            file.write(data)
        file.sync()
        file.close()
    disk.sync_all("")
    return disk


def _starts_alike(files: dict[str, bytes]) -> None:
    first = World(WORKQ, disk_with(files), NOW_MS)
    told = _content(first)
    again = World(WORKQ, first.disk.kill(), NOW_MS)
    assert _content(again) == told, "the second start finds something else"


def _content(world: World) -> dict[str, list[bytes]]:
    broker = world.broker
    found = {queue.name: world.items(queue.name) for queue in broker.queues}
    return found | {"jobs": sorted(b"%b %b" % (id, job.payload) for id, job in broker.workq.jobs.by_id.items())}


def kestrel_journal(data: bytes) -> None:
    """Up to three files, the last of them the current one."""
    *archives, current = data.split(b"\x7fNEXT")[:3]
    _starts_alike({f"q.{number}": archive for number, archive in enumerate(archives)} | {"q": current})


def libkestrel_journal(data: bytes) -> None:
    """A reader file, and up to two segments."""
    reader, *segments = data.split(b"\x7fNEXT")[:3]
    _starts_alike({f"q.{number}": segment for number, segment in enumerate(segments, 100)} | {"q.read.": reader})


def command_log(data: bytes) -> None:
    """Up to three segments."""
    segments = data.split(b"\x7fNEXT")[:3]
    _starts_alike({f"{number:09}.log": segment for number, segment in enumerate(segments, 1)})


def _cases(name: str) -> Any:
    return json.loads((CASES / f"{name}.json").read_text("utf-8"))


def _spoken(name: str, first: bytes) -> Callable[[], Iterator[bytes]]:
    def seeds() -> Iterator[bytes]:
        for case in _cases(name):
            sent = [step["send"].encode("latin-1") for step in case["steps"] if isinstance(step.get("send"), str)]
            yield first + b"".join(sent)
            yield first + b"\x1b".join(sent)

    return seeds


def _files(name: str, *, reader_first: bool) -> Callable[[], Iterator[bytes]]:
    def seeds() -> Iterator[bytes]:
        for case in _cases(name):
            files = sorted(case["files"].items(), key=lambda each: (".read." not in each[0]) == reader_first)
            data = b"\x7fNEXT".join(bytes.fromhex(text) for _, text in files)
            if len(data) < 4096:
                yield data

    return seeds


def _logs() -> Iterator[bytes]:
    for fixture in _cases("workq/fixtures").values():
        data = b"\x7fNEXT".join(zlib.decompress(base64.b64decode(text)) for text in fixture["files"].values())
        if len(data) < 4096:
            yield data


def _thrift() -> Iterator[bytes]:
    for name in (b"put", b"get", b"confirm", b"abort", b"peek", b"flush_queue", b"get_version"):
        message = (
            b"\x80\x01\x00\x01" + len(name).to_bytes(4, "big") + name + bytes(4) + b"\x0b\x00\x01\x00\x00\x00\x01q\x00"
        )
        yield b"\x05" + len(message).to_bytes(4, "big") + message


MEMCACHE = _spoken("kestrel/protocol_cases", b"\x05")
HTTP = (
    b"\x05GET /api/queues?prefix=a%20 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"\x03POST /p HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.0\r\n\r\n",
    b"\x07POST /p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
)
TARGETS = {
    "memcache": Target(memcache_parser, MEMCACHE),
    "text": Target(
        text_parser, lambda: iter([b"\x05put q:\nitem\n\nget q\nconfirm q 1\nmonitor q 1 2\npeek q\nflush q\n"])
    ),
    "thrift": Target(thrift_parser, _thrift),
    "http": Target(http_parser, lambda: iter(HTTP)),
    "workq": Target(workq_parser, _spoken("workq/protocol_cases", b"\x05")),
    "conversation": Target(conversation, MEMCACHE),
    "jobs": Target(conversation, _spoken("workq/protocol_cases", b"\x0f")),
    "kestrel-journal": Target(kestrel_journal, _files("kestrel/journal_cases", reader_first=False)),
    "libkestrel-journal": Target(libkestrel_journal, _files("libkestrel/cases", reader_first=True)),
    "command-log": Target(command_log, _logs),
}
