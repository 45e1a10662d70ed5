"""What each side makes of the files of a border, in the terms of the tables: `server(border, piece_bytes)`, through the
recovery that every start uses, and `outside(border)`, through the readers of the folder above.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

from staniel.journal.kestrel import recovery as kestrel_recovery
from staniel.journal.kestrel.files import sort_out
from staniel.journal.libkestrel import recovery as stream_recovery
from staniel.journal.libkestrel.files import group_by_queue
from staniel.journal.workq import recovery as cmdlog_recovery
from staniel.journal.workq.segments import SegmentReader
from staniel.queues.jobs.jobs import Jobs
from staniel.queues.jobs.replay import JobReplay
from staniel.queues.line import UNBOUNDED
from tests.conformance import replay
from tests.outside import libkestrel, workq
from tests.outside.borders.table import Border, Files, State
from tests.outside.held import (
    Silent,
    as_shown,
    content,
    contents,
    disk_with,
    fate,
    fate_of,
    files_on,
    shown,
    terms,
    terms_of,
)
from tests.outside.made import NOW_MS

LARGE_PIECE_BYTES = 1 << 10


def server(border: Border, piece_bytes: int) -> State:
    """`piece_bytes`: how many bytes of a file are read at once, at first."""
    return SERVER[border.format](border.files, piece_bytes)


def outside(border: Border) -> State:
    return OUTSIDE[border.format](border.files)


# Kestrel


def server_of_kestrel(files: Files, piece_bytes: int) -> State:
    """Read in small pieces, no item is kept in memory."""
    disk = disk_with(files)
    found = sort_out(disk.list("s"))[0]["q"]
    memory_bytes = UNBOUNDED if piece_bytes > LARGE_PIECE_BYTES else 0
    with patch.object(kestrel_recovery, "CHUNK_BYTES", piece_bytes):
        recovered = kestrel_recovery.Recovery(disk, "s").recover("q", found, 0, memory_bytes)
        items = [content(item) for item in recovered.replay.line.walk()]
    opened = {xid: content(taken.item) for xid, taken in recovered.replay.open.items()}
    damage = {each.file: each.at for each in recovered.damages}
    return {
        "items": items,
        "open": opened,
        "counter": recovered.replay.counter,
        "damage": damage,
    }


def outside_of_kestrel(files: Files) -> State:
    state, damage = replay.State(), dict[str, int]()
    for name in replay.files_of("q", files):
        found, end = replay.read_file(files[name])
        for record in found:
            state.apply(record)
        if end < len(files[name]):
            damage[name] = end
    opened = {xid: contents([each])[0] for xid, each in state.open.items()}
    return {
        "items": contents(state.items),
        "open": opened,
        "counter": state.counter,
        "damage": damage,
    }


# libkestrel


def server_of_libkestrel(files: Files, piece_bytes: int) -> State:
    disk = disk_with(files)
    found = group_by_queue(disk.list("s"))["jobs"]
    with patch.object(stream_recovery, "CHUNK_BYTES", piece_bytes):
        recovered = stream_recovery.StreamRecovery(disk, "s", "s/damaged").recover(found, NOW_MS)
    items = {item.id: shown(item) for item in recovered.segments.items()}
    readers = {}
    for name, position in recovered.readers.items():
        readers[name] = [at for at in items if at > position.head and at not in position.done]
    # Of a segment that was never begun nothing is lost; bytes behind the zero that ends the data are no record.
    found_at = {each.file: each.at for each in recovered.damages if ".read." in each.file or each.at}
    damage = {name: at for name, at in found_at.items() if not at or files[name][at]}
    return {"items": items, "readers": readers, "damage": damage}


def readers_of_the_next(border: Border) -> dict[str, bool]:
    """Which readers of a libkestrel border get an item that is put after the server's recovery."""
    disk = disk_with(border.files)
    found = group_by_queue(disk.list("s"))["jobs"]
    recovered = stream_recovery.StreamRecovery(disk, "s", "s/damaged").recover(found, NOW_MS)
    number = recovered.segments.last_id + 1
    item = b"\x86" + bytes(8) + number.to_bytes(8, "little") + bytes(8)
    files = {**files_on(disk), f"jobs.{10**40}": libkestrel.SEGMENT + item}
    return {name: number in left for name, left in libkestrel.read("jobs", files).readers.items()}


def outside_of_libkestrel(files: Files) -> State:
    family = libkestrel.read("jobs", files)
    damage = dict(family.damaged)
    for name, data in files.items():
        if ".read." in name and data and data[:4] != libkestrel.READER:
            damage[name] = 0
        elif ".read." in name and data:
            end = libkestrel.records(data, is_segment=False)[1]
            if end < len(data) and data[end]:
                damage[name] = end
    items = {at: as_shown(each) for at, each in family.items.items()}
    return {"items": items, "readers": family.readers, "damage": damage}


# workq


def server_of_workq(files: Files, piece_bytes: int) -> State:
    disk, jobs = disk_with(files), Jobs(Silent())
    with patch.object(cmdlog_recovery, "SegmentReader", partial(SegmentReader, piece_bytes=piece_bytes)):
        found = cmdlog_recovery.CmdLogRecovery(disk, "s", "s/damaged").recover(JobReplay(jobs, NOW_MS))
    lost: dict[str, list[tuple[int, int]]] = {}
    for each in found.damages:
        lost.setdefault(each.file, []).append((each.at, each.lost_bytes))
    known = {id: (*terms(job), *fate(job)) for id, job in jobs.by_id.items()}
    return {
        "jobs": known,
        "lost": {name: joined(ranges) for name, ranges in lost.items()},
    }


def outside_of_workq(files: Files) -> State:
    log, lost = workq.read(files, NOW_MS), dict[str, list[tuple[int, int]]]()
    names = sorted(name for name in files if re.fullmatch(r"[0-9]{9}\.log", name))
    for name in names:
        content = files[name]
        if content[:8] != workq.MAGIC:
            if content or name != names[-1]:
                lost[name] = [(0, len(content))]
            continue
        at, ranges = len(workq.MAGIC), list[tuple[int, int]]()
        for start, payload in workq.frames(content):
            end = workq.frame_at(content, start)[1]
            ranges.append((at, start - at))
            try:
                workq.command_in(payload)
            except workq.Damaged:
                ranges.append((start, end - start))
            at = end
        ranges.append((at, len(content) - at))
        if ranges := joined([each for each in ranges if each[1]]):
            lost[name] = ranges
    known = {id: (*terms_of(job.added), *fate_of(job)) for id, job in log.jobs.items()}
    return {"jobs": known, "lost": lost}


def joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges (first byte, bytes) in their order, those that touch as one."""
    found: list[tuple[int, int]] = []
    for at, count in sorted(ranges):
        if found and sum(found[-1]) == at:
            found[-1] = (found[-1][0], found[-1][1] + count)
        else:
            found.append((at, count))
    return found


SERVER: dict[str, Callable[[Files, int], State]] = {
    "kestrel": server_of_kestrel,
    "libkestrel": server_of_libkestrel,
    "workq": server_of_workq,
}
OUTSIDE: dict[str, Callable[[Files], State]] = {
    "kestrel": outside_of_kestrel,
    "libkestrel": outside_of_libkestrel,
    "workq": outside_of_workq,
}
