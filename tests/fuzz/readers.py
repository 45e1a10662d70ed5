"""Readers of files under made-up bytes: every start serves, or refuses in one line, and the next one says the same."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from hashlib import sha256
from pathlib import Path

from staniel.broker.config.load import Config, ConfigError, parse
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.kestrel import sidecar
from staniel.journal.redo.records import BatchHead, encode_batch
from staniel.journal.tools.repair import Repair
from staniel.journal.tools.verify import inspect
from staniel.server.backup.manifest import BackupError, decode, encode
from staniel.sim.disk.disk import Disk
from staniel.sim.world import World
from tests.broker.operations.test_undo import asked
from tests.faults import rich
from tests.fuzz.sessions import LOG, WORKQ, new_disk

NOW_MS = 1_700_000_000_000
MEMORY = "/dev/shm"
NEXT = b"\x7fNEXT"  # the next file


def disk_with(files: dict[str, bytes]) -> Disk:
    """A spool of these files; those named `.log` are the command log's."""
    disk = new_disk()
    for name, data in files.items():
        file = disk.append(f"{LOG}/{name}" if name.endswith(".log") else f"s/{name}")
        if data:
            file.write(data)
        file.sync()
        file.close()
    disk.sync_all("")
    return disk


def _starts_alike(files: dict[str, bytes], config: str = WORKQ) -> None:
    first = World(config, disk_with(files), NOW_MS)
    told = _content(first)
    again = World(config, first.disk.kill(), NOW_MS)
    assert _content(again) == told, "the second start finds something else"


def _content(world: World) -> dict[str, list[bytes]]:
    broker = world.broker
    found = {queue.name: world.items(queue.name) for queue in broker.queues}
    return found | {"jobs": sorted(b"%b %b" % (id, job.payload) for id, job in broker.workq.jobs.by_id.items())}


def _kestrel(data: bytes) -> dict[str, bytes]:
    """Up to three files, the last of them the current one."""
    *archives, current = data.split(NEXT)[:3]
    return {f"q.{number}": archive for number, archive in enumerate(archives)} | {"q": current}


def _libkestrel(data: bytes) -> dict[str, bytes]:
    """A reader file, and up to two segments."""
    reader, *segments = data.split(NEXT)[:3]
    return {f"q.{number}": segment for number, segment in enumerate(segments, 100)} | {"q.read.": reader}


def _command_log(data: bytes) -> dict[str, bytes]:
    """Up to three segments."""
    return {f"{number:09}.log": segment for number, segment in enumerate(data.split(NEXT)[:3], 1)}


def kestrel_journal(data: bytes) -> None:
    _starts_alike(_kestrel(data))


def libkestrel_journal(data: bytes) -> None:
    _starts_alike(_libkestrel(data))


def command_log(data: bytes) -> None:
    _starts_alike(_command_log(data))


def tools(data: bytes) -> None:
    """`journal verify` and `journal repair`: what was repaired is not damaged. The first byte says which format."""
    if not data:
        return
    files = (_kestrel, _libkestrel, _command_log)[data[0] % 3](data[1:])
    where = MEMORY if Path(MEMORY).is_dir() else None
    with closing(OsFs()) as fs, tempfile.TemporaryDirectory(prefix="staniel-fuzz-", dir=where) as folder:
        spool, target = f"{folder}/s", f"{folder}/t"
        fs.make_folder(f"{spool}/.staniel/cmdlog")
        fs.make_folder(f"{target}/.staniel")
        for name, content in files.items():
            Path(spool, ".staniel/cmdlog" if name.endswith(".log") else ".", name).write_bytes(content)
        list(inspect(fs, spool))
        list(Repair(fs, spool, None, target, NOW_MS, lambda size: None).run())
        damaged = [found for found in inspect(fs, target) if found.is_damaged]
        assert not damaged, f"what was repaired is damaged: {damaged}"


REDO = 'server.redo_log = "64KB"\n' + WORKQ
SPOOL_ID = bytes(range(1, 17))
IN_SEGMENT, IS_SYNCED, IS_OLDEST, OTHER_BOOT, SPOILED = 1, 2, 4, 8, 16
"""Bits of the first byte of a batch."""


def redo_log(data: bytes) -> None:
    """A queue's file, then batches of a redo log; their checksums are right unless they say otherwise."""
    journal, *batches = data.split(NEXT)[:6]
    segments = [b"", b""]
    oldest = 1
    for number, batch in enumerate((each for each in batches if each), 1):
        flags, records = batch[0], batch[1:]
        oldest = number if flags & IS_OLDEST else oldest
        boot_id = (9 if flags & OTHER_BOOT else 1).to_bytes(16)
        head = BatchHead(len(records), number, oldest, number if flags & IS_SYNCED else number - 1, SPOOL_ID, boot_id)
        raw = bytearray(encode_batch(head, records))
        if flags & SPOILED:
            raw[-1 - flags % 50] ^= 1
        segments[flags & IN_SEGMENT] += raw
    own = {f".staniel/redo.{number}": segment for number, segment in enumerate(segments)}
    version = {".staniel/version": b"staniel-spool 2 %b\n" % SPOOL_ID.hex().encode()}
    _starts_alike({"q": journal} | own | version, REDO)


@cache
def own_spool() -> tuple[Disk, tuple[str, ...]]:
    """The spool of tests/faults/rich.py with a purge that can be undone; and the files that are short enough."""
    disk = rich.rich().copy()
    world = World("")
    for number in range(3):
        world.client().puts(f"item {number}")
        world.sync()
    asked(world, "POST", "/api/queues/q/purge", {})
    folder = "s/.staniel/undo"
    (name,) = [name for name, _ in world.disk.list(folder)]
    disk.make_folder(folder)
    file = disk.append(f"{folder}/{name}")
    file.write(world.disk.read(f"{folder}/{name}", 0, 1 << 20))
    file.close()
    disk.sync_all("")
    return disk, tuple(path for path in rich.files(disk) if 0 < disk.size(path) < 2000)


MENDED = 0x80  # of the first byte: a checksum is put right


def own_file(data: bytes) -> None:
    """Any file of a spool that holds everything a spool can hold; the first byte says which."""
    if not data:
        return
    spool, paths = own_spool()
    path, body = paths[(data[0] & ~MENDED) % len(paths)], data[1:]
    if "/segments/" in path and data[0] & MENDED:
        body = body[sidecar.HEAD_BYTES :]
        body = sidecar.MAGIC + zlib.crc32(body).to_bytes(4, "little") + body
    disk = spool.copy()
    disk.remove(path)
    file = disk.append(path)
    if body:
        file.write(body)
    file.close()
    disk.sync_all("")
    refusal = rich.start(disk.copy()).refusal
    assert not refusal or (path in rich.REFUSERS and "\n" not in refusal), refusal


def own_files() -> Iterator[bytes]:
    spool, paths = own_spool()
    for number, path in enumerate(paths):
        data = spool.read(path, 0, 1 << 20)
        yield bytes([number]) + data
        if "/segments/" in path:
            yield bytes([number | MENDED]) + data


def manifest(data: bytes) -> None:
    """Of a backup: as it is, and with a checksum that is right. What can be read is written alike."""
    line = data.partition(b"\n")[0]
    for each in (data, line + b"\n" + sha256(line).hexdigest().encode() + b"\n"):
        try:
            found = decode(each)
        except BackupError:
            continue
        assert decode(encode(found)) == found


def configuration(data: bytes) -> None:
    """A file is refused with the key and a reason in one line, or means something for every queue."""
    found: Config | None = None
    why = ""
    try:
        found = parse(data, "")
    except ConfigError as refused:
        why = str(refused)
    if found is None:
        assert why and "\n" not in why, why
        return
    for name in (*found.queues, "q", "q+child"):
        dict(found.describe(name))
    for listener in ("memcache", "text", "thrift", "workq", "admin"):
        found.all_addresses(listener)
