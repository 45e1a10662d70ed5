"""The system refuses to remove files that a pack has replaced: it costs a warning, and they never come back."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

import pytest

from staniel.broker.maintenance.packing import FINISHED_AT_ONCE, LOOKS_PER_TURN
from staniel.broker.maintenance.retries import RETRY_MAX_MS, RETRY_MS, Retries
from staniel.broker.share import Share
from staniel.journal.disk.fs import JournalFailure
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.kestrel.log import Log
from staniel.journal.libkestrel.family import TRIED_AT_ONCE
from staniel.journal.libkestrel.records import MAGIC_BYTES
from staniel.journal.transfer_log import Intent, encode, key_of
from staniel.sim.disk.disk import PowerCut
from staniel.sim.disk.durable import Crash
from staniel.sim.world import World as SlowWorld
from tests.journal.disk.test_refusals import ALWAYS, SMALL, drained, put, take
from tests.journal.test_renewal import addx, put_file
from tests.support.streams import asks
from tests.support.world import World

REFUSALS = [errno.EACCES, errno.EPERM, errno.EBUSY, errno.ENOSPC, errno.EMFILE]


def files(world: World) -> list[str]:
    return [name for name, _ in world.disk.list("s") if name.startswith("q.")]


def packed(number: int, path: str = "/s/q.", verb: str = "remove", after: int = 0) -> World:
    """A world with a pack of which some covered files are still there."""
    world = World(SMALL)
    put(world, 0, 40)
    world.disk.fail(verb, path, number, after=after, times=ALWAYS)
    take(world, 38)
    for _ in range(3):
        world.turn(100)
    assert any(name.endswith(".pack") for name in files(world)), files(world)
    return world


def hints(world: World) -> list[str]:
    """Return what the lines about such files advise."""
    return [str(fields["hint"]) for event, fields in world._details if event == "journal.unremoved"]


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("after", [0, 1, 3])
def test_files_that_a_pack_has_replaced_and_that_stay_cost_a_warning_and_go_later(number: int, after: int) -> None:
    world = packed(number, after=after)
    (said, *_) = world.reported("journal.unremoved")
    assert said["queue"] == "q" and "cannot use s/q." in str(said["why"])
    assert hints(world)[0].startswith("a pack has replaced the file, and recovery does not read it; ")
    (log,) = world.broker.maintenance.packs.unfinished
    assert log.unfinished is not None
    covered, sealed = set(log.unfinished.covered), log.unfinished.sealed
    assert covered & set(files(world))
    put(world, 40, 3)
    take(world, 1)
    world.disk._faults.clear()
    for _ in range(5):
        world.turn(100_000)
    assert covered & set(files(world)) == {sealed} and f"{sealed}.pack" not in files(world)
    assert not world.broker.maintenance.packs.unfinished
    again = World(SMALL, world.disk.kill(), world.now_ms)
    assert drained(again) == [39, 40, 41, 42]


@pytest.mark.parametrize("which", [0, 2, -1])
def test_one_file_that_stays_does_not_keep_the_others(which: int) -> None:
    world = World(SMALL.replace('"8KB"', '"1MB"'))  # so that one pack covers them all
    put(world, 0, 80)
    archives = files(world)[1:]
    stays = archives[which]
    world.disk.fail("remove", f"/s/{stays}", errno.EPERM, times=ALWAYS)
    take(world, 80)
    for _ in range(3):
        world.turn(100)
    assert len(archives) > 4 and set(archives) & set(files(world)) <= {stays}


def test_a_rewrite_that_cannot_read_the_items_keeps_an_unfinished_pack_in_mind() -> None:
    world = World(SMALL)
    put(world, 0, 40)
    world.disk.fail("rename", ".pack", errno.EPERM, times=ALWAYS)
    take(world, 20)
    for _ in range(3):
        world.turn(100)
    put(world, 40, 60)
    queue = world.broker.queues.find("q")
    assert queue is not None and queue.line.on_disk and world.broker.refused_removals == 1
    world.disk.fail("read", "/s/q.", errno.EIO, times=ALWAYS)
    assert not world.broker.maintenance.rewrite(queue, world.now_ms)
    assert world.broker.refused_removals == 1
    world.disk._faults.clear()
    for _ in range(3):
        world.turn(100_000)
    assert world.broker.refused_removals == 0


@pytest.mark.parametrize("number", REFUSALS)
def test_a_pack_that_does_not_get_its_archives_name_is_read_under_its_own(number: int) -> None:
    world = packed(number, ".pack", "rename")
    (pack,) = [name for name in files(world) if name.endswith(".pack")]
    (*_, said) = world.reported("journal.unremoved")
    assert pack in str(said["why"])
    assert hints(world)[-1].startswith(f"{pack} holds the items of the queue and only lacks its final name: ")
    put(world, 40, 3)
    again = World(SMALL, world.disk.kill(), world.now_ms)
    assert drained(again) == [38, 39, 40, 41, 42]


@pytest.mark.parametrize("number", REFUSALS)
def test_no_start_replays_what_stays_beside_the_pack_that_covers_it(number: int) -> None:
    disk, now_ms, taken = packed(number).disk.kill(), 0, 38
    for start in range(4):
        disk.fail("remove", "/s/q.", number, times=ALWAYS)
        world = World(SMALL, disk, now_ms)
        assert world.reported("journal.unremoved") or not world.turn(1000) or world.reported("journal.unremoved")
        assert "journal.unreadable" not in world.events
        put(world, 40 + 10 * start, 10)
        take(world, 9)
        taken += 9
        assert any(name.endswith(".pack") for name in files(world))
        disk, now_ms = world.disk.kill(), world.now_ms
    world = World(SMALL, disk, now_ms)
    assert drained(world) == list(range(taken, 80))
    assert not [name for name in files(world) if name.endswith(".pack")]


def test_a_queue_whose_pack_is_not_finished_is_deleted_with_all_its_files() -> None:
    world = packed(errno.EPERM)
    world.disk._faults.clear()
    assert asks(world, "delete q") == "DELETED"
    assert files(world) == []
    assert World(SMALL, world.disk.kill(), world.now_ms).items("q") == []


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_broken_disk_still_ends_the_server(number: int) -> None:
    with pytest.raises(JournalFailure, match="cannot put the pack of s/q in place: "):
        packed(number)


def test_packs_of_many_journals_are_finished_a_few_at_a_time() -> None:
    world = World(SMALL)
    names = [f"q{number}" for number in range(12)]
    for name in names:
        put(world, 0, 40, name)
    world.disk.fail("remove", "/s/q", errno.EPERM, times=ALWAYS)
    for name in names:
        for _ in range(20):
            asks(world, f"get {name}")
    for _ in range(4):
        world.turn(100)
    assert world.broker.refused_removals == len(names)
    disk = world.disk.kill()
    disk.fail("remove", "/s/q", errno.EPERM, times=ALWAYS)
    again = SlowWorld(SMALL, disk, world.now_ms)
    disk._faults.clear()
    packs, most = again.broker.maintenance.packs, 0
    assert len(packs.unfinished) == len(names)
    for _ in range(100):
        again.turn(10)
        most = max(most, len(packs._finishing))
        for task in again.start_tasks():
            again.finish_task(task)
    assert not packs.unfinished and most == FINISHED_AT_ONCE < len(names)
    assert not [name for name, _ in disk.list("s") if name.endswith(".pack")]


@pytest.mark.pure
def test_many_failed_packs_are_looked_at_a_few_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("")
    for number in range(50):
        put(world, 0, 1, f"q{number}")
    upkeep, looked = world.broker.maintenance, list[list[object]]()
    monkeypatch.setattr(upkeep, "_look_again", lambda log, now_ms: looked[-1].append(log))
    logs = [queue.journal for queue in world.broker.queues]
    for log in logs:
        assert isinstance(log, Log)
        upkeep.packs._failed.fail(log, world.now_ms)
    upkeep.packs.is_quiet = False
    for ms in (RETRY_MS - 1, 1, 1, 1, 1):
        world.now_ms += ms
        looked.append([])
        upkeep.run_slices(world.now_ms)
        assert upkeep.is_busy == (0 < sum(map(len, looked)) < len(logs))
    assert list(map(len, looked)) == [0, LOOKS_PER_TURN, LOOKS_PER_TURN, LOOKS_PER_TURN, 50 - 3 * LOOKS_PER_TURN]
    assert {log for each in looked for log in each} == {*logs} and upkeep.packs.is_quiet


def test_a_retry_that_is_set_again_and_again_takes_no_room_and_the_last_moment_counts() -> None:
    world = World("")
    put(world, 0, 1)
    queue = world.broker.queues.find("q")
    assert queue is not None and isinstance(queue.journal, Log)
    retries, log = Retries(), queue.journal
    for number in range(1000):
        retries.fail(log, number)
    assert len(retries._heap) < 100 and len(retries) == 1
    assert retries.rests(log, 999 + RETRY_MAX_MS - 1) and not retries.rests(log, 999 + RETRY_MAX_MS)
    assert retries.pop_due(998 + RETRY_MAX_MS, 9) == [] and retries.pop_due(999 + RETRY_MAX_MS, 9) == [log]
    assert retries.pop_due(1 << 60, 9) == []
    retries.soon(log)
    retries.drop(log)
    assert not retries.is_due(1 << 60) and not retries.rests(log, 0)


def log_of(world: SlowWorld) -> Log:
    queue = world.broker.queues.find("q")
    assert queue is not None and isinstance(queue.journal, Log)
    return queue.journal


def stuck_file(after: int = 0) -> World:
    """A world in which one file that a pack has replaced can never be removed."""
    world = World(SMALL)
    put(world, 0, 40)
    stays = log_of(world).archives[after]
    world.disk.fail("remove", f"/s/{stays}", errno.EPERM, times=ALWAYS)
    return world


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_journal_with_a_file_that_stays_is_packed_again_and_again(after: int) -> None:
    world = stuck_file(after)
    taken, rewrites = 0, set()
    for round in range(12):
        take(world, 38)
        world.turn(2000)
        taken += 38
        put(world, 40 + 38 * round, 38)
        log = log_of(world)
        rewrites.add(log.rewrites)
        assert log.archived_bytes + log.current_bytes < 40_000
        assert log.unfinished is None or len(log.unfinished.covered) <= 2
        assert len(files(world)) < 30, files(world)
    assert len(rewrites) > 8 and world.broker.refused_removals == 1
    assert world.items("q")[0].startswith(f"{taken:03}".encode())
    disk = world.disk.crash(Crash.DROP)
    again = World(SMALL, disk, world.now_ms)
    assert drained(again) == list(range(taken, taken + 40))
    world.disk._faults.clear()
    for _ in range(5):
        world.turn(RETRY_MAX_MS)
    assert world.broker.refused_removals == 0 and not [name for name in files(world) if name.endswith(".pack")]


def test_packs_that_free_nothing_become_rare() -> None:
    world = World(SMALL)
    put(world, 0, 40)
    world.disk.fail("remove", "/s/q.", errno.EPERM, times=ALWAYS)
    packs = 0
    for round in range(20):
        take(world, 38)
        world.turn(1000)
        put(world, 40 + 38 * round, 38)
        world.turn(1000)
    packs = log_of(world).rewrites
    assert 2 <= packs <= 8, packs
    before = files(world)
    world.disk._faults.clear()
    for _ in range(3):
        world.turn(RETRY_MAX_MS)
    assert len(files(world)) < len(before) // 4 and world.broker.refused_removals == 0


def pack_again(world: World) -> None:
    """A pack of more files, beside the unfinished one."""
    world.turn(2000)
    put(world, 40, 20)
    take(world, 18)
    world.turn(100)


def pack_the_pack(world: World) -> None:
    """A pack of the unfinished pack alone, whose name it takes."""
    log, packs = log_of(world), world.broker.maintenance.packs
    packs._failed.drop(log)
    packs.want(log, log.segments.sealed[0], world.now_ms)
    for _ in range(3):
        world.turn()
        world.sync()


def finish(world: World) -> None:
    world.disk._faults.clear()
    world.turn(RETRY_MAX_MS)


def pack_and_finish(world: World) -> None:
    pack_again(world)
    finish(world)


def pack_the_pack_and_finish(world: World) -> None:
    pack_the_pack(world)
    finish(world)


ACTS = [pack_again, pack_the_pack, finish, pack_and_finish, pack_the_pack_and_finish]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("after", [0, 2])
def test_the_power_fails_at_each_step_of_a_pack_beside_an_unfinished_one(
    act: Callable[[World], None], after: int
) -> None:
    def told(stop_at: int | None) -> tuple[World, int]:
        world = stuck_file(after)
        take(world, 36)
        for _ in range(3):
            world.turn(100)
        assert log_of(world).unfinished is not None
        first = len(world.disk.log)
        world.disk.stop_at = None if stop_at is None else first + stop_at
        with suppress(PowerCut):
            act(world)
        world.disk.stop_at = None
        return world, len(world.disk.log) - first

    whole, steps = told(None)
    assert act is finish or log_of(whole).rewrites > 1
    assert (log_of(whole).unfinished is None) == (act in (finish, pack_and_finish, pack_the_pack_and_finish))
    # An act that another goes on with has the same steps: of it the end is looked at, and with the other each step.
    first = steps if act in (pack_again, pack_the_pack) else 0
    for stop in range(first, steps + 1):
        world, _ = told(stop)
        for how in Crash:
            for stays in (False, True):
                disk = world.disk.crash(how)
                if stays:
                    disk.fail("remove", "/s/q.", errno.EPERM, times=ALWAYS)
                found = drained(World(SMALL, disk, world.now_ms + 1))
                assert found == list(range(found[0], found[0] + len(found))), (stop, how)
                assert 36 <= found[0] <= 54 and 39 <= found[-1] <= 59, (stop, how)


def test_an_unfinished_pack_is_not_finished_while_the_next_one_is_made() -> None:
    world = stuck_file()
    take(world, 36)
    for _ in range(3):
        world.turn(100)
    log, packs = log_of(world), world.broker.maintenance.packs

    def want() -> None:
        packs._failed.drop(log)
        packs.want(log, log.segments.sealed[0], world.now_ms)
        assert not (packs._is_packing(log) and packs._finishing)

    want()
    for round in range(60):
        SlowWorld.turn(world, RETRY_MAX_MS)
        want() if round < 40 else None
        tasks = world.start_tasks()
        want() if round < 40 else None
        for task in tasks:
            world.finish_task(task)
        SlowWorld.sync(world)
        if round == 20:
            world.disk._faults.clear()
    assert log.unfinished is None and log.rewrites > 2
    assert drained(World(SMALL, world.disk.kill(), world.now_ms)) == [36, 37, 38, 39]


def test_a_journal_whose_pack_has_failed_is_not_rotated_each_second_of_a_full_disk() -> None:
    world = World("default.max_memory_size = 4000\n")
    put(world, 0, 40)
    take(world, 38)
    upkeep, log, queue = world.broker.maintenance, log_of(world), world.broker.queues.find("q")
    assert queue is not None and upkeep.reclaimable(queue)[0]
    upkeep.packs._failed.fail(log, world.now_ms)
    rotations = log.rotations
    for _ in range(3):
        upkeep.reclaim(1 << 30, Share(world.broker.step_clock), world.now_ms)
        world.sync()
    assert log.rotations == rotations
    world.now_ms += RETRY_MS
    upkeep.reclaim(1 << 30, Share(world.broker.step_clock), world.now_ms)
    for _ in range(3):
        world.sync()
        world.turn()
    assert log.rotations == rotations + 1 and log.rewrites


STREAMS = f'{SMALL}default.journal_format = "libkestrel"\n'


def segments(world: World) -> list[str]:
    return [name for name in files(world) if ".read." not in name]


@pytest.mark.parametrize("number", REFUSALS)
def test_segments_that_have_been_read_and_stay_are_named_and_removed_once_that_is_let(number: int) -> None:
    world = World(STREAMS)
    put(world, 0, 40)
    before = segments(world)
    world.disk.fail("remove", "/s/q.", number, times=ALWAYS)
    take(world, 38)
    for _ in range(3):
        world.turn(1000)
    said = world.reported("segment.stuck")
    assert said[0]["file"] == before[0]
    assert len(said) == len({each["file"] for each in said}) and segments(world)[:3] == before[:3]
    stuck = world.broker.streams.stuck_segments
    assert stuck >= 5
    world.disk._faults.clear()
    world.turn(2000)
    world.turn(10)
    assert len(segments(world)) <= len(before) + 1 - stuck and world.broker.streams.stuck_segments == 0
    assert drained(World(STREAMS, world.disk.kill(), world.now_ms)) == [38, 39]


def test_many_segments_that_stay_share_one_line_in_ten_seconds() -> None:
    world = World(STREAMS)
    put(world, 0, 100)
    world.disk.fail("remove", "/s/q.", errno.EPERM, times=ALWAYS)
    take(world, 98)
    for _ in range(3):
        world.turn(1000)
    assert world.broker.streams.stuck_segments >= 10
    assert len(world.reported("segment.stuck")) == 1
    for _ in range(120):
        world.turn(1000)
    assert len(world.reported("segment.stuck")) <= 13


@pytest.mark.parametrize("number", REFUSALS)
def test_no_start_serves_segments_that_have_been_read_and_stay(number: int) -> None:
    disk, now_ms = World(STREAMS).disk.kill(), 0
    for start in range(3):
        world = World(STREAMS, disk, now_ms)
        world.disk.fail("remove", "/s/q.", number, times=ALWAYS)
        put(world, 20 * start, 20)
        take(world, 19 + (start > 0))
        disk, now_ms = world.disk.kill(), world.now_ms
    assert drained(World(STREAMS, disk, now_ms)) == [59]


def stuck(world: SlowWorld) -> int:
    return world.broker.refused_removals


def with_stuck_segments(number: int = errno.EPERM, items: int = 100) -> World:
    world = World(STREAMS)
    put(world, 0, items)
    world.disk.fail("remove", "/s/q.", number, times=ALWAYS)
    take(world, items - 2)
    for _ in range(3):
        world.turn(1000)
    return world


def test_segments_that_stay_count_while_their_removal_is_tried_again() -> None:
    world = with_stuck_segments()
    count = stuck(world)
    assert count > TRIED_AT_ONCE
    for _ in range(5):
        SlowWorld.turn(world, 1000)
        tasks = world.start_tasks()
        SlowWorld.turn(world, 1000)  # a thread that the disk keeps waiting gets no second task
        SlowWorld.turn(world, 1000)
        assert stuck(world) == count and len(tasks) == 1 and not world.start_tasks()
        world.finish_task(tasks[0])
        assert stuck(world) == count and not world.start_tasks()
    world.disk._faults.clear()
    world.turn(1000)
    assert stuck(world) == 0 and len(segments(world)) <= 2


def test_a_few_segments_that_stay_are_tried_in_a_second_each_in_its_turn() -> None:
    world = with_stuck_segments()
    (family,) = world.broker.streams.store.families.values()
    names, tried = list(family.stuck), list[str]()
    while len(tried) < len(names):
        first = next(iter(family.stuck))
        assert first == names[len(tried)]
        world.turn(1000)
        tried += [name for name in names[len(tried) :] if name in list(family.stuck)[-TRIED_AT_ONCE:]]
    assert {*family.stuck} == {*names}


@pytest.mark.parametrize("number", REFUSALS)
def test_segments_that_were_read_before_a_start_go_or_count_before_anything_is_put(number: int) -> None:
    disk = with_stuck_segments(number).disk.kill()
    before = segments(World(STREAMS, disk.fork()))
    again = World(STREAMS, disk.fork())
    again.turn(1)
    assert len(segments(again)) <= 2 < len(before)
    disk.fail("remove", "/s/q.", number, times=ALWAYS)
    again = World(STREAMS, disk)
    again.turn(1)
    count = stuck(again)
    assert count >= len(before) - 2 and again.reported("segment.stuck")
    assert asks(again, "delete q").startswith("SERVER_ERROR queue q is not deleted: ")
    assert stuck(again) == count
    disk._faults.clear()
    assert asks(again, "delete q") == "DELETED"
    assert stuck(again) == 0 and files(again) == []


def test_no_start_removes_segments_in_which_a_copy_may_have_to_be_found() -> None:
    """The queue that it came from cannot be read, so its intent is kept."""
    world = with_stuck_segments()
    (family,) = world.broker.streams.store.families.values()
    copy = next(family.segments.items())
    whole = world.disk.kill()
    put_file(whole, "from", addx(copy.data))
    replace_file(whole, "s/.staniel/intents", encode(Intent(1, "from", 5, "q", 0, MAGIC_BYTES, *key_of(copy))))
    for can_read in (True, False):
        disk = whole.fork()
        if not can_read:
            disk.fail("read", "s/from", errno.EIO, times=ALWAYS)
        world = World(STREAMS, disk)
        assert len(world.broker.transfers.transfer_log.kept) == (not can_read)
        world.turn(1)
        assert (len(segments(world)) <= 3) == can_read
