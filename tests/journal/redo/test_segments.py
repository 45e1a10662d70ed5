"""The two segments of the redo log: what fits into one, and what is still needed when it is used again."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from staniel.journal.disk.os_fs import OsFs
from staniel.journal.disk.unsynced_names import NamedFile, UnsyncedNames
from staniel.journal.redo.log import Binding, LogState, RedoLog, SegmentState
from staniel.journal.redo.replay import Legibility, read_log
from staniel.sim.disk.disk import Disk, DiskFile
from staniel.sim.disk.durable import Crash
from staniel.sim.world import World
from tests.journal.redo.test_redo_log import in_use


def put_to_many(world: World, queues: int) -> None:
    """One item each, written and not synced."""
    client = world.client()
    for number in range(queues):
        client.sends(f"set n{number} 0 0 1\r\na\r\n".encode())
        if number % 10 == 9:
            world.turn()


def test_many_files_may_be_new_when_a_segment_is_full_and_the_other_still_needed() -> None:
    world = in_use('server.redo_log = "1MB"\n')
    redo = world.broker.group.redo
    first = redo.active
    while redo.active is first:
        world.client().puts("x" * 60_000)
        world.sync()
    world.turn()
    assert world.start_tasks() and first.state is SegmentState.RETIRING
    for size in (60_000, 10):
        while redo._fits(size + 4096):
            world.client().puts("x" * size)
            world.sync()
    put_to_many(world, 1500)
    assert redo.active is not first
    world.sync()
    assert redo.active is first
    after = world.crash(Crash.DROP)
    assert after.items("n0") == after.items("n1499") == [b"a"]


@pytest.mark.parametrize("size", ["32KB", "40KB", "64KB", "100KB"])
def test_a_small_log_has_room_for_a_full_table_and_the_largest_batch(size: str) -> None:
    world = in_use(f'server.redo_log = "{size}"\n')
    redo = world.broker.group.redo
    put_to_many(world, 900)
    world.sync()
    unknown = [queue for queue in world.broker.queues if f"s/{queue.name}" not in redo.bindings]
    assert unknown  # the table is full
    data = "x" * (redo._piece_bytes - 50)
    for _ in range(12):
        for _ in range(2):
            world.client().puts(data)
        world.sync()
    after = world.crash(Crash.DROP)
    assert len(after.items()) == 26 and after.items("n899") == [b"a"]


def test_a_file_that_came_and_went_while_one_segment_ended_and_the_other_began_does_not_come_back() -> None:
    world = in_use()
    redo, full = world.broker.group.redo, world.broker.group.redo.active
    client = world.client()
    client.puts("x" * 7000)
    world.sync()
    client.puts("x" * 7000)
    client.puts("x" * 2000)
    assert len(redo._sealed) == 1  # the first batch of this sync has its place in the one, the second in the other
    client.puts("old" * 10, "r")
    client.puts("x" * 4000)
    client.says("delete r")
    world.sync()
    assert redo.active is not full and full.last_flush == redo.flushes
    world.turn()
    world.do_tasks()
    client.puts("second")
    world.sync()
    assert full.state is SegmentState.FREE
    client.puts("new", "r")
    assert world.crash(Crash.KEEP).items("r") == [b"new"]


def test_a_file_that_is_cut_while_all_are_being_synced_is_not_taken_for_longer_than_it_is() -> None:
    world = in_use()
    group = world.broker.group
    redo, file = group.redo, group.fs._open["s/q"]
    amid_a_write = file.size + 100  # of which half failed, for want of room
    sizes = [(redo.bindings["s/q"], amid_a_write)]
    redo.free_name("s/q")
    redo.segments[1].state = SegmentState.RETIRING
    redo.retired(redo.segments[1], sizes)
    world.client().puts("third")
    world.sync()
    assert world.crash(Crash.DROP).items() == [b"first", b"second", b"third"]


def test_a_start_has_the_log_in_memory_once(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("redo.0", "redo.1")]
    for path in paths:
        Path(path).write_bytes(bytes(8 << 20))
    tracemalloc.start()
    try:
        assert read_log(OsFs(), paths, bytes(16)).found is Legibility.GONE
        assert tracemalloc.get_traced_memory()[1] < 1.3 * 2 * (8 << 20)
    finally:
        tracemalloc.stop()


def test_a_journal_that_is_opened_again_after_a_while_costs_no_sync_in_the_turn() -> None:
    world = in_use()
    redo, fs = world.broker.group.redo, world.broker.group.fs
    world.broker.group.sync_all(world.now_ms)
    assert world.broker.queues.find("q").journal.try_close(force=True)
    redo.active.state = SegmentState.RETIRING
    redo.retired(redo.active, [])
    assert "s/q" in redo.released
    before = len(world.disk.log)
    fs.append("s/q").close()
    assert not [op for op in world.disk.log[before:] if op.verb.startswith("sync")]
    fs.remove("s/q")
    fs.append("s/q").close()
    assert [op.verb for op in world.disk.log[before:] if op.verb.startswith("sync")]
    assert "s/q" not in redo.released


def test_no_file_is_taken_in_once_the_numbers_have_run_out_and_answers_go_on() -> None:
    world = in_use()
    redo = world.broker.group.redo
    redo._files = 2**32 - 2
    for number in range(3):
        world.client().puts("new", f"n{number}")
        world.sync()
    assert "s/n0" in redo.bindings and "s/n2" not in redo.bindings
    assert world.crash(Crash.DROP).items("n2") == [b"new"]


@pytest.mark.parametrize("of_all", [True, False])
def test_a_sync_amid_a_write_that_is_taken_back_does_not_call_its_bytes_safe(of_all: bool) -> None:
    disk = Disk()
    disk.make_folder("s")
    names = UnsyncedNames(disk)
    file = names.append("s/q")
    assert isinstance(file, NamedFile)
    file.write(b"whole")
    file.sync()
    file.write(b"half")
    sync_file, sync_all = DiskFile.sync, Disk.sync_all

    def and_taken_back() -> None:
        names.truncate("s/q", 5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiskFile, "sync", lambda self: (sync_file(self), and_taken_back()))
        patch.setattr(Disk, "sync_all", lambda self, folder: (sync_all(self, folder), and_taken_back()))
        if of_all:
            names.sync_all_with("s", [file])
        else:
            file.sync()
    file.write(b"other")
    assert (file.size, file.safe_bytes) == (10, 5)


@pytest.mark.pure  # compiled, the dict is one of no other class
def test_a_file_that_is_removed_while_others_are_forgotten_is_still_known() -> None:
    """A background task may remove files at any moment."""
    world = in_use()
    redo = world.broker.group.redo
    for name in ("old", "gone", "late"):
        world.client().puts("x", name)
    world.sync()
    for name in ("old", "gone"):
        redo.removed(f"s/{name}")
    redo.released["s/old"].last_flush = redo.released["s/gone"].last_flush = 0
    newer = redo.bindings["s/late"]

    class Racing(dict[str, Binding]):
        def copy(self) -> dict[str, Binding]:
            copied = dict(self)
            redo.removed("s/late")
            self["s/gone"] = newer
            return copied

        def items(self) -> Any:
            return self.copy().items()

    redo.released = Racing(redo.released)
    redo._forget_released(1)
    assert redo.released == {"s/late": newer, "s/gone": newer}


@pytest.mark.pure
@pytest.mark.parametrize("is_copied", [False, True], ids=["made anew", "popped, whatever stands there"])
def test_files_that_are_forgotten_while_another_is_removed_would_be_found(
    is_copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(self: RedoLog, take: int) -> None:
        if is_copied:
            for path, binding in list(self.released.items()):
                if binding.last_flush < take:
                    self.released.pop(path, None)
        else:
            self.released = {path: each for path, each in self.released.copy().items() if each.last_flush >= take}

    monkeypatch.setattr(RedoLog, "_forget_released", forget)
    with pytest.raises(AssertionError):
        test_a_file_that_is_removed_while_others_are_forgotten_is_still_known()


def test_a_segment_and_the_log_enter_only_states_that_may_follow() -> None:
    redo = in_use().broker.group.redo
    with pytest.raises(AssertionError, match=r"SAFE after .*ACTIVE"):
        redo.active.enter(SegmentState.SAFE)
    with pytest.raises(AssertionError, match=r"BEING_MADE after .*IN_USE"):
        redo.enter(LogState.BEING_MADE)
    assert redo.active.state is SegmentState.ACTIVE and redo.is_in_use
