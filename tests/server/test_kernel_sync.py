"""Syncs that the kernel makes beside the turns, of real files."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from staniel.journal.disk.fs import JournalFailure
from staniel.journal.disk.os_fs import OsFs, OsRegion
from staniel.journal.disk.unsynced_names import NamedFile, UnsyncedNames
from staniel.journal.group_commit import Sync
from staniel.journal.redo.log import RedoLog
from staniel.journal.redo.records import HEAD as BATCH_HEAD
from staniel.journal.redo.records import RedoKind, decode, decode_head, is_whole
from staniel.server.kernel_sync import KernelSync, SyncWorker


@pytest.fixture
def worker() -> Iterator[SyncWorker]:
    worker = SyncWorker("syncs")
    assert worker.is_cheap
    yield worker
    worker.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RedoLog]:
    """A redo log in use."""
    (tmp_path / "own").mkdir()
    log = RedoLog(UnsyncedNames(OsFs()), str(tmp_path), str(tmp_path / "own"), 1 << 20)
    for task in log.tasks():
        task.run()
        task.on_done(0)
    assert log.is_in_use
    yield log
    with suppress(JournalFailure):  # of the test that has a sync fail
        log.end_use()


def ended(worker: SyncWorker) -> Sync | None:
    """What it says once its descriptor is readable."""
    flag = select.poll()
    flag.register(worker.fd, select.POLLIN)
    flag.poll()
    return worker.finished()


def of_log(log: RedoLog, data: bytes) -> tuple[NamedFile, Sync]:
    """A sync of the log, which has `data` of a file."""
    file = log.fs.append(f"{log.folder}/q")
    assert isinstance(file, NamedFile)
    log.adopt(file, has_data=True)
    file.write(data)
    assert log.stage()
    return file, Sync(1, (), "", log.folder, log.fs, (), (), True, log, [])


def records_in(log: RedoLog) -> list[bytes]:
    """The data of the batch that follows the first."""
    raw = Path(log.segments[0].path).read_bytes()[4096:]
    head = decode_head(raw)
    assert head is not None and is_whole(raw, head)
    found = decode(memoryview(raw)[BATCH_HEAD.size : BATCH_HEAD.size + head.records_bytes])
    return [bytes(record.data) for record in found if record.kind is RedoKind.DATA]


@pytest.mark.parametrize("size", [1, 5000, 100_000])
def test_what_is_staged_is_written_by_the_kernel(
    worker: SyncWorker, log: RedoLog, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, sync = of_log(log, b"x" * size)
    monkeypatch.setattr("os.pwrite", None)
    monkeypatch.setattr("os.fdatasync", None)
    worker.start(sync)
    assert ended(worker) is sync
    assert records_in(log) == [b"x" * size] and log.synced == 2
    monkeypatch.undo()
    file.close()


def test_a_failed_write_ends_the_process_and_nothing_is_synced_any_more(
    worker: SyncWorker, log: RedoLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = KernelSync.result

    def failed(self: KernelSync) -> int:
        result(self)
        return errno.EIO

    monkeypatch.setattr(KernelSync, "result", failed)
    file, sync = of_log(log, b"x")
    worker.start(sync)
    with pytest.raises(JournalFailure, match="Input/output error"):
        ended(worker)
    assert log.durable_flush == 0
    with pytest.raises(JournalFailure):
        file.sync()
    file.close()


def test_what_a_device_cannot_do_so_is_done_otherwise(
    worker: SyncWorker, log: RedoLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: KernelSync) -> None:
        right(self)
        Path(log.segments[0].path).write_bytes(before)

    before = Path(log.segments[0].path).read_bytes()
    right = KernelSync.result
    monkeypatch.setattr(KernelSync, "result", refused)
    file, sync = of_log(log, b"x")
    worker.start(sync)
    assert ended(worker) is sync and records_in(log) == [b"x"]
    file.close()


def test_a_file_system_that_writes_only_through_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "region"
    path.write_bytes(bytes(8192))
    region = OsRegion(str(path))
    pwrite = os.pwrite
    refused: list[int] = []

    def buffered_only(fd: int, data: memoryview, at: int) -> int:
        if fd != region.fd:
            refused.append(fd)
            raise OSError(errno.EINVAL, "Invalid argument")
        return pwrite(fd, data, at)

    monkeypatch.setattr("os.pwrite", buffered_only)
    for letter in (b"y", b"z"):
        region.stage(4096, letter * 4096)
        region.sync()
        assert path.read_bytes() == bytes(4096) + letter * 4096
    assert len(refused) == 1 and region.direct_fd == -1
    region.close()


def test_join_returns_when_the_sync_has_run_and_finished_tells_it_afterwards(worker: SyncWorker, log: RedoLog) -> None:
    file, sync = of_log(log, b"x")
    worker.start(sync)
    worker.join()
    assert records_in(log) == [b"x"] and log.synced == 2
    assert worker.finished() is sync
    file.close()


def test_a_journal_is_synced_in_the_thread(worker: SyncWorker, tmp_path: Path) -> None:
    names = UnsyncedNames(OsFs())
    file = names.append(str(tmp_path / "q"))
    file.write(b"something")
    assert isinstance(file, NamedFile) and file.safe_bytes == 0
    sync = Sync(1, (file,), "", str(tmp_path), names, (), (), True)
    worker.start(sync)
    assert ended(worker) is sync and file.safe_bytes == 9
    assert worker.finished() is None
    file.close()


def test_a_kernel_without_it_leaves_it_to_the_thread(
    worker: SyncWorker, log: RedoLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: KernelSync, region: OsRegion) -> None:
        raise OSError(errno.EINVAL, "no such request")

    monkeypatch.setattr(KernelSync, "start", refused)
    file, sync = of_log(log, b"x")
    worker.start(sync)
    assert ended(worker) is sync and not worker.is_cheap
    assert records_in(log) == [b"x"]
    file.close()
