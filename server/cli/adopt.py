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
from staniel.server.cli.progress import Ticker
from staniel.server.cli.text import counted, human_size, printable, tolerate
from staniel.server.clock import steady_ms, wall_ms

LOSSES = 1  # exit code, as that of `journal repair`
SHOWN_NAMES_MAX = 20


@click.command("adopt")
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
        found = survey(old, moment_ms, ticker)
    finally:
        ticker.clear()
    _print_survey(found, as_json)
    if new is None:
        return found.has_losses
    ticker = Ticker("copied", steady_ms, sys.stderr, found.bytes)
    try:
        proved = adopt(found, new.rstrip("/") or "/", moment_ms, ticker)
    finally:
        ticker.clear()
    if as_json:
        click.echo(json.dumps(structs.asdict(proved) | {"spool": os.path.abspath(new)}))
    elif not proved.differences:
        jobs = f", {counted(proved.jobs, 'job')}" if proved.jobs else ""
        what = f"{counted(proved.queues, 'queue')} with {counted(proved.items, 'item')}{jobs}"
        click.echo(f"adopted {what}, as many as in the old files, each of them")
        click.echo(f"to start: staniel serve --spool {printable(new)}")
    for each in proved.differences:
        click.echo(printable(each), err=True)
    if proved.differences:
        raise BackupError(f"{new} does not hold what {old} does: no server starts on it; keep the old folder")
    return found.has_losses


def _print_survey(found: Survey, as_json: bool) -> None:
    if as_json:
        for each in found.journals:
            queues = [structs.asdict(queue) for queue in each.queues]
            flaws = [{"file": one.file, "torn": one.flaw.is_torn, **structs.asdict(one.flaw)} for one in each.flaws]
            click.echo(json.dumps(structs.asdict(each) | {"queues": queues, "flaws": flaws}))
        click.echo(json.dumps({"left_alone": found.left_alone, "files": len(found.files), "bytes": found.bytes}))
        return
    for each in found.journals:
        for line in _lines(each):
            click.echo(printable(line))
    for name in found.left_alone[:SHOWN_NAMES_MAX]:
        click.echo(printable(f"left alone: {name}: no journal"))
    if (more := len(found.left_alone) - SHOWN_NAMES_MAX) > 0:
        click.echo(f"left alone: {more:,} more")
    items = sum(each.items for each in found.journals if each.name != JOBS)
    total = f"{counted(len(found.files), 'file')}, {human_size(found.bytes)}: {counted(items, 'item')}"
    click.echo(f"{total} in {counted(sum(len(each.queues) for each in found.journals if each.name != JOBS), 'queue')}")


def _lines(each: OldJournal) -> list[str]:
    if each.why_not:
        return [f"{each.name}: cannot be served: {each.why_not}"]
    what = "job" if each.name == JOBS else "item"
    head = f"{each.name}: {each.format}, {counted(each.files, 'file')}, {human_size(each.bytes)}"
    open_items = sum(queue.open_items for queue in each.queues)
    held = f", {open_items:,} of them open: they are ready again" if open_items else ""
    lines = [f"{head}: {counted(each.items, what)}{held}"]
    if each.name == JOBS or [queue.name for queue in each.queues] != [each.name]:
        lines += [f"  {queue.name}: {counted(queue.items, what)}" for queue in each.queues]
    for one in each.flaws:
        kind = "torn end, the start cuts it off" if one.flaw.is_torn else "cannot be read"
        lines.append(f"  {one.file}: byte {one.flaw.at}, {one.flaw.size} bytes: {kind}: {one.flaw.why}")
    return lines + [f"  {note}" for note in each.notes]
