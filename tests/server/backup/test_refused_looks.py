"""A call that the system refuses says nothing about a file: no command takes it for a file that is not there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from staniel.server.backup import adopt as adopting
from staniel.server.backup.adopt import survey
from staniel.server.backup.folder_store import FolderStore
from staniel.server.backup.manifest import BackupError
from staniel.server.backup.restore import NewSpool, refuse_used
from staniel.server.backup.source import RestingSource
from staniel.server.cli.main import main

CODES = [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE]


@contextmanager
def refused(calls: tuple[str, ...], path: Path | str, code: int) -> Iterator[None]:
    """Refuse these calls of `os` on `path`."""
    with pytest.MonkeyPatch.context() as patch:
        for call in calls:
            patch.setattr(os, call, refusing(getattr(os, call), str(path), code))
        yield


def refusing(call: Callable[..., Any], path: str, code: int) -> Callable[..., Any]:
    def refuse(name: object = ".", *args: object, **options: object) -> Any:
        if name == path:
            raise OSError(code, os.strerror(code), path)
        return call(name, *args, **options)

    return refuse


LOOKS = ("stat", "lstat")


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A spool that a server has used."""
    (tmp_path / "spool/.staniel").mkdir(parents=True)
    (tmp_path / "spool/.staniel/version").write_text("staniel-spool 1\n")
    (tmp_path / "spool/orders").write_bytes(b"items")
    return tmp_path / "spool"


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("code", CODES)
def test_a_folder_that_cannot_be_looked_at_is_not_used_as_a_new_one(used: Path, code: int) -> None:
    """Its files would be removed, like those of an earlier attempt."""
    before = content(used)
    with refused(LOOKS, used, code):
        with pytest.raises(BackupError, match=f"cannot use {used}: {os.strerror(code)}; "):
            NewSpool(str(used), 0)
        with pytest.raises(OSError, match=os.strerror(code)):
            refuse_used(str(used))
    assert content(used) == before


@pytest.mark.parametrize("code", CODES)
def test_files_of_a_folder_that_cannot_be_listed_are_not_left_to_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    spool = NewSpool(str(tmp_path / "new"), 0)
    (tmp_path / "new/orders").write_bytes(b"items")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda *args, **options: None)
    found = os.stat(tmp_path / "new")
    monkeypatch.setattr(os, "stat", lambda *args, **options: os.stat_result([*found[:4], 1000, 1000, *found[6:]]))
    with refused(("scandir",), tmp_path / "new/.staniel", code), pytest.raises(OSError, match=os.strerror(code)):
        spool._give_to_owner()
    spool.close()


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("unseen", ["", "/.staniel", "/.staniel/version"])
def test_a_spool_that_cannot_be_looked_at_is_not_surveyed_as_an_old_folder(used: Path, unseen: str, code: int) -> None:
    if unseen == "/.staniel":
        (used / ".staniel/version").unlink()
    with refused(LOOKS, f"{used}{unseen}", code), pytest.raises(BackupError, match=f"{used}.*: {os.strerror(code)}; "):
        survey(str(used), 0, lambda size: None)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENFILE])
def test_a_process_whose_files_cannot_be_listed_may_have_the_folder_open(tmp_path: Path, code: int) -> None:
    (tmp_path / "orders").write_bytes(b"")
    with (
        refused(("listdir",), f"/proc/{os.getppid()}/fd", code),
        pytest.raises(BackupError, match=f"/proc/{os.getppid()}/fd: {os.strerror(code)}; "),
    ):
        survey(str(tmp_path), 0, lambda size: None)


@pytest.mark.parametrize("code", CODES)
def test_files_that_cannot_be_looked_at_after_the_copy_are_not_called_changed(tmp_path: Path, code: int) -> None:
    (tmp_path / "orders").write_bytes(b"")
    found = survey(str(tmp_path), 0, lambda size: None)
    with (
        refused(("stat",), tmp_path / "orders", code),
        pytest.raises(BackupError, match=f"cannot use {tmp_path}/orders: {os.strerror(code)}; "),
    ):
        adopting._refuse_changed(found)


@pytest.mark.parametrize("code", CODES)
def test_a_command_log_that_cannot_be_looked_at_is_not_left_out_of_a_backup(used: Path, code: int) -> None:
    (used / ".staniel/cmdlog").mkdir()
    with (
        refused(("stat",), used / ".staniel/cmdlog", code),
        pytest.raises(BackupError, match=f"{used}/.staniel/cmdlog: {os.strerror(code)}; "),
    ):
        RestingSource(str(used), 0)


@pytest.mark.parametrize("code", CODES)
def test_a_folder_of_backups_that_cannot_be_looked_at_is_not_a_missing_one(tmp_path: Path, code: int) -> None:
    with refused(LOOKS, tmp_path, code), pytest.raises(BackupError, match=f"{tmp_path}: {os.strerror(code)}; "):
        FolderStore(str(tmp_path), writes=False)


@pytest.mark.parametrize("code", CODES)
def test_data_that_cannot_be_read_is_no_fault_of_a_backup(used: Path, tmp_path: Path, code: int) -> None:
    runner, dest = CliRunner(), tmp_path / "dest"
    assert runner.invoke(main, ["backup", "take", str(dest), "--spool", str(used)]).exit_code == 0
    (data,) = [path for path in (dest / "data").rglob("*") if path.is_file()]
    with refused(("open",), data, code):
        said = runner.invoke(main, ["backup", "verify", str(dest)])
    assert said.exit_code == 2 and f"{data}: {os.strerror(code)}; " in said.output, said.output
    assert "fault" not in said.output
    assert runner.invoke(main, ["backup", "verify", str(dest)]).exit_code == 0
