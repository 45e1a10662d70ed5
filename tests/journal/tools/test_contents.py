"""What a queue held at any moment, against what it really held then: nothing certain is false, nothing is missing."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from staniel.journal.disk.fs import Reader
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.tools.contents import contents
from staniel.journal.tools.history import history
from staniel.journal.tools.source import ReadSource
from staniel.journal.trace import Happened
from tests.support.records import addx
from tests.support.streams import LIB, asks
from tests.support.world import World

KESTREL = 'queues.q.max_memory_size = "1KB"\nqueues.q.max_journal_size = "2KB"\nqueues.q.default_journal_size = "1MB"\n'
STREAM = LIB + "default.default_journal_size = 300\n"
STEPS = 120


class Recorded:
    """A queue that clients use by chance; `truth`: at which moment it held which items, whoever had them."""

    def __init__(self, config: str, seed: int) -> None:
        self.world, self.chance = World(config), Random(seed)
        self.truth: list[tuple[int, set[str]]] = []
        self.put = 0
        self.reader = self.world.client()
        self.open = 0
        for _ in range(STEPS):
            self.step()
            self.world.turn(self.chance.choice((1, 7, 1000)))
        self.now_ms = self.world.now_ms

    def step(self) -> None:
        world = self.world
        match self.chance.choice(("put", "put", "put", "get", "open", "close", "abort")):
            case "put":
                self.put += 1
                item = f"item {self.put:03} {'x' * self.chance.choice((0, 90))}"
                assert asks(world, f"set q 0 0 {len(item)}", item) == "STORED"
            case "get":
                asks(world, "get q")
            case word:
                self.reader.says(f"get q/{word}")
                while world.sync():
                    world.turn()
                self.reader.hears()
        queue = world.broker.queues.find("q")
        if queue is not None:
            items = [*queue.line.items(), *(taken.item for taken in queue.open_reads.values())]
            self.truth.append((world.now_ms, {item.data.decode().split()[1] for item in items}))


@pytest.mark.parametrize("config", [KESTREL, STREAM], ids=["kestrel", "libkestrel"])
@pytest.mark.parametrize("seed", range(12))
def test_nothing_certain_is_false_and_nothing_that_can_be_known_is_missing(config: str, seed: int) -> None:
    recorded = Recorded(config, seed)
    certain_ones = 0
    for at_ms, there in recorded.truth:
        # Records of one moment stand in their order: the last of it is meant.
        if any(later_ms == at_ms and later != there for later_ms, later in recorded.truth):
            continue
        source = ReadSource(recorded.world.disk, "s")
        found = contents(source, "q", at_ms, recorded.now_ms + 1, jobs=False)
        shown = {held.id: found.read(held, held.data_bytes).decode().split()[1] for held in found.items}
        certain = {shown[held.id] for held in found.items if held.is_certain}
        certain_ones += len(certain)
        assert certain <= there, at_ms
        lost = there - set(shown.values())
        assert not lost or any("in no file" in note for note in found.notes), at_ms
    assert certain_ones > 10


@pytest.mark.parametrize("config", ["", STREAM], ids=["kestrel", "libkestrel"])
@pytest.mark.parametrize("seed", range(4))
def test_without_packs_nothing_is_missing_at_all(config: str, seed: int) -> None:
    recorded = Recorded('default.default_journal_size = "1MB"\n' + (LIB if config else ""), seed)
    for at_ms, there in recorded.truth:
        found = contents(ReadSource(recorded.world.disk, "s"), "q", at_ms, recorded.now_ms + 1, jobs=False)
        shown = {found.read(held, held.data_bytes).decode().split()[1] for held in found.items}
        assert there <= shown, at_ms


class Rotating(OsFs):
    """A server seals the file while it is being opened."""

    def __init__(self, folder: Path, times: int) -> None:
        super().__init__()
        self.folder, self.left = folder, times

    def reader(self, path: str) -> Reader:
        if self.left and path == f"{self.folder}/q":
            self.left -= 1
            (self.folder / "q").rename(self.folder / f"q.{100 - self.left}")
            (self.folder / "q").write_bytes(addx(b"%d" % self.left))
        return super().reader(path)


def test_files_that_are_renamed_meanwhile_are_read_once_each(tmp_path: Path) -> None:
    (tmp_path / "q").write_bytes(addx(b"first"))
    with closing(contents(ReadSource(Rotating(tmp_path, 3), str(tmp_path)), "q", 1, 1, jobs=False)) as found:
        assert [found.read(held, 9) for held in found.items] == [b"first", b"2", b"1", b"0"]
    with pytest.raises(OSError, match="change faster"):
        contents(ReadSource(Rotating(tmp_path, 90), str(tmp_path)), "q", 1, 1, jobs=False)


def test_the_life_of_an_item_is_told_in_order() -> None:
    world = World()
    client = world.client().says("set q 0 0 1", "x", "get q/open", "get q/abort", "get q/open", "get q/close")
    while world.sync():
        world.turn()
    client.hears()
    found = history(ReadSource(world.disk, "s"), "q", "0")
    words = ["added", "opened", "aborted", "opened", "closed"]
    assert [event.happened.value for event in found.events] == words and not found.is_there
    assert [event.record for event in found.events] == ["ADD", "RSV", "CAN", "RSV", "ACK"]
    assert [event.xid for event in found.events] == [None, 1, 1, 2, 2]
    assert found.events[0].from_ms == found.events[0].until_ms
    assert history(ReadSource(world.disk, "s"), "q", "xid=2").events == found.events
    assert found.events[-1].happened is Happened.CLOSED and found.events[-1].until_ms is None
