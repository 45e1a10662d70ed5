"""The commands that show long operations of a real server."""

from __future__ import annotations

from pathlib import Path

from tests.server.cli.test_live import fill, refuses, run, say
from tests.support.process import running


def test_operations_are_a_table_with_progress_and_result(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        fill(server, "work", 3)
        say(server, "move", "work", "other", "--yes")
        heads, row = say(server, "operations").splitlines()
        assert heads.split()[:7] == ["ID", "OPERATION", "QUEUE", "TO", "STATE", "DONE", "TOTAL"]
        number, *cells = row.split()
        assert cells[:6] == ["move", "work", "other", "done", "3", "3"]
        assert say(server, "operations", number).splitlines()[1] == row
        assert refuses(run(server, "operations", number, "--cancel"), 1, f"operation {number} has ended: done")
        assert "expected ID with --cancel" in run(server, "operations", "--cancel").stderr
        assert refuses(run(server, "operations", "999"), 1, "there is no operation 999")
