"""docs/worker.md and its tutorial: examples run against a real server; the page names options, counters, events."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from staniel.client import Client
from staniel.worker import DeadLetter
from staniel.worker.command import work
from staniel.worker.events import COUNTERS
from tests.support.process import running
from tests.support.transcripts import Document, free_port, play

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "worker.md").read_text("utf-8")
BLOCK = re.compile(r"(?:^    .*\n|^\n(?=    ))+", re.MULTILINE)


def examples() -> list[str]:
    blocks = ["\n".join(line[4:] for line in found.strip("\n").splitlines()) + "\n" for found in BLOCK.findall(TEXT)]
    return [block for block in blocks if "import " in block]


@pytest.mark.parametrize("number", range(2))
def test_an_example_runs_as_it_stands(number: int, tmp_path: Path) -> None:
    assert len(examples()) == 2
    with running(tmp_path) as server:
        with Client(*server.address) as client:
            letter = DeadLetter("again", 1, 0, 5, "now", "w", "Traceback: why", b"a")
            client.put("jobs-dead", letter.encode())
        program = examples()[number].replace("22133", str(server.port))
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ("Traceback: why\n", "b'17.png' took 0 s\n1 0 0\n")[number]


def test_every_counter_and_event_is_on_the_page() -> None:
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "worker").glob("*.py"))
    events = set(re.findall(r'log\(\s*"(?:info|warning|error)", "([\w.]+)"', code))
    assert len(events) >= 9
    missing = [name for name in COUNTERS if f"_{name}_total`" not in TEXT]
    missing += [event for event in events - {"metrics.served"} if f"`{event}`" not in TEXT]
    assert missing == []


def test_each_option_that_the_page_names_is_there() -> None:
    there = {name for parameter in work.params for name in parameter.opts}
    assert set(re.findall(r"`(--[a-z-]+)", TEXT)) - {"--help"} <= there


@pytest.mark.slow
def test_the_tutorial_answers_as_it_says_when_it_is_pasted_into_a_shell(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    document = Document(ROOT / "docs" / "worker-tutorial.md")
    heard = play(document, tmp_path, free_port(), {**os.environ, "PATH": path})
    assert len(document.commands) > 15 and len(document.expected) > 15
    assert document.missing_in(heard) == [], heard
    assert "Traceback" not in heard, heard
