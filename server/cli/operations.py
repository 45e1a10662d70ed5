"""The command that shows long operations of a running server, and cancels them."""

from __future__ import annotations

import click
import msgspec

from staniel.broker.operations.running import OperationState, OperationView
from staniel.server.cli.admin_client import Answer
from staniel.server.cli.following import ended
from staniel.server.cli.live import echo_table, live
from staniel.server.cli.live_command import Live, convert
from staniel.server.cli.text import human_duration, printable, utc_text

HOME = "home"  # each item goes to the queue that it left
HEADS = ("ID", "OPERATION", "QUEUE", "TO", "STATE", "DONE", "TOTAL", "PER S", "LEFT", "BEGAN", "ENDED", "BY", "WHY")
LEFT = ("OPERATION", "QUEUE", "TO", "STATE", "BEGAN", "ENDED", "BY", "WHY")


@live("operations")
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
        found = live.client.get("/api/operations")
        shown = convert(found, list[OperationView])
    else:
        path = f"/api/operations/{number}"
        found = live.client.post(f"{path}/cancel") if is_cancelled else live.client.get(path)
        view = convert(found, OperationView)
        if is_cancelled:
            view = ended(live, view)
            found = Answer(msgspec.to_builtins(view))
        shown = [view]
    if not live.print_json(found):
        echo_table(HEADS, [_row(each) for each in shown], *LEFT)


def _row(each: OperationView) -> list[str]:
    is_over = each.state not in (OperationState.RUNNING, OperationState.PAUSED)
    left = "gives back" if each.returning else "?" if each.remaining_ms < 0 else human_duration(each.remaining_ms)
    return [
        str(each.id),
        each.operation,
        printable(each.queue),
        printable(each.target) or (HOME if each.operation == "redrive" else ""),
        each.state.value,
        f"{each.done:,}",
        f"{each.total:,}",
        f"{each.rate_per_second:,}",
        "" if is_over else left,
        utc_text(each.started_at_ms),
        utc_text(each.ended_at_ms) if is_over else "",
        printable(each.by),
        printable(each.why),
    ]
