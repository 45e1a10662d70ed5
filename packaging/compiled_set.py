"""The folder of a set of extensions: one process at a time fills it, and it is replaced as a whole.

A start finds the old set, the new one or none, at whatever moment it looks. What an interrupted build leaves lies
beside the folder, under a name that no start reads; the next build removes it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AT_FDCWD = -100
RENAME_EXCHANGE = 2


def locked(folder: Path, *, is_waited_for: bool = False) -> int | None:
    """Return the descriptor of the locked file of `folder`; None if another process has it and is not waited for.

    The lock belongs to this process alone: a compiler that outlives it does not keep the next build away.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX if is_waited_for else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


@contextmanager
def replacement(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `folder` once the block has ended; an exception leaves `folder` as it is.
    The caller has the lock, or a folder that no other process knows.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f"{folder.name}.new-*"):
        shutil.rmtree(left, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.new-", dir=folder.parent))
    try:
        os.chmod(fresh, 0o755)
        yield fresh
        put_in_place(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # it has what was replaced now, or what was not finished


def put_in_place(fresh: Path, folder: Path) -> None:
    """Give `fresh` the name `folder`, in one step where the file system can exchange two names."""
    if not folder.exists():
        fresh.rename(folder)
    elif not exchange(fresh, folder):
        old = folder.rename(f"{fresh}-old")
        fresh.rename(folder)
        shutil.rmtree(old, ignore_errors=True)


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders. Return False if the file system or the C library cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and not rename(
        AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), ctypes.c_uint(RENAME_EXCHANGE)
    )


def sync(folder: Path) -> None:
    """Sync all files in `folder`, so that no power cut leaves one under its final name without its content."""
    for path in [*folder.rglob("*"), folder]:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)
