"""Calls of a real server fail on one kind of its files at a time, for good: each either ends it with one line, or is
told and gone on without; and a start on a sound disk has everything that was answered, once.
"""

from __future__ import annotations

import errno
import signal
from enum import Enum
from pathlib import Path

import pytest

from tests.faults.armed import Armed
from tests.faults.chores import CONFIG, Chores, HungUp
from tests.faults.preloaded import build

pytestmark = [pytest.mark.slow, pytest.mark.programs("cc")]

ALL_SYNCS = "fsync fdatasync syncfs"
ALL_WRITES = "write pwrite"
SYNC_SECONDS_MAX = 60.0  # what waits for no answer is synced each second


class Outcome(Enum):
    ENDS = "ends"
    GOES_ON = "goes on"


ENDS, GOES_ON = Outcome


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return build("failing_calls.c", tmp_path_factory.mktemp("failing"))


def trial(
    folder: Path, preload: dict[str, str], calls: str, path: str, code: int, redo: str = "none"
) -> tuple[Outcome, list[str], Chores]:
    """What became of a server of which such calls fail after a while, the last lines it wrote then, and what it was
    asked to do. Checked: nothing answered is lost or doubled after a start without faults.
    """
    with Armed(folder, preload, config=CONFIG.format(redo=redo), code=code) as server:
        chores = Chores(server)
        chores.do()
        assert not chores.refused
        before = len(server.stderr)
        server.fail(calls, path)
        try:
            for _ in range(2):
                chores.do()
            if "sync" in calls:  # where many files were due it was one syncfs; what is still due now gets its own sync
                chores.operate()
                server.child.wait(SYNC_SECONDS_MAX)
                raise HungUp
        except (HungUp, OSError):
            assert server.wait() == 1
            outcome = ENDS
        else:
            outcome = GOES_ON
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
        said = server.stderr[before:].splitlines()
        server.mend()
        server.start()
        assert chores.wrong() == []
        server.stop()
    return outcome, said, chores


@pytest.mark.parametrize(
    ("calls", "path", "redo"),
    [
        (ALL_WRITES, "/spool/q", "none"),
        (ALL_WRITES, "/spool/q", "1MB"),
        (ALL_SYNCS, "/spool/q", "none"),
        ("rename", "/spool/q", "none"),
        ("unlink", "/spool/q", "none"),
        (ALL_WRITES, "/spool/stream", "none"),
        (ALL_SYNCS, "/spool/stream", "none"),
        ("open", "/spool/stream", "none"),
        (ALL_SYNCS, "~~", "none"),
        (ALL_WRITES, "/.staniel/intents", "none"),
        (ALL_SYNCS, "/.staniel/intents", "none"),
        (ALL_WRITES, "/.staniel/cmdlog", "none"),
        (ALL_SYNCS, "/.staniel/cmdlog", "none"),
        (ALL_WRITES, "/.staniel/redo", "1MB"),
        (ALL_SYNCS, "/.staniel/undo", "none"),
        (ALL_SYNCS, "/.staniel/audit", "none"),
    ],
)
def test_what_answers_rest_on_fails_and_the_server_ends_with_one_line(
    tmp_path: Path, preload: dict[str, str], calls: str, path: str, redo: str
) -> None:
    outcome, said, _ = trial(tmp_path, preload, calls, path, errno.EIO, redo)
    last = [line for line in said if line.startswith("staniel: ")]
    assert len(last) == 1 and last[0] == said[-1] and "Input/output error" in last[0]
    assert outcome is ENDS
    mend = "look at the disk and the system's log (dmesg), then start again"
    assert last[0].endswith(f"nothing was acknowledged since; {mend}; recovery does the rest")


@pytest.mark.parametrize(
    ("calls", "path", "event", "answer"),
    [
        ("open", "/.staniel/segments", "journal.sidecar_failed", ""),
        ("rename", "/.staniel/segments", "journal.sidecar_failed", ""),
        (ALL_WRITES, "/.staniel/audit", "audit.unwritten", ""),
        ("unlink", "/spool/stream", "segment.stuck", ""),
        ("open", "/.staniel/undo", "", "nothing was purged: the undo file cannot be written: Input/output error"),
        ("open write", "/.staniel/paused", "", "the pause cannot be kept: Input/output error"),
        ("open write", "/.staniel/status", "", "the status cannot be kept: Input/output error"),
        ("read", "/spool/q", "journal.unreadable", "SERVER_ERROR queue q is not available: "),
        ("open", "/spool/new", "", ""),  # it is open
    ],
)
def test_what_no_answer_rests_on_fails_and_is_told_or_refused(
    tmp_path: Path, preload: dict[str, str], calls: str, path: str, event: str, answer: str
) -> None:
    outcome, said, chores = trial(tmp_path, preload, calls, path, errno.EIO)
    assert outcome is GOES_ON and not [line for line in said if line.startswith("staniel: ")]
    assert not event or any(f" {event} " in line for line in said), said
    assert bool(chores.refused) == bool(answer) and all(each.startswith(answer) for each in chores.refused)


@pytest.mark.parametrize(
    ("calls", "path", "redo"),
    [
        (ALL_WRITES, "/.staniel/redo", "1MB"),
        (ALL_WRITES, "/spool/q", "none"),
        (ALL_WRITES, "/spool/stream", "none"),
        (ALL_WRITES, "/.staniel/cmdlog", "none"),
        (ALL_SYNCS, "/spool/q", "none"),
    ],
)
def test_no_space_where_even_the_reserve_does_not_help_ends_the_server(
    tmp_path: Path, preload: dict[str, str], calls: str, path: str, redo: str
) -> None:
    """The full disk that it goes on with: test_full_disk.py. This is one that stays full, as a quota may be."""
    outcome, said, _ = trial(tmp_path, preload, calls, path, errno.ENOSPC, redo)
    assert outcome is ENDS and said[-1].startswith("staniel: ") and "No space left on device" in said[-1]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_machine_without_descriptors_or_memory_for_files_loses_nothing(
    tmp_path: Path, preload: dict[str, str], code: int
) -> None:
    """Journals grow instead of being rotated; what cannot be read is read once there are some again."""
    with Armed(tmp_path, preload, config=CONFIG.format(redo="none"), code=code) as server:
        chores = Chores(server)
        chores.do()
        server.fail("open", "/spool/q")
        chores.do()
        assert all(each.startswith("SERVER_ERROR queue q is not available: ") for each in chores.refused)
        server.mend()
        assert "journal.unreadable" not in server.stderr
        assert chores.reads_again("q")
        assert chores.wrong() == []
        server.stop()
