"""README.md: its transcripts run as they stand there, and its figures are those of docs/performance.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import running
from tests.support.transcripts import Document, free_port, play
from tests.support.wire import Wire, drain

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
LINE_CHARS_MAX = 100


@pytest.mark.slow
def test_what_is_pasted_into_a_shell_answers_as_the_page_says(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    document = Document(README)
    heard = play(document, tmp_path, free_port(), {**os.environ, "PATH": path})
    assert len(document.commands) > 20 and len(document.expected) > 20
    assert document.missing_in(heard) == [], heard
    assert "Traceback" not in heard, heard


def test_coming_from_kestrel_serves_the_adopted_copy_and_leaves_kestrels_folder_alone(tmp_path: Path) -> None:
    section = README.read_text("utf-8").partition("\n## From Kestrel\n")[2].partition("\n## ")[0]
    commands = re.findall(r"^    staniel (.+?)(?:  +#.*)?$", section, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["config", "config", "adopt", "serve"]
    old, new = tmp_path / "kestrel", tmp_path / "staniel"
    with running(tmp_path / "old", config="[default]\njournal_dialect = 'kestrel-2.4'\n") as kestrel:
        with Wire(kestrel.address) as wire:
            for number in range(20):
                assert wire.put("jobs", b"%d" % number) == b"STORED"
        kestrel.kill()
        shutil.copytree(kestrel.spool, old, ignore=shutil.ignore_patterns(".staniel"))
    port = free_port()
    (tmp_path / "production.scala").write_text(
        f'new KestrelConfig {{\n  listenAddress = "0.0.0.0"\n  memcacheListenPort = {port}\n'
        f'  queuePath = "{old}"\n  default.maxItems = 1000\n}}\n'
    )
    before = {path.name: path.read_bytes() for path in old.iterdir()}

    def prepared(command: str) -> list[str]:
        ours = command.replace("/var/spool/kestrel", str(old)).replace("/var/lib/staniel", str(new))
        return [str(Path(sys.executable).parent / "staniel"), *ours.partition(" > ")[0].split()]

    for command in commands[:3]:
        done = subprocess.run(prepared(command), cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == (1 if "import-kestrel" in command else 0), done
        if " > " in command:
            (tmp_path / command.rpartition(" > ")[2]).write_text(done.stdout)
    with subprocess.Popen(prepared(commands[3]), cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert f"spool {new}: 1 queue, 20 items recovered" in server.stdout.readline()
            assert drain(("127.0.0.1", port), "jobs") == [b"%d" % number for number in range(20)]
        finally:
            server.terminate()
    assert {path.name: path.read_bytes() for path in old.iterdir()} == before


def test_a_line_that_does_not_come_or_comes_too_late_is_found() -> None:
    document = Document(README)
    right = "\n".join(document.expected)
    assert document.missing_in(right) == []
    assert document.missing_in(right.replace("done resize 1.png", "done resize 7.png")) == ["done resize 1.png"]
    first, *others = document.expected
    assert document.missing_in("\n".join([*others, first])) != []


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table's rows, the line of hyphens left out."""
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    rows = [[[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()] for table in found]
    return [[table[0], *table[2:]] for table in rows]


def test_each_figure_is_one_of_the_performance_page() -> None:
    measured = {tuple(row) for table in tables(PERFORMANCE.read_text("utf-8")) for row in table}
    section = README.read_text("utf-8").partition("\n## Figures\n")[2].partition("\n## ")[0]
    shown = [row for table in tables(section) for row in table[1:]]
    assert len(shown) >= 10
    assert [row for row in shown if not any(set(row) <= set(known) and row[0] == known[0] for known in measured)] == []
    assert any(re.match(r"0\.[0-8]", cell) for row in shown for cell in row), "and the bad ones are among them"


def test_its_prose_can_be_read_in_a_terminal() -> None:
    blocks = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    prose = blocks.sub("", README.read_text("utf-8"))
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "    "))]
    assert [line for line in lines if len(line) > LINE_CHARS_MAX] == []
