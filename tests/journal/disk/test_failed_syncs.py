"""A sync fails for any reason, of any file or folder: the process ends, leaves its mark, and nothing it has answered is
lost at the next power cut.
"""

from __future__ import annotations

import errno

import pytest

from staniel.journal.disk.fs import JournalFailure, SyncFailed
from staniel.sim.disk.durable import Crash
from staniel.sim.world import World as WorldWithThreads
from tests.support.world import World

NUMBERS = [errno.ENOSPC, errno.EDQUOT, errno.EIO]


def end_of(world: WorldWithThreads) -> None:
    """The failure has been raised: what the next process and the next power cut make of what is there."""
    assert world.broker.spool.failed_sync.exists
    after = World(world.config, world.disk.kill(), world.now_ms)
    assert not after.broker.spool.failed_sync.exists
    found = {queue.name: after.items(queue.name) for queue in after.broker.queues}
    cut = after.crash(Crash.DROP)
    assert {queue.name: cut.items(queue.name) for queue in cut.broker.queues} == found


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(("verb", "part"), [("sync", "s/q"), ("sync_folder", "s")])
def test_at_a_rotation(verb: str, part: str, number: int) -> None:
    world = World("default.max_memory_size = 100\n")
    client = world.client()
    for each in "01":
        client.puts(each * 60)
        world.sync()
    client.puts("2" * 60)
    sync = world.start_sync()
    assert sync is not None
    sync.run()
    world.disk.fail(verb, part, number)
    with pytest.raises(JournalFailure):
        world.finish_sync(sync)
    end_of(world)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(("verb", "part"), [("sync", "q~~"), ("sync_folder", "s")])
def test_in_a_rewrite(verb: str, part: str, number: int) -> None:
    world = World("default.default_journal_size = 100\n")
    client = world.client()
    client.puts("1" * 60)
    world.sync()
    client.puts("2" * 60)
    world.sync()
    client.says("get q")
    world.disk.fail(verb, part, number)
    with pytest.raises(JournalFailure):
        client.says("get q")
    end_of(world)


@pytest.mark.parametrize("number", NUMBERS)
def test_of_the_intents(number: int) -> None:
    config = "queues.q.expire_to_queue = 'other'\nqueues.q.max_age = '20ms'\n"
    world = World(f"default.sync_journal = 'os'\nserver.expiration_timer_frequency = '1ms'\n{config}")
    world.client().puts("1")
    world.turn()
    world.disk.fail("sync", "intents", number)
    world.now_ms += 30
    with pytest.raises(JournalFailure):
        world.turn(30)
    end_of(world)
    assert world.disk.size("s/.staniel/intents") >= 0


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(("verb", "part"), [("sync", "segments"), ("sync_folder", "segments")])
def test_of_a_sidecar(verb: str, part: str, number: int) -> None:
    world = WorldWithThreads("default.max_memory_size = 100\n")
    client = world.client()
    for _ in range(3):
        client.puts("1" * 60)
        world.sync()
    world.disk.fail(verb, part, number)
    with pytest.raises(JournalFailure):
        world.do_tasks()
    end_of(world)


@pytest.mark.parametrize("number", NUMBERS)
def test_of_the_folder_where_segments_retire(number: int) -> None:
    world = WorldWithThreads('default.journal_format = "libkestrel"\ndefault.default_journal_size = 100\n')
    client = world.client()
    for _ in range(4):
        client.puts("1" * 60)
        world.sync()
    for _ in range(3):
        client.says("get q")
        world.sync()
    assert world.broker.maintenance.tasks._waiting
    world.disk.fail("sync_folder", "s", number)
    with pytest.raises(JournalFailure):
        world.do_tasks()
    end_of(world)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("verb", ["sync", "sync_folder"])
def test_where_a_new_queue_is_made(verb: str, number: int) -> None:
    world = World('default.journal_format = "libkestrel"\n')
    client = world.client()
    client.puts("1", "f")
    world.sync()
    world.disk.fail(verb, "s", number)
    with pytest.raises(JournalFailure):
        client.puts("1", "f+x")
    end_of(world)


@pytest.mark.parametrize("number", NUMBERS)
def test_of_the_files_that_remember_pauses_and_the_status(number: int) -> None:
    for line, name in (("pause q all", "paused"), ("status readonly", "status")):
        world = World()
        client = world.client()
        client.puts("1")
        world.sync()
        world.disk.fail("sync", name, number)
        with pytest.raises(JournalFailure):
            client.says(line)
        end_of(world)


def test_nothing_is_synced_any_more_once_a_sync_has_failed_in_a_thread() -> None:
    world = WorldWithThreads('default.journal_format = "libkestrel"\ndefault.default_journal_size = 100\n')
    client = world.client()
    for _ in range(4):
        client.puts("1" * 60)
        world.sync()
    client.says("get q").says("get q")
    world.sync()
    client.hears()
    tasks = world.start_tasks()
    client.puts("2", "new")  # its name is in the folder's next sync
    world.disk.fail("sync_folder", "s", errno.EIO)
    with pytest.raises(JournalFailure):
        world.run_task(tasks[0])
    with pytest.raises(JournalFailure):
        world.sync()
    assert client.hears() == ""


def test_a_journal_that_is_left_without_its_name_ends_the_process() -> None:
    world = World("default.max_memory_size = 100\n")
    client = world.client()
    for each in "01":
        client.puts(each * 60)
        world.sync()
    client.puts("2" * 60)
    sync = world.start_sync()
    assert sync is not None
    sync.run()
    world.disk.fail("rename", "s/q", errno.ENOSPC, after=1, times=2)  # the new file's, and the old one's way back
    with pytest.raises(JournalFailure, match=r"cannot rename .* back to s/q"):
        world.finish_sync(sync)
    assert World(world.config, world.disk.kill(), world.now_ms).items() == [b"0" * 60, b"1" * 60, b"2" * 60]


def test_half_a_write_that_cannot_be_taken_back_ends_the_process() -> None:
    world = World()
    client = world.client()
    client.puts("1")
    world.sync()
    world.disk.fail("write", "s/q", errno.ENOSPC, short=5)
    world.disk.fail("truncate", "s/q", errno.ENOSPC)
    with pytest.raises(JournalFailure):
        client.puts("2")
    assert World(world.config, world.disk.kill(), world.now_ms).items() == [b"1"]


@pytest.mark.parametrize("journal", ["kestrel", "libkestrel"])
@pytest.mark.parametrize("before", ["os", "1h"])
def test_a_put_after_a_reload_in_its_tick_waits_for_a_sync(journal: str, before: str) -> None:
    config = f'default.journal_format = "{journal}"\n'
    world = World(f'{config}default.sync_journal = "{before}"\n')
    client = world.client()
    client.puts("1")
    world.sync()
    world.config = config
    client.says("set q 0 0 1", "2", "reload", "set q 0 0 1", "3")
    heard = client.hears()
    assert heard.count("STORED") <= 2  # the one before
    assert world.sync() and client.hears().endswith("STORED")
    assert world.crash(Crash.DROP).items() == [b"1", b"2", b"3"]


def test_checksums_of_a_file_that_has_become_shorter_come_to_an_end() -> None:
    world = WorldWithThreads("default.max_memory_size = 100\n")
    client = world.client()
    for _ in range(3):
        client.puts("1" * 60)
        world.sync()
    sealed = next(name for name, _ in world.disk.list("s") if name.startswith("q.1"))
    assert world.disk.tear(f"s/{sealed}", 1 << 20)
    for _ in range(50):
        for task in world.start_tasks():
            world.finish_task(task)
    assert not world.start_tasks() and "journal.sidecar_failed" in world.events


def test_a_failure_that_another_thread_met_is_raised_with_its_cause() -> None:
    world = World()
    client = world.client()
    client.puts("1")
    world.sync()
    names = world.broker.fs
    with pytest.raises(JournalFailure):
        names.fail(SyncFailed(errno.EIO, "Input/output error", "s/q"))  # as the background thread does
    for work in (names.raise_failure, lambda: names.guard(lambda: None), names.append("s/q").sync):
        with pytest.raises(JournalFailure, match="sync failed") as raised:
            work()
        assert isinstance(raised.value.__cause__, SyncFailed) and raised.value.__cause__.errno == errno.EIO
