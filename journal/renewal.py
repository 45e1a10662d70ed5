"""Renewal of files at a start after a failed sync of an earlier run: which files and names are renewed, and which
cannot be reached. failed_sync.py does the writing.

The files that the mark lists are renewed wherever they are, including those that this run does not serve, because the
mark is removed after that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec import Struct

from staniel.journal.convert_plan import FOLDER as CONVERT_FOLDER
from staniel.journal.disk.failed_sync import NUMBER, FailedSyncMarker, RenewalGroup, SuspectPaths, number_of
from staniel.journal.disk.fs import AlreadyLocked, try_to_remove
from staniel.journal.disk.removal import listed_names
from staniel.journal.disk.unsynced_names import UnsyncedNames
from staniel.journal.holds import NAME as HOLDS
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.install import is_empty_pack
from staniel.journal.libkestrel import files as libkestrel_files
from staniel.journal.put_key_log import FOLDER as KEYS_FOLDER
from staniel.journal.spool_listing import SPOOL_STATE, SpoolListing
from staniel.journal.undo_file import FOLDER as UNDO_FOLDER
from staniel.journal.workq import files as workq_files

RENEWED = (*SPOOL_STATE, HOLDS, "version", "convert.plan")  # own files that the next start reads
ASIDE = "aside."  # and a number: folders of files that are not served any more
UNSURE_SEGMENTS = 2  # the current one, and the one before it, which may lack its last sync
TEMPORARY = re.compile(r"~~\d+$|\.new$|\.rw$|^\.staniel-ballast$")


class Renewed(Struct, frozen=True):
    """The result of a renewal. `files`: how many were rewritten. `left`: paths that could not be reached, and stay in
    doubt.
    """

    files: int
    left: list[str]


class Renewal:
    """The renewal of one spool at one start. `own`: the spool's own folder. `jobs`: the folder of the command log;
    `serves_jobs`: this process has locked it.
    """

    def __init__(
        self, fs: UnsyncedNames, folder: str, own: str, failed_sync: FailedSyncMarker, jobs: str, *, serves_jobs: bool
    ) -> None:
        self.fs = fs
        self.folder = folder
        self.own = own
        self.failed_sync = failed_sync
        self.jobs = jobs
        self._ours = {folder, own, kestrel_files.sidecar_folder(folder), *([jobs] if serves_jobs else [])}
        self._releases: list[Callable[[], None]] = []
        self._next_number = 0
        self._streams: set[str] = set()

    def run(self, listing: SpoolListing) -> Renewed:
        """Rewrite the files. Raises OSError, JournalFailure."""
        try:
            return self._run(listing)
        finally:
            for release in self._releases:
                release()

    def _run(self, listing: SpoolListing) -> Renewed:
        mark = self.failed_sync.read()
        self.failed_sync.save(mark)
        self._next_number = 1 + max(map(number_of, mark.puts.values()), default=-1)
        self._streams = {*listing.streams}
        renamed = self._formerly_there(listing) if mark.is_torn else []
        to_go, once_there = {*mark.gone, *mark.removals}, {*mark.names, *mark.puts, *renamed}
        suspects = self._reachable([*mark.names, *mark.files, *mark.puts, *mark.gone, *mark.removals, *renamed])
        to_renew = list(dict.fromkeys([*self._written_files(listing, mark), *filter(self._counts, suspects)]))
        left = set(self._out_of_reach(to_renew))
        within = [path for path in to_renew if path not in left]
        left_out = self._left_out(listing, mark)
        sizes = {path: size for path in within if path not in to_go | left_out and (size := self._size(path)) >= 0}
        gone = [path for path in within if path in to_go or (path in once_there and path not in {*sizes, *left_out})]
        self._clear(sizes)
        self.failed_sync.renew(mark, *self._groups(sizes, gone, self._older_segments(listing, suspects)))
        left_names = {path: None for path in to_renew if path in left}
        left_gone = {path: None for path in left_names if path in to_go}
        self.failed_sync.clear(
            SuspectPaths({path: None for path in left_names if path not in to_go}, gone=left_gone, is_torn=False)
        )
        return Renewed(len(sizes), [*left_names])

    def _groups(self, sizes: dict[str, int], gone: list[str], old: set[str]) -> tuple[list[RenewalGroup], RenewalGroup]:
        """Return the groups of files that are renewed together: the files of a queue in either format, with their
        sidecars. Old segments are renewed before the newer ones, one by one in the order of their writing, because
        there may be many.
        """
        groups: dict[str, RenewalGroup] = {}
        apart = RenewalGroup()
        for path in [*sizes, *gone]:
            folder, _, name = path.rpartition("/")
            if not self._is_ours(folder):
                group = apart
            else:
                queue = kestrel_files.parse(name).queue or libkestrel_files.parse(name).queue
                is_alone = folder == self.own or not queue or path in old
                group = groups.setdefault(path if is_alone else f"{queue}/", RenewalGroup())
            if path in sizes:
                group.pairs.append((path, self._temp(path)))
                group.bytes += sizes[path]
            else:
                group.gone.append(path)
        return sorted(groups.values(), key=lambda group: not group.pairs or group.pairs[0][0] not in old), apart

    def _older_segments(self, listing: SpoolListing, suspects: list[str]) -> set[str]:
        """Return the segments that have later ones and are not in the mark. If the mark is torn, all of them are in
        doubt.
        """
        names = [name for files in listing.streams.values() for name in _in_order(files.segments)[:-UNSURE_SEGMENTS]]
        return {f"{self.folder}/{name}" for name in names} - {*suspects}

    def _clear(self, paths: Iterable[str]) -> None:
        """Remove files that an earlier start has copied under temporary names but did not list, if the system allows
        it.
        """
        renewed = {*paths}
        for folder in dict.fromkeys(path.rpartition("/")[0] for path in renewed):
            for name, _ in self.fs.list(folder) if self._is_ours(folder) else ():
                if NUMBER.search(name) and f"{folder}/{name.rpartition('~~')[0]}" in renewed:
                    try_to_remove(self.fs, folder, [name])

    def _is_ours(self, folder: str) -> bool:
        """Tell whether only the holder of the spool's lock writes into `folder`."""
        return folder in (self.folder, self.own, kestrel_files.sidecar_folder(self.folder)) or folder.startswith(
            f"{self.own}/{ASIDE}"
        )

    def _written_files(self, listing: SpoolListing, mark: SuspectPaths) -> list[str]:
        """Return the files that the server writes to, whatever the mark says. Segments are synced before or soon after
        they are sealed. If the mark is whole, it has those that were not.
        """
        names = [name for name, files in listing.kestrel.items() if files.current]
        if mark.is_torn:  # a missing line may be about a segment that has just been sealed
            names += [
                name for files in listing.kestrel.values() for name in files.archives_in_order()[-UNSURE_SEGMENTS:]
            ]
            names += [name for files in listing.kestrel.values() for name in files.packs]
            for own_folder in (UNDO_FOLDER, KEYS_FOLDER):
                names += [f"{kestrel_files.OWN_FOLDER}/{own_folder}/{name}" for name in self._files_in(own_folder)]
            names += self._moved_aside()
        for files in listing.streams.values():
            names += self._newest(_in_order(files.segments), mark)
            names += files.readers.values()
        names += [f"{kestrel_files.OWN_FOLDER}/{name}" for name, regular in self.fs.list(self.own) if regular]
        segments = [workq_files.segment_name(number) for number in self._segments()]
        paths = [path for name in names if self._counts(path := f"{self.folder}/{name}")]
        return [*paths, *(f"{self.jobs}/{name}" for name in self._newest(segments, mark))]

    def _left_out(self, listing: SpoolListing, mark: SuspectPaths) -> set[str]:
        """Return existing paths that no start reads: archives that a pack replaces, and empty packs. The system may
        refuse to rewrite them, as it has refused to remove them.
        """
        to_go, suspects = {*mark.gone, *mark.removals}, {*mark.names, *mark.files, *mark.puts}
        left_out = set()
        for files in listing.kestrel.values():
            numbers = []
            for name, number in files.packs.items():
                path = f"{self.folder}/{name}"
                if path in to_go:
                    continue
                with suppress(OSError):  # recovery blocks the queue of an unreadable pack
                    if not is_empty_pack(self.fs, path):
                        numbers.append(number)
                    elif path not in suspects:
                        left_out.add(path)
            last = max(numbers, default=-1)
            left_out |= {f"{self.folder}/{name}" for name, number in files.archives.items() if number <= last}
        return left_out

    def _moved_aside(self) -> list[str]:
        """Return the names of files that a killed process may have moved aside in the page cache alone: their former
        names are removed for good.
        """
        listed = {*listed_names(self.fs, self.folder)}
        folders = [name for name, regular in self.fs.list(self.own) if name.startswith(ASIDE) and not regular]
        return [
            f"{kestrel_files.OWN_FOLDER}/{folder}/{name}"
            for folder in folders
            for name in self._files_in(folder)
            if name in listed
        ]

    def _files_in(self, own_folder: str) -> list[str]:
        try:
            return [name for name, regular in self.fs.list(f"{self.own}/{own_folder}") if regular]
        except FileNotFoundError:
            return []

    def _formerly_there(self, listing: SpoolListing) -> list[str]:
        """Return paths that may have had files which earlier processes renamed or removed, in the page cache alone."""
        return [*self._renamed(listing), *self._missing_sidecars(listing), *self._removed()]

    def _removed(self) -> list[str]:
        """Return the paths of files that a killed process was removing. A power cut could bring them back once the file
        that has replaced them is renamed or removed, and their items would come twice.
        """
        return [f"{self.folder}/{name}" for name in listed_names(self.fs, self.folder)]

    def _renamed(self, listing: SpoolListing) -> list[str]:
        """Return the names that archives may have had before. A power cut could bring such a name back next to the
        archive, and its items would come twice.
        """
        names = []
        for queue, files in listing.kestrel.items():
            names += [queue, *(kestrel_files.pack_name(queue, number) for number in files.archives.values())]
        return [f"{self.folder}/{name}" for name in names]

    def _missing_sidecars(self, listing: SpoolListing) -> list[str]:
        """Return the paths of the sidecars that archives do not have. A killed process may have removed one just before
        the sync that failed; a power cut could bring it back, and a start would miss the items of another file in it.
        """
        folder = kestrel_files.sidecar_folder(self.folder)
        try:
            sidecars = {name for name, _ in self.fs.list(folder)}
        except FileNotFoundError:
            return []
        archives = [name for files in listing.kestrel.values() for name in files.archives]
        return [f"{folder}/{name}" for name in archives if name not in sidecars]

    def _newest(self, names: list[str], mark: SuspectPaths) -> list[str]:
        return names if mark.is_torn else names[-UNSURE_SEGMENTS:]

    def _segments(self) -> list[int]:
        try:
            return workq_files.segment_numbers(self.fs.list(self.jobs))
        except FileNotFoundError:
            return []

    def _counts(self, path: str) -> bool:
        """Tell whether a file's content and name matter. Temporary files do not, nor the new files of a conversion
        before its plan has moved them in: an earlier name of such a file is the only durable one until the file has
        been renewed at its place.
        """
        folder, _, name = path.rpartition("/")
        if folder == f"{self.own}/{CONVERT_FOLDER}":
            return False
        if folder == self.own:
            return name in RENEWED
        return not TEMPORARY.search(name)

    def _reachable(self, paths: list[str]) -> list[str]:
        """Return `paths` without those in the sidecars' folder if that does not exist: the power cut has removed the
        new folder.
        """
        folder = kestrel_files.sidecar_folder(self.folder)
        try:
            self.fs.list(folder)
        except FileNotFoundError:
            return [path for path in paths if path.rpartition("/")[0] != folder]
        return paths

    def _out_of_reach(self, paths: Iterable[str]) -> list[str]:
        """Return the paths in folders that do not exist, or that another process uses now. The other folders are locked
        until the renewal ends.
        """
        refused: dict[str, bool] = dict.fromkeys(self._ours, False)
        left = []
        for path in paths:
            folder = path.rpartition("/")[0]
            if folder not in refused:
                refused[folder] = not self._lock_folder(folder)
            if refused[folder]:
                left.append(path)
        return left

    def _lock_folder(self, folder: str) -> bool:
        try:
            names = {name for name, _ in self.fs.list(folder)}
            if workq_files.APPEND_LOCK in names:
                self._releases.append(self.fs.hold(f"{folder}/{workq_files.APPEND_LOCK}", shared=False))
        except (FileNotFoundError, NotADirectoryError, AlreadyLocked):
            return False
        return True

    def _size(self, path: str) -> int:
        """Return the size of a file; -1 if there is none."""
        try:
            return self.fs.size(path)
        except FileNotFoundError:
            return -1

    def _temp(self, path: str) -> str:
        """Return the path to which new bytes for `path` are written: a name that every start removes. Paths that the
        mark may list have a number of their own each.
        """
        folder, _, name = path.rpartition("/")
        if not self._is_ours(folder):
            return f"{path}{workq_files.REWRITE_SUFFIX if name.endswith('.log') else '.new'}"
        queue = kestrel_files.parse(name).queue if folder == self.folder else ""
        while True:
            number = self._next_number
            self._next_number += 1
            if queue and queue not in self._streams:
                temp = f"{folder}/{kestrel_files.temp_name(queue, number)}"
            else:
                temp = f"{folder}/{libkestrel_files.temp_name(name, number)}"
            if self._size(temp) < 0:  # the system may have refused to remove an older one
                return temp


def _in_order(segments: dict[str, int]) -> list[str]:
    return sorted(segments, key=lambda name: segments[name])
