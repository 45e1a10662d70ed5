"""The commands on a running server. Each asks the admin listener once or twice, and prints what it says; what they do
is done there. Those that destroy say first how much, and do no more than that.
"""

from __future__ import annotations

import os
import sys
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from staniel.broker.config.values import DURATION_MS_MAX, parse_duration
from staniel.broker.operations.audit import KEPT, AuditEntry
from staniel.broker.operations.browse import BYTES_MAX, ItemView, Page, PastView
from staniel.broker.operations.reasons import Health
from staniel.broker.operations.undo import UndoView
from staniel.broker.operations.views import ClientView, OpenReadView, QueueSnapshot, ServerView
from staniel.queues.names import file_error
from staniel.server.cli.admin_client import AdminError, Answer, queue_path
from staniel.server.cli.following import carried_out, deleted, moved, purged, returned
from staniel.server.cli.live_command import NOT_READY, Live, LiveCommand, complete_queue, confirm, convert
from staniel.server.cli.text import PipeReader, counted, human_duration, human_size, printable, printable_bytes, table

COMMANDS: dict[str, click.Command] = {}
PAGE_ITEMS = 1000  # of the listener's lists
TAKEN_AT_ONCE = 16
SHOWN_BYTES = 200
TEXT, HEX, RAW = "text", "hex", "raw"
AUDIT_HEADS = ("ID", "WHEN", "OPERATION", "ABOUT", "ITEMS", "RESULT", "CLIENT", "PROTOCOL", "WHY")
ELSEWHERE = (("open_reads", "open with clients"), ("delayed_items", "in retry_delay"))
CONFLICT = 409  # the reply's status if there is more than was shown
STATUSES = ("up", "writeavoid", "readonly", "quiescent")
Callback = Callable[..., Any]


def live(name: str) -> Callable[[Callback], click.Command]:
    """Make a function a command of this file's; it gets its Live first."""

    def make(function: Callback) -> click.Command:
        made = click.command(name, cls=LiveCommand)(click.pass_obj(function))
        COMMANDS[name] = made
        return made

    return make


def _check_queue(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and (why := file_error(value)):
        raise click.BadParameter(why)
    return value


def _check_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> int:
    if value is None:
        return 0
    try:
        duration_ms = parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not 0 < duration_ms <= DURATION_MS_MAX:
        raise click.BadParameter(f"{value} is no time in which an item can expire")
    return duration_ms


def a_queue(name: str = "queue", metavar: str = "QUEUE", *, required: bool = True) -> Callable[[Callback], Callback]:
    return click.argument(
        name, metavar=metavar, required=required, callback=_check_queue, shell_complete=complete_queue
    )


COUNT = click.option("--count", "-n", type=click.IntRange(1), help="How many items at most.  [default: all]")
YES = click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")


# looking


@live("queues")
@click.option("--prefix", default="", help="Only queues whose names begin so.")
def queues(live: Live, prefix: str) -> None:
    """List the queues: what they hold, how old it is, who has it.

    AGE is that of the oldest item that can be handed out. OPEN counts items in clients' hands, WAITING clients that
    wait for an item, UNSYNCED what a power cut could still take.
    """
    found = live.client.get("/api/queues", prefix=prefix)
    if live.tell_json(found):
        return
    shown = convert(found, list[QueueSnapshot])
    heads = ("NAME", "ITEMS", "BYTES", "AGE", "OPEN", "WAITING", "UNSYNCED", "PAUSED")
    echo_table(heads, [_queue_row(each) for each in shown], "NAME", "PAUSED")
    for each in shown:
        if each.unreadable:
            click.echo(f"{printable(each.name)} cannot be read: {printable(each.unreadable)}")


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


@live("peek")
@a_queue()
@click.option("--count", "-n", default=20, show_default=True, type=click.IntRange(1), help="How many items.")
@click.option("--offset", default=0, show_default=True, type=click.IntRange(0), help="How many to leave out.")
@click.option("--format", "form", type=click.Choice([TEXT, HEX, "json"]), default=TEXT, show_default=True)
@click.option(
    "--bytes",
    "shown_bytes",
    default=SHOWN_BYTES,
    show_default=True,
    type=click.IntRange(0, BYTES_MAX),
    help="How much of each item.",
)
def peek(live: Live, queue: str, count: int, offset: int, form: str, shown_bytes: int) -> None:
    """Show the items of QUEUE from its head on; nothing is taken.

    A + after the data says that there is more of it. Below a dead letter, or an item that expired in another queue,
    stands its past: where it comes from, why and when it left, how often it was delivered there, when it was put, and
    the last client that it was delivered to. --format json is the same as --json.
    """
    path = queue_path(queue, "items")
    found = live.client.get(path, offset=offset, limit=min(count, PAGE_ITEMS), bytes=shown_bytes)
    page = convert(found, Page)
    while page.items and len(found["items"]) < count:
        left, at = count - len(found["items"]), page.items[-1].offset + 1
        page = convert(live.client.get(path, offset=at, limit=min(left, PAGE_ITEMS), bytes=shown_bytes), Page)
        found["items"] += [_plain(item) for item in page.items]
    if live.tell_json(found):
        return
    if form == "json":
        Live(live.client, True).tell_json(found)
        return
    shown = convert(found, Page)
    rows = []
    for item in shown.items:
        rows.append(_item_row(item, form))
        if item.past is not None:
            rows.append(["", "", "", "", f"  {past_line(item.past)}"])
    echo_table(("OFFSET", "AGE", "BYTES", "TRIES", "DATA"), rows, "DATA")
    click.echo(f"{len(shown.items):,} of {counted(shown.items_total, 'item')}", err=True)


def _plain(item: ItemView) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(item)
    return plain


def _item_row(item: ItemView, form: str) -> list[str]:
    data = _bytes_of(item.encoding, item.data)
    shown = data.hex(" ") if form == HEX else printable_bytes(data)
    row = [f"{item.offset:,}", human_duration(item.age_ms), human_size(item.data_bytes), f"{item.deliveries:,}"]
    return [*row, shown + " +" * item.is_cut]


def past_line(past: PastView) -> str:
    """The past of an item, in a line."""
    said = (
        f"{past.reason} in {printable(past.origin)} at {moment(past.left_at_ms)}, "
        f"delivered {counted(past.deliveries, 'time')}"
    )
    said += f", last to {printable(past.client)}" if past.client else ""
    said += f", put at {moment(past.put_at_ms)}"
    return said + (f", the {past.times}. time" if past.times > 1 else "")


def _bytes_of(encoding: str, data: str) -> bytes:
    return b64decode(data) if encoding == "base64" else data.encode("utf-8", "surrogatepass")


@live("open")
@a_queue()
def open_reads(live: Live, queue: str) -> None:
    """Show who holds which items of QUEUE, and since when; the oldest first."""
    found = _pages(live, queue_path(queue, "open"))
    if live.tell_json(found):
        return
    heads = ("XID", "CLIENT", "SINCE", "HELD", "TRIES", "AGE", "BYTES")
    rows = [
        [
            str(each.xid),
            printable(each.client) or "-",
            moment(each.opened_at_ms),
            human_duration(each.held_ms),
            f"{each.deliveries:,}",
            human_duration(each.age_ms),
            human_size(each.data_bytes),
        ]
        for each in convert(found, list[OpenReadView])
    ]
    echo_table(heads, rows, "CLIENT")


def moment(at_ms: int) -> str:
    """UTC, as in the log and in the commands that read files; `journal at` takes it as it stands."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def _pages(live: Live, path: str) -> list[Any]:
    """All of a list that the server gives in pages."""
    found: list[Any] = []
    while True:
        page = convert(live.client.get(path, offset=len(found), limit=PAGE_ITEMS), list[Any])
        found += page
        if len(page) < PAGE_ITEMS:
            return found


@live("clients")
def clients(live: Live) -> None:
    """List the connections, the oldest first.

    NUMBER is what `abort --client` takes. BACKLOG counts requests that were read and are not executed yet.
    """
    found = _pages(live, "/api/clients")
    if live.tell_json(found):
        return
    heads = ("NUMBER", "ADDRESS", "PROTOCOL", "STATE", "OPEN", "BACKLOG", "WAITS FOR")
    rows = [
        [
            str(each.number),
            printable(each.address),
            printable(each.protocol),
            printable(each.state),
            f"{each.open_reads:,}",
            f"{each.backlog:,}",
            printable(each.waits_for),
        ]
        for each in convert(found, list[ClientView])
    ]
    echo_table(heads, rows, "ADDRESS", "PROTOCOL", "STATE", "WAITS FOR")


@live("health")
def health(live: Live) -> None:
    """Say whether clients are served, what is not as it should be, and what mends it.

    Exit code 0: nothing is refused, warnings or not. 3: some requests are refused, or all. 1: no answer.
    """
    found = live.client.get("/health/ready", also_good=(503,))
    shown = convert(found, Health)
    if not live.tell_json(found):
        ready = "ready" if shown.ready_for_puts else "some requests are refused" if shown.ready else "not ready"
        click.echo(f"{ready}, status {printable(shown.status)}")
        for reason in shown.reasons:
            click.echo(f"{reason.severity.value}: {printable(reason.text)}")
            click.echo(f"  to mend it: {printable(reason.mend)}")
    sys.exit(0 if shown.ready_for_puts else NOT_READY)


@live("status")
@click.argument("wanted", metavar="[STATUS]", required=False, type=click.Choice(STATUSES))
def status(live: Live, wanted: str | None) -> None:
    """Show the server, or change its status.

    up: everything is served. writeavoid: too, and clients are asked to write elsewhere. readonly: puts are refused.
    quiescent: gets are, too. A status survives a restart.
    """
    if wanted is not None:
        found = live.client.post("/api/status", {"status": wanted})
        live.tell(found, f"status {printable(str(found['status']))}")
        return
    found = live.client.get("/api/server")
    if live.tell_json(found):
        return
    server = convert(found, ServerView)
    rows = {
        "version": f"{server.version} ({server.build})",
        "spool": server.spool,
        "status": server.status + ", stopping" * server.is_stopping,
        "running since": f"{moment(server.started_at_ms)}, for {human_duration(server.uptime_ms)}",
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


@live("audit")
@click.option("--count", "-n", default=20, show_default=True, type=click.IntRange(1, KEPT), help="How many entries.")
def audit(live: Live, count: int) -> None:
    """Show what was done to queues and the server, and who did it; the newest last.

    RESULT begun: it was going on when the line was written; one of the same ID with its result follows, unless it was
    cut off. The files are SPOOL/.staniel/audit and audit.1.
    """
    found = live.client.get("/api/audit", limit=count)
    if live.tell_json(found):
        return
    rows = [_audit_row(each) for each in reversed(convert(found, list[AuditEntry]))]
    echo_table(AUDIT_HEADS, rows, *AUDIT_HEADS[1:4], *AUDIT_HEADS[5:])
    for each in convert(found, list[AuditEntry]):
        if each.left_out:
            click.echo(f"before {each.id} there were {each.left_out:,} more of its kind", err=True)


def _audit_row(entry: AuditEntry) -> list[str]:
    about = printable(entry.queue) + f" > {printable(entry.target)}" * bool(entry.target)
    return [
        str(entry.id),
        moment(entry.at_ms),
        entry.operation,
        about.strip(),
        f"{entry.items:,}",
        entry.result.value,
        printable(entry.client),
        printable(entry.protocol),
        printable(entry.why),
    ]


# items


@live("put")
@a_queue()
@click.argument("data", required=False, metavar="[DATA|-]")
@click.option("--expires", metavar="30s|5m|2h", callback=_check_duration, help="When the item is to expire.")
def put(live: Live, queue: str, data: str | None, expires: int) -> None:
    """Store one item in QUEUE: DATA, or all of standard input, byte by byte.

    It may have as many bytes as max_item_size of QUEUE allows, 16 MB if nothing else is configured.
    """
    payload = _read_input(data is None) if data in (None, "-") else os.fsencode(data or "")
    found = live.client.store(queue_path(queue, "put"), payload, expires_in_ms=expires)
    live.tell(found, f"stored {human_size(len(payload))} in {printable(queue)}")


def _read_input(is_implied: bool) -> bytes:
    if sys.stdin is None:
        raise click.UsageError("there is no standard input: give the data")
    if is_implied and sys.stdin.isatty():
        click.echo("The item is read from the keyboard; Ctrl-D ends it.", err=True)
    return sys.stdin.buffer.read()


@live("get")
@a_queue()
@click.option("--count", "-n", type=click.IntRange(1), help="How many items at most; each gets an end of line.")
@click.option("--format", "form", type=click.Choice([TEXT, HEX, RAW]), help="[default: text on a terminal, else raw]")
def get(live: Live, queue: str, count: int | None, form: str | None) -> None:
    """Take items from the head of QUEUE, and print them.

    Without -n it is one, printed byte by byte and with nothing added. Exit code 1: there was none. An item is removed
    once it is printed, and, on a pipe, read: what a full disk or a reader that has gone did not take stays in QUEUE.
    """
    form = form or (TEXT if sys.stdout is not None and sys.stdout.isatty() else RAW)
    wanted, taken = count or 1, 0
    everything: list[Any] = []
    reader = PipeReader(sys.stdout)
    path, printed = queue_path(queue, "take"), 0
    with live.client.kept() as post:
        while taken < wanted:
            at_once = min(TAKEN_AT_ONCE, wanted - taken) if live.as_json else 1
            found = post(path, {"count": at_once, "open": True, "confirm": printed})
            printed = 0
            if not (items := found["items"]):
                break
            taken += len(items)
            everything += items
            if not live.as_json:
                data = [_bytes_of(each["encoding"], each["data"]) for each in map(Answer, items)]
                _print_items(data, form, count is not None)
                reader.wait()
                printed = len(items)
        if live.tell_json({"items": everything}):
            reader.wait()
            printed = taken
        if printed:
            post(path, {"count": 0, "confirm": printed})
    if not taken:
        click.echo(_why_nothing(live.client.get(queue_path(queue)), queue), err=True)
        sys.exit(1)


def _why_nothing(row: Answer, queue: str) -> str:
    """Why a get took nothing: a pause hides what waits, and so do clients that hold all of it."""
    name = printable(queue)
    if row["paused"] in ("gets", "all"):
        held = counted(row["items"], "item")
        return f"{name} is paused: gets are held back, {held} waiting; `staniel resume {name}` ends it"
    elsewhere = [f"{row[key]:,} {what}" for key, what in ELSEWHERE if row[key]]
    return f"{name} has nothing to give" + f": {', '.join(elsewhere)}" * bool(elsewhere)


def _print_items(items: list[bytes], form: str, with_ends: bool) -> None:
    for data in items:
        if form == RAW:
            click.echo(data, nl=with_ends)
        else:
            click.echo(data.hex(" ") if form == HEX else printable_bytes(data))


# changing


@live("purge")
@a_queue()
@click.option("--no-undo", is_flag=True, help="Remove them at once and for good.")
@YES
def purge(live: Live, queue: str, no_undo: bool, is_sure: bool) -> None:
    """Remove every item that waits in QUEUE; what clients hold stays, and so does what comes after the question.

    `undo` brings them back, for as long as the server keeps them: it says until when.
    """
    body: dict[str, object] = {"no_undo": no_undo}
    if not is_sure:
        items = _snapshot(live, queue).items
        final = " for good" * no_undo
        confirm(f"remove {counted(items, 'item')} from {printable(queue)}{final}", is_sure)
        body["expected"] = items
    found = carried_out(live, "POST", queue_path(queue, "purge"), body, purged)
    live.tell(found, f"removed {counted(found['purged'], 'item')} from {printable(queue)}")
    _tell_undo(live, found)
    if found["why"]:
        raise AdminError(printable(str(found["why"])))


def _tell_undo(live: Live, found: Answer) -> None:
    if found.get("undo") and not live.as_json:
        click.echo(f"until {moment(found['undo_until_at_ms'])}, to take it back: staniel undo {found['undo']}")


@live("undo")
@click.argument("number", metavar="[ID]", required=False, type=click.IntRange(1))
@click.option("--forget", is_flag=True, help="Have it be impossible to undo ID from now on.")
def undo(live: Live, number: int | None, forget: bool) -> None:
    """Take purge, delete, move or redrive ID back; without ID, list what can be undone.

    What was removed comes back to the end of its queue. What was moved, and still waits where it was moved to, goes
    back to where it came from. The items keep the times when they were put and when they expire.
    """
    if number is None:
        if forget:
            raise click.UsageError("expected ID with --forget")
        _list_undos(live)
    elif forget:
        found = live.client.delete(f"/api/undo/{number}")
        live.tell(found, f"{counted(found['forgotten'], 'item')} cannot be brought back any more")
    else:
        found = carried_out(live, "POST", f"/api/undo/{number}", {}, returned)
        live.tell(found, f"returned {counted(found['returned'], 'item')} to {printable(str(found['queue']))}")
        if not live.as_json:
            _tell_missing(found)
        if found["why"]:
            raise AdminError(f"the others can still be returned: {printable(str(found['why']))}")


def _tell_missing(found: Answer) -> None:
    """Of a move: what did not come back."""
    if found.get("open"):
        click.echo(f"{counted(found['open'], 'item')} open with clients: undo again when they are back")
    if found.get("gone"):
        click.echo(f"{counted(found['gone'], 'item')} not there any more: taken since, or expired")


def _list_undos(live: Live) -> None:
    found = live.client.get("/api/undo")
    if live.tell_json(found):
        return
    rows = [
        [
            str(each.id),
            printable(each.operation),
            printable(each.queue),
            printable(each.target),
            f"{each.items:,}",
            human_size(each.bytes),
            moment(each.at_ms),
            moment(each.until_at_ms),
        ]
        for each in convert(found, list[UndoView])
    ]
    heads = ("ID", "OPERATION", "QUEUE", "TO", "ITEMS", "BYTES", "AT", "UNTIL")
    echo_table(heads, rows, "OPERATION", "QUEUE", "TO")


def _snapshot(live: Live, queue: str) -> QueueSnapshot:
    return convert(live.client.get(queue_path(queue)), QueueSnapshot)


@live("move")
@a_queue("from_queue", "FROM")
@a_queue("to_queue", "TO")
@COUNT
@YES
def move(live: Live, from_queue: str, to_queue: str, count: int | None, is_sure: bool) -> None:
    """Move items from the head of one queue to the end of another.

    No crash loses or doubles an item on its way.
    """
    body: dict[str, object] = {"to": to_queue}
    _move(live, from_queue, "move", body, f"to {printable(to_queue)}", count, is_sure)


HOME = "the queues that they came from"


@live("redrive")
@a_queue()
@click.option("--to", "to_queue", default="", help="Where to.  [default: the queue whose dead letters these are]")
@COUNT
@YES
def redrive(live: Live, queue: str, to_queue: str, count: int | None, is_sure: bool) -> None:
    """Move dead letters from QUEUE back to where they came from.

    Without --to they go to the queue whose dead_letter_queue QUEUE is. If several queues share QUEUE, each item goes to
    the queue that it left, and there is no undo. An item that does not say which queue that is ends it.
    """
    where = f"to {printable(to_queue)}" if to_queue else "back to where they came from"
    _move(live, queue, "redrive", {"to": to_queue}, where, count, is_sure)


def _move(
    live: Live, queue: str, path: str, body: dict[str, object], where: str, count: int | None, is_sure: bool
) -> None:
    there = _snapshot(live, queue).items
    wanted = there if count is None else min(count, there)
    confirm(f"move {counted(wanted, 'item')} of {printable(queue)} {where}", is_sure)
    found = carried_out(live, "POST", queue_path(queue, path), {**body, "count": wanted}, moved)
    count_moved, target, why = found["moved"], printable(str(found["to"])) or HOME, printable(str(found["why"]))
    live.tell(found, f"moved {counted(count_moved, 'item')} from {printable(queue)} to {target}")
    _tell_undo(live, found)
    if why:
        raise AdminError(f"the others stay: {why}")


@live("abort")
@a_queue(metavar="[QUEUE]", required=False)
@click.argument("xid", metavar="[XID]", required=False, type=click.IntRange(0))
@click.option("--all", "is_all", is_flag=True, help="Every open read of QUEUE.")
@click.option("--client", "number", type=click.IntRange(0), help="Every open read of this client; see `clients`.")
@YES
def abort(live: Live, queue: str | None, xid: int | None, is_all: bool, number: int | None, is_sure: bool) -> None:
    """Give open reads back: their items are at the head again. `open` shows them.

    Their client is not told and may still be working, so its work may be done twice. With --all, if more are open than
    were shown when you answer, none is given back.
    """
    if (queue is None) == (number is None) or (queue is not None and (xid is None) == (not is_all)):
        raise click.UsageError("expected QUEUE XID, QUEUE --all, or --client NUMBER")
    if number is not None and (is_all or xid is not None):
        raise click.UsageError("--client is for all that one client holds")
    body: dict[str, object] = {}
    if queue is None:
        path = f"/api/clients/{number}/abort"
    elif xid is not None:
        path = queue_path(queue, "open", str(xid), "abort")
    else:
        path = queue_path(queue, "open", "abort")
        if not is_sure:
            held = _snapshot(live, queue).open_reads
            confirm(f"give back {counted(held, 'open read')} of {printable(queue)}", is_sure)
            body["expected"] = held
    found = live.client.post(path, body)
    live.tell(found, f"gave back {counted(found['aborted'], 'open read')}")


@live("delete")
@a_queue()
@click.option("--no-undo", is_flag=True, help="Delete it at once and for good.")
@YES
def delete(live: Live, queue: str, no_undo: bool, is_sure: bool) -> None:
    """Delete QUEUE, with its items and its files.

    `undo` makes it again with the items that waited in it, also those that came after the question; what clients hold
    is gone. With --no-undo you are asked again if more items are there than were shown.
    """
    body: dict[str, object] = {"no_undo": no_undo}
    while True:
        if not is_sure:
            body["expected"] = _confirm_delete(live, queue, no_undo)
        try:
            found = carried_out(live, "DELETE", queue_path(queue), body, deleted)
        except AdminError as error:
            if is_sure or not no_undo or error.status != CONFLICT:
                raise
            click.echo(str(error), err=True)
            continue
        break
    live.tell(found, f"deleted {printable(queue)} with {counted(found['deleted'], 'item')}")
    _tell_undo(live, found)


def _confirm_delete(live: Live, queue: str, no_undo: bool) -> int:
    """Ask. Returns how many items were shown."""
    found = _snapshot(live, queue)
    held = f" and {counted(found.open_reads, 'open read')}" if found.open_reads else ""
    final = " for good" * no_undo
    what = f"delete {printable(queue)} with {counted(found.items, 'item')} ({human_size(found.bytes)}){held}{final}"
    confirm(what, False)
    return found.items


@live("pause")
@a_queue()
@click.option("--gets", is_flag=True, help="Only gets.")
@click.option("--puts", is_flag=True, help="Only puts.")
def pause(live: Live, queue: str, gets: bool, puts: bool) -> None:
    """Hold back gets from QUEUE and puts into it, or one of them.

    Gets find it empty, puts are refused. A pause survives a restart.
    """
    _pause(live, queue, "pause", gets, puts)


@live("resume")
@a_queue()
@click.option("--gets", is_flag=True, help="Only gets.")
@click.option("--puts", is_flag=True, help="Only puts.")
def resume(live: Live, queue: str, gets: bool, puts: bool) -> None:
    """Let gets and puts of QUEUE go on, or one of them."""
    _pause(live, queue, "resume", gets, puts)


def _pause(live: Live, queue: str, path: str, gets: bool, puts: bool) -> None:
    both = not (gets or puts)
    found = live.client.post(queue_path(queue, path), {"gets": gets or both, "puts": puts or both})
    words = [f"{name} {'paused' if found[f'{name}_paused'] else 'served'}" for name in ("gets", "puts")]
    live.tell(found, f"{printable(queue)}: {', '.join(words)}")


@live("reload")
def reload(live: Live) -> None:
    """Have the server read its configuration again."""
    found = live.client.post("/api/reload")
    later = printable(str(found["only_after_restart"]))
    live.tell(found, "reloaded" + (f"; only a restart takes over {later}" if later else ""))


@live("stop")
@YES
def stop(live: Live, is_sure: bool) -> None:
    """Stop the server as SIGTERM does: what it has acknowledged is kept."""
    if not is_sure:
        server = convert(live.client.get("/api/server"), ServerView)
        clients = max(0, server.connections - 1)  # without this one
        confirm(f"stop {live.client.where()}, which has {counted(clients, 'client')}", is_sure)
    found = live.client.post("/api/stop")
    live.tell(found, f"{live.client.where()} is stopping")
