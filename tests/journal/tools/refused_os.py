"""Calls of `os` on files below one folder, counted; one of them is refused, or the process is killed there."""

from __future__ import annotations

import builtins
import ctypes
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Struct

from staniel.journal.disk import os_fs

ON_PATHS = (
    *("open", "stat", "lstat", "scandir", "listdir", "rename", "replace", "link", "unlink", "remove"),
    *("mkdir", "rmdir", "truncate", "statvfs", "chown"),
)
ON_FILES = ("pread", "read", "pwrite", "write", "fsync", "fdatasync", "fstat", "ftruncate", "posix_fallocate")
GROUPS = {
    "look": ("stat", "lstat", "fstat", "scandir", "listdir", "statvfs"),
    "open": ("open", "mkdir", "lock"),
    "read": ("read", "pread"),
    "write": ("write", "pwrite", "posix_fallocate", "truncate", "ftruncate"),
    "rename, remove": ("rename", "replace", "link", "unlink", "remove", "rmdir", "chown"),
    "sync": ("fsync", "fdatasync", "syncfs"),
}
GROUP_OF = {verb: group for group, verbs in GROUPS.items() for verb in verbs}
Call = tuple[str, str]


class Lasts(Enum):
    """`ON`: all calls with this name on this path are refused from then on. `KILL`: nothing runs any more."""

    ONCE = "once"
    ON = "on"
    KILL = "kill"


class Killed(BaseException):
    pass


class Refusal(Struct, frozen=True):
    at: int
    errno: int
    lasts: Lasts


class Watched:
    """The calls below `root`."""

    def __init__(self, root: str, refusal: Refusal | None) -> None:
        self.root = root
        self.refusal = refusal
        self.calls: list[Call] = []
        self.paths: dict[int, str] = {}
        self.is_killed = False

    def path_of(self, place: Any, dir_fd: int | None) -> str:
        """Return the path of the argument of a call; "" if it is elsewhere."""
        if isinstance(place, int):
            return self.paths.get(place, "")
        path = os.fsdecode(place)
        if dir_fd is not None:
            path = f"{self.paths.get(dir_fd, '')}/{path}"
        return path if path == self.root or path.startswith(f"{self.root}/") else ""

    def meet(self, verb: str, path: str) -> None:
        """Count a call, and refuse it if it is the one."""
        if self.is_killed:
            raise Killed
        self.calls.append((verb, path))
        refusal = self.refusal
        if refusal is None:
            return
        number = len(self.calls) - 1
        if number == refusal.at and refusal.lasts is Lasts.KILL:
            self.is_killed = True
            raise Killed
        goes_on = refusal.lasts is Lasts.ON and number > refusal.at and self.calls[refusal.at] == (verb, path)
        if number == refusal.at or goes_on:
            raise OSError(refusal.errno, os.strerror(refusal.errno), path)

    def close_left(self) -> None:
        for fd in list(self.paths):
            with suppress(OSError):
                os.close(fd)


@contextmanager
def watched(root: str, refusal: Refusal | None = None) -> Iterator[Watched]:
    """Watch the calls, and close the files that were left open: locks end with them, as with a process."""
    watch = Watched(root, refusal)
    try:
        with pytest.MonkeyPatch.context() as patch:
            _patch(patch, watch)
            yield watch
    finally:
        watch.close_left()


def _patch(patch: pytest.MonkeyPatch, watch: Watched) -> None:
    def on_paths(verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(place: Any = ".", *args: Any, **named: Any) -> Any:
            dir_fd = named.get("dir_fd", named.get("src_dir_fd"))
            if path := watch.path_of(place, dir_fd):
                watch.meet(verb, path)
            found = call(place, *args, **named)
            if verb == "open" and path:
                watch.paths[found] = path
            return found

        return wrapped

    def on_files(verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(fd: Any, *args: Any, **named: Any) -> Any:
            if path := watch.paths.get(fd, ""):
                watch.meet(verb, path)
            return call(fd, *args, **named)

        return wrapped

    for verb in ON_PATHS:
        patch.setattr(os, verb, on_paths(verb, getattr(os, verb)))
    for verb in ON_FILES:
        patch.setattr(os, verb, on_files(verb, getattr(os, verb)))
    for verb in ("fsync", "fdatasync"):
        patch.setattr(os, verb, on_files(verb, lambda fd: None))  # no power is lost here
    close, opened = os.close, builtins.open

    def closing(fd: int) -> None:
        watch.paths.pop(fd, None)
        close(fd)

    def opening(file: Any, *args: Any, **named: Any) -> Any:
        if not isinstance(file, int) and (path := watch.path_of(file, None)):
            watch.meet("open", path)
        return opened(file, *args, **named)

    def syncing(fd: int) -> int:
        try:
            watch.meet("syncfs", watch.paths.get(fd, ""))
        except OSError as error:
            ctypes.set_errno(error.errno or 0)
            return -1
        return 0

    libc = SimpleNamespace(syncfs=syncing, fallocate=os_fs.LIBC.fallocate)
    patch.setattr(os, "close", closing)
    patch.setattr(builtins, "open", opening)
    patch.setattr(io, "open", opening)
    patch.setattr(os_fs, "LIBC", libc)
