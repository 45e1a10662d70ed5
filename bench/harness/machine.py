"""Facts about the machine that a reader needs before believing a figure, and warnings if figures may mislead."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from staniel.bench.harness.contestant import Contestant, version

MOUNTS = Path("/proc/self/mounts")
CPU_INFO = Path("/proc/cpuinfo")
STAT = Path("/proc/stat")
ONE_CORE = "only one core: server and load generator share it, so latencies and ratios say little"
OTHERS_CORES_MAX = 0.15


class Machine(Struct, frozen=True):
    """The facts at the beginning of the run."""

    date: str
    cpu: str
    cores: int
    kernel: str
    python: str
    folder: str
    file_system: str
    load_average_1m: float
    versions: dict[str, str]


def facts(folder: Path, contestants: Sequence[Contestant]) -> Machine:
    return Machine(
        date=time.strftime("%Y-%m-%d %H:%M:%S %z"),
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        folder=str(folder),
        file_system=file_system(folder, MOUNTS.read_text()),
        load_average_1m=round(os.getloadavg()[0], 2),
        versions={one.name: version(one) for one in contestants},
    )


def _cpu_model() -> str:
    for line in CPU_INFO.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def file_system(folder: Path, mounts: str) -> str:
    """Return the type of the file system that holds `folder`, from the text of /proc/self/mounts; the last match is on
    top.
    """
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        _, point, this_kind, *_ = line.split()
        point = point.replace("\\040", " ")
        if len(point) >= len(best) and folder.resolve().is_relative_to(point):
            best, kind = point, this_kind
    return kind


def warnings(machine: Machine) -> list[str]:
    """Return the reasons why these figures may mislead."""
    found = []
    if machine.file_system in {"tmpfs", "ramfs"}:
        found.append(f"{machine.folder} is in memory ({machine.file_system}): fsync means nothing there; choose --dir")
    if machine.cores < 2:
        found.append(ONE_CORE)
    return found


class Ticks(Struct, frozen=True):
    """The CPU time spent since boot by all processes, and since its start by this process and its ended children."""

    at_seconds: float
    whole_seconds: float
    own_seconds: float


def ticks() -> Ticks:
    """Read the CPU times. Kernel work for interrupts is left out on both sides: no process is charged for it."""
    user, nice, system, *_ = STAT.read_text().split("\n", 1)[0].split()[1:]
    whole = (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")
    return Ticks(time.monotonic(), whole, sum(os.times()[:4]))


def others_cores(before: Ticks, after: Ticks) -> float:
    """Return how many cores' worth of work other programs did between two readings."""
    strangers = (after.whole_seconds - before.whole_seconds) - (after.own_seconds - before.own_seconds)
    return max(0.0, strangers) / (after.at_seconds - before.at_seconds)


def busy_warning(others: float) -> list[str]:
    """Return a warning if other programs were busy, beyond a disk's kernel threads."""
    if others <= OTHERS_CORES_MAX:
        return []
    return [f"other programs used {others:.2f} cores meanwhile: believe no ratio before its spread, and run it again"]


def cores() -> tuple[int | None, int | None]:
    """Return a core for the server and another for the generator; two None if this process may use only one."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (None, None)
