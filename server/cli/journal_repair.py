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
from staniel.journal.disk.refusals import refused_tool, told
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.journal.tools.repair import CannotRepair, Repair, Repaired
from staniel.server.cli.journal_reading import flaws_as_json, json_option
from staniel.server.cli.parameters import CommandFailed, ExistingPath
from staniel.server.cli.progress import Ticker
from staniel.server.cli.text import counted, printable
from staniel.server.cli.verify import lock
from staniel.server.clock import steady_ms, wall_ms


@click.command()
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
        folder, names = _named(paths)
        if is_named(target) and not (is_folder(target) and not os.listdir(target)):
            raise CommandFailed(f"{printable(target)} is not empty: give a new folder with --to")
    except OSError as error:
        raise CommandFailed(printable(refused_tool(error, target))) from error
    ticker = Ticker("copied", steady_ms, sys.stderr)
    total = has_losses = 0
    try:
        lock(fs, folder, "repair")
        for found in Repair(fs, folder, names, target, wall_ms(), ticker).run():
            ticker.clear()
            total += 1
            has_losses += found.has_losses
            _print_repaired(folder, found, as_json)
    except CannotRepair as refused:
        raise CommandFailed(printable(str(refused))) from refused
    except BrokenPipeError:
        raise  # click ends quietly
    except (OSError, JournalFailure) as error:
        ticker.clear()
        why = told(error, folder)
        raise CommandFailed(printable(f"the copy is not finished: {why}{_left(fs, target)}")) from error
    finally:
        fs.close()
    with suppress(OSError):  # the copy is complete
        _clear(target)
    if not total:
        raise CommandFailed(f"no journal file in {printable(folder)}")
    if not as_json:
        lost = f"; {has_losses} of them lost something" if has_losses else ""
        click.echo(f"{counted(total, 'journal')} in {printable(target)}{lost}")
    sys.exit(1 if has_losses else 0)


def _named(paths: tuple[str, ...]) -> tuple[str, frozenset[str] | None]:
    """Return the folder, and the names of its files; None: all. Raises OSError."""
    if len(paths) == 1 and is_folder(paths[0]):
        return paths[0].rstrip("/") or "/", None
    folders = {os.path.dirname(path) or "." for path in paths}
    if len(folders) > 1 or any(is_folder(path) for path in paths):
        raise click.UsageError("expected one spool, or files of one folder")
    return folders.pop(), frozenset(map(os.path.basename, paths))


def _left(fs: OsFs, target: str) -> str:
    """Return what the text of an error says of the unfinished copy."""
    try:
        if not is_named(target) or not os.listdir(target):
            return ""
        starts = "no server starts" if has_mark(fs, f"{target}/{OWN_FOLDER}") else "a server may start"
    except OSError:
        starts = "a server may start"
    return f". {target} is not complete, and {starts} on it: remove it"


def _print_repaired(folder: str, found: Repaired, as_json: bool) -> None:
    if as_json:
        fields: dict[str, object] = {"name": found.name, "format": found.format, "files": found.files}
        fields |= {"records" if found.format == "workq" else "items": found.count, "is_anew": found.is_anew}
        fields |= {"lost": flaws_as_json(found.lost), "lost_items": found.lost_items, "why_not": found.why_not}
        click.echo(json.dumps(fields))
        return
    if found.why_not:
        click.echo(printable(f"{found.name}: not copied: {found.why_not}"))
        return
    what = counted(found.count, "record" if found.format == "workq" else "item")
    where = "written anew, in one file" if found.is_anew else f"in {counted(len(found.files), 'file')}"
    click.echo(printable(f"{found.name}: {what} {where}"))
    for each in found.lost:
        place = f"{folder}/{each.file}: byte {each.flaw.at}, {each.flaw.size} bytes"
        kind = "torn end, " if each.flaw.is_torn else ""
        click.echo(printable(f"  left out: {place}: {kind}{each.flaw.why}"))
    if found.lost_items:
        click.echo(f"  lost: {counted(found.lost_items, 'item')}")


def _clear(target: str) -> None:
    """Remove the working folder, and empty folders. Those that cannot be removed do no harm."""
    own = f"{target}/{OWN_FOLDER}"
    shutil.rmtree(f"{own}/repair", ignore_errors=True)
    for folder in (f"{own}/segments", own, target):
        try:
            os.rmdir(folder)
        except OSError:
            pass  # it holds something
