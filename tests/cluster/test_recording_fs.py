"""Every change of a replicated file is recorded once it has taken effect, in that order, under its present name."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from staniel.cluster.recording_fs import ChangeRecorder, RecordingFile, RecordingFs
from staniel.cluster.spool_changes import (
    Change,
    FileAppended,
    FileCreated,
    FileOverwritten,
    FileRemoved,
    FileRenamed,
    FileTruncated,
    encode_changes,
)
from staniel.cluster.spool_names import ARRIVING, SpoolPaths
from staniel.journal.disk.fs import SyncFailed
from staniel.journal.disk.os_fs import OsFs
from staniel.sim.disk.disk import Disk
from tests.cluster.spools import empty_disk


class Recorded:
    """A recording Fs on a disk, with the spool `s`."""

    def __init__(self) -> None:
        self.disk: Disk = empty_disk("s/.staniel", "s/.staniel/damaged", "elsewhere")
        self.recorder = ChangeRecorder()
        self.fs = RecordingFs(self.disk, SpoolPaths("s"), self.recorder)

    def changes(self) -> list[Change]:
        return self.recorder.take_changes()


def test_writes_are_recorded_with_their_places() -> None:
    recorded = Recorded()
    file = recorded.fs.append("s/q")
    file.write(b"ab")
    file.write(b"c")
    assert recorded.recorder.size == 3
    assert recorded.changes() == [FileCreated("q"), FileAppended("q", 0, b"ab"), FileAppended("q", 2, b"c")]
    assert recorded.recorder.size == 0 and recorded.changes() == []
    assert file.size == 3 and file.read(0, 9) == b"abc" and file.is_at("s/q")


def test_a_write_that_failed_half_way_is_recorded_as_far_as_it_came_and_so_is_its_end() -> None:
    recorded = Recorded()
    file = recorded.fs.append("s/q")
    recorded.disk.fail("write", "/q", errno.ENOSPC, short=2)
    with pytest.raises(OSError):
        file.write(b"abcd")
    recorded.disk.fail("write", "/q", errno.ENOSPC)
    with pytest.raises(OSError):
        file.write(b"xy")
    recorded.fs.truncate("s/q", 0)
    file.size = 0
    file.write(b"z")
    assert recorded.changes() == [
        FileCreated("q"), FileAppended("q", 0, b"ab"), FileTruncated("q", 0), FileAppended("q", 0, b"z"),
    ]  # fmt: skip


def test_a_file_is_recorded_under_its_present_name_and_not_after_its_removal() -> None:
    recorded = Recorded()
    file = recorded.fs.append("s/q")
    recorded.fs.rename("s/q", "s/q.7")
    file.write(b"a")
    other = recorded.fs.append("s/q")
    other.write(b"b")
    recorded.fs.rename("s/q", "s/q.7")
    file.write(b"lost")
    other.write(b"c")
    recorded.fs.remove("s/q.7")
    other.write(b"lost")
    assert recorded.changes() == [
        FileCreated("q"), FileRenamed("q", "q.7"), FileAppended("q.7", 0, b"a"), FileCreated("q"),
        FileAppended("q", 0, b"b"), FileRenamed("q", "q.7"), FileAppended("q.7", 1, b"c"), FileRemoved("q.7"),
    ]  # fmt: skip


def test_calls_that_are_refused_record_nothing() -> None:
    recorded = Recorded()
    for verb, call in (
        ("rename", lambda: recorded.fs.rename("s/q", "s/r")),
        ("remove", lambda: recorded.fs.remove("s/q")),
        ("truncate", lambda: recorded.fs.truncate("s/q", 1)),
        ("open", lambda: recorded.fs.append("s/q")),
        ("write", lambda: recorded.fs.overwrite("s/q").write_at(0, b"x")),
    ):
        recorded.fs.append("s/q").close()
        recorded.changes()
        recorded.disk.fail(verb, "/q", errno.EIO)
        with pytest.raises(OSError):
            call()
        assert recorded.changes() == [], verb


def test_a_cut_whose_sync_failed_is_recorded_because_the_file_is_cut() -> None:
    recorded = Recorded()
    recorded.fs.append("s/q").write(b"abc")
    recorded.changes()
    recorded.disk.fail("sync", "/q", errno.EIO)
    with pytest.raises(SyncFailed):
        recorded.fs.truncate("s/q", 1)
    assert recorded.changes() == [FileTruncated("q", 1)] and recorded.disk.size("s/q") == 1


def test_overwritten_bytes_are_recorded_when_they_are_written() -> None:
    recorded = Recorded()
    recorded.fs.append("s/q").write(b"abcdef")
    recorded.changes()
    region = recorded.fs.overwrite("s/q")
    region.write_at(1, b"X")
    region.stage(2, b"Y")
    region.stage(3, b"Z")
    assert recorded.changes() == [FileOverwritten("q", 1, b"X")]
    region.sync()
    region.close()
    assert recorded.changes() == [FileOverwritten("q", 2, b"Y"), FileOverwritten("q", 3, b"Z")]
    assert recorded.disk.read("s/q", 0, 9) == b"aXYZef"


def test_a_servers_own_files_and_files_elsewhere_are_handed_out_as_they_are() -> None:
    recorded = Recorded()
    fs = recorded.fs
    for path in ("s/.staniel/audit", "s/.staniel/damaged/q", "elsewhere/q"):
        file = fs.append(path)
        assert not isinstance(file, RecordingFile)
        file.write(b"a")
        fs.truncate(path, 0)
        fs.rename(path, f"{path}.new")
        fs.remove(f"{path}.new")
    fs.allocate("s/.staniel/ballast", 10)
    fs.set_aside("s/.staniel/failed_sync.room", 10)
    fs.fill("s/.staniel/redo.0", 10)
    fs.overwrite("s/.staniel/redo.0").write_at(0, b"x")
    fs.make_folder("s/.staniel/undo")
    assert recorded.changes() == []


def test_what_leaves_the_replicated_files_is_removed_and_what_comes_arrives_whole() -> None:
    recorded = Recorded()
    fs = recorded.fs
    fs.append("s/q").write(b"abc")
    fs.rename("s/q", "s/.staniel/damaged/q")
    fs.make_folder("s/.staniel/convert")
    fs.append("s/.staniel/convert/r").write(b"xyz")
    fs.rename("s/.staniel/convert/r", "s/r")
    assert recorded.changes() == [
        FileCreated("q"), FileAppended("q", 0, b"abc"), FileRemoved("q"),
        FileCreated(ARRIVING), FileAppended(ARRIVING, 0, b"xyz"), FileRenamed(ARRIVING, "r"),
    ]  # fmt: skip


def test_a_folder_with_the_name_of_a_file_of_ours_leaves_without_a_record() -> None:
    recorded = Recorded()
    recorded.fs.make_folder("s/.staniel/intents")
    recorded.fs.rename("s/.staniel/intents", "s/.staniel/damaged/intents")
    assert recorded.changes() == []


def test_room_and_second_names_of_replicated_files_are_a_defect() -> None:
    fs = Recorded().fs
    fs.append("s/q").close()
    fs.make_folder("s/.staniel/held")
    fs.link("s/q", "s/.staniel/held/1-0")
    for call in (
        lambda: fs.link("s/q", "s/r"),
        lambda: fs.allocate("s/r", 1),
        lambda: fs.set_aside("s/r", 1),
        lambda: fs.fill("s/r", 1),
    ):
        with pytest.raises(AssertionError):
            call()


def test_threads_and_the_loop_are_recorded_in_the_order_in_which_their_changes_took_effect(tmp_path: Path) -> None:
    """A thread writes packs and renames them over each other, while the loop appends, rotates and removes."""
    spool = tmp_path / "spool"
    (spool / ".staniel").mkdir(parents=True)
    recorder = ChangeRecorder(threading.Lock())
    disk = OsFs()
    fs = RecordingFs(disk, SpoolPaths(str(spool)), recorder)

    def write_packs() -> None:
        for number in range(100):
            file = fs.append(f"{spool}/q~~{number}")
            for at in range(5):
                file.write(b"%d.%d;" % (number, at) * 50)
            fs.rename(f"{spool}/q~~{number}", f"{spool}/q.1.pack")
            file.write(b"end")
            file.close()

    thread = threading.Thread(target=write_packs)
    thread.start()
    current = fs.append(f"{spool}/q")
    for number in range(300):
        current.write(b"%d;" % number * 20)
        if number % 10 == 9:
            fs.rename(f"{spool}/q", f"{spool}/q.{number}")
            current.close()
            current = fs.append(f"{spool}/q")
            if number > 20:
                fs.remove(f"{spool}/q.{number - 20}")
    thread.join()
    current.close()
    disk.close()
    files: dict[str, bytes] = {}
    for change in recorder.take_changes():
        follow(files, change)
    assert files == {path.name: path.read_bytes() for path in spool.iterdir() if path.is_file()}
    assert len(list(encode_changes([FileCreated("q")]))) == 1


def follow(files: dict[str, bytes], change: Change) -> None:
    """What a change does to files that have only names and bytes."""
    match change:
        case FileCreated(name):
            assert not files.setdefault(name, b"")
        case FileAppended(name, at, data):
            assert len(files[name]) == at
            files[name] += data
        case FileRenamed(name, new):
            files[new] = files.pop(name)
        case FileRemoved(name):
            del files[name]
        case _:
            raise AssertionError(change)
