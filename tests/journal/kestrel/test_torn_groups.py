"""Changes that are several records, cut off after each of their bytes: a start undoes what is not whole, and takes
nothing of it for the number of the last transaction.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.replay import Replay
from staniel.queues.changes import Opened
from staniel.queues.config import JournalDialect, QueueConfig
from staniel.queues.item import Delivery, Item, item_with
from staniel.queues.line import PlainLine
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from tests.support.records import NOW_MS, addx, state, with_xid
from tests.support.spool import Service, commit, content_of, new_disk, put_file, recover, recovered_state

WHOLE = addx(b"a") + addx(b"b") + with_xid(4, 40) + b"\3"  # an open read, number 41
FLAGGED = Item(b"c", NOW_MS, 0, 0xDEADBEEF)
NOTED = item_with(b"a past", b"d", NOW_MS, 0, 0)
BOTH = item_with(b"a past", b"e", NOW_MS, 0, 3)
DIALECTS = list(JournalDialect)


def encoder_at(counter: int, dialect: JournalDialect = JournalDialect.DOCUMENTS) -> Encoder:
    encoder = Encoder(dialect, counter)
    encoder.open.add(counter)
    return encoder


def started(current: bytes, *sealed: bytes) -> tuple[Replay, bytes, Disk]:
    """What a start makes of files with these bytes, and what it leaves of the current one."""
    disk = new_disk()
    for number, data in enumerate(sealed, 1):
        put_file(disk, f"q.{number}", data)
    put_file(disk, "q", current)
    replay = recover(disk)[2]
    return replay, content_of(disk, "s/q"), disk


def groups() -> list[tuple[str, bytes]]:
    return [
        ("flags", encoder_at(41).addx(FLAGGED)),
        ("a note", encoder_at(41).addx(NOTED)),
        ("a note and flags", encoder_at(41).addx(BOTH)),
        ("a reserve with another number", encoder_at(41).opened(77)),
        ("a reserve with a number that wraps", encoder_at(41).opened(-(2**31))),
    ]


@pytest.mark.parametrize(("name", "group"), groups())
def test_power_fails_during_the_deletion_of_a_queue_whose_last_group_was_cut_off(name: str, group: bytes) -> None:
    """The deletion gives the current file the name of a sealed one, in which every number counts."""
    expected = state(started(with_xid(4, 41), WHOLE)[0])
    for end in range(1, len(group)):
        for steps in range(30):
            disk = started(with_xid(4, 41) + group[:end], WHOLE)[2].kill()
            spool, log, _ = recover(disk)
            assert log is not None
            disk.stop_at = len(disk.log) + steps
            try:
                spool.erase(log, NOW_MS)
            except PowerCut:
                gone = state(Replay(NOW_MS))
                found = state(recover(disk.crash(Crash.KEEP))[2])
                assert found in (expected, gone, (*gone[:2], expected[2])), (name, end, steps)
            else:
                break


@pytest.mark.parametrize(("name", "group"), groups())
@pytest.mark.parametrize("is_after_sealed", [False, True])
def test_a_group_that_is_cut_off_changes_nothing(name: str, group: bytes, is_after_sealed: bool) -> None:
    """The counter decides which transactions of unfinished transfers and purges the journal knows of."""
    sealed, before = ([WHOLE], with_xid(4, 41)) if is_after_sealed else ([], WHOLE)
    expected = state(started(before, *sealed)[0])
    assert expected[2] == 41
    for end in range(len(before), len(before) + len(group)):
        replay, left, _ = started((before + group)[:end], *sealed)
        assert state(replay) == expected and (before + group).startswith(left), (name, end)
        again, same, disk = started(left, *sealed)
        assert (state(again), same) == (expected, left), "a start by itself adds nothing"
        # What follows is no part of it.
        for added in (Item(b"z", NOW_MS), Item(b"z", NOW_MS, 0, 5)):
            disk = disk.kill()
            spool, log, _ = recover(disk)
            assert log is not None
            log.record_added(added)
            commit(spool.group)
            after = recover(disk.kill())[2]
            assert list(after.line.items())[-1].flags == added.flags and after.counter == expected[2], (name, end)


@pytest.mark.pure
@pytest.mark.parametrize("which", [0, 3], ids=["flags", "a reserve"])
def test_a_group_that_is_cut_off_and_believed_would_be_found(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    end_file = Replay.end_file
    monkeypatch.setattr(Replay, "end_file", lambda self, is_sealed: end_file(self, is_sealed=True))
    with pytest.raises(AssertionError):
        test_a_group_that_is_cut_off_changes_nothing(*groups()[which], is_after_sealed=False)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("number", [7, -5, 2**31 - 1])
def test_a_number_behind_the_last_one_never_becomes_it(number: int, dialect: JournalDialect) -> None:
    """Wherever its records are cut off: transactions that came between the two numbers are not forgotten."""
    last = -(2**31) + 3 if number == 2**31 - 1 else 41
    before = with_xid(4, last - 1) + addx(b"a") + addx(b"b") + b"\3"
    group = encoder_at(last, dialect).opened(number)
    for end in range(len(before), len(before) + len(group) + 1):
        replay, left, disk = started((before + group)[:end])
        assert replay.counter == last and len(replay.open) + len(replay.line) == 2
        again, same, disk = started(left)
        assert (state(again), same) == (state(replay), left)
        disk = disk.kill()
        spool, log, _ = recover(disk)
        assert log is not None and log.encoder.counter == last
        log.record_added(Item(b"z", NOW_MS))
        commit(spool.group)
        after = recover(disk.kill())[2]
        assert after.counter == last and list(after.line.items())[-1].flags == 0


def rotate(log: Log, _: Replay) -> None:
    log.rotate(NOW_MS + 1)


def rewrite(log: Log, replay: Replay) -> None:
    log.rewrite(replay.open, list(replay.line.items()), NOW_MS + 1)


@pytest.mark.parametrize("step", [rotate, rewrite])
def test_a_file_that_is_sealed_or_written_anew_behind_a_torn_group_says_the_counter(
    step: Callable[[Log, Replay], None],
) -> None:
    for group in (encoder_at(41).addx(FLAGGED)[:5], encoder_at(41).opened(77)[:5], encoder_at(41).opened(7)[:11]):
        disk = started(WHOLE + group)[2]
        disk = disk.kill()
        spool, log, replay = recover(disk)
        assert log is not None and replay.restores_counter
        step(log, replay)
        assert recover(disk.kill())[2].counter == 41
        log.record_added(FLAGGED)
        commit(spool.group)
        after = recover(disk.kill())[2]
        assert after.counter == 41 and list(after.line.items())[-1].flags == FLAGGED.flags


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_file_never_begins_with_a_group_that_may_be_cut_off(dialect: JournalDialect) -> None:
    """Its first SAVE_XID is the counter, for Kestrel too."""
    first: list[Callable[[Service], None]] = [
        lambda service: service.put(flags=9),
        lambda service: service.log.record(Opened(0, 7)),
    ]
    for act in first:
        service = Service(new_disk(), QueueConfig(journal_dialect=dialect))
        service.start()
        service.put(3)
        service.open()
        service.open()
        service.commit()
        service.rotate()
        act(service)
        service.commit()
        data = content_of(service.disk, "s/q")
        for end in range(len(data)):
            disk = service.disk.crash(Crash.KEEP)
            disk.tear("s/q", len(data) - end)
            assert recover(disk)[2].counter == 2, (act, end)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_counter_of_a_rewritten_file_is_believed_though_no_item_follows(dialect: JournalDialect) -> None:
    for counter in (5, 41, -(2**31), 2**31 - 1):
        held = {5: Delivery(Item(b"o", NOW_MS, 0), 1, 1, 5)}
        data = b"".join(Encoder(dialect).snapshot(counter, held, []))
        replay, left, _ = started(data)
        assert (replay.counter, left, list(replay.open)) == (counter, data, [5])
        data = b"".join(Encoder(dialect).snapshot(counter, {}, []))
        replay, left, _ = started(data)
        assert (replay.counter, left) == (counter, data)


@pytest.mark.parametrize("carried", [0, 4, 41])
def test_the_counter_of_a_file_of_another_program_is_believed(carried: int) -> None:
    """Kestrel leaves no more than that of an empty queue."""
    replay, left, disk = started(with_xid(4, 41), with_xid(4, carried) + addx(b"x") + b"\1")
    assert (replay.counter, left) == (41, with_xid(4, 41))
    replay, left, disk = started(b"", WHOLE + with_xid(4, 99))  # the end of what it has packed
    assert replay.counter == 99 and not disk.inode_at("s/.staniel/damaged/q.1@51+5")


def test_every_pack_of_nothing_is_whole() -> None:
    for counter in (0, 1, 41, -1):
        data = Encoder(JournalDialect.DOCUMENTS).encode_empty(counter)
        replay, left, _ = started(data)
        assert (replay.counter, left) == (counter, data)


def test_replay_in_pieces_finds_the_same_end() -> None:
    data = with_xid(4, 41) + encoder_at(41).addx(BOTH)
    for end in range(len(data)):
        whole, pieces = Replay(NOW_MS, PlainLine()), Replay(NOW_MS, PlainLine())
        for replay, size in ((whole, end), (pieces, 1)):
            replay.begin_file()
            at, want = 0, max(1, size)
            while at < end and want <= end:
                used = replay.consume(data[at : min(end, at + want)], 1 << 20)
                at += used
                want = want + 1 if not used else max(1, size)
                if at + want > end and not used:
                    break
        assert whole.end_file(is_sealed=False) == pieces.end_file(is_sealed=False), end
        assert whole.counter == pieces.counter == (41 if end >= 5 else 0), end


@pytest.mark.parametrize("flags", [1, 2**31 - 1, 2**32 - 1])
def test_each_tear_of_a_batch_leaves_a_prefix_of_its_changes(flags: int) -> None:
    service = Service(new_disk())
    service.start()
    service.put(2)
    service.open()
    service.commit()
    before = len(content_of(service.disk, "s/q"))
    service.put(flags=flags)
    service.open()
    service.confirm()
    service.put(flags=flags)
    service.take()
    service.spool.group.write(service.now_ms)
    data = content_of(service.disk, "s/q")
    allowed = service.states
    for end in range(before, len(data) + 1):
        disk = service.disk.crash(Crash.KEEP)
        disk.tear("s/q", len(data) - end)
        found = recovered_state(disk)
        assert found in allowed, end
        assert recovered_state(disk.kill()) == found  # and again: what was cut off stays cut off
