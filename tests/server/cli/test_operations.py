"""The commands that show long operations of a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import click
import pytest

from staniel.broker.operations.running import OperationView
from staniel.server.cli import following
from staniel.server.cli.admin_address import ServerUnreachable
from staniel.server.cli.admin_client import AdminClient, Answer
from staniel.server.cli.live_command import Live
from staniel.server.cli.operations import operations
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


class Ending:
    """A server whose operation has ended at the second look."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def _view(self, state: str, **more: object) -> Answer:
        shown = {"id": 7, "operation": "move", "queue": "q", "target": "r", "state": state, "done": 5, "total": 9}
        times = {
            "rate_per_second": 3,
            "remaining_ms": 4000,
            "started_at_ms": 1,
            "ended_at_ms": 0,
            "by": "me",
            "why": "",
        }
        return Answer({**shown, **times, **more})

    def post(self, path: str) -> Answer:
        self.asked.append(path)
        return self._view("running")

    def get(self, path: str) -> Answer:
        self.asked.append(path)
        is_over = len(self.asked) > 2
        return self._view("cancelled", ended_at_ms=2, why="it was cancelled") if is_over else self._view("running")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_cancel_tells_how_the_operation_ended(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    client = Ending()
    with click.Context(operations, obj=Live(cast(AdminClient, client), as_json)) as context:
        context.invoke(operations.callback, number=7, is_cancelled=True)  # type: ignore[arg-type]
    assert client.asked == ["/api/operations/7/cancel", "/api/operations/7", "/api/operations/7"]
    told = capsys.readouterr().out
    if as_json:
        assert json.loads(told)["state"] == "cancelled"
    else:
        assert told.splitlines()[1].split()[4:7] == ["cancelled", "5", "9"] and "it was cancelled" in told


class Restarted(Ending):
    """A server that is gone at the first `lost` looks."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost = lost

    def get(self, path: str) -> Answer:
        self.lost -= 1
        if self.lost >= 0:
            raise ServerUnreachable("no server at 127.0.0.1:1")
        return super().get(path)


def test_a_wait_says_that_the_server_has_gone_and_goes_on_when_it_is_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LOOK_S", 0.0)
    client = Restarted(3)
    live = Live(cast(AdminClient, client), as_json=False)
    view = following.ended(live, following.convert(client.post("/api/move"), OperationView))
    assert view.done == 5 and client.lost < 0
    assert capsys.readouterr().err.splitlines() == [
        "the server does not reply; operation 7 continues when it runs again (waiting up to 60 s)"
    ]


def test_a_wait_for_a_server_that_does_not_come_back_says_what_becomes_of_the_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "LOOK_S", 0.0)
    monkeypatch.setattr(following, "UNREACHABLE_S_MAX", 0.0)
    client = Restarted(1 << 30)
    live = Live(cast(AdminClient, client), as_json=False)
    with pytest.raises(
        ServerUnreachable, match="operation 7 continues when the server runs again; start it, then: staniel"
    ):
        following.ended(live, following.convert(client.post("/api/move"), OperationView))


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
