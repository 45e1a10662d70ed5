"""Journals shrink behind their readers, in the background, and whatever happens meanwhile."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

from staniel.broker.maintenance import scheduler
from staniel.broker.maintenance.retries import RETRY_MAX_MS
from staniel.journal.group_commit import JournalFailure
from staniel.journal.kestrel import encoder as kestrel
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel import pack
from staniel.journal.kestrel.install import InstallPack
from staniel.journal.kestrel.pack import Stage
from staniel.queues.item import Item
from staniel.sim.disk.disk import PowerCut
from staniel.sim.disk.durable import Crash
from staniel.sim.world import World as SlowWorld
from tests.broker.maintenance.test_read_behind import SMALL, filled, got, log_of, queue_of
from tests.support.world import World

IMPATIENT = "default.min_journal_compact_delay = 0\n"
PATIENT = SMALL + IMPATIENT


def journal_bytes(world: SlowWorld, name: str = "q") -> int:
    log = queue_of(world, name).journal
    return log.archived_bytes + log.current_bytes  # type: ignore[attr-defined, no-any-return]


def installing(world: SlowWorld) -> list[Any]:
    """The tasks that are handed out, once the installation of a pack is among them."""
    tasks = world.start_tasks()
    while not any(isinstance(task, InstallPack) for task in tasks):
        for task in tasks:
            world.finish_task(task)
        world.turn()
        world.sync()
        tasks = world.start_tasks()
    return tasks


def half_read(config: str = SMALL) -> SlowWorld:
    """A long queue of which the most has been read, with no task done yet: packing has just become worth it."""
    world = SlowWorld(config)
    client = world.client()
    for number in range(150):
        client.puts(f"{number:04}".ljust(60, "."))
        world.sync()
    client.says("get q/open", "get q/open")
    packs = world.broker.maintenance.packs
    for _ in range(130):
        client.says("get q/open", "get q/close")
        if packs._wanted:
            return world
        world.sync()
    raise AssertionError("nothing was ever packed")


def do_everything(world: SlowWorld) -> None:
    do_some(world, 500)


def do_some(world: SlowWorld, turns: int = 20) -> None:
    for _ in range(turns):
        world.do_tasks()
        world.turn()
        world.sync()


def test_files_shrink_behind_the_reader_while_much_is_still_unread() -> None:
    world = filled(SMALL, 300, size=60)
    before = journal_bytes(world)
    assert got(world, 200) == list(range(200))
    assert journal_bytes(world) < 0.75 * before and log_of(world).rewrites > 0
    assert got(world.crash(Crash.DROP), 300) == list(range(200, 300))


def test_items_that_are_about_to_leave_are_not_copied_into_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    write_items = pack.Pack._write_items
    monkeypatch.setattr(pack.Pack, "_write_items", lambda each, items: (copied.extend(items), write_items(each, items)))
    world = filled(SMALL, 300, size=60)
    assert got(world, 200) == list(range(200))
    assert log_of(world).rewrites > 1 and len(copied) <= 20


def test_a_queue_that_fits_in_memory_again_is_rewritten_without_its_past() -> None:
    world = filled(PATIENT, 300, size=60)
    assert got(world, 298) == list(range(298))
    world.turn(10)
    assert journal_bytes(world) < 1000
    assert got(world.crash(Crash.DROP), 9) == [298, 299]


def test_an_empty_queue_leaves_next_to_nothing() -> None:
    world = filled(SMALL, 300, size=60)
    got(world, 301)
    world.turn(10)
    assert journal_bytes(world) < 300 and len(log_of(world).archives) <= 1


def test_a_queue_that_is_empty_before_its_summary_is_done_starts_over_all_the_same() -> None:
    world = half_read()
    while len(queue_of(world).line):
        world.client().says("get q")
    assert world.broker.maintenance.packs.has(log_of(world))
    do_everything(world)  # and nobody asks for anything any more
    assert journal_bytes(world) < 300


@pytest.mark.parametrize("item_bytes", [10, 60, 300])
def test_a_queue_that_nobody_uses_comes_to_rest_however_small_its_limits_are(item_bytes: int) -> None:
    config = "default.max_memory_size = 200\ndefault.default_journal_size = 1\ndefault.max_journal_size = 1\n"
    world = SlowWorld(config + IMPATIENT)
    client = world.client()
    for number in range(60):
        client.puts(f"{number:04}".ljust(item_bytes, "."))
        world.sync()
    client.says("get q/open", "get q/open")
    for _ in range(40):
        world.client().says("get q")
        world.sync()
    do_everything(world)
    rewrites = log_of(world).rewrites
    do_everything(world)
    assert log_of(world).rewrites == rewrites > 0


def test_large_open_reads_are_not_summarised_again_and_again() -> None:
    world = SlowWorld(SMALL)
    client = world.client()
    for number in range(20):
        client.puts(f"{number:04}".ljust(300, "."))
        world.client().says("get q/open")
        world.sync()
    for _ in range(100):
        client.puts("x").says("get q")
        do_some(world)
    assert log_of(world).rewrites <= 6
    assert journal_bytes(world) < 3 * 20 * 300


def items_after(world: SlowWorld, how: Crash) -> list[bytes]:
    return World(world.config, world.disk.crash(how), world.now_ms + 1000).items()


def test_the_power_may_fail_before_any_step_of_a_pack() -> None:
    whole = half_read()
    begun = len(whole.disk.log)
    unsynced = items_after(whole, Crash.DROP)  # the last close is not on the disk yet
    do_everything(whole)
    assert log_of(whole).rewrites == 1
    steps = len(whole.disk.log) - begun
    wanted = items_after(whole, Crash.DROP)
    assert steps > 10 and len(wanted) > 20 and wanted
    for step in range(steps):
        world = half_read()
        world.disk.stop_at = begun + step
        with pytest.raises(PowerCut):
            do_everything(world)
        for how in [*Crash, *(random.Random(seed).randrange for seed in range(3))]:
            found = World(world.config, world.disk.crash(how), world.now_ms + 1000).items()
            assert found in (unsynced, wanted), (step, how)


def summary_of(world: SlowWorld) -> bytes:
    log = log_of(world)
    while not log.rewrites:
        world.do_tasks()
        world.turn()
        world.sync()
    path = f"{log.folder}/{log.archives[0]}"
    return world.disk.read(path, 0, world.disk.size(path))


@pytest.mark.parametrize("slice_cost", [1, 21, 90])
def test_a_summary_is_the_same_in_however_many_slices_it_is_written(
    slice_cost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = summary_of(with_gaps())
    monkeypatch.setattr(pack, "A_SLICE", slice_cost)
    monkeypatch.setattr(pack, "RUN_BYTES", 100)
    world = with_gaps()
    assert summary_of(world) == whole
    kept = [item[:4] for item in items_after(world, Crash.DROP)]
    assert kept[:20] == [b"%04d" % number for number in (*range(20, 40, 2), *range(100, 110))]


def with_gaps() -> SlowWorld:
    """As `half_read`, but every other of twenty items is still open, and a hundred others are gone."""
    world = SlowWorld(SMALL)
    client = world.client()
    for number in range(150):
        client.puts(f"{number:04}".ljust(60, "."))
        world.sync()
    for number in range(100):
        if number in range(20, 40, 2):
            world.client().says("get q/open")
        else:
            client.says("get q")
        world.sync()
    return world


def test_what_happens_while_a_pack_is_made_is_in_it_or_behind_it() -> None:
    for seed in range(30):
        choose = random.Random(seed)
        world = half_read()
        client, holder = world.client(), world.client()
        packs = world.broker.maintenance.packs
        for number in range(400):
            verb = choose.randrange(6)
            if verb == 0:
                client.puts(f"{1000 + number}".ljust(60, "."))
            elif verb < 4:
                holder.says(choose.choice(["get q/open", "get q/close", "get q/abort"]))
            for task in world.start_tasks() if choose.randrange(2) else []:
                world.finish_task(task)
            if choose.randrange(2):
                world.sync()
            world.turn()
            if number and not packs.is_busy and packs._pack is None:
                break
        world.sync()
        for each in world.clients:
            each.hangs_up()
        world.sync()
        for how in [*Crash, choose.randrange]:
            found = World(world.config, world.disk.crash(how), world.now_ms).items()
            assert sorted(found) == sorted(world.items()), (seed, how)


@pytest.mark.parametrize(("verb", "part"), [("create", "q~~"), ("write", "q~~")])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_pack_that_fails_changes_nothing_and_is_tried_again(verb: str, part: str, number: int) -> None:
    world = half_read()
    log, wanted = log_of(world), world.items()
    archives = log.archives
    world.disk.fail(verb, part, number)
    do_everything(world)
    assert "journal.pack_failed" in world.events
    assert log.archives == archives and not [name for name, _ in world.disk.list("s") if "~~" in name]
    assert [int(item[:4]) for item in items_after(world, Crash.DROP)][2:] == [int(item[:4]) for item in wanted]
    world.now_ms += RETRY_MAX_MS
    do_everything(world)  # though nobody asks for anything
    assert log.rewrites >= 1


def test_a_failed_pack_that_could_not_be_removed_is_in_nobodys_way() -> None:
    world = half_read()
    wanted = world.items()
    world.disk.fail("write", "q~~", errno.ENOSPC, after=1, short=5)
    world.disk.fail("remove", "q~~", errno.EIO)
    do_everything(world)
    assert "journal.pack_failed" in world.events and [name for name, _ in world.disk.list("s") if "~~" in name]
    world.now_ms += RETRY_MAX_MS
    do_everything(world)
    assert log_of(world).rewrites >= 1 and not [name for name, _ in world.disk.list("s") if "~~" in name]
    assert [int(item[:4]) for item in items_after(world, Crash.DROP)][2:] == [int(item[:4]) for item in wanted]


def test_what_a_failed_pack_has_left_does_not_come_back_with_a_deleted_queue() -> None:
    for steps in range(12):
        world = half_read()
        log = log_of(world)
        whole = items_after(world, Crash.KEEP)
        left = world.disk.append(f"s/{kestrel_files.temp_name('q', log.newest_number + 1)}")
        left.write(kestrel.Encoder(log.config.journal_dialect).addx(Item(b"a ghost", 0)))
        left.close()
        world.disk.stop_at = len(world.disk.log) + steps
        with pytest.raises(PowerCut):
            world.client().says("delete q")
        assert items_after(world, Crash.KEEP) in (whole, []), steps


def test_deleting_a_queue_while_a_pack_takes_its_place_asks_for_no_checksums() -> None:
    world = half_read()
    for _ in range(100):
        started = world.start_tasks()
        if any(isinstance(task, InstallPack) for task in started):
            break
        for task in started:
            world.finish_task(task)
        world.turn()
        world.sync()
    world.client().says("delete q")
    for task in started:
        world.finish_task(task)
    assert world.broker.queues.find("q") is None
    sidecars = world.broker.maintenance.sidecars
    assert not sidecars._wanted and sidecars._making is None
    do_everything(world)
    assert "journal.sidecar_failed" not in world.events


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_pack_that_cannot_be_synced_ends_the_process_whatever_the_reason(number: int) -> None:
    world = half_read()
    wanted = [int(item[:4]) for item in items_after(world, Crash.KEEP)]
    world.disk.fail("sync", "q~~", number)
    with pytest.raises(JournalFailure):
        do_everything(world)
    assert world.broker.spool.failed_sync.exists
    after = World(world.config, world.disk.kill(), world.now_ms)
    assert [int(item[:4]) for item in items_after(after, Crash.DROP)] == wanted


@pytest.mark.parametrize(("verb", "part"), [("rename", ".pack"), ("remove", "q."), ("sync_folder", "s")])
def test_a_pack_that_stops_half_way_into_its_place_ends_the_process_and_a_start_finishes_it(
    verb: str, part: str
) -> None:
    world = half_read()
    wanted = [int(item[:4]) for item in items_after(world, Crash.KEEP)]
    while not world.disk.list("s")[-1][0].startswith("q~~"):
        world.turn()
        world.do_tasks()
    for name, _ in world.disk.list("s/.staniel/segments"):
        world.disk.remove(f"s/.staniel/segments/{name}")  # their removal comes first, and may be refused
    world.disk.fail(verb, part, errno.EIO)
    with pytest.raises(JournalFailure):
        do_everything(world)
    assert world.broker.spool.failed_sync.exists == (verb == "sync_folder")
    after = World(world.config, world.disk.kill(), world.now_ms)
    assert ("spool.renewed" in after.events) == (verb == "sync_folder")
    assert [int(item[:4]) for item in after.items()] == wanted
    assert [int(item[:4]) for item in after.crash(Crash.DROP).items()] == wanted


@pytest.mark.parametrize(("verb", "part"), [("rename", ".pack"), ("remove", "q.")])
@pytest.mark.parametrize("end", ["stop", "turn"])
def test_nothing_changes_the_files_of_a_pack_that_has_stopped_half_way_into_its_place(
    end: str, verb: str, part: str
) -> None:
    """A stop writes an empty queue's journal anew, and a deletion removes the files that it knows."""
    world = half_read()
    tasks = installing(world)
    world.clients[0].hangs_up()
    client = world.client()
    while len(queue_of(world).line):
        client.says("get q")
        world.sync()
    client.says("status readonly")
    world.disk.fail(verb, part, errno.EIO)

    def ends() -> None:
        if end == "stop":
            world.broker.shutdown(world.now_ms)
        for task in tasks:
            world.finish_task(task)

    with pytest.raises(JournalFailure):
        ends()
    assert World(world.config, world.disk.kill(), world.now_ms).items("q") == []


def test_deleting_a_queue_whose_pack_is_being_put_in_place_leaves_nothing_behind() -> None:
    for turns in range(60):
        world = half_read()
        for _ in range(turns):
            for task in world.start_tasks():
                world.finish_task(task)
            world.turn()
            world.sync()
        tasks = world.start_tasks()
        client = world.client().says("delete q")
        world.sync()
        for task in tasks:
            world.finish_task(task)
        do_everything(world)
        assert client.hears() == "DELETED"
        assert not [name for name, regular in world.disk.list("s") if regular], turns
        assert items_after(world, Crash.DROP) == []


@pytest.mark.parametrize("end", ["goes on", "stops"])
def test_a_deletion_that_was_put_off_removes_a_queue_that_an_alias_has_hidden_meanwhile(end: str) -> None:
    world = half_read()
    tasks = world.start_tasks()
    while not world.broker.maintenance.is_at_work(queue_of(world)):
        for task in tasks:
            world.finish_task(task)
        world.turn()
        world.sync()
        tasks = world.start_tasks()
    client = world.client().says("delete q")
    config = world.config
    world.config = config + '\n[aliases]\nq = ["r"]\n'
    assert world.client().says("reload").hears() == "Reloaded config."
    assert "q" in world.broker.queues.hidden_by_alias
    if end == "goes on":
        for task in tasks:
            world.finish_task(task)
        do_everything(world)
    else:
        for task in tasks:
            world.run_task(task)
        world.broker.shutdown(world.now_ms)
    assert not world.broker.queues.hidden_by_alias
    assert not [name for name, regular in world.disk.list("s") if regular and name.startswith("q")]
    world.collect()
    assert client.hears() == "DELETED"
    assert World(config, world.disk.crash(Crash.DROP), world.now_ms + 1).items("q") == []


def test_a_stop_in_the_middle_of_a_pack_is_clean() -> None:
    for turns in range(40):
        world = half_read()
        wanted = [int(item[:4]) for item in items_after(world, Crash.KEEP)]
        for _ in range(turns):
            for task in world.start_tasks():
                world.run_task(task)
            world.turn()
            world.sync()
        world.broker.shutdown(world.now_ms)
        assert not [name for name, _ in world.disk.list("s") if "~~" in name or name.endswith(".pack")]
        assert [int(item[:4]) for item in items_after(world, Crash.DROP)] == wanted


def test_a_stop_that_waits_for_a_pack_reports_what_the_pack_could_not_read() -> None:
    """The files are gone then; only the log says where the bytes are kept."""
    world = half_read()
    packs = world.broker.maintenance.packs
    log, _ = packs._wanted.popitem()
    last = log.segments.sealed[9]
    packs.want(log, last, world.now_ms)
    world.disk._inode(f"s/{last.name}").data[0] = 0xFF
    installing(world)
    assert "journal.unreadable_items" not in world.events
    world.broker.shutdown(world.now_ms)
    assert not world.disk.inode_at(f"s/{last.name}") or world.disk._inode(f"s/{last.name}").data[0] != 0xFF
    assert world.events.count("journal.unreadable_items") == 1


def test_many_queues_are_packed_one_after_the_other() -> None:
    world = World(SMALL)
    client = world.client()
    for number in range(40):
        for name in range(50):
            client.puts(f"{number:04}".ljust(90, "."), f"q{name}")
        world.sync()
    packs = world.broker.maintenance.packs
    waiting = 0
    for _ in range(36):
        client.says(*[f"get q{name}" for name in range(50)])
        while client.session.wants_turn:
            world.turn()
        waiting = max(waiting, len(packs._wanted))
        world.sync()
    for _ in range(100):
        world.turn()
        world.sync()
    assert all(log_of(world, f"q{name}").rewrites for name in range(50))
    world.broker.shutdown(world.now_ms)


def test_no_pack_begins_that_would_not_halve_what_it_covers() -> None:
    world = filled(SMALL, 300, size=6)
    rewrites = 0
    for _ in range(280):
        got(world, 1)
        rewrites = max(rewrites, log_of(world).rewrites)
        if queue_of(world).line.on_disk and log_of(world).segments.sealed:
            assert (
                world.broker.maintenance.packs._pack is None
                or world.broker.maintenance.packs._pack.stage is not Stage.FAILED
            )
    assert got(world, 30) == list(range(280, 300))


def test_items_are_read_from_files_whose_names_a_summary_has_just_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that fits in memory is to be rewritten; before its file is sealed, more comes than memory holds."""
    monkeypatch.setattr(scheduler, "ON_THE_SPOT_BYTES", 0)
    world = SlowWorld("default.max_memory_size = 1500\ndefault.max_journal_size = 2000\n" + IMPATIENT)
    client, reader = world.client(), world.client()
    put = taken = 0
    while not (put and log_of(world).seal_wanted):
        client.puts(f"{put:04}".ljust(90, "."))
        put += 1
        if put > 10:
            reader.says("get q")
            taken += 1
        world.turn()
    for number in range(put, put + 20):
        client.puts(f"{number:04}".ljust(90, "."))
    world.sync()
    assert queue_of(world).line.on_disk
    log = log_of(world)
    for _ in range(30):
        for task in world.start_tasks():
            world.run_task(task)
            if not isinstance(task, InstallPack):
                world.finish_task(task)
        world.turn()
        world.sync()
    assert [segment.held is not None for segment in log.segments.sealed] == [True]
    for _ in range(taken, put + 20):
        reader.says("get q")
        world.sync()
    assert [int(word[:4]) for word in reader.hears().split() if word.endswith("....")] == list(range(put + 20))
    for task in list(world.running):
        world.finish_task(task)
    assert not any(segment.held for segment in log.segments.sealed)
