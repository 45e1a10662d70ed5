"""A limit of processes and threads (RLIMIT_NPROC, a control group's pids.max) that a real server meets at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.preloaded import build
from tests.support.process import run_staniel, running
from tests.support.wire import Wire

THREADS = 2  # that syncs, and that does tasks in the background


@pytest.mark.programs("cc")
@pytest.mark.parametrize("most", range(THREADS))
def test_a_thread_that_may_not_be_started_ends_the_start_with_one_line_that_says_what_to_raise(
    tmp_path: Path, most: int
) -> None:
    limited = {**build("no_threads.c", tmp_path), "THREADS_MAX": str(most)}
    said = run_staniel("serve", "--port", "0", "--spool", str(tmp_path / "spool"), **limited)
    lines = said.stderr.splitlines()
    assert said.returncode == 1 and len(lines) == 1 and not said.stdout, said
    assert lines[0].startswith("staniel: ") and "cannot start a thread" in lines[0]
    assert "raise the limit of processes and threads (ulimit -u, TasksMax=)" in lines[0]


@pytest.mark.programs("cc")
def test_a_server_needs_no_more_threads_than_that(tmp_path: Path) -> None:
    limited = {**build("no_threads.c", tmp_path), "THREADS_MAX": str(THREADS)}
    wrapper = ("env", *(f"{name}={value}" for name, value in limited.items()))
    with running(tmp_path / "server", wrapper=wrapper) as server, Wire(server.address) as wire:
        assert wire.put("q", b"x") == b"STORED" and wire.get("q") == b"x"
        server.stop()
