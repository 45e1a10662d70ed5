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
@click.argument("targets", nargs=-1, required=True, type=click.Choice(list(TARGETS)))
@click.option("--seconds", default=60, show_default=True, help="How long, each.")
@click.option(
    "--runs", default=-1, show_default=True, help="How many inputs at most; -1: as many as there is time for."
)
@click.option("--brief", is_flag=True, help="As many inputs as a run of the tests tries.")
@click.option("--seed", default=1, show_default=True, help="Of the chances taken.")
@click.option("--corpus", type=click.Path(path_type=Path), help="Keep inputs that reach something new here.")
@click.option("--found", default=".", show_default=True, help="Folder for what breaks a promise.")
@click.option("--replay", type=click.Path(path_type=Path, exists=True), help="Try this one input, and no other.")
def main(
    targets: tuple[str, ...],
    seconds: int,
    runs: int,
    brief: bool,
    seed: int,
    corpus: Path | None,
    found: str,
    replay: Path | None,
) -> None:
    """Look for bytes that break a promise of TARGETS, one after the other. Exits with 0 if there are none; else they
    are in a file crash-HASH or timeout-HASH.
    """
    if replay is not None:
        for target in targets:
            TARGETS[target].check(replay.read_bytes())
        return
    options = {
        "max_total_time": seconds, "runs": runs, "seed": seed, "timeout": INPUT_SECONDS_MAX, "print_final_stats": 1,
        "max_len": INPUT_BYTES_MAX, "rss_limit_mb": 0, "artifact_prefix": f"{found}/",
    }  # fmt: skip
    # Not libFuzzer's own limit: it asks for the peak, and Linux counts the parent's, before exec, as the child's.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    failed = 0
    for target in targets:
        if brief:
            options["runs"] = TARGETS[target].brief_runs + len(list(TARGETS[target].seeds()))
        print(f"target: {target}", file=sys.stderr, flush=True)
        # A process each: libFuzzer ends its own. What is imported is instrumented once.
        if not (pid := os.fork()):
            fuzz(target, options, corpus)
        failed += os.waitpid(pid, 0)[1] != 0
    sys.exit(1 if failed else 0)


def fuzz(target: str, options: dict[str, object], corpus: Path | None) -> None:
    """Ends the process."""
    check, seeds, _ = TARGETS[target]
    with tempfile.TemporaryDirectory(prefix=f"staniel-fuzz-{target}-") as folder:
        place = corpus or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for data in seeds():
            (place / sha1(data).hexdigest()).write_bytes(data)
        atheris.Setup([sys.argv[0], *(f"-{name}={value}" for name, value in options.items()), str(place)], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
