"""The load generator: it is built from queue_load.c and run against a port; its line of JSON is read and judged."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec
from msgspec import Struct

from staniel.bench.harness.process import child_setup

SOURCE = Path(__file__).resolve().parent / "queue_load.c"
PARTS = (SOURCE, *sorted(SOURCE.parent.glob("wire_*.h")))
BUILD = SOURCE.parent / ".build"
COMPILER = os.environ.get("CC", "cc")
SHARED = ("-shared", "-fPIC")
NO_COMPILER = "{source} needs a C compiler: install cc (gcc or clang), or set CC to one"

IDLE_MS = 5_000
TIMEOUT_SECONDS = 60


class CannotBuild(Exception):
    """The error when the compiler is missing, or refuses the source."""


class GeneratorFailed(Exception):
    """The error when the generator makes no report: it could not connect, or its arguments were wrong."""


class Latency(Struct, frozen=True):
    """Microseconds, over `n` requests."""

    n: int
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float


class Report(Struct, frozen=True):
    """The generator's own figures. `ops` counts items put, or items received once; `ops_per_s` is over `seconds`."""

    mode: str
    ops: int
    seconds: float
    ops_per_s: float
    put_failures: int
    misses: int
    errors: int
    lost: int
    duplicated: int
    corrupted: int
    foreign: int
    stalled: bool
    timed_out: bool
    client_cpu: float
    server_cpu: float = -1.0
    server_rss_kb: int = -1
    put_us: Latency | None = None
    get_us: Latency | None = None
    e2e_us: Latency | None = None


def build(folder: Path = BUILD, compiler: str = COMPILER) -> Path:
    """Compile the generator into `folder` unless a newer one is there. Return its path. Raises CannotBuild."""
    return built(PARTS, folder / "queue_load", compiler)


def built(sources: tuple[Path, ...], program: Path, compiler: str = COMPILER, flags: tuple[str, ...] = ()) -> Path:
    """Compile `sources`, of which the first includes the others, to `program`, unless that is newer. Return its path.
    Several processes may do so at a time: each puts a whole program in place. Raises CannotBuild.
    """
    if program.exists() and program.stat().st_mtime > max(part.stat().st_mtime for part in sources):
        return program
    if shutil.which(compiler) is None:
        raise CannotBuild(NO_COMPILER.format(source=sources[0].name))
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        fresh = Path(folder, program.name)
        command = [compiler, "-O2", "-Wall", "-Wextra", *flags, "-o", str(fresh), str(sources[0])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CannotBuild(f"{compiler} refused {sources[0].name}: {done.stderr.strip()}")
        return fresh.rename(program)


def run(program: Path, args: tuple[str, ...], port: int, server_pid: int, core: int | None) -> Report:
    """Run the generator once against the server on `port`, on `core` if given. Raises GeneratorFailed without a
    report.
    """
    limits = ("--idle-ms", str(IDLE_MS), "--timeout", str(TIMEOUT_SECONDS))
    command = [str(program), "--port", str(port), "--server-pid", str(server_pid), *limits, *args]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False,
        timeout=TIMEOUT_SECONDS + IDLE_MS / 1000, preexec_fn=child_setup(core),
    )  # fmt: skip
    try:
        return msgspec.json.decode(done.stdout, type=Report)
    except msgspec.DecodeError:
        raise GeneratorFailed(f"the load generator made no report: {done.stderr.strip()[-300:]}") from None


def wrongs(report: Report, ops_wanted: int) -> list[str]:
    """Return all reasons, in words, that make a run worthless; [] if there are none."""
    counts = {
        "lost": report.lost,
        "duplicated": report.duplicated,
        "corrupt": report.corrupted,
        "not of this run": report.foreign,
        "refused": report.put_failures,
    }
    found = [f"{count} items {what}" for what, count in counts.items() if count]
    if report.errors:
        found.append(f"{report.errors} errors")
    if report.stalled:
        found.append(f"no progress for {IDLE_MS} ms")
    if report.timed_out:
        found.append(f"not done in {TIMEOUT_SECONDS} s")
    if not found and report.ops != ops_wanted:
        found.append(f"{report.ops} of {ops_wanted} items arrived")
    return found
