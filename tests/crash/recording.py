"""What a power cut may leave of a recorded run of a real server: its files, as tests/faults/recorder.c saw them change.

What no sync has covered may be there or not: of a file's writes the first so many, the last of them torn at sectors, or
any sectors of all where they lie over bytes that were there already; of names the first so many changes. That is what
a journaling file system in its usual mode leaves. Zeros stand where sectors of the last write are missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

SECTOR_BYTES = 512
NAMING = (b"set", b"get", b"lease")
"""Requests that say which queue they are about. Each client has one of its own, and begins with one of these."""
REQUESTS = (*NAMING, b"add", b"complete", b"delete")
ANSWERS = (b"STORED\r\n", b"END\r\n", b"+OK", b"-TIMEOUT\r\n")

Write = tuple[int, bytes | None]
"""Where, and what; None: the file was cut there."""


def apply(to: bytearray, write: Write) -> None:
    at, data = write
    if data is None:
        del to[at:]
    else:
        to.extend(bytes(max(0, at - len(to))))
        to[at : at + len(data)] = data


class RecordedFile:
    """A file, whatever its name: the bytes that are on the disk, and the writes since."""

    def __init__(self) -> None:
        self.durable = bytearray()
        self.pending: list[Write] = []

    def settle(self, writes: list[Write]) -> None:
        """These are on the disk."""
        for write in writes:
            if any(write is each for each in self.pending):
                apply(self.durable, write)
        self.pending = [each for each in self.pending if not any(each is write for write in writes)]

    def left(self, rng: Random) -> bytearray:
        data = bytearray(self.durable)
        size = len(data)
        over = [write for write in self.pending if write[1] is not None and write[0] + len(write[1]) <= size]
        rest = [write for write in self.pending if write not in over]
        for at, new in over:
            assert new is not None
            apply_sectors(data, at, new, rng, rng.choice((0.0, 0.5, 1.0)))
        kept = rng.choice((0, len(rest), rng.randint(0, len(rest))))
        for write in rest[:kept]:
            apply(data, write)
        if kept < len(rest) and rng.random() < 0.7:
            at, torn = rest[kept]
            if torn is not None:
                apply_sectors(data, at, torn[: rng.randint(0, len(torn))], rng, rng.choice((0.5, 1.0)))
        return data


def apply_sectors(data: bytearray, at: int, new: bytes, rng: Random, share: float) -> None:
    """Each sector of `new` with this probability; zeros where there was nothing before."""
    begin = at
    while begin < at + len(new):
        end = min((begin // SECTOR_BYTES + 1) * SECTOR_BYTES, at + len(new))
        if rng.random() < share:
            apply(data, (begin, new[begin - at : end - at]))
        begin = end


Change = Callable[[dict[str, RecordedFile]], object]
"""Of names."""


class Recording:
    """Follows a recording event by event. `answers`: by queue, how many requests of its one client were answered;
    `asked`: how many have arrived. `folders` are never removed.
    """

    def __init__(self, path: Path, root: str) -> None:
        self.path = path
        self.raw = path.read_bytes()
        self.root = root
        self.names: dict[str, RecordedFile] = {}
        self.durable_names: dict[str, RecordedFile] = {}
        self.changes: list[tuple[str, Change]] = []
        self.folders: list[str] = []
        self.answers: dict[str, int] = {}
        self.asked: dict[str, int] = {}
        self._open: dict[int, RecordedFile | str] = {}
        self._syncs: dict[int, tuple[list[tuple[RecordedFile, list[Write]]], list[tuple[str, Change]]]] = {}
        self._client: dict[int, str] = {}

    def events(self) -> Iterator[str]:
        """Yields the letter of each, once it has been followed."""
        at = 0
        while at < len(self.raw):
            end = self.raw.index(b"\n", at)
            line = self.raw[at:end].decode()
            at = end + 1
            letter, _, rest = line.partition(" ")
            data = b""
            if letter in "WRS":
                size = int(rest.split()[-1])
                data = self.raw[at : at + size]
                at += size
            elif letter in "ML":
                end = self.raw.index(b"\n", at)
                rest += "\n" + self.raw[at:end].decode()
                at = end + 1
            getattr(self, f"_on_{letter}")(rest, data)
            yield letter

    def left(self, rng: Random) -> dict[str, bytes]:
        """Files by path, as a power cut here may leave them."""
        names = dict(self.durable_names)
        kept = rng.choice((0, len(self.changes), rng.randint(0, len(self.changes))))
        for _, change in self.changes[:kept]:
            change(names)
        left: dict[int, bytes] = {}
        return {path: left.setdefault(id(file), bytes(file.left(rng))) for path, file in names.items()}

    def _change(self, path: str, change: Change) -> None:
        change(self.names)
        self.changes.append((os.path.dirname(path), change))

    def _on_O(self, rest: str, data: bytes) -> None:
        number, flags, path = rest.split(" ", 2)
        fd = int(number)
        if int(flags) & os.O_DIRECTORY or path in self.folders or path == self.root:
            self._open[fd] = path
            return
        if path not in self.names:
            file = RecordedFile()
            self._change(path, lambda names: names.__setitem__(path, file))
        self._open[fd] = self.names[path]
        if int(flags) & os.O_TRUNC:
            self.names[path].pending.append((0, None))

    def _on_C(self, rest: str, data: bytes) -> None:
        self._open.pop(int(rest), None)

    def _file(self, fd: str) -> RecordedFile:
        file = self._open[int(fd)]
        assert isinstance(file, RecordedFile)
        return file

    def _on_W(self, rest: str, data: bytes) -> None:
        fd, at, _ = rest.split()
        self._file(fd).pending.append((int(at), data))

    def _on_T(self, rest: str, data: bytes) -> None:
        fd, size = rest.split()
        self._file(fd).pending.append((int(size), None))

    def _on_D(self, rest: str, data: bytes) -> None:
        fd, at, size = rest.split()
        file = self._file(fd)
        found = [each for each in file.pending if each[0] == int(at) and each[1] and len(each[1]) == int(size)]
        file.settle(found[-1:])  # none if a sync of everything was faster

    def _on_B(self, rest: str, data: bytes) -> None:
        number, fd = (int(each) for each in rest.split())
        if fd == -1:
            there = [*self.names.values(), *self._open.values()]
            files = {id(file): file for file in there if isinstance(file, RecordedFile)}
            self._syncs[number] = [(file, list(file.pending)) for file in files.values()], list(self.changes)
            return
        file = self._open[fd]
        if isinstance(file, RecordedFile):
            self._syncs[number] = [(file, list(file.pending))], []
        else:  # the names in a folder, and all that were changed before them
            last = max((at for at, (folder, _) in enumerate(self.changes, 1) if folder == file), default=0)
            self._syncs[number] = [], self.changes[:last]

    def _on_E(self, rest: str, data: bytes) -> None:
        files, changes = self._syncs.pop(int(rest))
        for file, writes in files:
            file.settle(writes)
        for change in changes:
            if any(change is each for each in self.changes):
                change[1](self.durable_names)
        self.changes = [each for each in self.changes if not any(each is change for change in changes)]

    def _on_M(self, rest: str, data: bytes) -> None:
        old, new = rest.split("\n")
        self._change(new, lambda names: names.__setitem__(new, names.pop(old)))

    def _on_L(self, rest: str, data: bytes) -> None:
        old, new = rest.split("\n")
        self._change(new, lambda names: names.__setitem__(new, names[old]))

    def _on_U(self, rest: str, data: bytes) -> None:
        self._change(rest, lambda names: names.pop(rest, None))

    def _on_K(self, rest: str, data: bytes) -> None:
        self.folders.append(rest)

    def _on_R(self, rest: str, data: bytes) -> None:
        fd = int(rest.split()[0])
        words = data.split()
        if not words or words[0] not in REQUESTS:
            return  # more of a request
        if words[0] in NAMING:
            self._client[fd] = words[1].decode()  # the descriptor may have been another client's before
        queue = self._client[fd]
        self.asked[queue] = self.asked.get(queue, 0) + 1

    def _on_S(self, rest: str, data: bytes) -> None:
        queue = self._client.get(int(rest.split()[0]))
        if queue is not None:
            self.answers[queue] = self.answers.get(queue, 0) + sum(map(data.count, ANSWERS))
