"""Comparison of two spools by checksums, and the copy that makes one the other.

A member joins with the leader's files of one moment: second names hold them while the leader goes on, as they do for a
backup. The stream goes on from the place of that moment. Files that are cut in service, and then written to, are small
and in the own folder itself: of these a copy is held. A server that erases what can be undone cuts a file to nothing;
then the copy begins anew. The member sums its files in chunks, and the leader reads its own until a chunk differs: it
sends what is behind. Checksums in sidecars are each server's own, and say nothing of a byte that has changed since on
its disk. Everything is in slices: a generator yields after each chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from hashlib import sha256

from msgspec import Struct

from staniel.cluster.follower_spool import forget_place, store_first_place
from staniel.cluster.places import Place
from staniel.cluster.spool_names import SpoolPaths, is_replicated
from staniel.journal.disk.fs import MISSING, File, Fs, Reader, write_whole
from staniel.journal.disk.replace_file import replace_empty_folder
from staniel.journal.disk.unsynced_names import UnsyncedNames
from staniel.journal.kestrel.files import OWN_FOLDER, sidecar_folder
from staniel.journal.spool_listing import HELD, JOBS_HELD

CHUNK_BYTES = 1 << 20
SUM_BYTES = 16
OTHER_NAMES = (".new", "~~1", "~~2")  # suffixes of names that a file may have for a moment
SUMS_MAX = 4096  # in one part of a file: 64 KiB, so that a message takes it
Digests = Callable[[Iterator[bytes]], Iterator[bytes]]
"""Turns chunks of a file into their digests, in order: one by one, or several at a time in threads."""


class FileToSum(Struct, frozen=True):
    """The first `size` bytes of the file at `path`, which is `name` in the spool."""

    name: str
    path: str
    size: int


class SummedFile(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file's size, and a digest of SUM_BYTES for each chunk of it. Further parts of a large file follow with the
    digests of its next chunks.
    """

    name: str
    size: int
    sums: bytes


class Sums:
    """The files of a member as it has summed them: by name, the size and all digests. `bytes`: of all digests."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[int, bytearray]] = {}
        self.bytes = 0

    def add(self, part: SummedFile) -> None:
        """Add a file, or the next part of the last one."""
        self._files.setdefault(part.name, (part.size, bytearray()))[1].extend(part.sums)
        self.bytes += len(part.sums) + len(part.name)

    def of(self, name: str) -> tuple[int, bytearray]:
        """Return the size and the digests of a file; (0, b"") if the member has none of that name."""
        return self._files.get(name, (0, bytearray()))


class CopiedPart(Struct, frozen=True):
    """The part of a file that a member lacks: from byte `at`, where its own is cut off, to `size`. It may be empty."""

    name: str
    at: int
    size: int


class CopyPlan(Struct, frozen=True):
    """The difference of a member's spool from the leader's. `removals`: files that the leader does not have."""

    parts: list[CopiedPart]
    removals: list[str]


class BadPlan(Exception):
    """The error for a plan, or a piece of a file, that a peer has sent and that does not fit."""


def hold_files(fs: Fs, paths: SpoolPaths, prefix: str) -> list[FileToSum]:
    """Give each replicated file a second name that begins with `prefix`, within the folder of second names, which
    exists. The caller sees to it that no file is changed meanwhile: it has the recorder's lock. Raises OSError.
    """
    held = []
    for number, name in enumerate(paths.replicated_files(fs)):
        path, folder = paths.path_of(name), f"{paths.own}/{HELD}"
        if paths.jobs_outside and path.startswith(f"{paths.jobs}/"):
            folder = f"{paths.jobs}/{JOBS_HELD}"
        other = f"{folder}/{prefix}-{number}"
        if name.rpartition("/")[0] == OWN_FOLDER:
            file = fs.append(other)
            try:
                file.write(fs.read(path, 0, fs.size(path)))
            finally:
                file.close()
        else:
            fs.link(path, other)
        held.append(FileToSum(name, other, fs.size(other)))
    return held


def files_to_sum(fs: Fs, paths: SpoolPaths) -> list[FileToSum]:
    """Return the replicated files of a spool that no server has open. Raises OSError."""
    listed = [(name, paths.path_of(name)) for name in paths.replicated_files(fs)]
    return [FileToSum(name, path, fs.size(path)) for name, path in listed]


def digest_of(data: bytes) -> bytes:
    """Return the digest of a chunk. SHA-256, because processors have instructions for it: twice as fast as BLAKE2."""
    return sha256(data).digest()[:SUM_BYTES]


def digest_each(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the digests of chunks, one by one."""
    return map(digest_of, chunks)


def sum_files(fs: Fs, files: Iterable[FileToSum], digests: Digests = digest_each) -> Iterator[SummedFile | None]:
    """Yield each file with its checksums, a large one in parts, and None after each chunk before. What cannot be read
    is left out: the leader sends it.
    """
    for file in files:
        try:
            yield from _sum_file(fs, file, digests if file.size > CHUNK_BYTES else digest_each)
        except OSError:
            continue


def _sum_file(fs: Fs, file: FileToSum, digests: Digests) -> Iterator[SummedFile | None]:
    reader = fs.reader(file.path)
    try:
        sums: list[bytes] = []
        for digest in digests(_chunks_of(reader, file.size)):
            sums.append(digest)
            if len(sums) == SUMS_MAX:
                yield SummedFile(file.name, file.size, b"".join(sums))
                sums.clear()
            else:
                yield None
        yield SummedFile(file.name, file.size, b"".join(sums))
    finally:
        reader.close()


def _chunks_of(reader: Reader, size: int) -> Iterator[bytes]:
    """Yield the chunks of the first `size` bytes of a file, up to the first one that is shorter than it should be."""
    for at in range(0, size, CHUNK_BYTES):
        count = min(CHUNK_BYTES, size - at)
        data = reader.read(at, count)
        if len(data) < count:
            return
        yield data


def plan_parts(fs: Fs, files: Iterable[FileToSum], theirs: Sums) -> Iterator[CopiedPart | None]:
    """Yield of each file of a leader the part that a member lacks, and None after each chunk that is read before.
    Raises OSError; a file that is shorter than it says is one, too.
    """
    for file in files:
        size, sums = theirs.of(file.name)
        at = (yield from _common_bytes(fs, file, size, sums)) if sums else 0
        yield CopiedPart(file.name, at, file.size)


def _common_bytes(fs: Fs, file: FileToSum, size: int, sums: bytearray) -> Generator[None, None, int]:
    """Yield after each chunk that is read. Return how many bytes the file begins with that are the member's, too: whole
    chunks, and the end of the member's file.
    """
    reader, at = fs.reader(file.path), 0
    try:
        for begin in range(0, len(sums), SUM_BYTES):
            count = min(CHUNK_BYTES, size - at)
            if count <= 0 or at + count > file.size:
                break
            data = reader.read(at, count)
            if len(data) < count:
                raise OSError(f"{file.path} has become shorter than {file.size} bytes")
            if digest_of(data) != sums[begin : begin + SUM_BYTES]:
                break
            at += count
            yield
    finally:
        reader.close()
    return at


class SpoolCopy:
    """A member's spool while the leader's files are copied into it. It is marked as unfit before, and no server's. What
    the member would keep of its files must be moved away before.
    """

    def __init__(self, fs: Fs, paths: SpoolPaths, plan: CopyPlan) -> None:
        """Remove and cut what the leader does not have. Raises BadPlan with nothing done, OSError, JournalFailure."""
        for name in [*plan.removals, *(part.name for part in plan.parts)]:
            if not is_replicated(name):
                raise BadPlan(f"{name!r} is not the name of a file that followers have")
        self._fs = UnsyncedNames(fs)
        self._paths = paths
        self._parts = {part.name: part for part in plan.parts}
        self._file: File | None = None
        self._name = ""
        forget_place(self._fs, paths)
        self._remove_sidecars()
        for name in plan.removals:
            with suppress(FileNotFoundError):
                self._fs.remove(paths.path_of(name))
        self._renew_names()
        for folder in {paths.path_of(part.name).rpartition("/")[0] for part in plan.parts}:
            self._fs.make_folder(folder)
            if folder.startswith(f"{paths.own}/") and not self._fs.list(folder):
                replace_empty_folder(self._fs, folder)
        for part in plan.parts:
            if self._open(part.name).size > part.at:
                self._fs.truncate(paths.path_of(part.name), part.at)

    def _renew_names(self) -> None:
        """Give the files that stay their names anew. After a failed sync a file may have its name in the cache alone,
        and no sync of the copy would write it. A file that a power cut leaves under the other name is removed by the
        copy that is begun then.
        """
        names = {*self._paths.replicated_files(self._fs)}
        for name in sorted(names):
            path, part = self._paths.path_of(name), self._parts.get(name)
            if part is not None and not part.at:
                self._fs.remove(path)
                continue
            others = (f"{name}{suffix}" for suffix in OTHER_NAMES)
            other = next((other for other in others if is_replicated(other) and other not in names), "")
            if other:
                self._fs.rename(path, self._paths.path_of(other))
                self._fs.rename(self._paths.path_of(other), path)

    def write(self, name: str, at: int, data: bytes) -> None:
        """Write a piece of a file behind the ones before. Raises BadPlan, OSError, JournalFailure."""
        part = self._parts.get(name)
        if part is None or at + len(data) > part.size:
            raise BadPlan(f"bytes from {at} to {at + len(data)} of {name!r} are not in the plan")
        file = self._open(name)
        if file.size != at:
            raise BadPlan(f"a piece of {name!r} at {at}, not at {file.size}")
        write_whole(self._fs, self._paths.path_of(name), file, data)

    def end_copy(self, place: Place) -> None:
        """Make the copy durable, then its place in the stream. Raises BadPlan, OSError, JournalFailure."""
        for name, part in self._parts.items():
            if self._fs.size(self._paths.path_of(name)) != part.size:
                raise BadPlan(f"the copy of {name!r} is not complete")
        self._close()
        self._fs.sync_all(self._paths.folder)
        if self._paths.jobs_outside:
            self._fs.sync_all(self._paths.jobs)
        store_first_place(self._fs, self._paths, place)

    def _open(self, name: str) -> File:
        if self._file is None or self._name != name:
            self._close()
            self._file, self._name = self._fs.append(self._paths.path_of(name)), name
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _remove_sidecars(self) -> None:
        """Remove the indexes of files that are about to change; the next start makes others. Those that an earlier
        process may have removed in the cache alone go with their folder.
        """
        folder = sidecar_folder(self._paths.folder)
        with suppress(*MISSING):
            for name, _ in self._fs.list(folder):
                self._fs.remove(f"{folder}/{name}")
            replace_empty_folder(self._fs, folder)
