"""`staniel adopt`: what it says of an old folder, the spool that it makes, and when it refuses."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from staniel.broker.recovery import RecoverySummary, SpoolRecovery
from staniel.journal import transfer_log
from staniel.journal.spool import SpoolError
from staniel.server.backup.adopt import adopt, survey
from staniel.server.backup.manifest import BackupError
from tests.server.backup.copies import drained, killed_after, staniel
from tests.server.cli.test_journal_verify import CONFIG, fill
from tests.support.process import run_staniel, running
from tests.support.wire import Wire


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The journals of a server, as an old one would have left them: two queues, one of them with an open read."""
    folder = tmp_path_factory.mktemp("old")
    with running(folder, config=CONFIG) as server:
        fill(server)
        with Wire(server.address) as wire:
            assert wire.get("jobs/open") is not None
            server.kill()
        found = {path.name: path.read_bytes() for path in server.spool.iterdir() if path.is_file()}
        found |= {path.name: path.read_bytes() for path in (server.spool / ".staniel" / "cmdlog").glob("*.log")}
    return found


@pytest.fixture
def old(filled: dict[str, bytes], tmp_path: Path) -> Path:
    folder = tmp_path / "kestrel"
    folder.mkdir()
    for name, data in filled.items():
        (folder / name).write_bytes(data)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_dry_run_says_what_would_become_of_a_folder_and_makes_nothing(old: Path, tmp_path: Path) -> None:
    (old / ".kestrel-status").write_text("Up")
    (old / "jobs~~1795304100123").write_bytes(b"half")
    (old / "jobs").write_bytes((old / "jobs").read_bytes() + b"\2\x10")
    (old / "files.tar.gz").write_bytes(b"")
    before = content(old)
    lines = staniel("adopt", old, "--dry-run").stdout.splitlines()
    assert [line for line in lines if line.startswith("jobs: kestrel, ") and ": 600 items, 1 of them open" in line]
    assert [line for line in lines if line.startswith("mail: libkestrel, ") and line.endswith(": 600 items")]
    assert [line for line in lines if line.startswith("command log: workq, 1 file, ") and line.endswith(": 20 jobs")]
    assert [line for line in lines if "jobs: byte " in line and "2 bytes: torn end" in line]
    assert "  jobs~~1795304100123 is unfinished, and left out" in lines
    assert {"left alone: .kestrel-status: no journal", "left alone: files.tar.gz: no journal"} <= set(lines)
    assert lines[-1].endswith(": 1,200 items in 2 queues")
    assert content(old) == before and [path.name for path in tmp_path.iterdir()] == ["kestrel"]
    assert staniel("adopt", old, tmp_path / "new", "--dry-run").stdout.splitlines() == lines
    assert not (tmp_path / "new").exists()


def test_the_new_spool_holds_what_the_old_folder_does(old: Path, tmp_path: Path) -> None:
    before = content(old)
    said = staniel("adopt", old, tmp_path / "copy" / "spool")
    assert said.stdout.splitlines()[-2:] == [
        "adopted 2 queues with 1,200 items, 20 jobs, as many as in the old files, each of them",
        f"to start: staniel serve --spool {tmp_path}/copy/spool",
    ]
    assert content(old) == before
    assert "20 jobs" in run_greeting(tmp_path / "copy")
    found = drained(tmp_path / "copy", ("jobs", "mail"), CONFIG)
    assert [len(items) for items in found.values()] == [600, 600]


def run_greeting(folder: Path) -> str:
    shutil.copytree(folder / "spool", folder / "again" / "spool")
    with running(folder / "again", config=CONFIG) as server:
        return server.greeting


def test_a_spool_that_has_lost_its_version_is_not_adopted(old: Path, tmp_path: Path) -> None:
    """Its own folder has what the journals alone do not tell."""
    own = old / ".staniel"
    own.mkdir()
    assert ".staniel/version is missing" in staniel("adopt", old, "--dry-run", code=2).stderr
    line = transfer_log.encode(transfer_log.Intent(1, "jobs", 1, "mail", 0, 0, 1, 1, 1))
    (own / "intents").write_bytes(line)
    said = staniel("adopt", old, tmp_path / "new", code=2)
    assert "items are on their way to another queue: start a server on it once" in said.stderr
    assert not (tmp_path / "new").exists()


def test_json_has_an_object_for_each_journal_and_the_proof(old: Path, tmp_path: Path) -> None:
    *journals, folder, proof = map(json.loads, staniel("adopt", old, tmp_path / "new", "--json").stdout.splitlines())
    assert [(each["name"], each["format"]) for each in journals] == [
        ("jobs", "kestrel"), ("mail", "libkestrel"), ("command log", "workq"),
    ]  # fmt: skip
    assert folder == {"left_alone": [], "files": len(content(old)), "bytes": sum(map(len, content(old).values()))}
    assert (proof["queues"], proof["items"], proof["jobs"], proof["differences"]) == (2, 1200, 20, [])


def test_what_cannot_be_read_is_told_and_the_rest_is_adopted(old: Path, tmp_path: Path) -> None:
    sealed = sorted(old.glob("jobs.*"))[1]
    sealed.write_bytes(sealed.read_bytes()[:-5])
    said = staniel("adopt", old, tmp_path / "new", code=1)
    assert f"  {sealed.name}: byte " in said.stdout and "cannot be read" in said.stdout
    assert "adopted 2 queues" in said.stdout


@pytest.mark.slow
def test_one_that_is_killed_leaves_no_spool_and_can_be_done_again(old: Path, tmp_path: Path) -> None:
    spool, pieces = tmp_path / "copy" / "spool", 0
    spool.parent.mkdir()
    while killed_after(pieces + 1, "adopt_folder", str(old), str(spool)):
        pieces += 4
        if spool.exists():
            started = run_staniel("serve", "--port", "0", "--spool", str(spool))
            assert started.returncode == 1 and "is not complete" in started.stderr
    assert pieces > 6
    assert len(drained(spool.parent, ("jobs",), CONFIG)["jobs"]) == 600


def test_a_folder_that_changes_meanwhile_is_not_adopted(old: Path, tmp_path: Path) -> None:
    found = survey(str(old), 0, lambda size: None)
    with (old / "mail.read.").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(BackupError, match="has changed while it was copied"):
        adopt(found, str(tmp_path / "new"), 0, lambda size: None)
    assert not (tmp_path / "new").exists()


def test_a_copy_that_holds_something_else_is_no_spool(old: Path, tmp_path: Path) -> None:
    found = survey(str(old), 0, lambda size: None)
    at = next(at for at, each in enumerate(found.journals) if each.name == "jobs")
    found.journals[at] = found.journals[at].__class__("jobs", "kestrel", queues=[])
    proved = adopt(found, str(tmp_path / "new"), 0, lambda size: None)
    assert proved.differences == ["jobs: 0 items in the old files, 600 in the new spool"]
    started = run_staniel("serve", "--port", "0", "--spool", str(tmp_path / "new"))
    assert started.returncode == 1 and "is not complete" in started.stderr


@pytest.mark.parametrize("wrong", [SpoolError("no"), KeyboardInterrupt()])
def test_a_copy_on_which_no_server_has_started_is_no_spool(
    wrong: BaseException, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise wrong

    found = survey(str(old), 0, lambda size: None)
    monkeypatch.setattr(SpoolRecovery, "recover", refuse)
    with pytest.raises((BackupError, KeyboardInterrupt)):
        adopt(found, str(tmp_path / "new"), 0, lambda size: None)
    monkeypatch.undo()
    assert not adopt(found, str(tmp_path / "new"), 0, lambda size: None).differences


def test_no_server_starts_on_a_copy_that_is_not_proved_yet(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the adoption was killed at that moment."""
    right = SpoolRecovery.recover

    def recover_copy(*given: Any) -> RecoverySummary:
        found = right(*given)
        shutil.copytree(tmp_path / "new", tmp_path / "killed")
        return found

    monkeypatch.setattr(SpoolRecovery, "recover", recover_copy)
    assert not adopt(survey(str(old), 0, lambda size: None), str(tmp_path / "new"), 0, lambda size: None).differences
    started = run_staniel("serve", "--port", "0", "--spool", str(tmp_path / "killed"))
    assert started.returncode == 1 and "is not complete" in started.stderr


def test_a_folder_in_use_is_refused(old: Path, tmp_path: Path) -> None:
    holding = [sys.executable, "-c", "import sys; file = open(sys.argv[1], 'ab'); print(); input()", str(old / "jobs")]
    with subprocess.Popen(holding, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        said = staniel("adopt", old, tmp_path / "new", code=2)
        assert f"process {holder.pid} (" in said.stderr and "stop it first" in said.stderr
        holder.kill()
    (old / "append.lock").touch()
    with (old / "append.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "stop it first" in staniel("adopt", old, tmp_path / "new", code=2).stderr
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_done_is_one_line(old: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty").mkdir()
    staniel("adopt", old, tmp_path / "new")
    for words, arguments in (
        ("is not empty", (old, tmp_path / "full")),
        ("is not empty", (old, tmp_path / "new")),
        ("is a spool of Staniel already", (tmp_path / "new", tmp_path / "other")),
        ("has no journals", (tmp_path / "empty", tmp_path / "other")),
        ("is not a folder", (tmp_path / "nowhere", tmp_path / "other")),
        ("lie within each other", (old, old / "new")),
    ):
        said = staniel("adopt", *arguments, code=2)
        assert words in said.stderr and said.stderr.count("\n") == 1, said
    assert "Usage" in staniel("adopt", old, code=2).stderr
    assert not (tmp_path / "other").exists() and not (old / "new").exists()
