"""Recovery: the order of files, what is finished, what is cut, what is kept aside, and what is left alone."""

from __future__ import annotations

import errno

import pytest

from staniel.journal.disk.fs import AlreadyLocked
from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.kestrel.files import sidecar_folder
from staniel.journal.kestrel.recovery import Recovered
from staniel.journal.spool import Spool, SpoolError
from staniel.queues.config import JournalDialect, QueueConfig
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from tests.support.records import NOW_MS, addx
from tests.support.spool import content_of, crashes, journals, new_disk, put_file


def recovered_on(disk: Disk) -> Recovered:
    spool = Spool(disk, "s")
    return spool.recover("q", spool.listing().kestrel["q"], QueueConfig(), NOW_MS)[0]


def items(disk: Disk) -> list[bytes]:
    return [item.data for item in recovered_on(disk).replay.line.items()]


def spool_of(files: dict[str, bytes]) -> Disk:
    disk = new_disk()
    for name, data in files.items():
        put_file(disk, name, data)
    Spool(disk, "s")
    disk.sync_folder("s")
    return disk.crash(Crash.DROP)


def test_files_are_replayed_by_number_and_the_current_one_last() -> None:
    disk = spool_of({"q": addx(b"4"), "q.10": addx(b"3"), "q.9": addx(b"2"), "q.009": addx(b"1")})
    assert items(disk) == [b"1", b"2", b"3", b"4"]


def test_temporary_files_go_and_the_newest_pack_replaces_what_it_covers() -> None:
    files = {"q.5": b"old", "q.7": b"old", "q.6.pack": b"older pack", "q.7.pack": addx(b"1"), "q.8": addx(b"2")}
    disk = spool_of({**files, "q": addx(b"3"), "q~~9": b"half a file"})
    assert items(disk) == [b"1", b"2", b"3"]
    assert journals(disk) == ["q", "q.7", "q.8"]


@pytest.mark.parametrize("said", [b"", b"\4\0\0\0\7"])
def test_a_pack_that_says_nothing_replaces_nothing_and_is_set_aside(said: bytes) -> None:
    disk = spool_of({"q.5": addx(b"old"), "q.5.pack": said, "q": addx(b"new")})
    spool = Spool(disk, "s")
    recovered, _ = spool.recover("q", spool.listing().kestrel["q"], QueueConfig(), NOW_MS)
    assert [damage.file for damage in recovered.damages] == ["q.5.pack"]
    assert [item.data for item in recovered.replay.line.items()] == [b"old", b"new"]
    assert content_of(disk, recovered.damages[0].saved_as) == said and "q.5.pack" not in journals(disk)


def test_a_pack_of_an_empty_state_is_told_apart_from_one_that_was_cut_off() -> None:
    disk = spool_of(
        {"q.5": addx(b"old"), "q.5.pack": Encoder(JournalDialect.DOCUMENTS).encode_empty(7), "q": addx(b"new")}
    )
    assert items(disk) == [b"new"]


def test_power_fails_anywhere_while_packs_are_finished() -> None:
    files = {"q.5": addx(b"x"), "q.6": addx(b"x"), "q.6.pack": addx(b"x"), "q.7.pack": addx(b"1"), "q": addx(b"2")}
    steps = 0
    for stop in range(20):
        disk = spool_of(files)
        spool = Spool(disk, "s")
        disk.make_folder(sidecar_folder("s"))
        disk.stop_at = len(disk.log) + stop
        try:
            spool.recover("q", spool.listing().kestrel["q"], QueueConfig(), NOW_MS)
        except PowerCut:
            steps += 1
        disk.stop_at = None
        for how in crashes(40):
            left = disk.crash(how)
            assert items(left) == [b"1", b"2"]
            assert journals(left) == ["q", "q.7"]
    # A list that is created, written, synced and renamed, and its folder synced; no sidecars, and a sync; three covered
    # files, a sync, the new name, a sync; the removal of the list.
    assert steps == 13


@pytest.mark.parametrize("lost", [b"\2", addx(b"torn")[:-1], b"\xff rubbish", bytes(600)])
def test_a_torn_end_is_kept_aside_then_cut_off(lost: bytes) -> None:
    disk = spool_of({"q.5": addx(b"1"), "q": addx(b"2") + lost})
    recovered = recovered_on(disk)
    (damage,) = recovered.damages
    at = len(addx(b"2"))
    assert (damage.file, damage.at, damage.lost_bytes) == ("q", at, len(lost)) and damage.why
    assert content_of(disk, "s/q") == addx(b"2") and content_of(disk, damage.saved_as) == lost
    assert [item.data for item in recovered.replay.line.items()] == [b"1", b"2"]
    again = recovered_on(disk.crash(Crash.KEEP))
    assert again.damages == [] and len(again.replay.line) == 2


def test_the_copy_is_synced_before_the_cut() -> None:
    disk = spool_of({"q": addx(b"1") + b"\xff"})
    recovered_on(disk)
    steps = [(op.verb, op.path.rpartition("/")[2].partition("@")[0]) for op in disk.log]
    assert steps[-6:] == [
        ("create", "q"),
        ("write", "q"),
        ("sync", "q"),
        ("sync_folder", "damaged"),
        ("truncate", "q"),
        ("sync", "q"),
    ]


def test_power_fails_after_the_cut_and_what_was_cut_off_is_still_there() -> None:
    disk = spool_of({"q": addx(b"1") + b"\xff"})
    (damage,) = recovered_on(disk).damages
    assert content_of(disk.crash(Crash.DROP), damage.saved_as) == b"\xff"


def test_power_fails_anywhere_while_a_torn_end_is_cut() -> None:
    for stop in range(10):
        disk = spool_of({"q.5": addx(b"1"), "q": addx(b"2") + b"\xff" * 700})
        spool = Spool(disk, "s")
        disk.stop_at = len(disk.log) + stop
        try:
            spool.recover("q", spool.listing().kestrel["q"], QueueConfig(), NOW_MS)
        except PowerCut:
            pass
        disk.stop_at = None
        for how in crashes(5):
            assert items(disk.crash(how)) == [b"1", b"2"]


def test_a_damaged_archive_is_left_as_it_is_and_later_files_still_count() -> None:
    disk = spool_of({"q.5": addx(b"1") + b"\xff" + addx(b"unread"), "q.6": addx(b"2"), "q": addx(b"3")})
    recovered = recovered_on(disk)
    assert [item.data for item in recovered.replay.line.items()] == [b"1", b"2", b"3"]
    assert [(damage.file, damage.at, damage.saved_as) for damage in recovered.damages] == [
        ("q.5", 22, "s/.staniel/damaged/q.5@22+28")
    ]
    assert content_of(disk, "s/q.5") == addx(b"1") + b"\xff" + addx(b"unread")


def test_an_item_longer_than_a_piece_is_read() -> None:
    long = bytes(5 << 20)
    disk = spool_of({"q": addx(b"1") + addx(long) + addx(b"2")})
    assert items(disk) == [b"1", long, b"2"]


def test_a_disk_that_refuses_is_not_damage() -> None:
    disk = spool_of({"q": addx(b"1")})
    disk.fail("read", "s/q", errno.EIO)
    with pytest.raises(OSError):
        recovered_on(disk)
    assert content_of(disk, "s/q") == addx(b"1")


def test_only_the_four_documented_names_are_journals() -> None:
    files = ["q", "q.5", "q.6.pack", "q~~7", "q.5.old", "q.bak", "q.-5", "q~", ".q", "q.", "x.5.packed", "q~~x", "r+s"]
    disk = spool_of(dict.fromkeys(files, b""))
    found = Spool(disk, "s").listing()
    queues, foreign = found.kestrel, found.foreign
    assert sorted(queues) == ["q", "r+s"]
    assert foreign == sorted(["q.5.old", "q.bak", "q.-5", "q~", ".q", "q.", "x.5.packed", "q~~x"])
    assert (queues["q"].archives, queues["q"].packs, queues["q"].temps) == ({"q.5": 5}, {"q.6.pack": 6}, ["q~~7"])


def test_a_folder_named_like_a_journal_is_left_alone() -> None:
    disk = spool_of({})
    disk.make_folder("s/q")
    found = Spool(disk, "s").listing()
    assert (found.kestrel, found.foreign) == ({}, ["q"])


def test_a_spool_is_locked_and_free_again_after_a_kill() -> None:
    disk = new_disk()
    Spool(disk, "s")
    with pytest.raises(AlreadyLocked):
        Spool(disk, "s")
    Spool(disk.kill(), "s")


def test_a_spool_of_another_version_is_refused() -> None:
    disk = spool_of({})
    disk.truncate("s/.staniel/version", 0)
    file = disk.append("s/.staniel/version")
    file.write(b"staniel-spool 99\n")
    file.close()
    with pytest.raises(SpoolError, match="staniel-spool 99"):
        Spool(disk, "s")


def test_a_spool_that_cannot_be_used_says_so() -> None:
    disk = new_disk()
    disk.fail("make_folder", "s", errno.EACCES)
    with pytest.raises(SpoolError, match="Permission denied"):
        Spool(disk, "s")


def test_a_first_start_that_is_interrupted_anywhere_can_be_repeated() -> None:
    for stop in range(2, 12):
        disk = new_disk()
        disk.stop_at = stop
        try:
            Spool(disk, "s")
        except PowerCut:
            pass
        disk.stop_at = None
        for how in crashes(10):
            Spool(disk.crash(how), "s")


def test_a_spool_made_by_the_first_start_survives_power_loss() -> None:
    disk = Disk()
    spool = Spool(disk, "new")
    spool.create("q", QueueConfig(), NOW_MS)
    spool.group.sync_all(NOW_MS)
    assert ("q", True) in disk.crash(Crash.DROP).list("new")
