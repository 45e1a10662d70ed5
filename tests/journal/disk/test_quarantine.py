"""Copies of what cannot be read: made once, and never one for other bytes."""

from __future__ import annotations

import pytest

from staniel.journal.disk.quarantine import CHUNK_BYTES, quarantine
from staniel.journal.disk.replace_file import replace_file
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash


def disk_with(data: bytes) -> Disk:
    disk = Disk()
    disk.make_folder("s")
    put(disk, data)
    return disk


def put(disk: Disk, data: bytes) -> None:
    replace_file(disk, "s/q", data)


def kept(disk: Disk) -> dict[str, bytes]:
    return {name: disk.read(f"s/damaged/{name}", 0, 1 << 30) for name, _ in disk.list("s/damaged")}


@pytest.mark.parametrize("size", [1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_the_copy_is_durable_and_is_not_made_twice(size: int) -> None:
    tail = bytes(range(256)) * (size // 256) + bytes(size % 256)
    disk = disk_with(b"good" + tail)
    assert quarantine(disk, "s/q", 4, size, "s/damaged") == f"s/damaged/q@4+{size}"
    assert quarantine(disk, "s/q", 4, size, "s/damaged") == f"s/damaged/q@4+{size}"
    assert kept(disk.crash(Crash.DROP)) == {f"q@4+{size}": tail}


def test_another_end_torn_at_the_same_place_gets_a_copy_of_its_own() -> None:
    disk = disk_with(b"good" + b"torn once")
    quarantine(disk, "s/q", 4, 9, "s/damaged")
    put(disk, b"good" + b"torn again"[:9])
    assert quarantine(disk, "s/q", 4, 9, "s/damaged") == "s/damaged/q@4+9.2"
    assert kept(disk) == {"q@4+9": b"torn once", "q@4+9.2": b"torn agai"}


def test_a_copy_that_a_crash_has_cut_short_is_finished_or_made_beside_it() -> None:
    tail = bytes(range(200)) * 3000
    for stop in range(20):
        for how in (*Crash, lambda n, stop=stop: (stop * 7 + n) % n):
            disk = disk_with(b"good" + tail)
            disk.stop_at = len(disk.log) + stop
            try:
                quarantine(disk, "s/q", 4, len(tail), "s/damaged")
            except PowerCut:
                pass
            after = disk.crash(how)
            saved_as = quarantine(after, "s/q", 4, len(tail), "s/damaged")
            assert after.read(saved_as, 0, 1 << 30) == tail
