"""Broken rules of libkestrel's format: of segments, of readers' files, of the steps between them."""

from __future__ import annotations

from typing import Any

from staniel.journal.interval_set import IntervalSet
from staniel.journal.libkestrel.cutting import CutSegment
from staniel.journal.libkestrel.family import StreamJournal
from staniel.journal.libkestrel.position import Position
from staniel.journal.libkestrel.reader import ReaderLog
from staniel.journal.libkestrel.segments import SegmentCut, StreamSegments
from staniel.journal.libkestrel.writer import StreamWriter
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced, silent_during


@mutant("a reader's file is never written", "libkestrel")
def reader_unwritten() -> Any:
    def make(right: Any) -> Any:
        def write(self: ReaderLog) -> Any:
            self._is_dirty = False
            return self.file

        return write

    return replaced(ReaderLog, "write", make)


@mutant("what is put to one reader is not confirmed for the others", "readers")
def pass_over_forgotten() -> Any:
    def make(right: Any) -> Any:
        def confirm(self: ReaderLog, first: int, last: int) -> None:
            if first != self.line.stream.last_id:
                right(self, first, last)

        return confirm

    return replaced(ReaderLog, "confirm", make)


@mutant("a reader's file learns only behind an item that it is not for this reader", "readers")
def left_out_late() -> Any:
    def make(right: Any) -> Any:
        return lambda self: self.left_out.clear()

    return replaced(StreamWriter, "_write_left_out", make)


@mutant("a segment goes when the first of its readers has passed it", "readers")
def removed_early() -> Any:
    def make(right: Any) -> Any:
        def drop_through(self: StreamJournal) -> None:
            heads = [reader.position.head for reader in self.readers.values()]
            gone = self.segments.drop_through(max(heads, default=0))
            for segment in gone:
                self.fs.remove(f"{self.folder}/{segment.name}")

        return drop_through

    return replaced(StreamJournal, "_remove_read_segments", make)


@mutant("a segment is left behind unsynced, whatever was promised", "readers")
def rotation_unsynced() -> Any:
    return silent_during(StreamWriter, "_rotate", "sync_inode")


@mutant("a new reader's file is not synced before its name", "readers")
def reader_unsynced() -> Any:
    return silent_during(ReaderLog, "_install", "sync_inode")


@mutant("a position beyond the newest item is believed", "libkestrel")
def position_believed() -> Any:
    return replaced(Position, "reconcile", lambda right: lambda self, segments: None)


@mutant("recovery forgets what was confirmed out of order", "libkestrel")
def done_forgotten() -> Any:
    def make(right: Any) -> Any:
        def reconcile(self: Position, segments: StreamSegments) -> None:
            self.done = IntervalSet()
            right(self, segments)

        return reconcile

    return replaced(Position, "reconcile", make)


@mutant("items are as safe as the parent wants them, whatever its children want", "readers")
def parent_decides() -> Any:
    return replaced(StreamJournal, "update_sync_policy", lambda right: lambda self: None)


@mutant("a cut of a segment takes the first item that a reader needs", "cut-segments")
def cut_too_far() -> Any:
    return replaced(StreamSegments, "cut_through", lambda right: lambda self, head: right(self, head + 1))


@mutant("a cut segment takes the whole one's name unsynced", "cut-segments")
def cut_unsynced() -> Any:
    return silent_during(CutSegment, "work", "sync_inode")


@mutant("items of a cut segment are looked up where they were before", "cut-segments")
def cut_not_indexed() -> Any:
    def make(right: Any) -> Any:
        def cut_files_only(self: StreamSegments, cut: SegmentCut) -> None:
            self._cached = None

        return cut_files_only

    return replaced(StreamSegments, "cut", make)


@mutant("segments of a deleted queue go before its reader's file says that all is read", "redo-last-files")
def deleted_unread() -> Any:
    return replaced(StreamJournal, "_is_confirmed_first", lambda right: lambda self, reader: False)


__all__ = ["MUTANTS"]
