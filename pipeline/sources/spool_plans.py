"""The plan of a query over several spools: each is listed by itself, and small queues of different spools share tasks.

A spool that cannot be read ends the query with its name, or with option `ignoreUnreachable` is left out: the log of the
driver says so, and so does a row of the view `spools`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct

from staniel.pipeline.formats.adapters import FORMATS, queues_in
from staniel.pipeline.formats.base import FormatAdapter, JournalSegment, Part
from staniel.pipeline.formats.columns import OF_ALL_FORMATS
from staniel.pipeline.lake.arrow import Rows, schema
from staniel.pipeline.lake.folders import FileVanished, Folder, FolderMissing, folder, without_secrets
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.journal_partition import JournalPartition, SharedPartition
from staniel.pipeline.sources.offsets import pin, pinned_to
from staniel.pipeline.sources.planning import (
    OPEN_BYTES,
    bundled,
    check_filled,
    check_log,
    cut,
    formats_of_view,
    no_queue,
    parts_of,
)
from staniel.pipeline.sources.spools import SpoolRef, SpoolUnreachable, list_of

THREADS = 16  # of a plan; they wait for disks and object stores
TRIES = 5
SPOOLS = schema(
    host=pa.string(),
    path=pa.string(),
    format=pa.string(),
    queues=pa.int64(),
    files=pa.int64(),
    bytes=pa.int64(),
    error=pa.string(),
)
LOG = logging.getLogger("staniel.pipeline")
T = TypeVar("T")
U = TypeVar("U")


class SpoolPlan(Struct):
    """The parts to read of one spool, and what was found in it. `error` says why it cannot be read. `more` are the
    plans of its other formats.
    """

    spool: SpoolRef
    form: str = ""
    parts: list[Part] = []
    queues: frozenset[str] = frozenset()
    files: int = 0
    bytes: int = 0
    error: str = ""
    more: list[SpoolPlan] = []


def for_each(works: Sequence[T], work: Callable[[T], U]) -> list[U]:
    """Run `work` on each of `works`, several at a time. Return the results in order."""
    if len(works) < 2:
        return [work(piece) for piece in works]
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, works))


def guarded(plan: SpoolPlan, work: Callable[[], SpoolPlan]) -> SpoolPlan:
    """Run a step of a plan, again if files change meanwhile. An error of the spool becomes that of the plan."""
    if plan.error:
        return plan
    why: object = ""
    for _ in range(TRIES):
        try:
            return work()
        except FolderMissing as error:
            why = error
            break
        except FileVanished as error:
            why = error
        except (OSError, ValueError) as error:
            why = error
            break
    return msgspec.structs.replace(plan, error=str(why), parts=[])


def plan_spools(options: JournalOptions) -> list[SpoolPlan]:
    """Return the plans of all spools that can be read. Raises what `readable_spools` does."""
    plans, _ = readable_spools(options)
    total = sum(plan.bytes for plan in plans) or 1
    pinned = for_each(plans, lambda plan: guarded(plan, partial(_pinned, plan, options, total)))
    check_reachable(pinned, options.ignores_unreachable)
    return [plan for plan in pinned if not plan.error]


def readable_spools(options: JournalOptions) -> tuple[list[SpoolPlan], str]:
    """Return what there is to read of each spool that can be read, and the format of all, or of the first for a view
    that all formats have. Raises SpoolUnreachable; ValueError for a queue that is in none of them, and for spools of
    different formats.
    """
    plans = look_at_spools(options)
    check_reachable(plans, options.ignores_unreachable)
    plans = [part for plan in plans if not plan.error for part in (plan, *plan.more)]
    form = plans[0].form if options.view in OF_ALL_FORMATS else common_format(plans)
    names = {name for plan in plans for name in plan.queues}
    tells_queues = all(FORMATS[plan.form]().by_queue for plan in plans)
    if tells_queues and (unmet := options.queues.unmet(names)):
        raise ValueError(no_queue(unmet[0], f"any of {len(plans)} spools", names))
    return plans, form


def look_at_spools(options: JournalOptions) -> list[SpoolPlan]:
    """Return what there is to read of each spool, or why it cannot be read. Raises ValueError, see `list_spools`."""
    return for_each(options.spools(), lambda spool: look_at_spool(spool, options))


def look_at_spool(spool: SpoolRef, options: JournalOptions) -> SpoolPlan:
    """Return what there is to read of a spool, or why it cannot be read."""
    return guarded(SpoolPlan(spool, error=spool.error), partial(_listed, spool, options))


def check_reachable(plans: Sequence[SpoolPlan], ignores: bool) -> None:
    """Log the spools that cannot be read, if they are to be ignored and there are others. Raises SpoolUnreachable."""
    failed = [plan for plan in plans if plan.error]
    if not failed:
        return
    if len(failed) == len(plans) or not ignores:
        raise unreachable(failed, len(plans))
    for plan in failed:
        LOG.warning("%s is left out: %s", plan.spool.describe(), plan.error)


def unreachable(failed: Sequence[SpoolPlan], count: int) -> SpoolUnreachable:
    """Return the error for spools that cannot be read, of so many."""
    first = f"{failed[0].spool.describe()}: {failed[0].error}"
    if count == 1:
        return SpoolUnreachable(first)
    if len(failed) == count:
        return SpoolUnreachable(f"none of {count} spools can be read; {first}")
    others = f"; nor can {list_of(plan.spool for plan in failed[1:])} be read" if len(failed) > 1 else ""
    return SpoolUnreachable(f"{first}{others}; option ignoreUnreachable=true reads the other spools")


def common_format(plans: Iterable[SpoolPlan]) -> str:
    """Return the format of the spools; Kestrel's if all are empty. Raises ValueError if there are several."""
    filled = [plan for plan in plans if plan.queues]
    for plan in filled:
        if plan.form != filled[0].form:
            raise ValueError(
                f"{without_secrets(filled[0].spool.path)} holds {filled[0].form}'s format,"
                f" {without_secrets(plan.spool.path)} {plan.form}'s: read them one by one"
            )
    return filled[0].form if filled else "kestrel"


def _listed(spool: SpoolRef, options: JournalOptions) -> SpoolPlan:
    """Return a spool's files as parts that are not cut yet."""
    place = folder(spool.path)
    listed = formats_of_view(place, options)
    check_log(place)
    check_filled(place, options, listed[0][0], queues_in(listed))
    first, *more = [_plan_of(place, spool, options, form, segments_of) for form, segments_of in listed]
    return msgspec.structs.replace(first, more=more)


def _plan_of(
    place: Folder,
    spool: SpoolRef,
    options: JournalOptions,
    form: FormatAdapter,
    segments_of: dict[str, list[JournalSegment]],
) -> SpoolPlan:
    every = [segment for some in segments_of.values() for segment in some]
    alone = options.alone(spool.path, form.name)
    alone.min_partitions = 0
    is_view = options.view != "spools" and options.view in form.schemas()
    parts = parts_of(pinned_to(place, form, every), alone, form, segments_of) if is_view else []
    size = sum(segment.bytes for segment in every)
    return SpoolPlan(spool, form.name, parts, frozenset(segments_of), len(every), size)


def _pinned(plan: SpoolPlan, options: JournalOptions, total: int) -> SpoolPlan:
    """Return a plan with its large files cut, and every part pinned to its files. `total` has the bytes of all
    spools.
    """
    adapter = FORMATS[plan.form]()
    segments = [segment for part in plan.parts for segment in part.segments]
    place = pinned_to(folder(plan.spool.path), adapter, segments)
    parts = plan.parts
    if options.view == "ops" and options.min_partitions:
        parts = cut(adapter, place, segments, -(-options.min_partitions * plan.bytes // total))
    return msgspec.structs.replace(plan, parts=[pin(place, part) for part in parts])


def shared_tasks(plans: Iterable[SpoolPlan], options: JournalOptions, reads_values: bool) -> Iterator[SharedPartition]:
    """Yield the tasks of a query, in the order of spools, queues and files."""
    works = [(plan, part) for plan in plans for part in plan.parts]
    reading = options.reading if reads_values else options.reading.without_values()
    tasks = bundled(works, lambda work: work[1].bytes)
    if options.min_partitions:
        share = sum(part.bytes for _, part in works) // options.min_partitions
        tasks = bundled(works, lambda work: work[1].bytes - OPEN_BYTES, share)
    for task in tasks:
        shares = [
            JournalPartition(
                plan.spool.path, plan.form, options.view, [part for _, part in some], reading, plan.spool.host
            )
            for plan, some in ((some[0][0], some) for some in _by_spool(task))
        ]
        yield SharedPartition(shares, options.ignores_unreachable)


def _by_spool(task: list[tuple[SpoolPlan, Part]]) -> Iterator[list[tuple[SpoolPlan, Part]]]:
    for _, works in groupby(task, key=lambda work: (work[0].spool.host, work[0].form)):
        yield list(works)


def rows_of_spools(plans: Iterable[SpoolPlan]) -> pa.RecordBatch:
    """Return the view `spools`: a row for each, readable or not."""
    rows = Rows(SPOOLS)
    for plan in plans:
        row: dict[str, object] = {"host": plan.spool.host, "path": without_secrets(plan.spool.path)}
        if plan.error:
            row["error"] = plan.error
        else:
            row |= {"format": plan.form, "queues": len(plan.queues), "files": plan.files, "bytes": plan.bytes}
        rows.add(row)
    return rows.pop_batch()
