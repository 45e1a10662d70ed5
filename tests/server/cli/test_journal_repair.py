"""`staniel journal repair`: the copy that it makes of a spool of three formats, sound, damaged and torn."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.server.cli.test_journal_verify import CONFIG, WORD, fill, flip, sealed_file
from tests.support.process import run_staniel, running
from tests.support.wire import Wire

ITEMS = 600


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spool that a server has filled, in all formats, and left."""
    folder = tmp_path_factory.mktemp("repair")
    with running(folder / "server", config=CONFIG) as server:
        fill(server)
        with Wire(server.address) as wire:
            assert wire.ask(b"status readonly") == b"END"
        server.stop()
        shutil.copytree(server.spool, folder / "spool", ignore=shutil.ignore_patterns("ballast", "*.new"))
    return folder / "spool"


@pytest.fixture
def spool(served: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(served, tmp_path / "spool"))


def content_of(folder: Path) -> dict[str, bytes]:
    names = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("lock", "append.lock")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in names}


def repair(*paths: Path, to: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    said = run_staniel("journal", "repair", *map(str, paths), "--to", str(to))
    assert said.returncode == code and "Traceback" not in said.stderr, said
    return said


def objects(*paths: Path, to: Path, code: int = 0) -> dict[str, dict[str, Any]]:
    said = run_staniel("journal", "repair", *map(str, paths), "--to", str(to), "--json")
    assert said.returncode == code, said
    return {found["name"]: found for found in map(json.loads, said.stdout.splitlines())}


def drained(folder: Path, queue: str) -> list[bytes]:
    """What a server on a copy, which it calls `spool`, hands out."""
    with running(folder, config=CONFIG) as server, Wire(server.address) as wire:
        assert "damage" not in server.stderr and "torn" not in server.stderr
        assert wire.ask(b"status up") == b"END"
        found = []
        while (line := wire.ask(b"get %b" % queue.encode())) != b"END":
            assert line.startswith(b"VALUE")
            found.append(wire.line())
            assert wire.line() == b"END"
        return found


def whole(first: int = 0, last: int = ITEMS) -> list[bytes]:
    return [WORD * 4 + b"%d" % number for number in range(first, last)]


def test_a_copy_of_a_sound_spool_has_the_same_files_and_serves_the_same(spool: Path, tmp_path: Path) -> None:
    before = content_of(spool)
    said = repair(spool, to=tmp_path / "copy" / "spool")
    assert said.stdout.splitlines()[0].startswith(f"jobs: {ITEMS} items in ") and said.stderr == ""
    assert said.stdout.splitlines()[-1] == f"3 journals in {tmp_path}/copy/spool"
    assert content_of(spool) == before
    after = content_of(tmp_path / "copy" / "spool")
    assert {name: before[name] for name in after} == after
    assert {name for name in before if not name.startswith(".staniel")} <= after.keys()
    assert {".staniel/status", ".staniel/version"} <= after.keys()
    assert any(name.startswith(".staniel/segments/") for name in after)
    assert drained(tmp_path / "copy", "jobs") == whole()


def test_a_queue_whose_sealed_file_is_damaged_is_written_anew_without_what_is_lost(spool: Path, tmp_path: Path) -> None:
    path = sealed_file(spool)
    flip(path, path.read_bytes().index(WORD, 9000))
    before = content_of(spool)
    found = objects(spool, to=tmp_path / "copy" / "spool", code=1)
    assert content_of(spool) == before
    (lost,) = found["jobs"]["lost"]
    assert lost["file"] == path.name and "by the checksum" in lost["why"]
    assert found["jobs"]["is_anew"] and found["jobs"]["items"] + found["jobs"]["lost_items"] == ITEMS
    assert 0 < found["jobs"]["lost_items"] < 100
    assert found["mail"]["lost"] == found["jobs"]["files"][1:] == []
    assert run_staniel("journal", "verify", str(tmp_path / "copy" / "spool")).returncode == 0
    served = drained(tmp_path / "copy", "jobs")
    assert len(served) == found["jobs"]["items"] and [item for item in whole() if item in served] == served


def test_a_sealed_file_that_is_gone_is_told_with_its_items(spool: Path, tmp_path: Path) -> None:
    path = sealed_file(spool)
    path.unlink()
    said = repair(spool, to=tmp_path / "copy" / "spool", code=1)
    assert f"  left out: {path}: byte 0, " in said.stdout and "a missing sealed file" in said.stdout
    assert "written anew, in one file" in said.stdout and "  lost: " in said.stdout
    assert said.stdout.endswith("; 1 of them lost something\n")
    assert len(drained(tmp_path / "copy", "jobs")) < ITEMS


def test_torn_ends_are_cut_off_in_every_format_and_are_no_loss(spool: Path, tmp_path: Path) -> None:
    for path in (spool / "jobs", sorted(spool.glob("mail.[0-9]*"))[-1], *spool.glob(".staniel/cmdlog/*.log")):
        path.write_bytes(path.read_bytes()[:-3])
    found = objects(spool, to=tmp_path / "copy" / "spool")
    assert all(each["lost"][0]["torn"] for each in found.values()) and len(found) == 3
    assert (found["jobs"]["items"], found["mail"]["items"]) == (ITEMS - 1, ITEMS - 1)
    log = next((tmp_path / "copy" / "spool").glob(".staniel/cmdlog/*.log")).read_bytes()
    assert next(spool.glob(".staniel/cmdlog/*.log")).read_bytes().startswith(log)
    assert drained(tmp_path / "copy", "mail") == whole(last=ITEMS - 1)


def test_a_record_amid_a_command_log_costs_itself_alone(spool: Path, tmp_path: Path) -> None:
    folder = spool / ".staniel" / "cmdlog"
    count = objects(folder, to=tmp_path / "sound")["command log"]["records"]
    flip(folder / "000000001.log", 100)
    found = objects(folder, to=tmp_path / "copy", code=1)
    assert found["command log"]["records"] == count - 1 and [path.name for path in (tmp_path / "copy").iterdir()] == [
        "000000001.log"
    ]


def test_single_files_are_repaired_by_themselves(spool: Path, tmp_path: Path) -> None:
    sealed = sealed_file(spool)
    sealed.write_bytes(sealed.read_bytes()[:-1])
    found = objects(sealed, spool / "jobs", to=tmp_path / "copy", code=1)
    assert set(found) == {"jobs"} and found["jobs"]["is_anew"] and (tmp_path / "copy" / "jobs").exists()
    said = run_staniel("journal", "repair", str(sealed), str(spool), "--to", str(tmp_path / "other"))
    assert said.returncode == 2 and "files of one folder" in said.stderr


def test_where_a_server_or_anything_else_is_in_the_way_nothing_is_written(spool: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "is not empty" in repair(spool, to=tmp_path / "full", code=2).stderr
    (tmp_path / "empty").mkdir()
    assert "no journal file" in repair(tmp_path / "empty", to=tmp_path / "new", code=2).stderr
    assert not (tmp_path / "new").exists()
    with running(tmp_path / "server") as server:
        said = repair(server.spool, to=tmp_path / "new", code=2).stderr
        assert (
            said == f"Error: staniel, process {server.pid} has {server.spool} open; stop it first, or repair a copy\n"
        )
    assert not (tmp_path / "new").exists()
    plan = spool / ".staniel" / "convert.plan"
    plan.touch()
    assert "finish `staniel journal convert`" in repair(spool, to=tmp_path / "new", code=2).stderr
