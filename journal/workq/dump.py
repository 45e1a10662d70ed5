"""The records of a command log as dicts and as lines of text, for tools. Nothing is changed; damage is shown in its
place.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from staniel.journal.disk.fs import Fs
from staniel.journal.errors import CorruptRecord
from staniel.journal.workq import files as workq_files
from staniel.journal.workq.encoder import BARE_BYTES, COMMANDS, COMPLETE, CRC_BYTES, FAIL, MAGIC, NS_A_SECOND, SCHEDULE
from staniel.journal.workq.records import kind_of, read_added, read_fields, read_result, written_ns
from staniel.journal.workq.segments import CorruptRange, SegmentReader, header_error, is_begun

SHOWN_BYTES = 64  # of a payload or result, in a line of text
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Record = dict[str, object]
"""file, at (offset), size (bytes), command, time; then the fields of the command. For damage: file, at, size, damaged
(why), torn: whether it is the start of a record at the end of the file, which is not damage in the newest segment.
"""


def is_cmdlog(fs: Fs, path: str) -> bool:
    """Tell whether `path` is a segment: it begins with the magic, of any version; if it ends within the magic, its name
    decides. Raises OSError.
    """
    begin = fs.read(path, 0, len(MAGIC))[:4]
    is_named = bool(workq_files.segment_numbers([(path.rpartition("/")[2], True)]))
    return begin == MAGIC[:4] or (is_named and bool(begin) and MAGIC.startswith(begin))


def dump_segment(fs: Fs, path: str) -> Iterator[Record]:
    """Yield the records of a segment, in order. Raises OSError."""
    why = header_error(fs, path)
    if why:
        yield {"file": path, "at": 0, "size": fs.size(path), "damaged": why, "torn": is_begun(fs, path)}
        return
    reader = SegmentReader(fs, path)
    reported = 0
    for data, frames, base in reader.pieces():
        records: list[Record] = [_record(path, data, frame, base) for frame in frames]
        records += [_corrupt_range(path, corrupt) for corrupt in reader.corrupt_ranges[reported:]]
        reported = len(reader.corrupt_ranges)
        yield from sorted(records, key=lambda record: int(str(record["at"])))
    yield from (_corrupt_range(path, corrupt) for corrupt in reader.corrupt_ranges[reported:])


def line(record: Record) -> str:
    """Return a record as text: offset, then `name=value` pairs. Payloads and results are cut and escaped."""
    if "damaged" in record:
        word = "torn" if record.get("torn") else "damaged"
        return f"{record['at']} {word} size={record['size']} why={str(record['damaged'])!r}"
    pairs = [f"{name}={_shown(value)}" for name, value in record.items() if name not in ("file", "at", "command")]
    return f"{record['at']} {record['command']} {' '.join(pairs)}"


def _shown(value: object) -> str:
    if not isinstance(value, bytes):
        return str(value)
    hidden_bytes = len(value) - SHOWN_BYTES
    return repr(value[:SHOWN_BYTES])[1:] + (f"+{hidden_bytes}" if hidden_bytes > 0 else "")


def _record(path: str, data: bytes, frame: tuple[int, int, int], base: int) -> Record:
    at, start, end = frame
    stop = end - CRC_BYTES
    record: Record = {"file": path, "at": base + at, "size": end - at}
    try:
        kind = kind_of(data, start, stop)
        record |= {"command": COMMANDS[kind], "time": show_time(written_ns(data, at))}
        record["id"] = show_id(data[start + 1 : start + BARE_BYTES])
        if kind <= SCHEDULE:
            record |= _added(data, start, stop)
        elif kind in (COMPLETE, FAIL):
            record["result"] = read_result(data, start, stop)
    except CorruptRecord as error:
        return {"file": path, "at": base + at, "size": end - at, "damaged": error.why}
    return record


def _corrupt_range(path: str, corrupt: CorruptRange) -> Record:
    return {"file": path, "at": corrupt.at, "size": corrupt.size, "damaged": corrupt.why, "torn": corrupt.is_torn}


def _added(data: bytes, start: int, stop: int) -> Record:
    add = read_added(data, start, stop)
    fields = read_fields(add.coded)
    return {
        "name": fields.name.decode("latin-1"),
        "ttr": fields.ttr_ms,
        "ttl": fields.ttl_ms,
        "priority": fields.priority,
        "max_attempts": fields.max_attempts,
        "max_fails": fields.max_fails,
        "created": show_time(add.created_ns),
        **({"scheduled": show_time(add.time_ns)} if add.time_ns else {}),
        "payload": add.payload,
    }


def show_id(raw: bytes) -> str:
    text = hexlify(raw).decode()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def show_time(at_ns: int) -> str:
    """Return a time as `2026-11-21T19:00:00.000000001Z`; a time beyond the calendar as nanoseconds since 1970."""
    seconds, nanos = divmod(at_ns, NS_A_SECOND)
    try:
        return f"{(EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()}.{nanos:09}Z"
    except OverflowError:
        return f"{at_ns}ns"
