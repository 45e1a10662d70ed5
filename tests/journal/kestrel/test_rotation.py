"""Rotation and starting over: what they need of the group and of the disk, and what a failure leaves."""

from __future__ import annotations

import errno

import pytest

from staniel.journal.group_commit import JournalFailure
from staniel.queues.config import QueueConfig
from staniel.sim.disk.durable import Crash
from tests.support.records import NOW_MS
from tests.support.spool import Service, new_disk, recovered_state


def test_a_journal_past_its_size_is_rotated_by_the_sync_that_was_asked_for() -> None:
    disk = new_disk()
    service = Service(disk, QueueConfig(max_memory_bytes=100))
    service.start()
    service.put(4, size=30)
    service.commit()
    service.spool.group.ask_for_sync(service.log)
    service.commit()
    assert service.log.archives == [f"q.{service.now_ms}"] and service.log.rotations == 1
    assert disk.size("s/q") == 0 and disk.size(f"s/q.{service.now_ms}") == 4 * 51
    service.spool.group.ask_for_sync(service.log)
    service.commit()
    assert service.log.rotations == 1


def test_no_room_for_another_file_is_no_reason_to_stop() -> None:
    disk = new_disk()
    service = Service(disk, QueueConfig(max_memory_bytes=100))
    service.start()
    service.put(4, size=30)
    disk.fail("create", "s/q~~", errno.ENOSPC)
    service.spool.group.ask_for_sync(service.log)
    service.commit()
    assert service.log.rotations == 0
    service.put()
    service.commit()
    assert recovered_state(disk.crash(Crash.DROP)) == service.states[-1]


@pytest.mark.parametrize(("verb", "path"), [("rename", "s/q"), ("sync_folder", "s"), ("sync", "s/q")])
def test_a_broken_disk_in_a_rotation_is_a_failure_like_any_other(verb: str, path: str) -> None:
    service = Service(new_disk(), QueueConfig(max_memory_bytes=100))
    service.start()
    service.put(4, size=30)
    service.commit()
    group = service.spool.group
    group.ask_for_sync(service.log)
    sync = group.start_sync(NOW_MS)
    assert sync is not None
    sync.run()
    service.disk.fail(verb, path, errno.EIO)
    with pytest.raises(JournalFailure):
        group.finish_sync(sync, NOW_MS)


@pytest.mark.parametrize("archives", [0, 2])
def test_a_rewrite_without_room_changes_nothing_and_leaves_no_file(archives: int) -> None:
    disk = new_disk()
    service = Service(disk)
    service.start()
    for _ in range(archives):
        service.put(2)
        service.commit()
        service.rotate()
    service.put(2)
    service.open()
    service.commit()
    disk.fail("write", "~~", errno.ENOSPC, short=7)
    with pytest.raises(OSError):
        service.rewrite()
    assert not [name for name, _ in disk.list("s") if "~~" in name]
    service.put()
    service.confirm()
    service.commit()
    assert recovered_state(disk.crash(Crash.DROP)) == service.states[-1]
    service.rewrite()
    assert recovered_state(disk.crash(Crash.DROP)) == service.states[-1]
    assert len(service.log.archives) == (1 if archives else 0)


def test_numbers_of_sealed_files_rise_even_when_the_clock_goes_back() -> None:
    service = Service(new_disk())
    service.start()
    for back_ms in (0, 5000, 5000):
        service.put()
        service.commit()
        service.now_ms = NOW_MS - back_ms
        service.rotate()
    assert service.log.archives == [f"q.{NOW_MS + each}" for each in range(3)]
    assert recovered_state(service.disk.crash(Crash.DROP)) == service.states[-1]


def test_a_file_sealed_behind_an_absurdly_large_number_is_read_again() -> None:
    service = Service(new_disk())
    service.start()
    service.log.newest_number = 10**19 - 1
    service.put()
    service.commit()
    service.rotate()
    assert service.log.archives == [f"q.{10**19}"]
    assert recovered_state(service.disk.crash(Crash.DROP)) == service.states[-1]


def test_starting_over_leaves_the_counter_alone_and_counts_on() -> None:
    service = Service(new_disk())
    service.start()
    service.put(2)
    service.open()
    service.confirm()
    service.take()
    service.commit()
    service.rewrite()
    assert service.disk.size("s/q") == 10 and service.log.kept_bytes == 10  # the number of the last transaction
    service.put()
    service.open()
    service.commit()
    assert list(recovered_state(service.disk.crash(Crash.DROP))[1]) == [2]


def test_a_journal_that_is_rewritten_while_closed_has_its_name_and_counts_as_open() -> None:
    service = Service(new_disk(), QueueConfig())
    service.start()
    service.put(4)
    service.commit()
    log, group = service.log, service.spool.group
    assert log.try_close(force=True)
    log.rewrite({}, list(service.queue.line.items()), NOW_MS)
    service.put()
    service.commit()
    assert group.fs.unsynced_bytes(log.path) == 0 and group.fs.has_its_name(log.file)
    assert len(group.open_files) == 1
    assert recovered_state(service.disk.crash(Crash.DROP)) == service.states[-1]
