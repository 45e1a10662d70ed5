"""A real server whose calls to the system fail, or at which it is killed, one place after the other."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from staniel.bench.harness.process import StartFailed
from staniel.bench.soak.clients import Crew, ServerBroken
from staniel.bench.soak.loop import Loop
from tests.faults.preloaded import build

pytestmark = [pytest.mark.slow, pytest.mark.programs("cc")]

LIVES = int(os.environ.get("STANIEL_FAULT_LIVES", "3"))  # of each test; more in a long run
UNTIL_IT_ENDS = 60.0
SYNCS = "fsync fdatasync syncfs"
CHANGES = ("write", "rename", "unlink", "fsync", "fdatasync", "ftruncate")
KILL = 0  # in the place of an errno
SEED = int(os.environ.get("STANIEL_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
Arm = Callable[..., dict[str, str]]


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Arm:
    """Makes the environment of a server that is to fail; `failing_calls.c` says what there is to choose."""
    preload = build("failing_calls.c", tmp_path_factory.mktemp("failing"))

    def environment(calls: str, after: int, code: int, short: int = 0) -> dict[str, str]:
        chosen = {"CALLS": calls, "PATH": "/spool", "AFTER": str(after), "ERRNO": str(code), "SHORT": str(short)}
        chosen["TIMES"] = "1000000"  # one fault alone may meet a summary in the making, which nothing rests on yet
        return {**preload, **{f"FAULT_{name}": value for name, value in chosen.items()}}

    return environment


def doomed_life(loop: Loop, environment: dict[str, str], seconds: float) -> int:
    """Start, work until the server ends, start again without faults and judge; the exit code. Killed if it does not."""
    victim, crew = loop.victim, None
    loop.number += 1
    victim.environment = environment
    try:
        victim.start()
        crew = Crew(victim.address)
        loop.hire(crew)
        crew.work(seconds, 0, 2 * seconds)
        code = victim.end(signal.SIGKILL) - 1000  # no fault has come in its way
    except (ServerBroken, StartFailed, OSError):
        code = victim.wait()
    if crew is not None:
        crew.hear_out()
    victim.environment = {}
    victim.start()
    found = loop.read_queues()
    wrong = [line for ledger in loop.ledgers for line in ledger.wrong + ledger.check(found)]
    assert wrong == [] and "Traceback" not in victim.said, (wrong, victim.said[-2000:])
    for ledger in loop.ledgers:
        ledger.accept_recovered(found)
    victim.end(signal.SIGKILL)
    return code


def lived_through(loop: Loop, environments: list[dict[str, str]], seconds: float = UNTIL_IT_ENDS) -> list[int]:
    """The exit codes of as many lives, of so many seconds at most."""
    with loop.victim:
        loop.victim.start()
        loop.read_queues()  # children of a fan-out exist from the first look on
        loop.victim.end(signal.SIGKILL)
        return [doomed_life(loop, environment, seconds) for environment in environments]


def test_a_failed_sync_ends_the_server_and_nothing_was_said_that_is_not_kept(tmp_path: Path, arm: Arm) -> None:
    random = Random(SEED)
    loop = Loop(tmp_path, SEED)
    codes = lived_through(loop, [arm(SYNCS, random.randrange(60), errno.EIO) for _ in range(LIVES)])
    assert codes == [1] * LIVES, (SEED, loop.victim.said[-2000:])
    assert "Input/output error" in loop.victim.said


def test_a_failed_write_ends_the_server_and_nothing_was_said_that_is_not_kept(tmp_path: Path, arm: Arm) -> None:
    random = Random(SEED)
    loop = Loop(tmp_path, SEED)
    faults = [(random.randrange(200), random.randrange(60)) for _ in range(LIVES)]
    codes = lived_through(loop, [arm("write", after, errno.EIO, short) for after, short in faults])
    assert codes == [1] * LIVES, (SEED, loop.victim.said[-2000:])


def test_a_server_killed_at_a_chosen_call_keeps_every_promise(
    tmp_path: Path, arm: Arm, closing_line: Callable[[str], None]
) -> None:
    """Between two renames, before a folder is synced, between two removals: places that chance seldom finds."""
    random = Random(SEED)
    loop = Loop(tmp_path, SEED)
    faults = [("write", 0), *((random.choice(CHANGES), int(random.expovariate(0.1))) for _ in range(LIVES))]
    codes = lived_through(loop, [arm(call, after, KILL) for call, after in faults], seconds=0.5)
    met = codes.count(-signal.SIGKILL)
    assert codes[0] == -signal.SIGKILL and set(codes) <= {-signal.SIGKILL, -signal.SIGKILL - 1000}, (codes, SEED)
    closing_line(f"chosen calls: {met} of {len(codes)} kills before a {' or '.join(CHANGES)}, seed {SEED}")
