"""The commands `staniel hold`: retention holds of a running server."""

from __future__ import annotations

from urllib.parse import quote

import click

from staniel.broker.operations.holds import HoldView, is_active
from staniel.journal.holds import FilePlace, place_of
from staniel.server.cli.live import echo_table
from staniel.server.cli.live_command import Live, LiveCommand, confirm, convert
from staniel.server.cli.parameters import YES
from staniel.server.text import counted, human_duration, human_size, printable, tolerate

PATH = "/api/holds"
HEADS = ("HOLD", "STATE", "FILES", "BYTES", "LIMIT", "MOVED", "QUEUES", "WHY")
LEFT = ("HOLD", "STATE", "QUEUES", "WHY")


@click.group()
def hold() -> None:
    """Keep sealed files of queues until a program has read them.

    A hold is for a program that reads the files of a spool, such as an archive job, and moves its hold as it goes.
    """
    tolerate()


@hold.command(cls=LiveCommand, epilog="staniel hold create archive --queues 'jobs*' --max-bytes 10000000000")
@click.argument("name")
@click.option(
    "--queues",
    multiple=True,
    metavar="GLOB",
    default=("*",),
    show_default=True,
    help="Queues whose names match GLOB; .cmdlog is the command log of jobs.",
)
@click.option(
    "--max-bytes", type=click.IntRange(0), default=0, metavar="N", help="Drop it at N bytes of kept files; 0: never."
)
@click.pass_obj
def create(live: Live, name: str, queues: tuple[str, ...], max_bytes: int) -> None:
    """Create the hold NAME.

    From now on no sealed file of these queues is lost before the hold has passed it. The same again changes nothing but
    the limit. A hold that was dropped at its limit begins anew.
    """
    body = {"name": name, "queues": list(queues), "max_bytes": max_bytes}
    reply = live.client.post(PATH, body)
    unlimited = "" if max_bytes else "; no limit: what it keeps may fill the disk"
    live.print_result(reply, f"hold {printable(name)} of {' '.join(map(printable, queues))}{unlimited}")


@hold.command("list", cls=LiveCommand, epilog="staniel hold list")
@click.pass_obj
def list_(live: Live) -> None:
    """Show all holds: what is kept for each, and how long ago it moved."""
    reply = live.client.get(PATH)
    if not live.print_json(reply):
        echo_table(HEADS, [_row(view) for view in convert(reply, list[HoldView])], *LEFT)


@hold.command(cls=LiveCommand, epilog="staniel hold move archive jobs.1764205200000 mail.1764205200077")
@click.argument("name")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.pass_obj
def move(live: Live, name: str, files: tuple[str, ...]) -> None:
    """Let the hold NAME pass sealed files: FILE and all earlier ones of its queue were wholly
    read. Of several files of one queue the last one counts.

    A hold never moves back.
    """
    last: dict[str, FilePlace] = {}
    for file in files:
        place = place_of(file)
        if place is None:
            raise click.UsageError(f"{printable(file)} is not the name of a sealed file")
        if place.queue not in last or last[place.queue].number < place.number:
            last[place.queue] = place
    passed = {queue: place.name for queue, place in last.items()}
    reply = live.client.post(f"{PATH}/{quote(name, safe='', errors='surrogateescape')}/move", {"passed": passed})
    view = convert(reply, HoldView)
    live.print_result(reply, f"hold {printable(name)} keeps {_kept(view)}")


@hold.command(cls=LiveCommand, epilog="staniel hold drop archive --yes")
@click.argument("name")
@YES
@click.pass_obj
def drop(live: Live, name: str, is_sure: bool) -> None:
    """Drop the hold NAME, and the files that are kept for it."""
    named = [view for view in convert(live.client.get(PATH), list[HoldView]) if view.name == name]
    if named:
        confirm(f"drop the hold {printable(name)}, which keeps {_kept(named[0])}", is_sure)
    reply = live.client.delete(f"{PATH}/{quote(name, safe='', errors='surrogateescape')}")
    live.print_result(reply, f"dropped {printable(name)}")


def _kept(view: HoldView) -> str:
    return f"{counted(view.files, 'file')} ({human_size(view.bytes)})"


def _row(view: HoldView) -> list[str]:
    return [
        printable(view.name),
        view.state.value,
        f"{view.files:,}",
        human_size(view.bytes),
        human_size(view.max_bytes) if view.max_bytes else "none",
        f"{human_duration(view.age_ms)} ago" if is_active(view) else "",
        " ".join(map(printable, view.queues)),
        printable(view.why),
    ]
