"""The server's recovery of a journal held against what the readers in this folder find: `differences(made)`.

What the server does on purpose where a document is silent is named here, and nothing else is let pass:

- Kestrel: a pack that says nothing replaces nothing. SAVE_XID at the end of the current file may be the beginning of a
  change that was cut off, and then does not count; nor does a number there that is behind the last one. memcache flags
  and notes are not looked at.
- libkestrel: the expiries 0 and -1 are shown as 1, which is as long ago.
- workq: a job that is scheduled for 1970 is scheduled for its first nanosecond. Behind damage, bytes that may be a
  payload are not trusted; so some records that can be read are left out where more than one place is damaged. What a
  job with an odd history becomes is open.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import takewhile
from random import Random
from unittest.mock import patch

from staniel.journal.kestrel import recovery as kestrel_recovery
from staniel.journal.kestrel.files import sort_out
from staniel.journal.libkestrel import recovery as stream_recovery
from staniel.journal.libkestrel.files import group_by_queue
from staniel.journal.workq.recovery import CmdLogRecovery
from staniel.journal.workq.segments import SegmentReader, header_error
from staniel.queues.item import Item, Numbered
from staniel.queues.jobs.job import Job
from staniel.queues.jobs.jobs import Jobs
from staniel.queues.jobs.journal import JobJournal
from staniel.queues.jobs.replay import JobReplay
from staniel.queues.line import UNBOUNDED
from staniel.sim.disk.disk import Disk
from tests.conformance import replay
from tests.outside import libkestrel, workq
from tests.outside.made import NOW_MS, Files, Made

PIECES = (9, 64, 1 << 18)  # bytes that are read at once
MEMORY = (0, 100, UNBOUNDED, UNBOUNDED)  # bytes of items that are kept; the others stay in the journal
LONG_AGO = (0, -1)
RECORD_BYTES = 30  # more than a record of a command log has beside its payload


def disk_with(files: Files) -> Disk:
    disk = Disk()
    disk.make_folder("s")
    for name, data in files.items():
        file = disk.append(f"s/{name}")
        file.write(data)
        file.close()
    return disk


def files_on(disk: Disk) -> Files:
    return {name: disk.read(f"s/{name}", 0, 1 << 30) for name, is_file in disk.list("s") if is_file}


def differences(made: Made, random: Random) -> list[str]:
    """What the server makes of a journal and the reader does not, or the other way round."""
    with ExitStack() as stack:
        for module in (kestrel_recovery, stream_recovery):
            stack.enter_context(patch.object(module, "CHUNK_BYTES", random.choice(PIECES)))
        if made.format == "kestrel":
            return of_kestrel(made.files, random.choice(MEMORY))
        return of_libkestrel(made.files) if made.format == "libkestrel" else of_workq(made)


def compare(what: str, ours: object, theirs: object) -> list[str]:
    if ours == theirs:
        return []
    if isinstance(ours, dict) and isinstance(theirs, dict):  # of long ones what differs
        ours, theirs = (
            {key: value for key, value in one.items() if key not in other or other[key] != value}
            for one, other in ((ours, theirs), (theirs, ours))
        )
    return [f"{what}: the server has {ours!r:.300}, the reader {theirs!r:.300}"]


# Kestrel


def says_nothing(pack: bytes) -> bool:
    return not pack or (len(pack) == 5 and pack[0] == 4)


def counters(files: Files) -> tuple[replay.State, set[int]]:
    """(the state, what the counter may be)."""
    state, before = replay.State(), 0
    allowed: set[int] = set()
    for name in replay.files_of("q", files):
        allowed = set()
        for record in replay.read_file(files[name])[0]:
            before = state.counter
            state.apply(record)
            known = {before, *allowed}
            # A start opens items under numbers behind the last one, which stays the last one.
            is_behind = record.op in (3, 9) and any(0 < (each - state.counter) % 2**32 <= 2**31 for each in known)
            is_open = name == "q" and (record.op == 4 or is_behind)
            allowed = {*(allowed or {before}), state.counter} if is_open else set()
    return state, {state.counter, *allowed}


def of_kestrel(files: Files, memory_bytes: int) -> list[str]:
    counted = {name: data for name, data in files.items() if not (name.endswith(".pack") and says_nothing(data))}
    state, allowed = counters(counted)
    disk = disk_with(files)
    found = sort_out(disk.list("s"))[0].get("q")
    names = replay.files_of("q", counted)
    if found is None or found.holds_nothing:
        return compare("files", None, names or None)
    recovered = kestrel_recovery.Recovery(disk, "s").recover("q", found, 0, memory_bytes)
    wrong = compare("items", [content(item) for item in recovered.replay.line.walk()], contents(state.items))
    opened = {xid: content(taken.item) for xid, taken in recovered.replay.open.items()}
    wrong += compare("open reads", opened, {xid: contents([each])[0] for xid, each in state.open.items()})
    counter = recovered.replay.counter
    wrong += [] if counter in allowed else compare("the last id", counter, allowed)
    valid = {name: replay.read_file(counted[name])[1] for name in names}
    ends = {name.removesuffix(".pack"): end for name, end in valid.items() if end < len(counted[name])}
    damages = {each.file: each.at for each in recovered.damages if each.file not in files.keys() - counted}
    wrong += compare("damage", damages, ends)
    again, _ = counters(files_on(disk))
    return wrong + compare("what is left", (again.items, again.open), (state.items, state.open))


def content(item: Item) -> tuple[bytes, int, int]:
    return item.data, item.added_ms, item.expires_ms


def contents(records: list[replay.Record]) -> list[tuple[bytes, int, int]]:
    return [(each.data, each.added_ms, each.expires_ms) for each in records]


# libkestrel


def of_libkestrel(files: Files) -> list[str]:
    family = libkestrel.read("jobs", files)
    disk = disk_with(files)
    found = group_by_queue(disk.list("s")).get("jobs")
    if found is None:
        return compare("files", {}, family.readers) + compare("items", {}, family.items)
    recovered = stream_recovery.StreamRecovery(disk, "s", "s/damaged").recover(found, NOW_MS)
    items = {item.id: shown(item) for item in recovered.segments.items()}
    wrong = compare("items", items, {at: as_shown(each) for at, each in family.items.items()})
    readers = {}
    for name, position in recovered.readers.items():
        readers[name] = [at for at in items if at > position.head and at not in position.done]
    wrong += compare("readers", readers, family.readers)
    wrong += compare("the last id", recovered.segments.last_id, family.last_id)
    segments = [each for each in recovered.damages if files[each.file][:4] == libkestrel.SEGMENT]
    at = {each.file: each.at for each in segments if ".read." not in each.file and files[each.file][each.at]}
    wrong += compare("damage", at, family.damaged)
    again = libkestrel.read("jobs", files_on(disk))
    return wrong + compare("what is left", (again.items, again.readers), (family.items, family.readers))


def shown(item: Numbered) -> tuple[int, int, int, bytes]:
    return item.errors, item.added_ms, item.expires_ms, item.data


def as_shown(put: libkestrel.Put) -> tuple[int, int, int, bytes]:
    expires_ms = 1 if put.expires_ms in LONG_AGO else put.expires_ms or 0
    return put.errors, put.added_ms, expires_ms, put.data


# workq


class Silent(JobJournal):
    """A journal of jobs that nothing is written to; compiled code takes no other type."""


def of_workq(made: Made) -> list[str]:
    log = workq.read(made.files, NOW_MS)
    disk = disk_with(made.files)
    wrong, is_same = compare_frames(made, disk)
    jobs = Jobs(Silent())
    CmdLogRecovery(disk, "s", "s/damaged").recover(JobReplay(jobs, NOW_MS))
    for id, job in jobs.by_id.items():
        if id in log.odd or not is_same:
            known = [terms_of(each) for each in log.additions.get(id, ())]
            wrong += [] if terms(job) in known else compare("a job that nothing has added", terms(job), known)
    if is_same:
        ours = {id: (terms(job), fate(job)) for id, job in jobs.by_id.items() if id not in log.odd}
        theirs = {id: (terms_of(job.added), fate_of(job)) for id, job in log.jobs.items() if id not in log.odd}
        wrong += compare("jobs", ours, theirs)
        for name, queue in jobs.queues.items():
            for which, ready in ((queue.ready, True), (queue.scheduled, False)):
                order = [job.id for job in which if job.id not in log.odd]
                wrong += compare("order", order, [id for id in log.order(name, ready=ready) if id not in log.odd])
    return wrong


def compare_frames(made: Made, disk: Disk) -> tuple[list[str], bool]:
    """(what is wrong with the records that the server takes, whether they are those that the reader takes)."""
    wrong, is_same = [], True
    for name in workq.segments_of(made.files):
        theirs = dict(workq.frames(made.files[name]))
        if header_error(disk, f"s/{name}"):
            wrong.append(f"{name} is set aside by the server")
            continue
        ours = {}
        for data, found, base in SegmentReader(disk, f"s/{name}").pieces():
            ours |= {base + at: data[start : stop - workq.CRC_BYTES] for at, start, stop in found}
        is_same = is_same and ours == theirs
        if not ours.items() <= theirs.items():
            wrong += compare(f"records of {name}", ours, theirs)
        whole = made.whole.get(name, b"")
        intact = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(whole, made.files[name], strict=False)))
        before = {at for at, payload in workq.frames(whole) if at + len(payload) + RECORD_BYTES <= intact}
        wrong += [] if before <= ours.keys() else compare(f"records before the damage of {name}", ours, before)
        if made.is_plain:
            wrong += compare(f"records of {name}", ours, theirs)
    return wrong, is_same


def terms(job: Job) -> tuple[object, ...]:
    each = job.terms
    limits = (each.ttr_ms, each.ttl_ms, each.priority, each.max_attempts, each.max_fails)
    return (each.queue.name, *limits, job.payload, job.time_ns or None, job.created_ns)


def terms_of(added: workq.Command) -> tuple[object, ...]:
    limits = (added.ttr_ms, added.ttl_ms, added.priority, added.max_attempts, added.max_fails)
    time_ns = 1 if added.time_ns == 0 else added.time_ns
    return (added.name, *limits, added.payload, time_ns, added.created_ns)


def fate(job: Job) -> tuple[object, ...]:
    return job.state.value, job.attempts, job.result


def fate_of(job: workq.Job) -> tuple[object, ...]:
    return job.state, job.attempts, job.result
