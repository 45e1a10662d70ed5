"""The plan of a query over journals: its queues and files, and how they are split into parts for tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, pairwise
from typing import Any, TypeVar

import msgspec
import pyarrow.compute as pc

from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.journal.redo.dump import unlike_log
from staniel.pipeline.formats.adapters import FORMATS, Listed, list_formats, list_segments, queues_in
from staniel.pipeline.formats.base import FormatAdapter, JournalSegment, OnCorrupt, Part, PartArchive, Reading
from staniel.pipeline.formats.columns import OF_ALL_FORMATS
from staniel.pipeline.lake.archived import ArchivedQueue, queues_of_archive
from staniel.pipeline.lake.folders import Folder, SpoolFs, below, folder, without_secrets
from staniel.pipeline.sources.journal_options import Begin, JournalOptions
from staniel.pipeline.sources.offsets import from_json, pinned_to, segment_of

TASK_BYTES = 16 << 20  # of journal; less is not worth a task of its own
NAMES_SHOWN = 10
EVERYTHING = 1 << 62
OPEN_BYTES = 128 << 10  # what opening a file costs
Work = TypeVar("Work")


def plan_parts(place: Folder, options: JournalOptions) -> tuple[FormatAdapter, list[Part], Reading]:
    """Return the format, the parts in the order of queues and files, and how to read them. Raises ValueError."""
    ((form, parts),) = plan_formats(place, options, list_segments(place, options.format))
    return form, parts, options.reading


def plan_formats(place: Folder, options: JournalOptions, *listed: Listed) -> list[tuple[FormatAdapter, list[Part]]]:
    """Return the parts of each format in `listed`; without it, of the formats that the view has columns for. Raises
    ValueError.
    """
    listed = listed or tuple(formats_of_view(place, options))
    check_log(place)
    archived = queues_of_archive(options.archive) if options.archive else {}
    check_wanted(place, options, listed[0][0], {**archived, **queues_in(listed)})
    plans = []
    for form, some in listed:
        pinned = pinned_to(place, form, chain.from_iterable(some.values()))
        parts = parts_of(pinned, options, form, some)
        plans.append((form, behind_archive(pinned, options, form, parts, archived) if archived else parts))
    return plans


def behind_archive(
    place: Folder,
    options: JournalOptions,
    form: FormatAdapter,
    parts: list[Part],
    archived: Mapping[str, ArchivedQueue],
) -> list[Part]:
    """Return the parts with the archived records of their queues in front. Queues that are only in the archive get
    parts of their own. Raises ValueError for a log of jobs, whose archive has no rows by queue.
    """
    if not form.by_queue:
        raise ValueError(f"option archivePath is not for {form.name} logs")
    by_queue = {name: Part(name, [], []) for name, queue in archived.items() if queue.files and name in options.queues}
    by_queue |= {part.queue: part for part in parts}
    return [_behind(place, form, options.archive, part, archived.get(name)) for name, part in sorted(by_queue.items())]


def _behind(place: Folder, form: FormatAdapter, url: str, part: Part, queue: ArchivedQueue | None) -> Part:
    if queue is None or not queue.files:
        return part
    end = None if queue.end is None else from_json(queue.end)
    at = None if end is None else segment_of(place, form, part.segments, end)
    segments = part.segments
    if end is not None and at is not None:
        first = msgspec.structs.replace(segments[at], begin=end.at, as_of=end.as_of)
        segments = [first if end.as_of >= 0 else dated(form, place, first), *segments[at + 1 :]]
    return Part(part.queue, segments, part.fates, PartArchive(url, queue, at is not None))


def formats_of_view(place: Folder, options: JournalOptions) -> list[Listed]:
    """Return the adapters and files of all formats in a folder for a view that they share, else of its one format.
    Raises what `list_segments` does.
    """
    if options.view in OF_ALL_FORMATS:
        return list_formats(place, options.format)
    return [list_segments(place, options.format)]


def parts_of(
    place: Folder, options: JournalOptions, form: FormatAdapter, segments_of: Mapping[str, list[JournalSegment]]
) -> list[Part]:
    """Return the parts of the listed queues that the options select, in the order of queues and files. Raises
    ValueError.
    """
    queues = {
        queue: bounded(form, place, options, queue, segments)
        for queue, segments in sorted(segments_of.items())
        if not form.by_queue or queue in options.queues
    }
    if unknown := sorted((options.reading.ops or frozenset()) - set(form.op_names)):
        raise ValueError(f"{form.name} records have no op {unknown[0]}; there are {', '.join(form.op_names)}")
    if form.whole_queue(options.view):
        known = form.list_fates(place)
        return [Part(queue, segments, known.get(queue, [])) for queue, segments in queues.items() if segments]
    segments = [segment for some in queues.values() for segment in some]
    return cut(form, place, segments, options.min_partitions if options.view == "ops" else 0)


def check_log(place: Folder) -> None:
    """Refuse journals that a power cut has left different from the redo log: a start of the server would change them.
    Raises ValueError.
    """
    if unlike := unlike_log(SpoolFs(place), ".", OWN_FOLDER):
        path, at = unlike[0]
        where = without_secrets(place.url)
        raise ValueError(
            f"{where} was left by a power cut: {len(unlike)} of its files, {path.removeprefix('./')} from byte {at} "
            "on, are not what the redo log says; start the server on it once, it brings them up to date"
        )


def check_wanted(place: Folder, options: JournalOptions, form: FormatAdapter, queues: Mapping[str, object]) -> None:
    """Refuse a query whose zero rows would make missing queues look empty, with ValueError. `queues` has the names
    that `list_segments` returned. An empty spool of a server, recognized by the server's own folder in it, is no error.
    """
    check_filled(place, options, form, queues)
    where = without_secrets(place.url)
    if form.by_queue and (unmet := options.queues.unmet(queues)):
        raise ValueError(no_queue(unmet[0], where, queues))
    for name, offsets in (
        ("startingOffsets", options.starting),
        ("endingOffsets", options.ending),
        ("startingOffsetsByTimestamp", options.starting_times),
        ("endingOffsetsByTimestamp", options.ending_times),
    ):
        if isinstance(offsets, dict) and (unmet := [queue for queue in offsets if queue not in queues]):
            raise ValueError(f"option {name}: {no_queue(unmet[0], where, queues)}")


def check_filled(place: Folder, options: JournalOptions, form: FormatAdapter, queues: Mapping[str, object]) -> None:
    """Refuse a folder without journals, unless it is an empty spool of a server, and options that its format ignores,
    with ValueError.
    """
    where = without_secrets(place.url)
    if not queues:
        others = [name for name in FORMATS if name != form.name and list_segments(place, name)[1]]
        if others:
            hint = f"format={others[0]}"
            raise ValueError(f"{where} holds no queue of {form.name}'s format; there are some with option {hint}")
        if not folder(below(place.url, OWN_FOLDER)).exists():
            raise ValueError(f"there are no journals in {where}")
    if not form.by_queue and options.queues.named and not form.whole_queue(options.view):
        raise ValueError(
            f"a {form.name} log holds all queues, and most records name none: leave the options for queues out of the"
            f" view {options.view}"
        )


def no_queue(wanted: str, where: str, present: Iterable[str]) -> str:
    """Return the error text for a queue that does not exist."""
    names = sorted(present)
    few = ", ".join(names[:NAMES_SHOWN]) + (" ..." if len(names) > NAMES_SHOWN else "")
    return f"there is no queue {wanted} in {where}; there are {few or 'none'}"


def bounded(
    form: FormatAdapter, place: Folder, options: JournalOptions, queue: str, segments: list[JournalSegment]
) -> list[JournalSegment]:
    """Return a queue's segments between the requested starting and ending offsets and times."""
    natural, whole = segments, {segment.file: segment.begin for segment in segments}
    starts_ms, ends_ms = options.starts_ms(queue), options.ends_ms(queue)
    if ends_ms is not None:
        segments = form.until(place, segments, ends_ms)
    if isinstance(options.ending, dict) and queue in options.ending:
        check_offset(form, place, "endingOffsets", queue, natural, options.ending[queue])
        segments = upto(segments, options.ending[queue])
    if isinstance(options.starting, dict) and queue in options.starting:
        check_offset(form, place, "startingOffsets", queue, natural, options.starting[queue])
        segments = since(segments, options.starting[queue])
    if options.starting is Begin.LATEST:
        segments = []
    if starts_ms is not None:
        known = form.until(place, segments, starts_ms - 1)
        last = known[-1] if known else None
        segments = since(segments, {"file": last.file, "at": last.end}) if last else segments
    return [segment if segment.begin == whole[segment.file] else dated(form, place, segment) for segment in segments]


def check_offset(
    form: FormatAdapter, place: Folder, option: str, queue: str, segments: list[JournalSegment], offset: dict[str, Any]
) -> None:
    """Check that a record of the queue begins or ends at the offset. Raises ValueError."""
    file, at = offset["file"], offset["at"]
    if "batch" in offset:
        raise ValueError(f"option {option}: queue {queue}: batches are of archives, and this is a spool")
    segment = next((other for other in segments if other.file == file), None)
    if segment is None:
        few = ", ".join(segment.file for segment in segments[:NAMES_SHOWN]) or "none"
        raise ValueError(
            f"option {option}: queue {queue} has no file {file} any more: it was rotated, packed or removed; there are"
            f" {few}"
        )
    last = segment.begin
    reading = Reading(False, OnCorrupt.PERMISSIVE)
    for ops in form.view("ops")(place, Part(queue, [segment]), reading):
        is_record = pc.not_equal(ops["op"], "listed").fill_null(True)  # listed items are parts of a record
        for start in ops.filter(is_record)["offset"].to_pylist():
            if start == at:
                return
            if start > at > last:
                raise ValueError(_inside(option, queue, file, at, f"{last} and {start}"))
            last = start
    end = form.boundary(place, segment, EVERYTHING, EVERYTHING).end
    if at not in (segment.begin, segment.end, end):
        known = (last, end) if at < end else (end, last)
        near = f"{known[0]} and {known[1]}" if at > segment.begin else f"{segment.begin} and more"
        raise ValueError(_inside(option, queue, file, at, near))


def _inside(option: str, queue: str, file: str, at: int, near: str) -> str:
    return f"option {option}: no record of queue {queue} begins at byte {at} of {file}; the nearest offsets are {near}"


def dated(form: FormatAdapter, place: Folder, segment: JournalSegment) -> JournalSegment:
    """Return a segment that begins within its file, with its `as_of`."""
    return msgspec.structs.replace(segment, as_of=form.as_of(place, segment))


def upto(segments: list[JournalSegment], place: dict[str, Any]) -> list[JournalSegment]:
    """Return the segments before an offset. Raises ValueError if its file is gone."""
    at = _index(segments, place)
    last = segments[at]
    cut_off = msgspec.structs.replace(last, end=max(last.begin, min(last.end, place["at"])))
    return [*segments[:at], cut_off]


def since(segments: list[JournalSegment], place: dict[str, Any]) -> list[JournalSegment]:
    """Return the segments from an offset on. Raises ValueError if its file is gone."""
    at = _index(segments, place)
    first = segments[at]
    cut_off = msgspec.structs.replace(first, begin=min(max(first.begin, place["at"]), first.end))
    return [cut_off, *segments[at + 1 :]]


def cut(form: FormatAdapter, place: Folder, segments: list[JournalSegment], parts: int) -> list[Part]:
    """Return one part for each segment, with the largest cut until there are about `parts`."""
    segments = [segment for segment in segments if segment.bytes]
    missing = parts - len(segments)
    total = sum(segment.bytes for segment in segments)
    pieces: list[Part] = []
    for segment in segments:
        count = 1 + round(missing * segment.bytes / total) if missing > 0 else 1
        inside = form.cuts(place, segment, count) if count > 1 else []
        for (low, as_of), (high, _) in pairwise([(segment.begin, segment.as_of), *inside, (segment.end, 0)]):
            live = segment.live and high == segment.end
            piece = msgspec.structs.replace(segment, begin=low, end=high, live=live, as_of=as_of)
            pieces.append(Part(segment.queue, [piece]))
    return pieces


def bundles(parts: list[Part], count: int) -> list[list[Part]]:
    """Return the parts for each task, in order. A task costs as much as reading megabytes, so small files share one.

    `count` is the least number of tasks; 0: as many as there is work for.
    """
    if not count:
        return bundled(parts, lambda part: part.bytes)
    return bundled(parts, lambda part: part.bytes - OPEN_BYTES, sum(part.bytes for part in parts) // count)


def bundled(works: list[Work], size: Callable[[Work], int], share: int = TASK_BYTES) -> list[list[Work]]:
    """Group pieces of work into tasks, in order, so that a task has at most `share` bytes, or one piece. `size` returns
    the bytes that a piece reads; each also opens a file.
    """
    tasks: list[list[Work]] = []
    held = 0
    for work in works:
        cost = size(work) + OPEN_BYTES
        if not tasks or held + cost > share:
            tasks.append([])
            held = 0
        tasks[-1].append(work)
        held += cost
    return tasks


def _index(segments: list[JournalSegment], place: dict[str, Any]) -> int:
    for at, segment in enumerate(segments):
        if segment.file == place["file"]:
            return at
    raise ValueError(f"there is no file {place['file']} any more: it was rotated, packed or removed")
