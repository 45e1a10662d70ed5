"""One bit flips in a sealed file: it is found when its block is read, named, kept aside, and all else is served."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from staniel.journal.disk.os_fs import OsFs
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel import sidecar
from staniel.journal.kestrel.log import Log
from staniel.queues.item import Item
from tests.support.world import World

CONFIG = """
default.sync_journal = "os"
default.max_memory_size = "1MB"
default.max_journal_size = "{journal}"
server.expiration_timer_frequency = "none"
"""
COUNT = 4000
RECORD_BYTES = 1024 + 21
BLOCK_BYTES = 64 << 10  # of a file of little more than 1 MiB
LOST_MAX = (BLOCK_BYTES + 2 * (128 << 10)) // RECORD_BYTES + 2


def payload(number: int) -> bytes:
    return (b"%d." % number).ljust(1024, b"x")


class Served:
    """A server on the real spool `s` of the current folder, without sockets."""

    def __init__(self, journal: str = "1GB") -> None:
        self.fs = OsFs()
        self.world = World(CONFIG.format(journal=journal), self.fs)  # type: ignore[arg-type]
        self.reports: list[dict[str, object]] = []
        self.world.broker.maintenance._report = self._report
        self.world.broker.maintenance.packs._report = self._report

    def _report(self, level: object, event: str, /, **fields: object) -> None:
        if event == "journal.unreadable_items":
            self.reports.append(fields)

    def stop(self) -> None:
        self.fs.close()

    def drain(self) -> list[int]:
        """The numbers of all items, each as it was put."""
        queue, found = self.world.broker.queues.by_name["q"], []
        while (taken := queue.remove_head(self.world.now_ms)) is not None:
            number = int(taken.item.data.partition(b".")[0])
            assert taken.item.data == payload(number)
            found.append(number)
            if len(found) % 200 == 0:
                self.world.turn()
                self.world.sync()
        self.world.turn()
        return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spool")
    here = Path.cwd()
    os.chdir(folder)
    try:
        (folder / "s").mkdir()
        served = Served()
        world = served.world
        world.client().says("set q 0 0 1", "x", "get q")
        queue = world.broker.queues.by_name["q"]
        for number in range(COUNT):
            queue.add(Item(payload(number), world.now_ms), world.now_ms)
            if number % 100 == 99:
                world.turn(1)
                world.sync()
        world.turn()
        world.sync()
        assert isinstance(queue.journal, Log) and len(queue.journal.segments.sealed) >= 3
        served.stop()
    finally:
        os.chdir(here)
    return folder


@pytest.fixture
def spool(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(filled / "s", tmp_path / "s")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "s"


def sealed_in(spool: Path) -> list[Path]:
    return sorted(path for path in spool.iterdir() if path.name.startswith("q."))


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_costs_the_items_of_its_block_and_is_named(spool: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = chance.choice(sealed_in(spool))
    at = path.stat().st_size - 1 - chance.randrange(2000) if seed % 4 == 0 else chance.randrange(path.stat().st_size)
    flip(path, 8 * at + chance.randrange(8))
    served = Served()
    found = served.drain()
    assert found == sorted(set(found))
    assert COUNT - len(found) <= LOST_MAX
    (report,) = served.reports
    begin, size = int(str(report["at"])), int(str(report["bytes"]))
    assert report["file"] == path.name and begin <= at < begin + size
    assert Path(str(report["saved_as"])).read_bytes() == path.read_bytes()[begin : begin + size]
    assert report["items"] == COUNT - len(found)
    served.stop()


def test_items_taken_before_the_damage_is_met_are_not_counted_among_the_lost(spool: Path) -> None:
    """A start reads on from the last known place in front of the next item, and meets it there."""
    served = Served()
    queue = served.world.broker.queues.by_name["q"]
    assert [taken is not None for taken in (queue.remove_head(served.world.now_ms) for _ in range(100))] == [True] * 100
    served.world.broker.shutdown(served.world.now_ms)
    served.stop()
    flip(sealed_in(spool)[0], 8 * 1000)
    served = Served()
    found = served.drain()
    assert found == sorted(set(found)) and found[0] > 100
    (report,) = served.reports
    assert report["items"] == COUNT - 100 - len(found) < LOST_MAX - 100
    served.stop()


def test_damage_is_kept_aside_before_a_pack_replaces_the_file(spool: Path) -> None:
    first, second = sealed_in(spool)[:2]
    flip(second, 8 * 300_000)
    damaged = second.read_bytes()
    served = Served("1500KB")
    queue = served.world.broker.queues.by_name["q"]
    for _ in range(COUNT):
        if not first.exists():
            break
        queue.remove_head(served.world.now_ms)
        served.world.turn()
        served.world.sync()
    assert served.reports and not first.exists()
    served.drain()
    kept = [path for path in (spool / ".staniel" / "damaged").iterdir() if path.name.startswith(second.name)]
    assert kept and all(path.read_bytes() in damaged for path in kept)
    served.stop()


@pytest.mark.parametrize("harm", ["gone", "cut short", "of another file"])
def test_whatever_happens_to_sidecars_every_item_is_served(spool: Path, harm: str) -> None:
    own = spool / ".staniel" / "segments"
    first, *others = sorted(own.iterdir())
    if harm == "gone":
        shutil.rmtree(own)
    elif harm == "cut short":
        first.write_bytes(first.read_bytes()[:-1])
    else:
        first.write_bytes(others[0].read_bytes())
    served = Served()
    assert served.drain() == list(range(COUNT))
    assert not served.reports
    served.stop()


def test_a_file_replaced_by_another_of_the_same_size_is_read_as_it_is(spool: Path) -> None:
    path = sealed_in(spool)[0]
    data = path.read_bytes()
    path.write_bytes(data.replace(b".xxxx", b".yyyy"))
    served = Served()
    assert "journal.read_whole" in served.world.events
    queue = served.world.broker.queues.by_name["q"]
    taken = queue.remove_head(served.world.now_ms)
    assert taken is not None and taken.item.data.startswith(b"0.yyyy")
    served.stop()


def test_two_starts_one_with_and_one_without_sidecars_serve_the_same(spool: Path) -> None:
    served = Served()
    assert not kestrel_files.parse("q.5.new").queue
    line = served.world.broker.queues.by_name["q"].line
    assert not line.in_memory and line.on_disk == COUNT
    assert all(sidecar.load(served.fs, "s", path.name) is not None for path in sealed_in(spool))
    assert served.drain() == list(range(COUNT))
    served.stop()
