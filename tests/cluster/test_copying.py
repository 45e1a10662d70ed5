"""The pieces of a copy: every one fits into a message, and they bring over what a member lacks, whatever it has."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from staniel.cluster import compare
from staniel.cluster.compare import CHUNK_BYTES, BadPlan, Sums, digest_of
from staniel.cluster.follower_spool import FollowerSpool, SpoolDiffers
from staniel.cluster.messages import PIECE_BYTES_MAX
from staniel.cluster.places import Place
from staniel.cluster.spool_names import SpoolPaths
from staniel.journal.disk.fs import Fs, JournalFailure, SyncFailed, is_there
from staniel.server.cluster import copying
from staniel.server.cluster.copying import SUM_AHEAD, CopySource, CopyTarget, SpoolSums, digest_ahead, read_sums
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from tests.cluster.spools import contents, empty_disk

PATHS = SpoolPaths("s")
NAMES = ("q", "q.1", "r", "s", "t~~2", ".staniel/paused", ".staniel/undo/7")


def ignore(path: str) -> None:
    """Keep what was read of a file."""


def sums_of(disk: Disk) -> Sums:
    """What a member tells of its files, in pieces that a message takes."""

    def drop_cache(path: str) -> None:
        inode = disk.inode_at(path)
        assert inode is not None
        if not inode.dirty:
            inode.data = bytearray(inode.durable)

    sums, summing, is_last = Sums(), SpoolSums(disk, PATHS, drop_cache), False
    while not is_last:
        piece, is_last = summing.next_piece()
        assert len(piece) <= PIECE_BYTES_MAX and read_sums(sums, piece)
    return sums


def pieces_of(source: CopySource) -> list[bytes]:
    pieces, is_last = [], False
    while not is_last:
        if (read := source.next_piece()) is not None:
            piece, is_last = read
            pieces.append(piece)
    source.close()
    return pieces


def copy(leader: Fs, member: Disk) -> int:
    """Make the member's spool the leader's. Return how many bytes that took."""
    pieces = pieces_of(CopySource(leader, PATHS, "member-1", Place(1, 1), sums_of(member)))
    target = CopyTarget(member, PATHS, ignore)
    for piece in pieces:
        assert len(piece) <= PIECE_BYTES_MAX
        target.write(piece)
    assert target.is_complete
    return sum(map(len, pieces))


def write(disk: Fs, name: str, data: bytes) -> None:
    path = PATHS.path_of(name)
    disk.make_folder(path.rpartition("/")[0])
    file = disk.append(path)
    if file.size:
        disk.truncate(path, 0)
    file.close()
    file = disk.append(path)
    file.write(data)
    file.close()


def spool_with(files: dict[str, bytes]) -> Disk:
    disk = empty_disk("s/.staniel")
    for name, data in files.items():
        write(disk, name, data)
    disk.sync_all("")
    return disk


@pytest.mark.parametrize(("count", "name_bytes", "size"), [(6000, 200, 10), (1500, 20, 0), (3, 10, 700_000)])
def test_a_spool_is_copied_in_pieces_that_a_message_takes(count: int, name_bytes: int, size: int) -> None:
    ours, theirs = empty_disk("s/.staniel"), empty_disk("s/.staniel")
    for number in range(count):
        file = ours.append(f"s/{number:0{name_bytes}}")
        file.write(b"x" * size)
        file.close()
    copy(ours, theirs)
    assert contents(theirs, PATHS) == contents(ours, PATHS)
    assert copy(ours, theirs) < count * (name_bytes + 40) + 1000


def test_a_member_that_has_all_but_an_end_gets_the_end_alone() -> None:
    files = {f"q{number}": Random(number).randbytes(3 << 20) for number in range(4)}
    leader = spool_with({**files, "log": b"begin" * 1000 + b"more" * 250})
    member = spool_with({**files, "log": b"begin" * 1000, "q2": files["q2"] + b"a tail that nobody acknowledged"})
    assert copy(leader, member) < 2500
    assert contents(member, PATHS) == contents(leader, PATHS)


def any_files(chance: Random) -> dict[str, bytes]:
    return {
        name: chance.randbytes(chance.randrange(120)) for name in chance.sample(NAMES, chance.randrange(len(NAMES)))
    }


def any_likeness(chance: Random, files: dict[str, bytes]) -> dict[str, bytes]:
    """Files like these: some are the same, cut, longer, damaged, gone, or others."""
    likes = any_files(chance)
    for name, data in files.items():
        like = bytearray(data[: chance.choice([len(data), chance.randrange(len(data) + 1)])])
        if chance.randrange(3) == 0:
            like += chance.randbytes(chance.randrange(40))
        if like and chance.randrange(3) == 0:
            like[chance.randrange(len(like))] ^= 1
        if chance.randrange(6):
            likes[name] = bytes(like)
    return likes


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_member_has_it_gets_the_files_of_its_leader(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "CHUNK_BYTES", 16)
    monkeypatch.setattr(compare, "SUMS_MAX", 3)
    monkeypatch.setattr(copying, "SLICE_CHUNKS", 2)
    monkeypatch.setattr(copying, "PIECE_BYTES", 100)
    chance = Random(seed)
    files = any_files(chance)
    leader, member = spool_with(files), spool_with(any_likeness(chance, files))
    copy(leader, member)
    assert contents(member, PATHS) == contents(leader, PATHS) == files
    left = member.crash(Crash.DROP)
    assert FollowerSpool(left, PATHS).last == (1, 1) and contents(left, PATHS) == files


def test_a_member_that_is_killed_amid_a_copy_begins_anew_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "CHUNK_BYTES", 16)
    monkeypatch.setattr(copying, "PIECE_BYTES", 40)
    files = {"q": b"a" * 100, "r": b"b" * 100, "s": b"c" * 50}
    had = {"q": b"a" * 70 + b"tail", "s": b"c" * 50, "t": b"d"}
    whole = spool_with(had)
    whole.log.clear()
    copy(spool_with(files), whole)
    assert len(whole.log) > 15
    for stop in range(len(whole.log)):
        member = spool_with(had)
        member.log.clear()
        member.stop_at = stop
        with pytest.raises(PowerCut):
            copy(spool_with(files), member)
        left = member.crash(Crash.KEEP if stop % 2 else Crash.DROP)
        try:
            FollowerSpool(left, PATHS)
        except SpoolDiffers:
            left = left.crash(Crash.KEEP)
            copy(spool_with(files), left)
        assert contents(left.crash(Crash.DROP), PATHS) == files, stop


def test_files_that_change_at_the_leader_meanwhile_are_those_of_the_moment_at_which_they_were_held() -> None:
    files = {"q": b"a" * 100, "r": b"b" * 100, "s": b"c" * 100, ".staniel/paused": b"old"}
    leader, member = spool_with(files), spool_with({"q": b"a" * 90, "r": b"x"})
    source = CopySource(leader, PATHS, "member-1", Place(1, 1), sums_of(member))
    leader.append("s/q").write(b"appended")
    leader.remove("s/r")
    leader.rename("s/s", "s/t")
    write(leader, ".staniel/paused", b"new")
    target = CopyTarget(member, PATHS, ignore)
    for piece in pieces_of(source):
        target.write(piece)
    assert contents(member, PATHS) == files


def test_a_file_of_the_leader_that_is_cut_meanwhile_ends_the_copy() -> None:
    leader = spool_with({"q": b"a" * 100})
    source = CopySource(leader, PATHS, "member-1", Place(1, 1), sums_of(spool_with({"q": b"a" * 100})))
    leader.truncate("s/q", 10)
    with pytest.raises(OSError, match="shorter"):
        pieces_of(source)


@pytest.mark.parametrize("left", [50, 0, -1])
def test_a_file_that_was_cut_or_removed_after_it_was_summed_ends_the_copy(left: int) -> None:
    files = {"q": b"a" * 100, "r": b"b"}
    member = spool_with(files)
    (piece,) = pieces_of(CopySource(spool_with(files), PATHS, "member-1", Place(1, 1), sums_of(member)))
    if left >= 0:
        member.truncate("s/q", left)
    else:
        member.remove("s/q")
    with pytest.raises(BadPlan):
        CopyTarget(member, PATHS, ignore).write(piece)


def test_the_sums_are_those_of_the_disk_and_not_of_what_the_system_has_read_or_could_not_write() -> None:
    """After a sync that failed, the page cache has bytes that the disk has not, and later syncs say nothing of them."""
    files = {"q": b"a" * 100, "r": b"b" * 100}
    leader, member = spool_with(files), spool_with(files)
    sums, summing, is_last = (
        Sums(),
        SpoolSums(member, PATHS, lambda path: write(member, "q", b"a" * 50 + b"?" * 50)),
        False,
    )
    while not is_last:
        piece, is_last = summing.next_piece()
        read_sums(sums, piece)
    target = CopyTarget(member, PATHS, ignore)
    for piece in pieces_of(CopySource(leader, PATHS, "member-1", Place(1, 1), sums)):
        target.write(piece)
    assert contents(member, PATHS) == files


def test_a_file_that_vanishes_while_it_is_summed_is_copied() -> None:
    files = {"q": b"a" * 100, "r": b"b" * 100}
    leader, member = spool_with(files), spool_with(files)
    summing, sums, is_last = SpoolSums(member, PATHS, lambda path: path != "s/r" or member.remove(path)), Sums(), False
    while not is_last:
        piece, is_last = summing.next_piece()
        read_sums(sums, piece)
    assert sums.of("r") == (0, b"") and sums.of("q")[0] == 100
    target = CopyTarget(member, PATHS, ignore)
    for piece in pieces_of(CopySource(leader, PATHS, "member-1", Place(1, 1), sums)):
        target.write(piece)
    assert contents(member, PATHS) == files


def test_a_member_whose_sync_has_failed_gets_all_files() -> None:
    files = {"q": b"a" * 100_000}
    leader, member = spool_with(files), spool_with({**files, ".staniel/failed_sync": b""})
    assert copy(leader, member) > 100_000
    assert contents(member, PATHS) == files


def test_sums_that_are_none_or_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "SUMS_BYTES_MAX", 100)
    sums = Sums()
    assert not read_sums(sums, b"\xc1") and not read_sums(sums, b"\x91\x01") and read_sums(sums, b"\x90")
    piece, _ = SpoolSums(spool_with({f"q{number}": b"x" for number in range(10)}), PATHS, ignore).next_piece()
    assert not read_sums(sums, piece)


SYNCS = ("sync", "sync_folder", "sync_all")


@pytest.mark.parametrize("verb", SYNCS)
def test_a_copy_that_is_begun_anew_after_a_failed_sync_makes_the_names_of_the_first_one_durable(verb: str) -> None:
    files = {"q": b"a" * 100, "r": b"", ".staniel/undo/7": b"u", ".staniel/keys/1": b""}
    had = {"q": b"a" * 70}
    for after in range(30):
        member = spool_with(had)
        member.fail(verb, "", errno.EIO, after=after)
        try:
            copy(spool_with(files), member)
        except (JournalFailure, SyncFailed):
            copy(spool_with(files), member.kill())
        else:
            break
        left = member.crash(Crash.DROP)
        assert contents(left, PATHS) == files and FollowerSpool(left, PATHS).last == (1, 1), after
    assert after > 0


def test_a_file_whose_name_is_in_the_cache_alone_is_kept_by_a_copy_that_has_nothing_to_write_to_it() -> None:
    files = {"q": b"a" * 100, "r": b""}
    member = empty_disk("s/.staniel")
    for name, data in files.items():
        write(member, name, data)
        member.append(PATHS.path_of(name)).sync()
    member.fail("sync_folder", "/s", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        member.sync_folder("s")
    assert copy(spool_with(files), member.kill()) < 200
    assert contents(member.crash(Crash.DROP), PATHS) == files


def test_an_index_that_was_removed_in_the_cache_alone_does_not_come_back_after_a_copy() -> None:
    member, folder = spool_with({"q": b"a"}), "s/.staniel/segments"
    write(member, ".staniel/segments/q.7", b"index")
    member.sync_all("")
    member.remove(f"{folder}/q.7")
    member.fail("sync_folder", "/segments", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        member.sync_folder(folder)
    copy(spool_with({"q": b"a"}), member.kill())
    assert member.crash(Crash.DROP).list(folder) == []


def test_the_mark_of_a_failed_sync_stays_until_the_copy_is_complete() -> None:
    files = {"q": b"a" * 100}
    mark = "s/.staniel/failed_sync"
    leader, member = spool_with(files), spool_with({**files, ".staniel/failed_sync": b""})
    (piece,) = pieces_of(CopySource(leader, PATHS, "member-1", Place(1, 1), sums_of(member)))
    member.fail("sync_all", "", errno.EIO)
    with pytest.raises(JournalFailure):
        CopyTarget(member, PATHS, ignore).write(piece)
    assert is_there(member.kill(), mark)
    assert copy(leader, member) > 100 and not is_there(member.crash(Crash.DROP), mark)


def test_digests_that_threads_make_ahead_are_those_of_the_chunks_in_order() -> None:
    chunks = [bytes([number]) * (CHUNK_BYTES - number) for number in range(3 * SUM_AHEAD)]
    with ThreadPoolExecutor(2) as pool:
        assert list(digest_ahead(pool, iter(chunks))) == [digest_of(chunk) for chunk in chunks]
    member = spool_with({"q": b"".join([bytes([number]) * CHUNK_BYTES for number in range(12)]) + b"end"})
    size, digests = sums_of(member).of("q")
    expected = [digest_of(bytes([number]) * CHUNK_BYTES) for number in range(12)] + [digest_of(b"end")]
    assert (size, bytes(digests)) == (12 * CHUNK_BYTES + 3, b"".join(expected))


def test_a_copy_is_written_to_the_disk_while_its_pieces_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "CACHED_BYTES", 2 << 20)
    written: list[tuple[str, int]] = []
    leader, member = spool_with({"q": b"a" * (5 << 20)}), spool_with({})
    target = CopyTarget(member, PATHS, lambda path: written.append((path, member.size(path))))
    for piece in pieces_of(CopySource(leader, PATHS, "member-1", Place(1, 1), sums_of(member))):
        target.write(piece)
    assert [path for path, _ in written] == ["s/q", "s/q"]
    assert written[0][1] >= 2 << 20 and written[1][1] >= 4 << 20
