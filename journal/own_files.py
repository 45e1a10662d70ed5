"""The server's own files in `.staniel`: what a running server does when another program removes or cuts one.

docs/spool.md has the same table for operators. tests/broker/test_lost_own_files.py removes each file.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from msgspec import Struct


class Loss(Enum):
    """The effect on a running server when a file is lost."""

    ENDS = "ends the server"  # exit code 3: the file guards the spool, or replies depend on it
    REMADE = "made again"  # with a warning
    NOTHING = "nothing"  # a running server does not need it


LOSSES = {
    "lock": Loss.ENDS,
    "version": Loss.REMADE,
    "failed_sync": Loss.NOTHING,
    "failed_sync.room": Loss.REMADE,
    "ballast": Loss.REMADE,
    "intents": Loss.REMADE,
    "paused": Loss.REMADE,
    "status": Loss.REMADE,
    "last_backup": Loss.REMADE,
    "clock": Loss.REMADE,
    "holds": Loss.REMADE,
    "audit": Loss.REMADE,
    "audit.1": Loss.NOTHING,
    "redo.0": Loss.ENDS,
    "redo.1": Loss.ENDS,
    "convert.plan": Loss.NOTHING,
    "member": Loss.ENDS,
    "follower": Loss.NOTHING,
    "cmdlog": Loss.ENDS,
    "segments": Loss.NOTHING,
    "undo": Loss.NOTHING,
    "keys": Loss.REMADE,
    "held": Loss.NOTHING,
    "kept": Loss.NOTHING,
    "convert": Loss.NOTHING,
    "repair": Loss.NOTHING,
    "quarantine": Loss.NOTHING,
    "damaged": Loss.NOTHING,
    "aside.*": Loss.NOTHING,
}
"""Losses by name in the own folder, files first. The entry of a folder is about the files in it."""


class KeptFile(Struct, frozen=True):
    """A file whose content this process knows. `make` writes it again; it raises OSError, JournalFailure."""

    path: str
    is_lost: Callable[[], bool]
    make: Callable[[], None]
