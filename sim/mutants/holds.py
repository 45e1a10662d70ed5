"""Broken rules of retention holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from staniel.broker.operations import holds as operations
from staniel.broker.operations.holds import Holds, SaveHolds
from staniel.journal import kept_files
from staniel.journal.disk.fs import Fs, is_there
from staniel.journal.disk.unsynced_names import UnsyncedNames
from staniel.journal.holds import FilePlace, Hold
from staniel.journal.kept_files import FileKeeper
from staniel.journal.kestrel import log
from staniel.journal.libkestrel import writer
from staniel.journal.workq import log as cmdlog
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced, silent_during

__all__ = ["MUTANTS"]


@mutant("a file that another one replaces is not kept for its hold", "jobs-holds")
def replaced_unkept() -> Any:
    return replaced(UnsyncedNames, "_keep_before_rename", lambda right: lambda self, old, new: None)


@mutant("files are removed that a hold needs", "holds")
def removed_unkept() -> Any:
    return replaced(FileKeeper, "keep", lambda right: lambda self, folder, names: None)


@mutant("the current file of a held queue is rewritten in place", "holds")
def rewritten_in_place() -> Any:
    return replaced(log, "is_held_queue", lambda right: lambda fs, queue: False)


@mutant("a kept file is not synced", "holds")
def kept_unsynced() -> Any:
    return silent_during(FileKeeper, "_link_all", "sync_inode")


@mutant("the name of a kept file is not synced", "holds")
def name_unsynced() -> Any:
    return silent_during(FileKeeper, "keep", "sync_folder")


@mutant("kept files go before the move that gives them up is durable", "holds")
def pruned_first() -> Any:
    def make(right: Any) -> Any:
        def work(self: SaveHolds) -> None:
            self._keeper.prune(self._holds)
            right(self)

        return work

    return replaced(SaveHolds, "work", make)


@mutant("a hold is acknowledged before it is durable", "holds")
def saved_unsynced() -> Any:
    return silent_during(FileKeeper, "save", "sync_inode")


@mutant("a hold moves back", "holds")
def moves_back() -> Any:
    def make(right: Any) -> Any:
        def never(hold: Hold, passed: Mapping[str, str], known: Any) -> str:
            return str(right(structs.replace(hold, passed={}), passed, lambda place: True))

        return never

    return replaced(operations, "move_error", make)


@mutant("a hold grows beyond its limit", "holds")
def unlimited() -> Any:
    return replaced(Holds, "check_limits", lambda right: lambda self, now_ms: None)


@mutant("a segment that a holder may have read grows after a crash", "holds")
def grows_again() -> Any:
    return replaced(writer, "is_held", lambda right: lambda fs, queue: False)


@mutant("a segment of a command log that a holder may have read grows after a crash", "jobs-holds")
def cmdlog_grows_again() -> Any:
    return replaced(cmdlog, "is_held", lambda right: lambda fs, queue: False)


@mutant("a pack that could not take the name of its archive is kept in the place of that", "holds-faults")
def pack_for_archive() -> Any:
    def make(right: Any) -> Any:
        def present(fs: Fs, folder: str, place: FilePlace, name: str) -> str:
            return f"{folder}/{name}" if is_there(fs, f"{folder}/{name}") else ""

        return present

    return replaced(kept_files, "_present", make)


@mutant("a new queue numbers its files without regard to those that a hold keeps", "holds")
def numbered_anew() -> Any:
    return replaced(FileKeeper, "last_number", lambda right: lambda self, queue: 0)


@mutant("a link of a killed process counts as kept", "holds")
def killed_counts() -> Any:
    return replaced(FileKeeper, "_is_same", lambda right: lambda self, path, other: False)


@mutant("a hold takes over its predecessor's files", "holds-faults")
def taken_over() -> Any:
    return replaced(FileKeeper, "clear_for", lambda right: lambda self, holds: None)
