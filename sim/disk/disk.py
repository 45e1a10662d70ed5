"""A file system in memory that loses what was not synced: staniel.journal.disk.fs.Fs for tests and the simulator.

It has limited space, faults on request, and a log of every step. It is deterministic: the same calls and the same
choices give the same disk. The rules are those of POSIX, read strictly. A file's sync makes its bytes durable, but not
its name. A folder's sync makes the names in it durable, but not the bytes of the files. A rename is kept or lost as a
whole. Of the unsynced steps any may be lost, but never one on which a kept step depends (two steps on the same name
happen in their order).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Container, Iterator
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

from msgspec import Struct

from staniel.journal.disk.fs import UNKNOWN_BYTES, AlreadyLocked, File, Reader, Region, SyncFailed
from staniel.sim.disk.durable import Choose, Crash, Edit, Folder, Fork, Inode, Move, Node, carry

CAPACITY_BYTES = 1 << 30
INODES = 1 << 20
MEMORY_BYTES = 1 << 30


class PowerCut(BaseException):
    """The stop of the disk that a test requested; no later step has an effect. No `except OSError` may catch this."""


class Op(NamedTuple):
    """A step that changed the disk, as `Disk.log` keeps it. `size`: bytes written, or the size after a cut."""

    verb: str
    path: str
    size: int = 0
    new: str = ""


class Where(Enum):
    """The part of the server that uses the disk."""

    ANY = "any"
    TURN = "a turn of the server"
    THREAD = "one of its threads"


class Fault(Struct):
    """A fault of the steps named `verb` on paths that contain `path_part`, which may begin with a `/`. `after` of them
    pass, then `times` of them fail with `errno`, having written `short` bytes.
    """

    verb: str
    path_part: str
    errno: int
    after: int
    times: int
    short: int
    where: Where = Where.ANY

    def strikes(self, verb: str, path: str, where: Where) -> bool:
        """Tell whether this step fails, and count the step."""
        if verb != self.verb or self.path_part not in f"/{path}" or not self.times:
            return False
        if self.where is not Where.ANY and self.where is not where:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True


class DiskFile:
    """A journal.disk.fs.File on a Disk."""

    def __init__(self, disk: Disk, inode: Inode) -> None:
        self.size = len(inode.data)
        self._disk = disk
        self._inode = inode
        self._closed = False
        inode.handles += 1

    def write(self, data: bytes) -> None:
        assert not self._closed, "write to a closed file"
        try:
            self._disk.write_to(self._inode, data)
        finally:
            self.size = len(self._inode.data)

    def read(self, at: int, count: int) -> bytes:
        assert not self._closed, "read from a closed file"
        self._disk.trip("read", self._inode.path)
        return bytes(self._inode.data[at : at + count])

    def sync(self) -> None:
        assert not self._closed, "sync of a closed file"
        self._disk.sync_inode(self._inode)

    def is_at(self, path: str) -> bool:
        self._disk.trip("is_at", path)
        return self._disk.inode_at(path) is self._inode and len(self._inode.data) >= self.size

    def close(self) -> None:
        assert not self._closed, "closed twice"
        self._closed = True
        self._inode.handles -= 1
        self._disk.forget_if_dead(self._inode)


class DiskRegion:
    """A journal.disk.fs.Region on a Disk."""

    def __init__(self, disk: Disk, inode: Inode) -> None:
        self.size = len(inode.data)
        self._disk = disk
        self._inode = inode
        self._staged: list[tuple[int, bytes]] = []
        inode.is_region = True
        inode.handles += 1

    def write_at(self, at: int, data: bytes) -> None:
        self._disk.write_over(self._inode, at, data)

    def stage(self, at: int, data: bytes) -> None:
        if self._staged:
            before, known = self._staged[-1]
            assert at == before + len(known)
        self._staged.append((at, data))

    def sync(self) -> None:
        staged, self._staged = self._staged, []
        if staged:
            try:
                self._disk.write_over(self._inode, staged[0][0], b"".join([data for _, data in staged]))
            except OSError as error:
                raise SyncFailed(error.errno, error.strerror, self._inode.path) from error
        self._disk.sync_inode(self._inode)

    def is_at(self, path: str) -> bool:
        self._disk.trip("is_at", path)
        return self._disk.inode_at(path) is self._inode

    def close(self) -> None:
        self._inode.handles -= 1
        self._disk.forget_if_dead(self._inode)


class DiskReader:
    """A journal.disk.fs.Reader on a Disk."""

    def __init__(self, disk: Disk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        inode.handles += 1

    def read(self, at: int, count: int) -> bytes:
        self._disk.trip("read", self._inode.path)
        return bytes(self._inode.data[at : at + count])

    def close(self) -> None:
        self._inode.handles -= 1
        self._disk.forget_if_dead(self._inode)


class Disk:
    """A file system. Paths are relative to its root, "" itself."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        self.free_inodes_count = INODES
        self.used_bytes = 0
        self.log: list[Op] = []
        self.stop_at: int | None = None
        """The number in `log` of a step: instead of it, and at every later step, PowerCut is raised."""
        self.lies = 0
        """The number of failed syncs: after one, bytes may look clean that are not durable."""
        self.before_step: Callable[[], None] = lambda: None
        """Called before each step that changes the disk, or its durable part."""
        self.vouched: Callable[[], Container[str]] = lambda: ()
        """Paths of files whose whole bytes are known from a log: a power loss may keep any part of them."""
        self.where = Where.TURN  # the part of the server that uses the disk now
        self.boots = 1
        self.name_bytes = 255  # the longest name of a file
        self.ids = 0  # the number of unique ids returned
        self._root = Folder()
        self._faults: list[Fault] = []
        self._locks: set[str] = set()
        self._holds: dict[str, list[bool]] = {}  # by path: for each holder, whether it shares the lock

    def fail(
        self,
        verb: str,
        path_part: str,
        number: int,
        *,
        after: int = 0,
        times: int = 1,
        short: int = 0,
        where: Where = Where.ANY,
    ) -> None:
        """Let `after` steps named `verb` on such paths pass, then let `times` of them fail with errno `number`.

        A failed write has written `short` bytes. After a failed sync the unsynced steps are lost: they stay visible and
        count as clean, and the next sync succeeds without them.
        """
        self._faults.append(Fault(verb, path_part, number, after, times, short, where))

    def crash(self, how: Crash | Choose) -> Disk:
        """Return the disk after power loss. This disk stays as it is, so that one run can crash in many ways."""
        vouched = self.vouched()
        left = self._copied(
            lambda inode: inode.left_by(how, is_vouched=inode.path in vouched), lambda folder: folder.left_by(how)
        )
        left.boots = self.boots + 1
        return left

    def copy(self) -> Disk:
        """Return a copy of what a reader sees, all of it durable, including what a failed sync has left in the
        caches.
        """
        return self._copied(lambda inode: bytearray(inode.data), lambda folder: folder.entries)

    def fork(self) -> Disk:
        """Return another disk in the same state, caches included, as a killed process leaves it. Starts can be tried on
        it. It has no open files.
        """
        twin = Disk(self.capacity_bytes)
        twin.boots, twin.ids, twin.lies = self.boots, self.ids, self.lies
        twin._root = Fork().of_folder(self._root)
        seen: set[Inode] = set()
        for node in _all_below(twin._root):
            if isinstance(node, Inode) and node not in seen:
                seen.add(node)
                twin.used_bytes += node.occupied
        return twin

    def digest(self) -> bytes:
        """Return a digest of everything that a reader sees, as in a `copy`. Two disks have the same digest only if no
        start can distinguish their copies.
        """
        seen: dict[Inode, int] = {}
        summed = blake2b(repr((self.capacity_bytes, self.boots, self.ids)).encode(), digest_size=20)

        def add(folder: Folder) -> None:
            for name, node in sorted(folder.entries.items()):
                if isinstance(node, Folder):
                    summed.update(repr((name, len(node.entries))).encode())
                    add(node)
                else:
                    number = seen.setdefault(node, len(seen))
                    summed.update(repr((name, number, len(node.data), node.reserved)).encode())
                    summed.update(node.data)

        add(self._root)
        return summed.digest()

    def _copied(self, bytes_of: Callable[[Inode], bytearray], names_of: Callable[[Folder], dict[str, Node]]) -> Disk:
        left = Disk(self.capacity_bytes)
        left.boots, left.ids = self.boots, self.ids
        memo: dict[Inode, Inode] = {}

        def copy(node: Node, path: str) -> Node:
            if isinstance(node, Inode):
                if node not in memo:
                    memo[node] = left._platter_file(bytes_of(node), node.reserved, path)
                memo[node].links += 1
                return memo[node]
            folder = Folder()
            for name, entry in sorted(names_of(node).items()):
                folder.entries[name] = copy(entry, f"{path}/{name}" if path else name)
            folder.durable = dict(folder.entries)
            return folder

        root = copy(self._root, "")
        assert isinstance(root, Folder)
        left._root = root
        return left

    def _platter_file(self, data: bytearray, reserved: int, path: str) -> Inode:
        inode = Inode()
        inode.data, inode.durable, inode.reserved, inode.path = data, bytearray(data), reserved, path
        self.used_bytes += inode.occupied
        return inode

    def tear(self, path: str, size: int) -> bool:
        """Cut off the last `size` bytes of a file, durably, if it exists: a torn write."""
        try:
            inode = self._inode(path)
        except OSError:
            return False
        before = inode.occupied
        del inode.data[max(0, len(inode.data) - size) :]
        inode.durable = bytearray(inode.data)
        self.used_bytes += inode.occupied - before
        return True

    def kill(self) -> Disk:
        """Kill the server with `kill -9` and return this disk. The caches stay, unsynced as they were; locks and faults
        do not.
        """
        self._locks.clear()
        self._holds.clear()
        self._faults.clear()
        self.stop_at = None
        return self

    # the protocol staniel.journal.disk.fs.Fs

    def append(self, path: str) -> File:
        self.trip("open", path)
        folder, name = self._folder_of(path)
        node = folder.entries.get(name)
        if node is None:
            self._log_op(Op("create", path))
            node = Inode()
            self._link(folder, "", name, node, path)
        if isinstance(node, Folder):
            raise _os_error(errno.EISDIR, path)
        return DiskFile(self, node)

    def read(self, path: str, at: int, count: int) -> bytes:
        self.trip("read", path)
        return bytes(self._inode(path).data[at : at + count])

    def reader(self, path: str) -> Reader:
        self.trip("reader", path)
        return DiskReader(self, self._inode(path))

    def size(self, path: str) -> int:
        self.trip("size", path)
        return len(self._inode(path).data)

    def modified_ms(self, path: str) -> int:
        return 0

    def list(self, folder: str) -> list[tuple[str, bool]]:
        self.trip("list", folder)
        return sorted((name, isinstance(node, Inode)) for name, node in self._folder(folder).entries.items())

    def rename(self, old: str, new: str) -> None:
        folder, old_name = self._folder_of(old)
        other, new_name = self._folder_of(new)
        node, replaced = folder.entries.get(old_name), other.entries.get(new_name)
        if node is None:
            raise _os_error(errno.ENOENT, old)
        if replaced is not None and isinstance(node, Folder) != isinstance(replaced, Folder):
            raise _os_error(errno.ENOTDIR if isinstance(node, Folder) else errno.EISDIR, new)
        if isinstance(replaced, Folder) and replaced.entries:
            raise _os_error(errno.ENOTEMPTY, new)
        self._log_op(Op("rename", old, new=new))
        carry(node, folder, old_name, other, new_name)
        if isinstance(node, Inode):
            node.path = new
        if isinstance(replaced, Inode) and replaced is not node:
            self._unlinked(replaced)

    def is_one_file(self, path: str, other: str) -> bool:
        """Tell whether both are names of one file."""
        return self._inode(path) is self._inode(other)

    def link(self, path: str, other: str) -> None:
        inode = self._inode(path)
        folder, name = self._folder_of(other)
        if name in folder.entries:
            raise _os_error(errno.EEXIST, other)
        self._log_op(Op("link", path, new=other))
        folder.move(Move("", name, inode))
        inode.links += 1

    def remove(self, path: str) -> None:
        folder, name = self._folder_of(path)
        node = self._inode(path)
        self._log_op(Op("remove", path))
        folder.move(Move(name, "", node))
        self._unlinked(node)

    def truncate(self, path: str, size: int) -> None:
        inode = self._inode(path)
        self._log_op(Op("truncate", path, size))
        before = inode.occupied
        inode.edit(Edit(size, None))
        self.used_bytes += inode.occupied - before
        self.sync_inode(inode)

    def sync_folder(self, folder: str) -> None:
        self._sync_names(self._folder(folder), folder)

    def _sync_names(self, node: Folder, folder: str) -> None:
        try:
            self._log_op(Op("sync_folder", folder))
        except OSError as error:
            node.lose_moves()
            raise self._lied(error) from error
        node.sync()

    def sync_all(self, folder: str) -> None:
        nodes = list(_all_below(self._root))
        try:
            self._log_op(Op("sync_all", folder))
        except OSError as error:
            for node in nodes:
                if isinstance(node, Folder):
                    node.lose_moves()
                else:
                    node.dirty.clear()
            raise self._lied(error) from error
        for node in nodes:
            node.sync()

    def make_folder(self, path: str) -> None:
        parent, at = self._root, ""
        for name in path.split("/"):
            at = f"{at}/{name}" if at else name
            node = parent.entries.get(name)
            if node is None:
                self._log_op(Op("make_folder", at))
                node = Folder()
                parent.move(Move("", name, node))
                try:
                    self._sync_names(parent, at.rpartition("/")[0])
                except OSError:
                    parent.move(Move(name, "", node))
                    raise
            if isinstance(node, Inode):
                raise _os_error(errno.ENOTDIR, at)
            parent = node

    def allocate(self, path: str, size: int) -> None:
        self.trip("allocate", path)
        if size > self.free_bytes("")[0]:
            raise _os_error(errno.ENOSPC, path)
        file = self.append(path)
        inode = self._inode(path)
        self._log_op(Op("reserve", path, size))
        self.used_bytes -= inode.occupied
        inode.reserved = size
        self.used_bytes += inode.occupied
        file.close()

    def set_aside(self, path: str, size: int) -> None:
        self.trip("allocate", path)
        file = self.append(path)
        inode = self._inode(path)
        more = max(0, size - inode.occupied)
        try:
            if more > self.free_bytes("")[0]:
                raise _os_error(errno.ENOSPC, path)
            self._log_op(Op("reserve", path, size))
            inode.reserved = max(inode.reserved, size)
            self.used_bytes += more
        finally:
            file.close()

    def overwrite(self, path: str) -> Region:
        self.trip("overwrite", path)
        return DiskRegion(self, self._inode(path))

    def fill(self, path: str, size: int) -> None:
        self.trip("allocate", path)
        self.append(path).close()
        inode = self._inode(path)
        more = size - len(inode.data)
        if more <= 0:
            return
        if more > self.free_bytes("")[0]:
            raise _os_error(errno.ENOSPC, path)
        self._log_op(Op("fill", path, more))
        self._grow(inode, bytes(more))
        self.sync_inode(inode)

    def boot_id(self) -> bytes:
        return self.boots.to_bytes(16)

    def unique_id(self) -> bytes:
        self.ids += 1
        return self.ids.to_bytes(16)

    def is_same_device(self, path: str, folder: str) -> bool:
        self.trip("is_same_device", path)
        self._inode(path)
        return True

    def free_bytes(self, folder: str) -> tuple[int, int]:
        try:
            self.trip("statfs", folder)
        except OSError:
            return UNKNOWN_BYTES, UNKNOWN_BYTES
        return max(0, self.capacity_bytes - self.used_bytes), self.capacity_bytes

    def free_inodes(self, folder: str) -> tuple[int, int]:
        return self.free_inodes_count, INODES

    def name_bytes_max(self, folder: str) -> int:
        return self.name_bytes

    def memory_bytes(self) -> int:
        return MEMORY_BYTES

    def lock(self, path: str) -> None:
        if path in self._locks:
            raise AlreadyLocked("another broker on this disk")
        self.trip("lock", path)
        self.append(path).close()
        self._locks.add(path)

    def is_locked(self, path: str) -> bool:
        self.trip("is_locked", path)
        return self.inode_at(path) is not None

    def inode_at(self, path: str) -> Inode | None:
        try:
            return self._inode(path)
        except FileNotFoundError:
            return None

    def hold(self, path: str, *, shared: bool) -> Callable[[], None]:
        self.trip("hold", path)
        held = self._holds.setdefault(path, [])
        if path in self._locks or (held if not shared else False in held):
            raise AlreadyLocked("another broker on this disk")
        if not held:
            self.append(path).close()
        held.append(shared)
        return lambda: held.remove(shared)

    # called by DiskFile and DiskRegion

    def write_to(self, inode: Inode, data: bytes) -> None:
        """Append as much of `data` as there is room for, then raise ENOSPC. Within the blocks of the file there is
        always room.
        """
        self._power("write")
        fault = self._fault("write", inode.path)
        own = inode.occupied - len(inode.data)
        if fault is not None and fault.errno == errno.ENOSPC and 0 < len(data) <= own:
            fault = None
        room = own + self.free_bytes("")[0] if fault is None else fault.short
        self.log.append(Op("write", inode.path, min(room, len(data))))
        self._grow(inode, data[:room])
        if fault is not None or room < len(data):
            raise _os_error(errno.ENOSPC if fault is None else fault.errno, inode.path)

    def write_over(self, inode: Inode, at: int, data: bytes) -> None:
        """Write `data` at byte `at`. Beyond the end there must be room."""
        self._power("write")
        fault = self._fault("write", inode.path)
        more = max(0, at + len(data) - inode.occupied)
        if fault is None and more > self.free_bytes("")[0]:
            raise _os_error(errno.ENOSPC, inode.path)
        self.log.append(Op("write", inode.path, len(data) if fault is None else fault.short))
        inode.edit(Edit(at, data if fault is None else data[: fault.short]))
        self.used_bytes += more
        if fault is not None:
            raise _os_error(fault.errno, inode.path)

    def sync_inode(self, inode: Inode) -> None:
        try:
            self._log_op(Op("sync", inode.path))
        except OSError as error:
            inode.dirty.clear()
            raise self._lied(error) from error
        inode.sync()

    def _lied(self, error: OSError) -> SyncFailed:
        self.lies += 1
        return SyncFailed(error.errno, error.strerror, error.filename)

    def forget_if_dead(self, inode: Inode) -> None:
        """Free the blocks of `inode` if it has neither links nor handles."""
        if not inode.links and not inode.handles:
            self.used_bytes -= inode.occupied

    def _log_op(self, op: Op) -> None:
        self._power(op.verb)
        self.trip(op.verb, op.path)
        self.log.append(op)

    def _power(self, verb: str) -> None:
        if self.stop_at is not None and len(self.log) >= self.stop_at:
            raise PowerCut(verb)
        self.before_step()

    def trip(self, verb: str, path: str) -> None:
        """Raise the error of this step, if the step is to fail."""
        fault = self._fault(verb, path)
        if fault is not None:
            raise _os_error(fault.errno, path)

    def _fault(self, verb: str, path: str) -> Fault | None:
        for fault in self._faults:
            if fault.strikes(verb, path, self.where):
                return fault
        return None

    def _grow(self, inode: Inode, data: bytes) -> None:
        if data:
            before = inode.occupied
            inode.edit(Edit(len(inode.data), data))
            self.used_bytes += inode.occupied - before

    def _link(self, folder: Folder, old: str, new: str, inode: Inode, path: str) -> None:
        folder.move(Move(old, new, inode))
        inode.links += 1
        inode.path = path

    def _unlinked(self, inode: Inode) -> None:
        inode.links -= 1
        self.forget_if_dead(inode)

    def _folder_of(self, path: str) -> tuple[Folder, str]:
        folder, _, name = path.rpartition("/")
        return self._folder(folder), name

    def _folder(self, path: str) -> Folder:
        node: Node | None = self._root
        if path:
            for name in path.split("/"):
                node = node.entries.get(name) if type(node) is Folder else None
        if type(node) is Folder:
            return node
        raise _os_error(errno.ENOENT if node is None else errno.ENOTDIR, path)

    def _inode(self, path: str) -> Inode:
        folder, _, name = path.rpartition("/")
        node = self._folder(folder).entries.get(name)
        if type(node) is Inode:
            return node
        raise _os_error(errno.ENOENT if node is None else errno.EISDIR, path)


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _all_below(folder: Folder) -> Iterator[Node]:
    """Yield `folder`, and everything in it."""
    yield folder
    for node in folder.entries.values():
        if isinstance(node, Folder):
            yield from _all_below(node)
        else:
            yield node
