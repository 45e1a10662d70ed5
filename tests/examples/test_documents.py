"""The program at the top of docs/client.md is one: it runs as it stands there."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.support.process import running

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_PORT = "22133"


def first_program(text: str) -> str:
    """The first indented block, from its imports to the run."""
    begin, end = text.index("    import trio"), text.index("trio.run(main)")
    return textwrap.dedent(text[begin:end]) + "trio.run(main)\n"


def test_the_first_program_of_the_clients_page_runs(tmp_path: Path) -> None:
    program = first_program((ROOT / "docs" / "client.md").read_text("utf-8"))
    assert DEFAULT_PORT in program
    with running(tmp_path) as server:
        ours = program.replace(DEFAULT_PORT, str(server.port))
        done = subprocess.run([sys.executable, "-c", ours], capture_output=True, text=True, timeout=20, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("b'resize 17.png' 0 ")
