"""The table of docs/durability.md: what a refused call on a file costs, walked with the errnos that manuals list."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import Struct

from staniel.journal.disk import os_fs
from staniel.journal.disk.fs import BROKEN_ERRNOS, FULL_ERRNOS, JournalFailure, SyncFailed
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.spool import SpoolError
from staniel.sim.disk.disk import Disk
from tests.journal.disk.test_refusals import ALWAYS, SMALL, drained
from tests.support.streams import asks
from tests.support.world import World

DURABILITY = Path(__file__).parents[3] / "docs" / "durability.md"
OPEN = "EACCES EPERM EROFS ENAMETOOLONG EMFILE ENFILE ENOMEM ELOOP ESTALE EIO EDQUOT ETXTBSY ENODEV ENXIO EOVERFLOW"
READ = "EACCES EPERM EIO ESTALE ENOMEM EMFILE ENFILE ELOOP ENODEV"
NAMES = "EACCES EPERM EROFS EXDEV ENAMETOOLONG EBUSY ENOSYS EDQUOT ENOSPC EMLINK ENOMEM ESTALE EIO ELOOP"
SPACE = "EFBIG EPERM ENOSYS EOPNOTSUPP EACCES EIO EINTR ENODEV ETXTBSY ENOSPC EDQUOT"
STATFS = "EACCES EIO ENOMEM ENOSYS EPERM EOVERFLOW ELOOP ENAMETOOLONG"


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
    section = DURABILITY.read_text().partition("## Calls that the system refuses\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|", section, re.MULTILINE))
    for name, row in TABLE.items():
        assert rows[name].startswith(row.costs), name


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
    with pytest.raises(
        SpoolError, match=r"s/\.staniel: it is on another file system than the journals; have the whole"
    ):
        World("")
