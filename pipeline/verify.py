"""Verifying the journals of a fleet: every record of every file, whether the records make sense together, and the
checksums that a server has left beside sealed files.

Knows what a finding is. Refuses to repair: the server cuts a torn end when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from journal.checked import unlike
from journal.flaws import Flaw, is_torn
from pipeline.files import GONE, Folder, FolderFs, Vanished, folder
from pipeline.fleet import TRIES, run_each
from pipeline.formats import FORMATS, look
from pipeline.journal_options import JournalOptions
from pipeline.offsets import pinned_to
from pipeline.planning import check_wanted
from pipeline.segments import OnCorrupt, Part, Reading, Segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Finding(Struct, frozen=True):
    """One file. `wrong`: what a reader meets at byte `at`; `strays`: records that met nothing: a removal of no item.
    `flaws`: bytes that are not what was written, None: there are no checksums to tell."""

    queue: str
    file: str
    bytes: int
    items: int
    wrong: str = ""
    at: int = 0
    torn: bool = False
    strays: int = 0
    flaws: list[Flaw] | None = None

    @property
    def bad(self) -> bool:
        return (bool(self.wrong) and not self.torn) or bool(self.flaws)

    def lines(self) -> Iterator[str]:
        """What people read of it."""
        state = f"byte {self.at}: {self.wrong}" if self.wrong else "damaged" if self.flaws else "ok"
        strays = f", {self.strays} records met nothing" if self.strays else ""
        torn = " (torn end)" if self.torn else ""
        yield f"{self.file}: {self.bytes:,} bytes, {self.items:,} items: {state}{torn}{strays}"
        for flaw in self.flaws or ():
            yield f"{self.file}: byte {flaw.at}: {flaw.size:,} bytes: {flaw.why}"


def verify(spark: SparkSession, path: str, given: Mapping[str, str]) -> list[Finding]:
    """One finding a file, in order. A queue is a task. Queues whose files change meanwhile are looked at again; one
    that was deleted has none. Raises Vanished if they change all the time."""
    options = JournalOptions({**given, "path": path})
    place = folder(options.path)
    form, found = look(place, options.format)
    check_wanted(place, options, form, found)
    reading = msgspec.structs.replace(
        options.reading, on_corrupt=OnCorrupt.PERMISSIVE, include_value=False, use_summaries=False
    )
    findings: dict[str, list[Finding]] = {}
    missed: list[str] = []
    for _ in range(TRIES):
        queues = {name: each for name, each in found.items() if name in options.queues and name not in findings}
        tasks = [(options.path, form.name, Part(name, segments), reading) for name, segments in sorted(queues.items())]
        results = dict(zip(sorted(queues), run_each(spark, tasks, _verify), strict=True))
        findings |= {name: each for name, each in results.items() if not isinstance(each, Vanished)}
        missed = [name for name in results if name not in findings]
        if not missed:
            break
        form, found = look(place, options.format)
    else:
        raise Vanished(f"queues {', '.join(missed)}: {GONE}, at each of {TRIES} tries")
    return [finding for _, found in sorted(findings.items()) for finding in found]


def _verify(task: tuple[str, str, Part, Reading]) -> list[Finding]:
    path, name, part, reading = task
    place = pinned_to(folder(path), FORMATS[name](), part.segments)
    if name != "kestrel":
        return _by_rows(place, name, part, reading)
    from pipeline.kestrel_queue import summarise_queue

    findings = []
    for one in summarise_queue(place, part.segments, reading):
        segment, damage = one.segment, one.damage
        flaws = _unlike(place, segment)
        found = Finding(
            part.queue, segment.file, segment.bytes, one.summary.added, "", 0, False, one.facts.strays, flaws
        )
        if damage is not None:
            torn = is_torn(damage.why, damage.lost_bytes) and segment.live
            found = msgspec.structs.replace(found, wrong=damage.why, at=damage.at, torn=torn)
        findings.append(found)
    return findings


def _unlike(place: Folder, segment: Segment) -> list[Flaw] | None:
    from pipeline.kestrel_queue import load_sidecar

    described = None if segment.live else load_sidecar(place, segment.file)
    if described is None or described.file != segment.file:
        return None
    return unlike(described, FolderFs(place, segment.end), segment.file)


def _by_rows(place: Folder, name: str, part: Part, reading: Reading) -> list[Finding]:
    """For formats without summaries: whatever the view `ops` says of damage."""
    view = FORMATS[name]().view("ops")
    findings = []
    for segment in part.segments:
        items, wrong, at = 0, "", 0
        for batch in view(place, Part(part.queue, [segment]), reading):
            items += batch.num_rows
            for row in batch.select(["offset", "_corrupt"]).filter(batch["_corrupt"].is_valid()).to_pylist():
                wrong, at, items = row["_corrupt"], row["offset"], items - 1
        findings.append(Finding(part.queue, segment.file, segment.bytes, items, wrong, at))
    return findings
