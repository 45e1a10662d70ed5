"""What a file of the redo log holds, for people and programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from staniel.journal.disk.fs import Fs
from staniel.journal.redo.log import IN_USE, NAMES
from staniel.journal.redo.records import (
    BLOCK_BYTES,
    HEAD,
    MAGIC,
    BadBatch,
    RedoKind,
    batch_bytes,
    decode,
    decode_head,
    is_whole,
)
from staniel.journal.redo.replay import Legibility, read_log

Line = dict[str, object]


def is_redo_log(fs: Fs, path: str) -> bool:
    """Whether the file begins as one of a redo log, of any version. Raises OSError."""
    return fs.read(path, 0, len(MAGIC))[:-1] == MAGIC[:-1]


def dump_log(fs: Fs, path: str) -> Iterator[Line]:
    """A line for each whole batch of this version, then one for each of its records. Batches of earlier rounds stand
    behind the newest; their numbers are lower. Raises OSError.
    """
    at, size = 0, fs.size(path)
    while at < size:
        head = decode_head(fs.read(path, at, HEAD.size))
        data = b"" if head is None else fs.read(path, at, HEAD.size + head.records_bytes)
        if head is None or not is_whole(data, head):
            at += BLOCK_BYTES
            continue
        yield {
            "at": at, "op": "BATCH", "batch": head.number, "oldest": head.oldest, "synced": head.synced,
            "bytes": head.records_bytes, "log": head.spool_id.hex(), "boot": head.boot_id.hex(),
        }  # fmt: skip
        with suppress(BadBatch):
            for record in decode(memoryview(data)[HEAD.size :]):
                line: Line = {"at": at, "op": record.kind.name, "batch": head.number, "file": record.file}
                if record.kind is RedoKind.BIND:
                    line["path"] = bytes(record.data).decode("utf-8", "backslashreplace")
                if record.kind in (RedoKind.BIND, RedoKind.SAFE):
                    line["safe"] = record.at
                elif record.kind is not RedoKind.DONE:
                    line |= {"to": record.at, "bytes": record.length, "safe": record.safe_bytes}
                yield line
        at += batch_bytes(head.records_bytes)


def log_in_use(fs: Fs, own: str) -> str:
    """What to know of the redo log before the journals are judged by their ends; "" if none is in use. `own`: the
    spool's `.staniel`. Raises OSError.
    """
    try:
        version = fs.read(f"{own}/version", 0, 100).decode("latin-1").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if not version.startswith(f"{IN_USE} "):
        return ""
    try:
        spool_id = bytes.fromhex(version.removeprefix(f"{IN_USE} "))
    except ValueError:
        return f"{own}/version does not say which redo log is in use: {version!r}"
    found = read_log(fs, [f"{own}/{name}" for name in NAMES], spool_id)
    state = f"{found.batches:,} batches about {len(found.files):,} files"
    if found.found is not Legibility.WHOLE:
        state = f"{found.found.value}, {state} can be read"
    return f"a redo log is in use ({state}): after a power cut a start of the server brings the journals up to date"
