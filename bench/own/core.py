"""The cost of one operation in each layer, in instructions: a figure that does not depend on how busy the machine is.

Each layer is driven by itself, and the hub as a whole, without another client. The instructions are those of this
process outside the kernel. Valgrind counts them; without it there are only microseconds, and no comparison.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from staniel.bench.harness import chart
from staniel.bench.harness.contestant import ROOT
from staniel.bench.own.layers import LAYERS
from staniel.bench.peers import generator
from staniel.bench.peers.generator import CannotBuild
from staniel.compiled import BUILD as BUILD_NAME
from staniel.compiled import IS_COMPILED
from staniel.server.gc_policy import GcPolicy

BASELINE = Path(__file__).resolve().parent / "baseline.json"
BUILD = BASELINE.parent / ".build"
ROUNDS = 5
INSIDE = "STANIEL_BENCH_CORE_MARKS"  # the library with the marks, set in the process that valgrind runs
WORSE_MAX = 1.01
NOTHING_TO_COMPARE = 3  # the exit status, as packaging/audit.py's if no service can be asked
COUNTS_MAX = 3  # of a row that seems to have grown: two counts of the same code differ by half a percent
MARKS = """
#include <valgrind/callgrind.h>
void mark_begin(void) { CALLGRIND_TOGGLE_COLLECT; }
void mark_end(void) { CALLGRIND_TOGGLE_COLLECT; }
void mark_reset(void) { CALLGRIND_ZERO_STATS; }
void mark_dump(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
"""


class CannotCount(Exception):
    """The error when no instructions can be counted here. The text says what is missing."""


class Baseline(Struct, frozen=True):
    """The instructions of an operation, by row, and what they depend on: the build, the interpreter, compilers,
    libraries.
    """

    counted_with: str
    instructions: dict[str, int]


class Row(Struct, frozen=True):
    name: str
    us: float | None = None
    instructions: int | None = None
    before: int | None = None

    @property
    def is_worse(self) -> bool:
        return bool(self.instructions and self.before and self.instructions > WORSE_MAX * self.before)


# in microseconds


class Stopwatch:
    """A meter that adds up seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def start(self) -> None:
        self._began = time.perf_counter()

    def stop(self) -> None:
        self.seconds += time.perf_counter() - self._began


def microseconds(name: str) -> float:
    """Return an operation's time: the best of a few rounds, because noise only ever adds."""
    best = float("inf")
    with tempfile.TemporaryDirectory(prefix="bench-core-") as folder, LAYERS[name](folder) as work:
        work(Stopwatch())
        for _ in range(ROUNDS):
            watch = Stopwatch()
            count = work(watch)
            best = min(best, watch.seconds / count)
    return best * 1e6


# in instructions


class Marks:
    """A meter that tells valgrind when to count."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.PyDLL(library)  # does not release the interpreter, because the marks return at once
        self.start: Callable[[], None] = self._library.mark_begin
        self.stop: Callable[[], None] = self._library.mark_end

    def reset(self) -> None:
        self._library.mark_reset()

    def dump(self, name: str) -> None:
        self._library.mark_dump(name.encode())


def run_inside(library: str, names: Sequence[str]) -> None:
    """Run each row in the process that valgrind runs: once to warm up, once counted."""
    meter = Marks(library)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="bench-core-") as folder, LAYERS[name](folder) as work:
            work(meter)
            # As in a server that has started. Otherwise chance decides whether a full collection falls into so short a
            # count.
            gc.collect()
            GcPolicy().enable()
            meter.reset()
            count = work(meter)
            meter.dump(f"{name} {count}")


def counted(names: Sequence[str]) -> dict[str, int]:
    """Return the instructions of an operation, by row. Raises CannotCount."""
    if shutil.which("valgrind") is None:
        raise CannotCount("valgrind is not installed (apt-get install valgrind)")
    library = built_marks()
    with tempfile.TemporaryDirectory(prefix="bench-core-out-") as out:
        command = ["valgrind", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={out}/counts"]
        command += [
            sys.executable,
            "-m",
            "staniel.bench.own.core",
            *[word for name in names for word in ("--only", name)],
        ]
        environ = {**os.environ, INSIDE: str(library), "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotCount(f"valgrind ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
        return read_counts(Path(out))


def built_marks() -> Path:
    """Build the small library that talks to valgrind. Raises CannotCount."""
    BUILD.mkdir(parents=True, exist_ok=True)
    source = BUILD / "marks.c"
    source.write_text(MARKS)
    try:
        return generator.built((source,), BUILD / "marks.so", flags=generator.SHARED)
    except CannotBuild as error:
        raise CannotCount(str(error)) from error


def read_counts(folder: Path) -> dict[str, int]:
    """Read callgrind's dumps: each names its row and its operations in the trigger that made it."""
    found = {}
    for path in folder.iterdir():
        text = path.read_text()
        _, _, trigger = text.partition("Client Request: ")
        _, _, totals = text.partition("\ntotals: ")
        name, _, count = trigger.partition("\n")[0].rpartition(" ")
        if name in LAYERS and totals:
            found[name] = int(totals.split()[0]) // int(count)
    return found


# what is shown


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'an operation of 1 KB':<40}{'us':>8}{'instructions':>14}{'baseline':>10}{'':>8}"]
    for row in rows:
        text = f"{row.name:<40}" + ("-".rjust(8) if row.us is None else f"{row.us:>8.2f}")
        if row.instructions is not None:
            text += f"{row.instructions:>14,}"
            if row.before:
                worse = "  WORSE" if row.is_worse else ""
                text += f"{row.before:>10,}{row.instructions / row.before - 1:>+8.1%}{worse}"
        lines.append(text)
    return "\n".join(lines)


def interpreter() -> str:
    return f"{platform.python_implementation()} {platform.python_version()} {platform.machine()}"


def counted_with() -> str:
    """Return what instructions depend on, except our own code. The hash of the compiled modules' sources is left out,
    because they are our code.
    """
    parts = [BUILD_NAME, interpreter(), sys.version.partition("[")[2].rstrip("]"), " ".join(platform.libc_ver())]
    if IS_COMPILED:
        parts += [version_of(generator.COMPILER), f"Cython {metadata.version('cython')}"]
    return ", ".join(parts)


def version_of(compiler: str) -> str:
    """Return the first line of the compiler's version."""
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return f"no {compiler}"
    return done.stdout.partition("\n")[0]


def baselines() -> list[Baseline]:
    return msgspec.json.decode(BASELINE.read_bytes(), type=list[Baseline]) if BASELINE.exists() else []


def baseline() -> Baseline:
    """Return the baseline of this environment; empty if there is none, because other instructions are not
    comparable.
    """
    mine = counted_with()
    for kept in baselines():
        if kept.counted_with == mine:
            return kept
    click.echo(f"no baseline was counted with {mine}: there is nothing to compare with", err=True)
    return Baseline(mine, {})


def update_baseline(known: Baseline, rows: Sequence[Row]) -> None:
    """Store the counts. Rows that were not counted now stay as they are."""
    counts = {row.name: row.instructions for row in rows if row.instructions}
    others = [kept for kept in baselines() if kept.counted_with != known.counted_with]
    kept = [*others, Baseline(known.counted_with, {**known.instructions, **counts})]
    BASELINE.write_bytes(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")


def checked(names: Sequence[str], known: Baseline) -> list[Row]:
    """Count only. Count a row that seems to have grown again, and use the least count. Raises CannotCount."""
    rows: dict[str, Row] = {}
    for _ in range(COUNTS_MAX):
        asked = [name for name in names if name not in rows or rows[name].is_worse]
        for name, count in counted(asked).items() if asked else ():
            least = min(count, rows[name].instructions or count) if name in rows else count
            rows[name] = Row(name, None, least, known.instructions.get(name))
    return list(rows.values())


def measured(names: Sequence[str], known: Baseline) -> list[Row]:
    counts: dict[str, int] = {}
    try:
        counts = counted(names)
    except CannotCount as why:
        click.echo(f"microseconds only: {why}", err=True)
    before = known.instructions
    return [Row(name, round(microseconds(name), 3), counts.get(name), before.get(name)) for name in names]


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(LAYERS)), help="A row; may be given again.")
@click.option("--check", is_flag=True, help="Count only, rows that seem to have grown three times; needs valgrind.")
@click.option("--update", is_flag=True, help="Make these figures the baseline.")
@click.option("--chart", "chart_file", type=click.Path(dir_okay=False, path_type=Path), help="Draw it here, as SVG.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the rows here.")
def main(only: tuple[str, ...], check: bool, update: bool, chart_file: Path | None, json_file: Path | None) -> None:
    """Count the cost of each layer.

    Exit status: 1 if a row costs over 1 % more instructions than its baseline, 0 if none does. With --check 3 if a row
    has no baseline of this build that was counted with the compiler and libraries of this machine.
    The build is the one that the server would run: the compiled one if there is one, else plain Python.
    """
    names = only or tuple(LAYERS)
    if library := os.environ.get(INSIDE):
        run_inside(library, names)
        return
    known = baseline()
    if check and not update and not set(names) <= set(known.instructions):
        sys.exit(NOTHING_TO_COMPARE)
    try:
        rows = checked(names, known) if check else measured(names, known)
    except CannotCount as why:
        raise click.ClickException(str(why)) from None
    click.echo(table(rows))
    if update:
        update_baseline(known, rows)
    if chart_file:
        shown = [(row.name, float(row.instructions)) for row in rows if row.instructions]
        chart_file.write_text(chart.amounts(f"Outside the kernel, {interpreter()}", shown, "instructions an operation"))
    if json_file:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
    if not update and any(row.is_worse for row in rows):
        click.echo("a row is WORSE: make it cheaper, or say in the commit why it costs more and run this with --update")
        sys.exit(1)


if __name__ == "__main__":
    main()
