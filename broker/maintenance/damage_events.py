"""Events about damage of journals and about files that could not be removed; and copies of unreadable bytes in
quarantine.
"""

from __future__ import annotations

from staniel.broker.events import EventSink, Level
from staniel.journal.disk.quarantine import quarantine
from staniel.journal.disk.refusals import described, remedy_in_service
from staniel.journal.errors import Damage
from staniel.journal.kestrel.files import damaged_folder
from staniel.journal.kestrel.read_behind import UnreadableItems
from staniel.journal.kestrel.segments import Segments


def report_unreadable(report: EventSink, queue: str, lost: UnreadableItems, saved_as: str) -> None:
    """Report one event: file, first byte, number of bytes, number of items."""
    fields = {"file": lost.file, "at": lost.at, "bytes": lost.size, "items": lost.count, "why": lost.why}
    report(Level.ERROR, "journal.unreadable_items", queue=queue, **fields, saved_as=saved_as)


def report_and_quarantine(report: EventSink, queue: str, segments: Segments, unreadable: list[UnreadableItems]) -> None:
    """Keep copies of all these bytes, then empty the list. If a copy cannot be made, keep the file itself."""
    folder = segments.folder
    for lost in unreadable:
        try:
            saved_as = quarantine(segments.fs, f"{folder}/{lost.file}", lost.at, lost.size, damaged_folder(folder))
        except OSError as error:
            saved_as = f"not saved: {error.strerror}"
        report_unreadable(report, queue, lost, saved_as)
    unreadable.clear()


def report_damages(report: EventSink, name: str, damages: list[Damage]) -> None:
    """Report damages of a queue's journal. A torn end of the current file is only a warning: a killed server leaves
    one.
    """
    for damage in damages:
        report(
            Level.WARNING if damage.is_torn else Level.ERROR,
            "journal.torn" if damage.is_torn else "journal.damaged",
            queue=name,
            file=damage.file,
            at=damage.at,
            unread_bytes=damage.lost_bytes,
            why=damage.why,
            saved_as=damage.saved_as,
        )


def report_left(report: EventSink, name: str, refused: list[OSError]) -> None:
    """Report temporary files and empty packs that the system refuses to remove."""
    for error in refused:
        todo = remedy_in_service(error, "make it removable for this user")
        hint = f"the file is not needed any more; {todo}; each start tries to remove it"
        report(Level.WARNING, "journal.unremoved", queue=name, why=described(error), hint=hint)
