"""A start meets files that count for nothing, and the system refuses to remove them: it costs a warning."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from staniel.journal.disk.fs import JournalFailure
from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.libkestrel.position import Position, encode_reader_file
from staniel.journal.libkestrel.records import SEGMENT_MAGIC, encode_put
from staniel.queues.config import JournalDialect
from staniel.queues.item import Numbered
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from tests.journal.disk.test_refusals import ALWAYS, SMALL, drained, put, take
from tests.journal.test_renewal import marked
from tests.support.records import NOW_MS, addx
from tests.support.spool import journals, new_disk, put_file
from tests.support.streams import LIB, all_of, asks
from tests.support.world import World

REFUSALS = [errno.EACCES, errno.EPERM, errno.EBUSY, errno.EIO, errno.EROFS]


def disk_of(files: dict[str, bytes]) -> Disk:
    disk = new_disk()
    for name, data in files.items():
        put_file(disk, name, data)
    return disk


def item(number: int, size: int = 500) -> bytes:
    return addx(f"{number:03}".ljust(size, "x").encode())


@pytest.mark.parametrize("number", REFUSALS)
def test_temporary_files_that_stay_cost_a_warning_each(number: int) -> None:
    disk = disk_of({"q": item(0), "q~~7": b"half a file", "lonely~~3": b"", "other~~1": b"x", "other": item(1)})
    disk.fail("remove", "~~", number, times=ALWAYS)
    world = World(SMALL, disk)
    said = world.reported("journal.unremoved")
    assert sorted(str(each["queue"]) for each in said) == ["lonely", "other", "q"]
    assert "cannot use s/q~~7: " in " ".join(str(each["why"]) for each in said)
    assert world.broker.queues.find("lonely") is None
    put(world, 1, 40)
    take(world, 38)
    for _ in range(3):
        world.turn(100_000)
    again = World(SMALL, world.disk.kill(), world.now_ms)
    assert drained(again) == [38, 39, 40] and drained(again, "other") == [1]


@pytest.mark.parametrize("number", REFUSALS)
def test_unfinished_replacements_of_libkestrel_files_that_stay_cost_a_warning(number: int) -> None:
    world = World(LIB)
    for each in range(3):
        assert asks(world, "set q 0 0 1", str(each)) == "STORED"
    disk = world.disk.kill()
    put_file(disk, "q.5~~7", b"half a segment")
    put_file(disk, "q.read.~~9", b"x")
    disk.fail("remove", "~~", number, times=ALWAYS)
    again = World(LIB, disk, world.now_ms)
    assert len(again.reported("journal.unremoved")) == 2
    assert asks(again, "set q 0 0 1", "3") == "STORED" and all_of(again, "q") == ["0", "1", "2", "3"]


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("call", ["rename", "make_folder", "list"])
def test_an_empty_pack_that_stays_replaces_nothing_at_any_start(call: str, number: int) -> None:
    disk = disk_of({"q.5": item(0), "q.5.pack": b"", "q": item(1)})
    disk.fail(call, "q.5.pack" if call == "rename" else "damaged", number, times=ALWAYS)
    world = World(SMALL, disk)
    (said,) = world.reported("journal.unremoved")
    assert said["queue"] == "q" and "q.5.pack" in journals(disk)
    put(world, 2, 2)
    disk = world.disk.kill()
    disk.fail(call, "q.5.pack" if call == "rename" else "damaged", number, times=ALWAYS)
    again = World(SMALL, disk, world.now_ms)
    assert drained(again) == [0, 1, 2, 3]


def test_a_queue_with_an_empty_pack_that_stays_is_deleted_as_a_whole_or_not_at_all() -> None:
    disk = disk_of({"q.5": item(0), "q.7.pack": b"", "q.9": item(1), "q": item(2), "q.4.pack": b""})
    disk.fail("rename", ".pack", errno.EPERM, times=ALWAYS)
    disk.fail("remove", "q.4.pack", errno.EPERM, times=1)
    world = World(SMALL, disk)
    assert "SERVER_ERROR" in asks(world, "delete q")
    assert {"q", "q.5", "q.9", "q.4.pack"} <= {*journals(disk)}
    world.disk._faults.clear()
    assert asks(world, "delete q") == "DELETED"
    assert journals(disk) == []
    assert World(SMALL, disk.kill()).broker.queues.find("q") is None


def segment(first_id: int, *texts: bytes) -> bytes:
    items = [Numbered(text, NOW_MS, 0, 0, first_id + place) for place, text in enumerate(texts)]
    return SEGMENT_MAGIC + b"".join(encode_put(each, each.id) for each in items)


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("content", [b"", SEGMENT_MAGIC])
@pytest.mark.parametrize("name", ["q.3", "q.7", "q.9999999999999"])
def test_a_segment_without_items_that_stays_gives_its_number_to_no_other(
    name: str, content: bytes, number: int
) -> None:
    disk = disk_of({"q.5": segment(1, b"a", b"b"), name: content, "q.read.": encode_reader_file(Position(0))})
    disk.fail("remove", name, number, times=ALWAYS)
    world = World(LIB, disk)
    (said,) = world.reported("segment.stuck")
    assert said["file"] == name
    assert world.broker.streams.stuck_segments == 1
    assert asks(world, "set q 0 0 1", "c") == "STORED" and all_of(world, "q") == ["a", "b", "c"]
    disk = world.disk.kill()
    disk.fail("remove", name, number, times=ALWAYS)
    again = World(LIB, disk, world.now_ms)
    assert all_of(again, "q") == ["a", "b", "c"] and disk.size(f"s/{name}") == len(content)
    again.disk._faults.clear()
    for _ in range(3):
        again.turn(1000)
    assert name not in journals(again.disk) and not again.broker.streams.stuck_segments


def test_a_queue_whose_segments_all_stay_without_items_goes_on_and_is_deleted_with_them() -> None:
    disk = disk_of({"q.5": SEGMENT_MAGIC, "q.read.": encode_reader_file(Position(4))})
    disk.fail("remove", "q.5", errno.EPERM, times=ALWAYS)
    world = World(LIB, disk)
    assert asks(world, "set q 0 0 1", "c") == "STORED" and all_of(world, "q") == ["c"]
    assert "SERVER_ERROR" in asks(world, "delete q") or "q" in world.broker.queues.blocked
    world.disk._faults.clear()
    for _ in range(3):
        world.turn(1000)
    asks(world, "delete q")
    assert journals(world.disk) == []


def test_a_default_reader_beside_named_ones_that_cannot_be_removed_costs_the_queue() -> None:
    files = {"q.read.": encode_reader_file(Position(1)), "q.read.q": encode_reader_file(Position(0))}
    disk = disk_of({"q.5": segment(1, b"a", b"b"), **files})
    disk.fail("remove", "q.read.", errno.EPERM, times=ALWAYS)
    world = World(LIB, disk)
    assert asks(world, "get q").startswith("SERVER_ERROR queue q is not available: ")
    disk._faults.clear()
    assert all_of(World(LIB, disk.kill()), "q") == ["a", "b"]


# after a failed sync


@pytest.mark.parametrize("number", REFUSALS[:3])
def test_a_temporary_file_that_stays_is_not_written_to_after_a_failed_sync(number: int) -> None:
    disk = disk_of({"q": item(0), "q~~0": b"half a file", "q~~1": b""})
    marked(disk, b'"s/q"\nnull\n')
    put_file(disk, ".staniel/intents~~2", b"x")
    for temp in ("q~~0", "q~~1", "intents~~2"):
        disk.fail("remove", temp, number, times=ALWAYS)
        disk.fail("create", temp, number, times=ALWAYS)
    world = World(SMALL, disk)
    assert world.reported("spool.renewed") and drained(world) == [0]
    assert disk.read("s/q~~0", 0, 100) == b"half a file" and not world.broker.spool.failed_sync.exists


def disk_with_an_unfinished_pack() -> Disk:
    """`q.6.pack` replaces `q.05`, which the system lets nobody touch, and `q.6`; a mark was cut off."""
    files = {"q.05": item(7), "q.6": item(8), "q.6.pack": item(0) + item(1), "q": item(2) + item(3)}
    disk = marked(disk_of(files), b'"s/q.6.pack"\n{"file": "s/q"')
    for verb in ("remove", "rename", "create"):
        disk.fail(verb, "s/q.05", errno.EPERM, times=ALWAYS)
    return disk


def test_archives_that_a_pack_replaces_are_not_written_anew_after_a_failed_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rename = Disk.rename

    def refuse(self: Disk, old: str, new: str) -> None:
        if new == "s/q.05":
            raise PermissionError(errno.EPERM, "Operation not permitted", old, None, new)
        rename(self, old, new)

    monkeypatch.setattr(Disk, "rename", refuse)
    for step in range(200):
        disk = disk_with_an_unfinished_pack()
        disk.stop_at = len(disk.log) + step
        try:
            world = World(SMALL, disk)
        except PowerCut:
            for left in (disk.copy(), disk.crash(Crash.KEEP), disk.crash(Crash.DROP)):
                left._faults = list(disk._faults)
                assert drained(World(SMALL, left)) == [0, 1, 2, 3], step
            continue
        disk.stop_at = None
        assert world.reported("spool.renewed") and drained(world) == [0, 1, 2, 3]
        return
    raise AssertionError("no start came to its end")


def test_an_archive_that_a_power_cut_brings_back_beside_its_pack_goes_for_good() -> None:
    disk = disk_of({"q.5": item(7), "q.6.pack": item(0), "q": item(1)})
    marked(disk, b'{"gone": "s/q.5"}\nnull\n')
    assert drained(World(SMALL, disk)) == [0, 1]
    assert "q.5" not in journals(disk.crash(Crash.DROP))


@pytest.mark.parametrize("how", [Disk.copy, Disk.kill, lambda disk: disk.crash(Crash.DROP)])
def test_a_pack_that_a_power_cut_brings_back_beside_its_archive_replaces_nothing(how: Callable[[Disk], Disk]) -> None:
    disk = disk_of({"q.6": item(0), "q.6.pack": item(0), "q": item(1)})
    marked(disk, b'{"gone": "s/q.6.pack"}\n"s/q.6"\n"s/q"\n')
    assert drained(World(SMALL, how(disk))) == [0, 1]
    assert "q.6" in journals(disk) or how is not Disk.copy


def test_a_pack_without_content_is_one_that_replaces_all() -> None:
    disk = disk_of({"q.5": item(7), "q.5.pack": Encoder(JournalDialect.DOCUMENTS).encode_empty(7), "q": item(1)})
    marked(disk, b'"s/q.5.pack"\n')
    for verb in ("remove", "rename"):
        disk.fail(verb, "s/q.5", errno.EPERM, times=ALWAYS)
    assert drained(World(SMALL, disk)) == [1]


def test_a_sync_that_fails_while_an_empty_pack_is_moved_is_no_refusal() -> None:
    disk = disk_of({"q.5": item(0), "q.5.pack": b"", "q": item(1)})
    disk.make_folder("s/.staniel/damaged")
    disk.fail("sync_folder", "damaged", errno.EIO)
    with pytest.raises(JournalFailure, match="sync failed"):
        World(SMALL, disk)
    assert disk.size("s/.staniel/failed_sync")
