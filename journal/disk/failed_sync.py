"""The marker that a failed sync leaves, and how files in doubt are written anew.

After a failed sync the system may show pages that the disk never got, and count them as clean. A process started again
on the same machine would read them, build on them, and lose all of it at the next power cut. So the process that ends
leaves a mark, which lists the names and files in doubt, and the next one writes every byte that it is going to rely on
anew, and makes and removes names anew.

The mark is a value of JSON a line: a path whose name is in doubt; {"file": a path whose bytes are}; {"gone": a path
that a start is about to remove for good}; null, the list is complete; false, the mark begins here, and what stands
before it is an earlier one; an array of paths, from earlier versions; and
{"put": {a path: the temporary name of its new bytes}, "gone": [paths]}, what a start is about to rename and remove, all
of it. Those paths are relative to the spool, because the next start acts on them whatever it calls the spool's folder.

Files that belong together are renewed together: after a rotation whose sync failed the disk has one file `q`, where the
caches show it as `q.7` beside a new `q`, and if only one of two renames came to the disk, all of it would be lost, or
be there twice. So all new bytes are safe under temporary names before the list is, the list is safe before the first
rename, and a start that finds a list finishes it before anything else. It stays in force until another list, of other
temporary names, takes over the same paths: caches may show renames that the disk has not got.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct, field, structs

from staniel.journal.disk.fs import FULL_ERRNOS, MISSING, is_missing
from staniel.journal.disk.quarantine import UNDECODABLE
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.disk.unsynced_names import UnsyncedNames

PIECE_BYTES = 1 << 20
BATCH_BYTES = 64 << 20  # room needed beside the files of a batch, if one queue does not need more
BATCH_FILES = 1000  # a disk that remembers names (unsynced_names.py) keeps all of a batch
ROOM_BYTES = 1 << 20  # ten thousand names, as many as unsynced_names.py keeps
ROOM_SHARE_OF_DISK = 128
ROOM_SUFFIX = ".room"
NUMBER = re.compile(r"~~([0-9]{1,19})$")  # of a temporary name

Value = str | bool | list[str] | dict[str, str | list[str] | dict[str, str]] | None


class SuspectPaths(Struct):
    """Paths that a failed sync has put in doubt. `gone`: what an earlier start has found to be there no more, and may
    have left there, empty, or brought back. `is_torn`: it was cut off, and more than it says may be in doubt. `puts`
    (to its temporary name) and `removals`: a start has begun to rename and remove these, and all of it is to be done.
    """

    names: dict[str, None] = field(default_factory=dict)
    files: dict[str, None] = field(default_factory=dict)
    gone: dict[str, None] = field(default_factory=dict)
    puts: dict[str, str] = field(default_factory=dict)
    removals: dict[str, None] = field(default_factory=dict)
    is_torn: bool = True

    @property
    def changes_files(self) -> bool:
        """True if the next start serves other files than those that the folder shows."""
        return bool(self.gone or self.puts or self.removals)


class RenewalGroup(Struct):
    """Files that are renewed all at once. `pairs`: a path, and a temporary name beside it. `gone`: paths that are there
    no more.
    """

    pairs: list[tuple[str, str]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    bytes: int = 0


class FailedSyncMarker:
    """The marker of failed syncs, at `path`. `reserve`: a file that may be removed if there is no room for the mark.
    `folder`: the spool's.

    While nothing is in doubt a file with room of its own, `path` with `.room`, waits to become the mark. It is empty,
    unless a power cut has taken back that it became the mark, and not what was written to it.
    """

    def __init__(self, fs: UnsyncedNames, path: str, reserve: str = "", folder: str = "") -> None:
        self._fs = fs
        self._path = path
        self._room = f"{path}{ROOM_SUFFIX}"
        self._folder = path.rpartition("/")[0]
        self._reserve = reserve
        self._within = f"{folder}/" if folder else ""
        self._said: tuple[list[str], list[str]] | None = None
        self._has_room = False
        self.is_complete = False
        """True once everything that earlier processes have left in the caches is durable: a start has synced it."""
        fs.failed = self.record_failure

    def record_failure(self) -> None:
        """Record a failed sync as well as this disk lets us: the next process must see the mark, power cuts need not
        keep it.
        """
        in_doubt = self._fs.changed_names(), self._fs.unsynced_files()
        if in_doubt == self._said:
            return
        lines = _lines(*in_doubt, is_whole=self.is_complete)
        with suppress(OSError):
            if not self.exists:
                lines.insert(0, False)
                self._fs.rename(self._room, self._path)
        try:
            self._write(lines)
        except OSError:
            # The next start needs the whole list more than this one needs the reserve.
            with suppress(OSError):
                self._fs.remove(self._reserve)
            with suppress(OSError):  # if this fails, nothing can be written on this disk, as the next start reports
                self._write(lines)
        self._said = in_doubt

    def set_room_aside(self) -> None:
        """Set aside room for the next mark, whatever else fills the disk. If that fails, the reserve has to do."""
        self._has_room = False
        with suppress(OSError):
            size = min(ROOM_BYTES, self._fs.free_bytes(self._folder)[1] // ROOM_SHARE_OF_DISK)
            if not self.exists and not is_missing(self._fs, self._room) and self._fs.size(self._room):
                self._fs.truncate(self._room, 0)  # an earlier mark (see the class)
            self._fs.set_aside(self._path if self.exists else self._room, size)
            self._has_room = True

    @property
    def has_lost_room(self) -> bool:
        """True if another program has removed the file whose room was set aside."""
        return self._has_room and is_missing(self._fs, self._path) and is_missing(self._fs, self._room)

    @property
    def exists(self) -> bool:
        """True if there is a mark. Raises OSError if the disk does not tell."""
        try:
            self._fs.size(self._path)
        except MISSING:
            return False
        return True

    def read(self) -> SuspectPaths:
        """Read the mark. A line that cannot be read says nothing. Raises OSError."""
        mark = SuspectPaths()
        for line in self._fs.read(self._path, 0, self._fs.size(self._path)).splitlines():
            if not line:
                continue
            try:
                value = msgspec.json.decode(line, type=Value)
            except UNDECODABLE:
                mark.is_torn = True
                continue
            match value:
                case False:
                    mark = SuspectPaths()
                case {"put": dict(puts), "gone": list(removals)} if all(map(NUMBER.search, puts.values())):
                    mark.puts = {self._within + path: self._within + temp for path, temp in puts.items()}
                    mark.removals = dict.fromkeys(self._within + path for path in removals)
                case {"gone": str(path)}:
                    mark.gone[path] = None
                case {"file": str(path)}:
                    mark.files[path] = None
                    mark.is_torn = True  # until the end of the list is read
                case str(path):
                    mark.names[path] = None
                    mark.is_torn = True
                case list(paths):
                    mark.names |= dict.fromkeys(paths)
                    mark.is_torn = False
                case None:
                    mark.is_torn = False
                case _:
                    mark.is_torn = True
        return mark

    def finish_renewal(self) -> None:
        """Do the rest of what an earlier start had begun to rename and remove. It has to be renewed all the same: what
        seems to be done already may be done in the caches alone. Raises OSError, JournalFailure.
        """
        mark = self.read() if self.exists else SuspectPaths()
        if not (mark.puts or mark.removals):
            return
        self.save(mark)  # the mark itself may be in the page cache only
        done = []
        for path, temp in mark.puts.items():
            with suppress(*MISSING):
                self._fs.rename(temp, path)
                done.append(path)
        for path in mark.removals:
            with suppress(*MISSING):
                self._fs.remove(path)
                done.append(path)
        self._sync_folders(done)

    def save(self, mark: SuspectPaths) -> None:
        """Make `mark` the whole mark, durably. Before anything is written to a temporary name this has to be done once:
        a mark that the caches do not show any more may list that name. Raises OSError, JournalFailure.
        """
        lines = _lines(mark.names, mark.files, is_whole=not mark.is_torn)
        lines.extend({"gone": path} for path in mark.gone)
        if mark.puts or mark.removals:
            puts = {self._inner(path): self._inner(temp) for path, temp in mark.puts.items()}
            lines.append({"put": puts, "gone": [self._inner(path) for path in mark.removals]})
        data = b"".join(map(_line, lines))
        try:
            replace_file(self._fs, self._path, data)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            with suppress(OSError):
                self._fs.remove(self._reserve)
            replace_file(self._fs, self._path, data)

    def renew(self, mark: SuspectPaths, groups: list[RenewalGroup], apart: RenewalGroup) -> None:
        """Give each file new bytes, by way of its temporary name; make each of the names `gone`, which are there no
        more, and remove it again. The `groups` are in the spool, and each of them is renewed as a whole; `apart` is
        elsewhere, or each file of it is for itself. `mark` is what has been saved. Safe to interrupt at every step.
        Raises OSError, JournalFailure.
        """
        self._renew_apart(mark, apart)
        for batch in _batches(groups):
            self._renew_together(mark, batch)

    def clear(self, left: SuspectPaths) -> None:
        """Clear the mark: all is renewed except for what `left` says, which is out of reach. Raises OSError,
        JournalFailure.
        """
        if left.names or left.gone:
            self.save(left)
        else:
            self._fs.remove(self._path)
            self._sync_folders([self._path])
        self.set_room_aside()

    def _renew_apart(self, mark: SuspectPaths, apart: RenewalGroup) -> None:
        """Renew files apart, without a list: another server, which knows nothing of a list, may write there before it
        is finished.
        """
        for path, temp in apart.pairs:
            self._copy(path, temp)
            self._fs.rename(temp, path)
        self._sync_folders([path for path, _ in apart.pairs])
        if apart.gone:
            # A start that finds the files made here must know that they have to be removed.
            mark.gone |= dict.fromkeys(apart.gone)
            self.save(mark)
            self._remove_anew(apart.gone)
            self._sync_folders(apart.gone)

    def _renew_together(self, mark: SuspectPaths, batch: list[RenewalGroup]) -> None:
        pairs = [pair for group in batch for pair in group.pairs]
        gone = [path for group in batch for path in group.gone]
        try:
            for path, temp in pairs:
                self._copy(path, temp)
            self._sync_folders([temp for _, temp in pairs])
            self._promise(mark, dict(pairs), dict.fromkeys(gone))
        except OSError as error:
            for _, temp in pairs:
                with suppress(OSError):
                    self._fs.remove(temp)
            if error.errno not in FULL_ERRNOS or len(batch) == 1:
                raise
            for group in batch:  # one group needs less room than a batch
                self._renew_together(mark, [group])
            return
        for path, temp in pairs:
            self._fs.rename(temp, path)
        self._remove_anew(gone)
        self._sync_folders([*(path for path, _ in pairs), *gone])
        # The mark lists these paths until it is written for the next batch: no temporary name is used twice.
        for path in [*dict(pairs), *gone]:
            mark.puts.pop(path, None)
            mark.removals.pop(path, None)

    def _promise(self, mark: SuspectPaths, puts: dict[str, str], removals: dict[str, None]) -> None:
        """Promise to do all of it from now on, whatever happens."""
        puts_to_keep = {path: temp for path, temp in mark.puts.items() if path not in removals}
        promised = structs.replace(mark, puts=puts_to_keep | puts, removals=mark.removals | removals)
        self.save(promised)
        mark.puts, mark.removals = promised.puts, promised.removals

    def _remove_anew(self, paths: list[str]) -> None:
        for path in paths:
            self._fs.append(path).close()
            self._fs.remove(path)

    def _inner(self, path: str) -> str:
        assert path.startswith(self._within)
        return path[len(self._within) :]

    def _write(self, lines: list[Value]) -> None:
        mark = self._fs.append(self._path)
        try:
            # Begin a new line, because an earlier attempt may have left half a line.
            mark.write(b"\n" + b"".join(map(_line, lines)))
        finally:
            mark.close()

    def _sync_folders(self, paths: Iterable[str]) -> None:
        for folder in dict.fromkeys(path.rpartition("/")[0] for path in paths):
            self._fs.sync_folder(folder)

    def _copy(self, path: str, temp: str) -> None:
        try:
            self._fs.remove(temp)
        except FileNotFoundError:
            pass
        file = self._fs.append(temp)
        try:
            while piece := self._fs.read(path, file.size, PIECE_BYTES):
                file.write(piece)
            file.sync()
        finally:
            file.close()


def _batches(groups: list[RenewalGroup]) -> Iterator[list[RenewalGroup]]:
    """Yield as many groups at once as there may be: each batch costs some syncs."""
    batch: list[RenewalGroup] = []
    size = files = 0
    for group in groups:
        count = len(group.pairs) + len(group.gone)
        if batch and (size + group.bytes > BATCH_BYTES or files + count > BATCH_FILES):
            yield batch
            batch, size, files = [], 0, 0
        batch.append(group)
        size += group.bytes
        files += count
    if batch:
        yield batch


def number_of(temp: str) -> int:
    """Return the number at the end of a temporary name; -1 if there is none."""
    match = NUMBER.search(temp)
    return int(match[1]) if match else -1


def _lines(names: Iterable[str], files: Iterable[str], *, is_whole: bool) -> list[Value]:
    lines: list[Value] = [*names]
    lines.extend({"file": path} for path in files)
    return [*lines, None] if is_whole else lines


def _line(value: Value) -> bytes:
    return msgspec.json.encode(value) + b"\n"
