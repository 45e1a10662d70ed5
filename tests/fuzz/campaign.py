"""make fuzz: every target for its share of the time, and a table of what that came to.

A target runs in a process of its own, `python -m tests.fuzz TARGET`; after a finding it goes on with other chances.
What reaches something new is kept in FOLDER/corpus, so that the next campaign begins there; what breaks a promise lies
in FOLDER/found/TARGET, with all that the last process said in FOLDER/said.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer

import click
from msgspec import Struct, field

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MIN = 5  # that are left: no other process is worth its start then
PROCESSES_MAX = 20  # of a target; one that breaks with each input says nothing new
SPARE_SECONDS = 120  # to start, to try what is in the corpus, and to say what was found
NO_INPUT = "no input was tried: give more --seconds"
WHY = re.compile(r"^(?:[\w.]*(?:Error|Exception|Violation|Exit|Interrupt)\b.*|==\d+== ERROR: .*)$", re.MULTILINE)
HEAD = f"{'target':<20}{'inputs':>12}{'core-seconds':>14}{'points':>9}{'corpus':>9}{'findings':>10}"


class Tally(Struct):
    """Of one target. `points`: how many places of the code were reached. `findings`: the file that breaks a promise,
    and how. `trouble`: why the target could not be run.
    """

    target: str
    inputs: int = 0
    core_seconds: float = 0.0
    points: int = 0
    corpus: int = 0
    findings: list[str] = field(default_factory=list)
    trouble: str = ""

    def row(self) -> str:
        counts = f"{self.inputs:>12,}{self.core_seconds:>14,.0f}{self.points:>9,}{self.corpus:>9,}"
        return f"{self.target:<20}{counts}{len(self.findings):>10,}"


def fuzz(target: str, folder: Path, seconds: float, seed: int) -> Tally:
    """Run one target for so long."""
    tally = Tally(target)
    corpus, found, said = folder / "corpus" / target, folder / "found" / target, folder / "said" / target
    found.mkdir(parents=True, exist_ok=True)
    said.parent.mkdir(parents=True, exist_ok=True)
    until, processes = time.monotonic() + seconds, 0
    while not processes or until - time.monotonic() > SECONDS_MIN:
        left = max(1, int(until - time.monotonic()))
        command = [sys.executable, "-m", "tests.fuzz", target, "--seconds", str(left), "--seed", str(seed)]
        before = {path: path.stat().st_mtime_ns for path in found.iterdir()}
        why = _run([*command, "--corpus", str(corpus), "--found", str(found)], left + SPARE_SECONDS, said, tally)
        written = sorted(path for path in found.iterdir() if before.get(path) != path.stat().st_mtime_ns)
        tally.findings += [f"{path}: {why}" for path in written if path not in before]
        if why and not written:
            tally.trouble = why
        processes += 1
        if not why or tally.trouble or processes >= PROCESSES_MAX:
            break
        seed += 1_000
    if not tally.inputs and not tally.trouble and not tally.findings:
        tally.trouble = NO_INPUT
    tally.corpus = sum(1 for _ in corpus.iterdir()) if corpus.is_dir() else 0
    return tally


def _run(command: list[str], seconds: float, said: Path, tally: Tally) -> str:
    """One process, `seconds` at most; why it did not end as it should, "" if it did."""
    with said.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        alarm = Timer(seconds, process.kill)
        alarm.start()
        _, status, used = os.wait4(process.pid, 0)
        is_late = not alarm.is_alive()
        alarm.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
    text = said.read_text("utf-8", "replace")
    tally.core_seconds += used.ru_utime + used.ru_stime
    done = re.findall(r"^(?:stat::number_of_executed_units: |#)(\d+)", text, re.MULTILINE)
    tally.inputs += max(map(int, done), default=0)
    tally.points = max([tally.points, *map(int, re.findall(r" cov: (\d+) ", text))])
    if not process.returncode:
        return ""
    if is_late:
        return f"killed {SPARE_SECONDS} s after its end: an input that takes for ever, or a machine that is busy"
    why = WHY.search(text)
    return (why[0] if why else text.strip().rpartition("\n")[2] or f"exit status {process.returncode}")[:300]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("targets", nargs=-1, type=click.Choice(list(TARGETS)))
@click.option("--seconds", default=600, show_default=True, help="For all targets together, of a clock.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="How many targets at a time.")
@click.option("--seed", default=1, show_default=True, help="Of the chances taken.")
@click.option("--folder", default=".fuzz", show_default=True, type=click.Path(path_type=Path), help="For all files.")
def main(targets: tuple[str, ...], seconds: int, jobs: int, seed: int, folder: Path) -> None:
    """Fuzz TARGETS, all if none is named, for equal shares of the time. Exits with 1 if a promise was broken."""
    names = targets or tuple(TARGETS)
    jobs = min(jobs, len(names))
    share, folder = seconds * jobs / len(names), folder.absolute()
    tallies = []
    click.echo(HEAD)
    with ThreadPoolExecutor(jobs) as pool:
        for tally in pool.map(lambda name: fuzz(name, folder, share, seed), names):
            click.echo(tally.row())
            tallies.append(tally)
    total = Tally("all", sum(each.inputs for each in tallies), sum(each.core_seconds for each in tallies))
    total.corpus = sum(each.corpus for each in tallies)
    total.findings = [finding for each in tallies for finding in each.findings]
    click.echo(total.row())
    told = [*total.findings, *(f"{each.target} could not be run: {each.trouble}" for each in tallies if each.trouble)]
    for line in told:
        click.echo(line)
    sys.exit(1 if told else 0)


if __name__ == "__main__":
    main()
