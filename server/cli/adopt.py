"""The command `staniel adopt`: a survey of an old server's folder, and a new spool from it. server/backup does
the work.
"""

from __future__ import annotations

import json
import os
import sys

import click
from msgspec import structs

from staniel.journal.tools.source import JOBS
from staniel.server.backup.adopt import OldJournal, Survey, adopt, survey
from staniel.server.backup.manifest import BackupError
from staniel.server.backup.restore import refuse_used
from staniel.server.cli.backup import errors_in_a_line, json_option
from staniel.server.cli.parameters import CommandFailed
from staniel.server.clock import steady_ms, wall_ms
from staniel.server.progress import Ticker
from staniel.server.text import counted, human_size, printable, tolerate

LOSSES = 1  # exit code, as that of `journal repair`
SHOWN_NAMES_MAX = 20


@click.command(
    "adopt",
    epilog="staniel adopt --dry-run /var/spool/kestrel /var/lib/staniel\n"
    "staniel adopt /var/spool/kestrel /var/lib/staniel",
)
@click.argument("old", metavar="OLD_SPOOL")
@click.argument("new", metavar="NEW_SPOOL", required=False)
@click.option("--dry-run", is_flag=True, help="Print the result of the survey, and copy nothing.")
@json_option
def adopt_folder(old: str, new: str | None, dry_run: bool, as_json: bool) -> None:
    """Make a new spool from a folder of Kestrel's, libkestrel's or workq's journals.

    Every record of OLD_SPOOL is read; the folder is not changed, and the old server must be stopped. The files are
    copied to NEW_SPOOL, which must be new or empty, and recovered there as at a server's start: each queue must then
    hold as many items as in the old files. Exit code 0: all of it was adopted; 1: something cannot be read, and a line
    says what; 2: nothing was adopted.
    """
    tolerate()
    if new is None and not dry_run:
        raise click.UsageError("expected OLD_SPOOL NEW_SPOOL, or OLD_SPOOL --dry-run")
    old = old.rstrip("/") or "/"
    with errors_in_a_line(CommandFailed):
        if new is not None:
            refuse_used(new)
        has_losses = _run(old, None if dry_run else new, as_json)
    sys.exit(LOSSES if has_losses else 0)


def _run(old: str, new: str | None, as_json: bool) -> bool:
    """Run the command. Return True if something is lost. Raises BackupError."""
    moment_ms = wall_ms()
    ticker = Ticker("read", steady_ms, sys.stderr)
    try:
        surveyed = survey(old, moment_ms, ticker)
    finally:
        ticker.clear()
    _print_survey(surveyed, as_json)
    if new is None:
        return surveyed.has_losses
    ticker = Ticker("copied", steady_ms, sys.stderr, surveyed.bytes)
    try:
        proved = adopt(surveyed, new.rstrip("/") or "/", moment_ms, ticker)
    finally:
        ticker.clear()
    if as_json:
        click.echo(json.dumps(structs.asdict(proved) | {"spool": os.path.abspath(new)}))
    elif not proved.differences:
        jobs = f", {counted(proved.jobs, 'job')}" if proved.jobs else ""
        what = f"{counted(proved.queues, 'queue')} with {counted(proved.items, 'item')}{jobs}"
        click.echo(f"adopted {what}, as many as in the old files, each of them")
        click.echo(f"to start: staniel serve --spool {printable(new)}")
    for difference in proved.differences:
        click.echo(printable(difference), err=True)
    if proved.differences:
        raise BackupError(f"{new} does not hold what {old} does: no server starts on it; keep the old folder")
    return surveyed.has_losses


def _print_survey(surveyed: Survey, as_json: bool) -> None:
    if as_json:
        for journal in surveyed.journals:
            queues = [structs.asdict(queue) for queue in journal.queues]
            flaws = [
                {"file": file_flaw.file, "torn": file_flaw.flaw.is_torn, **structs.asdict(file_flaw.flaw)}
                for file_flaw in journal.flaws
            ]
            click.echo(json.dumps(structs.asdict(journal) | {"queues": queues, "flaws": flaws}))
        click.echo(
            json.dumps({"left_alone": surveyed.left_alone, "files": len(surveyed.files), "bytes": surveyed.bytes})
        )
        return
    for journal in surveyed.journals:
        for line in _describe_journal(journal):
            click.echo(printable(line))
    for name in surveyed.left_alone[:SHOWN_NAMES_MAX]:
        click.echo(printable(f"left alone: {name}: no journal"))
    if (more := len(surveyed.left_alone) - SHOWN_NAMES_MAX) > 0:
        click.echo(f"left alone: {more:,} more")
    of_queues = [journal for journal in surveyed.journals if journal.name != JOBS]
    items = sum(journal.items for journal in of_queues)
    total = f"{counted(len(surveyed.files), 'file')}, {human_size(surveyed.bytes)}: {counted(items, 'item')}"
    click.echo(f"{total} in {counted(sum(len(journal.queues) for journal in of_queues), 'queue')}")


def _describe_journal(journal: OldJournal) -> list[str]:
    if journal.why_not:
        return [f"{journal.name}: cannot be served: {journal.why_not}"]
    what = "job" if journal.name == JOBS else "item"
    head = f"{journal.name}: {journal.format}, {counted(journal.files, 'file')}, {human_size(journal.bytes)}"
    open_items = sum(queue.open_items for queue in journal.queues)
    held = f", {open_items:,} of them open: they are ready again" if open_items else ""
    lines = [f"{head}: {counted(journal.items, what)}{held}"]
    if journal.name == JOBS or [queue.name for queue in journal.queues] != [journal.name]:
        lines += [f"  {queue.name}: {counted(queue.items, what)}" for queue in journal.queues]
    for file_flaw in journal.flaws:
        kind = "torn end, the start cuts it off" if file_flaw.flaw.is_torn else "cannot be read"
        lines.append(
            f"  {file_flaw.file}: byte {file_flaw.flaw.at}, {file_flaw.flaw.size} bytes: {kind}: {file_flaw.flaw.why}"
        )
    return lines + [f"  {note}" for note in journal.notes]
