"""The table of refused_calls.md: what a refused call on a file costs, walked with the errnos that manuals list."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import Struct

from staniel.journal.disk import os_fs
from staniel.journal.disk.fs import BROKEN_ERRNOS, FULL_ERRNOS, JournalFailure, SyncFailed
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.spool import SpoolError
from staniel.server.machine import file_bytes_max, raise_file_limit
from staniel.sim.disk.disk import Disk
from tests.faults.refused_calls import GROUPS, OTHERS
from tests.journal.disk.test_refusals import ALWAYS, SMALL, drained
from tests.support.spool import put_file
from tests.support.streams import asks
from tests.support.world import World

FAULTS = Path(__file__).parent / "refused_calls.md"
OPEN = "EACCES EPERM EROFS ENAMETOOLONG EMFILE ENFILE ENOMEM ELOOP ESTALE EIO EDQUOT ETXTBSY ENODEV ENXIO EOVERFLOW"
READ = "EACCES EPERM EIO ESTALE ENOMEM EMFILE ENFILE ELOOP ENODEV"
NAMES = "EACCES EPERM EROFS EXDEV ENAMETOOLONG EBUSY ENOSYS EDQUOT ENOSPC EMLINK ENOMEM ESTALE EIO ELOOP"
SPACE = "EFBIG EPERM ENOSYS EOPNOTSUPP EACCES EIO EINTR ENODEV ETXTBSY ENOSPC EDQUOT"
STATFS = "EACCES EIO ENOMEM ENOSYS EPERM EOVERFLOW ELOOP ENAMETOOLONG"
LOCK = "EACCES EPERM ENOLCK ENOSYS EOPNOTSUPP EMFILE ENFILE ENOMEM EROFS EIO ESTALE"
WRITE = "EFBIG EPERM EACCES EBUSY EAGAIN ENOMEM EIO EROFS ESTALE"
ERRNOS = "EACCES EPERM EROFS EXDEV ENAMETOOLONG EFBIG ESTALE EBUSY ENOSYS ENOLCK EDQUOT EMFILE ENOMEM EAGAIN"
"""Those that are walked, here and where real servers are refused calls."""


class Row(Struct, frozen=True):
    """`call` on paths with `path`, from the start on or once the server serves. `event`: what the log says; "": the
    start is refused, and the text names the file.
    """

    verb: str
    path: str
    errnos: str
    costs: str
    event: str
    at_start: bool


TABLE = {
    "open a journal at a start": Row("open", "s/q", OPEN, "its queue", "journal.unreadable", True),
    "read a journal at a start": Row("read", "s/q", READ, "its queue", "journal.unreadable", True),
    "read `intents`": Row("read", "s/.staniel/intents", READ, "the start", "", True),
    "read `paused`": Row("read", "s/.staniel/paused", READ, "the start", "", True),
    "read `status`": Row("read", "s/.staniel/status", READ, "the start", "", True),
    "read `version`": Row("read", "s/.staniel/version", READ, "the start", "", True),
    "read `last_backup`": Row("read", "s/.staniel/last_backup", READ, "the start", "", True),
    "lock the spool": Row("lock", "s/.staniel/lock", LOCK, "the start", "", True),
    "list `.staniel/undo`": Row("list", "s/.staniel/undo", READ, "the start", "", True),
    "list the spool": Row("list", "s", READ, "the start", "", True),
    "make a folder in `.staniel`": Row("make_folder", "s/.staniel/segments", NAMES, "sidecars", "", False),
    "write a sidecar": Row("create", "s/.staniel/segments", OPEN, "sidecars", "journal.sidecar_failed", False),
    "rename a journal to rotate it": Row("rename", "s/q", NAMES, "the rotation", "journal.rotate_failed", False),
    "create the next file of a journal": Row("create", "s/q~~", OPEN, "the rotation", "journal.rotate_failed", False),
    "remove a sidecar": Row("remove", "s/.staniel/segments", NAMES, "the pack", "journal.pack_failed", False),
    "allocate the reserve": Row("allocate", "ballast", SPACE, "the reserve", "spool.no_reserve", True),
    "ask for free space": Row("statfs", "", STATFS, "the figure", "spool.space_unknown", True),
    "create the journal of a new queue": Row("create", "s/new", OPEN, "that request", "", False),
    "remove the first file of a queue that is deleted": Row(
        "remove", "s/gone", NAMES, "that request", "queue.undeleted", False
    ),
    "remove the other files of a queue that is deleted": Row(
        "remove", "s/gone.", NAMES, "its name", "queue.unremoved", False
    ),
}


REFUSALS, LEFT_OVER = "tests.journal.disk.test_refusals", "tests.broker.test_leftover_files"
JOBS = "tests.journal.workq.test_recovery"
UNREMOVED = "tests.broker.maintenance.test_unremoved_files"
HERE = "tests.journal.disk.test_refused_calls"
ELSEWHERE = {
    "sync the file system": (HERE, "test_without_syncfs_each_file_is_synced"),
    "set a thread's priority": (
        "tests.server.test_system_calls",
        "test_a_thread_whose_priority_may_not_be_changed_runs_its_tasks",
    ),
    "raise a limit": (HERE, "test_a_limit_that_may_not_be_raised_is_what_it_was"),
    "start one of the two threads, for syncs and for what is done in the background": (
        "tests.server.test_thread_limit",
        "test_a_thread_that_may_not_be_started_ends_the_start_with_one_line_that_says_what_to_raise",
    ),
    "write to a journal": (HERE, "test_a_refused_write_to_a_journal_ends_the_process_without_a_mark"),
    "sync a file, a folder or the file system": ("tests.journal.disk.test_failed_syncs", "test_at_a_rotation"),
    "open a journal again whose file was closed for others": (
        "tests.journal.disk.test_reopened_files",
        "test_what_is_refused_for_a_while_is_written_once_that_is_let_and_answered_then",
    ),
    "open a libkestrel file whose queue a reload gives a stricter `sync_journal`": (
        "tests.broker.streams.test_families",
        "test_a_reload_makes_a_reader_stricter_whose_files_cannot_be_opened_for_now",
    ),
    "create the next segment of the command log": (
        JOBS,
        "test_a_log_whose_next_segment_is_refused_grows_on_in_the_present_one",
    ),
    "remove an empty segment of the command log at a start": (
        JOBS,
        "test_empty_segments_that_stay_take_the_next_records",
    ),
    "create the next segment of a libkestrel queue": (
        REFUSALS,
        "test_a_libkestrel_segment_that_is_refused_lets_the_one_before_it_grow",
    ),
    "remove a file that a pack has replaced, or give the pack its archive's name": (
        UNREMOVED,
        "test_files_that_a_pack_has_replaced_and_that_stay_cost_a_warning_and_go_later",
    ),
    "remove a temporary file at a start, or move an empty pack away": (
        LEFT_OVER,
        "test_temporary_files_that_stay_cost_a_warning_each",
    ),
    "remove a libkestrel segment without items at a start": (
        LEFT_OVER,
        "test_a_segment_without_items_that_stays_gives_its_number_to_no_other",
    ),
    "remove a default reader that a crash has left beside named ones": (
        LEFT_OVER,
        "test_a_default_reader_beside_named_ones_that_cannot_be_removed_costs_the_queue",
    ),
    "remove or archive a libkestrel segment that has been read": (
        UNREMOVED,
        "test_segments_that_have_been_read_and_stay_are_named_and_removed_once_that_is_let",
    ),
    "rewrite or remove a segment of the command log": (
        JOBS,
        "test_a_segment_that_cannot_be_removed_stays_and_the_others_are_cleaned",
    ),
}
"""The tests of rows that are not walked here: module and function."""


def spool() -> Disk:
    world = World(SMALL)
    asks(world, "set q 0 0 1", "0")
    asks(world, "set other 0 0 1", "1")
    asks(world, "pause other gets", "status writeavoid", "status up", "resume other gets")
    asks(world, "pause other gets")
    world.disk.make_folder("s/.staniel/undo")
    return world.disk.kill()


def serve(world: World) -> None:
    """Items come and go through `q`: rotations, sidecars, packs."""
    for number in range(1, 41):
        assert asks(world, "set q 0 0 500", f"{number:03}".ljust(500, "x")) == "STORED"
    for _ in range(39):
        assert asks(world, "get q").startswith("VALUE")
    for _ in range(3):
        world.turn(100_000)


def deleted(world: World, row: Row, number: int) -> None:
    """`gone` is to be deleted, as far as that goes."""
    world.disk._faults.clear()
    for each in range(40):
        assert asks(world, "set gone 0 0 500", f"{each:03}".ljust(500, "x")) == "STORED"
    second = [name for name, _ in world.disk.list("s") if name.startswith("gone.")][1]
    is_begun = row.costs == "its name"
    path = f"s/{second}" if is_begun else row.path
    world.disk.fail(row.verb, path, number, after=int(is_begun), times=ALWAYS)  # the first is of its sidecar
    heard = asks(world, "delete gone")
    assert heard == "DELETED" if is_begun else os.strerror(number) in heard, heard


@pytest.mark.parametrize("name", TABLE)
def test_each_refusal_costs_what_the_table_says(name: str) -> None:
    row = TABLE[name]
    for word in row.errnos.split():
        number, disk = getattr(errno, word), spool()
        if row.path.endswith("last_backup"):
            put_file(disk, ".staniel/last_backup", b"{}")
        if row.at_start:
            disk.fail(row.verb, row.path, number, times=ALWAYS)
        if row.costs == "the start":
            with pytest.raises((SpoolError, OSError), match=re.escape(f"{row.path}")) as refused:
                World(SMALL, disk)
            assert os.strerror(number) in str(refused.value)
            disk = disk.kill()
            assert World(SMALL, disk).items("q") == [b"0"], word
            continue
        world = World(SMALL, disk)
        if not row.at_start:
            disk.fail(row.verb, row.path, number, times=ALWAYS)
        if row.costs == "its queue":
            assert asks(world, "get q").startswith("SERVER_ERROR queue q is not available: "), word
        elif "that is deleted" in name:
            deleted(world, row, number)
        elif row.costs == "that request":
            assert asks(world, "set new 0 0 1", "x").startswith("SERVER_ERROR cannot create the journal of queue new")
        elif row.costs == "the reserve" and number in FULL_ERRNOS:
            assert "disk.full" in world.events and "spool.no_reserve" not in world.events, word
            continue
        elif row.costs == "the rotation" and number in BROKEN_ERRNOS:
            with pytest.raises(JournalFailure, match="cannot rotate s/q: "):
                serve(world)
            assert not world.broker.spool.failed_sync.exists
            continue
        else:
            serve(world)
        assert not row.event or row.event in world.events or "journal.rewrite_failed" in world.events, word
        assert asks(world, "set other 0 0 1", "2") == "STORED"
        again = World(SMALL, world.disk.kill(), world.now_ms)
        assert not again.reported("spool.renewed") and again.items("other") == [b"1", b"2"]
        assert drained(again) == ([39, 40] if row.costs not in ("its queue", "that request", "its name") else [0]), word


def test_the_docs_have_each_row_of_the_table_with_what_it_costs() -> None:
    section = FAULTS.read_text()
    rows = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|", section, re.MULTILINE))
    for name, row in TABLE.items():
        assert rows[name].startswith(row.costs), name
    walked = {*TABLE, *ELSEWHERE}
    assert {*rows} - {"call", "---"} == walked, {*rows} ^ walked
    for module, function in ELSEWHERE.values():
        assert callable(getattr(import_module(module), function)), function


def test_each_errno_is_walked_on_the_simulated_disk_and_on_real_servers() -> None:
    here = {word for row in TABLE.values() for word in row.errnos.split()} | {*WRITE.split()}
    real = {word for groups in [*GROUPS.values(), OTHERS] for group in groups for word in group.split()}
    assert {*ERRNOS.split()} <= here & real


@pytest.mark.parametrize("word", WRITE.split())
def test_a_refused_write_to_a_journal_ends_the_process_without_a_mark(word: str) -> None:
    world = World(SMALL, spool())
    world.disk.fail("write", "s/q", getattr(errno, word), times=ALWAYS)
    with pytest.raises(JournalFailure, match="cannot write s/q: "):
        asks(world, "set q 0 0 1", "x")
    again = World(SMALL, world.disk.kill(), world.now_ms)
    assert not again.reported("spool.renewed") and again.items("q") == [b"0"]


@pytest.mark.parametrize("error", [OSError(errno.EPERM, "refused"), OSError(errno.ENOSYS, "refused"), ValueError()])
def test_a_limit_that_may_not_be_raised_is_what_it_was(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise error

    monkeypatch.setattr(resource, "setrlimit", refuse)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4000, 8000))
    assert file_bytes_max() == 4000
    journals, clients = raise_file_limit()
    assert journals == 1000 and 0 < clients < 3000


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_without_syncfs_each_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("a", "folder/b"):
        (tmp_path / name).write_text("x")
    synced: list[str] = []

    def syncfs(fd: int) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(os_fs, "LIBC", SimpleNamespace(syncfs=syncfs))
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    OsFs().sync_all(str(tmp_path))
    root = str(tmp_path)
    assert synced == [f"{root}/a", f"{root}/folder/b", f"{root}/folder", root]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE])
def test_without_syncfs_a_folder_that_cannot_be_looked_at_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tmp_path / "folder").mkdir()
    stat = os.stat

    def refuse(path: str | int, **options: bool) -> os.stat_result:
        if path == f"{tmp_path}/folder":
            raise OSError(number, os.strerror(number), path)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(OSError, match=os.strerror(number)):
        OsFs()._sync_each(str(tmp_path))


def test_a_syncfs_that_fails_is_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def syncfs(fd: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(os_fs, "LIBC", SimpleNamespace(syncfs=syncfs))
    with pytest.raises(SyncFailed):
        OsFs().sync_all(str(tmp_path))


def test_a_folder_of_our_own_on_another_file_system_refuses_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disk, "is_same_device", lambda self, path, folder: False)
    with pytest.raises(SpoolError, match=r"s/\.staniel: it is on another file system than the journals; put the whole"):
        World("")
