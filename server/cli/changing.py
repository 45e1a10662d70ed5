"""The commands that change the contents of queues of a running server: one queue, several, or those whose names match a
pattern. Each first shows the number of affected items, and never affects more.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

import click
from msgspec import Struct

from staniel.broker.admin.browse import Matches
from staniel.broker.figures import QueueSnapshot
from staniel.broker.operations.undo import UndoView
from staniel.server.cli.admin_address import AdminError, ServerUnreachable
from staniel.server.cli.admin_client import Answer, queue_path
from staniel.server.cli.following import carried_out, deleted, moved, purged, returned
from staniel.server.cli.live import COMMANDS, COUNT, Callback, check_queue, echo_table, live, queue_argument
from staniel.server.cli.live_command import Live, complete_queue, confirm, convert
from staniel.server.cli.parameters import YES
from staniel.server.text import counted, human_size, printable, utc_text

CONFLICT = 409  # the reply's status if there are more items than were shown
NOT_FOUND = 404
BAD_REQUEST = 400  # its status for a request that is wrong for every queue
WILD = "*?["
HOME = "the queues that they came from"
TARGETS_SHOWN = 3  # homes of a redrive in the list of undos
WHERE = click.option(
    "--where",
    multiple=True,
    metavar="TERM",
    help="Only items that match TERM, as in `find`; with several, all of them.",
)


class QueuePart(Struct, frozen=True):
    """The part of an operation in one queue: its number of items, among those shown. `error` is why they could not be
    counted; then the queue is skipped.
    """

    queue: str
    items: int
    bytes: int = 0
    open_reads: int = 0
    error: str = ""


def _check_queues(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for name in value:
        check_queue(ctx, param, name)
    return value


def queues_named(name: str = "queues", metavar: str = "QUEUE...") -> Callable[[Callback], Callback]:
    return click.argument(
        name, metavar=metavar, required=True, nargs=-1, callback=_check_queues, shell_complete=complete_queue
    )


def resolve_queues(live: Live, names: tuple[str, ...], excluded: str = "") -> dict[str, QueueSnapshot | None]:
    """Return the queues of these names and patterns, each once, with its snapshot if known.

    A queue whose name equals the pattern is that one alone. `excluded` is a queue that no pattern matches, and that may
    not be named: the target of a move. Raises AdminError.
    """
    if excluded in names and len(names) > 1:
        raise AdminError(f"{printable(excluded)} is a source and the target: leave it out of the sources")
    if not _is_wild(names):
        return dict.fromkeys(names)
    there = {queue.name: queue for queue in convert(live.client.get("/api/queues"), list[QueueSnapshot])}
    found: dict[str, QueueSnapshot | None] = {}
    for name in names:
        if name in there or not _is_wild((name,)):
            found[name] = there.get(name)
            continue
        fitting = [known for known in there if fnmatchcase(known, name) and known != excluded]
        if not fitting:
            is_target = excluded in there and fnmatchcase(excluded, name)
            none = f"no queue but the target {printable(excluded)}" if is_target else "no queue name"
            raise AdminError(f"{none} fits {printable(name)}; `staniel queues` lists them")
        found.update({known: there[known] for known in sorted(fitting)})
    return found


def _is_wild(names: tuple[str, ...]) -> bool:
    return any(sign in name for name in names for sign in WILD)


def _describe_target(live: Live, names: tuple[str, ...], target: str) -> str:
    """Return "to a"; if a pattern matches the target, too: "to a, whose own 3 items stay". Raises AdminError."""
    to = f"to {printable(target)}"
    if not any(_is_wild((name,)) and fnmatchcase(target, name) for name in names):
        return to
    try:
        items = _snapshot(live, target).items
    except AdminError as error:
        if error.status == NOT_FOUND:
            return to
        raise
    return f"{to}, whose own {counted(items, 'item')} {'stays' if items == 1 else 'stay'}" if items else to


def _parts_without_counts(names: tuple[str, ...]) -> list[QueuePart]:
    """Return the parts of an operation that need not show counts, without asking the server."""
    return [QueuePart(name, 0) for name in dict.fromkeys(names)]


def _count_parts(live: Live, names: tuple[str, ...], where: tuple[str, ...], excluded: str = "") -> list[QueuePart]:
    """Return the parts of an operation. A queue whose count fails does not stop the others. Raises AdminError
    if all fail.
    """
    parts: list[QueuePart] = []
    errors: list[str] = []
    for name, known in resolve_queues(live, names, excluded).items():
        try:
            parts.append(_count_part(live, name, known, where))
        except AdminError as error:
            if isinstance(error, ServerUnreachable) or error.status == BAD_REQUEST:
                raise
            errors.append(f"{printable(name)}: {error}" if len(names) > 1 or _is_wild(names) else str(error))
            parts.append(QueuePart(name, 0, error=str(error)))
    if len(errors) == len(parts):
        fail_with(errors)
    return parts


def _count_part(live: Live, name: str, known: QueueSnapshot | None, where: tuple[str, ...]) -> QueuePart:
    """Return the part in one queue. Raises AdminError."""
    if where:
        matches = convert(live.client.post(queue_path(name, "find"), {"where": where, "limit": 0}), Matches)
        return QueuePart(matches.queue, matches.found, matches.found_bytes)
    snapshot = known or _snapshot(live, name)
    return QueuePart(snapshot.name, snapshot.items, snapshot.bytes, snapshot.open_reads)


def _describe_parts(parts: list[QueuePart], count: Callable[[QueuePart], int]) -> str:
    """Return "7 items of 2 queues (a 3, b 4)"; for one queue "3 items of a"."""
    counted_ones = [part for part in parts if not part.error]
    if len(counted_ones) == 1:
        return (
            f"{counted(count(counted_ones[0]), 'item')} of {printable(counted_ones[0].queue)}{_describe_skipped(parts)}"
        )
    counts = ", ".join([f"{printable(part.queue)} {count(part):,}" for part in counted_ones])
    total = counted(sum(map(count, counted_ones)), "item")
    return f"{total} of {len(counted_ones)} queues ({counts}){_describe_skipped(parts)}"


def _describe_skipped(parts: list[QueuePart]) -> str:
    """Return the skipped queues, and why: ", but none of c (there is no queue c)"."""
    skipped = ", ".join([f"{printable(part.queue)} ({part.error})" for part in parts if part.error])
    return f", but none of {skipped}" if skipped else ""


def fail_with(errors: list[str]) -> None:
    """Print all errors but the last, which is raised as AdminError."""
    for text in errors[:-1]:
        click.echo(f"Error: {text}", err=True)
    if errors:
        raise AdminError(errors[-1])


def _run_for_parts(
    live: Live,
    parts: list[QueuePart],
    send: Callable[[QueuePart], Answer],
    print_result: Callable[[QueuePart, Answer], None],
    reason_prefix: str = "",
) -> None:
    """Call `send` for each queue, also after a failure in another one; exit with code 1 if any failed. `reason_prefix`
    precedes the reason why an operation has ended early.
    """
    answers: list[dict[str, object]] = []
    failed: list[str] = []
    for part in parts:
        name = f"{printable(part.queue)}: " if len(parts) > 1 else ""
        if part.error:
            failed.append(f"{name}{part.error}")
            answers.append({"queue": part.queue, "error": part.error})
            continue
        try:
            reply = send(part)
        except AdminError as error:
            failed.append(f"{name}{error}")
            answers.append({"queue": part.queue, "error": str(error)})
            if len(parts) == 1:
                raise
            continue
        answers.append({"queue": part.queue, **reply} if name else dict(reply))
        if not live.as_json:
            print_result(part, reply)
        if reply.get("why"):
            failed.append(f"{name}{reason_prefix}{printable(str(reply['why']))}")
    live.print_json(answers if len(parts) > 1 else answers[0])
    fail_with(failed)


@live("purge", "staniel purge jobs", "staniel purge jobs --where 'age>7d' --yes")
@queues_named()
@click.option("--no-undo", is_flag=True, help="Remove them at once, without undo.")
@WHERE
@YES
def purge(live: Live, queues: tuple[str, ...], no_undo: bool, where: tuple[str, ...], is_sure: bool) -> None:
    """Remove every waiting item from QUEUE; open reads stay, and so do items that are put after the question.

    QUEUE may be a pattern such as 'mail*'. `undo` brings the items back, for as long as the server keeps them: the
    output says until when.
    """
    if no_undo and where:
        raise click.UsageError("--no-undo goes with whole queues: a purge by --where can always be undone")
    parts = (
        _parts_without_counts(queues)
        if is_sure and not where and not _is_wild(queues)
        else _count_parts(live, queues, where)
    )
    only = parts[0]
    if len(parts) == 1:
        what = f"remove {counted(only.items, 'item')} from {printable(only.queue)}"
    else:
        what = f"remove {_describe_parts(parts, lambda part: part.items)}"
    confirm(what + " for good" * no_undo, is_sure)

    def send(part: QueuePart) -> Answer:
        body: dict[str, object] = {"no_undo": no_undo}
        if where:
            body["where"] = where
        if not is_sure or where:
            body["expected"] = part.items
        return carried_out(live, "POST", queue_path(part.queue, "purge"), body, purged)

    def print_result(part: QueuePart, reply: Answer) -> None:
        click.echo(f"removed {counted(reply['purged'], 'item')} from {printable(part.queue)}")
        _print_undo_hint(live, reply)

    _run_for_parts(live, parts, send, print_result)


def _print_undo_hint(live: Live, reply: Answer) -> None:
    if reply.get("undo") and not live.as_json:
        click.echo(f"until {utc_text(reply['undo_until_at_ms'])}, to take it back: staniel undo {reply['undo']}")


@live("undo", "staniel undo")
@click.argument("number", metavar="[ID]", required=False, type=click.IntRange(1))
@click.option("--forget", is_flag=True, help="Delete what is kept to undo ID.")
def undo(live: Live, number: int | None, forget: bool) -> None:
    """Undo purge, delete, move or redrive ID; without ID, list the operations that can be undone.

    Removed items return to the end of their queue. Moved items that still wait in the target return to their source.
    The items keep their put times and expiry times.
    """
    if number is None:
        if forget:
            raise click.UsageError("expected ID with --forget")
        _list_undos(live)
    elif forget:
        reply = live.client.delete(f"/api/undo/{number}")
        live.print_result(reply, f"{counted(reply['forgotten'], 'item')} cannot be brought back any more")
    else:
        reply = carried_out(live, "POST", f"/api/undo/{number}", {}, returned)
        live.print_result(reply, f"returned {counted(reply['returned'], 'item')} to {printable(str(reply['queue']))}")
        if not live.as_json:
            _print_missing(reply)
        if reply["why"]:
            raise AdminError(f"the others can still be returned: {printable(str(reply['why']))}")


def _print_missing(reply: Answer) -> None:
    """Print which items of an undone move did not return."""
    if reply.get("open"):
        click.echo(f"{counted(reply['open'], 'item')} open with clients: undo again when they are back")
    if reply.get("gone"):
        click.echo(f"{counted(reply['gone'], 'item')} not there any more: taken since, or expired")


def _list_undos(live: Live) -> None:
    reply = live.client.get("/api/undo")
    if live.print_json(reply):
        return
    rows = [
        [
            str(undoable.id),
            printable(undoable.operation),
            printable(undoable.queue),
            printable(undoable.target) or _list_targets(undoable.targets),
            f"{undoable.items:,}",
            human_size(undoable.bytes),
            utc_text(undoable.at_ms),
            utc_text(undoable.until_at_ms),
        ]
        for undoable in convert(reply, list[UndoView])
    ]
    heads = ("ID", "OPERATION", "QUEUE", "TO", "ITEMS", "BYTES", "AT", "UNTIL")
    echo_table(heads, rows, "OPERATION", "QUEUE", "TO")


def _list_targets(names: list[str]) -> str:
    """Return the homes that a redrive has sent its items to."""
    more = f", … ({len(names)})" if len(names) > TARGETS_SHOWN else ""
    return ", ".join(map(printable, names[:TARGETS_SHOWN])) + more


def _snapshot(live: Live, queue: str) -> QueueSnapshot:
    return convert(live.client.get(queue_path(queue)), QueueSnapshot)


@live("move", "staniel move jobs aside -n 100", "staniel move 'mail*' aside --where 'age>1d'")
@queues_named("from_queues", "FROM...")
@queue_argument("to_queue", "TO")
@COUNT
@WHERE
@YES
def move(
    live: Live, from_queues: tuple[str, ...], to_queue: str, count: int | None, where: tuple[str, ...], is_sure: bool
) -> None:
    """Move items from the head of one queue to the end of another.

    FROM may be several queues, and patterns such as 'mail*'; a pattern that matches TO leaves TO out. No crash loses or
    duplicates an item on its way.
    """
    parts = _count_parts(live, from_queues, where, excluded=to_queue)
    _move_items(
        live, parts, "move", {"to": to_queue}, where, _describe_target(live, from_queues, to_queue), count, is_sure
    )


@live("redrive", "staniel redrive jobs-dead", "staniel redrive jobs-dead --to jobs --where 'text~timeout'")
@queues_named()
@click.option("--to", "to_queue", default="", help="The target.  [default: the queue whose dead letters these are]")
@COUNT
@WHERE
@YES
def redrive(
    live: Live, queues: tuple[str, ...], to_queue: str, count: int | None, where: tuple[str, ...], is_sure: bool
) -> None:
    """Move dead letters from QUEUE back to where they came from.

    Without --to they go to the queue whose dead_letter_queue QUEUE is. If several queues share QUEUE, each item goes to
    the queue that it left. An item that does not name that queue ends the operation. QUEUE may be a pattern such as
    'dead-*'.
    """
    parts = _count_parts(live, queues, where, excluded=to_queue)
    to = _describe_target(live, queues, to_queue) if to_queue else "back to where they came from"
    _move_items(live, parts, "redrive", {"to": to_queue}, where, to, count, is_sure)


def _move_items(
    live: Live,
    parts: list[QueuePart],
    path: str,
    body: dict[str, object],
    where: tuple[str, ...],
    to: str,
    count: int | None,
    is_sure: bool,
) -> None:
    def wanted(part: QueuePart) -> int:
        return part.items if count is None else min(count, part.items)

    confirm(f"move {_describe_parts(parts, wanted)} {to}", is_sure)
    if where:
        body["where"] = where

    def send(part: QueuePart) -> Answer:
        return carried_out(live, "POST", queue_path(part.queue, path), {**body, "count": wanted(part)}, moved)

    def print_result(part: QueuePart, reply: Answer) -> None:
        target = printable(str(reply["to"])) or HOME
        click.echo(f"moved {counted(reply['moved'], 'item')} from {printable(part.queue)} to {target}")
        _print_undo_hint(live, reply)

    _run_for_parts(live, parts, send, print_result, "the others stay: ")


@live("abort", "staniel abort jobs --all")
@queue_argument(metavar="[QUEUE]", required=False)
@click.argument("xid", metavar="[XID]", required=False, type=click.IntRange(0))
@click.option("--all", "is_all", is_flag=True, help="Every open read of QUEUE.")
@click.option("--client", "number", type=click.IntRange(0), help="Every open read of this client; see `clients`.")
@YES
def abort(live: Live, queue: str | None, xid: int | None, is_all: bool, number: int | None, is_sure: bool) -> None:
    """Abort open reads: their items return to the head of the queue. `open` shows them.

    The client is not told and may still be working, so its work may be done twice. With --all, if more reads are open
    than were shown when you confirm, none is aborted.
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
    reply = live.client.post(path, body)
    live.print_result(reply, f"gave back {counted(reply['aborted'], 'open read')}")


@live("delete", "staniel delete aside")
@queues_named()
@click.option("--no-undo", is_flag=True, help="Delete it at once, without undo.")
@YES
def delete(live: Live, queues: tuple[str, ...], no_undo: bool, is_sure: bool) -> None:
    """Delete QUEUE, with its items and its files.

    QUEUE may be a pattern such as 'mail*'. `undo` makes the queue again with the items that waited in it, also those
    put after the question; items of open reads are lost. With --no-undo you are asked again if the queue has more items
    than were shown.
    """
    parts = _parts_without_counts(queues) if is_sure and not _is_wild(queues) else _count_parts(live, queues, ())
    asks_again = no_undo and not is_sure

    def confirm_delete(parts: list[QueuePart]) -> None:
        held = sum([part.open_reads for part in parts])
        with_held = f" and {counted(held, 'open read')}" if held else ""
        items = counted(sum([part.items for part in parts]), "item")
        size = human_size(sum([part.bytes for part in parts]))
        if len(parts) == 1:
            name = printable(parts[0].queue)
        else:
            there = [f"{printable(part.queue)} {part.items:,}" for part in parts if not part.error]
            name = f"{counted(len(there), 'queue')} ({', '.join(there)})"
        end = " for good" * no_undo + _describe_skipped(parts)
        confirm(f"delete {name} with {items} ({size}){with_held}{end}", is_sure)

    def send(part: QueuePart) -> Answer:
        while True:
            body: dict[str, object] = {"no_undo": no_undo}
            if not is_sure:
                body["expected"] = part.items
            try:
                return carried_out(live, "DELETE", queue_path(part.queue), body, deleted)
            except AdminError as error:
                if not asks_again or error.status != CONFLICT:
                    raise
                click.echo(str(error), err=True)
            snapshot = _snapshot(live, part.queue)
            part = QueuePart(snapshot.name, snapshot.items, snapshot.bytes, snapshot.open_reads)
            confirm_delete([part])

    def print_result(part: QueuePart, reply: Answer) -> None:
        click.echo(f"deleted {printable(part.queue)} with {counted(reply['deleted'], 'item')}")
        _print_undo_hint(live, reply)

    confirm_delete(parts)
    _run_for_parts(live, parts, send, print_result)


@live("pause", "staniel pause jobs --gets", "staniel pause 'mail*'")
@queues_named()
@click.option("--gets", is_flag=True, help="Only gets.")
@click.option("--puts", is_flag=True, help="Only puts.")
def pause(live: Live, queues: tuple[str, ...], gets: bool, puts: bool) -> None:
    """Pause gets from QUEUE and puts into it, or one of them.

    QUEUE may be a pattern such as 'mail*'. Gets find the queue empty, puts are refused. A pause survives a restart.
    """
    _change_pause(live, queues, "pause", gets, puts)


@live("resume", "staniel resume jobs", "staniel resume 'mail*'")
@queues_named()
@click.option("--gets", is_flag=True, help="Only gets.")
@click.option("--puts", is_flag=True, help="Only puts.")
def resume(live: Live, queues: tuple[str, ...], gets: bool, puts: bool) -> None:
    """Resume gets and puts of QUEUE, or one of them.

    QUEUE may be a pattern such as 'mail*'.
    """
    _change_pause(live, queues, "resume", gets, puts)


def _change_pause(live: Live, names: tuple[str, ...], path: str, gets: bool, puts: bool) -> None:
    both = not (gets or puts)
    body: dict[str, object] = {"gets": gets or both, "puts": puts or both}

    def send(part: QueuePart) -> Answer:
        return live.client.post(queue_path(part.queue, path), body)

    def print_result(part: QueuePart, reply: Answer) -> None:
        words = [f"{name} {'paused' if reply[f'{name}_paused'] else 'served'}" for name in ("gets", "puts")]
        click.echo(f"{printable(part.queue)}: {', '.join(words)}")

    _run_for_parts(
        live, _count_parts(live, names, ()) if _is_wild(names) else _parts_without_counts(names), send, print_result
    )


QUEUE_COMMANDS = COMMANDS  # those of `live`, and of this file
CHANGING = ("abort", "move", "redrive", "purge", "undo", "delete")  # in the order of `staniel --help`
