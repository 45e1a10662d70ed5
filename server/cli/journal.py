"""The commands `staniel journal …`, which inspect journal files or move a queue to another format; no server may run
for the latter. Options and the output of rows; each format has a dumper.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import click
from msgspec import Struct, structs

from staniel.journal.disk.fs import AlreadyLocked, Fs, JournalFailure
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.disk.refusals import failure_line, refused_tool
from staniel.journal.disk.watched_fs import RefusedCalls
from staniel.journal.dump import Dumper, Row, Totals, rows
from staniel.journal.errors import CorruptRecord, Flaw, TruncatedRecord
from staniel.journal.kestrel.dump import KestrelDumper
from staniel.journal.libkestrel.dump import LibkestrelDumper
from staniel.journal.libkestrel.records import MAGIC_BYTES, READER_MAGIC, SEGMENT_MAGIC
from staniel.journal.redo.dump import dump_log, is_redo_log
from staniel.journal.spool import Spool, SpoolError
from staniel.journal.tools.convert import Conversion, ConversionRefused, ConversionUnfinished
from staniel.journal.tools.verify import begun_stream, is_written_to
from staniel.journal.workq import dump as workq_dump
from staniel.journal.workq import files as workq_files
from staniel.queues.config import Format
from staniel.server.cli.journal_damaged import damaged
from staniel.server.cli.journal_reading import at, history, stats
from staniel.server.cli.journal_repair import repair
from staniel.server.cli.parameters import CommandFailed, ExistingPath
from staniel.server.cli.verify import verify
from staniel.server.clock import wall_ms
from staniel.server.text import PAYLOADS, payload_text, printable, tolerate, utc_text

LOCKS = (workq_files.APPEND_LOCK, workq_files.READ_LOCK)  # beside a command log's segments
WITH_ZONE = "%Y-%m-%d %H:%M:%S +0000"

# The formats: a test of a file's first bytes, and the dumper. The last format accepts every other file.
FORMATS: list[tuple[Callable[[bytes], bool], Callable[[bytes], Dumper]]] = [
    (lambda magic: magic in (SEGMENT_MAGIC, READER_MAGIC), LibkestrelDumper),
    (lambda magic: True, lambda magic: KestrelDumper()),
]


class Span(Struct, frozen=True):
    """A range FROM:TO, both included; either may be missing."""

    low: int | None
    high: int | None

    def contains(self, number: int) -> bool:
        return (self.low is None or number >= self.low) and (self.high is None or number <= self.high)


class SpanType(click.ParamType[Span]):
    name = "from:to"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Span:
        low, colon, high = str(value).partition(":")
        try:
            first = int(low, 0) if low else None
            return Span(first, (int(high, 0) if high else None) if colon else first)
        except ValueError:
            self.fail(f"{value!r} is not a number, FROM:TO, FROM: or :TO", param, ctx)


class DumpOptions(Struct, frozen=True):
    """The selection of rows, and how they are printed."""

    ops: frozenset[str]
    ids: Span | None
    at: Span | None
    as_json: bool
    payload: str
    quiet: bool

    def selects(self, row: Row) -> bool:
        if self.ops and row.op.upper() not in self.ops:
            return False
        if self.at is not None and not self.at.contains(row.at):
            return False
        return self.ids is None or any(self.ids.contains(number) for number in _numbers_of(row))


@click.group()
def journal() -> None:
    """Inspect journal files, verify them, or change their format."""
    tolerate()


for subcommand in (verify, stats, history, at, repair, damaged):
    journal.add_command(subcommand)


@journal.command(epilog="staniel journal dump /var/lib/staniel --queue jobs --payload text")
@click.argument("paths", nargs=-1, required=True, type=ExistingPath(), metavar="FILE|SPOOL...")
@click.option("--queue", "-Q", "queues", multiple=True, help="Of a spool, only this queue's files. May be repeated.")
@click.option("--op", "ops", multiple=True, help="Only these records: ADD, PUT, HEAD, … May be repeated.")
@click.option("--ids", type=SpanType(), help="Only records of these ids or xids.")
@click.option("--at", type=SpanType(), help="Only records that begin in these bytes (0x… too).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each record.")
@click.option("--payload", type=click.Choice(PAYLOADS), default="none", show_default=True, help="Show items' data.")
@click.option("--quiet", "-q", is_flag=True, help="Totals only.")
def dump(
    paths: tuple[str, ...],
    queues: tuple[str, ...],
    ops: tuple[str, ...],
    ids: Span | None,
    at: Span | None,
    as_json: bool,
    payload: str,
    quiet: bool,
) -> None:
    """Print the records of journal files of any format.

    A file that cannot be read to its end is printed up to the damage; the exit code is then 1. A torn end of the file
    being written is named, and is no error: the next start removes it.
    """
    options = DumpOptions(frozenset(op.upper() for op in ops), ids, at, as_json, payload, quiet)
    fs = OsFs()
    try:
        files = [file for path in paths for file in _list_files(fs, path, frozenset(queues))]
    except OSError as error:
        raise click.ClickException(printable(refused_tool(error))) from error
    if not files:
        raise click.ClickException(
            f"no journal file {'of such a queue ' if queues else ''}in {printable(', '.join(paths))}"
        )
    whole = [dump_file(fs, path, options) for path in files]
    sys.exit(0 if all(whole) else 1)


@journal.command(epilog="staniel journal convert /var/lib/staniel --to libkestrel --queue jobs")
@click.argument("path", metavar="SPOOL", type=ExistingPath(file_okay=False))
@click.option("--queue", "-Q", "queues", multiple=True, required=True, help="The queue. May be repeated.")
@click.option("--to", "wanted", required=True, type=click.Choice([kind.value for kind in Format]), help="The format.")
def convert(path: str, queues: tuple[str, ...], wanted: str) -> None:
    """Move a queue and its fan-out children to another journal format.

    The server must not run. The new files are read back before they replace the old ones, which are kept in the spool's
    .staniel folder. It may be interrupted at any time: then the queue has either its old or its new format. Unreadable
    parts of a damaged file are kept, and named.

    Afterwards set journal_format of the queue, so that new fan-out children get the same format.

    Exit code 0: the queues are in that format; 1: they are, except for unreadable parts; 2: refused, or interrupted.
    """
    disk, watch, whole, queue = OsFs(), RefusedCalls(), list[bool](), ""
    try:
        spool = Spool(watch.on(disk), path)
        spool.finish_log()
        for queue in queues:
            whole.append(_convert_queue(spool, queue, Format(wanted), watch))
    except (ConversionRefused, SpoolError, ConversionUnfinished) as refused:
        raise CommandFailed(printable(str(refused))) from refused
    except AlreadyLocked as locked:
        raise CommandFailed(f"{printable(locked.holder)} has this spool; stop the server first") from locked
    except (OSError, JournalFailure) as error:
        what = f"nothing of {queue} has been replaced" if queue else "nothing has been replaced"
        raise CommandFailed(printable(f"{what}: {failure_line(error, path)}")) from error
    finally:
        disk.close()
    sys.exit(0 if all(whole) else 1)


def _convert_queue(spool: Spool, queue: str, wanted: Format, watch: RefusedCalls) -> bool:
    """Convert a queue. Return True if the old files could be read completely, except for ends that were being written
    when a server died.
    """

    def print_progress(what: str, done: int, total: int) -> None:
        click.echo(printable(f"{queue}: {what}, {done:,} of {total:,} items"), err=True)

    now_ms = wall_ms()
    conversion = Conversion(spool, queue, now_ms, print_progress, watch)
    count = conversion.run(wanted)
    if count < 0:
        click.echo(f"{printable(queue)}: {wanted.value} already")
        return True
    old = f"the old files are in {spool.own}/aside.{now_ms}"
    click.echo(printable(f"{queue}: {count:,} items moved to {wanted.value}; {old}"))
    for damage in conversion.left:
        click.echo(printable(f"{queue}: {damage.describe()}"), err=True)
    return all(damage.is_torn for damage in conversion.left)


def _list_files(fs: Fs, path: str, queues: frozenset[str]) -> Iterator[str]:
    """Yield the file itself, or the files of a spool folder in order of their names."""
    try:
        names = [name for name, regular in fs.list(path) if regular and name not in LOCKS]
    except NotADirectoryError:
        yield path
        return
    for name in names:
        if not queues or _queue_of(name) in queues:
            yield f"{path.rstrip('/')}/{name}"


def _queue_of(file_name: str) -> str:
    return file_name.partition(".")[0].partition("~~")[0]


def dump_file(fs: Fs, path: str, options: DumpOptions) -> bool:
    """Print one file. Return True if it could be read completely."""
    try:
        if workq_dump.is_cmdlog(fs, path):
            return _dump_cmdlog(fs, path, options)
        if is_redo_log(fs, path):
            return _dump_redo_log(fs, path, options)
        magic = fs.read(path, 0, MAGIC_BYTES)
        if (begun := begun_stream(fs, path)) is not None:
            click.echo(printable(begun.describe(path)), err=True)
            return True
        dumper = next(make(magic) for recognises, make in FORMATS if recognises(magic))
        return _dump_queue_file(fs, path, dumper, options)
    except BrokenPipeError:
        raise  # click ends quietly
    except OSError as error:
        click.echo(printable(refused_tool(error, path)), err=True)
        return False


def _dump_cmdlog(fs: Fs, path: str, options: DumpOptions) -> bool:
    """Print a segment of workq's command log, whose records name their fields."""
    count = size = 0
    whole = True
    for record in workq_dump.dump_segment(fs, path):
        if "damaged" in record:
            torn = record["torn"] = bool(record.get("torn")) and is_written_to(fs, path)
            flaw = Flaw(int(str(record["at"])), int(str(record["size"])), str(record["damaged"]), torn)
            click.echo(printable(flaw.describe(path)), err=True)
            whole = whole and torn
        name = str(record.get("command", "torn" if record.get("torn") else "damaged")).upper()
        if (options.ops and name not in options.ops) or (
            options.at is not None and not options.at.contains(int(str(record["at"])))
        ):
            continue
        count += 1
        size += int(str(record["size"]))
        if not options.quiet:
            click.echo(json.dumps(record, default=str) if options.as_json else printable(workq_dump.line(record)))
    if options.quiet or not options.as_json:
        totals = {"file": path, "records": count, "bytes": size}
        click.echo(json.dumps(totals) if options.as_json else printable(f"{path}: {count} records, {size} bytes."))
    return whole


def _dump_redo_log(fs: Fs, path: str, options: DumpOptions) -> bool:
    """Print one file of the redo log, by batches. `--at` selects records by the beginning of their batch."""
    batches = records = 0
    for line in dump_log(fs, path):
        is_batch = line["op"] == "BATCH"
        batches, records = batches + is_batch, records + (not is_batch)
        at = int(str(line["at"]))
        if options.quiet or (options.ops and line["op"] not in options.ops):
            continue
        if options.at is not None and not options.at.contains(at):
            continue
        if options.as_json:
            click.echo(json.dumps(line))
        else:
            more = " ".join(f"{name}={value}" for name, value in line.items() if name not in ("at", "op"))
            click.echo(printable(f"{at:08x}  {line['op']:6} {more}"))
    if options.quiet or not options.as_json:
        totals = {"file": path, "batches": batches, "records": records}
        click.echo(
            json.dumps(totals) if options.as_json else printable(f"{path}: {batches} batches, {records} records.")
        )
    return batches > 0


def _dump_queue_file(fs: Fs, path: str, dumper: Dumper, options: DumpOptions) -> bool:
    totals = Totals()
    if not options.as_json:
        click.echo(printable(f"Queue: {path}"))
    try:
        for row in rows(fs, path, dumper):
            if options.selects(row):
                totals.count(row)
                if not options.quiet:
                    click.echo(_as_json(path, row, options) if options.as_json else _as_text(row, options))
    except CorruptRecord as error:
        size = fs.size(path) - error.at
        flaw = Flaw(error.at, size, error.why, isinstance(error, TruncatedRecord) and is_written_to(fs, path))
        click.echo(printable(flaw.describe(path)), err=True)
        return flaw.is_torn
    finally:
        if options.as_json and options.quiet:
            click.echo(json.dumps({"file": path, **structs.asdict(totals)}))
        elif not options.as_json:
            click.echo(dumper.summary(totals))
    return True


def _numbers_of(row: Row) -> list[int]:
    numbers = [] if row.number is None else [row.number]
    ids = row.more.get("ids", [])
    return numbers + (ids if isinstance(ids, list) else [])


def _as_text(row: Row, options: DumpOptions) -> str:
    line = f"{row.at:08x}  {row.op}"
    if row.data is not None:
        line += f" {len(row.data):<6}"
        if row.added_ms is not None:
            line += f" @ {utc_text(row.added_ms, WITH_ZONE)}"
        line += f" id={row.number}" if row.number is not None else ""
        line += f" expires={utc_text(row.expires_ms, WITH_ZONE)}" if row.expires_ms is not None else ""
    elif row.number is not None:
        line += f" {row.number}"
    for name, value in row.more.items():
        line += f" ({', '.join(map(str, value))})" if isinstance(value, list) else f" {name}={value}"
    if row.data is not None and options.payload != "none":
        line += f"\n    {payload_text(row.data, options.payload)}"
    return line


def _as_json(path: str, row: Row, options: DumpOptions) -> str:
    fields: dict[str, object] = {"file": path, "at": row.at, "bytes": row.size, "op": row.op}
    for name in ("number", "added_ms", "expires_ms"):
        if (value := getattr(row, name)) is not None:
            fields["id" if name == "number" else name] = value
    if row.data is not None:
        fields["size"] = len(row.data)
        if options.payload != "none":
            is_text = options.payload == "text"
            fields["data"] = row.data.decode("latin-1") if is_text else payload_text(row.data, options.payload)
    return json.dumps(fields | row.more)
