"""Report items that cannot be read any more, and quarantine copies of their bytes."""

from __future__ import annotations

from staniel.broker.events import EventSink, Level
from staniel.journal.disk.quarantine import quarantine
from staniel.journal.kestrel.files import damaged_folder
from staniel.journal.kestrel.read_behind import UnreadableItems
from staniel.journal.kestrel.segments import Segments


def report_unreadable(report: EventSink, queue: str, lost: UnreadableItems, saved_as: str) -> None:
    """Report one event: file, first byte, number of bytes, number of items."""
    fields = {"file": lost.file, "at": lost.at, "bytes": lost.size, "items": lost.count, "why": lost.why}
    report(Level.ERROR, "journal.unreadable_items", queue=queue, **fields, saved_as=saved_as)


def report_and_quarantine(report: EventSink, queue: str, segments: Segments, unreadable: list[UnreadableItems]) -> None:
    """Keep copies of all these bytes, and empty the list. If a copy cannot be made, the file itself stays."""
    folder = segments.folder
    for lost in unreadable:
        try:
            saved_as = quarantine(segments.fs, f"{folder}/{lost.file}", lost.at, lost.size, damaged_folder(folder))
        except OSError as error:
            saved_as = f"not saved: {error.strerror}"
        report_unreadable(report, queue, lost, saved_as)
    unreadable.clear()
