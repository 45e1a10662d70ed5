"""The command that finds items in queues of a running server, by terms."""

from __future__ import annotations

import click

from staniel.broker.admin.browse import BYTES_MAX, LIMIT_MAX, Matches
from staniel.server.cli.admin_address import AdminError, ServerUnreachable
from staniel.server.cli.admin_client import Answer, queue_path
from staniel.server.cli.changing import BAD_REQUEST, fail_with, queues_named, resolve_queues
from staniel.server.cli.live import HEX, TEXT, echo_table, item_row, live, past_line, shown_bytes_option
from staniel.server.cli.live_command import Live, convert
from staniel.server.text import counted, printable

SHOWN_ITEMS = 20
HEADS = ("OFFSET", "ID", "AGE", "BYTES", "TRIES", "DATA")


@live("find", "staniel find jobs --where 'text~timeout'", "staniel find 'mail*' --where 'age>1h' --where 'tries>=3'")
@queues_named()
@click.option("--where", multiple=True, metavar="TERM", help="A condition for items; with several, all of them.")
@click.option(
    "--count",
    "-n",
    default=SHOWN_ITEMS,
    show_default=True,
    type=click.IntRange(0, LIMIT_MAX),
    help="How many of each queue to show.",
)
@click.option(
    "--format", "form", type=click.Choice([TEXT, HEX]), default=TEXT, show_default=True, help="Form of items."
)
@shown_bytes_option
def find(live: Live, queues: tuple[str, ...], where: tuple[str, ...], count: int, form: str, shown_bytes: int) -> None:
    """Find the items of QUEUE that match each TERM; nothing is taken.

    QUEUE may be a pattern such as 'mail*'. `move`, `redrive` and `purge` take the same TERMs.

    \b
    text~timeout           these letters anywhere in the payload
    regex~'"user": 7\\b'   an expression (RE2; needs the extra `regex`)
    age>1h  size>=10KB     the time since the put; the size of the payload
    tries>=3               the number of deliveries
    origin=work            the queue that a dead letter left
    reason=dead            the reason why it left
    position=0-99          positions from the head on, which is 0
    id=ID,ID               ids, as in the column ID
    """
    if count * shown_bytes > BYTES_MAX:
        raise click.UsageError(
            f"--count times --bytes is at most {BYTES_MAX:,}: ask for fewer items or for less of each"
        )
    body: dict[str, object] = {"where": where, "limit": count, "bytes": shown_bytes}
    names = list(resolve_queues(live, queues))
    answers: list[Answer] = []
    failed: list[str] = []
    for name in names:
        try:
            answers.append(live.client.post(queue_path(name, "find"), body))
        except AdminError as error:
            if len(names) == 1 or isinstance(error, ServerUnreachable) or error.status == BAD_REQUEST:
                raise
            failed.append(f"{printable(name)}: {error}")
            answers.append(Answer({"queue": name, "error": str(error)}))
    if not live.print_json(answers if len(names) > 1 else answers[0]):
        _print_matches([convert(answer, Matches) for answer in answers if "error" not in answer], form, len(names) > 1)
    fail_with(failed)


def _print_matches(answers: list[Matches], form: str, are_several: bool) -> None:
    rows: list[list[str]] = []
    for matches in answers:
        name = [printable(matches.queue)] if are_several else []
        for item in matches.items:
            offset, *others = item_row(item, form)
            rows.append([*name, offset, item.id, *others])
            if item.past is not None:
                rows.append([*name, "", "", "", "", "", f"  {past_line(item.past)}"])
    echo_table(("QUEUE", *HEADS) if are_several else HEADS, rows, "QUEUE", "ID", "DATA")
    for matches in answers:
        name_of = f"{printable(matches.queue)}: " if are_several else ""
        shown = f"{len(matches.items):,} of {counted(matches.found, 'item')} found in {matches.looked_at:,}"
        click.echo(f"{name_of}{shown}", err=True)
        if matches.cut:
            cut = f"of {counted(matches.cut, 'long payload')} only the beginning was searched"
            click.echo(f"{name_of}{cut}", err=True)
