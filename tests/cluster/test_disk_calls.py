"""The disk of a member knows which of its calls have begun and not ended, in every thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from staniel.journal.disk.fs import SyncFailed
from staniel.server.cluster.disk_calls import NotingFs
from staniel.server.start_notice import StartNotice


def make_fs() -> NotingFs:
    return NotingFs(os.close, StartNotice(lambda: 0, lambda text: None), "lock")


CALLS: dict[str, tuple[str, Callable[[NotingFs, str], object]]] = {
    "a sync of a file": ("fdatasync", lambda fs, folder: fs.append(f"{folder}/q").sync()),
    "a sync of a region": ("fdatasync", lambda fs, folder: fs.overwrite(f"{folder}/q").sync()),
    "a cut": ("fsync", lambda fs, folder: fs.truncate(f"{folder}/q", 0)),
    "a sync of a folder": ("fsync", lambda fs, folder: fs.sync_folder(folder)),
    "a read": ("pread", lambda fs, folder: fs.read(f"{folder}/q", 0, 1)),
    "a read of a reader": ("pread", lambda fs, folder: fs.reader(f"{folder}/q").read(0, 1)),
    "a listing": ("scandir", lambda fs, folder: fs.list(folder)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_hangs_is_known(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("q").write_bytes(b"item")
    of_system, call = CALLS[name]
    begun, goes_on = threading.Event(), threading.Event()
    right = getattr(os, of_system)

    def hang(*arguments: object) -> object:
        begun.set()
        goes_on.wait(60)
        return right(*arguments)

    fs = make_fs()
    monkeypatch.setattr(os, of_system, hang)
    thread = threading.Thread(target=call, args=(fs, str(tmp_path)))
    thread.start()
    assert begun.wait(60)
    assert list(fs.calls.running) == [thread.ident]
    goes_on.set()
    thread.join()
    assert fs.calls.running == {}


def test_errors_name_the_call_and_the_file_as_those_of_every_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = make_fs()
    for open_it in (fs.reader, fs.overwrite):
        with pytest.raises(FileNotFoundError) as raised:
            open_it(f"{tmp_path}/none")
        assert raised.value.filename == f"{tmp_path}/none" and getattr(raised.value, "call", "") == "open"

    def refuse(fd: int) -> None:
        raise OSError(5, "no disk")

    file = fs.append(f"{tmp_path}/q")
    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(SyncFailed):
        file.sync()
    assert fs.calls.running == {}
