"""The adapter of workq's command log, which is one log for all queues of a server. Views: `ops`, `jobs` and `state`.

Damage between records is skipped, as in the server; it is a row of its own, or an error, as the option `onCorrupt`
says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa

from staniel.journal.errors import CorruptRecord, TruncatedRecord
from staniel.journal.workq import files as workq_files
from staniel.journal.workq.dump import show_id
from staniel.journal.workq.encoder import BARE_BYTES, COMMANDS, COMPLETE, CRC_BYTES, FAIL, NS_A_SECOND, SCHEDULE
from staniel.journal.workq.records import kind_of, read_added, read_fields, read_result, read_time
from staniel.journal.workq.segments import Frame, SegmentReader, header_error, is_begun
from staniel.pipeline.formats.base import BatchEnd, JournalSegment, Part, Reading, View, handle_damage
from staniel.pipeline.formats.columns import HISTORY, STATE
from staniel.pipeline.lake.arrow import TIME, Rows, batches, schema
from staniel.pipeline.lake.folders import Folder, FolderFs
from staniel.pipeline.lake.lake import ReadMark
from staniel.queues.jobs.times import end_ms

TELLING_BYTES = 64  # of a segment: its head, and that of a record

QUEUE = "workq"  # the log is one; a job's queue is in its row
NS_A_MS = NS_A_SECOND // 1000
JOB = {
    "queue": pa.string(),
    "id": pa.string(),
    "value": pa.binary(),
    "size": pa.int64(),
    "ttrMs": pa.int64(),
    "ttlMs": pa.int64(),
    "priority": pa.int64(),
    "maxAttempts": pa.int32(),
    "maxFails": pa.int32(),
    "addTime": TIME,
    "runAt": TIME,
    "result": pa.binary(),
    "file": pa.string(),
    "offset": pa.int64(),
}
OPS = schema(op=pa.string(), asOf=TIME, **JOB, _corrupt=pa.string())
NO_JOB = {"queue": None, "state": None, "addTime": None, "attempts": None}  # that the log knows no more
LIVE = ("queued", "leased", "scheduled")
JOBS = schema(state=pa.string(), attempts=pa.int32(), fails=pa.int32(), firstStart=TIME, endTime=TIME, **JOB)


class CmdLogAdapter:
    """The adapter of workq's command log, see base.FormatAdapter."""

    name = "workq"
    by_queue = False
    op_names: tuple[str, ...] = COMMANDS[1:]
    has_ids = False

    def schemas(self) -> dict[str, pa.Schema]:
        return {"ops": OPS, "jobs": JOBS, "state": STATE, "history": HISTORY}

    def whole_queue(self, view: str) -> bool:
        return view != "ops"

    def queues(self, listing: list[tuple[str, int]]) -> dict[str, list[JournalSegment]]:
        sizes = dict(listing)
        numbers = workq_files.segment_numbers((name, True) for name, _ in listing)
        names = [workq_files.segment_name(number) for number in numbers]
        segments = [
            JournalSegment(QUEUE, name, 0, sizes[name], at + 1 == len(names), at) for at, name in enumerate(names)
        ]
        return {QUEUE: segments} if segments else {}

    def until(self, folder: Folder, segments: list[JournalSegment], until_ms: int) -> list[JournalSegment]:
        """Return the segments up to the first record that is later: here every record has a time."""
        kept = []
        for segment in segments:
            end = next((row["offset"] for row in _rows(folder, segment) if (row["asOf"] or 0) > until_ms), segment.end)
            kept.append(msgspec.structs.replace(segment, end=end))
            if end < segment.end:
                break
        return kept

    def cuts(self, folder: Folder, segment: JournalSegment, parts: int) -> list[tuple[int, int]]:
        """Return no cuts: segments are small."""
        return []

    def boundary(self, folder: Folder, segment: JournalSegment, max_bytes: int, max_records: int) -> BatchEnd:
        """See base.FormatAdapter. Damage does not end a command log, only a truncated end does."""
        reach = BatchEnd(segment.begin)
        for row in _rows(folder, segment):
            if "_corrupt" not in row:
                records = reach.records
                if records >= max_records or (records and row["stop"] - segment.begin > max_bytes):
                    break
                reach = BatchEnd(row["stop"], None, records + 1)
        return reach

    def as_of(self, folder: Folder, segment: JournalSegment) -> int:
        """Return 0: every record has its own time."""
        return 0

    def tells(self, head: bytes) -> bool:
        """Return True if the head has the first record's time, in nanoseconds."""
        return len(head) >= TELLING_BYTES

    def list_fates(self, folder: Folder) -> dict[str, list[JournalSegment]]:
        return {}

    def read_marks(self, folder: Folder, queues: Collection[str], reading: Reading) -> dict[str, dict[str, ReadMark]]:
        """Return nothing: the records say what was taken."""
        return {}

    def is_broken(self, segments: list[JournalSegment]) -> bool:
        """Return True if a segment is missing: a cleaned one is removed, or was made later than the one behind it."""
        numbers = workq_files.segment_numbers((segment.file, True) for segment in segments)
        born = [int(segment.id.partition(".")[2], 16) for segment in segments if segment.id]
        return bool(workq_files.holes(numbers)) or any(later < earlier for earlier, later in pairwise(born))

    def missing(self, folder: Folder, segments: list[JournalSegment], last_id: int) -> int | None:
        return None

    def view(self, name: str) -> View:
        views: dict[str, View] = {"ops": read_ops, "jobs": read_jobs, "state": read_state, "history": read_history}
        return views[name]


def read_ops(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield a row for each record."""
    rows = Rows(OPS)
    for segment in part.segments:
        for row in _rows(folder, segment):
            error = row.get("damage")
            if error is not None and handle_damage(folder, segment, error, reading) is None:
                continue
            if reading.ops is None or row.get("op") in (*reading.ops, None):  # damage is always told
                rows.add(row if reading.include_value else row | {"value": None})
            if rows.full:
                yield rows.pop_batch()
    if rows.rows:
        yield rows.pop_batch()


def read_jobs(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield a row for each job in the log, in the order of adding. A task holds all jobs, with the requested values:
    leave values out if there are very many.
    """
    jobs, _ = _jobs(folder, part, reading)
    return batches(JOBS, (job for job in jobs.values() if is_wanted(reading, job)))


def read_state(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield a row for each job that is not finished: by queue those that wait, in the order of delivery, the leased
    ones, and those whose time is after the last record of the log. A task holds all jobs, as in `read_jobs`.
    """
    jobs, latest_ms = _jobs(folder, part, reading)
    by_queue: dict[str, list[dict[str, Any]]] = {}
    for job in jobs.values():
        if job["state"] in LIVE and is_wanted(reading, job):
            by_queue.setdefault(job["queue"], []).append(job)
    return batches(STATE, (row for _, some in sorted(by_queue.items()) for row in _state_rows(some, latest_ms)))


def _state_rows(jobs: list[dict[str, Any]], latest_ms: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of one queue."""
    waiting, leased, delayed = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    for job in sorted(jobs, key=lambda job: (*job["order"], job["id"])):
        is_delayed = job["state"] == "scheduled" and job["runAt"] > latest_ms
        (leased if job["state"] == "leased" else delayed if is_delayed else waiting).append(job)
    for at, job in enumerate(waiting):
        yield _state_row(job, "returned" if job["attempts"] else "queued") | {"position": at}
    for state, some in (("open", leased), ("delayed", delayed)):
        for job in some:
            yield _state_row(job, state)


def _state_row(job: dict[str, Any], state: str) -> dict[str, Any]:
    columns = {"state": state, "jobId": job["id"], "id": None, "deliveries": job["attempts"]}
    return job | columns | {"expireTime": job["endMs"], "dueTime": job["runAt"]}


EVENTS = {
    "add": "put",
    "schedule": "put",
    "start-attempt": "opened",
    "complete": "confirmed",
    "fail": "died",
    "delete": "removed",
    "expire": "expired",
}


def read_history(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield a row for each record of a job, in the order of the log. A task holds all jobs, without values."""
    return batches(HISTORY, _events(folder, part, reading))


def _events(folder: Folder, part: Part, reading: Reading) -> Iterator[dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = {}
    for segment in part.segments:
        for row in _rows(folder, segment):
            if "damage" in row:
                handle_damage(folder, segment, row["damage"], reading)
                continue
            if "_corrupt" in row:
                continue
            _apply(jobs, row | {"value": None})
            job = jobs.get(row["id"], NO_JOB)
            ended = job["state"] == "failed"
            event = EVENTS.get(row["op"]) or ("died" if ended else "returned")
            if is_wanted(reading, job) and (reading.ids is None or row["id"] in reading.ids):
                yield _event(row, job, event, reading.include_value)


def _event(row: dict[str, Any], job: dict[str, Any], event: str, include_value: bool) -> dict[str, Any]:
    """Return a row of the view `history`; the item's columns stand in the one of its put."""
    put = (
        {"value": row["value"] if include_value else None}
        | {
            "size": row["size"],
            "expireTime": row["endMs"],
            "dueTime": row["runAt"],
        }
        if event == "put"
        else {}
    )
    places = {name: row[name] for name in ("file", "offset", "asOf")}
    job_columns = {"queue": job["queue"], "jobId": row["id"], "addTime": job["addTime"], "deliveries": job["attempts"]}
    return {**places, **job_columns, **put, "event": event, "time": row["asOf"]}


def is_wanted(reading: Reading, job: dict[str, Any]) -> bool:
    """Return True if the queue of a job is selected."""
    return reading.queues is None or (job["queue"] is not None and job["queue"] in reading.queues)


def _jobs(folder: Folder, part: Part, reading: Reading) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the jobs that the log knows, in the order of adding, and the time of its newest record in ms."""
    jobs: dict[str, dict[str, Any]] = {}
    latest_ms = 0
    for segment in part.segments:
        for row in _rows(folder, segment):
            if "damage" in row:
                handle_damage(folder, segment, row["damage"], reading)
            else:
                latest_ms = max(latest_ms, row.get("asOf") or 0)
                _apply(jobs, row if reading.include_value else row | {"value": None})
    return jobs, latest_ms


def _apply(jobs: dict[str, dict[str, Any]], row: dict[str, Any]) -> None:
    """Apply one record. Its effect is that of queues/jobs/replay.py; a record of an unknown job has none."""
    op, id, when = row["op"], row["id"], row["asOf"]
    if op in ("add", "schedule"):
        jobs.pop(id, None)
        jobs[id] = {**row, "state": "scheduled" if op == "schedule" else "queued", "attempts": 0, "fails": 0}
        return
    job = jobs.get(id)
    if job is None or job["state"] in ("deleted", "expired"):
        return
    done = job["state"] in ("completed", "failed")
    if op in ("delete", "expire"):
        # A finished job keeps the time of its end.
        job |= {"state": op + "d", "endTime": job["endTime"] if done else when}
    elif done:
        return
    elif op == "start-attempt":
        job |= {"state": "leased", "attempts": job["attempts"] + 1, "firstStart": job.get("firstStart") or when}
    elif op == "timeout-attempt":
        over = 0 < job["maxAttempts"] <= job["attempts"]
        job |= {"state": "failed", "endTime": when} if over else {"state": "queued"}
    elif op in ("complete", "fail"):
        job |= {"state": f"{op}d" if op == "complete" else "failed", "endTime": when, "result": row.get("result")}


def _rows(folder: Folder, segment: JournalSegment) -> Iterator[dict[str, Any]]:
    """Yield every record behind `begin` as a row, with damage in its place; times in ms."""
    fs = FolderFs(folder, segment.end)
    why = header_error(fs, segment.file)
    if why:
        torn = segment.live and is_begun(fs, segment.file)
        yield _damaged(segment, segment.end, TruncatedRecord() if torn else CorruptRecord(why))
        return
    reader = SegmentReader(fs, segment.file)
    reported = 0
    for data, frames, base in reader.pieces():
        rows = [_row(segment, data, frame, base) for frame in frames]
        rows += [_corrupt_range(segment, corrupt) for corrupt in reader.corrupt_ranges[reported:]]
        reported = len(reader.corrupt_ranges)
        yield from (row for row in sorted(rows, key=lambda row: row["offset"]) if row["offset"] >= segment.begin)
    yield from (
        _corrupt_range(segment, corrupt) for corrupt in reader.corrupt_ranges[reported:] if corrupt.at >= segment.begin
    )


def _corrupt_range(segment: JournalSegment, corrupt: Any) -> dict[str, Any]:
    torn = corrupt.is_torn and segment.live
    return _damaged(
        segment,
        corrupt.at + corrupt.size,
        TruncatedRecord(at=corrupt.at) if torn else CorruptRecord(corrupt.why, corrupt.at),
    )


def _damaged(segment: JournalSegment, stop: int, error: CorruptRecord) -> dict[str, Any]:
    """Return the row for an unreadable range; `damage` is no column."""
    return {"file": segment.file, "offset": error.at, "stop": stop, "_corrupt": error.why, "damage": error}


def _row(segment: JournalSegment, data: bytes, frame: Frame, base: int) -> dict[str, Any]:
    at, start, end = frame
    stop = end - CRC_BYTES
    row: dict[str, Any] = {"file": segment.file, "offset": base + at, "stop": base + end}
    try:
        kind = kind_of(data, start, stop)
        row |= {"op": COMMANDS[kind], "asOf": read_time(data, at) // NS_A_MS}
        row["id"] = show_id(data[start + 1 : start + BARE_BYTES])
        if kind <= SCHEDULE:
            row |= _added(data, start, stop)
        elif kind in (COMPLETE, FAIL):
            row["result"] = read_result(data, start, stop)
    except CorruptRecord as error:
        return {name: row[name] for name in ("file", "offset", "stop")} | {"_corrupt": error.why}
    return row


def _added(data: bytes, start: int, stop: int) -> dict[str, Any]:
    add = read_added(data, start, stop)
    fields = read_fields(add.coded)
    return {
        "queue": fields.name.decode("latin-1"),
        "value": add.payload,
        "size": len(add.payload),
        "ttrMs": fields.ttr_ms,
        "ttlMs": min(fields.ttl_ms, 2**63 - 1),
        "priority": fields.priority,
        "maxAttempts": fields.max_attempts,
        "maxFails": fields.max_fails,
        "addTime": add.created_ns // NS_A_MS,
        "runAt": add.time_ns // NS_A_MS,
        "endMs": end_ms(add.created_ns, add.time_ns, fields.ttl_ms),
        "order": (-fields.priority, add.time_ns, add.created_ns),
    }
