"""Broken rules of failed syncs, changed policies, and families of which some keep no journal."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from staniel.broker.streams import StreamQueues, set_aside
from staniel.journal.disk.failed_sync import ROOM_SUFFIX, FailedSyncMarker, RenewalGroup
from staniel.journal.disk.fs import FULL_ERRNOS, SyncFailed
from staniel.journal.disk.unsynced_names import NamedFile, UnsyncedNames
from staniel.journal.group_commit import GroupCommit
from staniel.journal.kestrel.log import Log
from staniel.journal.libkestrel.family import StreamJournals
from staniel.journal.renewal import Renewal
from staniel.journal.transfer_log import TransferLog
from staniel.queues.registry import Queues
from staniel.queues.stream.queue import StreamQueue
from staniel.sim.disk.disk import Disk
from staniel.sim.mutants.queues import MUTANTS, Mutant, mutant, replaced, unlisted


@contextmanager
def lenient_during(owner: Any, name: str, *, whatever: bool = False, silent: bool = False) -> Iterator[None]:
    """Treat a sync that fails for want of room (or, with `whatever`, for any reason) while `owner.name` runs as an
    ordinary error; with `silent`, as no error.
    """
    inside = [0]

    def outer(right: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            inside[0] += 1
            try:
                return right(*args, **kwargs)
            finally:
                inside[0] -= 1

        return call

    def guard(right: Any) -> Any:
        def call(self: UnsyncedNames, work: Callable[..., None], *args: Any) -> None:
            def softened() -> None:
                try:
                    work(*args)
                except SyncFailed as error:
                    if silent:
                        return
                    if whatever or error.errno in FULL_ERRNOS:
                        raise OSError(error.errno, error.strerror, error.filename) from error
                    raise

            right(self, softened) if inside[0] else right(self, work, *args)

        return call

    def sync(right: Any) -> Any:
        def call(self: NamedFile) -> None:
            if not inside[0]:
                right(self)
                return
            try:
                self._file.sync()
            except SyncFailed as error:
                if silent:
                    return
                raise OSError(error.errno, error.strerror, error.filename) from error
            self.safe_bytes = self.size

        return call

    with replaced(owner, name, outer), replaced(UnsyncedNames, "guard", guard), replaced(NamedFile, "sync", sync):
        yield


def crowded(make: Mutant) -> Mutant:
    """Let the disk have no room for the mark of a failed sync within a mutant, except the room that is kept for it."""

    def filled(right: Any) -> Any:
        def record_failure(self: FailedSyncMarker) -> None:
            disk = self._fs.beneath
            assert isinstance(disk, Disk)
            disk.fail("write", "failed_sync", errno.ENOSPC, times=2)
            right(self)

        return record_failure

    @contextmanager
    def both() -> Iterator[None]:
        with replaced(FailedSyncMarker, "record_failure", filled), make():
            yield

    return both


@mutant("a sync without room in a rewrite counts as a full disk", "syncs")
def full_in_rewrite() -> Any:
    return lenient_during(Log, "rewrite")


@mutant("a sync without room in a rotation counts as a full disk", "kinds-of-syncs")
def full_in_rotation() -> Any:
    return lenient_during(Log, "rotate")


@mutant("a sync of intents without room is tried again", "kinds-of-syncs")
@unlisted
def full_in_intents() -> Any:
    return lenient_during(TransferLog, "write_and_sync")


@mutant("a reload that makes a policy stricter asks for no sync", "reloads")
def tightened_silently() -> Any:
    return replaced(GroupCommit, "tighten", lambda right: lambda self, member: None)


@mutant("the mark of a failed sync is left half written and believed where there is no room", "kinds-of-syncs")
@contextmanager
def half_a_mark() -> Iterator[None]:
    def make(right: Any) -> Any:
        def record_failure(self: FailedSyncMarker) -> None:
            names, files = self._fs.changed_names(), self._fs.unsynced_files()
            with suppress(OSError):
                self._write([[*names], *({"file": path} for path in files), None])  # type: ignore[list-item]

        return record_failure

    def believed(right: Any) -> Any:
        def read(self: FailedSyncMarker) -> Any:
            mark = right(self)
            mark.is_torn = False
            return mark

        return read

    with replaced(FailedSyncMarker, "record_failure", make), replaced(FailedSyncMarker, "read", believed):
        yield


@mutant("a child of a shared journal that keeps none gets no copies", "syncs")
def lapsed_child_forgotten() -> Any:
    def make(right: Any) -> Any:
        def targets(self: Queues, name: str, now_ms: int) -> Any:
            targets = right(self, name, now_ms)
            is_shared = isinstance(targets[-1].queue, StreamQueue)
            return targets[-1:] if is_shared else targets

        return targets

    return replaced(Queues, "_targets_of_queue", make)


@mutant("a folder whose sync fails is forgotten where a new queue is made", "new-queues")
def folder_ignored_at_creation() -> Any:
    return lenient_during(StreamJournals, "create", silent=True)


@mutant("a failed sync leaves no mark", "syncs")
def no_mark() -> Any:
    return replaced(FailedSyncMarker, "record_failure", lambda right: lambda self: None)


@mutant("no room is kept for the mark of a failed sync", "new-queues")
@unlisted
@crowded
def no_room_for_the_mark() -> Any:
    return replaced(FailedSyncMarker, "set_room_aside", lambda right: lambda self: None)


@mutant("a mark counts as whole before the start has synced what a killed process left", "names-in-doubt")
def mark_whole_too_early() -> Any:
    def make(right: Any) -> Any:
        def record_failure(self: FailedSyncMarker) -> None:
            self.is_complete = True
            right(self)

        return record_failure

    return replaced(FailedSyncMarker, "record_failure", make)


@mutant("a mark takes an earlier one that is left in its room for its beginning", "names-in-doubt")
@contextmanager
def old_mark_believed() -> Iterator[None]:
    def truncate(right: Any) -> Any:
        return lambda self, path, size: None if path.endswith(ROOM_SUFFIX) else right(self, path, size)

    def write(right: Any) -> Any:
        return lambda self, lines: right(self, [line for line in lines if line is not False])

    with replaced(UnsyncedNames, "truncate", truncate), replaced(FailedSyncMarker, "_write", write):
        yield


@mutant("a torn mark forgets the sidecars that archives have had", "names-in-doubt")
def old_sidecars_forgotten() -> Any:
    return replaced(Renewal, "_missing_sidecars", lambda right: lambda self, listing: [])


@mutant("a file that was opened twice is forgotten when the other one is closed", "new-queues")
def opened_twice_forgotten() -> Any:
    def make(right: Any) -> Any:
        def append(self: UnsyncedNames, path: str) -> Any:
            file = right(self, path)
            self._shadowed.clear()
            return file

        return append

    return replaced(UnsyncedNames, "append", make)


@mutant("the mark is lowered before anything is written anew", "syncs")
def mark_lowered_early() -> Any:
    def make(right: Any) -> Any:
        def renew(self: FailedSyncMarker, mark: Any, groups: Any, apart: Any) -> None:
            right(self, mark, [], RenewalGroup())

        return renew

    return replaced(FailedSyncMarker, "renew", make)


@mutant("a parent that keeps no journal takes its children along", "syncs")
def family_set_aside() -> Any:
    def make(right: Any) -> Any:
        def set_family_aside(self: StreamQueues, name: str, files: Any, now_ms: int) -> None:
            if not self._queues.config_of(name).keep_journal:
                set_aside(self._spool, self._report, name, files, now_ms)
                files.segments, files.readers = {}, {}

        return set_family_aside

    return replaced(StreamQueues, "_set_aside", make)


__all__ = ["MUTANTS"]
