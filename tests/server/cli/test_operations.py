"""The commands that show long operations of a real server."""

from __future__ import annotations

from pathlib import Path

from tests.server.cli.test_live import fill, refuses, run, say
from tests.support.process import running
from tests.support.wire import Wire

SHARED = "".join(f'[queues.{name}]\nmax_deliveries = 1\ndead_letter_queue = "dead"\n' for name in ("mails", "orders"))


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


def test_a_redrive_to_several_homes_is_shown_like_a_move_and_undone(tmp_path: Path) -> None:
    with running(tmp_path, config=SHARED) as server:
        for name in ("mails", "orders"):
            fill(server, name, 2)
            with Wire(server.address) as wire:
                for _ in range(2):
                    wire.get(f"{name}/open")
                    wire.ask(f"get {name}/abort".encode())
        first, second = say(server, "redrive", "dead", "--yes").splitlines()
        number = second.rpartition(" ")[2]
        assert first == "moved 4 items from dead to the queues that they came from"
        assert second.endswith(f"to take it back: staniel undo {number}")
        assert say(server, "operations").splitlines()[1].split()[:7] == [
            *(number, "redrive", "dead", "home", "done", "4", "4"),
        ]
        assert "redrive" in say(server, "undo") and "mails, orders" in say(server, "undo")
        assert say(server, "undo", number) == "returned 4 items to dead\n"
        lines = [line for line in say(server, "audit").splitlines() if "redrive" in line]
        assert len(lines) == 2 and "begun" in lines[0] + lines[1], lines
