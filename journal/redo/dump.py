"""The content of a redo log file, for people and programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from staniel.journal.disk.fs import Fs
from staniel.journal.redo.log import IN_USE, NAMES, UNUSED
from staniel.journal.redo.records import (
    MAGIC,
    BadBatch,
    RedoKind,
    decode,
)
from staniel.journal.redo.replay import (
    Legibility,
    LogContent,
    differences,
    find_log_id,
    first_change,
    read_log,
    to_replay,
    whole_batches,
)

Line = dict[str, object]
LOOKS = 3


def is_redo_log(fs: Fs, path: str) -> bool:
    """Tell whether the file begins like a segment of a redo log of any version. Raises OSError."""
    return fs.read(path, 0, len(MAGIC))[:-1] == MAGIC[:-1]


def dump_log(fs: Fs, path: str) -> Iterator[Line]:
    """Yield a line for each whole batch of this version, then one for each of its records. Batches of earlier rounds
    follow the newest; their numbers are lower. Raises OSError.
    """
    for at, head, records in whole_batches(partial(fs.read, path), fs.size(path), lambda head: True):
        yield {
            "at": at, "op": "BATCH", "batch": head.number, "oldest": head.oldest, "synced": head.synced,
            "bytes": head.records_bytes, "log": head.spool_id.hex(), "boot": head.boot_id.hex(),
        }  # fmt: skip
        with suppress(BadBatch):
            for record in decode(records):
                line: Line = {"at": at, "op": record.kind.name, "batch": head.number, "file": record.file}
                if record.kind is RedoKind.BIND:
                    line["path"] = bytes(record.data).decode("utf-8", "backslashreplace")
                if record.kind in (RedoKind.BIND, RedoKind.SAFE):
                    line["safe"] = record.at
                elif record.kind is not RedoKind.DONE:
                    line |= {"to": record.at, "bytes": record.length, "safe": record.safe_bytes}
                yield line


def log_in_use(fs: Fs, own: str) -> str:
    """Describe the redo log in use, which may change the ends of journals; "" if none is in use. `own`: the spool's
    `.staniel`. Raises OSError.
    """
    spool_id = used_log(fs, own)
    if spool_id is None:
        return ""
    if not spool_id:
        return f"{own}/version does not say which redo log is in use"
    content = read_log(fs, [f"{own}/{name}" for name in NAMES], spool_id)
    state = f"{content.batches:,} batches about {len(content.files):,} files"
    if content.found is not Legibility.WHOLE:
        state = f"{content.found.value}, {state} can be read"
    return f"a redo log is in use ({state}): after a power cut a start of the server brings the journals up to date"


def used_log(fs: Fs, own: str) -> bytes | None:
    """Return the id of the redo log that is in use. None: no log is in use. Empty: a log may be in use, but its id is
    unknown. Raises OSError.
    """
    try:
        version = fs.read(f"{own}/version", 0, 100).decode("latin-1").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if version == UNUSED:
        return None
    if not version.startswith(f"{IN_USE} "):  # the version file is damaged, or says that the spool is incomplete
        return b"" if find_log_id(fs, [f"{own}/{name}" for name in NAMES]) else None
    try:
        return bytes.fromhex(version.removeprefix(f"{IN_USE} "))
    except ValueError:
        return b""


def is_of_later_version(fs: Fs, own: str) -> bool:
    """Tell whether this version cannot read the redo log that is in use. Raises OSError."""
    content = _content(fs, own)
    return content is not None and content.found is Legibility.NEWER


def unlike_log(fs: Fs, folder: str, own: str) -> list[tuple[str, int]]:
    """Return the journals that differ from the redo log of a spool, each with the first byte that differs. A power cut
    has left them so, and no server has been started since. A file that has been renamed meanwhile is read again,
    because a server may be running, on any machine. Raises OSError.
    """
    unlike: list[tuple[str, int]] = []
    for _ in range(LOOKS):
        content = _content(fs, own)
        if content is None:
            return []
        before, unlike = unlike, list(differences(fs, folder, content, 1 << 62))
        if not unlike or unlike == before:
            break
    return unlike


def changed_by_start(fs: Fs, folder: str, own: str) -> list[tuple[str, int]]:
    """Return the journals that the next start on this machine changes because of the redo log in use, each with the
    first byte that changes. Recovery rewrites those bytes, or cuts off bytes that no reply has waited for. No server
    may be running. Raises OSError.
    """
    content = _content(fs, own)
    if content is None:
        return []
    may_cut = content.found is Legibility.WHOLE
    changes = [(file.path, first_change(fs, folder, file, may_cut=may_cut)) for file in to_replay(fs, folder, content)]
    return [(f"{folder}/{path}", at) for path, at in changes if at >= 0]


def _content(fs: Fs, own: str) -> LogContent | None:
    """Return the content of the log in use. None: no log is in use, or its id is unknown."""
    spool_id = used_log(fs, own)
    return read_log(fs, [f"{own}/{name}" for name in NAMES], spool_id) if spool_id else None
