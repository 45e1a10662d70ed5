"""The command that shows long operations of a running server, and cancels them."""

from __future__ import annotations

import click
import msgspec

from staniel.broker.operations.running import OperationState, OperationView
from staniel.server.cli.admin_client import Answer
from staniel.server.cli.following import ended
from staniel.server.cli.live import echo_table, live
from staniel.server.cli.live_command import Live, convert
from staniel.server.text import human_duration, printable, utc_text

HOME = "home"  # each item goes to the queue that it left
HEADS = ("ID", "OPERATION", "QUEUE", "TO", "STATE", "DONE", "TOTAL", "PER S", "LEFT", "BEGAN", "ENDED", "BY", "WHY")
LEFT = ("OPERATION", "QUEUE", "TO", "STATE", "BEGAN", "ENDED", "BY", "WHY")


@live("operations", "staniel operations")
@click.argument("number", metavar="[ID]", required=False, type=click.IntRange(1))
@click.option("--cancel", "is_cancelled", is_flag=True, help="End operation ID between two items.")
def operations(live: Live, number: int | None, is_cancelled: bool) -> None:
    """Show long operations: the running ones, then those that ended lately.

    Moves, redrives, purges, deletes and undos belong to the server: they continue when the command that began them
    ends. --cancel waits for its end. The completed part of a cancelled operation stays; `undo ID` reverts it.
    """
    if number is None:
        if is_cancelled:
            raise click.UsageError("expected ID with --cancel")
        reply = live.client.get("/api/operations")
        shown = convert(reply, list[OperationView])
    else:
        path = f"/api/operations/{number}"
        reply = live.client.post(f"{path}/cancel") if is_cancelled else live.client.get(path)
        view = convert(reply, OperationView)
        if is_cancelled:
            view = ended(live, view)
            reply = Answer(msgspec.to_builtins(view))
        shown = [view]
    if not live.print_json(reply):
        echo_table(HEADS, [_row(view) for view in shown], *LEFT)


def _row(operation: OperationView) -> list[str]:
    is_over = operation.state is not OperationState.RUNNING
    left = (
        "gives back"
        if operation.returning
        else "?"
        if operation.remaining_ms < 0
        else human_duration(operation.remaining_ms)
    )
    return [
        str(operation.id),
        operation.operation,
        printable(operation.queue),
        printable(operation.target) or (HOME if operation.operation == "redrive" else ""),
        operation.state.value,
        f"{operation.done:,}",
        f"{operation.total:,}",
        f"{operation.rate_per_second:,}",
        "" if is_over else left,
        utc_text(operation.started_at_ms),
        utc_text(operation.ended_at_ms) if is_over else "",
        printable(operation.by),
        printable(operation.why),
    ]
