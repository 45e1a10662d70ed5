"""The copy of a leader's spool to a member that joins or is repaired, in pieces.

The member tells the digests of what it has, and gets what differs. A piece is a list of parts in MessagePack. The first
parts name the place at which the files were held, and every file with its size and where it begins to differ; the bytes
from there on follow; the last part ends the copy. The files are held by second names (cluster/compare.py), so they are
those of one moment, although the leader goes on.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import Struct

from staniel.cluster.compare import (
    BadPlan,
    CopiedPart,
    CopyPlan,
    FileToSum,
    SpoolCopy,
    SummedFile,
    Sums,
    digest_of,
    files_to_sum,
    hold_files,
    plan_parts,
    sum_files,
)
from staniel.cluster.places import Place
from staniel.cluster.spool_names import SpoolPaths
from staniel.journal.disk.fs import MISSING, Fs, is_there
from staniel.journal.disk.os_fs import to_native
from staniel.journal.spool_listing import HELD, JOBS_HELD

PIECE_BYTES = 512 << 10
SLICE_CHUNKS = 32  # are summed or compared in one step of a thread
SUMS_BYTES_MAX = 256 << 20  # of a member, in the leader's memory: those of 16 TB
CACHED_BYTES = 32 << 20  # of a copy, before the system is told to write them
SUM_THREADS = 2
SUM_AHEAD = 4  # chunks that are read while others are digested
FAILED_SYNC = "failed_sync"
PART_BYTES = 32  # what a part takes besides its name and its data, at most


class PiecePart(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag_field="kind"):
    """A part of a piece."""


class HeldAt(PiecePart, frozen=True, tag=1):
    """The place of the files."""

    epoch: int
    number: int


class CopiedFile(PiecePart, frozen=True, tag=2):
    """A file of the leader. The member has the bytes before `at`."""

    name: str
    at: int
    size: int


class Bytes(PiecePart, frozen=True, tag=3):
    """Bytes of a file, from `at` on."""

    name: str
    at: int
    data: bytes


class CopyDone(PiecePart, frozen=True, tag=4):
    """The end: all files are complete."""


Parts = HeldAt | CopiedFile | Bytes | CopyDone

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Parts])
_sums_decoder = msgspec.msgpack.Decoder(list[SummedFile])


def encode_parts(parts: list[Parts]) -> bytes:
    """Return a piece."""
    return _encoder.encode(parts)


PREFIX = "member-"
"""The beginning of second names, which a leader that was killed leaves behind."""


def clear_held(fs: Fs, paths: SpoolPaths) -> None:
    """Remove second names that an earlier process has left. Raises OSError."""
    folders = [f"{paths.own}/{HELD}", *([f"{paths.jobs}/{JOBS_HELD}"] if paths.jobs_outside else [])]
    for folder in folders:
        with suppress(*MISSING):
            remove_all(fs, [f"{folder}/{name}" for name, _ in fs.list(folder) if name.startswith(PREFIX)])


class CopySource:
    """The files of a leader, held for one member that copies them. The caller has the recorder's lock while this is
    made, and knows the place of the files. `theirs`: what the member has. `compared`: chunks that were compared.
    """

    def __init__(self, fs: Fs, paths: SpoolPaths, prefix: str, place: Place, theirs: Sums) -> None:
        """Hold the files. Raises OSError."""
        self._fs = fs
        self._paths = paths
        fs.make_folder(f"{paths.own}/{HELD}")
        if paths.jobs_outside:
            fs.make_folder(f"{paths.jobs}/{JOBS_HELD}")
        self._files = hold_files(fs, paths, prefix)
        self._theirs = theirs
        self._place = place
        self._pieces = self._read()
        self.compared = 0

    def next_piece(self) -> tuple[bytes, bool] | None:
        """Return the next piece, and whether it is the last; None after some chunks that were compared. It is called in
        a thread. Raises OSError.
        """
        parts = next(self._pieces)
        return None if parts is None else (encode_parts(parts), isinstance(parts[-1], CopyDone))

    def _read(self) -> Iterator[list[Parts] | None]:
        plan: list[CopiedPart] = []
        for part in plan_parts(self._fs, self._files, self._theirs):
            if part is not None:
                plan.append(part)
                continue
            self.compared += 1
            if self.compared % SLICE_CHUNKS == 0:
                yield None
        parts: list[Parts] = []
        size = 0
        for sent, part_size in self._sized_parts(plan):
            if size + part_size > PIECE_BYTES and parts:
                yield parts
                parts, size = [], 0
            parts.append(sent)
            size += part_size
        yield [*parts, CopyDone()]

    def _sized_parts(self, plan: list[CopiedPart]) -> Iterator[tuple[Parts, int]]:
        """Yield the parts, each with the most bytes that it takes in a piece."""
        yield HeldAt(*self._place), PART_BYTES
        for part in plan:
            yield CopiedFile(part.name, part.at, part.size), len(part.name.encode()) + PART_BYTES
        for part, file in zip(plan, self._files, strict=True):
            for at, data in self._pieces_of(file, part.at):
                yield Bytes(file.name, at, data), len(file.name.encode()) + len(data) + PART_BYTES

    def _pieces_of(self, file: FileToSum, at: int) -> Iterator[tuple[int, bytes]]:
        if at >= file.size:
            return
        reader = self._fs.reader(file.path)
        try:
            while at < file.size:
                data = reader.read(at, min(PIECE_BYTES, file.size - at))
                if not data:
                    raise OSError(f"{file.path} has become shorter than {file.size} bytes")
                yield at, data
                at += len(data)
        finally:
            reader.close()

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files:
            with suppress(OSError):
                self._fs.remove(file.path)


class CopyTarget:
    """The spool of a member while it is copied to. `drop_cache` has the system write what it has of a file to the disk,
    and forget it: the disk is busy while pieces come, and the sync at the end is short. `is_complete`: all of it is
    durable, with its place.
    """

    def __init__(self, fs: Fs, paths: SpoolPaths, drop_cache: Callable[[str], None]) -> None:
        self._fs = fs
        self._paths = paths
        self._drop_cache = drop_cache
        self._cached_bytes = 0
        self._place: Place | None = None
        self._files: dict[str, CopiedPart] = {}
        self._copy: SpoolCopy | None = None
        self.is_complete = False

    def write(self, piece: bytes) -> None:
        """Take a piece. Raises BadPlan, OSError, JournalFailure."""
        try:
            parts = _decoder.decode(piece)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise BadPlan(f"not a piece of a copy: {error}") from None
        for part in parts:
            self._take_part(part)

    def _take_part(self, part: Parts) -> None:
        match part:
            case HeldAt(epoch, number):
                self._place = Place(epoch, number)
            case CopiedFile(name, at, size):
                if self._copy is not None or at > size:
                    raise BadPlan(f"{name!r} comes behind the bytes of files, or begins at {at} of {size}")
                self._files[name] = CopiedPart(name, at, size)
            case Bytes(name, at, data):
                self._begin_copy().write(name, at, data)
                self._cached_bytes += len(data)
                if self._cached_bytes >= CACHED_BYTES:
                    self._drop_cache(self._paths.path_of(name))
                    self._cached_bytes = 0
            case CopyDone():
                if self._place is None:
                    raise BadPlan("the copy does not say its place")
                self._begin_copy().end_copy(self._place)
                remove_all(self._fs, [f"{self._paths.own}/{FAILED_SYNC}"])
                self._fs.sync_folder(self._paths.own)
                self.is_complete = True

    def _begin_copy(self) -> SpoolCopy:
        """Remove and cut what the leader does not have, before the first byte is written."""
        if self._copy is None:
            drop_own_log(self._fs, self._paths)
            own = {name: self._fs.size(self._paths.path_of(name)) for name in self._paths.replicated_files(self._fs)}
            gone = [name for name in own if name not in self._files]
            parts = [part for part in self._files.values() if not part.at == part.size == own.get(part.name)]
            self._copy = SpoolCopy(self._fs, self._paths, CopyPlan(parts, gone))
        return self._copy


class SpoolSums:
    """The files of a member that is to be repaired, summed in pieces for its leader. `drop_cache` has the system forget
    what it has read of a file, so that the sums are those of the disk: after a sync that failed, it may have what the
    disk does not have.
    """

    def __init__(self, fs: Fs, paths: SpoolPaths, drop_cache: Callable[[str], None]) -> None:
        self._fs = fs
        self._paths = paths
        self._drop_cache = drop_cache
        self._pieces = self._sum()

    def next_piece(self) -> tuple[bytes, bool]:
        """Return the next piece, which may say nothing yet, and whether it is the last. It is called in a thread.
        Raises OSError.
        """
        parts = next(self._pieces)
        return (b"", True) if parts is None else (_encoder.encode(parts) if parts else b"", False)

    def _sum(self) -> Iterator[list[SummedFile] | None]:
        if not is_there(self._fs, f"{self._paths.own}/{FAILED_SYNC}"):
            self._fs.sync_all(self._paths.folder)
            if self._paths.jobs_outside:
                self._fs.sync_all(self._paths.jobs)
            with ThreadPoolExecutor(SUM_THREADS, "sums") as pool:
                yield from self._sum_all(pool)
        yield None

    def _sum_all(self, pool: Executor) -> Iterator[list[SummedFile]]:
        parts: list[SummedFile] = []
        size = chunks = 0
        for part in sum_files(self._fs, self._uncached(), partial(digest_ahead, pool)):
            chunks += part is None
            if part is not None:
                parts.append(part)
                size += len(part.name.encode()) + len(part.sums) + PART_BYTES
            if size > PIECE_BYTES or chunks >= SLICE_CHUNKS:
                yield parts
                parts, size, chunks = [], 0, 0
        yield parts

    def _uncached(self) -> Iterator[FileToSum]:
        for file in files_to_sum(self._fs, self._paths):
            self._drop_cache(file.path)
            yield file


def digest_ahead(pool: Executor, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the digests of chunks, which threads make while the next chunks are read."""
    waiting: deque[Future[bytes]] = deque()
    for chunk in chunks:
        waiting.append(pool.submit(digest_of, chunk))
        if len(waiting) > SUM_AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def read_sums(sums: Sums, piece: bytes) -> bool:
    """Add a piece of a member's sums. Return False if it is none, or there are too many."""
    if not piece:
        return True
    try:
        parts = _sums_decoder.decode(piece)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    for part in parts:
        sums.add(part)
    return sums.bytes <= SUMS_BYTES_MAX


def drop_cache(path: str) -> None:
    """Have the system read a file from the disk again. It may be gone, or not readable: its reader says so."""
    with suppress(OSError):
        fd = os.open(to_native(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def drop_own_log(fs: Fs, paths: SpoolPaths) -> None:
    """Remove this server's redo log: it is about files that are replaced. The mark of failed syncs stays until they
    are, so that a copy that is begun anew takes all files, too. Raises OSError.
    """
    remove_all(fs, [f"{paths.own}/{name}" for name in ("version", "redo.0", "redo.1")])
    fs.sync_folder(paths.own)


def remove_all(fs: Fs, names: Iterable[str]) -> None:
    """Remove files that may be there. Raises OSError."""
    for path in names:
        with suppress(FileNotFoundError):
            fs.remove(path)
