"""docs/man is what packaging/man_pages.py makes of the help, and `man` shows it without a complaint."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAN = ROOT / "docs" / "man"


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("man_pages", ROOT / "packaging" / "man_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_a_page_for_each_command_and_it_is_its_help() -> None:
    kept = {path.name: path.read_text("utf-8") for path in MAN.iterdir()}
    found = dict(generator().pages())
    assert len(found) > 40 and set(kept) == set(found), "`make man` makes them anew"
    assert [name for name in found if found[name] != kept[name]] == [], "`make man` makes them anew"


def test_the_code_of_a_help_text_does_not_break_across_lines() -> None:
    assert [path.name for path in MAN.iterdir() if "`" in path.read_text("utf-8")] == []


@pytest.mark.programs("man")
def test_man_shows_every_page_and_has_nothing_to_complain_of() -> None:
    for path in sorted(MAN.iterdir()):
        env = {**os.environ, "MANWIDTH": "100", "MANROFFOPT": "-ww", "LC_ALL": "C.UTF-8"}
        command = ["man", "--warnings", "--local-file", str(path)]
        ran = subprocess.run(command, capture_output=True, text=True, env=env)
        assert (ran.returncode, ran.stderr) == (0, ""), path.name
        assert "SYNOPSIS" in ran.stdout


@pytest.mark.programs("man")
def test_what_roff_would_obey_is_shown() -> None:
    text = generator().escaped(".so x\nC:\\n\n--y")
    shown = subprocess.run(
        ["man", "--local-file", "-"], input=f".TH A 1\n.SH B\n{text}\n", capture_output=True, text=True
    ).stdout
    assert ".so x C:\\n --y" in " ".join(shown.split())
