"""The compiling beside the server that `make serve` starts: when it is wanted, what it tells, and that it is used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.packaging.scripts import ROOT, script

MODULE = "staniel.queues.counters"  # a small one
SECONDS_MAX = 300
BEHIND = "import sys; sys.path.insert(0, sys.argv[1]); import compile_beside as it; from pathlib import Path; "
BUILD = BEHIND + f"sys.exit(it.run(Path(sys.argv[2]), [{MODULE!r}]))"
HOLD = BEHIND + "it.locked(Path(sys.argv[2])); print('locked', flush=True); input()"


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    monkeypatch.setenv("STANIEL_PURE", "1")  # what the program sets itself is undone by this
    return script("compile_beside")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "compiled"


def program(code: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """A process of the script's functions, in a session of its own as in the background."""
    command = [sys.executable, "-c", code, str(ROOT / "packaging"), str(folder)]
    return subprocess.Popen(
        command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def compiler(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def left_over(folder: Path) -> list[str]:
    """What lies in the folder's folder, but for the lock."""
    return sorted(path.name for path in folder.parent.glob("compiled*") if path.suffix != ".lock")


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [({}, True), ({"STANIEL_PURE": "0"}, True), ({"STANIEL_PURE": "1"}, False), ({"STANIEL_COMPILED": "/x"}, False)],
)
def test_who_has_chosen_a_build_gets_no_other(beside: ModuleType, environment: dict[str, str], wanted: bool) -> None:
    assert beside.is_wanted(environment) is wanted


def test_without_a_compiler_the_user_is_told_what_is_lacking(
    beside: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    told = beside.announcement(folder, {})
    assert told == (
        "plain Python runs; with the C compiler 'no-such-compiler' the next start would be the compiled build"
    )


def test_one_process_compiles_at_a_time(beside: ModuleType, folder: Path) -> None:
    with program(HOLD, folder) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        assert "another process compiles" in beside.announcement(folder, {})
        assert beside.run(folder) == 0
        assert not folder.exists()
        other.communicate("\n", timeout=SECONDS_MAX)
    again = beside.locked(folder)
    assert again is not None
    os.close(again)


@pytest.mark.programs("cc", "python:Cython")
def test_what_was_compiled_is_used_until_a_source_changes(beside: ModuleType, folder: Path) -> None:
    assert not beside.is_current(folder)
    assert beside.run(folder, [MODULE]) == 0
    assert beside.is_current(folder)
    assert beside.announcement(folder, {}) == ""
    assert left_over(folder) == ["compiled"]
    manifest = folder / "manifest.txt"
    manifest.write_text(manifest.read_text().replace(f"{MODULE} ", f"{MODULE} 0"))  # the hash of other sources
    assert not beside.is_current(folder)


@pytest.mark.programs("cc", "python:Cython")
def test_a_build_that_is_killed_leaves_no_set_and_no_lock(beside: ModuleType, folder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "begun")
    slow = compiler(tmp_path / "slow-cc", f"echo compiling > {tmp_path}/begun; exec sleep {SECONDS_MAX}")
    with program(BUILD, folder, CC=slow) as build:
        assert (tmp_path / "begun").read_text() == "compiling\n"
        build.kill()  # the process alone, as when memory ends: its compiler lives on
        build.wait(SECONDS_MAX)
        try:
            assert not folder.exists()
            assert [name for name in left_over(folder) if name.startswith("compiled.new-")]
            assert beside.last_failure(folder) == ("", ""), "the next start tries again"
            assert beside.run(folder, [MODULE]) == 0
        finally:
            os.killpg(build.pid, signal.SIGKILL)
    assert beside.is_current(folder)
    assert left_over(folder) == ["compiled"]


@pytest.mark.programs("cc", "python:Cython")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exit 7", "returned non-zero exit status 7 (log: "),
        ('out=; for word; do [ "$out" = -o ] && echo broken > "$word"; out=$word; done', "the compiled modules do not"),
    ],
)
def test_a_build_that_fails_harms_no_start_and_is_told_once_a_start(
    beside: ModuleType, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    folder.mkdir()
    (folder / "manifest.txt").write_text("of the last build")
    broken = compiler(tmp_path / "broken-cc", text)
    monkeypatch.setenv("CC", broken)
    with program(BUILD, folder) as build:
        build.communicate(timeout=SECONDS_MAX)
    assert build.returncode == 1
    assert (folder / "manifest.txt").read_text() == "of the last build"
    assert left_over(folder) == ["compiled", "compiled.failed"]
    monkeypatch.setattr(beside, "compile_in_background", pytest.fail)
    told = beside.announcement(folder, {})
    assert told.startswith("plain Python runs; compiling has failed: ")
    assert why in told and "`make compiled` tries again" in told


def test_a_build_is_tried_again_once_its_inputs_have_changed(
    beside: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Path] = []
    monkeypatch.setattr(beside, "compile_in_background", begun.append)
    monkeypatch.setattr(beside.extensions, "missing_tool", str)
    (folder.parent / "compiled.failed").write_text("of other sources\nit was broken\n")
    assert beside.announcement(folder, {}).endswith("; the last try failed: it was broken")
    assert begun == [folder.parent / "compiled.log"]


def test_what_pip_cannot_install_is_told_and_tried_again(
    beside: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "TOOLS", ("staniel-has-no-such-tool>=1",))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert beside.run(folder, [MODULE]) == 1
    assert beside.last_failure(folder) == (beside.RETRIED, "pip could not install staniel-has-no-such-tool>=1")
    assert not folder.exists()
    assert not (folder.parent / "staniel-build-tools").exists()


@pytest.mark.parametrize(
    ("tool", "is_met"),
    [
        ("pytest>=1", True),
        ("pytest>=1,<2", False),
        ("pytest>=1000", False),
        ("staniel-has-no-such-tool>=1", False),
    ],
)
def test_a_requirement_is_met_by_the_version_that_is_installed(beside: ModuleType, tool: str, is_met: bool) -> None:
    assert beside.is_installed(tool) is is_met
