"""Verifying the journals of a fleet: every record of every file, the consistency of the records, and the checksums that
a server has left for sealed files. Nothing is repaired; the server removes a torn end when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from staniel.journal.errors import Damage, Flaw
from staniel.journal.kestrel.sidecar import verify_checksums
from staniel.pipeline.formats.adapters import FORMATS, list_segments
from staniel.pipeline.formats.base import JournalSegment, OnCorrupt, Part, Reading
from staniel.pipeline.lake.folders import FileVanished, Folder, FolderFs, folder
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.offsets import pinned_to
from staniel.pipeline.sources.planning import check_wanted
from staniel.pipeline.tasks.summarise import TRIES, run_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Finding(Struct, frozen=True):
    """The result for one file. `wrong` is the damage at byte `at`, with `unread_bytes` from there; `torn`: it is only a
    torn end. `strays` counts records without effect, such as a removal of no item. `flaws` has bytes that differ from
    what was written; None: there are no checksums.
    """

    queue: str
    file: str
    bytes: int
    items: int
    wrong: str = ""
    at: int = 0
    torn: bool = False
    strays: int = 0
    flaws: list[Flaw] | None = None
    unread_bytes: int = 0

    @property
    def bad(self) -> bool:
        return (bool(self.wrong) and not self.torn) or bool(self.flaws)

    def lines(self) -> Iterator[str]:
        """Yield the lines that people read."""
        state = "damaged" if self.bad else "torn end" if self.torn else "ok"
        strays = f", {self.strays} records met nothing" if self.strays else ""
        yield f"{self.file}: {self.bytes:,} bytes, {self.items:,} items: {state}{strays}"
        if self.wrong:
            yield Flaw(self.at, self.unread_bytes, self.wrong, self.torn).describe(self.file)
        for flaw in self.flaws or ():
            yield flaw.describe(self.file)


def verify(spark: SparkSession, path: str, given: Mapping[str, str]) -> list[Finding]:
    """Return one finding for each file, in order. A queue is in one task. Queues whose files change meanwhile are read
    again; a deleted one has no finding. Raises FileVanished if files keep changing.
    """
    options = JournalOptions({**given, "path": path})
    place = folder(options.path)
    form, by_queue = list_segments(place, options.format)
    check_wanted(place, options, form, by_queue)
    reading = msgspec.structs.replace(
        options.reading, on_corrupt=OnCorrupt.PERMISSIVE, include_value=False, use_summaries=False
    )
    findings: dict[str, list[Finding]] = {}
    missed: dict[str, FileVanished] = {}
    for _ in range(TRIES):
        names = sorted(name for name in by_queue if name in options.queues and name not in findings)
        tasks = [(options.path, form.name, Part(name, by_queue[name]), reading) for name in names]
        results = dict(zip(names, run_each(spark, tasks, _verify, lambda task: task[2].bytes), strict=True))
        findings |= {name: result for name, result in results.items() if not isinstance(result, FileVanished)}
        missed = {name: result for name, result in results.items() if isinstance(result, FileVanished)}
        if not missed:
            break
        form, by_queue = list_segments(place, options.format)
    else:
        raise FileVanished(f"queues {', '.join(missed)}, at each of {TRIES} tries: {next(iter(missed.values()))}")
    return [finding for _, of_queue in sorted(findings.items()) for finding in of_queue]


def _verify(task: tuple[str, str, Part, Reading]) -> list[Finding]:
    path, name, part, reading = task
    place = pinned_to(folder(path), FORMATS[name](), part.segments)
    if name != "kestrel":
        return _by_rows(place, name, part, reading)
    from staniel.pipeline.formats.kestrel.queue import summarise_queue

    findings = []
    for one in summarise_queue(place, part.segments, reading):
        segment, damage = one.segment, one.damage
        flaws = _unlike(place, segment)
        finding = Finding(
            part.queue, segment.file, segment.bytes, one.summary.added, "", 0, False, one.facts.strays, flaws
        )
        if damage is not None:
            finding = msgspec.structs.replace(
                finding, wrong=damage.why, at=damage.at, torn=damage.is_torn, unread_bytes=damage.lost_bytes
            )
        findings.append(finding)
    return findings


def _unlike(place: Folder, segment: JournalSegment) -> list[Flaw] | None:
    from staniel.pipeline.formats.kestrel.queue import load_sidecar

    described = None if segment.live else load_sidecar(place, segment.file)
    if described is None or described.file != segment.file:
        return None
    return verify_checksums(described, FolderFs(place, segment.end), segment.file)


def _by_rows(place: Folder, name: str, part: Part, reading: Reading) -> list[Finding]:
    """Verify a file of a format without summaries: report the damage that the view `ops` finds."""
    view = FORMATS[name]().view("ops")
    findings = []
    for segment in part.segments:
        noted: list[Damage] = []
        batches = view(place, Part(part.queue, [segment]), msgspec.structs.replace(reading, damages=noted))
        items = sum(batch["_corrupt"].null_count for batch in batches)
        finding = Finding(part.queue, segment.file, segment.bytes, items)
        if damages := [damage for damage in noted if damage.file == segment.file]:
            wrong, at, torn = damages[-1].why, damages[-1].at, all(damage.is_torn for damage in damages)
            unread_bytes = segment.end - at
            finding = msgspec.structs.replace(finding, wrong=wrong, at=at, torn=torn, unread_bytes=unread_bytes)
        findings.append(finding)
    return findings
