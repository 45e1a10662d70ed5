"""Broken rules of queues and their journals, and the list of all mutants.

A mutant is a context manager that replaces a right function by a wrong one. tests/sim/mutants.md lists the seeds that
find them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from staniel.journal.background import SyncFile
from staniel.journal.disk.fs import Fs, SyncFailed
from staniel.journal.disk.removal import RemovalList
from staniel.journal.disk.unsynced_names import UnsyncedNames
from staniel.journal.group_commit import GroupCommit, Sync
from staniel.journal.kestrel.install import InstallPack
from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.pack import Pack, Stage
from staniel.journal.kestrel.recovery import Recovery
from staniel.journal.spool import Spool
from staniel.journal.transfer_log import TransferLog
from staniel.queues.contents import QueueContents
from staniel.queues.line import Line
from staniel.queues.queue import Queue
from staniel.queues.time_outs import QueueReads
from staniel.sim.disk.disk import Disk

Mutant = Callable[[], Any]
MUTANTS: dict[str, tuple[Mutant, str]] = {}
"""Mutants by the sentence that describes the broken rule: the context manager, and the profile in which it is found."""


def mutant(what: str, profile: str) -> Callable[[Mutant], Mutant]:
    """Register a mutant under the sentence `what`, with the profile in which it is found."""

    def register(make: Mutant) -> Mutant:
        MUTANTS[what] = make, profile
        return make

    return register


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace `owner.name` by `make(the right one)` within this context."""
    right = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, make(right))
    try:
        yield
    finally:
        setattr(owner, name, right)


def unlisted(make: Mutant) -> Mutant:
    """Leave out the lists of removals within a mutant: their steps and syncs would cover what the broken rule loses."""

    @contextmanager
    def both() -> Iterator[None]:
        with (
            replaced(RemovalList, "write", lambda right: lambda self, names: None),
            replaced(RemovalList, "drop", lambda right: lambda self: None),
            make(),
        ):
            yield

    return both


@contextmanager
def silent_during(owner: Any, name: str, verb: str) -> Iterator[None]:
    """Suppress the disk's `verb` while `owner.name` runs."""
    inside = [0]

    def outer(right: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            inside[0] += 1
            try:
                return right(*args, **kwargs)
            finally:
                inside[0] -= 1

        return call

    def inner(right: Any) -> Any:
        return lambda *args: None if inside[0] else right(*args)

    with replaced(owner, name, outer), replaced(Disk, verb, inner):
        yield


# the order of a rewrite and of a rotation


@mutant("a rewrite renames its file without syncing it", "power")
def no_sync_before_rename() -> Any:
    return silent_during(Log, "_write_synced", "sync_inode")


@mutant("a rotation seals a file that it has not synced", "packing")
def rotation_unsynced() -> Any:
    return silent_during(Log, "rotate", "sync_inode")


@mutant("no folder is ever synced", "power")
def no_folder_sync() -> Any:
    return replaced(Disk, "sync_folder", lambda right: lambda self, folder: None)


@mutant("a pack is put in place unsynced", "packing")
def pack_unsynced() -> Any:
    return replaced(SyncFile, "work", lambda right: lambda self: None)


@mutant("a pack does not wait for the records that it rests on", "packing")
def pack_unsafe() -> Any:
    def make(right: Any) -> Any:
        def skip_sync(self: Pack, now_ms: int) -> None:
            if self.stage is Stage.SYNCED:
                self.stage = Stage.SAFE
            right(self, now_ms)

        return skip_sync

    return replaced(Pack, "run_slice", make)


@mutant("the old files go before their pack is in place", "packing")
def old_order() -> Any:
    def make(right: Any) -> Any:
        def work(self: InstallPack) -> None:
            for name in self._covered:
                self._fs.remove(f"{self._folder}/{name}")
            self._fs.sync_folder(self._folder)
            temp, _, sealed = self._names
            self._fs.rename(f"{self._folder}/{temp}", f"{self._folder}/{sealed}")
            self._fs.sync_folder(self._folder)

        return work

    return replaced(InstallPack, "work", make)


@mutant("a pack gets its last name before the old files are gone", "packing")
def pack_named_first() -> Any:
    def name_pack_first(fs: Fs, folder: str, pack: str, sealed: str, covered: list[str]) -> None:
        fs.rename(f"{folder}/{pack}", f"{folder}/{sealed}")
        for name in covered:
            if name != sealed:
                fs.remove(f"{folder}/{name}")
        fs.sync_folder(folder)

    @contextmanager
    def everywhere() -> Iterator[None]:
        with ExitStack() as stack:
            for module in list(sys.modules.values()):
                if getattr(module, "__name__", "").startswith("staniel.journal.") and hasattr(module, "finish_pack"):
                    stack.enter_context(replaced(module, "finish_pack", lambda right: name_pack_first))
            yield

    return everywhere()


# acknowledgements


@mutant("a reply leaves when its sync starts", "power")
def reply_before_durable() -> Any:
    def make(right: Any) -> Any:
        def start_sync(self: GroupCommit, now_ms: int) -> Sync | None:
            sync: Sync | None = right(self, now_ms)
            if sync is not None:
                self.durable = sync.batch
            return sync

        return start_sync

    return replaced(GroupCommit, "start_sync", make)


@mutant("replies depend on nothing", "power")
def no_batch() -> Any:
    def make(right: Any) -> Any:
        def mark_dirty(self: GroupCommit, member: Any) -> None:
            right(self, member)
            member.batch = 0

        return mark_dirty

    return replaced(GroupCommit, "mark_dirty", make)


@mutant("every other batch is written a tick late", "kill")
def reply_before_write() -> Any:
    def make(right: Any) -> Any:
        def write(self: GroupCommit, now_ms: int) -> Any:
            self.__dict__["turns"] = self.__dict__.get("turns", 0) + 1
            return right(self, now_ms) if self.__dict__["turns"] % 2 else []

        return write

    return replaced(GroupCommit, "write", make)


@mutant("a duration is never synced", "lax")
def duration_unsynced() -> Any:
    def make(right: Any) -> Any:
        def sync_never(self: GroupCommit, file: Any, sync_ms: int, now_ms: int) -> None:
            right(self, file, -1, now_ms)

        return sync_never

    return replaced(GroupCommit, "_sync_later", make)


@mutant("a failed sync is tried again", "syncs")
def sync_again() -> Any:
    def guard(self: UnsyncedNames, work: Callable[..., None], *args: Any) -> None:
        try:
            work(*args)
        except SyncFailed:
            work(*args)

    return replaced(UnsyncedNames, "guard", lambda right: guard)


# what is recorded


@mutant("of two removals in one batch one is recorded", "kill")
def removals_miscounted() -> Any:
    def make(right: Any) -> Any:
        def record_removed(self: Log, item_id: int) -> None:
            pending = getattr(self, "_pending", ())
            if not pending or pending[-1] != b"\x01":
                right(self, item_id)

        return record_removed

    return replaced(Log, "record_removed", make)


@mutant("a close is not recorded", "kill")
def close_unrecorded() -> Any:
    return replaced(Log, "record_confirmed", lambda right: lambda self, item_id, xid: None)


@mutant("a confirmed read is not taken off the list", "calm")
def confirmed_twice() -> Any:
    def make(right: Any) -> Any:
        def confirm(self: Queue, taken: Any) -> bool:
            done: bool = right(self, taken)
            if done:
                self.open_reads[taken.xid] = taken
            return done

        return confirm

    return replaced(Queue, "confirm", make)


@mutant("what a short write has left stays, and is written again", "full-disk")
def short_write_left() -> Any:
    return silent_during(Log, "write", "truncate")


# order and holders


@mutant("an aborted item goes to the end of the line", "calm")
def abort_to_the_end() -> Any:
    def make(right: Any) -> Any:
        def give_back(self: Line, taken: Any) -> None:
            self.append(taken.item)

        return give_back

    return replaced(Line, "give_back", make)


@mutant("an opened item stays in the line", "calm")
def open_stays() -> Any:
    def make(right: Any) -> Any:
        def open_read(self: Queue, now_ms: int) -> Any:
            taken = right(self, now_ms)
            if taken is not None:
                self.line.give_back(taken)
            return taken

        return open_read

    return replaced(Queue, "open", make)


@mutant("a time-out loses its item", "calm")
def timeout_loses() -> Any:
    def make(right: Any) -> Any:
        def end(self: Queue, taken: Any, now_ms: int) -> None:
            del self.open_reads[taken.xid]

        return end

    return replaced(QueueReads, "end_read", make)


@mutant("items are counted twice", "calm")
def counted_twice() -> Any:
    def make(right: Any) -> Any:
        def add(self: Queue, item: Any, now_ms: int, *, forced: bool = False) -> bool:
            self.counters.total_items += 1
            return bool(right(self, item, now_ms, forced=forced))

        return add

    return replaced(Queue, "add", make)


# recovery


@mutant("recovery forgets what was open", "kill")
def open_reads_forgotten() -> Any:
    return replaced(
        QueueReads, "return_open_reads", lambda right: lambda self, now_ms, on_ended: self.open_reads.clear()
    )


@mutant("recovery hands open reads back whatever max_deliveries says", "deliveries")
def deliveries_uncounted() -> Any:
    def make(right: Any) -> Any:
        def returns(self: Queue, now_ms: int, on_ended: Any = None) -> None:
            for xid in sorted(self.open_reads, reverse=True):
                self.give_back(self.open_reads.pop(xid))

        return returns

    return replaced(QueueReads, "return_open_reads", make)


@mutant("recovery leaves a torn end where it is", "power")
def torn_end_left() -> Any:
    return replaced(Recovery, "_cut", lambda right: lambda self, damage: damage)


@mutant("recovery does not sync what a killed server has written", "kill")
def recovery_unsynced() -> Any:
    return silent_during(Spool, "sync_recovered", "sync_all")


# transfers


@mutant("an intent is not synced before its copy", "transfers")
def intent_unsynced() -> Any:
    return silent_during(TransferLog, "write_and_sync", "sync_inode")


@mutant("a transfer's removal does not wait for the copy", "transfers")
def removal_first() -> Any:
    def make(right: Any) -> Any:
        def call_when_durable(self: GroupCommit, member: Any, then: Any, *, patiently: bool = False) -> None:
            self.after_now = [*getattr(self, "after_now", ()), then]  # type: ignore[attr-defined]
            if len(self.after_now) == 1:  # type: ignore[attr-defined]
                while self.after_now:  # type: ignore[attr-defined]
                    self.after_now[0](0)  # type: ignore[attr-defined]
                    self.after_now = self.after_now[1:]  # type: ignore[attr-defined]

        return call_when_durable

    return replaced(GroupCommit, "call_when_durable", make)


@mutant("recovery ignores intents", "transfers")
def intents_ignored() -> Any:
    return replaced(TransferLog, "read", lambda right: lambda self: [])


@mutant("a transfer is never removed from its source", "transfers")
def never_released() -> Any:
    return replaced(QueueContents, "release", lambda right: lambda self, taken: None)


__all__ = ["MUTANTS", "replaced", "silent_during"]
