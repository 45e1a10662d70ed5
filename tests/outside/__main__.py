"""`python -m tests.outside --operations 5000000 --seed N`: random journals read by both sides; a table of figures."""

from __future__ import annotations

import sys
import time
from random import Random

import click

from tests.outside.held import differences
from tests.outside.made import MAKERS, make

OPERATIONS_MAX = 120  # of one journal
SHOWN_MAX = 50


class Figures:
    """Of one format."""

    def __init__(self) -> None:
        self.journals = self.operations = self.damaged = 0
        self.wrong: list[str] = []


def trial(format: str, seed: int) -> tuple[int, bool, list[str]]:
    """(operations, whether the journal was damaged, what is wrong)."""
    random = Random(f"{format} {seed}")
    made = make(format, random, random.randrange(1, OPERATIONS_MAX))
    wrong = differences(made, random)
    return made.operations, made.files != made.whole, [f"{format}, seed {seed}: {line}" for line in wrong]


def run(operations: int, seed: int, shows: bool = False) -> dict[str, Figures]:
    """As many operations, a third of them in each format."""
    figures = {format: Figures() for format in MAKERS}
    for format, each in figures.items():
        began_s, at = time.monotonic(), seed
        while each.operations < operations // len(figures):
            count, is_damaged, wrong = trial(format, at)
            each.operations += count
            each.journals += 1
            each.damaged += is_damaged
            each.wrong += wrong
            at += 1
            if shows and each.journals % 5000 == 0:
                seconds = time.monotonic() - began_s
                click.echo(f"{format}: {each.operations} operations, {len(each.wrong)} wrong, {seconds:.0f} s")
    return figures


@click.command()
@click.option("--operations", type=int, default=1_000_000, show_default=True, help="Records, of all formats together.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the first journal.")
def main(operations: int, seed: int) -> None:
    """Exit status 1 if the server and the readers differ."""
    figures = run(operations, seed, shows=True)
    for format, each in figures.items():
        click.echo(
            f"{format}: {each.operations} operations in {each.journals} journals, {each.damaged} of them damaged, "
            f"{len(each.wrong)} differences"
        )
    wrong = [line for each in figures.values() for line in each.wrong]
    click.echo("\n".join(wrong[:SHOWN_MAX]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
