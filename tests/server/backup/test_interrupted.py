"""A backup or a restore that is killed: what is left is no backup and no spool, and the next one begins well."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from staniel.journal.undo_file import HOMEWARD_VERSION, RESUMED_VERSION, Began, Moving, frame
from staniel.server.backup.manifest import BackupError
from staniel.server.backup.restore import restore
from staniel.server.backup.source import RestingSource
from staniel.server.backup.store import ids, load, prepare
from staniel.server.backup.take import make_backup
from staniel.server.cli.backup import open_store
from tests.server.admin.asking import SpoolConnection
from tests.server.backup.copies import SMALL, back_up, data_files, drained, held, killed_after, restored, staniel
from tests.support.process import Server, run_staniel, running, until
from tests.support.wire import Wire


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A spool of 60 items in two queues, at rest."""
    with running(tmp_path / "server", config=SMALL) as server:
        fill(server)
        server.stop()
        shutil.copytree(server.spool, tmp_path / "spool", ignore=shutil.ignore_patterns("ballast", "*.new"))
    return tmp_path / "spool"


def fill(server: Server) -> None:
    with Wire(server.address) as wire:
        for number in range(60):
            for queue in ("orders", "mail"):
                assert wire.put(queue, (b"%d." % number).ljust(1000, b".")) == b"STORED"


@pytest.mark.slow
def test_a_backup_that_is_killed_at_any_piece_is_none_and_the_next_one_is_whole(served: Path, tmp_path: Path) -> None:
    dest, pieces = tmp_path / "dest", 0
    while killed_after(pieces + 1, "backup", "take", str(dest), "--spool", str(served)):
        pieces += 1
        assert not list(dest.glob("backups/*"))
        assert len(list(dest.glob("running/*"))) == 1  # what came before is gone
        assert sum(1 for path in dest.glob("unfinished/*") if path.stat().st_size) <= pieces
        listed = staniel("backup", "list", dest).stdout
        assert listed.count("\n") == 1
        said = staniel("restore", dest, tmp_path / "new", code=1)
        assert "there is no backup" in said.stderr and not (tmp_path / "new").exists()
    assert pieces > 4
    assert not list(dest.glob("running/*")) and not list(dest.glob("unfinished/*"))
    assert "0 faults" in staniel("backup", "verify", dest).stdout
    found = drained(restored(dest, tmp_path / "copy"), ("orders", "mail"))
    assert [len(items) for items in found.values()] == [60, 60]


def test_what_a_killed_backup_has_copied_does_not_stay_for_ever(served: Path, tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    staniel("backup", dest, "--spool", served)
    (served / "orders").write_bytes((served / "orders").read_bytes() * 2)
    before = data_files(dest)
    assert killed_after(2, "backup", "take", str(dest), "--spool", str(served)) or True
    (dest / "data" / "ab").mkdir(exist_ok=True)
    (dest / "data" / "ab" / ("ab" * 32)).write_bytes(b"of a file that has changed since")
    (dest / "running" / "20260101T000000Z").touch()
    staniel("backup", dest, "--spool", served)
    assert not (dest / "data" / "ab" / ("ab" * 32)).exists()
    assert set(before) <= set(data_files(dest))


@pytest.mark.slow
def test_a_restore_that_is_killed_at_any_piece_leaves_no_spool_and_can_be_done_again(
    served: Path, tmp_path: Path
) -> None:
    dest, spool, pieces = tmp_path / "dest", tmp_path / "copy" / "spool", 0
    staniel("backup", dest, "--spool", served)
    spool.parent.mkdir()
    while killed_after(pieces + 1, "restore", str(dest), str(spool)):
        pieces += 1
        said = run_staniel("serve", "--port", "0", "--spool", str(spool))
        assert said.returncode == 1 and "is not complete" in said.stderr, said
    assert pieces > 4
    found = drained(spool.parent, ("orders", "mail"))
    assert [len(items) for items in found.values()] == [60, 60]


def test_a_restore_that_was_killed_before_its_mark_can_be_done_again(served: Path, tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    staniel("backup", dest, "--spool", served)
    (tmp_path / "new" / ".staniel").mkdir(parents=True)
    (tmp_path / "new" / ".staniel" / "lock").touch()
    staniel("restore", dest, tmp_path / "new")


def test_the_server_lets_go_of_the_files_of_a_backup_that_is_killed(tmp_path: Path) -> None:
    with running(tmp_path / "server", config=SMALL) as server:
        fill(server)
        assert killed_after(3, "backup", "take", str(tmp_path / "dest"), "--spool", str(server.spool))
        assert until(lambda: not held(server.spool))
        back_up(server.spool, tmp_path / "dest")


def test_files_that_a_killed_server_was_holding_are_let_go_of_by_the_next_start(tmp_path: Path) -> None:
    with running(tmp_path / "server", config=SMALL) as server:
        fill(server)
        connection = SpoolConnection(server.spool)
        connection.request("POST", "/api/backup", "{}", {"content-type": "application/json"})
        assert b'"items": 120' in connection.getresponse().readline()
        assert held(server.spool)
        server.restart()
        assert not held(server.spool)
        connection.close()


DYING_SERVER = """
import os, sys
from staniel.server import progress
from staniel.server.cli import backup
pid, left = int(sys.argv[1]), [2]
def step(self, more_bytes):
    left[0] -= 1
    if not left[0]:
        os.kill(pid, int(sys.argv[2]))
        while os.path.exists(f"/proc/{pid}"):  # a dead process whose threads still end has its connections, too
            pass
progress.Ticker.__call__ = step
backup.backup.main(sys.argv[3:])
"""


@pytest.mark.parametrize("number", [9, 15])
def test_a_backup_whose_server_ends_meanwhile_is_none(number: int, tmp_path: Path) -> None:
    with running(tmp_path / "server", config=SMALL, forked=False) as server:
        fill(server)
        line = ["take", str(tmp_path / "dest"), "--spool", str(server.spool)]
        copier = subprocess.Popen(
            [sys.executable, "-c", DYING_SERVER, str(server.pid), str(number), *line],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        server.wait()
        _, said = copier.communicate(timeout=60)
        assert copier.returncode == 1 and "the server ended while its files were copied" in said, said
        assert not list((tmp_path / "dest" / "backups").glob("*"))
        server.start()
        back_up(server.spool, tmp_path / "dest")


def under_way(spool: Path, *, is_known: bool) -> None:
    """Leave a move in the spool that has not begun to take items."""
    version = RESUMED_VERSION if is_known else HOMEWARD_VERSION + 1
    began = Began(version, 7, 0, 1 << 50, "move", b"orders", b"calls", total=60)
    folder = spool / ".staniel" / "undo"
    folder.mkdir(exist_ok=True)
    (folder / "7").write_bytes(frame(began) + frame(Moving(1, 0, 0, [])))


def backed_up_as_it_is(spool: Path, dest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a backup of a running server would have it, whose operations go on meanwhile."""
    monkeypatch.setattr("staniel.server.backup.source._refuse_unfinished", lambda spool: None)
    source = RestingSource(str(spool), 1_764_205_200_000)
    store = open_store(str(dest), writes=True)
    prepare(store)
    make_backup(store, source, lambda: 0, lambda size: None)
    store.close()
    source.close()


def test_a_restore_says_what_goes_on_when_a_server_starts_on_the_copy(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way(served, is_known=True)
    backed_up_as_it_is(served, tmp_path / "dest", monkeypatch)
    said = staniel("restore", tmp_path / "dest", tmp_path / "new")
    assert "calls: a purge, a move or an undo is not finished: a server that starts on it goes on" in said.stdout
    found = json.loads(staniel("restore", tmp_path / "dest", tmp_path / "other", "--json").stdout)
    assert [each["queue"] for each in found["under_way"]] == ["orders", "calls"]


def test_what_this_version_cannot_go_on_with_is_not_restored(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way(served, is_known=False)
    backed_up_as_it_is(served, tmp_path / "dest", monkeypatch)
    said = staniel("restore", tmp_path / "dest", tmp_path / "new", code=1)
    assert "undo/7" in said.stderr and "use the version that made the backup" in said.stderr
    assert not (tmp_path / "new").exists()


def test_what_a_refused_restore_cannot_remove_is_named(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staniel("backup", tmp_path / "dest", "--spool", served)
    store, new = open_store(str(tmp_path / "dest"), writes=False), tmp_path / "new"
    made = load(store, ids(store)[-1])

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(new / "orders"))

    monkeypatch.setattr("staniel.server.backup.restore._append_part", fail)
    monkeypatch.setattr("staniel.server.backup.restore.shutil.rmtree", fail)
    with pytest.raises(BackupError, match=f"new/orders: Input/output error; .*{new} is not complete, and no server"):
        restore(store, made, str(new), lambda size: None)
    started = run_staniel("serve", "--port", "0", "--spool", str(new))
    assert started.returncode == 1 and "is not complete" in started.stderr
    monkeypatch.undo()
    restore(store, made, str(new), lambda size: None)
    store.close()
