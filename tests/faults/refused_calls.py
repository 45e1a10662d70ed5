"""Each call that a server makes on its files, refused with each errno of a list, one after the other.
`python -m tests.faults.refused_calls` walks all of them, or a share, and says what each cost; a test walks a sample.

Each trial has a real server, of which the chosen calls on the chosen files are refused at a start or while it serves,
for good, and everything that makes it touch each kind of its files (`chores.py`). Checked of each: it goes on, or ends
with one line that names the reason; a mark of a failed sync is left by a failed sync alone; and a start without
refusals has everything that was answered, once.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from enum import Enum
from pathlib import Path
from random import Random

import click
from msgspec import Struct

from tests.faults.armed import Armed
from tests.faults.chores import CONFIG, Chores, HungUp
from tests.faults.preloaded import build

ERRNOS = [
    *("EACCES", "EPERM", "EROFS", "EXDEV", "ENAMETOOLONG", "EFBIG", "ESTALE", "EBUSY"),
    *("ENOSYS", "ENOLCK", "EDQUOT", "ENOSPC", "EMFILE", "ENOMEM", "EAGAIN", "EIO"),
]
SYNCS = "fsync fdatasync syncfs"
KINDS = {
    "a Kestrel journal": "/spool/q",
    "a libkestrel queue's file": "/spool/stream",
    "the command log": "/.staniel/cmdlog",
    "a sidecar": "/.staniel/segments",
    "the redo log": "/.staniel/redo",
    "intents": "/.staniel/intents",
    "an undo file": "/.staniel/undo",
    "the audit log": "/.staniel/audit",
    "status, pauses": "/.staniel/paused",
    "any file": "",
}
"""What is in their paths; "": in the spool."""
CALLS = [
    *("open", "read", "write", "pwrite", "rename", "unlink", "link", "mkdir", "list", "stat", "statfs"),
    *("ftruncate", "fallocate", "flock", SYNCS),
]
"""Those that `strace -f` finds in such a session."""
END_SECONDS_MAX = 30.0


class Phase(Enum):
    START = "at a start"
    SERVICE = "in service"


class Outcome(Enum):
    GOES_ON = "goes on"
    REFUSES = "the start"
    ENDS = "the process"


class Trial(Struct, frozen=True):
    """`errno`: its name. `kind`: of KINDS."""

    call: str
    kind: str
    errno: str
    phase: Phase

    @property
    def name(self) -> str:
        return f"{self.call} on {self.kind}: {self.errno} {self.phase.value}"


def trials() -> list[Trial]:
    """All of them."""
    return [Trial(c, k, e, p) for c in CALLS for k in KINDS for e in ERRNOS for p in Phase]


class Judged(Struct):
    """What a trial cost, the last line of the server that ended, and what is wrong about it."""

    outcome: Outcome
    said: str = ""
    wrong: list[str] = []


def serve_refused(server: Armed, chores: Chores, trial: Trial) -> Outcome:
    """Raises AssertionError where the server neither goes on nor ends as it should."""
    part = KINDS[trial.kind] or str(server.spool)
    if trial.phase is Phase.START:
        server.kill()
        server.fail(trial.call, part)
        try:
            server.start()
        except AssertionError:
            assert server.wait(END_SECONDS_MAX) in (1, 2), "another exit code"
            return Outcome.REFUSES
    else:
        server.fail(trial.call, part)
    try:
        chores.do()
        chores.do()
    except (HungUp, OSError):
        assert server.wait(END_SECONDS_MAX) == 1, "it has not ended"
        return Outcome.ENDS
    except AssertionError as error:
        if "what is to expire" not in str(error):
            raise
    server.signal(signal.SIGTERM)
    code = server.wait(END_SECONDS_MAX)
    return Outcome.GOES_ON if code == 0 else Outcome.ENDS


def judge(folder: Path, preload: dict[str, str], trial: Trial) -> Judged:
    """Carry `trial` out in `folder`."""
    config = CONFIG.format(redo="1MB")
    with Armed(folder, preload, config=config, code=getattr(errno, trial.errno)) as server:
        chores = Chores(server)
        chores.do()
        before = len(server.stderr)
        try:
            outcome = serve_refused(server, chores, trial)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            server.kill()
            return Judged(Outcome.ENDS, server.stderr[before:][-400:], [f"{error!r}"[:300]])
        said = server.stderr[before:]
        last = [line for line in said.splitlines() if line.startswith("staniel: ")]
        wrong = wrong_with(trial, outcome, said, last)
        if trial.call != SYNCS and (server.spool / ".staniel" / "failed_sync").exists():
            wrong.append("a mark of a failed sync")
        server.mend()
        try:
            server.start()
            wrong += chores.wrong()
            server.stop()
        except AssertionError as error:
            wrong.append(f"the next start: {error}"[:400])
        line = last[-1] if last else ""
        return Judged(outcome, line, wrong)


def wrong_with(trial: Trial, outcome: Outcome, said: str, last: list[str]) -> list[str]:
    """What is wrong with what a server wrote, `said`; `last`: the lines of it that give the reason for its end."""
    wrong = ["a traceback"] if "Traceback" in said else []
    reason = os.strerror(getattr(errno, trial.errno))
    if outcome is not Outcome.GOES_ON and (len(last) != 1 or reason not in last[0]):
        wrong.append(f"no line names the reason: {last or said[-300:]}")
    return wrong


@click.command()
@click.option("--share", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="Of all trials.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--only", default="", help="Those whose names contain this.")
def main(share: float, seed: int, only: str) -> None:
    """Refuse calls of real servers; exit status 1 if one of them did not bear it."""
    chosen = [t for t in trials() if only in t.name]
    chosen = Random(seed).sample(chosen, round(share * len(chosen)))
    bad = 0
    with tempfile.TemporaryDirectory() as built:
        preload = build("failing_calls.c", Path(built))
        for trial in chosen:
            with tempfile.TemporaryDirectory() as folder:
                found = judge(Path(folder), preload, trial)
            bad += bool(found.wrong)
            wrong = "".join(f"\n   wrong: {each}" for each in found.wrong)
            print(f"{trial.name}: {found.outcome.value}; {found.said}{wrong}", flush=True)
    print(f"{len(chosen)} trials, {bad} wrong")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
