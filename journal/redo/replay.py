"""Replay of a redo log that is in use: recovery brings the files up to date, and cuts off what is not whole.

After a kill the files are complete in the page cache, so nothing is done. After a power cut recovery goes through each
file that the log knows, starting after the last bytes that are known to be durable. It rewrites bytes that the log has,
and compares bytes of which the log has checksums. Where these end or differ, it moves the rest of the file into
`.staniel/damaged/`. No acknowledged change depends on that rest. A changed boot id shows a power cut; on the same boot,
recovery treats a file in the same way if it differs from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum

from msgspec import Struct, field

from staniel.journal.disk.fs import Fs
from staniel.journal.disk.quarantine import quarantine
from staniel.journal.redo.records import (
    BIND_KIND,
    BLOCK_BYTES,
    DATA_KIND,
    DONE_KIND,
    EXTENT_KIND,
    HEAD,
    BadBatch,
    BatchHead,
    batch_bytes,
    crc_of,
    decode_head,
    decode_plain,
    is_below,
    is_whole,
    other_version,
)

COMPARED_BYTES_MAX = 64 << 20  # compared at a start after an apparent kill
RUN_BYTES_MAX = 1 << 20  # consecutive records are one read and one write: a full log has 100,000


class Legibility(Enum):
    """The state of a redo log that recovery reads."""

    WHOLE = "whole"
    DAMAGED = "damaged"  # batches that were durable once are missing
    GONE = "gone"  # there is no batch of this log
    NEWER = "newer"  # written by another version


Range = tuple[int, int, int, memoryview | None]
"""A range of bytes written to a file: from, up to, their crc32c if the log has only that, and the bytes if it has them.
A plain tuple, because a full log has 100,000 of them.
"""


class FileHistory(Struct):
    """The records of a file in the log. `ranges`: its DATA and EXTENT records, in their order."""

    number: int
    path: str
    safe_bytes: int
    ranges: list[Range] = field(default_factory=list)
    is_done: bool = False


class LogContent(Struct):
    """A log as recovery finds it. `boot_id`: that of its last batch."""

    found: Legibility
    boot_id: bytes = b""
    batches: int = 0
    bytes: int = 0
    files: dict[str, FileHistory] = field(default_factory=dict)


class FileChange(Struct):
    """The change of a file: how many bytes were rewritten; from `cut_at` on, the bytes were copied and cut off. `why`
    is given if nothing could be done.
    """

    path: str
    written_bytes: int = 0
    cut_at: int = -1
    cut_bytes: int = 0
    saved_as: str = ""
    why: str = ""


def read_log(fs: Fs, paths: list[str], spool_id: bytes) -> LogContent:
    """Read the needed batches of the log `spool_id` in these segments. Return their records by file. Raises OSError."""
    batches: dict[int, tuple[BatchHead, memoryview]] = {}
    for path in paths:
        try:
            data = memoryview(_read_all(fs, path))
        except FileNotFoundError:
            continue
        if other_version(data):
            return LogContent(Legibility.NEWER)
        batches.update(_batches(data, spool_id))
    if not batches:
        return LogContent(Legibility.GONE)
    numbers, is_damaged = _needed(batches)
    if not numbers:
        return LogContent(Legibility.DAMAGED)
    content = LogContent(Legibility.DAMAGED if is_damaged else Legibility.WHOLE, batches[numbers[-1]][0].boot_id)
    by_number: dict[int, FileHistory] = {}
    for number in numbers:
        head, records = batches[number]
        content.batches += 1
        content.bytes += head.records_bytes
        try:
            _follow(by_number, records)
        except BadBatch:
            content.found = Legibility.DAMAGED
            break
    for number in sorted(by_number):  # a path belongs to the last file bound to it
        content.files[by_number[number].path] = by_number[number]
    return content


def find_log_id(fs: Fs, paths: list[str]) -> bytes:
    """Return the id of the log in these segments, by their first batches; empty if there is none. Raises OSError."""
    heads = []
    for path in paths:
        with suppress(FileNotFoundError):
            heads.append(decode_head(fs.read(path, 0, HEAD.size)))
    batch_heads = [head for head in heads if head is not None]
    return max(batch_heads, key=lambda head: head.number).spool_id if batch_heads else b""


def _read_all(fs: Fs, path: str) -> bytearray:
    data = bytearray()  # one buffer, because gigabytes might not fit into memory twice
    reader = fs.reader(path)
    try:
        while piece := reader.read(len(data), 1 << 20):
            data += piece
    finally:
        reader.close()
    return data


def _batches(data: memoryview, spool_id: bytes) -> dict[int, tuple[BatchHead, memoryview]]:
    """Return the whole batches of a segment, by number. A number lower than the one before is from an earlier use of
    the segment.
    """
    batches: dict[int, tuple[BatchHead, memoryview]] = {}
    latest = 0

    def is_wanted(head: BatchHead) -> bool:
        return head.spool_id == spool_id and head.number > latest

    for _, head, records in whole_batches(lambda at, size: data[at : at + size], len(data), is_wanted):
        batches[head.number] = head, records
        latest = head.number
    return batches


def whole_batches(
    read: Callable[[int, int], memoryview | bytes], size: int, is_wanted: Callable[[BatchHead], bool]
) -> Iterator[tuple[int, BatchHead, memoryview]]:
    """Yield (offset, head, records) of the whole and wanted batches of a segment of `size` bytes. After a batch that is
    not whole, others may follow. `read(at, count)` returns bytes of the segment.
    """
    at = 0
    while at < size:
        head = decode_head(read(at, HEAD.size))
        if head is not None and is_wanted(head):
            data = memoryview(read(at, HEAD.size + head.records_bytes))
            if is_whole(data, head):
                yield at, head, data[HEAD.size :]
                at += batch_bytes(head.records_bytes)
                continue
        at += BLOCK_BYTES


def _needed(batches: dict[int, tuple[BatchHead, memoryview]]) -> tuple[list[int], bool]:
    """Return the numbers of the batches to use, and whether batches are missing that were durable once. A batch that
    was never synced may be missing. Later batches are not used then, neither their records nor their `oldest`.
    """
    synced = max(head.synced for head, _ in batches.values())
    for oldest in sorted({head.oldest for head, _ in batches.values()}, reverse=True):
        numbers, is_damaged = _row(batches, oldest, synced)
        if any(batches[number][0].oldest == oldest for number in numbers):
            return numbers, is_damaged
    return [], True


def _row(batches: dict[int, tuple[BatchHead, memoryview]], oldest: int, synced: int) -> tuple[list[int], bool]:
    """Return the numbers from `oldest` to the first missing batch that was never synced, and whether other batches are
    missing.
    """
    numbers = []
    is_damaged = False
    expected = oldest
    for number in sorted(batches):
        if number < oldest:
            continue
        if number != expected:
            if expected > synced:
                break
            is_damaged = True
        numbers.append(number)
        expected = number + 1
    return numbers, is_damaged or expected <= synced


def _follow(files: dict[int, FileHistory], records: memoryview) -> None:
    """Add the records of one batch to their files. Raises BadBatch."""
    for kind, number, at, safe_bytes, length, crc, begin in decode_plain(records):
        file = files.get(number)
        if kind == BIND_KIND:
            path = bytes(records[begin : begin + length]).decode("utf-8", "surrogateescape")
            if not is_below(path):
                raise BadBatch(f"{path!r} is not a file of the spool")
            if file is None:
                files[number] = FileHistory(number, path, at)
            elif at > file.safe_bytes:
                file.safe_bytes = at
        elif file is None:
            continue  # the file's BIND is in a batch that is not needed: the file was synced, and then released
        elif kind in (DATA_KIND, EXTENT_KIND):
            if safe_bytes > file.safe_bytes:
                file.safe_bytes = safe_bytes
            data = records[begin : begin + length] if kind == DATA_KIND else None
            file.ranges.append((at, at + length, crc, data))
        elif kind == DONE_KIND:
            file.is_done = True
        elif at > file.safe_bytes:
            file.safe_bytes = at


def replay_file(fs: Fs, folder: str, history: FileHistory, damaged: str, *, may_cut: bool) -> FileChange | None:
    """Bring one file up to date after a power cut. Return what was changed; None if the file was up to date. `may_cut`:
    the log has records of all bytes that were written. Raises OSError, JournalFailure.
    """
    path = f"{folder}/{history.path}"
    change = FileChange(path)
    try:
        size = fs.size(path)
    except FileNotFoundError:
        return None  # the file was removed, or its name was never durable
    at = history.safe_bytes
    if size < at:
        change.why = f"it has {size} bytes, of which {at} were durable once"
        return change
    for begin, end, data in _known(fs, path, history):
        if data is not None:
            change.written_bytes += _write_again(fs, path, begin, data)
        at = end
    size = fs.size(path)
    if may_cut and at < size:
        change.cut_at, change.cut_bytes = at, size - at
        change.saved_as = quarantine(fs, path, at, size - at, damaged)
        fs.truncate(path, at)
    return change if change.written_bytes or change.cut_bytes else None


def _known(fs: Fs, path: str, history: FileHistory) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield the ranges after the safe bytes, as far as the log knows the file: from, up to, and the bytes if the log
    has them. Raises OSError.
    """
    at = history.safe_bytes
    for run in _runs(history.ranges, at):
        begin, end = run[0][0], run[-1][1]
        if end <= at:
            continue
        data = _data_of(run)
        if begin > at or (data is None and not _is_whole(fs, path, run[0])):
            break
        yield begin, end, data
        at = end


def to_replay(fs: Fs, folder: str, content: LogContent) -> list[FileHistory]:
    """Return the files to replay. If the boot id shows no power cut, these are the files that differ from the log: the
    machine may not have stopped at all, and a file may be a copy of an earlier state of its disk. Raises OSError.
    """
    boot_id = fs.boot_id()
    is_other_boot = any(boot_id) and any(content.boot_id) and content.boot_id != boot_id
    unlike: set[str] = set()
    if not is_other_boot:
        unlike.update(path for path, _ in differences(fs, folder, content, COMPARED_BYTES_MAX))
    followed = [change for change in content.files.values() if not change.is_done]
    return [change for change in followed if is_other_boot or f"{folder}/{change.path}" in unlike]


def first_change(fs: Fs, folder: str, history: FileHistory, *, may_cut: bool) -> int:
    """Return the first byte that `replay_file` would write or cut off; -1: none. Raises OSError."""
    path = f"{folder}/{history.path}"
    at = history.safe_bytes
    try:
        size = fs.size(path)
    except FileNotFoundError:
        return -1
    if size < at:
        return -1
    for begin, end, data in _known(fs, path, history):
        if data is not None and fs.read(path, begin, len(data)) != data:
            return begin
        at = end
    return at if may_cut and at < size else -1


def differences(fs: Fs, folder: str, content: LogContent, bytes_max: int) -> Iterator[tuple[str, int]]:
    """Yield the files that differ from the log, each with the first byte that differs. At most `bytes_max` bytes are
    compared by checksum. Raises OSError.
    """
    left_bytes = bytes_max
    for history in content.files.values():
        path = f"{folder}/{history.path}"
        try:
            size = fs.size(path)
        except FileNotFoundError:
            continue
        if history.is_done:
            continue
        if size < history.safe_bytes:
            yield path, size
            continue
        for run in _runs(history.ranges, history.safe_bytes):
            begin, end, _, data = run[0]
            if data is None:
                left_bytes -= end - begin
                if left_bytes < 0:
                    continue
            if (differs_at := _first_difference(fs, path, run)) >= 0:
                yield path, differs_at
                break


def _runs(ranges: list[Range], safe_bytes: int) -> Iterator[list[Range]]:
    """Yield the ranges that extend beyond `safe_bytes`. Consecutive ranges with bytes in the log are yielded together,
    every other range by itself.
    """
    run: list[Range] = []
    limit, expected = 0, -1
    for piece in ranges:
        begin, end, _, data = piece
        if end <= safe_bytes:
            continue
        if begin == expected and end <= limit and data is not None:
            run.append(piece)
        else:
            if run:
                yield run
            run = [piece]
            limit = begin + RUN_BYTES_MAX
        expected = end if data is not None else -1
    if run:
        yield run


def _data_of(run: list[Range]) -> bytes | None:
    """Return the bytes of a run; None if the log has only their checksum."""
    pieces = [data for _, _, _, data in run if data is not None]
    return b"".join(pieces) if pieces else None


def _first_difference(fs: Fs, path: str, run: list[Range]) -> int:
    """Return where the first range begins that differs in the file; -1 if none does."""
    run_at, run_end = run[0][0], run[-1][1]
    data = _data_of(run)
    if data is None:
        return -1 if _is_whole(fs, path, run[0]) else run_at
    on_disk = fs.read(path, run_at, run_end - run_at)
    if on_disk == data:
        return -1
    return next(at for at, end, _, _ in run if on_disk[at - run_at : end - run_at] != data[at - run_at : end - run_at])


def _write_again(fs: Fs, path: str, at: int, data: bytes) -> int:
    if fs.read(path, at, len(data)) == data:
        return 0
    file = fs.overwrite(path)
    try:
        file.write_at(at, data)
    finally:
        file.close()
    return len(data)


def _is_whole(fs: Fs, path: str, piece: Range) -> bool:
    begin, end, crc, _ = piece
    data = fs.read(path, begin, end - begin)
    return len(data) == end - begin and crc_of(data) == crc
