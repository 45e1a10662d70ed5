"""What each side makes of the files of a border, in the terms of the tables: `server(border, piece_bytes)`, through the
recovery that every start uses, and `outside(border)`, through the readers of the folder above.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

from staniel.journal.libkestrel import recovery as stream_recovery
from staniel.journal.libkestrel.files import group_by_queue
from tests.outside import libkestrel
from tests.outside.borders.table import Border, Files, State
from tests.outside.held import as_shown, disk_with, files_on, shown
from tests.outside.made import NOW_MS


def server(border: Border, piece_bytes: int) -> State:
    """`piece_bytes`: how many bytes of a file are read at once, at first."""
    return SERVER[border.format](border.files, piece_bytes)


def outside(border: Border) -> State:
    return OUTSIDE[border.format](border.files)


# libkestrel


def server_of_libkestrel(files: Files, piece_bytes: int) -> State:
    disk = disk_with(files)
    found = group_by_queue(disk.list("s"))["jobs"]
    with patch.object(stream_recovery, "CHUNK_BYTES", piece_bytes):
        recovered = stream_recovery.StreamRecovery(disk, "s", "s/damaged").recover(found, NOW_MS)
    items = {item.id: shown(item) for item in recovered.segments.items()}
    readers = {}
    for name, position in recovered.readers.items():
        readers[name] = [at for at in items if at > position.head and at not in position.done]
    # Of a segment that was never begun nothing is lost; bytes behind the zero that ends the data are no record.
    found_at = {each.file: each.at for each in recovered.damages if ".read." in each.file or each.at}
    damage = {name: at for name, at in found_at.items() if not at or files[name][at]}
    return {"items": items, "readers": readers, "damage": damage}


def readers_of_the_next(border: Border) -> dict[str, bool]:
    """Which readers of a libkestrel border get an item that is put after the server's recovery."""
    disk = disk_with(border.files)
    found = group_by_queue(disk.list("s"))["jobs"]
    recovered = stream_recovery.StreamRecovery(disk, "s", "s/damaged").recover(found, NOW_MS)
    number = recovered.segments.last_id + 1
    item = b"\x86" + bytes(8) + number.to_bytes(8, "little") + bytes(8)
    files = {**files_on(disk), f"jobs.{10**40}": libkestrel.SEGMENT + item}
    return {name: number in left for name, left in libkestrel.read("jobs", files).readers.items()}


def outside_of_libkestrel(files: Files) -> State:
    family = libkestrel.read("jobs", files)
    damage = dict(family.damaged)
    for name, data in files.items():
        if ".read." in name and data and data[:4] != libkestrel.READER:
            damage[name] = 0
        elif ".read." in name and data:
            end = libkestrel.records(data, is_segment=False)[1]
            if end < len(data) and data[end]:
                damage[name] = end
    items = {at: as_shown(each) for at, each in family.items.items()}
    return {"items": items, "readers": family.readers, "damage": damage}


SERVER: dict[str, Callable[[Files, int], State]] = {"libkestrel": server_of_libkestrel}
OUTSIDE: dict[str, Callable[[Files], State]] = {"libkestrel": outside_of_libkestrel}
