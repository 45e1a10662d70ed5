"""What a start does with a redo log that is in use: bring the files up to date, and cut off what is not whole.

After a kill the files are complete, in the page cache: nothing is done. After a power cut each file that the log knows
is followed from its last bytes that are known to be on the disk: what the log has of it is written there again, what it
has checksums of is compared, and where that ends or differs, the rest of the file goes into `.staniel/damaged/`. No
answer that was to survive depends on the rest. The boot id tells a power cut; on the same boot a file is treated so
that is not as the log says.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from msgspec import Struct, field

from staniel.journal.disk.fs import Fs
from staniel.journal.disk.quarantine import quarantine
from staniel.journal.redo.records import (
    BLOCK_BYTES,
    HEAD,
    BadBatch,
    BatchHead,
    RedoKind,
    RedoRecord,
    batch_bytes,
    crc_of,
    decode,
    decode_head,
    is_whole,
    other_version,
)

COMPARED_BYTES_MAX = 64 << 20  # at a start after what is taken for a kill
RUN_BYTES_MAX = 1 << 20  # records that follow one another are one read and one write: a full log has 100,000


class Legibility(Enum):
    """What there is to read."""

    WHOLE = "whole"
    DAMAGED = "damaged"  # batches are missing that were on the disk once
    GONE = "gone"  # not one batch of this log
    NEWER = "newer"  # written by another version


class FileHistory(Struct):
    """What the log says of one file. `ranges`: DATA and EXTENT records in their order."""

    number: int
    path: str
    safe_bytes: int
    ranges: list[RedoRecord] = field(default_factory=list)
    is_done: bool = False


class LogContent(Struct):
    """A log as a start finds it. `boot_id`: of its last batch."""

    found: Legibility
    boot_id: bytes = b""
    batches: int = 0
    bytes: int = 0
    files: dict[str, FileHistory] = field(default_factory=dict)


class FileChange(Struct):
    """What has been done to a file: so many bytes written again, and those from `cut_at` on saved and cut off. `why`
    is given if nothing could be done.
    """

    path: str
    written_bytes: int = 0
    cut_at: int = -1
    cut_bytes: int = 0
    saved_as: str = ""
    why: str = ""


def read_log(fs: Fs, paths: list[str], spool_id: bytes) -> LogContent:
    """The batches in these segments that are of the log `spool_id` and needed, put together by file. Raises OSError."""
    found: dict[int, tuple[BatchHead, memoryview]] = {}
    for path in paths:
        try:
            data = memoryview(_read_all(fs, path))
        except FileNotFoundError:
            continue
        if other_version(data):
            return LogContent(Legibility.NEWER)
        found.update(_batches(data, spool_id))
    if not found:
        return LogContent(Legibility.GONE)
    numbers, is_damaged = _needed(found)
    if not numbers:
        return LogContent(Legibility.DAMAGED)
    content = LogContent(Legibility.DAMAGED if is_damaged else Legibility.WHOLE, found[numbers[-1]][0].boot_id)
    by_number: dict[int, FileHistory] = {}
    for number in numbers:
        head, records = found[number]
        content.batches += 1
        content.bytes += head.records_bytes
        try:
            for record in decode(records):
                _follow(by_number, record)
        except BadBatch:
            content.found = Legibility.DAMAGED
            break
    for number in sorted(by_number):  # only the last file of a name has it
        content.files[by_number[number].path] = by_number[number]
    return content


def _read_all(fs: Fs, path: str) -> bytes:
    reader = fs.reader(path)
    try:
        pieces = []
        at = 0
        while piece := reader.read(at, 1 << 20):
            pieces.append(piece)
            at += len(piece)
        return b"".join(pieces)
    finally:
        reader.close()


def _batches(data: memoryview, spool_id: bytes) -> dict[int, tuple[BatchHead, memoryview]]:
    """The whole batches of one segment, by number. Behind one that is not whole, others may follow."""
    found = {}
    at, latest = 0, 0
    while at < len(data):
        head = decode_head(data[at : at + HEAD.size])
        # Lower numbers are of the last time that the segment was used.
        if head is not None and head.spool_id == spool_id and head.number > latest and is_whole(data[at:], head):
            begin = at + HEAD.size
            found[head.number] = head, data[begin : begin + head.records_bytes]
            latest = head.number
            at += batch_bytes(head.records_bytes)
        else:
            at += BLOCK_BYTES
    return found


def _needed(found: dict[int, tuple[BatchHead, memoryview]]) -> tuple[list[int], bool]:
    """The numbers of the batches to use, and whether some are missing that were on the disk once. What was never synced
    may be missing, and what follows it is not used: neither its records nor what it says of the oldest that is needed.
    """
    synced = max(head.synced for head, _ in found.values())
    for oldest in sorted({head.oldest for head, _ in found.values()}, reverse=True):
        numbers, is_damaged = _row(found, oldest, synced)
        if any(found[number][0].oldest == oldest for number in numbers):
            return numbers, is_damaged
    return [], True


def _row(found: dict[int, tuple[BatchHead, memoryview]], oldest: int, synced: int) -> tuple[list[int], bool]:
    """The numbers from `oldest` on, up to the first that is missing and may be; whether others are missing."""
    numbers = []
    is_damaged = False
    expected = oldest
    for number in sorted(found):
        if number < oldest:
            continue
        if number != expected:
            if expected > synced:
                break
            is_damaged = True
        numbers.append(number)
        expected = number + 1
    return numbers, is_damaged or expected <= synced


def _follow(files: dict[int, FileHistory], record: RedoRecord) -> None:
    if record.kind is RedoKind.BIND:
        path = bytes(record.data).decode("utf-8", "surrogateescape")
        known = files.get(record.file)
        if known is None:
            files[record.file] = FileHistory(record.file, path, record.at)
        else:
            known.safe_bytes = max(known.safe_bytes, record.at)
        return
    file = files.get(record.file)
    if file is None:
        return  # of a batch whose BIND is not needed any more: it was synced, and then left
    if record.kind is RedoKind.DONE:
        file.is_done = True
    elif record.kind is RedoKind.SAFE:
        file.safe_bytes = max(file.safe_bytes, record.at)
    else:
        file.safe_bytes = max(file.safe_bytes, record.safe_bytes)
        file.ranges.append(record)


def replay_file(fs: Fs, folder: str, history: FileHistory, damaged: str, *, may_cut: bool) -> FileChange | None:
    """Bring one file up to date after a power cut; None if it was. `may_cut`: the log tells all that was written.
    Raises OSError, JournalFailure.
    """
    path = f"{folder}/{history.path}"
    change = FileChange(path)
    try:
        size = fs.size(path)
    except FileNotFoundError:
        return None  # removed, or its name was never on the disk
    at = history.safe_bytes
    if size < at:
        change.why = f"it has {size} bytes, of which {at} were on the disk once"
        return change
    for run in _runs(history.ranges, at):
        first, last = run[0], run[-1]
        if last.at + last.length <= at:
            continue
        if first.at > at:
            break
        if first.kind is RedoKind.DATA:
            change.written_bytes += _write_again(fs, path, first.at, b"".join([record.data for record in run]))
        elif not _is_whole(fs, path, first):
            break
        at = last.at + last.length
    size = fs.size(path)
    if may_cut and at < size:
        change.cut_at, change.cut_bytes = at, size - at
        change.saved_as = quarantine(fs, path, at, size - at, damaged)
        fs.truncate(path, at)
    return change if change.written_bytes or change.cut_bytes else None


def differences(fs: Fs, folder: str, content: LogContent, bytes_max: int) -> Iterator[tuple[str, int]]:
    """The files that are not as the log says, and the first byte from which on they are not. Checksums of more than
    `bytes_max` bytes are not compared. Raises OSError.
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
            if run[0].kind is RedoKind.EXTENT:
                left_bytes -= run[0].length
                if left_bytes < 0:
                    continue
            if (differs_at := _first_difference(fs, path, run)) >= 0:
                yield path, differs_at
                break


def _runs(ranges: list[RedoRecord], safe_bytes: int) -> Iterator[list[RedoRecord]]:
    """Those that reach beyond `safe_bytes`: DATA records that follow one another in the file together, each other one
    by itself.
    """
    run: list[RedoRecord] = []
    run_bytes, expected = 0, -1
    for record in ranges:
        if record.at + record.length <= safe_bytes:
            continue
        joins = record.kind is RedoKind.DATA and record.at == expected and run_bytes + record.length <= RUN_BYTES_MAX
        if run and not joins:
            yield run
            run, run_bytes = [], 0
        run.append(record)
        run_bytes += record.length
        expected = record.at + record.length if record.kind is RedoKind.DATA else -1
    if run:
        yield run


def _first_difference(fs: Fs, path: str, run: list[RedoRecord]) -> int:
    """Where the first record begins that the file does not have; -1 if it has them all."""
    first, last = run[0], run[-1]
    if first.kind is RedoKind.EXTENT:
        return -1 if _is_whole(fs, path, first) else first.at
    data = memoryview(fs.read(path, first.at, last.at + last.length - first.at))
    for record in run:
        begin = record.at - first.at
        if data[begin : begin + record.length] != record.data:
            return record.at
    return -1


def _write_again(fs: Fs, path: str, at: int, data: bytes) -> int:
    if fs.read(path, at, len(data)) == data:
        return 0
    file = fs.overwrite(path)
    try:
        file.write_at(at, data)
    finally:
        file.close()
    return len(data)


def _is_whole(fs: Fs, path: str, record: RedoRecord) -> bool:
    data = fs.read(path, record.at, record.length)
    return len(data) == record.length and crc_of(data) == record.crc
