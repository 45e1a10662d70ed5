"""Packing under a crash at every step, beside what a server has left unfinished, and by tasks that run twice. No Spark
here, but for its order of work: tasks first, then what the driver does."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from staniel.journal.disk.fs import File
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.kestrel.recovery import Recovery
from staniel.journal.spool_listing import list_spool
from staniel.pipeline.formats.base import Part, Reading
from staniel.pipeline.formats.kestrel.adapter import KestrelAdapter
from staniel.pipeline.formats.kestrel.queue import hold
from staniel.pipeline.formats.kestrel.state import QueueSummary
from staniel.pipeline.lake.folders import LocalFolder
from staniel.pipeline.tasks import pack as pack_module
from staniel.pipeline.tasks.pack import Packed, PackMismatch, PackTask, pack, write_pack
from staniel.queues.calendar import EVEN
from staniel.queues.changes import Removed
from staniel.queues.config import JournalDialect
from staniel.queues.delays import delayed_item
from staniel.queues.item import Item, ItemWithPast, past_bytes
from staniel.queues.past import Why, next_past
from tests.pipeline.spools import history, write
from tests.support.records import addx
from tests.support.records import state as state_in_words


class Killed(BaseException):
    """What happens to the process behind its last step."""


class DyingFile:
    def __init__(self, file: File, step: Callable[[], None]) -> None:
        self._file, self._step = file, step

    @property
    def size(self) -> int:
        return self._file.size

    def write(self, data: bytes) -> None:
        self._step()
        self._file.write(data)

    def sync(self) -> None:
        self._step()
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class DyingDisk(OsFs):
    """The real disk, until the process dies before its step `last`."""

    last = steps = 0

    def _step(self) -> None:
        kind = type(self)
        kind.steps += 1
        if kind.steps > kind.last:
            raise Killed

    def append(self, path: str) -> Any:
        self._step()
        return DyingFile(super().append(path), self._step)

    def rename(self, old: str, new: str) -> None:
        self._step()
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)

    def sync_folder(self, folder: str) -> None:
        self._step()
        super().sync_folder(folder)


def sealed_queues(_: Any, path: str, given: Any, sealed: bool) -> list[QueueSummary]:
    """As staniel.pipeline.tasks.summarise.queues_of, in this process."""
    place = LocalFolder(path)
    found = {
        name: [each for each in some if not each.live] for name, some in KestrelAdapter().queues(place.list()).items()
    }
    return [hold(place, Part(name, some), Reading()) for name, some in sorted(found.items()) if some]


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_module, "queues_of", sealed_queues)
    monkeypatch.setattr(pack_module, "run", lambda spark, tasks, work, _: list(map(work, tasks)))


def states(spool: Path) -> dict[str, Any]:
    """What a server finds when it starts on a copy of the spool."""
    copy = spool.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(spool, copy)
    disk = OsFs()
    found = list_spool(disk, str(copy)).kestrel
    recovery = Recovery(disk, str(copy))
    return {
        name: state_in_words(recovery.recover(name, files, 0).replay)
        for name, files in sorted(found.items())
        if not files.holds_nothing
    }


def packed(spool: Path, dialect: JournalDialect = JournalDialect.DOCUMENTS) -> list[Packed]:
    return pack(None, str(spool), {}, dialect)  # type: ignore[arg-type]


def spool_of(folder: Path) -> Path:
    spool = folder / "spool"
    write(spool, "jobs", history(11, 400), 4)
    write(spool, "mail", history(12, 200, JournalDialect.KESTREL_24), 3)
    return spool


def names(spool: Path) -> list[str]:
    return sorted(path.name for path in spool.iterdir() if path.is_file())


def deaths(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[tuple[int, Path]]:
    """A spool for each step, packed until the process died before it."""
    monkeypatch.setattr(pack_module, "OsFs", DyingDisk)
    for last in range(1000):
        spool = spool_of(folder / str(last))
        DyingDisk.last, DyingDisk.steps = last, 0
        try:
            packed(spool)
        except Killed:
            yield last, spool
            continue
        assert last > 25
        return


def test_a_pack_killed_at_any_step_loses_nothing_and_the_next_one_finishes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = states(spool_of(tmp_path / "whole"))
    for _, spool in deaths(monkeypatch, tmp_path):
        assert states(spool) == before
        DyingDisk.last = 1 << 30
        packed(spool)
        assert states(spool) == before
        assert not [name for name in names(spool) if "~~" in name or name.endswith(".pack")]
        assert len(names(spool)) == 4
        shutil.rmtree(spool)


def test_a_task_that_runs_twice_or_after_its_driver_has_died_changes_nothing(tmp_path: Path) -> None:
    spool = spool_of(tmp_path)
    before, files = states(spool), names(spool)
    tasks = [
        PackTask(str(spool), queue, JournalDialect.DOCUMENTS) for queue in sealed_queues(None, str(spool), {}, True)
    ]
    first, again = [list(map(write_pack, tasks)) for _ in range(2)]
    assert len({each.temp for each in first + again}) == 4
    assert [name for name in names(spool) if "~~" not in name] == files
    assert states(spool) == before
    packed(spool)
    late = [
        write_pack(PackTask(str(spool), queue, JournalDialect.DOCUMENTS))
        for queue in sealed_queues(None, str(spool), {}, True)
    ]
    assert len(late) == 2 and states(spool) == before


@pytest.mark.parametrize("later", ["", "jobs.9"], ids=["the newest file", "before a later one"])
def test_the_pack_that_a_server_left_unfinished_is_finished_first(tmp_path: Path, later: str) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "jobs.5").write_bytes(addx(b"a") + addx(b"b"))
    (spool / "jobs.7").write_bytes(b"\1" + addx(b"c"))
    (spool / "jobs.7.pack").write_bytes(addx(b"b") + addx(b"c"))
    if later:
        (spool / later).write_bytes(b"\1" + addx(b"d"))
    (spool / "jobs").write_bytes(addx(b"e"))
    (spool / "jobs~~3").write_bytes(addx(b"half"))
    before = states(spool)
    (one,) = packed(spool)
    assert (one.queue, one.files, one.items) == ("jobs", 2 if later else 1, 2)
    assert states(spool) == before and names(spool) == ["jobs", later or "jobs.7"]


def test_a_new_file_that_lacks_an_item_replaces_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spool = spool_of(tmp_path)
    before, files = states(spool), names(spool)
    whole = pack_module.snapshot
    monkeypatch.setattr(pack_module, "snapshot", lambda *task: list(whole(*task))[:-1])
    with pytest.raises(PackMismatch, match="does not hold what the sealed files hold"):
        packed(spool)
    assert names(spool) == files and states(spool) == before


def test_a_new_file_that_has_changed_since_it_was_compared_replaces_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spool = spool_of(tmp_path)
    before, files = states(spool), names(spool)

    def changed(task: PackTask) -> Any:
        written = write_pack(task)
        path = spool / written.temp
        path.write_bytes(path.read_bytes()[:-1])
        return written

    monkeypatch.setattr(pack_module, "write_pack", changed)
    with pytest.raises(PackMismatch, match="has changed since it was compared"):
        packed(spool)
    assert [name for name in names(spool) if "~~" not in name] == files and states(spool) == before


@pytest.mark.parametrize("left", [("failed_sync", ""), ("version", f"staniel-spool 2 {'ab' * 16}\n")])
def test_a_spool_in_which_a_server_has_work_to_finish_is_not_packed(tmp_path: Path, left: tuple[str, str]) -> None:
    spool = spool_of(tmp_path)
    own = spool / ".staniel"
    own.mkdir()
    (own / left[0]).write_text(left[1])
    files = names(spool)
    with pytest.raises(ValueError, match="the last server left work to finish"):
        packed(spool)
    assert names(spool) == files


def test_stand_ins_of_an_earlier_pack_whose_removal_follows_are_packed_as_what_they_are(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "q.7.pack").write_bytes(addx(b"", 0) * 3 + addx(b"a"))
    (spool / "q.9").write_bytes(b"\1" + addx(b"b"))
    (spool / "q").write_bytes(b"\1\1\1")
    before = states(spool)
    (done,) = packed(spool)
    assert (done.files, done.items) == (2, 4)
    assert states(spool) == before


@pytest.mark.parametrize("dialect", list(JournalDialect))
def test_a_pack_keeps_delays_and_pasts_of_items_and_items_at_rest(tmp_path: Path, dialect: JournalDialect) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    encoder = Encoder(dialect)
    rest, later = (delayed_item(EVEN, Item(data, 1000, 0, 5), 3_600_000, 1000) for data in (b"rest", b"later"))
    dead = ItemWithPast(b"dead", 1000, 0, 7, next_past(later, Why.DEAD, "orders", 3, "10.0.0.1:5", 2000))
    taken = ItemWithPast(b"taken", 1000, 0, 0, dead.past)
    items = [Item(b"plain" * 100, 1000), rest, taken, later, dead]
    sealed = [*map(encoder.addx, items), encoder.encode(Removed(0)), encoder.opened(-1), encoder.opened(1)]
    (spool / "q.1000").write_bytes(b"".join(sealed))
    (spool / "q.2000").write_bytes(encoder.addx(Item(b"two", 3000, 0, 9)))
    (spool / "q").write_bytes(b"")

    def found() -> tuple[list[tuple[bytes, int, bytes]], dict[int, bytes]]:
        files = list_spool(OsFs(), str(spool)).kestrel["q"]
        replay = Recovery(OsFs(), str(spool)).recover("q", files, 0).replay
        items = [(item.data, item.flags, past_bytes(item)) for item in replay.line.items()]
        return items, {xid: past_bytes(read.item) for xid, read in replay.open.items()}

    before = found()
    assert before == (
        [(b"later", 5, past_bytes(later)), (b"dead", 7, dead.past), (b"two", 9, b"")],
        {-1: past_bytes(rest), 1: taken.past},
    )
    assert [each.files for each in packed(spool, dialect)] == [2]
    assert found() == before


def test_a_pack_that_loses_a_delay_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    later = delayed_item(EVEN, Item(b"later", 1000), 3_600_000, 1000)
    content = Encoder(JournalDialect.DOCUMENTS).addx(later)
    (spool / "q.1000").write_bytes(content)
    (spool / "q").write_bytes(b"")
    monkeypatch.setattr(pack_module, "fact_in", lambda *_: b"")
    with pytest.raises(PackMismatch, match="does not hold what the sealed files hold"):
        packed(spool)
    assert (spool / "q.1000").read_bytes() == content
