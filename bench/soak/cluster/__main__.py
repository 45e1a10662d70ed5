"""The command `python -m staniel.bench.soak.cluster`."""

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
from staniel.bench.harness.small_disk import CannotMount
from staniel.bench.soak.cluster.network import CannotJoin
from staniel.bench.soak.cluster.run import markdown, play


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", type=click.FloatRange(min=0.05), default=60.0, show_default=True, help="How long.")
@click.option("--seed", type=int, default=0, help="0, the default: a new one each time.")
@click.option("--rate", type=click.FloatRange(min=1), default=100, show_default=True, help="Puts a second, about.")
@click.option("--lease", type=click.IntRange(2), default=5, show_default=True, help="Of members, in seconds.")
@click.option(
    "--dir", "folder", type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    default=Path(tempfile.gettempdir()), show_default=True, help="Where the spools are made.",
)  # fmt: skip
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), default=Path("cluster-report.md"), show_default=True,
    help="The report; the log of accidents goes beside it.",
)  # fmt: skip
def main(minutes: float, seed: int, rate: float, lease: int, folder: Path, report: Path) -> None:
    """Run three members and three etcds, each in a network of its own, under kills, stops, cuts, and slow and full
    disks, and judge each item. Needs root, etcd, iptables, iproute2 and a C compiler.

    Exit status 1: an item was lost, came again after its confirmation, or was never put; the members did not get well
    after an accident; or a spool is not sound. The files are then left in place.
    """
    exit_on_signals()
    seed = seed or int.from_bytes(os.urandom(4), "big")
    place = Path(tempfile.mkdtemp(prefix="soak-cluster-", dir=folder))
    facts = machine.facts(place, [])
    with report.with_suffix(".log").open("w") as log:

        def say(text: str) -> None:
            print(text, file=log, flush=True)

        try:
            run = play(place, minutes * 60, seed, rate, lease, say)
        except (CannotJoin, CannotMount, OSError) as error:
            raise click.ClickException(str(error)) from None
    program = Path(sys.executable).with_name("staniel")
    version = first_line([str(program), "--version"])
    text = markdown(run, f"{facts.cores} cores of {facts.cpu}, {facts.file_system}", seed, version)
    report.write_text(text)
    click.echo(text)
    if run.wrong:
        click.echo(f"the files are left in {place}")
        sys.exit(1)
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
