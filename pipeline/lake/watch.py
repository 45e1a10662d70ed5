"""Marks of change for local folders: Linux tells (inotify) which files of a folder have changed, so that a stream
need not look at thousands of others.

Only file systems of this machine tell everything: on a network's, changes by other machines are not seen. A file that
is changed through a link from another folder is not seen either, so users of a mark look by themselves now and then.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

from staniel.journal.disk.os_fs import LIBC

MODIFY, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF, ONLY_FOLDER = 0x400, 0x800, 0x1000000
UNMOUNTED, OVERFLOWN, IGNORED = 0x2000, 0x4000, 0x8000
WANTED = MODIFY | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF | ONLY_FOLDER
ENDS = DELETE_SELF | MOVE_SELF | UNMOUNTED | IGNORED
EVENT = struct.Struct("iIII")  # watch, mask, cookie, bytes of the name that follows
READ_BYTES = 64 << 10
LOCAL_FILE_SYSTEMS = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x01021994: "tmpfs",
    0x794C7630: "overlay",
    0xF2F52010: "f2fs",
    0x2FC12FC1: "zfs",
}


class ChangeMark:
    """The mark of one folder: which names have changed. At first that may be any."""

    def __init__(self, watch: FolderWatch) -> None:
        self._watch = watch
        self._names: set[str] | None = None  # None: any may have changed
        self._is_lost = False  # the folder was removed, renamed or unmounted

    def take_names(self) -> set[str] | None:
        """Return the names that have changed since the last call; None: it may be any."""
        self._watch.receive()
        names = self._names
        self._names = None if self._is_lost else set()
        return names

    def add_name(self, name: str) -> None:
        if self._names is not None:
            self._names.add(name)

    def forget_names(self) -> None:
        self._names = None

    def lose_folder(self) -> None:
        self._names, self._is_lost = None, True


class FolderWatch:
    """The watch of any number of folders by one descriptor: a process may have only a hundred or so."""

    def __init__(self) -> None:
        self._fd = LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if sys.platform == "linux" else -1
        self._marks: dict[int, ChangeMark] = {}

    def mark(self, path: str) -> ChangeMark | None:
        """Return a mark of a folder; None if the system does not tell about it."""
        if self._fd < 0 or file_system(path) not in LOCAL_FILE_SYSTEMS:
            return None
        number = LIBC.inotify_add_watch(self._fd, os.fsencode(path), ctypes.c_uint32(WANTED))
        if number < 0:
            return None
        return self._marks.setdefault(number, ChangeMark(self))

    def receive(self) -> None:
        """Tell the marks what has changed."""
        while data := self._read():
            at = 0
            while at < len(data):
                number, mask, _, name_bytes = EVENT.unpack_from(data, at)
                at += EVENT.size
                name = data[at : at + name_bytes].rstrip(b"\0")
                at += name_bytes
                self._note_change(number, mask, os.fsdecode(name))

    def _note_change(self, number: int, mask: int, name: str) -> None:
        if mask & OVERFLOWN:
            for each_mark in self._marks.values():
                each_mark.forget_names()
            return
        mark = self._marks.get(number)
        if mark is None:
            return  # of a folder whose watch has ended
        if mask & ENDS:
            mark.lose_folder()
            del self._marks[number]
        else:
            mark.add_name(name)

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, READ_BYTES) if self._fd >= 0 else b""
        except BlockingIOError:
            return b""

    def __del__(self) -> None:
        """Close a watch whose stream is gone without a stop: a user may have 128 of them."""
        self.close()

    def close(self) -> None:
        """Stop watching: from now on any name may have changed."""
        for mark in self._marks.values():
            mark.lose_folder()
        self._marks.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def file_system(path: str) -> int:
    """Return the number of the kind of file system that holds a path; 0 if the system does not tell."""
    answer = ctypes.create_string_buffer(256)
    if LIBC.statfs(os.fsencode(path), answer) != 0:
        return 0
    kind: int = struct.unpack_from("l", answer)[0]
    return kind & 0xFFFFFFFF
