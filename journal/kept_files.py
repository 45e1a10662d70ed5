"""The files that retention holds keep, and the file with the holds.

Before a sealed file is removed, moved out of its folder or replaced, it gets a second name (a hard link) in the folder
of kept files for each hold that needs it. The file and the second name are synced first, so no power cut leaves
neither. Packs, rotations and recovery work as they do without holds: they never see kept files. `UnsyncedNames` asks
before every removal and rename, `RemovalList` before a whole list of removals, with one sync of the folder for all.

A second name that a killed process has made but not used is removed at the next start: the file still has its own name
then. A kept file that differs from the present file of its name (a pack, a cut segment, a cleaned one) is what that has
replaced.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import suppress

from staniel.journal.disk.fs import MISSING, Fs, is_there, remove_each
from staniel.journal.disk.quarantine import UNDECODABLE, quarantine
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.disk.unsynced_names import UnsyncedNames
from staniel.journal.holds import (
    JOBS_KEPT,
    KEPT,
    NAME,
    OF_HOLD,
    FilePlace,
    Hold,
    HoldState,
    decode,
    encode,
    holds_queue,
    is_needed,
    kept_name,
    kept_place,
    needs,
    passed_number,
    place_of,
)
from staniel.journal.workq import files as workq_files

COMPARED_BYTES = 1 << 20  # at a time


class FileKeeper:
    """The kept files of one spool. `holds` and `kept` are also read by tasks in a thread: the one is replaced as a
    whole, each change of the other is one step.
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
        self.sizes: dict[str, dict[str, int]] = {}
        """The same by hold."""
        self._paths: dict[str, str] = {}
        self._last_numbers: dict[str, int] = {}
        """The highest number of a file that was kept in this run, by queue."""
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
        for name in names:
            place = place_of(name)
            if place is None:
                continue
            for other in [kept_name(hold.name, place.name) for hold in self.holds if needs(hold, place)]:
                if other not in self.kept and other not in sizes and (path := _present(self._fs, folder, place, name)):
                    sizes[other] = self._link(path, target, other)
        if sizes:
            self._fs.sync_folder(target)
            for name, size in sizes.items():
                self._record_kept(target, name, size)

    def is_held(self, queue: str) -> bool:
        """Tell whether an active hold is about the files of `queue`."""
        return any(holds_queue(hold, queue) for hold in self.holds)

    def last_number(self, queue: str) -> int:
        """Return the highest number of a file of `queue` that is kept or that a holder has passed; 0 if there is none.
        A later file needs a higher one: after a step of the clock, or after a power cut has lost the newest file.
        """
        numbers = [passed_number(hold, queue) for hold in self.holds if queue in hold.passed]
        return max([self._last_numbers.get(queue, 0), *numbers])

    def has_kept(self, queue: str) -> bool:
        """Tell whether a file of `queue` was kept in this run."""
        return queue in self._last_numbers

    def totals(self, hold: str) -> tuple[int, int]:
        """Return how many files are kept for a hold, and their bytes."""
        sizes = list(self.sizes.get(hold, {}).values())
        return len(sizes), sum(sizes)

    def try_links(self) -> None:
        """Check that files can be kept. Raises OSError if the file system has no hard links; raises JournalFailure."""
        for target in dict.fromkeys(self._targets.values()):
            self._fs.make_folder(target)
            trial = f"{target}/trial"
            with suppress(FileNotFoundError):
                self._fs.beneath.remove(trial)
            file = self._fs.beneath.append(f"{trial}~~1")
            try:
                self._fs.beneath.link(f"{trial}~~1", trial)
            finally:
                file.close()
                remove_each(self._fs.beneath, target, ["trial", "trial~~1"])

    def clear_for(self, holds: Iterable[Hold]) -> None:
        """Remove the files that a former hold with the name of a new one has left, durably: it must not take them for
        its own. Raises OSError if the system refuses it; raises JournalFailure.
        """
        self.prune(self.holds)
        new = {hold.name for hold in holds} - {hold.name for hold in self.holds if hold.state is HoldState.ACTIVE}
        for name in list(self.kept):
            if name.partition(OF_HOLD)[0] in new:
                raise OSError(errno.EBUSY, "a file of a former hold cannot be removed", self._paths[name])

    def save(self, holds: Iterable[Hold]) -> None:
        """Store the holds, durably. Raises OSError, and the file has the old ones then; raises JournalFailure."""
        replace_file(self._fs, self.path, encode(holds))

    def prune(self, holds: Iterable[Hold]) -> None:
        """Remove the kept files that none of `holds` needs, durably; the holds are durable. Files that the system
        refuses to remove stay until the next call. Raises JournalFailure.
        """
        folders = set()
        for name in list(self.kept):
            if is_needed(holds, name):
                continue
            folder, _, last = self._paths[name].rpartition("/")
            with suppress(OSError):
                remove_each(self._fs.beneath, folder, [last])
                self.kept.pop(name, None)
                self.sizes.get(name.partition(OF_HOLD)[0], {}).pop(name, None)
                folders.add(folder)
        for folder in sorted(folders):
            self._fs.sync_folder(folder)

    def _record_kept(self, target: str, name: str, size: int) -> None:
        kept = kept_place(name)
        assert kept is not None
        hold, place = kept
        self._paths[name], self.kept[name] = f"{target}/{name}", size
        self.sizes.setdefault(hold, {})[name] = size
        self._last_numbers[place.queue] = max(place.number, self._last_numbers.get(place.queue, 0))

    def _link(self, path: str, target: str, name: str) -> int:
        """Give a file a second name, and sync the file. Return its size. Raises OSError."""
        fs, other = self._fs.beneath, f"{target}/{name}"
        try:
            fs.link(path, other)
        except FileExistsError:  # an earlier attempt has failed before its sync
            fs.remove(other)
            fs.link(path, other)
        except FileNotFoundError:
            self._fs.make_folder(target)
            fs.link(path, other)
        file = fs.append(other)
        try:
            self._fs.guard(file.sync)
            return file.size
        finally:
            file.close()

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
        for name, regular in entries:
            kept = kept_place(name) if regular else None
            if kept is None:
                continue
            path = f"{target}/{name}"
            if any(self._is_same(path, f"{folder}/{kept[1].name}") for folder in folders):
                self._fs.beneath.remove(path)
                continue
            self._record_kept(target, name, self._fs.size(path))
        self._fs.sync_folder(target)

    def _is_same(self, path: str, other: str) -> bool:
        """Tell whether both files have the same content: usually they are one file."""
        fs = self._fs
        try:
            size = fs.size(other)
        except MISSING:
            return False
        return size == fs.size(path) and all(
            fs.read(path, at, COMPARED_BYTES) == fs.read(other, at, COMPARED_BYTES)
            for at in range(0, size, COMPARED_BYTES)
        )


def _present(fs: Fs, folder: str, place: FilePlace, name: str) -> str:
    """Return the path of the file `name`; "" if there is none. A pack that could not take the name of its archive is
    not kept in the place of that.
    """
    paths = [f"{folder}/{place.name}", f"{folder}/{name}"]
    return next((path for path in paths if is_there(fs, path)), "")
