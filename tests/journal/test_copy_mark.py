"""The mark of a folder that is becoming a spool: it is cleared last, and comes back where that fails."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from staniel.journal.copy_mark import clear_mark, has_mark, set_mark
from staniel.journal.spool import SpoolError, check_version
from staniel.journal.tools.unfinished import Work, unfinished_work
from staniel.pipeline.formats.adapters import check_converted
from staniel.pipeline.lake.folders import folder
from staniel.pipeline.tasks.convert import convert_spool
from staniel.queues.config import Format
from staniel.server.backup.adopt import survey
from staniel.server.backup.manifest import BackupError
from staniel.server.backup.restore import NewSpool, is_unfinished
from staniel.server.backup.source import RestingSource
from staniel.server.cli.main import main
from staniel.sim.disk.disk import Disk
from tests.journal.disk.errno_walk import failing

CODES = [errno.EIO, errno.ENOSPC, errno.EROFS, errno.ESTALE]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("version", [b"staniel-spool 1\n", b""])
def test_a_mark_is_there_again_whichever_step_of_its_end_fails(version: bytes, code: int) -> None:
    disk = Disk()
    disk.make_folder("s/.staniel")
    set_mark(disk, "s/.staniel")
    with failing(disk.fork()) as none:
        pass
    assert not none
    whole = disk.fork()
    with failing(whole) as calls:
        clear_mark(whole, "s/.staniel", version)
    assert not has_mark(whole, "s/.staniel")
    for at in range(len(calls)):
        left = disk.fork()
        with failing(left, at, code), suppress(OSError):
            clear_mark(left, "s/.staniel", version)
            assert not has_mark(left, "s/.staniel"), calls[at]
            continue
        assert has_mark(left, "s/.staniel"), calls[at]


@pytest.mark.parametrize("code", CODES)
def test_a_copy_whose_last_sync_fails_has_the_mark_and_the_error_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """`restore` and `adopt` end their copies so."""
    spool = NewSpool(str(tmp_path / "new"), 0)
    (tmp_path / "new/orders").write_bytes(b"items")
    fsync, version = os.fsync, tmp_path / "new/.staniel/version"

    def fail(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}") == f"{tmp_path}/new/.staniel" and "unfinished" not in version.read_text():
            raise OSError(code, os.strerror(code))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(BackupError, match=f"cannot sync {tmp_path}/new/.staniel: {os.strerror(code)}; "):
        spool.complete_spool()
    assert is_unfinished(str(tmp_path / "new"))
    with pytest.raises(SpoolError, match="copy it again"):
        check_version(spool.fs, str(tmp_path / "new"))
    spool.close()


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    spool = NewSpool(str(tmp_path / "new"), 0)
    (tmp_path / "new/orders").write_bytes(b"")
    assert [each.work for each in unfinished_work(spool.fs, spool.folder)] == [Work.COPY]
    spool.close()
    return tmp_path / "new"


def test_every_tool_refuses_a_marked_copy_and_says_what_to_do(marked: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match=r"is not complete: .*copy it again"):
        RestingSource(str(marked), 0)
    with pytest.raises(BackupError, match=r"is not complete: .*name the old server's own folder"):
        survey(str(marked), 0, lambda size: None)
    with pytest.raises(ValueError, match=r"is not complete.*copy it again"):
        check_converted(folder(str(marked)))
    (found,) = convert_spool((str(marked), "orders", Format.LIBKESTREL, 0))
    assert "copy it again" in found.refusal
    for command in (
        ("repair", str(marked), "--to", f"{tmp_path}/other"),
        ("repair", f"{marked}/orders", "--to", f"{tmp_path}/other"),
        ("convert", str(marked), "--queue", "orders", "--to", "libkestrel"),
        ("stats", str(marked)),
        ("at", "now", "orders", "--spool", str(marked)),
        ("history", "orders", "xid=1", "--spool", str(marked)),
    ):
        said = CliRunner().invoke(main, ["journal", *command])
        assert said.exit_code == 2 and "copy it again" in said.output, (command, said.output)
    assert not (tmp_path / "other").exists()


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that sync and remove, in their order."""
    calls: list[str] = []
    fsync, unlink = os.fsync, os.unlink

    def note_sync(fd: int) -> None:
        calls.append(f"sync {os.readlink(f'/proc/self/fd/{fd}')}")
        fsync(fd)

    def note_unlink(path: str, *args: object, dir_fd: int | None = None) -> None:
        calls.append(f"remove {os.path.basename(path)}")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "unlink", note_unlink)
    return calls


def test_folders_that_a_killed_attempt_has_made_are_synced_before_anything_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new/.staniel").mkdir(parents=True)  # killed here, the names are in the page cache alone
    calls = synced(monkeypatch)
    NewSpool(str(tmp_path / "new"), 0).close()
    mark = calls.index(f"sync {tmp_path}/new/.staniel")
    assert {f"sync {tmp_path}", f"sync {tmp_path}/new"} <= set(calls[:mark])


def test_what_was_copied_is_removed_for_good_before_the_mark_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = NewSpool(str(tmp_path / "new"), 0)
    (tmp_path / "new/orders").write_bytes(b"half of it")
    calls = synced(monkeypatch)
    spool.remove()
    spool.close()
    removed, durable = calls.index("remove orders"), calls.index(f"sync {tmp_path}/new")
    assert removed < durable < calls.index("remove version")  # a power cut must not bring `orders` back alone
    assert not (tmp_path / "new").exists()


def test_a_copy_that_cannot_be_removed_for_good_keeps_the_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = NewSpool(str(tmp_path / "new"), 0)

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        spool.remove()
    assert is_unfinished(str(tmp_path / "new"))
    spool.close()
