"""What a start writes anew after a failed sync: all that no sync has covered, and at no moment is anything worse."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

import pytest

from staniel.broker.protocols import workq
from staniel.journal.disk.failed_sync import FailedSyncMarker, SuspectPaths
from staniel.journal.disk.fs import JournalFailure, SyncFailed
from staniel.journal.disk.unsynced_names import UnsyncedNames
from staniel.journal.kestrel.install import finish_pack
from staniel.journal.spool import SpoolError
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from tests.support.job_world import JobWorld, job_id
from tests.support.records import addx, named
from tests.support.spool import content_of, cut_at_each_step, journals, new_disk, put_file
from tests.support.streams import asks, fill
from tests.support.world import Client, World

MARK = "s/.staniel/failed_sync"
TWO_FORMATS = """
default.default_journal_size = 100
default.max_memory_size = 100
default.min_journal_compact_delay = 3600000
queues.lib.journal_format = "libkestrel"
"""


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


def disk_with_a_rotation_in_doubt() -> Disk:
    """The current file has just been sealed, and the sync of that has failed: on the platter it still has its old
    name.
    """
    disk = new_disk()
    put_file(disk, "q", b"".join(addx(b"%d" % number) for number in range(9)))
    disk.make_folder("s/.staniel")
    disk.sync_all("")
    disk.append("s/q~~7").close()
    disk.rename("s/q", "s/q.7")
    disk.rename("s/q~~7", "s/q")
    disk.fail("sync_folder", "s", errno.EIO)
    with pytest.raises(SyncFailed):
        disk.sync_folder("s")
    mark = disk.append(MARK)
    mark.write(b'"s/q.7"\n"s/q"\nnull\n')
    mark.close()
    return disk


def test_a_power_cut_while_a_sealed_file_and_the_current_one_are_written_anew_loses_neither() -> None:
    wanted = [b"%d" % number for number in range(9)]
    for step in range(100):
        disk = disk_with_a_rotation_in_doubt()
        disk.stop_at = len(disk.log) + step
        try:
            World(disk=disk)
            return
        except PowerCut:
            for number in range(12):
                assert World(disk=disk.crash(Random(number).randrange)).items() == wanted
    raise AssertionError("a start without an end")


def test_a_sync_that_fails_while_files_are_written_anew_and_a_power_cut_in_the_next_start_lose_nothing() -> None:
    wanted = [b"%d" % number for number in range(9)]
    failed = 0
    for verb, path in (("sync", "s/"), ("sync_folder", "s"), ("sync_folder", ".staniel")):
        for after in range(6):
            for step in range(0, 60, 5):
                disk = disk_with_a_rotation_in_doubt()
                disk.fail(verb, path, errno.EIO, after=after)
                with suppress(JournalFailure, SpoolError):
                    World(disk=disk)
                failed += disk.lies > 1
                disk.kill()
                disk.stop_at = len(disk.log) + step
                with suppress(PowerCut):
                    World(disk=disk)
                assert World(disk=disk.crash(Random(step).randrange)).items() == wanted
    assert failed > 50


def disk_with_a_list() -> Disk:
    """A start has been about to rename two files and to remove one, and has come to one of the renames."""
    disk = new_disk()
    put_file(disk, "q.7", addx(b"1"))
    put_file(disk, "q", addx(b"1"))
    put_file(disk, "q~~4", addx(b"2"))
    put_file(disk, "q.5", addx(b"0"))
    disk.sync_folder("s")
    return marked(disk, b'"s/q.7"\n"s/q"\n"s/q.5"\nnull\n{"put":{"q.7":"q~~3","q":"q~~4"},"gone":["q.5"]}\n')


def test_what_an_earlier_start_was_about_to_rename_and_remove_is_finished_first() -> None:
    world = World(disk=disk_with_a_list())
    assert world.items() == [b"1", b"2"] and journals(world.disk) == ["q", "q.7"]
    assert not world.broker.spool.failed_sync.exists
    assert world.crash(Crash.DROP).items() == [b"1", b"2"]


def test_a_list_is_finished_again_and_again_until_another_takes_over_its_paths() -> None:
    disk = disk_with_a_list()
    for _ in range(3):
        disk.fail("write", "~~", errno.EIO)
        with pytest.raises(SpoolError):
            World(disk=disk.kill() if disk.lies else disk)
        mark = FailedSyncMarker(UnsyncedNames(disk.kill()), MARK, "", "s").read()
        assert mark.puts == {"s/q.7": "s/q~~3", "s/q": "s/q~~4"} and list(mark.removals) == ["s/q.5"]
        disk.fail("write", "~~", errno.EIO)
    assert World(disk=disk.kill()).items() == [b"1", b"2"]


def test_a_list_speaks_of_the_spool_in_which_it_lies() -> None:
    disk = Disk()
    disk.make_folder("elsewhere")
    for name, text in (("q~~0", b"new"), ("q.3", b"old")):
        file = disk.append(f"elsewhere/{name}")
        file.write(text)
        file.close()
    failed_sync = FailedSyncMarker(UnsyncedNames(disk), "elsewhere/mark", "", "elsewhere")
    failed_sync.save(
        SuspectPaths({"s/q": None}, puts={"elsewhere/q": "elsewhere/q~~0"}, removals={"elsewhere/q.3": None})
    )
    assert b"elsewhere" not in disk.read("elsewhere/mark", 0, 1000)
    failed_sync.finish_renewal()
    assert [name for name, _ in disk.list("elsewhere")] == ["mark", "q"]


def test_where_there_is_no_room_for_many_queues_at_once_they_are_renewed_one_by_one() -> None:
    disk = new_disk()
    for number in range(5):
        put_file(disk, f"q{number}", addx(bytes(20_000)))
    disk.sync_all("")
    marked(disk, b"null\n")
    disk.capacity_bytes = disk.used_bytes + 50_000
    world = World(disk=disk)
    assert "spool.renewed" in world.events and not world.broker.spool.failed_sync.exists
    assert len(world.broker.queues.by_name) == 5


def test_without_room_for_one_queue_nothing_is_left_under_temporary_names() -> None:
    disk = new_disk()
    put_file(disk, "q", addx(bytes(20_000)))
    disk.sync_all("")
    marked(disk, b"null\n")
    disk.capacity_bytes = disk.used_bytes + 10_000
    with pytest.raises(SpoolError, match="make room on its disk"):
        World(disk=disk)
    assert journals(disk) == ["q"]


def test_a_name_that_was_to_go_goes_though_a_power_cut_has_brought_it_back() -> None:
    disk = new_disk()
    put_file(disk, "q.3", addx(b"old"))  # was covered by a pack that is q.5 now
    put_file(disk, "q.5", addx(b"1"))
    marked(disk, b'"s/q.3"\nnull\n{"gone":"s/q.3"}\n')
    world = World(disk=disk)
    assert world.items() == [b"1"] and journals(disk) == ["q", "q.5"]
    assert not world.broker.spool.failed_sync.exists


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
    assert not between.broker.spool.failed_sync.exists
    assert set(JobWorld(disk=between.disk.crash(Crash.DROP)).jobs) == jobs


def test_a_start_without_jobs_writes_the_spools_own_log_anew_though_the_mark_was_cut_off() -> None:
    world = World("workq.port = 0\n")
    worker = Client(world, workq())
    world.clients.append(worker)
    worker.sends(b"add %b q 60000 600000 1\r\nx\r\n" % job_id(1).encode())
    world.disk.fail("sync", "cmdlog", errno.EIO)
    world.turn()
    with pytest.raises(JournalFailure):
        world.sync()
    world.disk.truncate(MARK, 0)
    between = World(disk=world.disk.kill())
    assert not between.broker.spool.failed_sync.exists
    after = World("workq.port = 0\n", between.disk.crash(Crash.DROP))
    assert len(after.broker.workq.jobs.by_id) == 1


def test_what_is_out_of_reach_stays_in_the_mark_and_is_named() -> None:
    disk = marked(new_disk(), b'"s/q"\n{"file":"elsewhere/000000001.log"}\nnull\n')
    world = World(disk=disk)
    assert "spool.in_doubt" in world.events
    assert list(world.broker.spool.failed_sync.read().names) == ["elsewhere/000000001.log"]
    disk = world.disk.kill()
    disk.make_folder("elsewhere")
    file = disk.append("elsewhere/000000001.log")
    file.write(b"wqwq\0\0\0\1")
    file.close()
    assert not World(disk=disk).broker.spool.failed_sync.exists
    assert disk.crash(Crash.DROP).read("elsewhere/000000001.log", 0, 9) == b"wqwq\0\0\0\1"


def test_what_another_process_uses_is_out_of_reach() -> None:
    disk = marked(new_disk(), b'{"file":"elsewhere/000000001.log"}\nnull\n')
    disk.make_folder("elsewhere")
    for name in ("append.lock", "000000001.log"):
        disk.append(f"elsewhere/{name}").close()
    disk.lock("elsewhere/append.lock")
    world = World(disk=disk)
    assert "spool.in_doubt" in world.events and world.broker.spool.failed_sync.exists


def test_a_mark_without_room_takes_the_place_of_the_reserve_and_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FailedSyncMarker, "set_room_aside", lambda self: None)  # as on a file system that cannot
    world = World()
    client = world.client()
    client.puts("1")
    world.sync()
    client.puts("2", "other")
    world.disk.capacity_bytes = world.disk.used_bytes + 7
    world.disk.fail("sync", "s/", errno.ENOSPC)
    with pytest.raises(JournalFailure):
        world.sync()
    mark = world.broker.spool.failed_sync.read()
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


def test_names_in_a_folder_that_the_power_cut_has_taken_are_nothing_to_write_anew() -> None:
    disk = new_disk()
    put_file(disk, "q", addx(b"1"))
    disk.sync_folder("s")
    world = World(disk=marked(disk, b'"s/.staniel/segments/q.3"\n"s/.staniel/segments/q.3.new"\nnull\n'))
    assert world.items() == [b"1"] and not world.broker.spool.failed_sync.exists


@pytest.mark.parametrize("before", ["q", "q.5.pack"])
def test_the_old_name_of_an_archive_does_not_come_back_beside_it(before: str) -> None:
    """A process was killed after a rename that it had not synced, and the first sync of the next start failed."""
    for step in range(100):
        disk = new_disk()
        put_file(disk, before, addx(b"1"))
        disk.make_folder("s/.staniel")
        disk.sync_all("")
        disk.rename(f"s/{before}", "s/q.5")
        disk.fail("sync_folder", "s", errno.EIO)
        with pytest.raises((SpoolError, JournalFailure)):
            World(disk=disk)
        assert disk.size(MARK)
        disk.kill()
        disk.stop_at = len(disk.log) + step
        try:
            World(disk=disk)
        except PowerCut:
            assert World(disk=disk.crash(Crash.DROP)).items() == [b"1"]
            continue
        assert "q.5.pack" not in journals(disk.crash(Crash.DROP))
        return
    raise AssertionError("no start came to its end")


def test_a_sidecar_that_a_killed_process_removed_does_not_come_back() -> None:
    """The first sync of its folder at the next start failed. The sidecar may describe another file of that name."""
    disk = new_disk()
    for name in ("q.5", "q"):
        put_file(disk, name, addx(name.encode()))
    folder = "s/.staniel/segments"
    for made in ("s/.staniel", folder):
        disk.make_folder(made)
    disk.append(f"{folder}/q.5").close()
    disk.sync_all("")
    disk.remove(f"{folder}/q.5")
    disk.fail("sync_folder", folder, errno.EIO)
    with pytest.raises((SpoolError, JournalFailure)):
        World(disk=disk)
    disk.kill()
    assert World(disk=disk).items() == [b"q.5", b"q"]
    assert ("q.5", True) not in disk.crash(Crash.DROP).list(folder)


def pack_is_finished(disk: Disk) -> None:
    finish_pack(disk, "s", "q.3.pack", "q.3", ["q.1", "q.2", "q.3"])


def disk_with_a_pack() -> Disk:
    """All but the last step of a pack is done. Its files still have the items that have left the queue."""
    disk = new_disk()
    for name, items in {"q.1": b"12", "q.2": b"345", "q.3": b"67", "q.3.pack": b"567", "q": b"8"}.items():
        put_file(disk, name, b"".join(addx(b"%c" % item) for item in items))
    return disk


def disk_with_queues() -> Disk:
    """Two queues of several files each, in either format."""
    world = World(TWO_FORMATS, new_disk())
    for queue in ("q", "lib"):
        fill(world, *(f"{number}".ljust(60, ".") for number in range(6)), queue=queue)
    return world.disk


def deleted(queue: str) -> Callable[[Disk], None]:
    def delete(disk: Disk) -> None:
        asks(World(TWO_FORMATS, disk), f"delete {queue}")

    return delete


def disk_with_small_queues() -> Disk:
    """A Kestrel queue of one file, and a libkestrel queue with two children."""
    world = World(TWO_FORMATS, new_disk())
    asks(world, "get lib+a", "get lib+b")
    fill(world, "1", "2")
    fill(world, "1", "2", queue="lib")
    return world.disk


def read_through(disk: Disk) -> None:
    """Segments are removed as they are read."""
    world = World(TWO_FORMATS, disk)
    for _ in range(4):
        asks(world, "get lib")


CHANGES: list[tuple[Callable[[], Disk], Callable[[Disk], None]]] = [
    (disk_with_a_pack, pack_is_finished),
    (disk_with_queues, deleted("q")),
    (disk_with_queues, deleted("lib")),
    (disk_with_queues, read_through),
    (disk_with_small_queues, deleted("q")),
    (disk_with_small_queues, deleted("lib+a")),
]


def renewed_after(make: Callable[[], Disk], change: Callable[[Disk], None]) -> Iterator[World]:
    """Kill the process at each step of `change`. The first sync of the folder at the next start fails, so nothing syncs
    the removals of the killed process any more. Yield the server of the start after that.
    """
    for _, disk in cut_at_each_step(make(), change):
        disk.stop_at = None
        disk.kill()
        disk.fail("sync_folder", "s", errno.EIO)
        with pytest.raises((SpoolError, JournalFailure)):
            World(TWO_FORMATS, disk)
        disk.kill()
        served = World(TWO_FORMATS, disk)
        assert not served.broker.spool.failed_sync.exists
        yield served


def in_all(world: World) -> dict[str, list[bytes]]:
    return {queue.name: world.items(queue.name) for queue in world.broker.queues}


@pytest.mark.parametrize(("make", "change"), CHANGES)
def test_a_file_that_a_killed_process_removed_does_not_come_back(
    make: Callable[[], Disk], change: Callable[[Disk], None]
) -> None:
    doubts = 0
    for served in renewed_after(make, change):
        wanted = in_all(served)
        assert in_all(served.crash(Crash.DROP)) == wanted
        doubts += 1
    assert doubts > 3


@pytest.mark.parametrize(("make", "change"), CHANGES)
def test_nor_does_it_come_back_to_a_queue_that_is_deleted_and_made_again(
    make: Callable[[], Disk], change: Callable[[Disk], None]
) -> None:
    for served in renewed_after(make, change):
        for name in [queue.name for queue in served.broker.queues]:
            assert asks(served, f"delete {name}") == "DELETED"
        assert in_all(served.crash(Crash.DROP)) == {}
        for name in ("q", "lib"):
            fill(served, "new 1", "new 2", queue=name)
        assert in_all(served.crash(Crash.DROP)) == {"q": [b"new 1", b"new 2"], "lib": [b"new 1", b"new 2"]}
