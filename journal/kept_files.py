"""The files that retention holds keep, and the file with the holds.

Before a sealed file is removed, moved out of its folder or replaced, it gets a second name (a hard link) in the folder
of kept files for each hold that needs it. The file and the second name are synced first, so no power cut leaves
neither. Packs, rotations and recovery work as they do without holds: they never see kept files. `UnsyncedNames` asks
before every removal and rename, `RemovalList` before a whole list of removals, with one sync of the folder for all.

A second name that a killed process has made but not used is removed at the next start: the file still has its own name
then. A kept file that differs from the present file of its name (a pack, a cut segment, a cleaned one) is what that has
replaced.

The hub and a background task may keep the same file at once: a queue is deleted while its segments are removed. So a
second name that is there already is used as it is, and each change of what is known is one step of the interpreter.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from staniel.journal.disk.fs import MISSING, Fs, is_there, remove_each, try_to_remove
from staniel.journal.disk.quarantine import UNDECODABLE, quarantine
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.disk.unsynced_names import UnsyncedNames
from staniel.journal.holds import (
    CMDLOG,
    JOBS_KEPT,
    KEPT,
    NAME,
    FilePlace,
    Hold,
    HoldState,
    decode,
    dropped,
    encode,
    holds_queue,
    kept_name,
    kept_place,
    needs,
    passed_number,
    place_of,
    read_holds,
)
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.journal.workq import files as workq_files

COMPARED_BYTES = 1 << 20  # at a time
LOCK = "lock"  # of the spool
LAST_NUMBERS_MAX = 10_000  # queues whose highest number is remembered each
TIME_MAX = 10**15  # in ms; a higher number in a file's name is no time


class KeptPlace(NamedTuple):
    """The number of a kept file, and the folder that it is in."""

    number: int
    folder: str


class FileKeeper:
    """The kept files of one spool. `holds`, `kept` and `places` are also read by tasks in a thread: the first is
    replaced as a whole, each change of the others is one step.
    """

    def __init__(self, fs: UnsyncedNames, folder: str, own: str) -> None:
        self._fs = fs
        self._folder = folder
        self._own = own
        self.path = f"{own}/{NAME}"
        self._jobs = f"{own}/{workq_files.OWN_FOLDER}"
        self._targets = {folder: f"{own}/{KEPT}", self._jobs: f"{own}/{KEPT}"}
        """By folder of journal files: the folder where those are kept."""
        self.holds: tuple[Hold, ...] = ()
        self.kept: dict[str, int] = {}
        """The size of each kept file, by name."""
        self.places: dict[str, dict[str, dict[str, KeptPlace]]] = {}
        """The same files by hold, queue and name."""
        self._pruned: dict[str, Hold | None] = {}  # by name: the holds that need all that is kept for them
        self._changed: set[str] = set()  # holds whose totals are to be counted
        self._totals: dict[str, tuple[int, int]] = {}
        self._last_numbers: dict[str, int] = {}
        """The highest number of a file that was kept or passed in this run, by queue."""
        self._forgotten_number = 0  # the highest one of all queues that are not in there any more
        self.are_files_synced = False
        """True once a sync has covered all files of the spool that an earlier process has left."""
        self.damage = ""
        """Why the file with the holds could not be used, and where a copy of it is; "" if it could."""

    def load(self) -> None:
        """Read the holds, and list the kept files. Called once the spool is locked, before recovery changes a file.
        Raises OSError, JournalFailure.
        """
        is_known = self._read()
        self._list(f"{self._own}/{KEPT}", [self._folder, self._jobs])
        if is_known:
            self.prune(self.holds)

    def load_jobs(self, folder: str) -> None:
        """List the kept segments of a command log in `folder`, which is locked. Raises OSError, JournalFailure."""
        if folder != self._jobs:
            self._targets[folder] = f"{folder}/{JOBS_KEPT}"
            self._list(self._targets[folder], [folder])
            self.prune(self.holds)

    def keep(self, folder: str, names: Iterable[str]) -> None:
        """Keep those of these files that a hold needs, because they are about to be removed or replaced. Raises OSError
        if the system refuses it: the files must stay then. Raises JournalFailure.
        """
        target = self._targets.get(folder)
        if target is None or not self.holds:
            return
        sizes: dict[str, int] = {}
        holders: dict[str, list[tuple[str, int]]] = {}  # by queue: the holds, and the numbers that they have passed
        for name in names:
            place = place_of(name)
            if place is None:
                continue
            if place.queue not in holders:
                holders[place.queue] = self._holders_of(place.queue)
            wanted = [kept_name(hold, place.name) for hold, passed in holders[place.queue] if place.number > passed]
            wanted = [other for other in wanted if other not in self.kept and other not in sizes]
            if wanted and (path := _present(self._fs, folder, place, name)):
                size = self._link_all(path, place, [f"{target}/{other}" for other in wanted])
                if size >= 0:
                    sizes |= dict.fromkeys(wanted, size)
        if sizes:
            self._fs.sync_folder(target)
            for name, size in sizes.items():
                self._record_kept(target, name, size)

    def _holders_of(self, queue: str) -> list[tuple[str, int]]:
        return [(hold.name, passed_number(hold, queue)) for hold in self.holds if holds_queue(hold, queue)]

    def is_held(self, queue: str) -> bool:
        """Tell whether an active hold is about the files of `queue`."""
        return any(holds_queue(hold, queue) for hold in self.holds)

    def last_number(self, queue: str) -> int:
        """Return the highest number of a file of `queue` that is kept or that a holder has passed; 0 if there is none.
        A later file needs a higher one: after a step of the clock, or after a power cut has lost the newest file.
        """
        numbers = [passed_number(hold, queue) for hold in self.holds if queue in hold.passed]
        forgotten = 0 if queue == CMDLOG else self._forgotten_number
        return max([self._last_numbers.get(queue, forgotten), *numbers])

    def has_kept(self, queue: str) -> bool:
        """Tell whether a file of `queue` is kept."""
        return any(queues.get(queue) for queues in self.places.copy().values())

    def totals(self, hold: str) -> tuple[int, int]:
        """Return how many files are kept for a hold, and their bytes."""
        if hold in self._changed:
            self._changed.discard(hold)  # first, because a task in a thread may change what is counted
            names = [name for files in self.places.get(hold, {}).copy().values() for name in files.copy()]
            self._totals[hold] = len(names), sum([self.kept.get(name, 0) for name in names])
        return self._totals.get(hold, (0, 0))

    def adopt(self, holds: tuple[Hold, ...]) -> None:
        """Let these be the holds from now on: they are durable, and no task is running. The numbers of queues that a
        holder has passed, and that its hold does not name any more, are remembered.
        """
        present = {hold.name: hold for hold in holds}
        for hold in self.holds:
            now = present.get(hold.name)
            if now is hold:
                continue
            for queue in hold.passed.keys() - (now.passed.keys() if now is not None else ()):
                self._remember_number(queue, passed_number(hold, queue))
            self.places[hold.name] = {queue: files for queue, files in self._places_of(hold.name).items() if files}
            if now is None and not self.places[hold.name]:
                for known in (self.places, self._totals, self._pruned):
                    known.pop(hold.name, None)
        self.holds = holds

    def try_links(self, *, with_jobs: bool) -> None:
        """Check that files can be kept, those of the command log only if `with_jobs`. Raises OSError if the file system
        has no hard links, or the folder of kept files is on another one; raises JournalFailure.
        """
        fs = self._fs.beneath
        for folder, target in self._targets.items():
            if folder == self._folder:
                trial = f"{self._own}/{LOCK}"
            else:
                trial = f"{folder}/{workq_files.APPEND_LOCK}"
                if not with_jobs or not is_there(fs, trial):  # this server has not locked that command log
                    continue
            self._fs.make_folder(target)
            with suppress(FileNotFoundError):
                fs.remove(f"{target}/trial")
            fs.link(trial, f"{target}/trial")
            remove_each(fs, target, ["trial"])

    def clear_for(self, holds: Iterable[Hold]) -> None:
        """Remove the files that a former hold with the name of a new one has left, durably: it must not take them for
        its own. Raises OSError if the system refuses it; raises JournalFailure.
        """
        new = {hold.name for hold in holds} - {hold.name for hold in self.holds if hold.state is HoldState.ACTIVE}
        self.prune([hold for hold in self.holds if hold.name not in new])
        for hold in sorted(new):
            for files in self._places_of(hold).values():
                for name, place in files.items():
                    raise OSError(errno.EBUSY, "a file of a former hold cannot be removed", f"{place.folder}/{name}")

    def save(self, holds: Iterable[Hold]) -> None:
        """Store the holds, durably. Raises OSError, and the file has the old ones then; raises JournalFailure."""
        replace_file(self._fs, self.path, encode(holds))

    def prune(self, holds: Iterable[Hold]) -> None:
        """Remove the kept files that none of `holds` needs, durably; the holds are durable. Files that the system
        refuses to remove stay until the next call. Raises JournalFailure.
        """
        folders = set[str]()
        wanted = {hold.name: hold for hold in holds}
        for name in list(self.places):
            hold = wanted.get(name)
            if hold is not None and self._pruned.get(name) is hold:
                continue  # the files are many, and the holds that change are few
            self._pruned[name] = hold  # before the files are listed: what is kept from now on is compared with it
            is_whole = True
            for queue, files in self._places_of(name).items():
                passed = passed_number(hold, queue) if hold is not None and holds_queue(hold, queue) else None
                for file, place in list(files.items()):
                    if passed is None or place.number <= passed:
                        is_whole &= self._remove(name, files, file, folders)
            if not is_whole:
                self._pruned[name] = None
        for folder in sorted(folders):
            self._fs.sync_folder(folder)

    def _places_of(self, hold: str) -> dict[str, dict[str, KeptPlace]]:
        return self.places.get(hold, {}).copy()

    def _remove(self, hold: str, files: dict[str, KeptPlace], name: str, folders: set[str]) -> bool:
        """Remove a kept file, and note its folder. Return False if the system refuses that."""
        folder = files[name].folder
        try:
            remove_each(self._fs.beneath, folder, [name])
        except OSError:
            return False
        folders.add(folder)
        self.kept.pop(name, None)
        files.pop(name, None)
        self._changed.add(hold)
        return True

    def _record_kept(self, target: str, name: str, size: int) -> None:
        kept = kept_place(name)
        assert kept is not None
        hold, place = kept
        self.kept[name] = size
        self.places.setdefault(hold, {}).setdefault(place.queue, {})[name] = KeptPlace(place.number, target)
        self._changed.add(hold)
        if (pruned := self._pruned.get(hold)) is not None and not needs(pruned, place):
            self._pruned[hold] = None  # it was moved past this file just now
        self._remember_number(place.queue, place.number)

    def _remember_number(self, queue: str, number: int) -> None:
        known = self._last_numbers.pop(queue, 0)
        self._last_numbers[queue] = max(number, known)
        if len(self._last_numbers) > LAST_NUMBERS_MAX:
            oldest = next(iter(self._last_numbers))
            number = self._last_numbers.pop(oldest)
            if oldest == CMDLOG or number > TIME_MAX:  # numbers that others must not be compared with
                self._last_numbers[oldest] = number
            else:
                self._forgotten_number = max(number, self._forgotten_number)

    def _link_all(self, path: str, place: FilePlace, others: list[str]) -> int:
        """Give a file these second names, and sync it. Return its size; -1 if it is gone, because another thread has
        kept and removed it. Raises OSError.
        """
        for other in others:
            try:
                self._link(path, other)
            except FileNotFoundError:
                return -1
            except OSError as error:
                error.filename = other  # the hold is in this name
                raise
        # The command log may be on another disk, which no sync of the spool covers.
        if self.are_files_synced and place.queue != CMDLOG and self._fs.is_synced(path):
            return self._fs.size(others[0])
        file = self._fs.beneath.append(others[0])
        try:
            self._fs.guard(file.sync)
            return file.size
        finally:
            file.close()

    def _link(self, path: str, other: str) -> None:
        """Give a file a second name. If it has that, it is used as it is: an earlier attempt has failed before its
        sync, or another thread is about to open it, and would make an empty file of it. Raises OSError.
        """
        fs = self._fs.beneath
        try:
            fs.link(path, other)
        except FileNotFoundError:
            self._fs.make_folder(other.rpartition("/")[0])
            fs.link(path, other)
        except FileExistsError:
            if is_there(fs, path) and not self._is_same(other, path):
                fs.remove(other)  # what a former file of this name has left
                fs.link(path, other)

    def _read(self) -> bool:
        """Read the file. Return False if that says nothing about which kept files are needed. Raises OSError."""
        fs, size = self._fs, 0
        try:
            size = fs.size(self.path)
            self.holds = tuple(decode(fs.read(self.path, 0, size)))
        except FileNotFoundError:
            return False
        except UNDECODABLE as error:
            try:
                saved_as = quarantine(fs, self.path, 0, size, f"{self._own}/damaged")
            except OSError as refused:
                saved_as = f"not saved: {refused.strerror}"
            self.damage = f"{error}; {saved_as}"
            return False
        return True

    def _list(self, target: str, folders: list[str]) -> None:
        try:
            entries = self._fs.list(target)
        except MISSING:
            return
        in_place = {f"{folder}/{name}" for folder in folders for name in self._names_in(folder)}
        for name, regular in entries:
            kept = kept_place(name) if regular else None
            if kept is None:
                continue
            path = f"{target}/{name}"
            others = [other for folder in folders if (other := f"{folder}/{kept[1].name}") in in_place]
            if any(self._is_same(path, other) for other in others):
                with suppress(OSError):  # it counts as kept then
                    self._fs.beneath.remove(path)
                    continue
            self._record_kept(target, name, self._fs.size(path))
        self._fs.sync_folder(target)

    def _names_in(self, folder: str) -> list[str]:
        try:
            return [name for name, _ in self._fs.list(folder)]
        except MISSING:
            return []

    def _is_same(self, path: str, other: str) -> bool:
        """Tell whether both files have the same content. Usually they are one file, and are not read."""
        fs = self._fs
        try:
            size = fs.size(other)
        except MISSING:
            return False
        with suppress(OSError):  # a file that cannot be opened for writing is compared
            file = fs.beneath.append(path)
            try:
                if file.is_at(other):
                    return True
            finally:
                file.close()
        return size == fs.size(path) and all(
            fs.read(path, at, COMPARED_BYTES) == fs.read(other, at, COMPARED_BYTES)
            for at in range(0, size, COMPARED_BYTES)
        )


def end_holds(fs: Fs, folder: str, jobs: str, why: str) -> None:
    """Drop the active holds of a spool, durably, because another server is about to change its files, which asks no
    holds; then remove what is kept for them. Their holders learn that once this spool is served again. `jobs`: the
    folder of a command log outside the spool. Raises OSError, SyncFailed.
    """
    own = f"{folder}/{OWN_FOLDER}"
    with suppress(ValueError):  # a start tells of a damaged file: there are no holds then
        holds = read_holds(fs, folder)
        if any(hold.state is HoldState.ACTIVE for hold in holds):
            ended = [dropped(hold, why) if hold.state is HoldState.ACTIVE else hold for hold in holds]
            replace_file(fs, f"{own}/{NAME}", encode(ended))
    for target in [f"{own}/{KEPT}", *([f"{jobs}/{JOBS_KEPT}"] if jobs else [])]:
        with suppress(*MISSING):
            try_to_remove(fs, target, [name for name, regular in fs.list(target) if regular and kept_place(name)])


def _present(fs: Fs, folder: str, place: FilePlace, name: str) -> str:
    """Return the path of the file `name`; "" if there is none. A pack that could not take the name of its archive is
    not kept in the place of that.
    """
    paths = [f"{folder}/{place.name}", f"{folder}/{name}"]
    return next((path for path in paths if is_there(fs, path)), "")
