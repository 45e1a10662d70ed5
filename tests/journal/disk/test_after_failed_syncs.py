"""A sync fails, the kernel calls the pages clean, and the server is started again: nothing may rest on such pages."""

from __future__ import annotations

import errno

import pytest

from staniel.journal.disk.failed_sync import (
    ROOM_BYTES,
    ROOM_SHARE_OF_DISK,
    FailedSyncMarker,
    RenewalGroup,
    SuspectPaths,
)
from staniel.journal.disk.unsynced_names import NAMES_MAX, UnsyncedNames
from staniel.journal.group_commit import JournalFailure
from staniel.journal.spool import SpoolError
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from tests.support.world import World

MARK = "s/.staniel/failed_sync"


def world_whose_sync_failed() -> World:
    world = World()
    client = world.client()
    client.puts("1")
    world.sync()
    client.puts("2")
    world.disk.fail("sync", "s/q", errno.EIO)
    with pytest.raises(JournalFailure):
        world.sync()
    return world


def restarted(world: World) -> World:
    return World(world.config, world.disk.kill(), world.now_ms)


def test_what_is_acknowledged_after_the_restart_survives_the_next_power_cut() -> None:
    world = restarted(world_whose_sync_failed())
    assert "spool.renewed" in world.events and world.items() == [b"1", b"2"]
    client = world.client()
    client.puts("3")
    world.sync()
    assert client.hears() == "STORED"
    assert world.crash(Crash.DROP).items() == [b"1", b"2", b"3"]


def disk_with_an_old_list_in_the_room() -> Disk:
    """A power cut has taken back that the room became the mark, and not what was written to it."""
    disk = world_whose_sync_failed().disk.kill()
    disk.rename(MARK, f"{MARK}.room")
    return disk


def test_a_mark_is_not_complete_because_an_earlier_one_in_its_room_was() -> None:
    disk = disk_with_an_old_list_in_the_room()
    assert b"null" in disk.read(f"{MARK}.room", 0, 1000)
    marker = FailedSyncMarker(UnsyncedNames(disk), MARK)
    marker.record_failure()  # before the start has synced what a killed process left
    assert marker.read() == SuspectPaths()  # and torn: everything is in doubt


def test_a_start_empties_the_room_for_a_mark() -> None:
    disk = disk_with_an_old_list_in_the_room()
    World("", disk)
    assert disk.size(f"{MARK}.room") == 0 and disk.inode_at(f"{MARK}.room").reserved > 0


def test_the_mark_is_gone_once_everything_has_been_written_anew() -> None:
    world = restarted(world_whose_sync_failed())
    assert not world.broker.spool.failed_sync.exists
    world.broker.shutdown(world.now_ms)
    assert "spool.renewed" not in restarted(world).events


def test_power_fails_at_any_step_of_writing_anew() -> None:
    before = world_whose_sync_failed().disk
    steps = len(restarted(world_whose_sync_failed()).disk.log) - len(before.log)
    for step in range(steps):
        world = world_whose_sync_failed()
        disk = world.disk.kill()
        disk.stop_at = len(disk.log) + step
        with pytest.raises(PowerCut):
            World(world.config, disk, world.now_ms)
        for how in Crash:
            assert World(world.config, disk.crash(how), world.now_ms).items() in ([b"1"], [b"1", b"2"])


def test_a_disk_without_room_for_it_is_named_and_the_server_does_not_start() -> None:
    world = world_whose_sync_failed()
    disk = world.disk.kill()
    disk.fail("write", "q~~0", errno.ENOSPC, times=2)  # the second time for this queue alone
    with pytest.raises(SpoolError, match="make room on its disk"):
        World(world.config, disk, world.now_ms)
    assert disk.size(MARK) > 0
    disk.kill()
    assert World(world.config, disk, world.now_ms).items() == [b"1", b"2"]


def names_whose_sync_failed(verb: str) -> UnsyncedNames:
    """`old` is `new`, `gone` is gone, and the folder's sync has failed."""
    disk = Disk()
    names = UnsyncedNames(disk)
    names.make_folder("s")
    for name in ("old", "gone"):
        file = names.append(f"s/{name}")
        file.write(name.encode())
        file.sync()
        file.close()
    names.sync_folder("s")
    assert not names.changed_names()
    FailedSyncMarker(names, "s/mark")
    names.rename("s/old", "s/new")
    names.remove("s/gone")
    disk.fail(verb, "s", errno.EIO)
    with pytest.raises(JournalFailure):
        names.sync_folder("s") if verb == "sync_folder" else names.sync_all("s")
    return names


@pytest.mark.parametrize("verb", ["sync_folder", "sync_all"])
def test_names_whose_sync_failed_are_made_and_removed_anew(verb: str) -> None:
    disk = names_whose_sync_failed(verb)._fs
    assert isinstance(disk, Disk)
    before = [name for name, _ in disk.crash(Crash.KEEP).list("s")]
    assert "old" in before and "gone" in before
    failed_sync = FailedSyncMarker(UnsyncedNames(disk), "s/mark")
    assert failed_sync.read().names.keys() >= {"s/old", "s/new", "s/gone"}
    group = RenewalGroup([("s/new", "s/new~~0")], ["s/old", "s/gone"])
    failed_sync.renew(failed_sync.read(), [group], RenewalGroup())
    failed_sync.clear(SuspectPaths())
    after = disk.crash(Crash.DROP)
    assert after.list("s") == [("new", True)] and after.read("s/new", 0, 10) == b"old"


def test_names_stay_in_doubt_and_no_sync_is_tried_again() -> None:
    names = names_whose_sync_failed("sync_folder")
    file = names.append("s/new")
    tried: list[str] = []
    disk = names._fs
    for verb in ("sync_folder", "sync_all", "truncate", "make_folder"):
        setattr(disk, verb, lambda *args, verb=verb: tried.append(verb))
    file._file.sync = lambda: tried.append("sync")  # type: ignore[attr-defined]
    again = (
        lambda: names.sync_folder("s"),
        lambda: names.sync_all("s"),
        lambda: names.truncate("s/new", 0),
        lambda: names.make_folder("s/more"),
        file.sync,
    )
    for sync in again:
        with pytest.raises(JournalFailure):
            sync()
    assert tried == []
    assert {"s/old", "s/new", "s/gone"} <= set(names.changed_names())


@pytest.mark.parametrize("with_room", [True, False])
def test_there_is_room_for_the_mark_on_a_full_disk(with_room: bool) -> None:
    disk = Disk(capacity_bytes=1 << 20)
    names = UnsyncedNames(disk)
    names.make_folder("s")
    failed_sync = FailedSyncMarker(names, "s/mark", "s/reserve")
    failed_sync.is_complete = True
    if with_room:
        failed_sync.set_room_aside()
    made = [f"s/{number}" for number in range(100)]
    for name in made:
        names.append(name).close()
    disk.capacity_bytes = disk.used_bytes
    disk.fail("sync_folder", "s", errno.EIO)
    with pytest.raises(JournalFailure):
        names.sync_folder("s")
    mark = failed_sync.read()
    assert mark.is_torn is not with_room
    assert with_room is (mark.names.keys() >= {*made})


def test_a_mark_is_not_whole_once_notes_were_dropped() -> None:
    disk = Disk()
    names = UnsyncedNames(disk)
    names.make_folder("s")
    failed_sync = FailedSyncMarker(names, "s/mark")
    failed_sync.is_complete = True
    for number in range(NAMES_MAX + 1):
        names.append(f"s/{number}").close()
    disk.fail("sync_folder", "s", errno.EIO)
    with pytest.raises(JournalFailure):
        names.sync_folder("s")
    mark = failed_sync.read()
    assert "s/0" not in mark.names and mark.is_torn


def test_room_is_kept_again_once_a_mark_is_lowered_and_the_mark_of_a_start_that_knows_little_is_torn() -> None:
    disk = names_whose_sync_failed("sync_folder")._fs
    assert isinstance(disk, Disk)
    failed_sync = FailedSyncMarker(UnsyncedNames(disk), "s/mark")
    assert failed_sync.read().is_torn
    failed_sync.clear(SuspectPaths())
    before = disk.used_bytes
    assert disk.size("s/mark.room") == 0 and before >= doubt_room_bytes(disk)
    failed_sync.set_room_aside()
    assert disk.used_bytes == before


def doubt_room_bytes(disk: Disk) -> int:
    return min(ROOM_BYTES, disk.capacity_bytes // ROOM_SHARE_OF_DISK)


def mark_of(text: bytes) -> SuspectPaths:
    disk = Disk()
    names = UnsyncedNames(disk)
    names.make_folder("s")
    names.append("s/mark").write(text)
    return FailedSyncMarker(names, "s/mark").read()


def test_a_mark_of_an_earlier_version_names_what_can_be_read() -> None:
    assert list(mark_of(b'["s/a","s/b"]\n["s/a","s/c"]\n["s/d').names) == ["s/a", "s/b", "s/c"]


def test_a_mark_that_was_cut_off_keeps_what_it_had_said_and_tells_that_it_was() -> None:
    cut = mark_of(b'\n"s/a"\n{"file":"s/b"}\n"s/')
    assert (list(cut.names), list(cut.files), cut.is_torn) == (["s/a"], ["s/b"], True)
    again = mark_of(b'\n"s/a"\n"s/\n"s/a"\n"s/c"\n{"file":"s/b"}\nnull\n')
    assert (list(again.names), list(again.files), again.is_torn) == (["s/a", "s/c"], ["s/b"], False)


def test_a_list_that_was_cut_off_or_is_none_says_nothing() -> None:
    for line in (b'{"put":{"a":"a~~1"},"gone":["b"]', b'{"put":{"a":"a"},"gone":["b"]}'):
        mark = mark_of(b'"s/a"\nnull\n' + line)
        assert mark.is_torn and not mark.puts and not mark.removals and list(mark.names) == ["s/a"]
    whole = mark_of(b'"s/a"\nnull\n{"put":{"a":"a~~1"},"gone":["b"]}\n')
    assert not whole.is_torn and (whole.puts, list(whole.removals)) == ({"a": "a~~1"}, ["b"])


def opened_twice(*, closes_first: bool) -> UnsyncedNames:
    """A file with bytes that no sync has covered was opened once more, and one of the two is closed."""
    disk = Disk()
    disk.make_folder("s")
    names = UnsyncedNames(disk)
    first = names.append("s/q")
    second = names.append("s/q")
    first.write(b"x")
    (first if closes_first else second).close()
    return names


@pytest.mark.parametrize("closes_first", [True, False])
def test_a_file_that_is_open_twice_stays_noted_when_one_of_them_is_closed(closes_first: bool) -> None:
    names = opened_twice(closes_first=closes_first)
    assert names.unsynced_files() == ["s/q"]
    names.rename("s/q", "s/q.1")
    assert names.unsynced_files() == ["s/q.1"]


@pytest.mark.parametrize("closes_first", [True, False])
def test_a_file_that_was_open_twice_is_forgotten_with_its_name(closes_first: bool) -> None:
    names = opened_twice(closes_first=closes_first)
    names.remove("s/q")
    assert names.unsynced_files() == []


def test_both_of_a_file_that_is_open_twice_are_closed() -> None:
    names = opened_twice(closes_first=False)
    file = names.append("s/q")
    file.sync()
    file.close()
    assert names.unsynced_files() == ["s/q"]  # the other one is open, and knows of no sync


def test_a_failed_sync_of_a_segment_that_the_start_has_made_is_in_the_mark() -> None:
    """The start opens the new segment a second time, to see whether it can be written. Another one is the newest when
    its sync fails.
    """
    text = 'default.journal_format = "libkestrel"\ndefault.default_journal_size = 60\ndefault.sync_journal = "os"\n'
    first = World(text)
    first.client().puts("1")
    first.sync()
    first.disk.remove("s/" + next(name for name, _ in first.disk.list("s") if name.startswith("q.1")))
    world = World(text, first.disk.crash(Crash.KEEP), first.now_ms + 1000)
    world.client().puts("2")
    world.sync()  # and the segment's name
    (segment,) = [f"s/{name}" for name, _ in world.disk.list("s") if name.startswith("q.1")]
    world.disk.fail("sync", segment, errno.EIO)
    world.client().says("set q 0 0 1", "3", "set q 0 0 40", "4" * 40, "set q 0 0 1", "5")
    with pytest.raises(JournalFailure):
        world.sync()
    again = World(text, world.disk.kill(), world.now_ms)
    assert again.items() == again.crash(Crash.DROP).items() == [b"2", b"3", b"4" * 40, b"5"]
