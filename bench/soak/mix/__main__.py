"""The command `python -m staniel.bench.soak.mix`: everything at once for as long as wanted, and a report."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import click

from staniel.bench.harness import machine
from staniel.bench.harness.contestant import first_line
from staniel.bench.harness.process import exit_on_signals
from staniel.bench.soak.mix.report import chart, markdown
from staniel.bench.soak.mix.run import play

REDO_LOGS = {"without-redo-log": '"none"', "with-redo-log": '"4MB"'}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--hours", type=click.FloatRange(min=0.005), default=2.0, show_default=True, help="How long.")
@click.option("--seed", type=int, default=0, help="0, the default: a new one each time.")
@click.option(
    "--rate", type=click.FloatRange(min=1), default=150, show_default=True,
    help="Items and jobs put a second, about, to each of the two servers.",
)  # fmt: skip
@click.option(
    "--dir", "folder", type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    default=Path(tempfile.gettempdir()), show_default=True, help="Where the spools are made.",
)  # fmt: skip
@click.option(
    "--report", type=click.Path(file_okay=False, path_type=Path), default=Path("soak-report"), show_default=True,
    help="Where report.md, its charts and the log of accidents go.",
)  # fmt: skip
def main(hours: float, seed: int, rate: float, folder: Path, report: Path) -> None:
    """Run two servers, one of them with a redo log, under all protocols, formats and accidents.

    Exit status 1: an item or a job was lost, doubled, out of order or came again after its end; memory or descriptors
    drifted; a reply was invalid; a server ended by itself. The files are then left in place.
    """
    exit_on_signals()
    seed = seed or int.from_bytes(os.urandom(4), "big")
    place = Path(tempfile.mkdtemp(prefix="soak-", dir=folder))
    report.mkdir(parents=True, exist_ok=True)
    facts = machine.facts(place, [])
    with (report / "accidents.log").open("w") as log:

        def say(text: str) -> None:
            print(text, file=log, flush=True)
            if "WRONG" in text or "at rest" in text:
                click.echo(text)

        seen = play(place, hours * 3600, rate, seed, say, REDO_LOGS)
    program = Path(sys.executable).with_name("staniel")
    version = first_line([str(program), "--version"])
    text = markdown(seen, facts, hours * 3600, seed, version)
    (report / "report.md").write_text(text)
    for server in seen:
        (report / f"soak-{server.name}.svg").write_text(chart(server))
    click.echo(text)
    if any(server.all_wrong for server in seen):
        click.echo(f"the files are left in {place}")
        sys.exit(1)
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
