"""Runs of items in a piece of a journal: each is followed by the same small records, or all by none.

Most of a journal is such runs: puts between reads, and reads that are confirmed at once. A short loop finds where each
item starts, because payloads differ in size; numpy then reads the heads of a run together.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Any

import numpy as np
from msgspec import Struct

from staniel.journal.kestrel.records import (
    ADDX,
    ADDX_HEAD_BYTES,
    BLOCK_HEAD_BYTES,
    CONFIRM_REMOVE,
    REMOVE,
    REMOVE_TENTATIVE_XID,
    SIZE_END,
    WITH_XID_BYTES,
)

START = struct.Struct("<BI")  # of a record of an item: opcode, size
RUN_MIN = 32  # items: a shorter run is read faster record by record
TIME_LIMIT_MS = 1 << 46  # ids of times below this have 64 bits


class RunKind(Enum):
    """The records behind each item of a run. The value is their size in bytes."""

    PUTS = 0
    REMOVED = 1
    READ = 2 * WITH_XID_BYTES  # reserved and confirmed


class ItemRun(Struct, frozen=True):
    """Items of a run: where each starts, its add time in epoch ms, and their sizes and expiries in total.

    `stop`: the byte behind the run. `xids`: the transaction ids of a run with reads, which rise by one.
    """

    kind: RunKind
    starts: Any
    added_ms: Any
    blocks_bytes: int
    expiring: int
    stop: int
    xids: range


def read_run(data: bytes, at: int) -> ItemRun | None:
    """Return the run of items that starts at byte `at`. None: it is shorter than RUN_MIN, or has times beyond those of
    ids of 64 bits. Whatever follows the run is not looked at.
    """
    kind = _first_kind(data, at)
    if kind is None:
        return None
    places = _places(data, at, kind)
    if len(places) <= RUN_MIN:
        return None
    sizes = np.diff(places) - SIZE_END - kind.value
    times = _fields(data, places[:-1] + SIZE_END, BLOCK_HEAD_BYTES).view("<i8").reshape(-1, 2)
    fits = (sizes >= BLOCK_HEAD_BYTES) & (times[:, 0] > -TIME_LIMIT_MS) & (times[:, 0] < TIME_LIMIT_MS)
    xids = np.zeros(0, np.int64)
    if kind is RunKind.REMOVED:
        fits &= np.frombuffer(data, np.uint8)[places[1:] - 1] == REMOVE
    elif kind is RunKind.READ:
        reads = _fields(data, places[1:] - kind.value, kind.value)
        xids = reads[:, 1:WITH_XID_BYTES].copy().view("<i4").ravel().astype(np.int64)
        fits &= (reads[:, 0] == REMOVE_TENTATIVE_XID) & (reads[:, WITH_XID_BYTES] == CONFIRM_REMOVE)
        fits &= (reads[:, 1:WITH_XID_BYTES] == reads[:, WITH_XID_BYTES + 1 :]).all(axis=1)
        fits &= xids == xids[0] + np.arange(len(xids))
    count = len(fits) if fits.all() else int(np.argmin(fits))
    if count < RUN_MIN:
        return None
    return ItemRun(
        kind,
        places[:count],
        times[:count, 0],
        int(sizes[:count].sum()),
        int(np.count_nonzero(times[:count, 1])),
        int(places[count]),
        range(int(xids[0]), int(xids[0]) + count) if len(xids) else range(0),
    )


def _first_kind(data: bytes, at: int) -> RunKind | None:
    """Return what follows the item at byte `at`; None if `data` ends before RUN_MIN items of its size."""
    if at + ADDX_HEAD_BYTES > len(data):
        return None
    stop = at + SIZE_END + START.unpack_from(data, at)[1]
    if at + (stop - at) * RUN_MIN > len(data) or stop >= len(data):
        return None
    if data[stop] == ADDX:
        return RunKind.PUTS
    if data[stop] == REMOVE:
        return RunKind.REMOVED
    return RunKind.READ if data[stop] == REMOVE_TENTATIVE_XID else None


def _places(data: bytes, at: int, kind: RunKind) -> Any:
    """Return where items start that stand one behind the other if all are of this kind, and where the last one ends.
    All are in `data`; the other records and the sizes are still to be checked.
    """
    places, step, unpack = [], SIZE_END + kind.value, START.unpack_from
    last, end = len(data) - ADDX_HEAD_BYTES, len(data)
    while at <= last:
        op, size = unpack(data, at)
        if op != ADDX:
            break
        places.append(at)
        at += step + size
    if at <= end:
        places.append(at)
    return np.array(places, np.int64)


def _fields(data: bytes, places: Any, size: int) -> Any:
    """Return the `size` bytes at each of `places`, as the rows of an array."""
    windows = np.ndarray(len(data) - size + 1, f"V{size}", data, 0, (1,))
    return windows[places].view(np.uint8).reshape(-1, size)
