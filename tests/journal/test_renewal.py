"""What a start writes anew after a failed sync: all that no sync has covered, and at no moment is anything worse."""

from __future__ import annotations

import errno

import pytest

from journal.fs import JournalFailure
from sim.disk import Disk, PowerCut
from sim.nodes import Crash
from tests.journal.records import addx, named
from tests.journal.spool import content_of, journals, new_disk, put_file
from tests.sim.job_world import JobWorld
from tests.sim.world import World

MARK = "s/.staniel/failed_sync"


def marked(disk: Disk, text: bytes) -> Disk:
    disk.make_folder("s/.staniel")
    file = disk.append(MARK)
    file.write(text)
    file.close()
    disk.sync_all("")
    return disk


def disk_with_a_pack_in_doubt() -> Disk:
    """A pack has just become an archive, and the sync of that has failed."""
    disk = new_disk()
    put_file(disk, "q.5", b"".join(addx(b"%d" % number) for number in range(9)))
    put_file(disk, "q", addx(b"9"))
    disk.sync_folder("s")
    return marked(disk, b'"s/q.5.pack"\n"s/q.5"\nnull\n')


def test_a_stop_while_names_are_made_and_removed_anew_leaves_no_pack_that_replaces_archives() -> None:
    wanted = [b"%d" % number for number in range(10)]
    seen = 0
    for step in range(100):
        disk = disk_with_a_pack_in_doubt()
        disk.stop_at = len(disk.log) + step
        try:
            World(disk=disk)
            break
        except PowerCut:
            seen += "q.5.pack" in journals(disk)
        for left in (disk.copy(), disk.crash(Crash.KEEP), disk.crash(Crash.DROP)):
            after = World(disk=left)
            assert after.items() == wanted and "q.5.pack" not in journals(after.disk)
            assert "journal.damaged" not in after.events
    assert seen  # there was a moment in which it was there


def test_a_name_that_was_to_go_goes_though_a_power_cut_has_brought_it_back() -> None:
    disk = new_disk()
    put_file(disk, "q.3", addx(b"old"))  # was covered by a pack that is q.5 now
    put_file(disk, "q.5", addx(b"1"))
    marked(disk, b'"s/q.3"\nnull\n{"gone":"s/q.3"}\n')
    world = World(disk=disk)
    assert world.items() == [b"1"] and journals(disk) == ["q", "q.5"]
    assert not world.broker.store.doubt.exists


def test_every_segment_of_an_unsynced_stretch_is_written_anew() -> None:
    config = 'default.journal_format = "libkestrel"\ndefault.sync_journal = "1h"\ndefault.default_journal_size = 100\n'
    world = World(config)
    client = world.client()
    lines = [line for number in range(6) for line in (f"set q 0 0 {60 + number}", "x" * (60 + number))]
    client.says(*lines)  # a segment each, all in one batch
    assert len([name for name in journals(world.disk) if name.startswith("q.1")]) == 6
    world.broker.fs.sync_folder("s")  # their names are safe
    sync = world.start_sync()
    assert sync is not None
    world.disk.fail("sync", "s/", errno.EIO, times=20)
    with pytest.raises(JournalFailure):
        sync.run()
    for name in journals(world.disk):
        world.disk._inode(f"s/{name}").dirty.clear()  # all of it looks clean
    after = World(config, world.disk.kill(), world.now_ms)
    assert len(after.items()) == 6
    assert after.crash(Crash.DROP).items() == after.items()


def job_world_whose_sync_failed() -> JobWorld:
    world = JobWorld()
    worker = world.worker()
    worker.adds(1)
    worker.adds(2)
    world.disk.fail("sync", "log/", errno.EIO)
    with pytest.raises(JournalFailure):
        worker.adds(3)
    return world


def test_a_start_without_jobs_writes_their_log_anew_too() -> None:
    world = job_world_whose_sync_failed()
    jobs = set(JobWorld(disk=world.disk.copy()).jobs)
    assert len(jobs) == 3
    between = World(disk=world.disk.kill())
    assert not between.broker.store.doubt.exists
    assert set(JobWorld(disk=between.disk.crash(Crash.DROP)).jobs) == jobs


def test_what_is_out_of_reach_stays_in_the_mark_and_is_named() -> None:
    disk = marked(new_disk(), b'"s/q"\n{"file":"elsewhere/000000001.log"}\nnull\n')
    world = World(disk=disk)
    assert "spool.in_doubt" in world.events
    assert list(world.broker.store.doubt.read().names) == ["elsewhere/000000001.log"]
    disk = world.disk.kill()
    disk.make_folder("elsewhere")
    file = disk.append("elsewhere/000000001.log")
    file.write(b"wqwq\0\0\0\1")
    file.close()
    assert not World(disk=disk).broker.store.doubt.exists
    assert disk.crash(Crash.DROP).read("elsewhere/000000001.log", 0, 9) == b"wqwq\0\0\0\1"


def test_what_another_process_uses_is_out_of_reach() -> None:
    disk = marked(new_disk(), b'{"file":"elsewhere/000000001.log"}\nnull\n')
    disk.make_folder("elsewhere")
    for name in ("append.lock", "000000001.log"):
        disk.append(f"elsewhere/{name}").close()
    disk.lock("elsewhere/append.lock")
    world = World(disk=disk)
    assert "spool.in_doubt" in world.events and world.broker.store.doubt.exists


def test_a_mark_without_room_takes_the_place_of_the_reserve_and_is_whole() -> None:
    world = World()
    client = world.client()
    client.puts("1")
    world.sync()
    client.puts("2", "other")
    world.disk.fail("write", MARK, errno.ENOSPC, short=7)
    world.disk.fail("sync", "s/", errno.ENOSPC)
    with pytest.raises(JournalFailure):
        world.sync()
    mark = world.broker.store.doubt.read()
    assert not mark.is_torn and {"s/other", "s/q"} <= {*mark.names, *mark.files}
    after = World(disk=world.disk.kill())
    assert after.crash(Crash.DROP).items("other") == [b"2"]


# a start that cannot write a journal anew which nobody else would read as it does


def uneven() -> Disk:
    disk = new_disk()
    put_file(disk, "q", b"".join([named(7, 40 + number, b"%d" % number) for number in range(3)]))
    put_file(disk, "other", addx(b"1"))
    disk.sync_all("")
    return disk


def test_a_queue_whose_journal_cannot_be_written_anew_at_a_start_is_not_served_until_it_can() -> None:
    disk = uneven()
    before = content_of(disk, "s/q")
    disk.fail("write", "q~~", errno.ENOSPC, times=1000)
    world = World(disk=disk)
    client = world.client()
    client.says("get q", "get other")
    client.says("set q 0 0 1", "9")
    world.sync()
    heard = client.hears()
    assert heard.count("SERVER_ERROR") == 2 and "VALUE other" in heard
    assert content_of(disk, "s/q").startswith(before)
    disk.kill()
    client.says("reload")
    client.hears()
    assert world.items() == [b"0", b"1", b"2"]
    client.says("get q/open", "get q/close")
    world.sync()
    assert world.crash(Crash.DROP).items() == [b"1", b"2"]


def test_the_reserve_makes_room_for_a_journal_that_is_written_anew() -> None:
    disk = uneven()
    disk.fail("write", "q~~", errno.ENOSPC)
    world = World(disk=disk)
    assert world.items() == [b"0", b"1", b"2"] and world.broker.group.budget_bytes > 0
