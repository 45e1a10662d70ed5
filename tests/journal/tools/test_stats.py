"""What `journal stats` counts, how often it lists the folder for that, and what of files that change meanwhile."""

from __future__ import annotations

from collections import Counter

import pytest

from staniel.journal.disk.fs import Reader
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.libkestrel.records import READER_MAGIC, SEGMENT_MAGIC, encode_put, encode_read_head
from staniel.journal.tools.source import ReadSource
from staniel.journal.tools.stats import BATCHES, QueueStats, stats
from staniel.queues.item import Item
from staniel.server.backup.adopt import survey
from staniel.sim.disk.disk import Disk
from tests.support.records import NOW_MS, addx, with_xid
from tests.support.spool import put_file

LISTINGS = BATCHES + 1 + 3  # and those that find the queues and a command log


class WatchedDisk(Disk):
    """Counts listings. `moves`: what happens just before a file is opened for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.make_folder("s")
        self.listings = 0
        self.moves: dict[str, list[tuple[str, str]]] = {}

    def list(self, folder: str) -> list[tuple[str, bool]]:
        self.listings += 1
        return super().list(folder)

    def reader(self, path: str) -> Reader:
        for old, new in self.moves.pop(path, []):
            self.rename(f"s/{old}", f"s/{new}")
            put_file(self, old, addx(b"new"))
        return super().reader(path)


def put(item_id: int) -> bytes:
    return encode_put(Item(b"x", NOW_MS, 0), item_id)


def filled(queues: int) -> WatchedDisk:
    """So many queues of both formats, with an item each, half of libkestrel's read."""
    disk = WatchedDisk()
    for number in range(queues):
        put_file(disk, f"k{number}", addx(b"abc"))
        put_file(disk, f"s{number}.1", SEGMENT_MAGIC + put(1) + put(2))
        put_file(disk, f"s{number}.read.a", READER_MAGIC + encode_read_head(1))
    return disk


def items_of(found: list[QueueStats]) -> Counter[str]:
    return Counter({name: sum(line.states.values()) for each in found for name, line in each.lines.items()})


@pytest.mark.parametrize("queues", [1, 5, 40, 200])
def test_the_folder_is_listed_as_often_for_many_queues_as_for_few(queues: int) -> None:
    disk = filled(queues)
    found = list(stats(ReadSource(disk, "s"), NOW_MS))
    assert len(found) == 2 * queues and set(items_of(found).values()) == {1}
    assert disk.listings <= min(LISTINGS, 2 * queues + 4)


def test_a_folder_is_surveyed_for_an_adoption_with_as_many_listings_for_many_queues_as_for_few(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = list[str]()
    plain = OsFs.list
    monkeypatch.setattr(OsFs, "list", lambda fs, folder: listed.append(folder) or plain(fs, folder))
    counts = []
    for queues in 32, 160:
        folder = tmp_path_factory.mktemp("old")
        for number in range(queues):
            (folder / f"q{number}").write_bytes(addx(b"abc"))
        listed.clear()
        assert len(survey(str(folder), NOW_MS, lambda size: None).journals) == queues
        counts.append(len(listed))
    assert counts[0] == counts[1] > BATCHES


def test_a_file_that_is_rotated_while_it_is_read_is_counted_once_and_whole() -> None:
    disk = filled(3)
    put_file(disk, "k1", addx(b"def"))
    disk.moves["s/k1"] = [("k1", "k1.5")]
    found = {each.name: each for each in stats(ReadSource(disk, "s"), NOW_MS)}
    assert found["k1"].files == 2 and items_of(list(found.values()))["k1"] == 3
    assert found["k0"].files == 1 and not any(each.flaws for each in found.values())


def test_a_queue_that_is_removed_meanwhile_has_no_files() -> None:
    disk = filled(2)
    source = ReadSource(disk, "s")
    found = stats(source, NOW_MS)
    assert next(found).name == "k0"
    for name in ("s1.1", "s1.read.a"):
        disk.remove(f"s/{name}")
    assert {each.name: each.files for each in found} == {"k1": 1, "s0": 2, "s1": 0}


def test_files_that_would_be_larger_packed_are_told_as_such() -> None:
    disk = WatchedDisk()
    put_file(disk, "q", addx(b"") + with_xid(9, 1))
    (found,) = stats(ReadSource(disk, "s"), NOW_MS)
    assert found.bytes == 26 and found.packed_bytes == 5 + 25 + 1
    assert round(found.packed_share, 2) == 1.19
