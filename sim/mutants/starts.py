"""Broken rules of starts: what they make of files that a crash has left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from msgspec import structs

from staniel.broker.operations import undo_recovery
from staniel.journal.disk.fs import MISSING, Fs
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel import find_copies, install
from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.kestrel.replay import Replay
from staniel.journal.libkestrel import files as libkestrel_files
from staniel.journal.redo import records
from staniel.journal.redo.log import RedoLog
from staniel.journal.spool import Spool
from staniel.journal.workq import files as workq_files
from staniel.journal.workq import records as workq_records
from staniel.journal.workq.layout import NS_A_SECOND
from staniel.queues.queue import Queue
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced, unlisted


@mutant("flags whose item is cut off are taken for the number of a transaction", "hub-torn-groups")
def torn_flags_believed() -> Any:
    def make(right: Any) -> Any:
        return lambda self, is_sealed: right(self, is_sealed=True)

    return replaced(Replay, "end_file", make)


@mutant("a purge's numbers of transactions are compared as if they did not wrap", "hub-wrapped")
def numbers_of_purges_do_not_wrap() -> Any:
    return replaced(undo_recovery, "steps_past", lambda right: lambda last, xid: xid - last)


@mutant("an empty journal that is written anew forgets the number of the last transaction", "wrapped")
def empty_journal_forgets_its_counter() -> Any:
    def make(right: Any) -> Any:
        def snapshot(self: Encoder, counter: int, opened: Any, items: Any) -> Any:
            if opened or items:
                yield from right(self, counter, opened, items)
            self.counter = counter

        return snapshot

    return replaced(Encoder, "snapshot", make)


@mutant("a start numbers transactions from 1 again", "hub-undo")
def transactions_numbered_anew() -> Any:
    def make(right: Any) -> Any:
        return lambda self, line, open_reads, last_xid: right(self, line, open_reads, 0)

    return replaced(Queue, "load", make)


@mutant("a start takes a segment whose number has more than 18 digits for none", "last-segments")
def long_numbers_are_foreign() -> Any:
    short = r"([A-Za-z0-9:_-]+)\.(?:([0-9]{1,18})(~~[0-9]+)?|read\.([^/]*))"
    return replaced(libkestrel_files, "PATTERN", lambda right: re.compile(short, re.DOTALL))


@mutant("a search takes archives above 2**63 for newer than the current file", "last-files")
def the_current_file_is_not_last() -> Any:
    return replaced(find_copies, "CURRENT", lambda right: 2**63 - 1)


@mutant("a rewritten journal has expiries in seconds of 31 bits", "borders-of-time")
def expiries_of_31_bits() -> Any:
    def make(right: Any) -> Any:
        def addx(self: Encoder, item: Any) -> bytes:
            cut = item.expires_ms % (1000 << 31)
            record: bytes = right(self, structs.replace(item, expires_ms=cut))
            return record

        return addx

    return replaced(Encoder, "addx", make)


@mutant("a start reads the seconds of jobs as 32 bits with a sign", "jobs-borders-of-time")
def seconds_of_32_bits() -> Any:
    def make(right: Any) -> Any:
        def read_time(data: bytes, at: int) -> int:
            seconds, nanos = divmod(right(data, at), NS_A_SECOND)
            return int(((seconds + (1 << 31)) % (1 << 32) - (1 << 31)) * NS_A_SECOND + nanos)

        return read_time

    return replaced(workq_records, "read_time", make)


@mutant("a command log goes on behind the last number of a segment", "jobs-last-segments")
def segments_behind_the_last() -> Any:
    return replaced(workq_files, "NUMBER_MAX", lambda right: 10 * right)


@mutant("a redo log that has run out of numbers gives them to other files", "redo-last-files")
def numbers_in_redo_log_used_again() -> Any:
    def make(right: Any) -> Any:
        def may_bind(self: RedoLog, file: Any, *, has_data: bool) -> bool:
            if self._files >= records.FILES_MAX:
                self._files = 0
            answer: bool = right(self, file, has_data=has_data)
            return answer

        return may_bind

    return replaced(RedoLog, "_may_bind", make)


@mutant("what a killed process has removed counts as gone from the disk", "killed-then-cut")
@unlisted
@contextmanager
def absence_believed() -> Iterator[None]:
    """Let recovery not sync the names that it finds, as if missing sidecars needed no sync."""

    def sync_if_removed(fs: Fs, folder: str, names: list[str]) -> None:
        removed = False
        for name in names:
            with suppress(*MISSING):
                fs.remove(kestrel_files.sidecar_path(folder, name))
                removed = True
        if removed:
            fs.sync_folder(kestrel_files.sidecar_folder(folder))

    def work(self: install.InstallPack) -> None:
        temp, pack, sealed = self._names
        self._fs.rename(f"{self._folder}/{temp}", f"{self._folder}/{pack}")
        self.has_begun = True
        self._fs.sync_folder(self._folder)
        install.finish_pack(self._fs, self._folder, pack, sealed, self._covered)

    with (
        replaced(Spool, "_settle_names", lambda right: lambda self: None),
        replaced(install, "remove_sidecars", lambda right: sync_if_removed),
        replaced(install.InstallPack, "work", lambda right: work),
    ):
        yield


__all__ = ["MUTANTS"]
