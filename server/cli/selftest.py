"""The command `staniel selftest`: options and output; server/selftest has the checks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from random import SystemRandom
from types import FrameType

import click

from staniel.server.cli.parameters import CommandFailed, ExistingPath
from staniel.server.selftest import crashes, machine, power_cut
from staniel.server.selftest.child import ChildFailed
from staniel.server.selftest.findings import CheckResult, Verdict, conclusion
from staniel.server.text import printable

SECONDS_DEFAULT = 10.0
UNSEEN = "A disk that lies about its cache cannot be seen from here, only in a power cut: see --write."


@click.command(epilog="staniel selftest /var/lib\nstaniel selftest /var/lib --seconds 3600 --json")
@click.argument("folder", type=ExistingPath(file_okay=False), metavar="DIR")
@click.option(
    "--seconds",
    default=SECONDS_DEFAULT,
    show_default=True,
    type=click.FloatRange(1, 86_400),
    help="The approximate duration.",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON object for each finding, then one with the verdict.")
@click.option("--write", is_flag=True, help="Show numbers as they are acknowledged, until you pull the plug.")
@click.option("--verify", is_flag=True, help="Afterwards: check which of them were kept.")
@click.option("--acknowledged", type=click.IntRange(min=0), help="With --verify: the last number that --write showed.")
def selftest(folder: str, seconds: float, as_json: bool, write: bool, verify: bool, acknowledged: int | None) -> None:
    """Test whether DIR's disk, and this machine, suit a spool.

    The test uses a folder of its own below DIR, which it removes afterwards. It checks the file system and its
    abilities, the time of a sync, a real server that is killed repeatedly under load, truncated journals, and failing
    writes and syncs. It needs no root and does not disturb your servers, but it keeps the disk busy.

    The test cannot detect a disk that lies about its cache. For that, run it with --write over a connection from
    another machine, pull the plug (do not shut down: the test must lose the disk's cache), start the machine again, and
    run it with --verify and the last number shown.

    Exit code 0: nothing failed; 1: something did; 2: nothing was tested.
    """
    if (write and verify) or (acknowledged is not None and not verify):
        raise click.UsageError("--write comes before the power cut, --verify (with --acknowledged) after it")
    folder = os.path.abspath(folder)
    try:
        if write:
            _write_numbers(folder)
        elif verify:
            results = iter([power_cut.verify(folder, acknowledged)])
            sys.exit(_print_verdict([*_print_results(results, as_json)], as_json, False))
        else:
            sys.exit(_print_verdict([*_print_results(_run_all_checks(folder, seconds), as_json)], as_json, True))
    except (ChildFailed, OSError) as error:
        raise CommandFailed(printable(f"cannot test {folder}: {error}")) from error


def _run_all_checks(folder: str, seconds: float) -> Iterator[CheckResult]:
    """Run all checks. Raises OSError."""
    try:
        with _temporary_folder(folder) as place:
            yield from machine.run_checks(place, seconds, os.environ)
            yield from crashes.crash(place, seconds, SystemRandom())
    except OSError as error:
        if error.errno not in machine.FULL:
            raise
        yield machine.no_room(error)


@contextmanager
def _temporary_folder(folder: str) -> Iterator[str]:
    """Yield a folder that is removed afterwards, also after SIGTERM. Raises OSError."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    place = tempfile.mkdtemp(prefix="staniel-selftest-", dir=folder)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def _print_results(results: Iterator[CheckResult], as_json: bool) -> Iterator[CheckResult]:
    """Print each result when it is found."""
    for result in results:
        if as_json:
            fields = {
                "name": result.name,
                "verdict": result.verdict.value,
                "text": result.text,
                "advice": result.advice,
            }
            click.echo(json.dumps(fields))
        else:
            click.echo(printable(f"{result.verdict.value:<8} {result.name}: {result.text}"))
            if result.advice:
                click.echo(printable(f"{'':<8} -> {result.advice}"))
        yield result


def _print_verdict(results: list[CheckResult], as_json: bool, is_whole: bool) -> int:
    """Print the verdict. Return the exit code."""
    has_failed = any(result.verdict is Verdict.FAIL for result in results)
    verdict = Verdict.FAIL if has_failed else Verdict.OK
    if as_json:
        click.echo(json.dumps({"verdict": verdict.value, "text": conclusion(results) if is_whole else results[0].text}))
    elif is_whole:
        click.echo(UNSEEN)
        click.echo(f"verdict: {conclusion(results)}")
    return 1 if has_failed else 0


def _write_numbers(folder: str) -> None:
    is_over = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_over
        is_over = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    click.echo("pull the plug when you like; the last number below is what --verify needs")
    power_cut.write(folder, lambda number: click.echo(f"acknowledged {number}"), lambda: is_over)
