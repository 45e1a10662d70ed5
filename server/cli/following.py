"""The wait for an operation of a running server. The operation belongs to the server: no reply waits for it, however
long it takes, and it continues when the command is ended.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import click

from staniel.broker.operations.running import OperationState, OperationView
from staniel.server.cli.admin_address import AdminError, ServerUnreachable
from staniel.server.cli.admin_client import Answer
from staniel.server.cli.live_command import Live, convert
from staniel.server.progress import TerminalLine
from staniel.server.text import counted, human_duration, printable

FIRST_LOOK_S, LOOK_S = 0.02, 0.25  # the first and the usual interval of polls
QUIET_S = 0.5  # an operation that ends within this time shows no progress
UNREACHABLE_S_MAX = 60.0  # a restarted server continues its operations

Result = Callable[[OperationView], dict[str, Any]]


def _undo(view: OperationView) -> dict[str, Any]:
    return {"undo": view.undo, "undo_until_at_ms": view.undo_until_at_ms}


# The results of operations, in the form of replies that wait for their end.


def purged(view: OperationView) -> dict[str, Any]:
    return {"purged": view.done, **_undo(view), "why": view.why}


def moved(view: OperationView) -> dict[str, Any]:
    return {"moved": view.done, "to": view.target, "why": view.why, **_undo(view)}


def deleted(view: OperationView) -> dict[str, Any]:
    return {"deleted": view.done, **_undo(view)}


def returned(view: OperationView) -> dict[str, Any]:
    queue = view.target or view.queue
    return {"returned": view.done, "queue": queue, "why": view.why, "open": view.open, "gone": view.gone}


def carried_out(live: Live, method: str, path: str, body: dict[str, object], result: Result) -> Answer:
    """Begin an operation and wait for its end. Return its result. Raises AdminError if nothing was done."""
    reply = live.client.begin_operation(method, path, body)
    if "state" not in reply:
        return reply  # the operation was short
    view = convert(dict(reply), OperationView)
    try:
        view = ended(live, view)
    except KeyboardInterrupt:
        mend = f"staniel operations {view.id} --cancel"
        click.echo(f"the server goes on with operation {view.id}; to end it: {mend}", err=True)
        raise
    if view.why and not view.done:
        raise AdminError(f"nothing was done: {printable(view.why)}")
    return Answer(result(view))


def ended(live: Live, view: OperationView) -> OperationView:
    """Wait for the end of an operation, with a bar on a terminal; return how it ended. Waits for a server that is
    restarted meanwhile. Raises ServerUnreachable if it does not come back.
    """
    bar: Bar | None = None
    began_s, pause_s = time.monotonic(), FIRST_LOOK_S
    try:
        while view.state is OperationState.RUNNING:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S)
            try:
                view = _progress_of(live, view)
            except ServerUnreachable:
                if bar is not None:
                    bar.close()
                    bar = None
                view = _progress_of_restarted(live, view)
            if bar is None and time.monotonic() - began_s > QUIET_S and sys.stderr is not None and sys.stderr.isatty():
                bar = _make_bar(view)
            if bar is not None:
                bar.show(view)
    finally:
        if bar is not None:
            bar.close()
    return view


def _progress_of(live: Live, view: OperationView) -> OperationView:
    """Return the progress of an operation. Raises ServerUnreachable."""
    return convert(live.client.get(f"/api/operations/{view.id}"), OperationView)


def _progress_of_restarted(live: Live, view: OperationView) -> OperationView:
    """Say that the server is gone, and return the progress of the operation once it is back."""
    click.echo(
        f"the server does not reply; operation {view.id} continues when it runs again (waiting up to "
        f"{UNREACHABLE_S_MAX:.0f} s)",
        err=True,
    )
    until_s = time.monotonic() + UNREACHABLE_S_MAX
    while True:
        time.sleep(LOOK_S)
        try:
            return _progress_of(live, view)
        except ServerUnreachable as error:
            if time.monotonic() > until_s:
                mend = f"operation {view.id} continues when the server runs again; start it, then: "
                raise ServerUnreachable(f"{error}; {mend}staniel operations {view.id}") from error


class Bar(Protocol):
    def show(self, view: OperationView) -> None: ...

    def close(self) -> None: ...


def _make_bar(view: OperationView) -> Bar:
    try:
        return RichBar(view)
    except ImportError:
        return PlainBar()


def progress_text(view: OperationView) -> str:
    """Return "move: 128 of 300 items, 75,000 items/s, 2 s left"."""
    if view.returning:
        back = f"{counted(view.returning, 'item')} that stood ahead"
        return f"{view.operation}: {view.done:,} of {view.total:,} items; gives back {back}"
    left = f", {human_duration(view.remaining_ms)} left" if view.remaining_ms >= 0 else ""
    rate = f"{view.rate_per_second:,} items/s"
    return f"{view.operation}: {view.done:,} of {view.total:,} items, {rate}{left}"


class PlainBar:
    """A progress line that changes in place."""

    def __init__(self) -> None:
        self._line = TerminalLine(sys.stderr)

    def show(self, view: OperationView) -> None:
        self._line.show(progress_text(view))

    def close(self) -> None:
        self._line.clear()


class RichBar:
    """A progress bar of rich, the extra `top`."""

    def __init__(self, view: OperationView) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TextColumn("{task.description}", markup=False)
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(progress_text(view), total=max(1, view.total))
        self._returning = 0  # the most that was seen
        self._progress.start()

    def show(self, view: OperationView) -> None:
        done, total = view.done, max(1, view.total)
        if view.returning:  # a bar of its own: all of the items that were meant may be done
            self._returning = max(self._returning, view.returning)
            done, total = self._returning - view.returning, self._returning
        self._progress.update(self._task, completed=done, total=total, description=progress_text(view))

    def close(self) -> None:
        self._progress.stop()
