"""A start with sidecars finds what a start without them finds: whichever of them are there, whatever has happened."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staniel.journal.disk.os_fs import OsFs
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel import sidecar
from staniel.journal.kestrel.recovery import Recovered
from staniel.journal.spool import Spool
from staniel.queues.config import QueueConfig
from staniel.queues.item import Item
from staniel.queues.journal_view import JournalView
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from tests.journal.kestrel.test_derived_effect import DIALECTS, MORE, STEPS, History, Steps
from tests.support.slices import result_of
from tests.support.spool import content_of, crashes, put_file

SIDECARS = "s/.staniel/segments"
NO_LIMIT = QueueConfig()
Contents = tuple[list[tuple[bytes, int, int, int]], dict[int, tuple[bytes, int, int, int]], int]


def sidecars_on(disk: Disk) -> list[str]:
    try:
        return [name for name, _ in disk.list(SIDECARS)]
    except FileNotFoundError:
        return []


def without_sidecars(disk: Disk, keep: frozenset[int] = frozenset()) -> Disk:
    """A copy of `disk` that has lost its sidecars, but those with these numbers in the list of them."""
    left = disk.copy()
    for number, name in enumerate(sidecars_on(left)):
        if number not in keep:
            left.remove(f"{SIDECARS}/{name}")
    return left


def recovered_on(disk: Disk, memory_bytes: int = 1 << 20) -> Recovered:
    spool = Spool(disk, "s")
    return spool.recover("q", spool.listing().kestrel["q"], QueueConfig(max_memory_bytes=memory_bytes), 0)[0]


def content(item: Item) -> tuple[bytes, int, int, int]:
    return item.data, item.added_ms, item.expires_ms, item.flags


def contents(recovered: Recovered) -> Contents:
    replay = recovered.replay
    line = [content(item) for item in replay.line.items()]
    return line, {xid: content(taken.item) for xid, taken in replay.open.items()}, replay.counter


def is_consistent(recovered: Recovered) -> bool:
    line = recovered.replay.line
    items = line.items()
    assert line.bytes == sum(len(item.data) for item in items)
    assert line.expiring == sum(item.expires_ms != 0 for item in items)
    assert len(line) == len(items)
    taken = [*recovered.replay.open.values(), *line.returned]
    assert len({each.seq for each in taken}) == len(taken)
    assert all(0 <= each.seq < line.left for each in taken)
    assert recovered.tail.fetch(each.seq for each in taken) == {each.seq: each.item for each in taken}
    return True


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, dialect=DIALECTS, more=MORE, keep=st.frozensets(st.integers(0, 9)), memory=st.integers(0, 3000))
def test_any_of_the_sidecars_lead_to_the_state_that_all_files_lead_to(
    steps: Steps, dialect: str, more: str, keep: frozenset[int], memory: int
) -> None:
    history = History(dialect, more)
    history.run(steps)
    disk = history.world.disk
    cold = recovered_on(without_sidecars(disk), memory)
    assert not cold.skipped_bytes
    sealed_bytes = history.log.segments.sealed_bytes
    for left, skipped in (disk.copy(), sealed_bytes), (without_sidecars(disk, keep), None):
        fast = recovered_on(left, memory)
        assert not fast.rejected_sidecars and skipped in (None, fast.skipped_bytes)
        assert contents(fast) == contents(cold)
        assert is_consistent(fast)
        line, other = fast.replay.line, cold.replay.line
        assert (line.bytes, line.expiring, line.end) == (other.bytes, other.expiring, other.end)
        assert [segment.checkpoint and segment.checkpoint.length for segment in fast.segments.sealed] == [
            segment.checkpoint and segment.checkpoint.length for segment in cold.segments.sealed
        ]


@settings(max_examples=100, deadline=None)
@given(steps=STEPS, more=MORE)
def test_ids_and_deliveries_survive_a_start(steps: Steps, more: str) -> None:
    history = History("documents", more)
    history.run(steps)
    history.seal()
    line = history.queue.line
    fast = recovered_on(history.world.disk.copy())
    under_way = JournalView(history.queue).under_way
    assert {xid: (taken.id, taken.deliveries) for xid, taken in fast.replay.open.items()} == {
        xid: (taken.id, taken.deliveries) for xid, taken in under_way.items()
    }
    assert fast.replay.line.last_id == line.last_id
    heads = [(taken.id, taken.deliveries, taken.item.data) for taken in line.returned]
    assert [(taken.id, taken.deliveries, taken.item.data) for taken in fast.replay.line.returned][: len(heads)] == heads


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, more=MORE, seed=st.integers(0, 1 << 30))
def test_a_queue_goes_on_after_a_fast_start_as_after_any_other(steps: Steps, more: str, seed: int) -> None:
    history = History("documents", more)
    history.run(steps)
    chance = random.Random(seed)
    for _ in range(3):
        history.world = history.world.crash(chance.randrange if chance.random() < 0.5 else Crash.KEEP)
        history.adopt()
        history.run(steps[: chance.randrange(20)])
        disk = history.world.disk
        assert contents(recovered_on(disk.copy())) == contents(recovered_on(without_sidecars(disk)))


def three_files() -> Disk:
    history = History("documents", "")
    history.run([("burst", 9), ("open", 2), ("abort", 0), ("seal",), ("burst", 3), ("seal",), ("burst", 2)])
    assert len(sidecars_on(history.world.disk)) == 2
    return history.world.disk


@pytest.mark.parametrize("harm", ["cut short", "a flipped bit", "empty", "another version", "rubbish"])
def test_a_sidecar_that_cannot_be_read_is_as_if_it_were_not_there(harm: str) -> None:
    disk = three_files()
    expected = contents(recovered_on(without_sidecars(disk)))
    for name in sidecars_on(disk):
        data = content_of(disk, f"{SIDECARS}/{name}")
        for at in range(0, len(data), 7):
            flipped = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
            harmed = {
                "cut short": data[:at],
                "a flipped bit": flipped,
                "empty": b"",
                "another version": data.replace(b"segment 1", b"segment 2"),
                "rubbish": b"staniel-segment 1\n" + flipped,
            }[harm]
            left = disk.copy()
            replace_file(left, f"{SIDECARS}/{name}", harmed)
            assert contents(recovered_on(left)) == expected


def test_a_sidecar_of_another_file_of_the_same_size_is_not_believed() -> None:
    disk = three_files()
    name = sidecars_on(disk)[0]
    data = content_of(disk, f"s/{name}").replace(b"1.x", b"9.x")
    disk.remove(f"s/{name}")
    put_file(disk, name, data)
    recovered = recovered_on(disk.copy())
    assert [
        (rejected.file, rejected.is_serious) for rejected in recovered.rejected_sidecars if rejected.is_serious
    ] == [(name, True)]
    assert contents(recovered) == contents(recovered_on(without_sidecars(disk)))


def test_sidecars_of_files_that_are_gone_go_too() -> None:
    disk = three_files()
    replace_file(disk, f"{SIDECARS}/q.5", b"")
    replace_file(disk, f"{SIDECARS}/q.6.new", b"")
    spool = Spool(disk.copy(), "s")
    files = spool.listing().kestrel
    spool.prune(files)
    assert sorted(name for name, _ in spool.fs.list(SIDECARS)) == sorted([*files["q"].archives, "q.5"])
    recovered, _ = spool.recover("q", files["q"], QueueConfig(), 0)
    assert [(missing.file, missing.items) for missing in recovered.missing_items] == [("q.5", -1)]
    assert sorted(name for name, _ in spool.fs.list(SIDECARS)) == sorted(files["q"].archives)


def test_a_queue_that_is_deleted_takes_its_sidecars_along() -> None:
    history = History("documents", "")
    history.run([("burst", 9), ("seal",)])
    assert sidecars_on(history.world.disk)
    history.world.broker.deletions.delete(history.queue, history.world.now_ms)
    assert sidecars_on(history.world.disk) == []


def test_a_queue_that_is_set_aside_loses_its_sidecars(tmp_path: Path) -> None:
    folder = str(tmp_path)
    fs = OsFs()
    spool = Spool(fs, folder)
    fs.make_folder(kestrel_files.sidecar_folder(folder))
    for path in f"{folder}/q.5", kestrel_files.sidecar_path(folder, "q.5"):
        replace_file(fs, path, b"")
    spool.set_aside(spool.listing().kestrel["q"], 0)
    assert fs.list(kestrel_files.sidecar_folder(folder)) == []
    fs.close()


def test_what_a_sidecar_says_can_be_written_and_read() -> None:
    history = History("documents", "")
    history.run([("burst", 9), ("open", 2), ("seal",)])
    (segment,) = history.log.segments.sealed
    data = result_of(sidecar.describe(segment, [1]))
    assert data is not None
    described = sidecar.decode_sidecar(data)
    assert described is not None and described.size == segment.size and described.effect.added == 10
    assert len(described.opens) == 2


def test_a_start_without_sidecars_makes_them_in_the_background() -> None:
    disk = three_files()
    world = History("documents", "", without_sidecars(disk)).world
    world.turn()
    assert sidecars_on(world.disk) == sidecars_on(disk)
    assert recovered_on(world.disk.copy()).skipped_bytes


@pytest.mark.parametrize("how", crashes(3))
def test_ids_that_no_clock_has_made_need_no_sidecar(how: Crash) -> None:
    history = History("documents", "")
    history.queue.add(Item(b"x", 2**62), history.world.now_ms)
    history.run([("take", 2), ("seal",)])
    left = history.world.disk.crash(how)
    assert sidecars_on(left) == []
    assert contents(recovered_on(left)) == ([], {}, 0)
