"""The compiling beside the server that `make serve` starts: when it is wanted, what it tells, and that it is used."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

from tests.packaging.scripts import ROOT, script

MODULE = "staniel.queues.counters"  # a small one


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    monkeypatch.setenv("STANIEL_PURE", "1")  # what the program sets itself is undone by this
    return script("compile_beside")


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [({}, True), ({"STANIEL_PURE": "0"}, True), ({"STANIEL_PURE": "1"}, False), ({"STANIEL_COMPILED": "/x"}, False)],
)
def test_who_has_chosen_a_build_gets_no_other(beside: ModuleType, environment: dict[str, str], wanted: bool) -> None:
    assert beside.is_wanted(environment) is wanted


def test_without_a_compiler_the_user_is_told_what_is_lacking(
    beside: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    told = beside.note(tmp_path / "compiled", {})
    assert told == (
        "plain Python runs; with the C compiler 'no-such-compiler' the next start would be the compiled build"
    )


def test_one_process_compiles_at_a_time(beside: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    lock = beside.locked(folder)
    assert "another process compiles" in beside.note(folder, {})
    assert beside.run(folder) == 0
    assert not folder.exists()
    os.close(lock)
    again = beside.locked(folder)
    assert again is not None
    os.close(again)


@pytest.mark.programs("cc")
def test_what_was_compiled_is_used_until_a_source_changes(beside: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    assert not beside.is_current(folder)
    assert beside.run(folder, [MODULE]) == 0
    assert beside.is_current(folder)
    assert beside.note(folder, {}) == ""
    manifest = folder / "manifest.txt"
    manifest.write_text(manifest.read_text().replace(f"{MODULE} ", f"{MODULE} 0"))  # the hash of other sources
    assert not beside.is_current(folder)
