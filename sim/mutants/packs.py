"""Broken rules of damage: what is believed behind it, what cleaning and packs leave over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from staniel.broker.maintenance.packing import PackScheduler
from staniel.journal.disk.fs import File, Fs
from staniel.journal.disk.removal import RemovalList
from staniel.journal.group_commit import JournalFailure
from staniel.journal.kestrel import install, pack
from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.pack import Pack
from staniel.journal.kestrel.read_behind import ReadBehind
from staniel.journal.kestrel.recovery import Recovery
from staniel.journal.workq.cleaning import Rewrite
from staniel.journal.workq.records import find_frame
from staniel.journal.workq.segments import SegmentReader
from staniel.queues.item import Item
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced


@mutant("behind a torn record of a command log its payload is searched for the next one", "jobs-forged")
def payload_searched() -> Any:
    def make(right: Any) -> Any:
        def search(self: SegmentReader, bad_at: int) -> int:
            data = self._read(bad_at + 1, self.size)
            return bad_at + 1 + find_frame(data, 0, complete=True)

        return search

    return replaced(SegmentReader, "_resume_after", make)


@mutant("cleaning drops results that stand in an older segment than their addition", "jobs-forged")
def early_result_dropped() -> Any:
    return replaced(Rewrite, "_may_concern", lambda right: lambda self, job: job.origin <= self.segment.number)


@mutant("a pack meets what an earlier one could not remove", "packs")
def leftover_met() -> Any:
    def append_only(fs: Fs, path: str) -> File:
        file = fs.append(path)
        assert file.size == 0
        return file

    return replaced(pack, "create_empty", lambda right: append_only)


@mutant("stand-ins of a pack are handed out", "packs")
def stand_ins_served() -> Any:
    return replaced(Recovery, "drop_stand_ins", lambda right: lambda self, recovered: None)


@mutant("stand-ins in front of the item that is read back count as lost", "packing")
def taken_counted_as_lost() -> Any:
    def make(right: Any) -> Any:
        def consume(self: ReadBehind, items: list[Item], count_max: int) -> Any:
            self._wanted = 0
            return right(self, items, count_max)

        return consume

    return replaced(ReadBehind, "_consume", make)


@mutant("a pack gets its last name though a file that it covers could not be removed", "unremoved")
def renamed_beside_old_files() -> Any:
    def remove(fs: Any, folder: str, names: list[str]) -> None:
        for name in names:
            with suppress(OSError):
                fs.remove(f"{folder}/{name}")

    return replaced(install, "remove_each", lambda right: remove)


@mutant("a pack forgets the files that the one before it could not remove", "unremoved")
def refused_files_forgotten() -> Any:
    def make(right: Any) -> Any:
        return lambda self, last: [segment.name for segment in self.segments.covered_by(last)]

    return replaced(Log, "files_through", make)


@mutant("files are removed without a list of their names", "names-in-doubt")
def removals_unlisted() -> Any:
    return replaced(RemovalList, "write", lambda right: lambda self, names: None)


@mutant("a deletion gives a file that it has not synced the name of a sealed one", "half-packs")
def current_left_unsynced() -> Any:
    return replaced(Log, "_complete_current", lambda right: lambda self: None)


@mutant("a pack that stops half way into its place ends the process with the scheduler's next step alone", "half-packs")
@contextmanager
def half_pack_noted() -> Iterator[None]:
    failures: dict[Pack, JournalFailure] = {}

    def installed(right: Any) -> Any:
        def note_failure(self: Pack, error: OSError | None, now_ms: int) -> None:
            try:
                right(self, error, now_ms)
            except JournalFailure as failure:
                failures[self] = failure

        return note_failure

    def next_step(right: Any) -> Any:
        def run_slice(self: PackScheduler, now_ms: int) -> None:
            if self._pack in failures:
                raise failures[self._pack]
            right(self, now_ms)

        return run_slice

    with replaced(Pack, "_installed", installed), replaced(PackScheduler, "run_slice", next_step):
        yield


__all__ = ["MUTANTS"]
