"""The command `staniel journal verify`, which checks that every byte of a spool's journals can be read and is
unchanged.

Options, the lock, and the output of findings; journal/tools/verify.py reads the files.
"""

from __future__ import annotations

import errno
import json
import sys

import click
from msgspec import Struct, structs

from staniel.journal.copy_mark import has_mark
from staniel.journal.disk.fs import AlreadyLocked, Fs
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.disk.refusals import refused_tool
from staniel.journal.disk.watched_fs import RefusedCalls
from staniel.journal.errors import Flaw
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.membership import Standing, membership
from staniel.journal.redo.dump import changed_by_start, log_in_use
from staniel.journal.tools.verify import Inspection, inspect
from staniel.journal.workq import files as workq_files
from staniel.server.cli.parameters import CommandFailed, ExistingPath
from staniel.server.text import printable

NOTICES = {
    Standing.FOLLOWER: "A flaw at the end of a file is called torn: the leader's stream writes that part again.",
    Standing.SHORT: "Its server gets what is missing from the leader.",
    Standing.HALF: "Flaws are likely until its server has copied the rest from the leader.",
    Standing.DAMAGED: "Start its server, which says what is wrong.",
}
NO_PROOF = ": written so, or left by a power loss; no damage for certain"


class Total(Struct):
    """The totals of all files. `damaged`, `torn`, `suspect` and `refused` count files."""

    files: int = 0
    records: int = 0
    bytes: int = 0
    with_checksums: int = 0
    damaged: int = 0
    torn: int = 0
    suspect: int = 0
    refused: int = 0

    def count(self, inspection: Inspection) -> None:
        self.files += 1
        self.records += inspection.records
        self.bytes += inspection.bytes
        self.with_checksums += inspection.has_checksums
        self.damaged += inspection.is_damaged
        self.torn += any(flaw.is_torn for flaw in inspection.flaws)
        self.suspect += bool(inspection.hints)
        self.refused += bool(inspection.refusal)


@click.command(epilog="staniel journal verify /var/lib/staniel")
@click.argument("spool", type=ExistingPath(file_okay=False))
@click.option("--queue", "-Q", "queues", multiple=True, help="Only this queue's files. May be repeated.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a line: each damaged place, then the totals."
)
@click.option("--quiet", "-q", is_flag=True, help="Totals only.")
def verify(spool: str, queues: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Read every record of SPOOL, in any format, and compare checksums if there are any.

    SPOOL is a spool, or the folder of a workq command log; no server may have it open. Nothing is changed. Prints one
    line for each damaged place. An unfinished record that a killed server left at the end of a file is called torn, and
    is no damage; in the spool of a cluster's follower any file may have one. A last item that ends in zeros is
    reported: a power loss may have put them there, or the client itself. Exit code 0: sound; 1: damaged; 2: not all
    could be read.
    """
    disk, watch, folder = OsFs(), RefusedCalls(), spool.rstrip("/") or "/"
    fs, total = watch.on(disk), Total()
    try:
        lock(fs, folder, "verify")
        own = f"{folder}/{kestrel_files.OWN_FOLDER}"
        if notice := log_in_use(fs, own):
            click.echo(printable(notice), err=True)
        for path, at in changed_by_start(fs, folder, own):
            why = f"from byte {at} on it differs from the redo log; the next start writes it again or cuts it off"
            click.echo(printable(f"{path}: {why}"), err=True)
        if has_mark(fs, own):
            click.echo(printable(f"{folder} is not complete: what was copied into it was interrupted"), err=True)
        joined = membership(fs, folder)
        if joined.standing in NOTICES:
            why = f"{joined.standing.value} ({joined.path}). {NOTICES[joined.standing]}"
            click.echo(printable(f"{folder}: {why}"), err=True)
        is_follower = joined.standing is Standing.FOLLOWER
        for inspection in inspect(fs, folder, frozenset(queues), is_follower=is_follower):
            if refused := watch.pop_error():  # also of a sidecar, without which less is compared
                inspection.refusal = refused_tool(refused, inspection.path)
            total.count(inspection)
            if inspection.refusal:
                click.echo(printable(inspection.refusal), err=True)
            for flaw in () if quiet else inspection.flaws:
                click.echo(_as_json(inspection, flaw) if as_json else printable(flaw.describe(inspection.path)))
            for hint in () if quiet else inspection.hints:
                said = printable(f"{hint.describe(inspection.path)}{NO_PROOF}")
                click.echo(_as_json(inspection, hint, is_hint=True) if as_json else said)
    except BrokenPipeError:
        raise  # click ends quietly
    except OSError as error:
        raise CommandFailed(printable(refused_tool(error, folder))) from error
    finally:
        disk.close()
    if not total.files:
        raise CommandFailed(f"no journal file {'of such a queue ' if queues else ''}in {printable(folder)}")
    click.echo(json.dumps(structs.asdict(total)) if as_json else _summary(total))
    sys.exit(1 if total.damaged else 2 if total.refused else 0)


def lock(fs: Fs, folder: str, what: str) -> None:
    """Keep servers away from the folder until this process ends. Raises CommandFailed if a server has it open, with the
    advice to do `what` with a copy. A folder that no server has used has no lock, and needs none.
    """
    for path in (f"{folder}/{kestrel_files.OWN_FOLDER}/lock", f"{folder}/{workq_files.APPEND_LOCK}"):
        try:
            fs.size(path)
            fs.lock(path)
        except AlreadyLocked as locked:
            holder = locked.holder or "another process"
            raise CommandFailed(printable(f"{holder} has {folder} open; stop it first, or {what} a copy")) from None
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EROFS):
                raise CommandFailed(printable(refused_tool(error, path))) from error


def _as_json(inspection: Inspection, flaw: Flaw, is_hint: bool = False) -> str:
    place = {"file": inspection.path, "at": flaw.at, "bytes": flaw.size, "why": flaw.why, "torn": flaw.is_torn}
    return json.dumps(place | ({"suspect": True} if is_hint else {}))


def _summary(total: Total) -> str:
    text = f"{total.files:,} files, {total.records:,} records, {total.bytes:,} bytes; {total.with_checksums:,} files"
    torn = f", {total.torn:,} with a torn end" if total.torn else ""
    suspect = f", {total.suspect:,} with a last item that ends in zeros" if total.suspect else ""
    refused = f", {total.refused:,} could not be read" if total.refused else ""
    return f"{text} have checksums; {total.damaged:,} damaged{torn}{suspect}{refused}."
