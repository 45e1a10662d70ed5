"""Files without their names, and folders of names: for each the visible state, the durable state, and the steps
between.

`left_by` decides what a power loss leaves of them. Paths, space and faults are in disk.py.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

SECTOR_BYTES = 512
Choose = Callable[[int], int]
"""The source of chance for a power loss: `choose(n)` returns a number from 0 to n - 1, and decides alone what
is left.
"""


class Crash(Enum):
    DROP = "drop"  # everything unsynced is lost
    KEEP = "keep"  # everything unsynced reached the disk


class Edit(NamedTuple):
    """A step between a file's durable bytes and its visible ones: `data` written at `at`; None: the file was
    cut there.
    """

    at: int
    data: bytes | None

    def is_within(self, size: int) -> bool:
        """Tell whether the step writes over some of the first `size` bytes."""
        return self.data is not None and self.at + len(self.data) <= size

    def apply(self, to: bytearray) -> None:
        if self.data is None:
            del to[self.at :]
        elif self.data:
            to.extend(bytes(max(0, self.at - len(to))))
            to[self.at : self.at + len(self.data)] = self.data


class Inode:
    """A file without its name. `reserved`: blocks that it occupies without having bytes in them. `is_region`: it is
    overwritten in place, and a power loss may keep any part of that.
    """

    def __init__(self) -> None:
        self.is_region = False
        self.data = bytearray()
        self.durable = bytearray()
        self.dirty: list[Edit] = []
        self.reserved = 0
        self.links = 0
        self.handles = 0
        self.path = ""

    @property
    def occupied(self) -> int:
        return max(self.reserved, len(self.data))

    def edit(self, edit: Edit) -> None:
        edit.apply(self.data)
        self.dirty.append(edit)

    def sync(self) -> None:
        for edit in self.dirty:
            edit.apply(self.durable)
        self.dirty.clear()

    def left_by(self, how: Crash | Choose, *, is_vouched: bool = False) -> bytearray:
        """Return the bytes that a power loss leaves. `is_vouched`: a log knows which bytes are whole, so the loss may
        keep any part of the appended bytes.
        """
        left = bytearray(self.durable)
        steps = self.dirty
        if is_vouched and not isinstance(how, Crash) and how(3) and all(step.data is not None for step in steps):
            return self._ragged(how)
        if self.is_region and not isinstance(how, Crash):
            size = len(self.durable)
            for edit in steps:
                if edit.is_within(size):
                    _any_part(edit, how, left)
            steps = [edit for edit in steps if not edit.is_within(size)]
        kept = _how_many(len(steps), how)
        for edit in steps[:kept]:
            edit.apply(left)
        if kept < len(steps) and not isinstance(how, Crash):
            _torn(steps[kept], how).apply(left)
        return left

    def _ragged(self, choose: Choose) -> bytearray:
        """Return the bytes after a power loss that keeps a part of the appended ones, in which any sectors are
        zeros.
        """
        left = bytearray(self.durable)
        end = len(left) + choose(max(0, len(self.data) - len(left)) + 1)
        while len(left) < end:
            at = len(left)
            stop = min((at // SECTOR_BYTES + 1) * SECTOR_BYTES, end)
            left += self.data[at:stop] if choose(3) else bytes(stop - at)
        return left


class Folder:
    """A folder of names. `dirty` has the steps between `durable` and `entries`."""

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.dirty: list[Move] = []

    def move(self, move: Move) -> None:
        move.apply(self.entries)
        self.dirty.append(move)

    def sync(self) -> None:
        for move in self.dirty:
            if move.half is not None:
                if move.half.is_lost:
                    continue
                move.half.is_durable = True
            move.apply(self.durable)
        self.dirty.clear()

    def lose_moves(self) -> None:
        """Note that a sync has failed: the moves show, but they never become durable. A rename to or from another
        folder is lost in both, unless the other folder has been synced.
        """
        for move in self.dirty:
            if move.half is None:
                continue
            if move.half.is_durable:
                move.apply(self.durable)
            else:
                move.half.is_lost = True
        self.dirty.clear()

    def left_by(self, how: Crash | Choose) -> dict[str, Node]:
        """Return the entries that a power loss leaves."""
        left = dict(self.durable)
        for move in _kept(self.dirty, how):
            move.apply(left)
        return left


Node = Inode | Folder


class Across:
    """A rename from one folder to another. It is kept or lost in both. `is_lost`: a sync of one folder has failed."""

    def __init__(self) -> None:
        self.is_durable = self.is_lost = False
        self._answered: tuple[Choose, bool] | None = None

    def is_kept(self, how: Crash | Choose) -> bool:
        """Tell whether a power loss keeps the rename. The result is the same for both folders."""
        if self.is_durable or self.is_lost:
            return self.is_durable
        if isinstance(how, Crash):
            return how is Crash.KEEP
        if self._answered is None or self._answered[0] is not how:
            self._answered = how, how(2) == 1
        return self._answered[1]


class Move(NamedTuple):
    """A step between a folder's durable names and its visible ones: with `old` "" it creates a name, with `new` "" it
    removes one.
    """

    old: str
    new: str
    node: Node
    half: Across | None = None  # shared by both folders of a rename from one to the other

    def apply(self, to: dict[str, Node]) -> None:
        if self.old:
            to.pop(self.old, None)
        if self.new:
            to[self.new] = self.node


def _torn(edit: Edit, choose: Choose) -> Edit:
    """Return what a power loss leaves of the interrupted write: nothing, sectors, bytes, or its length in zeros."""
    how = choose(4)
    if not edit.data or how == 0:
        return Edit(edit.at, b"")
    if how == 3:
        return Edit(edit.at, bytes(len(edit.data)))
    if how == 2:
        return Edit(edit.at, edit.data[: choose(len(edit.data))])
    sectors = (edit.at + len(edit.data)) // SECTOR_BYTES - edit.at // SECTOR_BYTES
    stop = (edit.at // SECTOR_BYTES + choose(sectors + 1)) * SECTOR_BYTES
    return Edit(edit.at, edit.data[: max(0, stop - edit.at)])


def _any_part(edit: Edit, choose: Choose, left: bytearray) -> None:
    """Apply what is left of a write to existing blocks: nothing, all of it, or any of its sectors."""
    how = choose(4)
    if how < 2 or not edit.data:
        if how == 0:
            edit.apply(left)
        return
    at = edit.at
    while at < edit.at + len(edit.data):
        end = min((at // SECTOR_BYTES + 1) * SECTOR_BYTES, edit.at + len(edit.data))
        if choose(2):
            Edit(at, edit.data[at - edit.at : end - edit.at]).apply(left)
        at = end


def _how_many(steps: int, how: Crash | Choose) -> int:
    if isinstance(how, Crash):
        return steps if how is Crash.KEEP else 0
    return how(steps + 1)


def _kept(moves: list[Move], how: Crash | Choose) -> list[Move]:
    """Return a beginning of `moves`, or any subset in which no kept step follows a lost one on the same name."""
    if not moves or isinstance(how, Crash) or how(2) == 0:
        count = _how_many(len(moves), how)
        return [move for at, move in enumerate(moves) if (at < count if move.half is None else move.half.is_kept(how))]
    kept: list[Move] = []
    lost: set[str] = set()
    for move in moves:
        names = {move.old, move.new} - {""}
        if (names & lost or how(2) == 0) if move.half is None else not move.half.is_kept(how):
            lost |= names
        else:
            kept.append(move)
    return kept


def carry(node: Node, source: Folder, old: str, target: Folder, new: str) -> None:
    """Rename a node, within a folder or to another one."""
    if source is target:
        source.move(Move(old, new, node))
        return
    across = Across()
    source.move(Move(old, "", node, across))
    target.move(Move("", new, node, across))


class Fork:
    """A copier of nodes that belong together. It copies each once, with the steps between its durable and its visible
    state.
    """

    def __init__(self) -> None:
        self._nodes: dict[Node, Node] = {}
        self._halves: dict[Across, Across] = {}

    def of_folder(self, folder: Folder) -> Folder:
        known = self._nodes.get(folder)
        if known is None:
            known = self._nodes[folder] = twin = Folder()
            twin.entries = {name: self._of(node) for name, node in folder.entries.items()}
            twin.durable = {name: self._of(node) for name, node in folder.durable.items()}
            twin.dirty = [Move(move.old, move.new, self._of(move.node), self._half(move.half)) for move in folder.dirty]
        assert isinstance(known, Folder)
        return known

    def _of(self, node: Node) -> Node:
        return self.of_folder(node) if isinstance(node, Folder) else self._of_file(node)

    def _of_file(self, inode: Inode) -> Node:
        known = self._nodes.get(inode)
        if known is None:
            known = self._nodes[inode] = twin = Inode()
            twin.is_region, twin.reserved = inode.is_region, inode.reserved
            twin.links, twin.path = inode.links, inode.path
            twin.data, twin.durable, twin.dirty = bytearray(inode.data), bytearray(inode.durable), [*inode.dirty]
        return known

    def _half(self, half: Across | None) -> Across | None:
        if half is None:
            return None
        known = self._halves.get(half)
        if known is None:
            known = self._halves[half] = Across()
            known.is_durable, known.is_lost = half.is_durable, half.is_lost
        return known
