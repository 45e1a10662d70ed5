"""The copy of a leader's spool to a member that joins or is repaired, in pieces.

A piece is a list of parts in MessagePack. The first parts name the place at which the files were held and every file
with its size; their bytes follow; the last part ends the copy. The files are held by second names (cluster/compare.py),
so they are those of one moment, although the leader goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from staniel.cluster.compare import BadPlan, CopiedPart, CopyPlan, FileToSum, SpoolCopy, hold_files
from staniel.cluster.places import Place
from staniel.cluster.spool_names import SpoolPaths
from staniel.journal.disk.fs import MISSING, Fs
from staniel.journal.spool_listing import HELD, JOBS_HELD

PIECE_BYTES = 512 << 10
PART_BYTES = 32  # what a part takes besides its name and its data, at most


class PiecePart(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag_field="kind"):
    """A part of a piece."""


class HeldAt(PiecePart, frozen=True, tag=1):
    """The place of the files."""

    epoch: int
    number: int


class CopiedFile(PiecePart, frozen=True, tag=2):
    """A file of the leader."""

    name: str
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
    made, and knows the place of the files.
    """

    def __init__(self, fs: Fs, paths: SpoolPaths, prefix: str, place: Place) -> None:
        """Hold the files. Raises OSError."""
        self._fs = fs
        self._paths = paths
        fs.make_folder(f"{paths.own}/{HELD}")
        if paths.jobs_outside:
            fs.make_folder(f"{paths.jobs}/{JOBS_HELD}")
        self._files = hold_files(fs, paths, prefix)
        self._pieces = self._read(place)

    def next_piece(self) -> tuple[bytes, bool]:
        """Return the next piece, and whether it is the last. Raises OSError."""
        parts = next(self._pieces)
        return _encoder.encode(parts), isinstance(parts[-1], CopyDone)

    def _read(self, place: Place) -> Iterator[list[Parts]]:
        parts: list[Parts] = []
        size = 0
        for part, part_size in self._sized_parts(place):
            if size + part_size > PIECE_BYTES and parts:
                yield parts
                parts, size = [], 0
            parts.append(part)
            size += part_size
        yield [*parts, CopyDone()]

    def _sized_parts(self, place: Place) -> Iterator[tuple[Parts, int]]:
        """Yield the parts, each with the most bytes that it takes in a piece."""
        yield HeldAt(*place), PART_BYTES
        for file in self._files:
            yield CopiedFile(file.name, file.size), len(file.name.encode()) + PART_BYTES
        for file in self._files:
            for at, data in self._pieces_of(file):
                yield Bytes(file.name, at, data), len(file.name.encode()) + len(data) + PART_BYTES

    def _pieces_of(self, file: FileToSum) -> Iterator[tuple[int, bytes]]:
        reader = self._fs.reader(file.path)
        try:
            at = 0
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
        self._pieces = iter(())
        for file in self._files:
            with suppress(OSError):
                self._fs.remove(file.path)


class CopyTarget:
    """The spool of a member while it is copied to. `is_complete`: all of it is durable, with its place."""

    def __init__(self, fs: Fs, paths: SpoolPaths) -> None:
        self._fs = fs
        self._paths = paths
        self._place: Place | None = None
        self._files: dict[str, int] = {}
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
            case CopiedFile(name, size):
                if self._copy is not None:
                    raise BadPlan(f"{name!r} comes behind the bytes of files")
                self._files[name] = size
            case Bytes(name, at, data):
                self._begin_copy().write(name, at, data)
            case CopyDone():
                if self._place is None:
                    raise BadPlan("the copy does not say its place")
                self._begin_copy().end_copy(self._place)
                self.is_complete = True

    def _begin_copy(self) -> SpoolCopy:
        """Remove what the leader does not have, before the first byte is written."""
        if self._copy is None:
            drop_own_log(self._fs, self._paths)
            parts = [CopiedPart(name, 0, size) for name, size in self._files.items()]
            gone = [name for name in self._paths.replicated_files(self._fs) if name not in self._files]
            self._copy = SpoolCopy(self._fs, self._paths, CopyPlan(parts, gone))
        return self._copy


def drop_own_log(fs: Fs, paths: SpoolPaths) -> None:
    """Remove this server's redo log and its mark of failed syncs: they are about files that are replaced. Raises
    OSError.
    """
    remove_all(fs, [f"{paths.own}/{name}" for name in ("version", "redo.0", "redo.1", "failed_sync")])
    fs.sync_folder(paths.own)


def remove_all(fs: Fs, names: Iterable[str]) -> None:
    """Remove files that may be there. Raises OSError."""
    for path in names:
        with suppress(FileNotFoundError):
            fs.remove(path)
