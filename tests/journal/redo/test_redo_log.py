"""The redo log: what a power cut takes of the journals is in it, and what is not whole is not served."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from staniel.journal import group_commit
from staniel.journal.disk.fs import FilesMisplaced
from staniel.journal.redo import records
from staniel.journal.redo.dump import changed_by_start, unlike_log
from staniel.journal.redo.log import GrowSegment
from staniel.journal.redo.records import BatchHead, RedoKind
from staniel.journal.redo.replay import Legibility, _needed, read_log, replay_file
from staniel.journal.spool import Spool, SpoolError
from staniel.journal.tools.repair import CannotRepair, Repair
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from staniel.sim.world import World

LOG = 'server.redo_log = "64KB"\n'
PATHS = ["s/.staniel/redo.0", "s/.staniel/redo.1"]


def in_use(config: str = LOG) -> World:
    """A server whose log is in use, and whose queue `q` is in it."""
    world = World(config)
    world.client().puts("first")
    world.do_tasks()
    world.client().puts("second")
    world.sync()
    assert world.broker.group.redo.is_in_use
    return world


def version(disk: Disk) -> bytes:
    return disk.read("s/.staniel/version", 0, 100)


def overwrite(disk: Disk, path: str, at: int, data: bytes) -> None:
    region = disk.overwrite(path)
    region.write_at(at, data)
    region.sync()
    region.close()


def test_an_answer_waits_for_one_sync_of_the_log_and_none_of_the_journal() -> None:
    world = in_use()
    client = world.client()
    before = len(world.disk.log)
    client.puts("third")
    assert client.hears() == ""
    world.sync()
    assert client.hears() == "STORED"
    synced = [op.path for op in world.disk.log[before:] if op.verb.startswith("sync")]
    assert synced == [PATHS[0]]


def test_what_was_answered_survives_a_power_cut_that_takes_the_journal() -> None:
    world = in_use()
    world.client().puts("third")
    world.sync()
    after = world.crash(Crash.DROP)
    assert after.items() == [b"first", b"second", b"third"]
    assert after.reported("redo.replayed")[0]["files"] == 1
    assert version(after.disk) == b"staniel-spool 1\n"


def test_after_a_kill_the_journals_are_complete_and_nothing_is_replayed() -> None:
    world = in_use()
    world.client().puts("third")
    after = World(LOG, world.disk.kill(), world.now_ms)
    assert after.items() == [b"first", b"second", b"third"]
    assert not after.reported("redo.replayed")


def test_a_clean_stop_leaves_the_spool_to_older_servers() -> None:
    world = in_use()
    assert version(world.disk).startswith(b"staniel-spool 2 ")
    world.broker.shutdown(world.now_ms)
    assert version(world.disk) == b"staniel-spool 1\n"
    assert world.crash(Crash.DROP).items() == [b"first", b"second"]


def test_after_a_kill_a_start_and_a_clean_stop_leave_the_spool_to_older_servers() -> None:
    world = in_use()
    world.client().puts("third")
    world.sync()
    killed = world.disk.kill()
    assert version(killed) != b"staniel-spool 1\n", "an older server refuses it"
    again = World(LOG, killed, world.now_ms)  # which ends what was under way
    again.broker.shutdown(again.now_ms)
    assert version(again.disk) == b"staniel-spool 1\n"
    assert World("", again.disk.kill(), again.now_ms).items() == [b"first", b"second", b"third"]


@pytest.mark.parametrize("policy", ["1s", "os"])
def test_an_item_of_which_a_part_has_reached_the_disk_is_not_served(policy: str) -> None:
    world = in_use(f'{LOG}default.sync_journal = "{policy}"\n')
    world.broker.group.sync_all(world.now_ms)
    size = world.disk.size("s/q")
    world.client().puts("x" * 2000)
    left = world.disk.crash(Crash.KEEP)
    overwrite(left, "s/q", size + 1000, bytes(500))
    after = World(LOG, left, world.now_ms)
    assert after.items() == [b"first", b"second"]
    (cut,) = after.reported("redo.cut")
    assert (cut["file"], cut["at"]) == ("s/q", size)
    assert left.size(str(cut["saved_as"])) == cut["bytes"]


def test_the_log_is_used_again_and_again() -> None:
    world = in_use()
    redo = world.broker.group.redo
    for number in range(400):
        world.client().puts(f"{number:0200d}")
        world.sync()
        if number % 7 == 0:
            world.do_tasks()
    assert redo.next_number > 400 and redo.segments[0].size == redo.segment_bytes_max
    assert len(world.crash(Crash.DROP).items()) == 402


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("verb", ["is_same_device", "read"])
def test_a_file_that_cannot_be_looked_at_is_synced_itself_and_taken_up_later(verb: str, number: int) -> None:
    world = in_use()
    client = world.client()
    world.disk.fail(verb, "s/new", number)
    client.puts("third", "new")
    world.sync()
    assert client.hears() == "STORED" and "s/new" not in world.broker.group.redo.bindings
    assert world.crash(Crash.DROP).items("new") == [b"third"]
    client.puts("fourth", "new")
    world.sync()
    assert client.hears() == "STORED" and "s/new" in world.broker.group.redo.bindings
    assert world.crash(Crash.DROP).items("new") == [b"third", b"fourth"]


@pytest.mark.parametrize("is_read", [False, True])
def test_a_queue_that_becomes_durable_is_synced_itself_while_its_file_cannot_be_read_back(is_read: bool) -> None:
    config = LOG + 'queues.lax.sync_journal = "50ms"\n'
    world = in_use(config)
    client = world.client()
    client.puts("first", "lax")
    for _ in range(200):
        world.turn(10)
        world.sync()
    client.puts("second", "lax")
    world.config = LOG
    if not is_read:
        world.disk.fail("read", "s/lax", errno.EIO)
    client.says("reload")
    client.puts("third", "lax")
    world.sync()
    assert client.hears().endswith("STORED")
    assert world.crash(Crash.DROP).items("lax") == [b"first", b"second", b"third"]


def test_a_write_too_large_for_the_log_is_synced_in_its_journal() -> None:
    world = in_use()
    before = len(world.disk.log)
    world.client().puts("x" * 30_000)
    world.sync()
    assert [op.path for op in world.disk.log[before:] if op.verb == "sync"] == [PATHS[0], "s/q"]
    assert len(world.crash(Crash.DROP).items()[-1]) == 30_000


def test_a_disk_without_room_for_the_log_is_told_and_served_without_it() -> None:
    world = World(LOG)
    world.disk.fail("allocate", "redo.0", 28)
    world.client().puts("first")
    world.do_tasks()
    world.client().puts("second")
    world.sync()
    assert not world.broker.group.redo.is_in_use and world.reported("redo.off")
    assert world.crash(Crash.DROP).items() == [b"first", b"second"]


def test_a_bit_that_was_synced_and_flipped_is_damage_and_nothing_is_cut_off() -> None:
    world = in_use()
    for _ in range(3):
        world.client().puts("more")
        world.sync()
    left = world.disk.crash(Crash.KEEP)
    overwrite(left, PATHS[0], records.BLOCK_BYTES + 90, b"\xff\xff")
    after = World(LOG, left, world.now_ms)
    assert [each["what"] for each in after.reported("redo.damaged")] == ["damaged"]
    assert not after.reported("redo.cut") and len(after.items()) == 5
    assert "redo.0@0+32768" in [name for name, _ in left.list("s/.staniel/damaged")]


def test_a_log_that_is_gone_is_told() -> None:
    world = in_use()
    left = world.disk.crash(Crash.KEEP)
    for path in PATHS:
        left.remove(path)
    after = World(LOG, left, world.now_ms)
    assert [each["what"] for each in after.reported("redo.damaged")] == ["gone"]
    assert after.items() == [b"first", b"second"]


def test_a_log_that_cannot_be_read_refuses_the_start_and_says_what_may_be_moved_away() -> None:
    world = in_use()
    left = world.disk.crash(Crash.KEEP)
    left.fail("read", "redo.1", 5)
    with pytest.raises(SpoolError, match=r"redo\.1 away, which after a power cut loses"):
        World(LOG, left, world.now_ms)


@pytest.mark.parametrize("stop", [True, False])
def test_the_files_of_a_log_that_is_switched_off_are_removed(stop: bool) -> None:
    world = in_use()
    if stop:
        world.broker.shutdown(world.now_ms)
    left = world.disk.kill()
    assert World('server.redo_log = "none"\n', left, world.now_ms).items() == [b"first", b"second"]
    assert not [name for name, _ in left.list("s/.staniel") if name.startswith("redo")]


def test_a_log_of_another_spool_is_not_used() -> None:
    world, other = in_use(), in_use()
    other.client().puts("foreign")
    other.sync()
    left = world.disk.crash(Crash.KEEP)
    overwrite(left, "s/.staniel/version", 0, b"staniel-spool 2 " + b"ab" * 16)
    assert [each["what"] for each in World(LOG, left, world.now_ms).reported("redo.damaged")] == ["gone"]


def test_a_log_of_a_later_version_is_refused() -> None:
    world = in_use()
    left = world.disk.crash(Crash.KEEP)
    overwrite(left, PATHS[0], 0, b"STNREDO2")
    with pytest.raises(SpoolError, match="later version"):
        World(LOG, left, world.now_ms)


def test_a_spool_whose_log_is_in_use_is_read_without_one_too() -> None:
    world = in_use()
    world.client().puts("third")
    world.sync()
    left = world.disk.crash(Crash.DROP)
    assert Spool(left.copy(), "s").used_log
    assert World("", left, world.now_ms).items() == [b"first", b"second", b"third"]


def test_batches_that_were_never_synced_end_the_log_without_damage() -> None:
    disk = Disk()
    disk.make_folder("s/.staniel")
    disk.fill(PATHS[0], 4 * records.BLOCK_BYTES)
    spool_id = bytes(range(16))
    for number, at in ((1, 0), (3, 2)):
        head = BatchHead(0, number, 1, 1, spool_id, spool_id)
        overwrite(disk, PATHS[0], at * records.BLOCK_BYTES, records.encode_batch(head, b""))
    found = read_log(disk, PATHS, spool_id)
    assert (found.found, found.batches) == (Legibility.WHOLE, 1)


def test_records_come_back_as_they_were_written() -> None:
    data = bytes(range(200))
    written = b"".join(
        (
            records.bind(1, 2**40, "caf\udcff+x"),
            records.pack_data_head(records.DATA_KIND, 1, 2**40, 7, len(data)) + data,
            records.encode_extent(2, 2**63, 9, data),
            records.encode_safe(2, 2**64 - 1),
            records.encode_done(2**32 - 1),
        )
    )
    found = list(records.decode(memoryview(written)))
    kinds = [RedoKind.BIND, RedoKind.DATA, RedoKind.EXTENT, RedoKind.SAFE, RedoKind.DONE]
    assert [each.kind for each in found] == kinds
    assert [each.file for each in found] == [1, 1, 2, 2, 2**32 - 1]
    assert [each.at for each in found] == [2**40, 2**40, 2**63, 2**64 - 1, 0]
    assert bytes(found[0].data) == "caf\udcff+x".encode("utf-8", "surrogateescape") and bytes(found[1].data) == data


def test_what_a_batch_says_of_the_oldest_does_not_hold_if_one_before_it_was_lost() -> None:
    """Both were written and not synced, and the second alone has reached the disk."""
    heads = [(4, 4, 3), (5, 4, 4), (7, 6, 5)]
    found = {
        number: (BatchHead(0, number, oldest, synced, b"", b""), memoryview(b"")) for number, oldest, synced in heads
    }
    assert _needed(found) == ([4, 5], False)
    found[6] = BatchHead(0, 6, 4, 5, b"", b""), memoryview(b"")
    assert _needed(found) == ([6, 7], False)


def test_a_write_of_a_batch_that_stopped_behind_its_first_bytes_is_no_later_version() -> None:
    world = in_use()
    left = world.disk.crash(Crash.KEEP)
    overwrite(left, PATHS[1], 0, b"STNREDO\0")
    assert World(LOG, left, world.now_ms).items() == [b"first", b"second"]


def test_the_table_of_files_fits_into_the_smaller_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = Disk.fill
    monkeypatch.setattr(
        Disk, "fill", lambda self, path, size: fill(self, path, 128 << 10 if path == PATHS[0] else 16 << 10)
    )
    monkeypatch.setattr(GrowSegment, "work", lambda self: None)  # it found no room
    world = in_use('server.redo_log = "1MB"\n')
    for number in range(500):
        world.client().puts("x" * 50, f"queue-with-a-longer-name-{number:06d}")
        if number % 100 == 99:
            world.sync()
    assert world.broker.group.redo.bindings
    assert len(world.crash(Crash.DROP).broker.queues) == 501


CHECKSUMS = 'server.redo_log = "checksums"\ndefault.sync_journal = "os"\n'


def with_checksums(config: str = CHECKSUMS) -> World:
    """A server whose log has checksums of queue `q`, up to the second item."""
    world = World(config)
    world.client().puts("first")
    world.do_tasks()
    world.client().puts("second")
    assert world.sync()
    assert world.broker.group.redo.is_in_use
    return world


def left_with_a_hole(world: World) -> Disk:
    """As the disk is now, but for a sector of zeros in the last item of `q`."""
    left = world.disk.crash(Crash.KEEP)
    overwrite(left, "s/q", left.size("s/q") - 1000, bytes(500))
    return left


def test_a_log_of_checksums_is_made_once_a_journal_is_not_synced_before_its_answer() -> None:
    world = World('server.redo_log = "checksums"\nqueues.lax.sync_journal = "os"\n')
    world.client().puts("first")
    world.do_tasks()
    assert not world.broker.group.redo.is_in_use and version(world.disk) == b"staniel-spool 1\n"
    world.client().puts("first", "lax")
    world.do_tasks()
    assert world.broker.group.redo.is_in_use


def test_with_checksums_no_part_of_an_item_is_served_after_a_power_cut() -> None:
    world = with_checksums()
    world.client().puts("x" * 2000)
    world.turn(ms=1000)
    world.sync()
    assert world.crash(Crash.KEEP).items()[-1] == b"x" * 2000
    after = World(CHECKSUMS, left_with_a_hole(world), world.now_ms)
    assert after.items() == [b"first", b"second"]
    assert len(after.reported("redo.cut")) == 1


def test_what_the_log_has_no_checksum_of_yet_is_cut_off_after_a_power_cut_and_kept_after_a_kill() -> None:
    world = with_checksums()
    world.client().puts("third")
    assert World(CHECKSUMS, world.disk.crash(Crash.KEEP), world.now_ms).items() == [b"first", b"second"]
    assert World(CHECKSUMS, world.disk.kill(), world.now_ms).items() == [b"first", b"second", b"third"]


@pytest.mark.parametrize(("policy", "left"), [("always", 3), ("50ms", 2), ("os", 2)])
def test_a_kill_and_then_an_orderly_reboot_costs_what_the_readme_and_the_promises_say(policy: str, left: int) -> None:
    """Everything reaches the disk, as an orderly reboot sees to; the last answer is younger than a second."""
    world = World(f'server.redo_log = "checksums"\ndefault.sync_journal = "{policy}"\n')
    for data in ("first", "second"):
        world.client().puts(data)
        world.do_tasks()
        world.turn(ms=100)
        world.sync()
    assert world.client().puts("third") is not None
    world.turn()
    if policy == "always":
        world.sync()
    rebooted = world.disk.kill().crash(Crash.KEEP)
    assert len(World(world.config, rebooted, world.now_ms).items()) == left
    assert len(World(world.config, world.disk.kill(), world.now_ms).items()) == 3
    text = " ".join((Path(__file__).parents[3] / "docs" / "durability.md").read_text().split())
    assert "what was acknowledged in the second before, written or not" in text
    assert "rebooted, however orderly, before the next start" in text


def test_a_copy_of_a_disk_without_a_boot_in_between_is_told_by_its_files() -> None:
    world = with_checksums()
    world.client().puts("x" * 2000)
    world.turn(ms=1000)
    world.sync()
    left = left_with_a_hole(world)
    left.boots = world.disk.boots
    assert World(CHECKSUMS, left, world.now_ms).items() == [b"first", b"second"]


def test_a_journal_that_was_changed_after_a_kill_costs_no_other_queue_its_last_bytes() -> None:
    world = with_checksums()
    world.client().puts("elsewhere", "r")
    world.turn(ms=1000)
    world.sync()
    world.client().puts("third")
    left = world.disk.kill()
    left.truncate("s/r", left.size("s/r") - 3)
    assert World(CHECKSUMS, left, world.now_ms).items() == [b"first", b"second", b"third"]


def test_a_journal_that_is_durable_now_and_was_closed_before_its_sync_keeps_what_was_answered() -> None:
    world = with_checksums()
    world.config = CHECKSUMS.replace('"os"', '"always"')
    world.client().says("reload")
    world.sync()
    client = world.client()
    client.puts("third")
    journal = world.broker.queues.find("q").journal
    assert journal.try_close(force=True)
    world.sync()
    assert client.hears() == "STORED"
    assert world.crash(Crash.KEEP).items() == [b"first", b"second", b"third"]


def test_a_durable_queue_waits_for_its_journal_alone_beside_a_log_of_checksums() -> None:
    world = with_checksums(f'{CHECKSUMS}queues.safe.sync_journal = "always"\n')
    client = world.client()
    client.puts("x", "safe")
    world.sync()
    assert client.hears() == "STORED"
    before = len(world.disk.log)
    client.puts("y", "safe")
    world.sync()
    assert client.hears() == "STORED"
    assert [op.path for op in world.disk.log[before:] if op.verb.startswith("sync")] == ["s/safe"]


def test_writes_are_read_back_a_second_later_in_pieces_that_leave_room_for_others() -> None:
    world = with_checksums()
    redo, group = world.broker.group.redo, world.broker.group
    for _ in range(6):
        world.client().puts("x" * 1_000_000)
    assert not world.sync()
    world.turn(ms=1000)
    syncs = []
    while (sync := world.start_sync()) is not None:
        sync.run()
        syncs.append(sum(piece.end - piece.at for piece in sync.pieces))
        world.finish_sync(sync)
    assert len(syncs) == 2 and syncs[0] == group_commit.READ_BACK_BYTES_MAX
    (binding,) = redo.bindings.values()
    assert binding.noted_bytes == binding.written_bytes() and group.next_due_ms() > world.now_ms


def test_tools_are_told_which_journals_a_power_cut_has_left_behind() -> None:
    world = in_use()
    world.client().puts("third")
    world.sync()
    size = world.disk.size("s/q")
    assert unlike_log(world.disk.copy(), "s", "s/.staniel") == []
    left = world.disk.crash(Crash.DROP)
    assert left.size("s/q") < size
    ((path, at),) = unlike_log(left, "s", "s/.staniel")
    assert path == "s/q" and at <= left.size("s/q")
    spool = Spool(left, "s")
    spool.finish_log()
    assert left.size("s/q") == size and version(left) == b"staniel-spool 1\n"


def test_a_repair_refuses_a_journal_that_is_longer_than_the_log_knows() -> None:
    """A power cut may leave zeros there, or anything: no answer waited for it, and a start cuts it off."""
    config = 'server.redo_log = "1MB"\nqueues.lax.sync_journal = "os"\n'
    world = in_use(config)
    world.client().puts("a" * 1000, "lax")
    world.turn(ms=1)
    world.sync()
    assert changed_by_start(world.disk.copy(), "s", "s/.staniel") == []
    known = world.disk.size("s/lax")
    world.client().puts("b" * 1000, "lax")  # of which the log has no checksum yet
    world.turn(ms=1)
    left = world.disk.crash(Crash.KEEP)
    assert left.size("s/lax") > known
    overwrite(left, "s/lax", known, bytes(500))
    assert unlike_log(left, "s", "s/.staniel") == []
    assert changed_by_start(left, "s", "s/.staniel") == [("s/lax", known)]
    with pytest.raises(CannotRepair, match="start a server on the spool once"):
        list(Repair(left, "s", None, "copy", world.now_ms, lambda size: None).run())
    assert World(config, left, world.now_ms).items("lax") == [b"a" * 1000]


def test_tools_are_told_of_a_piece_of_which_only_the_beginning_is_known_to_be_on_the_disk() -> None:
    config = 'server.redo_log = "1MB"\nqueues.lax.sync_journal = "os"\n'
    world = in_use(config)
    world.client().puts("a" * 1000, "lax")
    world.turn(ms=1)
    world.sync()
    world.client().puts("b" * 1000, "lax")  # of which the log has no checksum yet
    while not (tasks := world.start_tasks()):
        world.client().puts("x" * 60_000)
        world.sync()
    for task in tasks:
        world.run_task(task)  # a segment is full, and everything is synced
    world.client().puts("c" * 2000, "lax")
    world.turn(ms=1000)
    world.sync()
    for task in tasks:
        world.finish_task(task)
    world.client().puts("y")
    world.sync()
    left = world.disk.crash(Crash.KEEP)
    overwrite(left, "s/lax", left.size("s/lax") - 1000, bytes(500))
    history = read_log(left, PATHS, world.broker.group.redo.spool_id).files["lax"]
    assert any(begin < history.safe_bytes < end for begin, end, _, _ in history.ranges)
    assert [path for path, _ in unlike_log(left, "s", "s/.staniel")] == ["s/lax"]
    left.boots = world.disk.boots  # a copy of the disk, without a boot in between
    assert World(config, left, world.now_ms).items("lax") == [b"a" * 1000, b"b" * 1000]


def write_log(disk: Disk, *parts: bytes) -> bytes:
    """A log of one batch with these records, in use; its id."""
    spool_id = bytes(range(1, 17))
    written = b"".join(parts)
    disk.make_folder("s/.staniel")
    disk.fill(PATHS[0], 2 * records.BLOCK_BYTES)
    overwrite(disk, PATHS[0], 0, records.encode_batch(BatchHead(len(written), 1, 1, 1, spool_id, spool_id), written))
    return spool_id


@pytest.mark.parametrize(
    "path",
    [
        "../outside", "/etc/passwd", "a/../../q", "", ".", "..", ".staniel/segments/../../../q", "q\0",
        "../000000001.log", "/jobs/000000001.log", "jobs//000000001.log",
    ],
)  # fmt: skip
def test_a_batch_about_a_file_outside_the_spool_is_refused(path: str) -> None:
    disk = Disk()
    data = b"overwritten"
    write = records.DATA.pack(2, 1, 0, 0, len(data)) + data
    spool_id = write_log(disk, records.bind(1, 0, path), write, records.bind(2, 0, "q"), write)
    content = read_log(disk, PATHS, spool_id)
    assert (content.found, content.files) == (Legibility.DAMAGED, {})


@pytest.mark.parametrize("path", ["q", "q.123", "q+child", "caf\udcff", ".staniel/cmdlog/000000001.log"])
def test_the_log_knows_files_of_the_spool(path: str) -> None:
    disk = Disk()
    spool_id = write_log(disk, records.bind(1, 5, path))
    content = read_log(disk, PATHS, spool_id)
    assert content.found is Legibility.WHOLE and len(content.files) == 1


def test_what_the_log_tells_twice_of_a_file_does_not_cut_off_what_follows() -> None:
    disk = Disk()
    disk.make_folder("s")
    file = disk.append("s/q")
    data = bytes(range(100))
    file.write(data)
    file.sync()
    file.close()
    again = records.encode_extent(1, 0, 0, data[:50])
    spool_id = write_log(disk, records.bind(1, 0, "q"), records.DATA.pack(2, 1, 0, 0, 100), data, again)
    content = read_log(disk, PATHS, spool_id)
    assert replay_file(disk, "s", content.files["q"], "s/.staniel/damaged", may_cut=True) is None
    assert disk.read("s/q", 0, 200) == data


def test_a_record_of_an_unknown_kind_is_damage() -> None:
    disk = Disk()
    assert read_log(disk, PATHS, write_log(disk, b"\x09" * 30)).found is Legibility.DAMAGED


def put_amid_a_sync(world: World, item: str) -> None:
    """Put `item` while a sync runs of which the log, which comes into use meanwhile, has been told nothing."""
    running = world.start_sync()
    assert running is not None and running.redo is None
    world.do_tasks()
    world.client().puts(item)
    running.run()
    world.finish_sync(running)


def test_a_file_that_was_being_synced_when_the_log_came_into_use_is_not_cut_off() -> None:
    world = World(f'{LOG}default.sync_journal = "1s"\n')
    group = world.broker.group
    world.client().puts("first")
    world.turn(ms=1000)
    put_amid_a_sync(world, "second")
    group.redo.carry_out(group.redo.take_sealed())  # as the name of another file is used again
    assert world.crash(Crash.DROP).items() == [b"first", b"second"]
    assert not group.redo.bindings
    world.turn()
    assert world.sync() and list(group.redo.bindings) == ["s/q"]


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_file_that_was_removed_before_the_log_learned_of_it_is_nothing_to_the_log(is_made_again: bool) -> None:
    world = World(f'{LOG}default.sync_journal = "1s"\n')
    group, fs = world.broker.group, world.broker.group.fs
    world.client().puts("first")
    world.turn(ms=1000)
    running = world.start_sync()
    assert running is not None
    world.do_tasks()
    world.client().puts("second")
    running.run()
    world.finish_sync(running)
    fs.remove("s/q")
    if is_made_again:
        fs.append("s/q").close()
    world.turn()
    world.sync()
    assert group.redo.is_in_use and not group.redo.bindings


def test_a_file_that_the_log_learns_of_with_its_sync_is_read_back_whole() -> None:
    world = World('server.redo_log = "checksums"\ndefault.sync_journal = "1s"\n')
    world.client().puts("first")
    world.turn(ms=1000)
    running = world.start_sync()
    assert running is not None
    running.run()
    world.do_tasks()
    for _ in range(6):  # more than is read back of others
        world.client().puts("x" * 1_000_000)
    world.turn(ms=1000)
    world.finish_sync(running)
    assert world.sync()
    assert len(world.crash(Crash.DROP).items()) == 7


def test_a_file_that_was_closed_before_its_sync_stays_in_the_log() -> None:
    world = with_checksums()
    redo = world.broker.group.redo
    journal = world.broker.queues.find("q").journal
    assert journal.try_close(force=True)
    world.client().puts("third")
    world.turn(ms=1000)
    world.sync()
    redo.active.at = redo.active.size  # it is full
    world.client().puts("x", "r")
    world.turn(ms=1000)
    world.sync()
    world.turn()
    world.do_tasks()
    assert "s/q" not in redo.bindings  # everything is synced, and nothing more written
    world.client().puts("fourth")
    assert "s/q" in redo.bindings


def test_a_closed_journal_that_another_program_has_removed_is_misplaced() -> None:
    world = with_checksums()
    assert world.broker.queues.find("q").journal.try_close(force=True)
    world.disk.remove("s/q")
    with pytest.raises(FilesMisplaced, match="s/q was removed"):
        world.client().puts("third")


def first_batch_only(world: World) -> World:
    """What a power cut leaves that comes amid the next write to the log, behind the first batch of it."""
    sync = world.start_sync()
    assert sync is not None and sync.redo is not None
    region: Any = sync.redo.active.region
    at, data = region._staged[0]
    region._staged.clear()
    region.write_at(at, data)
    region.sync()
    return world.crash(Crash.DROP)


def test_an_answer_that_waited_for_its_journal_survives_a_power_cut_amid_what_the_log_learns_of_that() -> None:
    world = World(LOG)
    client = world.client()
    client.puts("x" * 20_000)  # more than a batch
    put_amid_a_sync(world, "second")
    assert client.hears() == "STORED"
    assert [len(item) for item in first_batch_only(world).items()] == [20_000, 6]
    world.sync()
    assert list(world.broker.group.redo.bindings) == ["s/q"]
