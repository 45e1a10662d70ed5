"""python -m tests.fuzz.mutate --seconds 60: inputs changed at random, where coverage-guided fuzzing cannot be had.

atheris brings a sanitizer of its own, so it does not run beside gcc's: `make sanitized ARGS='-m tests.fuzz.mutate'`.
"""

from __future__ import annotations

from random import Random
from time import monotonic

import click

from tests.fuzz.targets import TARGETS

INPUT_BYTES_MAX = 4096
ODD = (b"\r\n", b"\n", b" ", b"\0", b"\xff", b"-1", b"0", b"%d" % (1 << 32), b"%d" % ((1 << 63) - 1), b"%d" % (1 << 64))


def mutated(data: bytes, others: list[bytes], rng: Random) -> bytes:
    """`data` with a few bytes flipped, left out, doubled, or taken from another input."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(found) + 1)
        to = min(len(found), at + rng.choice((1, 1, 2, 8, 64)))
        how = rng.randrange(6)
        if how == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            del found[at:to]
        elif how == 2:
            found[at:at] = found[at:to] * rng.choice((1, 2, 20))
        elif how == 3:
            found[at:at] = rng.choice(ODD)
        elif how == 4:
            found[at:to] = rng.choice(ODD)
        else:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            found[at:to] = other[start : start + rng.choice((4, 32, 256))]
    return bytes(found[:INPUT_BYTES_MAX])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("targets", nargs=-1, type=click.Choice(list(TARGETS)))
@click.option("--seconds", default=60, show_default=True, help="For all targets together.")
@click.option("--seed", default=1, show_default=True, help="Of the chances taken.")
def main(targets: tuple[str, ...], seconds: int, seed: int) -> None:
    """Change inputs and try them, TARGETS in turn (all of them if none is named). Raises what a target finds."""
    names = targets or tuple(TARGETS)
    for name in names:
        check, seeds, _ = TARGETS[name]
        corpus = [data for data in seeds() if data]
        rng = Random(f"{seed} {name}")
        until, tried = monotonic() + seconds / len(names), 0
        while monotonic() < until:
            data = mutated(rng.choice(corpus), corpus, rng)
            try:
                check(data)
            except BaseException:
                click.echo(f"{name}: {data!r}", err=True)
                raise
            tried += 1
            if rng.random() < 0.02:
                corpus[rng.randrange(len(corpus))] = data or b"\0"
        click.echo(f"{name}: {tried} inputs")


if __name__ == "__main__":
    main()
