"""The command `staniel top`."""

from __future__ import annotations

import json
import sys
import time

import click
import msgspec

from staniel.server.cli.admin_address import AdminError
from staniel.server.cli.live_command import Live, LiveCommand
from staniel.server.cli.top.feed import Feed
from staniel.server.cli.top.model import COLUMNS, TopModel

INTERVAL_S = 2.0
LOOK_S = 2.2  # for --once: a rate needs two samples, a second apart
WIDTH_DEFAULT = 120  # without a terminal; more if a name is longer
PERIOD = click.FloatRange(0.2, 3600)
INSTALL = "top draws with rich, an extra: pip install 'staniel[top]'"
SORTS = tuple(column.title.lower().removesuffix("/s") for column in COLUMNS)


@click.command("top", cls=LiveCommand, epilog="staniel top --sort age\nstaniel top --once --filter mail")
@click.option("--interval", default=INTERVAL_S, show_default=True, type=PERIOD, help="Seconds between frames.")
@click.option(
    "--sort", default="items", show_default=True, type=click.Choice(SORTS), help="The column to sort by at first."
)
@click.option("--filter", "wanted", default="", metavar="TEXT", help="Only queues with this in their names.")
@click.option("--once", is_flag=True, help="Print one frame with all queues, after two seconds, and end.")
@click.pass_obj
def top(live: Live, interval: float, sort: str, wanted: str, once: bool) -> None:
    """Watch the queues on a full screen: depth, age, rates, waiting clients, unsynced bytes.

    Keys: left and right sort by another column, r reverses, / filters, p pauses, q quits, ? lists all. After a restart
    of the server it reconnects by itself.
    """
    model = TopModel()
    model.sort_by(SORTS.index(sort))
    model.filter = wanted
    live.client.get("/health/live")  # says what is wrong in one line
    try:
        if live.as_json:
            _receive_events(live, model)
            _print_json(model)
        elif once:
            _print_once(live, model)
        else:
            _watch(live, model, interval)
    except msgspec.ValidationError as error:
        raise AdminError(f"the server is of another version than this command ({error})") from error
    except ImportError as error:
        raise click.ClickException(INSTALL) from error


def _watch(live: Live, model: TopModel, interval_s: float) -> None:
    from staniel.server.cli.top.screen import Screen

    if sys.stdin is None or sys.stdout is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("top needs a terminal; --once prints one frame without")
    screen = Screen(model, live.client.where(), interval_s)
    feed = Feed(live.client, screen.wake)
    try:
        screen.run(feed)
    finally:
        feed.stop()


def _receive_events(live: Live, model: TopModel) -> None:
    """Receive events for some seconds. Raises AdminError."""
    heard: list[None] = []
    feed = Feed(live.client, lambda: heard.append(None))
    feed.start()
    until_s = time.monotonic() + LOOK_S
    longest_s = until_s + 60
    while time.monotonic() < (until_s if model.is_whole else longest_s):
        time.sleep(0.05)
        while feed.news:
            news = feed.news.popleft()
            if isinstance(news, str):
                raise AdminError(news)
            model.learn(news, time.monotonic_ns() // 1_000_000)
    feed.stop()
    if not model.is_whole:
        raise AdminError(f"{live.client.where()} has not told of all queues in a minute")


def _print_once(live: Live, model: TopModel) -> None:
    from rich.console import Console

    from staniel.server.cli.top.frame import whole, whole_width

    _receive_events(live, model)
    terminal = Console()
    width = terminal.width if terminal.is_terminal else max(WIDTH_DEFAULT, whole_width(model))
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    for line in whole(model, live.client.where(), width, time.monotonic_ns() // 1_000_000):
        console.print(line, no_wrap=True, overflow="crop", soft_wrap=False)


def _print_json(model: TopModel) -> None:
    """Print the rows, which are received as arrays, as objects."""
    rows = [dict(zip(row.__struct_fields__, msgspec.to_builtins(row), strict=True)) for row in model.shown()]
    state = {"health": model.health, "totals": model.totals, "disk": model.disk, "load": model.load}
    click.echo(json.dumps({**msgspec.to_builtins(state), "queues": rows}))
