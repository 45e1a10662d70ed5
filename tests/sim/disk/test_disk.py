"""The fake disk keeps what was synced, loses what was not, and fails where it is told to."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from staniel.journal.disk.fs import AlreadyLocked, Fs, SyncFailed
from staniel.journal.disk.replace_file import replace_file
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash


def new_disk(capacity_bytes: int = 1 << 20) -> Disk:
    """A disk with a durable, empty folder `s`."""
    disk = Disk(capacity_bytes)
    disk.make_folder("s")
    disk.sync_folder("")
    return disk


def chooser(seed: int) -> Callable[[int], int]:
    return random.Random(seed).randrange


def content(disk: Disk, path: str) -> bytes:
    return disk.read(path, 0, 1 << 30)


def names(disk: Disk) -> list[str]:
    return [name for name, _ in disk.list("s")]


def put(disk: Disk, path: str, data: bytes, *, sync: bool = True) -> None:
    file = disk.append(path)
    file.write(data)
    if sync:
        file.sync()
    file.close()


def durable(disk: Disk, path: str, data: bytes) -> None:
    put(disk, path, data)
    disk.sync_folder("s")


def test_it_is_what_the_journal_asks_of_a_disk() -> None:
    fs: Fs = new_disk()
    put(fs, "s/q", b"abcdef")  # type: ignore[arg-type]
    assert (fs.size("s/q"), fs.read("s/q", 2, 3), fs.read("s/q", 5, 9)) == (6, b"cde", b"f")
    assert fs.list("s") == [("q", True)]
    assert fs.list("") == [("s", False)]


@pytest.mark.parametrize("verb", ["read", "size", "remove", "rename", "truncate", "list"])
def test_what_is_not_there_is_not_found(verb: str) -> None:
    arguments = {"read": ("s/q", 0, 1), "rename": ("s/q", "s/r"), "truncate": ("s/q", 0), "list": ("t",)}
    with pytest.raises(FileNotFoundError):
        getattr(new_disk(), verb)(*arguments.get(verb, ("s/q",)))


def test_an_unsynced_write_is_dropped_or_kept() -> None:
    disk = new_disk()
    durable(disk, "s/q", b"safe")
    put(disk, "s/q", b"+more", sync=False)
    assert content(disk.crash(Crash.DROP), "s/q") == b"safe"
    assert content(disk.crash(Crash.KEEP), "s/q") == b"safe+more"


def test_a_synced_file_in_an_unsynced_folder_has_no_name() -> None:
    disk = new_disk()
    put(disk, "s/q", b"safe")
    assert names(disk.crash(Crash.DROP)) == []
    assert content(disk.crash(Crash.KEEP), "s/q") == b"safe"


def test_a_synced_name_does_not_bring_the_bytes() -> None:
    disk = new_disk()
    put(disk, "s/q", b"lost", sync=False)
    disk.sync_folder("s")
    assert content(disk.crash(Crash.DROP), "s/q") == b""


def test_an_unsynced_rename_over_a_file_leaves_the_old_one_or_the_new_one() -> None:
    disk = new_disk()
    durable(disk, "s/q", b"old")
    put(disk, "s/t", b"new")
    disk.rename("s/t", "s/q")
    left = {content(disk.crash(chooser(seed)), "s/q") for seed in range(40)}
    assert left == {b"old", b"new"}
    assert names(disk) == ["q"]


def test_no_step_on_a_name_survives_the_loss_of_an_earlier_one_on_it() -> None:
    disk = new_disk()
    durable(disk, "s/q", b"old")
    put(disk, "s/t", b"new")
    disk.rename("s/q", "s/q.1")
    disk.rename("s/t", "s/q")
    seen = set()
    for seed in range(200):
        left = disk.crash(chooser(seed))
        seen.add(tuple((name, content(left, f"s/{name}")) for name in names(left)))
    old, new = ("q", b"old"), ("q", b"new")
    moved = ("q.1", b"old")
    assert seen == {(old,), (old, ("t", b"new")), (moved,), (moved, ("t", b"new")), (new, moved)}


def test_independent_removals_are_lost_in_any_combination() -> None:
    disk = new_disk()
    for name in "abc":
        put(disk, f"s/{name}", b"")
    disk.sync_folder("s")
    for name in "abc":
        disk.remove(f"s/{name}")
    assert {tuple(names(disk.crash(chooser(seed)))) for seed in range(300)} == {
        tuple(name for name, kept in zip("abc", (bits & 1, bits & 2, bits & 4), strict=True) if kept)
        for bits in range(8)
    }


def test_what_is_left_of_unsynced_writes_is_a_prefix_with_at_most_one_torn_write() -> None:
    disk = new_disk()
    durable(disk, "s/q", b"safe")
    file = disk.append("s/q")
    file.write(b"1" * 1000)
    file.write(b"2" * 1000)
    whole = b"safe" + b"1" * 1000 + b"2" * 1000
    sizes = set()
    for seed in range(400):
        left = content(disk.crash(chooser(seed)), "s/q")
        assert left.startswith(b"safe")
        written = left.rstrip(b"\0")
        assert whole.startswith(written)
        sizes.add(len(written))
        assert len(left) == len(written) or len(left) in (1004, 2004)
    assert {4, 512, 1004, 1536, 2004} <= sizes
    assert any(size % 512 and size not in (4, 1004, 2004) for size in sizes)


def test_a_cut_is_durable_once_it_returns() -> None:
    disk = new_disk()
    durable(disk, "s/q", b"abcdef")
    disk.truncate("s/q", 2)
    assert content(disk.crash(Crash.DROP), "s/q") == b"ab"
    assert disk.used_bytes == 2


def test_a_removed_file_lives_on_for_whoever_has_it_open() -> None:
    disk = new_disk()
    file = disk.append("s/q")
    file.write(b"abc")
    disk.remove("s/q")
    file.write(b"def")
    file.sync()
    assert disk.used_bytes == 6
    file.close()
    assert disk.used_bytes == 0


def test_the_same_chooser_leaves_the_same_disk() -> None:
    disk = new_disk()
    for name in "abcd":
        put(disk, f"s/{name}", name.encode() * 700, sync=False)

    def left(seed: int) -> list[tuple[str, bytes]]:
        crashed = disk.crash(chooser(seed))
        return [(name, content(crashed, f"s/{name}")) for name in names(crashed)]

    assert all(left(seed) == left(seed) for seed in range(30))
    assert len({tuple(left(seed)) for seed in range(30)}) > 10


def test_a_full_disk_takes_what_fits_then_says_so() -> None:
    disk = new_disk(capacity_bytes=10)
    file = disk.append("s/q")
    file.write(b"1234567")
    with pytest.raises(OSError) as full:
        file.write(b"890abc")
    assert full.value.errno == errno.ENOSPC
    assert (file.size, content(disk, "s/q"), disk.free_bytes("s")) == (10, b"1234567890", (0, 10))


def test_allocated_space_counts_until_it_is_removed() -> None:
    disk = new_disk(capacity_bytes=100)
    disk.allocate("s/ballast", 60)
    assert disk.free_bytes("s") == (40, 100)
    assert disk.crash(Crash.KEEP).free_bytes("s") == (40, 100)
    with pytest.raises(OSError):
        disk.allocate("s/more", 41)
    assert names(disk) == ["ballast"]
    disk.remove("s/ballast")
    assert disk.free_bytes("s") == (100, 100)


def test_a_fault_strikes_after_the_given_number_of_steps_on_matching_paths() -> None:
    disk = new_disk()
    disk.fail("write", "q", errno.EIO, after=1, short=2)
    other, file = disk.append("s/other"), disk.append("s/q")
    other.write(b"x")
    file.write(b"one")
    with pytest.raises(OSError) as failed:
        file.write(b"two")
    assert (failed.value.errno, file.size) == (errno.EIO, 5)
    file.write(b"three")
    assert content(disk, "s/q") == b"onetwthree"


def test_after_a_failed_sync_the_pages_look_clean_and_are_not() -> None:
    disk = new_disk()
    durable(disk, "s/q", b"safe")
    disk.fail("sync", "q", errno.EIO)
    file = disk.append("s/q")
    file.write(b"gone")
    with pytest.raises(OSError):
        file.sync()
    file.sync()
    assert content(disk, "s/q") == b"safegone"
    assert content(disk.crash(Crash.DROP), "s/q") == content(disk.crash(Crash.KEEP), "s/q") == b"safe"


def test_a_failed_sync_of_a_folder_forgets_its_names() -> None:
    disk = new_disk()
    put(disk, "s/q", b"x")
    disk.fail("sync_folder", "s", errno.EIO)
    with pytest.raises(OSError):
        disk.sync_folder("s")
    disk.sync_folder("s")
    assert names(disk) == ["q"]
    assert names(disk.crash(Crash.KEEP)) == []


def test_a_new_folder_and_those_above_it_are_there_for_good() -> None:
    disk = Disk()
    disk.make_folder("a/b")
    disk.make_folder("a/b")
    assert disk.crash(Crash.DROP).list("a") == [("b", False)]
    assert [op.verb for op in disk.log] == ["make_folder", "sync_folder"] * 2


def test_the_power_can_be_cut_before_any_step() -> None:
    for stop in range(1, 4):
        disk = new_disk()
        stop += len(disk.log)
        disk.stop_at = stop
        with pytest.raises(PowerCut):
            durable(disk, "s/q", b"abc")
        assert len(disk.log) == stop
        assert names(disk.crash(Crash.KEEP)) == ["q"]
        assert names(disk.crash(Crash.DROP)) == []


def test_a_killed_process_leaves_its_caches_and_loses_its_lock() -> None:
    disk = new_disk()
    disk.lock("s/lock")
    with pytest.raises(AlreadyLocked):
        disk.lock("s/lock")
    put(disk, "s/q", b"abc", sync=False)
    killed = disk.kill()
    killed.lock("s/lock")
    assert content(killed, "s/q") == b"abc"
    assert names(killed.crash(Crash.DROP)) == []


def test_the_log_tells_every_step_in_order() -> None:
    disk = new_disk()
    before = len(disk.log)
    durable(disk, "s/q", b"abc")
    disk.rename("s/q", "s/r")
    verbs = [(op.verb, op.path) for op in disk.log[before:]]
    assert verbs == [("create", "s/q"), ("write", "s/q"), ("sync", "s/q"), ("sync_folder", "s"), ("rename", "s/q")]


def test_a_replaced_file_is_the_old_one_or_the_new_one_wherever_the_power_fails() -> None:
    found = set()
    for stop in range(20):
        disk = new_disk()
        durable(disk, "s/status", b"old")
        disk.stop_at = len(disk.log) + stop
        try:
            replace_file(disk, "s/status", b"new")
        except PowerCut:
            found |= {content(disk.crash(chooser(seed)), "s/status") for seed in range(20)}
        else:
            assert content(disk.crash(Crash.DROP), "s/status") == b"new" and names(disk) == ["status"]
    assert found == {b"old", b"new"}


def test_a_second_name_is_the_same_file_whatever_becomes_of_the_first() -> None:
    disk = Disk()
    file = disk.append("a")
    file.write(b"one")
    disk.link("a", "b")
    file.write(b"two")
    used = disk.used_bytes
    disk.remove("a")
    assert disk.read("b", 0, 9) == b"onetwo" and disk.used_bytes == used
    with pytest.raises(FileExistsError):
        disk.link("b", "b")
    file.sync()
    assert disk.crash(Crash.DROP).list("") == []
    disk.sync_folder("")
    assert disk.crash(Crash.DROP).read("b", 0, 9) == b"onetwo"
    file.close()
    disk.remove("b")
    assert disk.used_bytes == 0


CALLS: dict[str, Callable[[Disk], object]] = {
    "reader": lambda disk: disk.reader("a"),
    "size": lambda disk: disk.size("a"),
    "overwrite": lambda disk: disk.overwrite("a"),
    "is_same_device": lambda disk: disk.is_same_device("a", ""),
    "is_at": lambda disk: disk.append("a").is_at("a"),
    "lock": lambda disk: disk.lock("a"),
    "is_locked": lambda disk: disk.is_locked("a"),
    "hold": lambda disk: disk.hold("a", shared=True),
}


@pytest.mark.parametrize("verb", CALLS)
def test_calls_that_change_no_bytes_can_be_refused_once(verb: str) -> None:
    disk = Disk()
    disk.append("a").close()
    disk.fail(verb, "a", errno.ENFILE)
    with pytest.raises(OSError, match="Too many open files in system") as refused:
        CALLS[verb](disk)
    assert (refused.value.errno, refused.value.filename) == (errno.ENFILE, "a")
    CALLS[verb](disk)


def test_a_fork_has_the_same_caches_and_goes_its_own_way() -> None:
    disk = new_disk()
    durable(disk, "s/q", b"safe")
    put(disk, "s/q", b"+more", sync=False)
    disk.make_folder("t")
    disk.rename("s/q", "t/q")
    put(disk, "s/r", b"new")
    disk.link("s/r", "s/r2")
    twin = disk.fork()
    for seed in range(60):
        assert twin.crash(chooser(seed)).digest() == disk.crash(chooser(seed)).digest()
    before = disk.digest()
    assert twin.digest() == before and twin.used_bytes == disk.used_bytes
    put(twin, "s/r2", b"er")
    twin.sync_all("")
    assert content(twin, "s/r") == b"newer" and disk.digest() == before


def test_a_digest_tells_disks_apart_as_a_start_can() -> None:
    def made(*files: tuple[str, bytes], link: str = "") -> Disk:
        disk = new_disk()
        for path, data in files:
            put(disk, path, data)
        if link:
            disk.link(files[0][0], link)
        return disk

    later, numbered, reserved = made(("s/q", b"a")), made(("s/q", b"a")), made(("s/q", b"a"))
    later.boots += 1
    numbered.unique_id()
    reserved.set_aside("s/q", 9)
    folder = made(("s/q", b"a"))
    folder.make_folder("s/t")
    others = [
        made(), made(("s/q", b"a")), made(("s/q", b"b")), made(("s/r", b"a")), made(("s/q", b"a"), link="s/r"),
        made(("s/q", b"a"), ("s/r", b"a")), later, numbered, reserved, folder,
    ]  # fmt: skip
    assert len({disk.digest() for disk in others}) == len(others)
    assert made(("s/q", b"a")).digest() == others[1].digest() == made(("s/q", b"a")).copy().digest()


@pytest.mark.parametrize("folder", ["s", "t"])
def test_a_rename_to_another_folder_is_lost_in_both_when_the_sync_of_one_fails(folder: str) -> None:
    for seed in range(30):
        disk = new_disk()
        disk.make_folder("t")
        durable(disk, "s/q", b"safe")
        disk.rename("s/q", "t/q")
        disk.fail("sync_folder", folder, errno.EIO)
        with pytest.raises(SyncFailed):
            disk.sync_folder(folder)
        disk.sync_folder("s" if folder == "t" else "t")
        for how in (Crash.DROP, Crash.KEEP, chooser(seed)):
            left = disk.crash(how)
            assert names(left) == ["q"] and not left.list("t")
