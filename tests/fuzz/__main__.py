"""python -m tests.fuzz TARGET --seconds 60: coverage-guided fuzzing of one target, with what was found in a folder.

atheris makes the bytes, and watches which lines of ours they reach.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from hashlib import sha1
from pathlib import Path

import atheris
import click

os.environ["STANIEL_PURE"] = "1"  # compiled modules have no lines to watch
WATCHED = ["staniel.protocol", "staniel.queues", "staniel.journal", "staniel.broker", "staniel.server"]
"""Whose lines tell whether an input reaches something new."""

with atheris.instrument_imports(include=WATCHED):
    from tests.fuzz.targets import TARGETS

INPUT_BYTES_MAX = 2048
INPUT_SECONDS_MAX = 10
MEMORY_BYTES_MAX = 2 << 30


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target", type=click.Choice(list(TARGETS)))
@click.option("--seconds", default=60, show_default=True, help="How long.")
@click.option(
    "--runs", default=-1, show_default=True, help="How many inputs at most; -1: as many as there is time for."
)
@click.option("--seed", default=1, show_default=True, help="Of the chances taken.")
@click.option("--corpus", type=click.Path(path_type=Path), help="Keep inputs that reach something new here.")
@click.option("--replay", type=click.Path(path_type=Path, exists=True), help="Try this one input, and no other.")
def main(target: str, seconds: int, runs: int, seed: int, corpus: Path | None, replay: Path | None) -> None:
    """Look for bytes that break a promise. Exits with 0 if there are none; else they are in a file crash-HASH."""
    check, seeds = TARGETS[target]
    if replay is not None:
        check(replay.read_bytes())
        return
    with tempfile.TemporaryDirectory(prefix=f"staniel-fuzz-{target}-") as folder:
        place = corpus or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for data in seeds():
            (place / sha1(data).hexdigest()).write_bytes(data)
        options = {
            "max_total_time": seconds, "runs": runs, "seed": seed, "timeout": INPUT_SECONDS_MAX, "print_final_stats": 1,
            "max_len": INPUT_BYTES_MAX, "rss_limit_mb": 0, "artifact_prefix": "crash-",
        }  # fmt: skip
        # Not libFuzzer's own limit: it asks for the peak, and Linux counts the parent's, before exec, as the child's.
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        atheris.Setup([sys.argv[0], *(f"-{name}={value}" for name, value in options.items()), str(place)], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
