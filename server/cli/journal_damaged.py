"""The command `staniel journal damaged`: copies of parts that starts could not read, and their removal after an
inspection.
"""

from __future__ import annotations

import json
import sys

import click

from staniel.journal.disk.os_fs import OsFs
from staniel.journal.disk.refusals import refused_tool
from staniel.journal.kestrel.files import damaged_folder
from staniel.server.cli.journal_reading import json_option
from staniel.server.cli.live_command import confirm
from staniel.server.cli.parameters import YES, CommandFailed, DurationParam, ExistingPath
from staniel.server.clock import wall_ms
from staniel.server.text import counted, human_duration, human_size, printable, table


@click.command(epilog="staniel journal damaged /var/lib/staniel")
@click.argument("spool", type=ExistingPath(file_okay=False))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--older-than",
    "age_ms",
    type=DurationParam(),
    metavar="AGE",
    default="0ms",
    help="Only copies of at least this age: 7d, 12h.",
)
@click.option("--remove", "is_removal", is_flag=True, help="Remove the listed copies.")
@YES
@json_option
def damaged(spool: str, names: tuple[str, ...], age_ms: int, is_removal: bool, is_sure: bool, as_json: bool) -> None:
    """List the copies in SPOOL of parts that starts could not read, and remove those you no longer need.

    A start copies a torn or damaged piece to .staniel/damaged before it cuts the piece off. A copy is named after its
    file, the first byte and the length; no program reads it again. A server may be using the spool. Exit code 0: done;
    1: some copies could not be removed; 2: there is no such copy, or the folder cannot be read.
    """
    fs, folder = OsFs(), damaged_folder(spool.rstrip("/") or "/")
    copies = [copy for copy in _list_copies(fs, folder) if copy[2] >= age_ms and (not names or copy[0] in names)]
    if missing := sorted(set(names) - {name for name, _, _ in copies}):
        raise CommandFailed(printable(f"no such copy in {folder}: {', '.join(missing)}"))
    if as_json:
        for name, size, age in copies:
            click.echo(json.dumps({"name": name, "bytes": size, "age_ms": age}))
    elif copies:
        rows = [(printable(name), human_size(size), human_duration(age)) for name, size, age in copies]
        click.echo("\n".join(table(("COPY", "SIZE", "AGE"), rows, frozenset({"COPY"}))))
    total = f"{counted(len(copies), 'copy', 'copies')}, {human_size(sum(size for _, size, _ in copies))}"
    if not as_json:
        click.echo(printable(f"{total} in {folder}"))
    if is_removal and copies:
        confirm(f"remove {total} for good", is_sure)
        sys.exit(0 if _remove_copies(fs, folder, [name for name, _, _ in copies]) else 1)


def _list_copies(fs: OsFs, folder: str) -> list[tuple[str, int, int]]:
    """Return (name, bytes, age in ms) of each copy, the oldest first."""
    copies = []
    try:
        for name, is_file in fs.list(folder):
            path = f"{folder}/{name}"
            copies.append((name, fs.size(path) if is_file else 0, max(0, wall_ms() - fs.modified_ms(path))))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CommandFailed(printable(refused_tool(error, folder))) from error
    return sorted(copies, key=lambda copy: -copy[2])


def _remove_copies(fs: OsFs, folder: str, names: list[str]) -> bool:
    """Remove copies. Return True if all of them are gone."""
    is_whole = True
    for name in names:
        try:
            fs.remove(f"{folder}/{name}")
        except FileNotFoundError:
            continue
        except OSError as error:
            is_whole = False
            click.echo(printable(refused_tool(error, f"{folder}/{name}")), err=True)
    return is_whole
