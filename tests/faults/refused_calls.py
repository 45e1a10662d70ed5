"""Each call that a server and the tools make on files, refused with each errno, one after the other.

`python -m tests.faults.refused_calls` walks the calls and kinds of files that `traced_calls.py` finds, or a share of
them, and says what each cost; a test walks a sample. The walk can be interrupted and gone on with: `--results`.

Each trial has a copy of one spool and a real server, of which the chosen calls on the chosen files are refused while it
starts, while it serves, or while it stops, or tools that read the spool. Checked of each: the server goes on, or ends
with one line that names the reason; a mark of a failed sync is left by a failed sync alone; and a start without
refusals has everything that was answered, once.
"""

from __future__ import annotations

import copy
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from enum import Enum
from pathlib import Path
from random import Random

import click
from msgspec import Struct, json

from tests.faults.armed import Armed
from tests.faults.chores import CONFIG, Chores, HungUp
from tests.faults.preloaded import build
from tests.faults.traced_calls import KINDS, SYNCS, Combination, Phase, Tracer, run_tools, traced
from tests.support import process

REFUSED = "EACCES EPERM EXDEV ENAMETOOLONG EFBIG EBUSY ENOSYS ENOLCK EAGAIN"
NO_ROOM = "ENOSPC EDQUOT"
SHORT = "EMFILE ENFILE ENOMEM"
BROKEN = "EIO EROFS ESTALE"
GROUPS: dict[str, list[str]] = {
    "open": [REFUSED, NO_ROOM, SHORT, BROKEN],
    "mkdir": [f"{REFUSED} {SHORT}", NO_ROOM, BROKEN],
    "rename": [f"{REFUSED} {SHORT}", NO_ROOM, BROKEN],
    "unlink": [f"{REFUSED} {SHORT}", BROKEN],
    "write": [f"{REFUSED} {SHORT} {BROKEN}", NO_ROOM],
    "pwrite": [f"{REFUSED} {SHORT} {BROKEN}", NO_ROOM],
    "fallocate": [f"{REFUSED} {SHORT} {BROKEN}", NO_ROOM],
    "flock": [f"{REFUSED.removesuffix(' EAGAIN')} {SHORT} {BROKEN}", "EAGAIN"],
    SYNCS: [f"{REFUSED.replace(' EPERM', '').replace(' ENOSYS', '')} {SHORT} {BROKEN} {NO_ROOM}", "EPERM ENOSYS"],
}
"""Errnos that the same branches of the code handle, by call: `NO_ROOM`, `SHORT` and `BROKEN` are sets of
`journal/disk/fs.py`, which some calls ask for and others do not; `OsFs.sync_all` and `OsFs.hold` look at single ones.
A sample draws any errno of a group, and must agree.
"""
OTHERS = [f"{REFUSED} {BROKEN}", SHORT]
"""Of the calls that only read."""
END_SECONDS_MAX = 30.0
WAIT_SECONDS_MAX = 90.0
LOCK_ERRNOS = {errno.EAGAIN}  # of flock: the lock is another's
CHAIN_TRIALS = 8
EVENT_WORDS = ("warning", "error")


class Cost(Enum):
    """What a refusal costs, the least first."""

    NOTHING = "nothing"
    FEATURE = "what the call was for"
    QUEUE = "its queue"
    COMMAND = "that command"
    START = "the start"
    PROCESS = "the process"


class Trial(Struct, frozen=True):
    """`group`: of `errnos_of`. `errno`: the name of the one that is walked."""

    combination: Combination
    group: str
    errno: str

    @property
    def name(self) -> str:
        call, kind, phase = self.combination
        return f"{call} on {kind} {phase.value}: {self.errno}"


class Judged(Struct):
    """What a trial cost, the events that the log has of it, the last line of what ended, and what is wrong."""

    cost: Cost
    events: list[str] = []
    said: str = ""
    wrong: list[str] = []


class Walked(Struct):
    """A trial as a line of the file of results."""

    call: str
    kind: str
    phase: Phase
    group: str
    errno: str
    judged: Judged


def trials(combinations: list[Combination], random: Random) -> list[Trial]:
    """One errno of each group for each combination."""
    return [
        Trial(each, group, random.choice(group.split()))
        for each in combinations
        for group in GROUPS.get(each.call, OTHERS)
    ]


class Prepared:
    """A spool that each trial gets a copy of, and what its server has answered."""

    def __init__(self, folder: Path, preload: dict[str, str]) -> None:
        self.spool = folder / "template"
        self.preload = preload
        folder.mkdir(exist_ok=True)
        with Armed(folder, preload, config=CONFIG.format(redo="1MB")) as server:
            self._chores = Chores(server)
            self._chores.do()
            server.kill()
            os.rename(server.spool, self.spool)
        (self.spool / ".staniel" / "ballast").unlink()

    def server(self, folder: Path) -> tuple[Armed, Chores]:
        """A server of a copy, not started, and chores that know what it has."""
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.spool, folder / "spool")
        server = Armed(folder, self.preload, config=CONFIG.format(redo="1MB"))
        chores = Chores(server)
        known = copy.deepcopy((self._chores.ledgers, self._chores.jobs, self._chores.number))
        chores.ledgers, chores.jobs, chores.number = known
        return server, chores


def part_of(server: Armed, kind: str) -> str:
    """What paths of a kind contain."""
    return KINDS[kind].part.format(folder=server.folder.name)


def carry_out(server: Armed, chores: Chores, call: str, part: str, phase: Phase) -> Cost:
    """The server runs neither before nor behind it. Raises AssertionError where it neither goes on nor ends as it
    should.
    """
    if phase is Phase.START:
        server.fail(call, part)
        try:
            server.start()
        except AssertionError:
            assert server.wait(END_SECONDS_MAX) in (1, 2), "another exit code"
            return Cost.START
        server.mend()
    else:
        server.start()
    if phase is Phase.SERVICE:
        server.fail(call, part)
    try:
        chores.do()
        if phase is Phase.SERVICE:
            chores.do()
    except (HungUp, OSError):
        assert server.wait(END_SECONDS_MAX) == 1, "it has not ended"
        return Cost.PROCESS
    except AssertionError as error:
        if "what is to expire" not in str(error):
            raise
    if phase is not Phase.STOP:
        server.kill()
        return Cost.NOTHING
    server.fail(call, part)
    server.signal(signal.SIGTERM)
    return Cost.NOTHING if server.wait(END_SECONDS_MAX) == 0 else Cost.PROCESS


def use_tools(server: Armed, call: str, part: str) -> Judged:
    """Of tools that read a spool which no server has."""
    before = contents(server.spool)
    server.fail(call, part)
    ended = run_tools(server)
    server.mend()
    wrong = ["a traceback"] if any("Traceback" in each.stderr for each in ended) else []
    wrong += ["the spool has changed"] if contents(server.spool) != before else []
    failed = [each for each in ended if each.returncode]
    told = [line for each in failed for line in (each.stderr + each.stdout).splitlines() if line.strip()]
    reasons = [line for line in told if names_reason(line, server.code)]
    if failed and not reasons:
        wrong.append(f"no line names the reason: {told[-3:]}")
    return Judged(Cost.COMMAND if failed else Cost.NOTHING, [], reasons[0] if reasons else "", wrong)


def contents(spool: Path) -> dict[str, bytes]:
    """Of each file but locks, the reserve and the time of the last backup, by path."""
    kept = [path for path in spool.rglob("*") if not path.name.endswith("lock")]
    files = [path for path in kept if path.is_file() and path.name not in ("ballast", "last_backup")]
    return {str(path): path.read_bytes() for path in files}


class Chain:
    """Trials one after the other on one spool. What clients know is held against it at the end: if that is wrong, each
    trial is to be carried out anew, alone.
    """

    def __init__(self, folder: Path, prepared: Prepared) -> None:
        self.server, self._chores = prepared.server(folder)
        self._is_stopped = False

    def carry_out(self, trial: Trial) -> Judged:
        call, kind, phase = trial.combination
        server, chores, part = self.server, self._chores, part_of(self.server, kind)
        mark = server.spool / ".staniel" / "failed_sync"
        if mark.exists():  # the trial before was of a sync
            server.start()
            server.kill()
        server.code = getattr(errno, trial.errno)
        before = len(server.stderr)
        chores.refused.clear()
        if phase is Phase.TOOLS:
            if not self._is_stopped:
                server.start()
                server.stop()
            self._is_stopped = True
            found = use_tools(server, call, part)
        else:
            self._is_stopped = False
            try:
                cost = carry_out(server, chores, call, part, phase)
                found = judged(cost, server.stderr[before:], server.code, chores.refused)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                server.kill()
                said = server.stderr[before:]
                found = Judged(Cost.PROCESS, events_in(said), said[-400:], [f"{error!r}"[:300]])
        server.mend()
        if call != SYNCS and mark.exists():
            found.wrong.append("a mark of a failed sync")
        return found

    def end(self) -> list[str]:
        """What is wrong with what is there."""
        server, wrong = self.server, []
        try:
            server.start()
            wrong = self._chores.wrong()
            server.stop()
        except (AssertionError, subprocess.TimeoutExpired, OSError) as error:
            wrong = [f"the next start: {error}"[:400]]
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)
        return wrong


def judge(folder: Path, prepared: Prepared, chosen: list[Trial]) -> list[Judged]:
    """Carry the trials out in `folder`."""
    chain = Chain(folder / "chain", prepared)
    found = []
    for trial in chosen:
        found.append(chain.carry_out(trial))
        if found[-1].wrong:
            break  # what it left is not what the next one begins with
    wrong = chain.end()
    if wrong and len(found) > 1:
        return [each for trial in chosen for each in judge(folder, prepared, [trial])]
    found[-1].wrong += wrong
    rest = chosen[len(found) :]
    return [*found, *(judge(folder, prepared, rest) if rest else [])]


def names_reason(line: str, code: int) -> bool:
    """Whether a line says what the system's answer was; a lock that another has is told by its holder."""
    return os.strerror(code) in line or (code in LOCK_ERRNOS and "process" in line)


def events_in(said: str) -> list[str]:
    """The warnings and errors in what a server wrote, each once."""
    words = [line.split()[1:3] for line in said.splitlines() if len(line.split()) > 2]
    return sorted({word[1] for word in words if word[0] in EVENT_WORDS})


def judged(cost: Cost, said: str, code: int, refused: set[str]) -> Judged:
    """What is wrong with what a server wrote, `said`, and which of the smaller costs it was if it went on."""
    last = [line for line in said.splitlines() if line.startswith("staniel: ")]
    wrong = ["a traceback"] if "Traceback" in said else []
    events = events_in(said)
    if cost is not Cost.NOTHING:
        if len(last) != 1 or not names_reason(last[0], code):
            wrong.append(f"no line names the reason: {last or said[-300:]}")
    elif "journal.unreadable" in events or any("is not available" in each for each in refused):
        cost = Cost.QUEUE
    elif events or refused:
        cost = Cost.FEATURE
    return Judged(cost, events, last[-1] if last else "; ".join(sorted(refused))[:300], wrong)


@click.command()
@click.option("--share", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="Of all trials.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--only", default="", help="Those whose names contain this.")
@click.option("--part", default="0/1", show_default=True, help="I/N: each Nth piece, from the Ith on.")
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    help="A file of lines of JSON: trials in it are left out, the others added.",
)
def main(share: float, seed: int, only: str, part: str, results: Path | None) -> None:
    """Refuse calls of real servers and tools; exit status 1 if one of them did not bear it."""
    first, step = map(int, part.split("/"))
    process.START_SECONDS_MAX = WAIT_SECONDS_MAX  # several of these may share a machine
    bad = 0
    with tempfile.TemporaryDirectory() as built:
        preload = build("failing_calls.c", Path(built))
        prepared = Prepared(Path(built) / "prepared", preload)
        known = sorted(traced(Tracer(Path(built)), prepared.server))
        chosen = [trial for trial in trials(known, Random(seed)) if only in trial.name]
        chosen = Random(seed).sample(chosen, round(share * len(chosen)))
        walked = {(each.call, each.kind, each.phase, each.group) for each in read_results(results)}
        chosen = [trial for trial in chosen if (*trial.combination, trial.group) not in walked]
        chosen.sort(key=lambda trial: trial.combination.phase is Phase.TOOLS)
        pieces = [chosen[at : at + CHAIN_TRIALS] for at in range(0, len(chosen), CHAIN_TRIALS)][first::step]
        for piece in pieces:
            for trial, found in zip(piece, judge(Path(built), prepared, piece), strict=True):
                bad += bool(found.wrong)
                tell(trial, found, results)
    print(f"{sum(map(len, pieces))} trials, {bad} wrong")
    sys.exit(bool(bad))


def read_results(path: Path | None) -> list[Walked]:
    """What has been walked; the later line counts."""
    if path is None or not path.exists():
        return []
    found = [json.decode(line, type=Walked) for line in path.read_bytes().splitlines()]
    return list({(each.call, each.kind, each.phase, each.group): each for each in found}.values())


def tell(trial: Trial, found: Judged, results: Path | None) -> None:
    wrong = "".join(f"\n   wrong: {each}" for each in found.wrong)
    print(f"{trial.name}: {found.cost.value}; {' '.join(found.events)}; {found.said}{wrong}", flush=True)
    if results is not None:
        call, kind, phase = trial.combination
        with results.open("ab") as file:
            file.write(json.encode(Walked(call, kind, phase, trial.group, trial.errno, found)) + b"\n")


if __name__ == "__main__":
    main()
