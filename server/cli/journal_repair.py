"""The command `staniel journal repair`: a copy of a spool, or of some files, without their unreadable parts.

Options, locks, and the output of losses; journal/tools/repair.py does the work.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress

import click

from staniel.journal.copy_mark import has_mark
from staniel.journal.disk.fs import JournalFailure
from staniel.journal.disk.os_fs import OsFs, is_folder, is_named
from staniel.journal.disk.refusals import failure_line, refused_tool
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.journal.tools.repair import CannotRepair, Repair, Repaired
from staniel.server.cli.journal_reading import flaws_as_json, json_option
from staniel.server.cli.parameters import CommandFailed, ExistingPath
from staniel.server.cli.verify import lock
from staniel.server.clock import steady_ms, wall_ms
from staniel.server.progress import Ticker
from staniel.server.text import counted, printable


@click.command(epilog="staniel journal repair /var/lib/staniel --to /var/lib/repaired")
@click.argument("paths", nargs=-1, required=True, type=ExistingPath(), metavar="SPOOL|FILE...")
@click.option("--to", "target", required=True, type=click.Path(), metavar="DIR", help="A new or empty folder.")
@json_option
def repair(paths: tuple[str, ...], target: str, as_json: bool) -> None:
    """Write a repaired copy of SPOOL, or of journal FILEs of one folder, to DIR, and list what is lost.

    The originals are not changed, and no server may have them open. The copy holds what a start would serve, and
    `staniel journal verify` finds nothing wrong with it. Until it is complete and synced no server starts on it. DIR
    needs room for the files, and for those of the largest queue once more. Exit code 0: everything could be read,
    except torn ends; 1: something is lost, and named; 2: there is no copy, or only a part of one.
    """
    fs, target = OsFs(), target.rstrip("/") or "/"
    try:
        folder, names = _split_paths(paths)
        if is_named(target) and not (is_folder(target) and not os.listdir(target)):
            raise CommandFailed(f"{printable(target)} is not empty: give a new folder with --to")
    except OSError as error:
        raise CommandFailed(printable(refused_tool(error, target))) from error
    ticker = Ticker("copied", steady_ms, sys.stderr)
    total = has_losses = 0
    try:
        lock(fs, folder, "repair")
        for repaired in Repair(fs, folder, names, target, wall_ms(), ticker).run():
            ticker.clear()
            total += 1
            has_losses += repaired.has_losses
            _print_repaired(folder, repaired, as_json)
    except CannotRepair as refused:
        raise CommandFailed(printable(str(refused))) from refused
    except BrokenPipeError:
        raise  # click ends quietly
    except (OSError, JournalFailure) as error:
        ticker.clear()
        why = failure_line(error, folder)
        raise CommandFailed(printable(f"the copy is not finished: {why}{_describe_unfinished(fs, target)}")) from error
    finally:
        fs.close()
    with suppress(OSError):  # the copy is complete
        _remove_work_folders(target)
    if not total:
        raise CommandFailed(f"no journal file in {printable(folder)}")
    if not as_json:
        lost = f"; {has_losses} of them lost something" if has_losses else ""
        click.echo(f"{counted(total, 'journal')} in {printable(target)}{lost}")
    sys.exit(1 if has_losses else 0)


def _split_paths(paths: tuple[str, ...]) -> tuple[str, frozenset[str] | None]:
    """Return the folder, and the names of its files; None: all. Raises OSError."""
    if len(paths) == 1 and is_folder(paths[0]):
        return paths[0].rstrip("/") or "/", None
    folders = {os.path.dirname(path) or "." for path in paths}
    if len(folders) > 1 or any(is_folder(path) for path in paths):
        raise click.UsageError("expected one spool, or files of one folder")
    return folders.pop(), frozenset(map(os.path.basename, paths))


def _describe_unfinished(fs: OsFs, target: str) -> str:
    """Return what the text of an error says of the unfinished copy."""
    try:
        if not is_named(target) or not os.listdir(target):
            return ""
        starts = "no server starts" if has_mark(fs, f"{target}/{OWN_FOLDER}") else "a server may start"
    except OSError:
        starts = "a server may start"
    return f". {target} is not complete, and {starts} on it: remove it"


def _print_repaired(folder: str, repaired: Repaired, as_json: bool) -> None:
    if as_json:
        fields: dict[str, object] = {"name": repaired.name, "format": repaired.format, "files": repaired.files}
        fields |= {"records" if repaired.format == "workq" else "items": repaired.count, "is_anew": repaired.is_anew}
        fields |= {"lost": flaws_as_json(repaired.lost), "lost_items": repaired.lost_items, "why_not": repaired.why_not}
        click.echo(json.dumps(fields))
        return
    if repaired.why_not:
        click.echo(printable(f"{repaired.name}: not copied: {repaired.why_not}"))
        return
    what = counted(repaired.count, "record" if repaired.format == "workq" else "item")
    where = "written anew, in one file" if repaired.is_anew else f"in {counted(len(repaired.files), 'file')}"
    click.echo(printable(f"{repaired.name}: {what} {where}"))
    for file_flaw in repaired.lost:
        place = f"{folder}/{file_flaw.file}: byte {file_flaw.flaw.at}, {file_flaw.flaw.size} bytes"
        kind = "torn end, " if file_flaw.flaw.is_torn else ""
        click.echo(printable(f"  left out: {place}: {kind}{file_flaw.flaw.why}"))
    if repaired.lost_items:
        click.echo(f"  lost: {counted(repaired.lost_items, 'item')}")


def _remove_work_folders(target: str) -> None:
    """Remove the working folder, and empty folders. Those that cannot be removed do no harm."""
    own = f"{target}/{OWN_FOLDER}"
    shutil.rmtree(f"{own}/repair", ignore_errors=True)
    for folder in (f"{own}/segments", own, target):
        try:
            os.rmdir(folder)
        except OSError:
            pass  # it is not empty
