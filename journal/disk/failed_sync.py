"""The mark that a failed sync leaves, and rewriting the files in doubt.

After a failed sync the system may show pages that never reached the disk, and treat them as clean. A process started
again on the same machine would read them, depend on them, and lose all of it at the next power cut. So the process that
ends leaves a mark, which lists the names and files in doubt. The next process rewrites every byte that it is going to
depend on, and repeats the creation and removal of names.

The mark has one JSON value a line: a path whose name is in doubt; {"file": a path whose bytes are in doubt}; {"gone": a
path that a start is about to remove for good}; null: the list is complete; false: the mark begins here, and earlier
lines belong to an earlier mark; an array of paths, from earlier versions; and {"put": {a path: the temporary name of
its new bytes}, "gone": [paths]}, which a start is about to rename and remove, all of it. The paths of the last kind are
relative to the spool, because the next start may use another path for the spool.

Files that belong together are renewed together. After a rotation whose sync failed, for example, the disk has one file
`q`, and the caches show `q.7` and a new `q`. If only one of the two renames reached the disk, all of it would be lost,
or be there twice. So all new bytes are durable under temporary names before the list is, the list is durable before the
first rename, and a start that finds a list finishes it before anything else. The list stays valid until another list,
of other temporary names, takes over the same paths, because caches may show renames that are not durable.
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
BATCH_BYTES = 64 << 20  # room needed for the files of a batch, if no queue needs more
BATCH_FILES = 1000  # a disk that remembers names (unsynced_names.py) remembers all of a batch
ROOM_BYTES = 1 << 20  # ten thousand names, as many as unsynced_names.py keeps
ROOM_SHARE_OF_DISK = 128
ROOM_SUFFIX = ".room"
NUMBER = re.compile(r"~~([0-9]{1,19})$")  # of a temporary name

Value = str | bool | list[str] | dict[str, str | list[str] | dict[str, str]] | None


class SuspectPaths(Struct):
    """Paths that a failed sync has put in doubt. `gone`: paths that an earlier start found missing; a power cut may
    have left an empty file there, or brought the file back. `is_torn`: the mark was cut off, and more paths may be in
    doubt. `puts` (to the temporary names) and `removals`: a start has begun to rename and remove these, and all of it
    must be done.
    """

    names: dict[str, None] = field(default_factory=dict)
    files: dict[str, None] = field(default_factory=dict)
    gone: dict[str, None] = field(default_factory=dict)
    puts: dict[str, str] = field(default_factory=dict)
    removals: dict[str, None] = field(default_factory=dict)
    is_torn: bool = True

    @property
    def changes_files(self) -> bool:
        """True if the next start will serve other files than the folder shows."""
        return bool(self.gone or self.puts or self.removals)


class RenewalGroup(Struct):
    """Files that are renewed together. `pairs`: a path and its temporary name. `gone`: paths that do not exist any
    more.
    """

    pairs: list[tuple[str, str]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    bytes: int = 0


class FailedSyncMarker:
    """The mark of failed syncs, at `path`. `reserve`: a file that may be removed if there is no room for the mark.
    `folder`: the spool's.

    While nothing is in doubt, a file with allocated room, `path` with `.room`, waits to become the mark. It is empty,
    except after a power cut that undid its renaming to the mark but not the writes to it.
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
        """True once everything that earlier processes left in the caches is durable, because a start has synced it."""
        fs.failed = self.record_failure

    def record_failure(self) -> None:
        """Record a failed sync. The next process must see the mark; power cuts need not keep it, and this disk may not
        sync it.
        """
        in_doubt = self._fs.changed_names(), self._fs.unsynced_files()
        if in_doubt == self._said:
            return
        lines = _lines(*in_doubt, is_whole=self.is_complete and not self._fs.has_dropped)
        with suppress(OSError):
            if not self.exists:
                lines.insert(0, False)
                self._fs.rename(self._room, self._path)
        try:
            self._write(lines)
        except OSError:
            # The next start needs the whole list more than this process needs the reserve.
            with suppress(OSError):
                self._fs.remove(self._reserve)
            with suppress(OSError):  # if this fails, this disk accepts no writes; the next start reports that
                self._write(lines)
        self._said = in_doubt

    def set_room_aside(self) -> None:
        """Allocate room for the next mark, so that a full disk does not prevent it. If that fails, the reserve
        must do.
        """
        self._has_room = False
        with suppress(OSError):
            size = min(ROOM_BYTES, self._fs.free_bytes(self._folder)[1] // ROOM_SHARE_OF_DISK)
            if not self.exists and not is_missing(self._fs, self._room) and self._fs.size(self._room):
                self._fs.truncate(self._room, 0)  # it may contain an earlier mark (see the class)
            self._fs.set_aside(self._path if self.exists else self._room, size)
            self._has_room = True

    @property
    def has_lost_room(self) -> bool:
        """True if another program has removed the file whose room was set aside."""
        return self._has_room and is_missing(self._fs, self._path) and is_missing(self._fs, self._room)

    @property
    def exists(self) -> bool:
        """True if there is a mark. Raises OSError if the disk cannot say."""
        try:
            self._fs.size(self._path)
        except MISSING:
            return False
        return True

    def read(self) -> SuspectPaths:
        """Read the mark. A line that cannot be read is ignored. Raises OSError."""
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
        """Finish the renames and removals that an earlier start has begun. All of these paths must still be renewed,
        because a finished rename may be in the caches only. Raises OSError, JournalFailure.
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
        """Make `mark` the whole mark, durably. This must be done once before anything is written to a temporary name,
        because a mark that the caches do not show any more may list that name. Raises OSError, JournalFailure.
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
        """Give each file new bytes, through its temporary name. Create and remove again each of the names `gone`, which
        do not exist any more. The `groups` are in the spool, and each is renewed as a whole. The files of `apart` are
        elsewhere, or do not depend on each other. `mark` is what has been saved. Every step can be interrupted. Raises
        OSError, JournalFailure.
        """
        self._renew_apart(mark, apart)
        for batch in _batches(groups):
            self._renew_together(mark, batch)

    def clear(self, left: SuspectPaths) -> None:
        """Clear the mark, because everything is renewed except `left`, which cannot be reached. Raises OSError,
        JournalFailure.
        """
        if left.names or left.gone:
            self.save(left)
        else:
            self._fs.remove(self._path)
            self._sync_folders([self._path])
        self.set_room_aside()

    def _renew_apart(self, mark: SuspectPaths, apart: RenewalGroup) -> None:
        """Renew files one by one, without a list: another server, which does not know the list, may write to them
        before the list is finished.
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
            for group in batch:  # a single group needs less room than a batch
                self._renew_together(mark, [group])
            return
        for path, temp in pairs:
            self._fs.rename(temp, path)
        self._remove_anew(gone)
        self._sync_folders([*(path for path, _ in pairs), *gone])
        # The mark lists these paths until it is written for the next batch, so no temporary name is used twice.
        for path in [*dict(pairs), *gone]:
            mark.puts.pop(path, None)
            mark.removals.pop(path, None)

    def _promise(self, mark: SuspectPaths, puts: dict[str, str], removals: dict[str, None]) -> None:
        """Write down that all of these renames and removals must be done, whatever happens."""
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
            # Begin a new line, because an earlier attempt may have left a part of one.
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
    """Yield as many groups at once as are allowed, because each batch costs some syncs."""
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
