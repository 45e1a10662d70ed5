"""The tutorials of docs/start and the README, pasted into a real shell: every line that they promise comes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.transcripts import Document, free_port, play

ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "docs" / "start"
CLUSTER = pytest.param("cluster.md", marks=pytest.mark.programs("etcd"))
SPARK = pytest.param("spark.md", marks=pytest.mark.programs("python:pyspark", "java"))


def played(document: Document, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return play(document, folder, free_port(), {**os.environ, "PATH": path})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pymemcache.md", "client.md", CLUSTER, SPARK])
def test_a_tutorial_answers_as_it_says_when_it_is_pasted_into_a_shell(name: str, tmp_path: Path) -> None:
    document = Document(START / name)
    heard = played(document, tmp_path)
    assert len(document.commands) >= 5 and len(document.expected) > 3
    assert document.missing_in(heard) == [], heard
    assert "Traceback" not in heard, heard


@pytest.mark.slow
def test_the_readme_answers_as_it_says_when_it_is_pasted_into_a_shell(tmp_path: Path) -> None:
    document = Document(ROOT / "README.md")
    heard = played(document, tmp_path)
    assert len(document.commands) > 5 and len(document.expected) > 3
    assert document.missing_in(heard) == [], heard


def test_every_tutorial_is_run() -> None:
    assert {path.name for path in START.glob("*.md")} == {"pymemcache.md", "client.md", "cluster.md", "spark.md"}


def test_a_line_that_does_not_come_or_comes_too_late_is_found() -> None:
    document = Document(START / "pymemcache.md")
    right = "\n".join(document.expected)
    assert document.missing_in(right) == []
    assert document.missing_in(right.replace("done resize 1.png", "done resize 7.png")) == ["done resize 1.png"]
    first, *others = document.expected
    assert document.missing_in("\n".join([*others, first])) != []
