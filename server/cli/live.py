"""The commands on a running server. Each sends the admin listener one or two requests, and prints the replies; the
server does the work. Destructive commands first show how much they affect, and never affect more.
"""

from __future__ import annotations

import os
import sys
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import click

from staniel.broker.admin.browse import BYTES_MAX, ItemView, Page, PastView
from staniel.broker.admin.reasons import Health
from staniel.broker.admin.views import ClientView, OpenReadView, ServerView
from staniel.broker.config.values import DURATION_MS_MAX
from staniel.broker.figures import QueueSnapshot
from staniel.broker.operations.audit import KEPT, AuditEntry
from staniel.protocol.memcache.keys import DELAY_MS_MAX
from staniel.queues.names import file_error
from staniel.server.cli.admin_client import Answer, queue_path
from staniel.server.cli.live_command import NOT_READY, Live, LiveCommand, complete_queue, confirm, convert
from staniel.server.cli.parameters import YES, DurationParam
from staniel.server.text import (
    PipeReader,
    counted,
    human_duration,
    human_size,
    printable,
    printable_bytes,
    table,
    utc_text,
)

COMMANDS: dict[str, click.Command] = {}
PAGE_ITEMS = 1000  # entries in a page of the listener's lists
DAY_MS = 86_400_000
TAKEN_AT_ONCE = 16
SHOWN_BYTES = 200
TEXT, HEX, RAW = "text", "hex", "raw"
AUDIT_HEADS = ("ID", "WHEN", "OPERATION", "ABOUT", "ITEMS", "RESULT", "CLIENT", "PROTOCOL", "WHY")
TO_QUEUES, ABOUT_OPERATIONS = ("move", "redrive"), ("undo", "cancel")  # what the target of an entry is
ELSEWHERE = (("open_reads", "open with clients"), ("delayed_items", "in retry_delay"))
STATUSES = ("up", "writeavoid", "readonly", "quiescent")
Callback = Callable[..., Any]


def live(name: str, *examples: str) -> Callable[[Callback], click.Command]:
    """Return a decorator that makes a function a command of this file; the function gets its Live first. A test runs
    the examples of `--help`.
    """

    def make(function: Callback) -> click.Command:
        made = click.command(name, cls=LiveCommand, epilog="\n".join(examples))(click.pass_obj(function))
        COMMANDS[name] = made
        return made

    return make


def check_queue(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and (why := file_error(value)):
        raise click.BadParameter(why)
    return value


def _check_expiry(ctx: click.Context, param: click.Parameter, value: int | None) -> int:
    if value is not None and not 0 < value <= DURATION_MS_MAX:
        raise click.BadParameter(f"expected a time from 1ms to {DURATION_MS_MAX // DAY_MS}d")
    return value or 0


def _check_delay(ctx: click.Context, param: click.Parameter, value: int | None) -> int:
    if value is not None and not 0 <= value <= DELAY_MS_MAX:
        raise click.BadParameter(f"expected a time from 0 to {DELAY_MS_MAX // DAY_MS}d")
    return value or 0


def queue_argument(
    name: str = "queue", metavar: str = "QUEUE", *, required: bool = True
) -> Callable[[Callback], Callback]:
    return click.argument(name, metavar=metavar, required=required, callback=check_queue, shell_complete=complete_queue)


COUNT = click.option("--count", "-n", type=click.IntRange(1), help="How many items of each queue.  [default: all]")


# looking


@live("queues", "staniel queues", "staniel queues --prefix mail --json")
@click.option("--prefix", default="", help="Only queues whose names begin with this.")
def queues(live: Live, prefix: str) -> None:
    """List the queues: their items, ages and clients.

    AGE is that of the oldest item ready for delivery. OPEN counts items open in clients, WAITING clients that wait for
    an item, UNSYNCED the bytes that a power cut could still lose.
    """
    reply = live.client.get("/api/queues", prefix=prefix)
    if live.print_json(reply):
        return
    shown = convert(reply, list[QueueSnapshot])
    heads = ("NAME", "ITEMS", "BYTES", "AGE", "OPEN", "WAITING", "UNSYNCED", "PAUSED")
    echo_table(heads, [_queue_row(snapshot) for snapshot in shown], "NAME", "PAUSED")
    for snapshot in shown:
        if snapshot.unreadable:
            click.echo(f"{printable(snapshot.name)} cannot be read: {printable(snapshot.unreadable)}")


def _queue_row(queue: QueueSnapshot) -> list[str]:
    return [
        printable(queue.name),
        f"{queue.items:,}",
        human_size(queue.bytes),
        human_duration(queue.age_ms) if queue.items else "-",
        f"{queue.open_reads:,}",
        f"{queue.waiters:,}",
        human_size(queue.unsynced_bytes),
        "" if queue.paused == "none" else printable(queue.paused),
    ]


def echo_table(heads: tuple[str, ...], rows: list[list[str]], *left: str) -> None:
    for line in table(heads, rows, frozenset(left)):
        click.echo(line)


shown_bytes_option = click.option(
    "--bytes",
    "shown_bytes",
    default=SHOWN_BYTES,
    show_default=True,
    type=click.IntRange(0, BYTES_MAX),
    help="How much of each item.",
)


@live("peek", "staniel peek jobs -n 5", "staniel peek jobs --offset 100 --format hex")
@queue_argument()
@click.option("--count", "-n", default=20, show_default=True, type=click.IntRange(1), help="How many items.")
@click.option("--offset", default=0, show_default=True, type=click.IntRange(0), help="How many to skip.")
@click.option(
    "--format", "form", type=click.Choice([TEXT, HEX, "json"]), default=TEXT, show_default=True, help="Form of items."
)
@shown_bytes_option
def peek(live: Live, queue: str, count: int, offset: int, form: str, shown_bytes: int) -> None:
    """Show the items of QUEUE from its head on; nothing is taken.

    A + after the data means that more of it follows. Below a dead letter, or an item that expired in another queue,
    stands its past: its queue, why and when it left, how often it was delivered there, when it was put, and the last
    client that got it. --format json is the same as --json.
    """
    path = queue_path(queue, "items")
    reply = live.client.get(path, offset=offset, limit=min(count, PAGE_ITEMS), bytes=shown_bytes)
    page = convert(reply, Page)
    while page.items and len(reply["items"]) < count:
        left, at = count - len(reply["items"]), page.items[-1].offset + 1
        page = convert(live.client.get(path, offset=at, limit=min(left, PAGE_ITEMS), bytes=shown_bytes), Page)
        reply["items"] += [_to_builtins(item) for item in page.items]
    if live.print_json(reply):
        return
    if form == "json":
        Live(live.client, True).print_json(reply)
        return
    shown = convert(reply, Page)
    rows = []
    for item in shown.items:
        rows.append(item_row(item, form))
        if item.past is not None:
            rows.append(["", "", "", "", f"  {past_line(item.past)}"])
    echo_table(("OFFSET", "AGE", "BYTES", "TRIES", "DATA"), rows, "DATA")
    click.echo(f"{len(shown.items):,} of {counted(shown.items_total, 'item')}", err=True)


def _to_builtins(item: ItemView) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(item)
    return plain


def item_row(item: ItemView, form: str) -> list[str]:
    data = _bytes_of(item.encoding, item.data)
    shown = data.hex(" ") if form == HEX else printable_bytes(data)
    row = [f"{item.offset:,}", human_duration(item.age_ms), human_size(item.data_bytes), f"{item.deliveries:,}"]
    return [*row, shown + " +" * item.is_cut]


def past_line(past: PastView) -> str:
    """Return the past of an item, in a line."""
    said = (
        f"{past.reason} in {printable(past.origin)} at {utc_text(past.left_at_ms)}, "
        f"delivered {counted(past.deliveries, 'time')}"
    )
    said += f", last to {printable(past.client)}" if past.client else ""
    said += f", put at {utc_text(past.put_at_ms)}"
    return said + (f", the {past.times}. time" if past.times > 1 else "")


def _bytes_of(encoding: str, data: str) -> bytes:
    return b64decode(data) if encoding == "base64" else data.encode("utf-8", "surrogatepass")


@live("open", "staniel open jobs")
@queue_argument()
def open_reads(live: Live, queue: str) -> None:
    """Show the open reads of QUEUE, their clients and times; the oldest first."""
    reply = _fetch_all(live, queue_path(queue, "open"))
    if live.print_json(reply):
        return
    heads = ("XID", "CLIENT", "SINCE", "HELD", "TRIES", "AGE", "BYTES")
    rows = [
        [
            str(opened.xid),
            printable(opened.client) or "-",
            utc_text(opened.opened_at_ms),
            human_duration(opened.held_ms),
            f"{opened.deliveries:,}",
            human_duration(opened.age_ms),
            human_size(opened.data_bytes),
        ]
        for opened in convert(reply, list[OpenReadView])
    ]
    echo_table(heads, rows, "CLIENT")


def _fetch_all(live: Live, path: str) -> list[Any]:
    """Return all of a list that the server gives in pages."""
    entries: list[Any] = []
    while True:
        page = convert(live.client.get(path, offset=len(entries), limit=PAGE_ITEMS), list[Any])
        entries += page
        if len(page) < PAGE_ITEMS:
            return entries


@live("clients", "staniel clients --spool /var/lib/staniel")
def clients(live: Live) -> None:
    """List the connections, the oldest first.

    `abort --client` takes a NUMBER. BACKLOG counts requests that were read and are not executed yet. SILENT is how long
    ago the client last sent a request or took a reply: a worker sends one every few seconds.
    """
    reply = _fetch_all(live, "/api/clients")
    if live.print_json(reply):
        return
    heads = ("NUMBER", "ADDRESS", "NAME", "PROTOCOL", "STATE", "SILENT", "OPEN", "BACKLOG", "WAITS FOR")
    rows = [
        [
            str(client.number),
            printable(client.address),
            printable(client.name),
            printable(client.protocol),
            printable(client.state),
            human_duration(client.silent_ms) if client.silent_ms >= 0 else "-",
            f"{client.open_reads:,}",
            f"{client.backlog:,}",
            printable(client.waits_for),
        ]
        for client in convert(reply, list[ClientView])
    ]
    echo_table(heads, rows, "ADDRESS", "NAME", "PROTOCOL", "STATE", "WAITS FOR")


@live("health", "staniel health", "staniel health --json --spool /var/lib/staniel")
def health(live: Live) -> None:
    """Say whether clients are served, what is wrong, and what to do about it.

    Exit code 0: all requests are accepted, with or without warnings. 3: some requests are refused, or all. 1: no reply.
    """
    reply = live.client.get("/health/ready", also_good=(503,))
    shown = convert(reply, Health)
    if not live.print_json(reply):
        ready = "ready" if shown.ready_for_puts else "some requests are refused" if shown.ready else "not ready"
        build = f" ({printable(shown.build)})" if shown.build else ""
        click.echo(f"{ready}, status {printable(shown.status)}{build}")
        for reason in shown.reasons:
            click.echo(f"{reason.severity.value}: {printable(reason.text)}")
            click.echo(f"  to mend it: {printable(reason.mend)}")
    sys.exit(0 if shown.ready_for_puts else NOT_READY)


@live("status", "staniel status", "staniel status readonly")
@click.argument("wanted", metavar="[STATUS]", required=False, type=click.Choice(STATUSES))
def status(live: Live, wanted: str | None) -> None:
    """Show the server, or change its status.

    up: everything is served. writeavoid: everything too, and clients are asked to write elsewhere. readonly: puts are
    refused. quiescent: gets are refused too. A status survives a restart.
    """
    if wanted is not None:
        reply = live.client.post("/api/status", {"status": wanted})
        live.print_result(reply, f"status {printable(str(reply['status']))}")
        return
    reply = live.client.get("/api/server")
    if live.print_json(reply):
        return
    server = convert(reply, ServerView)
    rows = {
        "version": f"{server.version} ({server.build})",
        "spool": server.spool,
        "status": server.status + ", stopping" * server.is_stopping,
        "running since": f"{utc_text(server.started_at_ms)}, for {human_duration(server.uptime_ms)}",
        "connections": f"{server.connections:,}",
        "queues": f"{server.queues:,}",
        "jobs": f"{server.jobs:,}",
        "items put": f"{server.put_items:,}",
        "gets": f"{server.gets:,}",
        "read": human_size(server.bytes_read),
        "written": human_size(server.bytes_written),
        "disk": "full" if server.is_full else "has room",
    }
    for name, value in rows.items():
        click.echo(f"{name + ':':<15}{printable(value)}")


@live("audit", "staniel audit -n 50")
@click.option("--count", "-n", default=20, show_default=True, type=click.IntRange(1, KEPT), help="How many entries.")
def audit(live: Live, count: int) -> None:
    """Show the operations on queues and the server, and who requested them; the newest last.

    RESULT begun: the operation was running when the line was written; a line of the same ID with its result follows,
    unless it was interrupted. The files are SPOOL/.staniel/audit and audit.1.
    """
    reply = live.client.get("/api/audit", limit=count)
    if live.print_json(reply):
        return
    rows = [_audit_row(entry) for entry in reversed(convert(reply, list[AuditEntry]))]
    echo_table(AUDIT_HEADS, rows, *AUDIT_HEADS[1:4], *AUDIT_HEADS[5:])
    for entry in convert(reply, list[AuditEntry]):
        if entry.left_out:
            click.echo(f"before {entry.id} there were {entry.left_out:,} more of its kind", err=True)


def _subject_of(entry: AuditEntry) -> str:
    """Return "jobs > other" of a move, "jobs: gets" of a pause, "jobs, operation 7" of an undo or a cancel."""
    queue, target = printable(entry.queue), printable(entry.target)
    if entry.operation in ABOUT_OPERATIONS:  # a refused one may have the number alone
        return f"{queue}, operation {target}" if target else f"operation {queue}"
    if not (queue and target):
        return queue or target
    return f"{queue} > {target}" if entry.operation in TO_QUEUES else f"{queue}: {target}"


def _audit_row(entry: AuditEntry) -> list[str]:
    return [
        str(entry.id),
        utc_text(entry.at_ms),
        entry.operation,
        _subject_of(entry),
        f"{entry.items:,}",
        entry.result.value,
        printable(entry.client),
        printable(entry.protocol),
        printable(entry.why),
    ]


# items


@live("put", "staniel put jobs 'resize 17.png' --expires 2h", "staniel put jobs - < order.json")
@queue_argument()
@click.argument("data", required=False, metavar="[DATA|-]")
@click.option(
    "--expires",
    metavar="30s|5m|2h",
    type=DurationParam(),
    callback=_check_expiry,
    help="The time until the item expires.",
)
@click.option(
    "--delay",
    metavar="30s|5m|2h",
    type=DurationParam(),
    callback=_check_delay,
    help="The time before which no client gets the item.",
)
def put(live: Live, queue: str, data: str | None, expires: int, delay: int) -> None:
    """Store one item in QUEUE: DATA, or all of standard input, byte by byte.

    It may have up to max_item_size of QUEUE, by default 16 MB.
    """
    payload = _read_input(data is None) if data in (None, "-") else os.fsencode(data or "")
    reply = live.client.store(queue_path(queue, "put"), payload, expires_in_ms=expires, delay_ms=delay)
    live.print_result(reply, f"stored {human_size(len(payload))} in {printable(queue)}")


def _read_input(is_implied: bool) -> bytes:
    if sys.stdin is None:
        raise click.UsageError("there is no standard input: give the data")
    if is_implied and sys.stdin.isatty():
        click.echo("The item is read from the keyboard; Ctrl-D ends it.", err=True)
    return sys.stdin.buffer.read()


@live("get", "staniel get jobs > item", "staniel get jobs -n 10")
@queue_argument()
@click.option("--count", "-n", type=click.IntRange(1), help="At most so many items; a line end follows each.")
@click.option(
    "--format",
    "form",
    type=click.Choice([TEXT, HEX, RAW]),
    help="Form of items.  [default: text on a terminal, else raw]",
)
def get(live: Live, queue: str, count: int | None, form: str | None) -> None:
    """Take items from the head of QUEUE, and print them.

    Without -n one item is printed byte by byte, with nothing added. Exit code 1: there was none. An item is removed
    once it is printed and, on a pipe, read: an item that a full disk or a closed pipe did not take stays in QUEUE.
    """
    form = form or (TEXT if sys.stdout is not None and sys.stdout.isatty() else RAW)
    wanted, count_taken = count or 1, 0
    everything: list[Any] = []
    reader = PipeReader(sys.stdout)
    path, printed = queue_path(queue, "take"), 0
    with live.client.kept() as post:
        while count_taken < wanted:
            at_once = min(TAKEN_AT_ONCE, wanted - count_taken) if live.as_json else 1
            reply = post(path, {"count": at_once, "open": True, "confirm": printed})
            printed = 0
            if not (items := reply["items"]):
                break
            count_taken += len(items)
            everything += items
            if not live.as_json:
                data = [_bytes_of(item["encoding"], item["data"]) for item in map(Answer, items)]
                _print_items(data, form, count is not None)
                reader.wait()
                printed = len(items)
        if live.print_json({"items": everything}):
            reader.wait()
            printed = count_taken
        if printed:
            post(path, {"count": 0, "confirm": printed})
    if not count_taken:
        click.echo(_explain_empty(live.client.get(queue_path(queue)), queue), err=True)
        sys.exit(1)


def _explain_empty(row: Answer, queue: str) -> str:
    """Return why a get took nothing: the queue is empty or paused, or clients have all its items open."""
    name = printable(queue)
    if row["paused"] in ("gets", "all"):
        held = counted(row["items"], "item")
        return f"{name} is paused: gets are held back, {held} waiting; `staniel resume {name}` ends it"
    elsewhere = [f"{row[key]:,} {what}" for key, what in ELSEWHERE if row[key]]
    return f"{name} has no item ready" + f": {', '.join(elsewhere)}" * bool(elsewhere)


def _print_items(items: list[bytes], form: str, with_ends: bool) -> None:
    for data in items:
        if form == RAW:
            click.echo(data, nl=with_ends)
        else:
            click.echo(data.hex(" ") if form == HEX else printable_bytes(data))


@live("reload", "staniel reload --spool /var/lib/staniel")
def reload(live: Live) -> None:
    """Make the server read its configuration again."""
    reply = live.client.post("/api/reload")
    later = printable(str(reply["only_after_restart"]))
    live.print_result(reply, "reloaded" + (f"; only a restart takes over {later}" if later else ""))


@live("stop", "staniel stop", "staniel stop --yes --config /etc/staniel/staniel.toml")
@YES
def stop(live: Live, is_sure: bool) -> None:
    """Stop the server as SIGTERM does: everything acknowledged is kept."""
    if not is_sure:
        server = convert(live.client.get("/api/server"), ServerView)
        clients = max(0, server.connections - 1)  # without this one
        confirm(f"stop {live.client.where()}, which has {counted(clients, 'client')}", is_sure)
    reply = live.client.post("/api/stop")
    live.print_result(reply, f"{live.client.where()} is stopping")
