"""SIGKILL of a server that has nothing to do, and of one that starts. Kills under load: `test_kill_loop.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.process import Server, running, until
from tests.support.wire import Wire, stats


def look(server: Server, queue: str) -> list[bytes]:
    """Everything in a queue, in order: opened by one client, which hangs up and so puts it all back as it was."""
    found: list[bytes] = []
    with Wire(server.address) as wire:
        while (item := wire.get(f"{queue}/open")) is not None:
            found.append(item)
    name = f"queue_{queue}_open_transactions"
    assert until(lambda: stats(server.address)[name] == "0"), "what a lost client held did not come back"
    return found


@pytest.mark.parametrize("sync", ["always", "50ms", "os"])
def test_a_kill_at_rest_changes_nothing(tmp_path: Path, sync: str) -> None:
    with running(tmp_path, "--sync", sync) as server:
        with Wire(server.address) as worker:
            for item in (b"a", b"b", b"c", b"d"):
                worker.put("jobs", item)
            assert worker.get("jobs") == b"a"
            assert worker.get("jobs/open") == b"b"
            assert worker.get("jobs/close/open") == b"c"
            server.restart()
        assert server.greeting.count("1 queue, 2 items recovered") == 1
        assert look(server, "jobs") == [b"c", b"d"]


def test_a_server_killed_at_its_start_has_changed_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with Wire(server.address) as wire:
            for number in range(50):
                wire.put("jobs", b"%d" % number)
        for _ in range(5):
            server.restart()
        assert look(server, "jobs") == [b"%d" % number for number in range(50)]


def test_a_torn_last_record_is_cut_off_kept_and_told(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with Wire(server.address) as wire:
            wire.put("jobs", b"whole")
            wire.put("jobs", b"torn")
        server.kill()
        journal = server.spool / "jobs"
        journal.write_bytes(journal.read_bytes()[:-2])
        server.start()
        assert look(server, "jobs") == [b"whole"]
        [line] = [line for line in server.stderr.splitlines() if "warning journal.torn" in line]
        assert "queue=jobs" in line and "file=jobs" in line
        [kept] = (server.spool / ".staniel" / "damaged").iterdir()
        assert b"to" in kept.read_bytes()
