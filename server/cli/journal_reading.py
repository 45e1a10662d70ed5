"""The commands `staniel journal stats`, `history` and `at`: facts from a queue's files, which a server may have open.

Nothing is changed. Options, times and output; journal/tools reads the files.
"""

from __future__ import annotations

import errno
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import click

from staniel.journal.copy_mark import has_mark
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.disk.refusals import refused_tool
from staniel.journal.disk.watched_fs import RefusedCalls
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.journal.tools import contents as contents_tool
from staniel.journal.tools import history as history_tool
from staniel.journal.tools import stats as stats_tool
from staniel.journal.tools.contents import Held
from staniel.journal.tools.source import FileFlaw, JournalNotFound, ReadSource
from staniel.journal.tools.stats import LineStats, QueueStats
from staniel.journal.tools.unfinished import Work
from staniel.journal.trace import Event
from staniel.server.cli.parameters import CommandFailed, ExistingPath
from staniel.server.clock import steady_ms, wall_ms
from staniel.server.progress import Ticker
from staniel.server.text import PAYLOADS, counted, human_size, payload_text, printable, table, utc_text

NOW = -1
MS_FROM = 100_000_000_000  # a number from here on is milliseconds since 1970, a smaller one seconds
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
AGO = re.compile(r"-?([0-9]+)(ms|s|m|h|d)")
LIMIT_DEFAULT = 1000
PREVIEW_BYTES = 60

spool_option = click.option(
    "--spool",
    "-s",
    "folder",
    envvar="STANIEL_SPOOL",
    default="spool",
    show_default=True,
    metavar="DIR",
    type=ExistingPath(file_okay=False),
    help="The spool, or the folder of a command log.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")


class Moment(click.ParamType[int]):
    """A parameter type: a time in ms since 1970, or NOW, the time of the reading."""

    name = "moment"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        if text == "now":
            return NOW
        if ago := AGO.fullmatch(text):
            return wall_ms() - int(ago[1]) * UNITS_MS[ago[2]]
        if text.isascii() and text.isdigit() and len(text) <= 17:
            return int(text) if int(text) >= MS_FROM else int(text) * 1000
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is no moment: give 2026-11-23T10:00:00 (UTC, or with a zone), 2h, or now", param, ctx)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


@contextmanager
def open_source(folder: str, what: str) -> Iterator[tuple[ReadSource, Ticker]]:
    """Yield a source, and its progress; errors become one line."""
    disk, watch, folder = OsFs(), RefusedCalls(), folder.rstrip("/") or "/"
    ticker = Ticker(what, steady_ms, sys.stderr)
    try:
        if has_mark(disk, f"{folder}/{OWN_FOLDER}"):
            raise CommandFailed(printable(f"{folder} is not complete: {Work.COPY.value}; remove it and copy it again"))
        yield ReadSource(watch.on(disk), folder, ticker), ticker
        watch.check()  # without a file that was refused, such as a sidecar, the output may lack something
    except JournalNotFound as nothing:
        ticker.clear()
        raise CommandFailed(printable(str(nothing))) from nothing
    except OSError as error:
        ticker.clear()
        if error.errno == errno.EPIPE:
            raise  # click ends quietly
        raise CommandFailed(printable(refused_tool(error, folder))) from error
    finally:
        disk.close()


def print_flaws(folder: str, flaws: Iterable[FileFlaw]) -> bool:
    """Print a line for each flaw on standard error. Return True if one of them is damage."""
    is_damaged = False
    for file_flaw in flaws:
        click.echo(printable(file_flaw.flaw.describe(f"{folder}/{file_flaw.file}")), err=True)
        is_damaged = is_damaged or not file_flaw.flaw.is_torn
    return is_damaged


def flaws_as_json(flaws: Iterable[FileFlaw]) -> list[dict[str, object]]:
    return [
        {
            "file": file_flaw.file,
            "at": file_flaw.flaw.at,
            "bytes": file_flaw.flaw.size,
            "why": file_flaw.flaw.why,
            "torn": file_flaw.flaw.is_torn,
        }
        for file_flaw in flaws
    ]


def moment_text(at_ms: int | None) -> str:
    """Return a time in UTC, to the millisecond."""
    if at_ms is None:
        return "-"
    return utc_text(at_ms, f"%Y-%m-%d %H:%M:%S.{at_ms % 1000:03}")


# stats


@click.command(epilog="staniel journal stats /var/lib/staniel")
@click.argument("folder", metavar="SPOOL", type=ExistingPath(file_okay=False))
@click.option("--queue", "-Q", "queues", multiple=True, help="Only this queue. May be repeated.")
@json_option
def stats(folder: str, queues: tuple[str, ...], as_json: bool) -> None:
    """Show the contents of the journals of SPOOL: for each queue its files, records, items and their ages, and the size
    of the files if they held only what is still needed.

    SPOOL is a spool, or the folder of a workq command log. A server may be using it. Exit code 0; 1: something is
    damaged, and named on standard error; 2: there is nothing to show.
    """
    is_damaged, count = False, 0
    with open_source(folder, "read") as (source, ticker):
        for queue_stats in stats_tool.stats(source, wall_ms(), frozenset(queues)):
            ticker.clear()
            count += 1
            is_damaged = print_flaws(source.folder, queue_stats.flaws) or is_damaged
            click.echo(_stats_json(queue_stats) if as_json else _stats_text(queue_stats))
        for name, why in source.listing.mixed.items():
            if not queues or name in queues:
                click.echo(printable(f"{name}: {why}"), err=True)
                is_damaged = True
        ticker.clear()
    if not count and not is_damaged:
        raise CommandFailed(f"no journal file {'of such a queue ' if queues else ''}in {printable(folder)}")
    sys.exit(1 if is_damaged else 0)


def _stats_json(queue_stats: QueueStats) -> str:
    lines = {
        name: {
            "states": line.states,
            "item_bytes": line.item_bytes,
            "oldest_ms": line.oldest_ms,
            "newest_ms": line.newest_ms,
        }
        for name, line in queue_stats.lines.items()
    }
    return json.dumps(
        {
            "name": queue_stats.name,
            "format": queue_stats.format,
            "files": queue_stats.files,
            "bytes": queue_stats.bytes,
            "records": queue_stats.records,
            "items": lines,
            "packed_bytes": queue_stats.packed_bytes,
            "packed_share": round(queue_stats.packed_share, 4),
            "damage": flaws_as_json(queue_stats.flaws),
        }
    )


def _stats_text(queue_stats: QueueStats) -> str:
    records = ", ".join(f"{count:,} {name}" for name, count in sorted(queue_stats.records.items())) or "none"
    files = f"{counted(queue_stats.files, 'file')}, {human_size(queue_stats.bytes)}"
    lines = [
        f"{printable(queue_stats.name)}: {queue_stats.format}, {files}",
        f"  records: {records}",
        *(f"  {_line_text(name, line, queue_stats)}" for name, line in sorted(queue_stats.lines.items())),
        f"  packed: {human_size(queue_stats.packed_bytes)}, {queue_stats.packed_share:.0%} of the files",
    ]
    return "\n".join(lines)


def _line_text(name: str, line: LineStats, queue_stats: QueueStats) -> str:
    is_own = name == queue_stats.name and queue_stats.format != "workq"
    title = ("jobs " if queue_stats.format == "workq" else "items") + ("" if is_own else f" of {printable(name)}")
    if not line.states:
        return f"{title}: none"
    states = ", ".join(f"{count:,} {state}" for state, count in line.states.items())
    ages = f"added {moment_text(line.oldest_ms)} to {moment_text(line.newest_ms)}"
    return f"{title}: {states}; {human_size(line.item_bytes)}; {ages}"


# history


@click.command(epilog="staniel journal history jobs jobs:0 --spool /var/lib/staniel")
@click.argument("queue")
@click.argument("item_id", metavar="ID")
@spool_option
@json_option
def history(queue: str, item_id: str, folder: str, as_json: bool) -> None:
    """Show the life of one item of QUEUE: when it was added, opened, aborted, closed, with file, byte and record.

    ID is, in Kestrel's format, the position of the record that added the item, FILE:BYTE, or xid=NUMBER for everything
    opened under that number; in libkestrel's format the item's number; in a command log the job's id. `at` and `dump`
    show them. A server may be using the spool. Exit code 0; 1: a file is damaged; 2: no such item.
    """
    with open_source(folder, "read") as (source, ticker):
        life = history_tool.history(source, queue, item_id)
        ticker.clear()
        base = source.cmdlog if life.format == "workq" else source.folder
        is_damaged = print_flaws(base, life.flaws)
    if as_json:
        for event in life.events:
            click.echo(json.dumps(_event_json(event)))
        end = {"format": life.format, "events": len(life.events), "is_there": life.is_there, "note": life.note}
        click.echo(json.dumps({**end, "damage": flaws_as_json(life.flaws)}))
    else:
        rows = [_event_row(event) for event in life.events]
        click.echo("\n".join(table(("WHEN", "WHAT", "RECORD", "FILE", "BYTE", "BYTES"), rows, LEFT)))
        click.echo("still there" if life.is_there else "not there any more")
        if life.note:
            click.echo(f"note: {printable(life.note)}")
    sys.exit(1 if is_damaged else 0)


LEFT = frozenset(("WHEN", "WHAT", "RECORD", "FILE", "ID", "STATE", "ADDED", "DATA"))


def _event_json(event: Event) -> dict[str, object]:
    fields: dict[str, object] = {"happened": event.happened.value, "id": event.id}
    fields |= {"file": event.file, "at": event.at, "bytes": event.size, "record": event.record}
    fields |= {"not_before_ms": event.from_ms or None, "not_after_ms": event.until_ms}
    if event.xid is not None:
        fields["xid"] = event.xid
    if event.queue:
        fields["queue"] = event.queue
    return fields


def _event_row(event: Event) -> tuple[str, ...]:
    what = event.happened.value + (f" as {event.xid}" if event.xid is not None else "")
    what += f" in {printable(event.queue)}" if event.queue else ""
    return (_time_text(event), what, event.record, printable(event.file), str(event.at), str(event.size))


def _time_text(event: Event) -> str:
    if event.until_ms == event.from_ms and event.from_ms:
        return moment_text(event.from_ms)
    after = f"from {moment_text(event.from_ms)}" if event.from_ms else ""
    until = f"until {moment_text(event.until_ms)}" if event.until_ms is not None else ""
    return " ".join(filter(None, (after, until))) or "unknown"


# at


@click.command(epilog="staniel journal at 2h jobs --spool /var/lib/staniel")
@click.argument("moment", type=Moment())
@click.argument("queue")
@spool_option
@click.option("--jobs", is_flag=True, help="Show the jobs of that name, if a queue has it too.")
@click.option("--limit", "-n", default=LIMIT_DEFAULT, show_default=True, type=click.IntRange(min=0), help="0: all.")
@click.option("--payload", type=click.Choice(PAYLOADS), default="text", show_default=True, help="How items are shown.")
@json_option
def at(moment: int, queue: str, folder: str, jobs: bool, limit: int, payload: str, as_json: bool) -> None:
    """Show the contents of QUEUE at MOMENT, as far as its files record them.

    MOMENT is 2026-11-23T10:00:00 (UTC, or with a zone), seconds or milliseconds since 1970, 2h (ago), or now. A command
    log has the time of every event; the other formats only have the times of additions. An item that may have been
    removed by then is shown as "perhaps", and lines at the end name what the files do not record. A server may be using
    the spool. Exit code 0; 1: a file is damaged; 2: no such queue.
    """
    with open_source(folder, "read") as (source, ticker):
        read_ms = wall_ms()
        moment = read_ms if moment == NOW else moment
        held_then = contents_tool.contents(source, queue, moment, read_ms, jobs=jobs)
        ticker.clear()
        base = source.cmdlog if held_then.format == "workq" else source.folder
        is_damaged = print_flaws(base, held_then.flaws)
        shown = held_then.items[: limit or None]
        if as_json:
            for held in shown:
                click.echo(json.dumps(_held_json(held, held_then.read, payload)))
        else:
            rows = [_held_row(held, held_then.read, payload, moment) for held in shown]
            click.echo("\n".join(table(("ID", "STATE", "ADDED", "BYTES", "DATA"), rows, LEFT)))
        perhaps = sum(not held.is_certain for held in held_then.items)
        if as_json:
            end = {
                "queue": queue,
                "at_ms": moment,
                "format": held_then.format,
                "items": len(held_then.items),
                "perhaps": perhaps,
            }
            click.echo(json.dumps({**end, "notes": held_then.notes, "damage": flaws_as_json(held_then.flaws)}))
        else:
            count = counted(len(held_then.items), "job" if held_then.format == "workq" else "item")
            more = f", {perhaps:,} of them perhaps" if perhaps else ""
            cut = f"; the first {len(shown):,} are shown" if len(shown) < len(held_then.items) else ""
            click.echo(f"{count} at {moment_text(moment)} UTC{more}{cut}")
            for note in held_then.notes:
                click.echo(f"note: {printable(note)}")
    sys.exit(1 if is_damaged else 0)


Read = Callable[[Held, int], bytes]


def _held_json(held: Held, read: Read, payload: str) -> dict[str, object]:
    fields: dict[str, object] = {"id": held.id, "state": held.state, "is_certain": held.is_certain}
    fields |= {"added_ms": held.added_ms, "expires_ms": held.expires_ms, "data_bytes": held.data_bytes}
    if held.xid is not None:
        fields["xid"] = held.xid
    if payload != "none":
        fields["data"] = payload_text(read(held, held.data_bytes), payload)
    return fields


def _held_row(held: Held, read: Read, payload: str, at_ms: int) -> tuple[str, ...]:
    state = held.state if held.is_certain else f"perhaps {held.state}"
    if 0 < held.expires_ms <= at_ms:
        state += ", expired"
    data = "" if payload == "none" else printable(payload_text(read(held, PREVIEW_BYTES), payload))
    if payload != "none" and held.data_bytes > PREVIEW_BYTES:
        data += "+"
    return printable(held.id), state, moment_text(held.added_ms or None), f"{held.data_bytes:,}", data
