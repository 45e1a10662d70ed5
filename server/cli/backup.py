"""The commands `staniel backup` and `staniel restore`: options, progress and output; server/backup does the work."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from msgspec import structs

from staniel.broker.admin.last_backup import BackupMade
from staniel.journal.disk.refusals import described, refused_tool
from staniel.server.backup import check as checks
from staniel.server.backup import store as stores
from staniel.server.backup.manifest import BackupError, Manifest
from staniel.server.backup.restore import restore as restore_files
from staniel.server.backup.source import NOT_COUNTED, BackupSource, RestingSource, RunningSource, is_spool
from staniel.server.backup.store import Store
from staniel.server.backup.take import make_backup
from staniel.server.backup.tidy import remove
from staniel.server.cli.admin_address import AdminError, ServerUnreachable
from staniel.server.cli.live_command import Live, LiveCommand, confirm
from staniel.server.cli.parameters import YES, CommandFailed
from staniel.server.clock import steady_ms, wall_ms
from staniel.server.progress import Ticker
from staniel.server.text import counted, human_size, printable, table, tolerate

DAMAGED, NOT_CHECKED = 1, 2  # exit codes of verify, as those of `journal verify`
TAKE = "take"
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
which_option = click.option("--backup", "backup_id", metavar="ID", help="The backup to restore.  [default: the newest]")


class BackupGroup(click.Group):
    """A group in which `backup DEST` means `backup take DEST`: only the other commands are called by name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names = [*self.commands, *ctx.help_option_names]
        if args and args[0] not in names:
            args = [TAKE, *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS] DEST | COMMAND [ARGS]..."]


@click.group(cls=BackupGroup)
def backup() -> None:
    """Back up a spool, also while its server runs.

    `staniel backup DEST` copies the data that DEST does not have yet: DEST is a folder (a path, file:PATH) or
    s3://BUCKET/PREFIX, and holds any number of backups. `staniel backup take --help` lists its options.
    """
    tolerate()


@contextmanager
def errors_in_a_line(kind: type[click.ClickException] = click.ClickException) -> Iterator[None]:
    """Turn the errors of a backup into one line and the exit code of `kind`."""
    try:
        yield
    except BackupError as error:
        raise kind(printable(str(error))) from error
    except BrokenPipeError:
        raise  # click ends quietly
    except OSError as error:
        raise kind(printable(refused_tool(error))) from error


@contextmanager
def _opened_store(text: str, *, writes: bool = False) -> Iterator[Store]:
    store = open_store(text, writes=writes)
    try:
        if writes:
            stores.prepare(store)
        else:
            stores.check_marker(store)
        yield store
    finally:
        store.close()


# making


@backup.command(TAKE, cls=LiveCommand, epilog="staniel backup /mnt/backups --spool /var/lib/staniel")
@click.argument("dest")
@click.pass_obj
def take_one(live: Live, dest: str) -> None:
    """Back up a running server, or a spool that no server has open, to DEST.

    DEST is a path, file:PATH or s3://BUCKET/PREFIX. All queues are backed up as they were at one moment; everything
    acknowledged before is included. Files that DEST has from earlier backups of the spool are not copied again. Run it
    on the spool's machine, as a user that may read the spool. It may be interrupted at any time.
    """
    with errors_in_a_line(), _opened_store(_check_destination(dest, live), writes=True) as store:
        source = _open_source(live)
        ticker = Ticker("backed up", steady_ms, sys.stderr, sum(file.local.bytes for file in source.files))
        try:
            manifest = make_backup(store, source, steady_ms, ticker)
            why = _report_made(live, source, BackupMade(manifest.made_at_ms, _absolute_destination(dest)))
        finally:
            ticker.clear()
            source.close()
    live.print_result(_summary(manifest), _describe_backup(manifest, store.where))
    if why:
        click.echo(f"Warning: its age is not known to the server: {why}", err=True)


def _absolute_destination(dest: str) -> str:
    """Return DEST in a form that works in any working folder."""
    if dest.lower().startswith("s3:"):
        return dest
    return os.path.abspath(dest.partition(":")[2] if dest.lower().startswith("file:") else dest)


def _report_made(live: Live, source: BackupSource, made: BackupMade) -> str:
    """Tell the server, or its spool, that the backup is complete. Return why that failed, else ""."""
    try:
        if isinstance(source, RestingSource):
            source.store_made(made)
        else:
            live.client.post("/api/backup/made", structs.asdict(made))
    except AdminError as error:
        return str(error)
    except OSError as error:
        return described(error)
    return ""


def _check_destination(dest: str, live: Live) -> str:
    """Return DEST. Raises BackupError for a place within the spool, where the copy would be lost with it."""
    path = dest.partition(":")[2] if dest.lower().startswith("file:") else dest
    if live.spool and not dest.lower().startswith("s3:"):
        inside, spool = os.path.realpath(path), os.path.realpath(live.spool)
        if inside == spool or inside.startswith(f"{spool}/"):
            raise BackupError(f"{dest} lies within the spool: give a place outside, best on another disk")
    return dest


def _open_source(live: Live) -> BackupSource:
    """Return the source: the running server, or the spool at rest. Raises BackupError, AdminError."""
    try:
        return RunningSource(*live.client.follow("/api/backup"))
    except ServerUnreachable:
        if not live.spool or not is_spool(live.spool):
            raise
        return RestingSource(live.spool, wall_ms(), live.jobs)


def _summary(manifest: Manifest) -> dict[str, Any]:
    fields = structs.asdict(manifest)
    return {name: value for name, value in fields.items() if name != "files"} | {"files": len(manifest.files)}


def _describe_backup(manifest: Manifest, where: str) -> str:
    files, copied = counted(len(manifest.files), "file"), manifest.copied_files
    lines = [f"backup {manifest.id} in {printable(where)}: {files}, {human_size(manifest.bytes)}"]
    speed = manifest.copied_bytes * 1000 // max(1, manifest.took_ms)
    news = f"copied {counted(copied, 'file')}, {human_size(manifest.copied_bytes)}"
    lines.append(f"  {news}, in {manifest.took_ms / 1000:.1f} s ({human_size(speed)}/s); the others were there")
    if manifest.queues != NOT_COUNTED:
        jobs = f", {counted(manifest.jobs, 'job')}" if manifest.jobs else ""
        lines.append(f"  {counted(manifest.queues, 'queue')} with {counted(manifest.items, 'item')}{jobs}")
    else:
        lines.append("  no server had the spool; items were not counted")
    return "\n".join(lines)


# looking


@backup.command("list", epilog="staniel backup list /mnt/backups")
@click.argument("source")
@json_option
def list_all(source: str, as_json: bool) -> None:
    """List the backups in SOURCE, the newest last. NEW counts the bytes that no earlier backup had.

    Exit code 1: some of them cannot be used, and a line says why; the others are listed.
    """
    manifests, faults = list[Manifest](), list[str]()
    with errors_in_a_line(), _opened_store(source) as store:
        for backup_id in stores.ids(store):
            try:
                manifests.append(stores.load(store, backup_id))
            except BackupError as error:
                faults.append(printable(str(error)))
    _print_list(manifests, as_json)
    for fault in faults:
        click.echo(f"Error: {fault}", err=True)
    sys.exit(1 if faults else 0)


def _print_list(manifests: list[Manifest], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([_summary(manifest) for manifest in manifests]))
        return
    heads = ("ID", "FILES", "SIZE", "NEW", "QUEUES", "ITEMS", "JOBS", "VERSION", "SPOOL")
    rows = [
        [
            manifest.id,
            f"{len(manifest.files):,}",
            human_size(manifest.bytes),
            human_size(manifest.copied_bytes),
            *(
                "-" if count == NOT_COUNTED else f"{count:,}"
                for count in (manifest.queues, manifest.items, manifest.jobs)
            ),
            printable(manifest.version),
            printable(manifest.origin),
        ]
        for manifest in manifests
    ]
    for line in table(heads, rows, frozenset(("ID", "VERSION", "SPOOL"))):
        click.echo(line)


@backup.command("verify", epilog="staniel backup verify /mnt/backups")
@click.argument("source")
@click.option("--backup", "backup_id", metavar="ID", help="Only this one.  [default: all]")
@json_option
def verify(source: str, backup_id: str | None, as_json: bool) -> None:
    """Read all bytes of the backups in SOURCE and compare their checksums.

    Exit code 0: all bytes are as copied; 1: some are not, and a line says which; 2: not all could be verified.
    """
    ticker = Ticker("verified", steady_ms, sys.stderr)
    total, faults = checks.Checked(), 0
    try:
        with _opened_store(source) as store:
            ids = [backup_id] if backup_id else stores.ids(store)
            if backup_id and backup_id not in stores.ids(store):
                raise BackupError(f"there is no backup {backup_id} in {store.where}")
            if not ids:
                raise BackupError(f"there is no backup in {store.where}")
            for fault in checks.check(store, ids, total, ticker):
                ticker.clear()
                faults += 1
                where = f"{fault.backup}: {fault.file}: " if fault.file else ""
                click.echo(json.dumps(structs.asdict(fault)) if as_json else printable(f"{where}{fault.why}"))
    except BackupError as error:
        if faults:
            click.echo(printable(f"Error: not all was verified: {error}"), err=True)
            sys.exit(DAMAGED)
        raise CommandFailed(printable(str(error))) from error
    except KeyboardInterrupt:
        click.echo("Error: interrupted: not all was verified", err=True)
        sys.exit(DAMAGED if faults else NOT_CHECKED)
    finally:
        ticker.clear()
    if as_json:
        click.echo(json.dumps(structs.asdict(total) | {"faults": faults}))
    else:
        checked = (
            f"{counted(total.backups, 'backup')}, {counted(total.pieces, 'piece')}, {human_size(total.bytes)} read"
        )
        click.echo(f"{checked}; {counted(faults, 'fault')}")
    sys.exit(DAMAGED if faults else 0)


@backup.command("prune", epilog="staniel backup prune /mnt/backups --keep 7")
@click.argument("source")
@click.option("--keep", required=True, type=click.IntRange(1), metavar="N", help="Keep this many of the newest.")
@YES
def prune(source: str, keep: int, is_sure: bool) -> None:
    """Remove all backups in SOURCE except the newest ones, and data that no backup needs."""
    with errors_in_a_line(), _opened_store(source, writes=True) as store:
        gone = stores.ids(store)[:-keep]
        if gone:
            confirm(f"remove {counted(len(gone), 'backup')} from {printable(store.where)}", is_sure)
        freed = remove(store, gone, wall_ms())
    click.echo(f"removed {counted(len(gone), 'backup')}; {human_size(freed)} freed")


# giving back


@click.command("restore", epilog="staniel restore /mnt/backups /var/lib/restored")
@click.argument("source")
@click.argument("spool")
@which_option
@json_option
def restore(source: str, spool: str, backup_id: str | None, as_json: bool) -> None:
    """Make a new spool from a backup in SOURCE.

    SPOOL must be new, or an empty folder; root gives the files to that folder's owner. Every file is compared with its
    checksum. Until the spool is complete and synced no server starts on it; after an interruption, run the command
    again.
    """
    tolerate()
    with errors_in_a_line(), _opened_store(source) as store:
        ids = stores.ids(store)
        if not ids:
            raise BackupError(f"there is no backup in {store.where}")
        manifest = stores.load(store, backup_id or ids[-1])
        ticker = Ticker("restored", steady_ms, sys.stderr, manifest.bytes)
        try:
            left = restore_files(store, manifest, spool.rstrip("/") or "/", ticker)
        finally:
            ticker.clear()
    if as_json:
        under_way = [{"work": unfinished.work.value, "queue": unfinished.queue} for unfinished in left]
        click.echo(json.dumps(_summary(manifest) | {"spool": os.path.abspath(spool), "under_way": under_way}))
        return
    files = f"{counted(len(manifest.files), 'file')}, {human_size(manifest.bytes)}"
    click.echo(f"restored backup {manifest.id} to {printable(spool)}: {files}")
    if manifest.queues != NOT_COUNTED:
        click.echo(f"  {counted(manifest.queues, 'queue')} with {counted(manifest.items, 'item')} at that moment")
    for unfinished in left:
        where = f"{unfinished.queue}: " if unfinished.queue else ""
        click.echo(printable(f"  {where}{unfinished.work.value}: a server that starts on it goes on with that"))
    click.echo(f"to start: staniel serve --spool {printable(spool)}")


def open_store(text: str, *, writes: bool) -> Store:
    """Open the store that a path, file:PATH or s3://BUCKET/PREFIX names. Raises BackupError."""
    scheme, colon, place = text.partition(":")
    if colon and scheme.lower() == "s3":
        from staniel.server.backup.s3_store import S3Store

        return S3Store(place)
    if colon and scheme.lower() != "file" and place.startswith("//"):
        raise BackupError(f"cannot use {text}: expected a path, file:PATH or s3://BUCKET/PREFIX")
    from staniel.server.backup.folder_store import FolderStore

    path = text
    if colon and scheme.lower() == "file":
        path = place.removeprefix("//") if place.startswith("///") else place
        if path.startswith("//") or not path:
            raise BackupError(f"cannot use {text}: expected file:PATH or file:///PATH")
    return FolderStore(path.rstrip("/") or "/", writes=writes)
