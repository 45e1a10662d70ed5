"""The commit group: which batch waits for which sync, what a full disk and a broken one do to it."""

from __future__ import annotations

import errno

import pytest

from staniel.journal.disk.ballast import BALLAST_BYTES_MAX, Ballast, Space
from staniel.journal.group_commit import DEFERRED_MS, NEVER_MS, PATIENCE_MS, GroupCommit, JournalFailure
from staniel.journal.kestrel.log import Log
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from tests.journal.batches import SMALL_BYTES, group_on, log_of, put, syncs
from tests.support.records import NOW_MS, addx
from tests.support.spool import Service, commit, new_disk, put_file, recovered_state


def test_a_batch_is_durable_only_after_its_sync_and_not_after_its_write() -> None:
    group = group_on(new_disk())
    log = log_of(group)
    put(log)
    assert log.batch == group.gathering == 1
    group.write(NOW_MS)
    sync = group.start_sync(NOW_MS)
    assert sync is not None and group.durable == 0
    sync.run()
    assert group.durable == 0
    group.finish_sync(sync, NOW_MS)
    assert group.durable == 1


def test_what_is_recorded_while_a_sync_runs_waits_for_the_next_one() -> None:
    disk = new_disk()
    group = group_on(disk)
    log = log_of(group)
    put(log)
    group.write(NOW_MS)
    first = group.start_sync(NOW_MS)
    put(log)
    group.write(NOW_MS)
    assert log.batch == 2 and group.start_sync(NOW_MS) is None
    assert first is not None
    first.run()
    group.finish_sync(first, NOW_MS)
    assert group.durable == 1
    commit(group)
    assert group.durable == 2 and group.start_sync(NOW_MS) is None


def test_one_sync_serves_every_batch_gathered_meanwhile_and_each_file_once() -> None:
    disk = new_disk()
    group = group_on(disk)
    logs = [log_of(group, name) for name in "ab"]
    put(logs[0])
    group.write(NOW_MS)
    running = group.start_sync(NOW_MS)
    for _ in range(3):
        for log in logs:
            put(log)
        group.write(NOW_MS)
    assert running is not None
    running.run()
    group.finish_sync(running, NOW_MS)
    before = len(syncs(disk))
    commit(group)
    assert sorted(syncs(disk)[before:]) == ["s/a", "s/b"]
    assert group.durable == 4


def test_many_changes_of_a_batch_are_one_write() -> None:
    disk = new_disk()
    group = group_on(disk)
    log = log_of(group)
    for _ in range(50):
        put(log)
    commit(group)
    assert [op.size for op in disk.log if op.verb == "write" and op.path == "s/q"] == [50 * len(addx(b"x"))]
    assert group.pending_bytes == 0


def test_a_journal_that_is_synced_now_and_then_makes_nobody_wait() -> None:
    disk = new_disk()
    group = group_on(disk)
    log = log_of(group, sync_ms=50)
    put(log)
    group.write(NOW_MS)
    assert log.batch == 0 and group.next_due_ms() == NOW_MS + 50
    assert group.start_sync(NOW_MS + 49) is None
    put(log)
    group.write(NOW_MS + 49)
    assert group.next_due_ms() == NOW_MS + 50
    sync = group.start_sync(NOW_MS + 50)
    assert sync is not None and sync.files == (log.file,)
    assert group.next_due_ms() == NEVER_MS
    put(log)
    group.write(NOW_MS + 51)
    assert group.next_due_ms() == NEVER_MS  # its end wakes the server: nothing is to be asked for meanwhile
    sync.run()
    group.finish_sync(sync, NOW_MS + 52)
    assert group.next_due_ms() == NOW_MS + 101


def test_a_journal_left_to_the_system_is_synced_only_when_everything_settles() -> None:
    disk = new_disk()
    group = group_on(disk)
    log = log_of(group, sync_ms=-1)
    put(log)
    group.write(NOW_MS)
    assert log.batch == 0 and group.next_due_ms() == NEVER_MS
    assert group.start_sync(NOW_MS + 10**9) is None and syncs(disk) == []
    group.sync_all(NOW_MS + 1)
    assert syncs(disk) == ["s/q"]


def test_a_new_name_in_the_folder_is_synced_as_its_queue_promises() -> None:
    disk = new_disk()
    group = group_on(disk)
    assert group.change_folder(0, NOW_MS) == 1
    group.write(NOW_MS)
    sync = group.start_sync(NOW_MS)
    assert sync is not None and sync.folder == "s" and sync.batch == 1
    sync.run()
    group.finish_sync(sync, NOW_MS)
    assert group.change_folder(50, NOW_MS) == 0 and group.next_due_ms() == NOW_MS + 50
    later = group.start_sync(NOW_MS + 50)
    assert later is not None and later.folder == "s"


def test_a_member_that_goes_away_takes_its_pending_changes_along() -> None:
    disk = new_disk()
    group = group_on(disk)
    log, other = log_of(group), log_of(group, "other")
    put(log)
    put(other)
    assert log.file.size == 0
    log.erase(0)
    commit(group)
    assert [name for name, regular in disk.list("s") if regular] == ["other"]


def fill(disk: Disk, leave_bytes: int) -> None:
    put_file(disk, "filler.x", bytes(disk.free_bytes("s")[0] - leave_bytes))


def test_a_full_disk_costs_the_ballast_and_not_the_batch() -> None:
    disk = new_disk(SMALL_BYTES)
    service = Service(disk)
    service.start()
    group = service.spool.group
    assert group.restore_ballast() and group.budget_bytes == SMALL_BYTES // 8 // 2
    service.put(3, size=200)
    fill(disk, 250)
    service.commit()
    assert group.ballast.space is Space.FULL and not group.admits(1)
    assert disk.size("s/q") == 3 * (200 + 21)
    assert recovered_state(disk.crash(Crash.DROP)) == service.states[-1]
    service.take()
    service.commit()
    assert recovered_state(disk.crash(Crash.DROP)) == service.states[-1]
    assert not group.restore_ballast() and not group.admits(1)
    disk.remove("s/filler.x")
    assert group.restore_ballast() and group.admits(1)


def test_the_disk_can_be_full_at_any_byte_of_a_batch() -> None:
    for leave_bytes in range(700):
        disk = new_disk(SMALL_BYTES)
        service = Service(disk)
        service.start()
        assert service.spool.group.restore_ballast()
        service.put(3, size=200, flags=1)
        fill(disk, leave_bytes)
        service.commit()
        assert recovered_state(disk.crash(Crash.DROP)) == service.states[-1]


def test_a_disk_full_without_ballast_ends_service() -> None:
    disk = new_disk(SMALL_BYTES)
    group = group_on(disk)
    group.ballast.release()
    log = log_of(group)
    put(log, bytes(300))
    fill(disk, 100)
    with pytest.raises(JournalFailure):
        group.write(NOW_MS)


def test_admission_counts_what_is_pending_and_lets_a_long_item_in_beside_the_ballast() -> None:
    group = group_on(new_disk(SMALL_BYTES))
    budget_bytes = group.budget_bytes
    assert group.admits(budget_bytes)
    put(log_of(group), bytes(100))
    assert group.pending_bytes == 121
    assert group.admits(budget_bytes - 121)
    assert group.admits(SMALL_BYTES // 2)
    assert not group.admits(SMALL_BYTES - 2 * 8192 + 1)


def test_the_ballast_is_an_eighth_of_a_small_disk_and_at_most_16_mib() -> None:
    assert Ballast(new_disk(SMALL_BYTES), "s", "s/b").bytes == SMALL_BYTES // 8
    assert Ballast(new_disk(1 << 40), "s", "s/b").bytes == BALLAST_BYTES_MAX


def test_the_ballast_does_not_stand_where_there_is_no_room_for_two() -> None:
    disk = new_disk(SMALL_BYTES)
    ballast = Ballast(disk, "s", "s/b")
    fill(disk, 2 * ballast.bytes - 1)
    assert not ballast.create() and ballast.budget_bytes == -1
    disk.remove("s/filler.x")
    assert ballast.create() and ballast.create()
    ballast.release()
    ballast.release()
    assert disk.used_bytes == 0


@pytest.mark.parametrize("short", [0, 5])
def test_a_broken_write_is_a_failure_and_nothing_becomes_durable(short: int) -> None:
    disk = new_disk()
    group = group_on(disk)
    log = log_of(group)
    disk.fail("write", "s/q", errno.EIO, short=short)
    put(log)
    with pytest.raises(JournalFailure, match="s/q"):
        group.write(NOW_MS)
    assert group.durable == 0


@pytest.mark.parametrize(("verb", "path"), [("sync", "s/q"), ("sync_folder", "s")])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_a_failure_and_is_never_tried_again(verb: str, path: str, number: int) -> None:
    disk = new_disk()
    group = group_on(disk)
    log = log_of(group)
    group.change_folder(0, NOW_MS)
    put(log)
    group.write(NOW_MS)
    sync = group.start_sync(NOW_MS)
    disk.fail(verb, path, number)
    assert sync is not None
    before = [op for op in disk.log if op.verb == verb]
    with pytest.raises(JournalFailure):
        sync.run()
    put(log)
    group.write(NOW_MS)
    assert group.start_sync(NOW_MS + 10**6) is None
    assert group.durable == 0 and [op for op in disk.log if op.verb == verb] == before


def test_a_sync_that_was_cut_short_is_done_by_the_next_one_and_nothing_is_durable_before() -> None:
    disk = new_disk()
    group = group_on(disk)
    logs = [log_of(group, name) for name in "abc"]
    for log in logs:
        put(log)
    group.change_folder(0, NOW_MS)
    group.write(NOW_MS)
    group.ask_for_sync(logs[2])
    running = group.start_sync(NOW_MS)
    assert running is not None and running.folder
    before = len(disk.log)
    group.cut_short()
    running.run()
    assert len(disk.log) == before
    put(logs[0])
    group.finish_sync(running, NOW_MS)
    assert group.durable == 0 and not group.is_syncing
    group.write(NOW_MS)
    following = group.start_sync(NOW_MS)
    assert following is not None and following.folder and following.asked == (logs[2],)
    following.run()
    group.finish_sync(following, NOW_MS)
    assert group.durable == 2 and sorted(syncs(disk)) == ["s/a", "s/b", "s/c"]
    assert group.start_sync(NOW_MS) is None


def test_a_sync_that_something_waits_for_is_not_cut_short() -> None:
    disk = new_disk()
    group = group_on(disk)
    log = log_of(group)
    put(log)
    group.write(NOW_MS)
    ends: list[int] = []
    group.call_when_durable(log, ends.append)
    running = group.start_sync(NOW_MS)
    assert running is not None
    group.cut_short()
    running.run()
    group.finish_sync(running, NOW_MS)
    assert ends == [NOW_MS] and group.durable == 1


def test_a_file_that_is_removed_during_a_sync_that_is_cut_short_is_closed_and_not_synced() -> None:
    disk = new_disk()
    group = group_on(disk)
    logs = [log_of(group, name) for name in "ab"]
    for log in logs:
        put(log)
    group.write(NOW_MS)
    running = group.start_sync(NOW_MS)
    assert running is not None
    group.cut_short()
    logs[0].erase(0)
    running.run()
    group.finish_sync(running, NOW_MS)
    commit(group)
    assert [path for path in syncs(disk) if "/segments/" not in path] == ["s/b"]


def deferring(group: GroupCommit, log: Log) -> None:
    """Record something as an operation does beside clients, and write it."""
    group.defers = {log: None}
    put(log)
    group.defers = {}
    group.write(NOW_MS)


def test_no_client_waits_for_what_an_operation_records_before_a_reply_rests_on_it() -> None:
    disk = new_disk()
    group = group_on(disk)
    log, others = log_of(group, "a"), log_of(group, "b")
    deferring(group, log)
    put(others)
    commit(group)
    assert group.durable == 1 and syncs(disk) == ["s/b"]
    assert log.reply_batch() == group.gathering == 2
    commit(group)
    assert group.durable == 2 and syncs(disk) == ["s/b", "s/a"]
    assert log.reply_batch() == 2 and group.start_sync(NOW_MS) is None


def test_a_reply_about_what_is_being_synced_for_an_operation_waits_for_the_next_sync() -> None:
    group = group_on(new_disk())
    log = log_of(group)
    deferring(group, log)
    group.call_when_durable(log, lambda now_ms: None)
    running = group.start_sync(NOW_MS)
    assert running is not None and log.reply_batch() == 1 > group.durable
    group.write(NOW_MS)
    running.run()
    group.finish_sync(running, NOW_MS)
    assert group.durable == 0
    commit(group)
    assert group.durable == 1


def test_a_client_of_the_same_queue_waits_for_all_that_is_recorded() -> None:
    disk = new_disk()
    group = group_on(disk)
    log = log_of(group)
    deferring(group, log)
    put(log)
    assert log.batch == 1
    commit(group)
    assert group.durable == 1 and syncs(disk) == ["s/q"]


def test_what_nobody_asks_for_is_synced_soon_all_the_same() -> None:
    disk = new_disk()
    group = group_on(disk)
    deferring(group, log_of(group))
    assert group.next_due_ms() == NOW_MS + DEFERRED_MS and group.start_sync(NOW_MS + DEFERRED_MS - 1) is None
    commit(group, NOW_MS + DEFERRED_MS)
    assert syncs(disk) == ["s/q"]


def test_syncs_for_those_who_ask_patiently_leave_others_some_time_in_between() -> None:
    group = group_on(new_disk())
    log = log_of(group)
    called: list[int] = []
    group.call_when_durable(log, called.append, patiently=True)
    commit(group)
    assert called == [NOW_MS]
    group.call_when_durable(log, called.append, patiently=True)
    assert group.next_due_ms() == NOW_MS + PATIENCE_MS and group.start_sync(NOW_MS + PATIENCE_MS - 1) is None
    commit(group, NOW_MS + PATIENCE_MS)
    assert called == [NOW_MS, NOW_MS + PATIENCE_MS]
    group.call_when_durable(log, called.append, patiently=True)
    group.include_patient()
    commit(group, NOW_MS + PATIENCE_MS)
    assert len(called) == 3
