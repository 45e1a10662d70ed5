"""The history of one item, from the journal's records. The id depends on the format. In Kestrel's it is the place of
the record that added the item, `FILE:BYTE`, or `xid=NUMBER` for every item that was open under that number; in
libkestrel's the item's number; in a command log the job's id.
"""

from __future__ import annotations

import re
from contextlib import closing

from msgspec import Struct

from staniel.journal.tools.source import FileFlaw, JournalNotFound, ReadSource, file_flaws
from staniel.journal.trace import Event, Happened

JOB_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
PLACE = re.compile(r"(?:(?P<file>.+):)?(?P<at>0[xX][0-9a-fA-F]+|[0-9]+)", re.DOTALL)
XID = re.compile(r"xid=(-?[0-9]+)")


class History(Struct):
    """The events of an item, in the order of the records. `is_there`: the item is still in the queue, as far as they
    show. `note`: what they cannot show.
    """

    format: str
    events: list[Event]
    is_there: bool
    flaws: list[FileFlaw]
    note: str = ""


def history(source: ReadSource, queue: str, item_id: str) -> History:
    """Return the history of an item. Raises JournalNotFound, and OSError."""
    if JOB_ID.fullmatch(item_id):
        return _of_job(source, queue, item_id.lower())
    source.check(queue)
    if family := source.family(queue):
        return _of_stream(source, family, queue, item_id)
    return _of_kestrel(source, queue, item_id)


def _of_kestrel(source: ReadSource, queue: str, item_id: str) -> History:
    ids = _opened_under(source, queue, int(match[1])) if (match := XID.fullmatch(item_id)) else None
    if ids is None:
        position = PLACE.fullmatch(item_id)
        if position is None:
            raise JournalNotFound(
                f"{item_id!r} is no id of this format: give FILE:BYTE, or BYTE of {queue}, or xid=NUMBER"
            )
        ids = {f"{position['file'] or queue}:{int(position['at'], 0)}"}
    trace, files = source.kestrel(queue)
    with closing(files):
        events = [event for step in trace.steps() for event in step.events if event.id in ids]
        if not events:
            raise JournalNotFound(f"no record of {queue} has added or opened {item_id}")
        is_there = any(item.id in ids for item in [*trace.line, *trace.open.values()])
        first = trace.names()[0]
        note = ""
        if trace.begins_with_state(first):
            note = f"{first} begins with the state of the queue when it was written; earlier events are in no file"
        return History("kestrel", events, is_there, file_flaws(trace.flaws), note)


def _opened_under(source: ReadSource, queue: str, xid: int) -> set[str]:
    trace, files = source.kestrel(queue)
    with closing(files):
        steps = (event for step in trace.steps() for event in step.events)
        return {event.id for event in steps if event.xid == xid and event.happened is Happened.OPENED}


def _of_stream(source: ReadSource, family: str, queue: str, item_id: str) -> History:
    if not (item_id.isascii() and item_id.isdigit() and len(item_id) <= 19):
        raise JournalNotFound(f"{item_id!r} is no id of this format: give the item's number")
    trace, files = source.stream(family)
    with closing(files):
        readers = set(trace.readers())
        names = readers if queue == family else readers & {queue}
        if queue != family and not names:
            raise JournalNotFound(f"there is no queue {queue} in {source.folder}")
        events = trace.history(names, int(item_id))
        was_put = bool(events) and events[0].happened is Happened.ADDED
        if not was_put:
            raise JournalNotFound(
                f"no segment of {family} has an item {item_id}: it was never put, or its segment is gone"
            )
        closed = {event.queue for event in events}
        note = "opens and aborts are not recorded; a rewritten reader's file begins with its position"
        return History("libkestrel", events, not names <= closed, file_flaws(trace.flaws), note)


def _of_job(source: ReadSource, queue: str, job_id: str) -> History:
    trace, files = source.jobs()
    with closing(files):
        raw = bytes.fromhex(job_id.replace("-", ""))
        steps = [step for step in trace.steps() if step.id == raw]
        names = {name for step in steps if (name := step.name())}
        if not steps or (names and queue not in names):
            raise JournalNotFound(f"no record of a job {job_id} of {queue}: never added, or removed by cleaning")
        events = [step.event() for step in steps]
        is_there = events[-1].happened not in (Happened.DELETED, Happened.EXPIRED)
        note = "" if names else "its addition is not in the log any more"
        return History("workq", events, is_there, file_flaws(trace.flaws), note)
