"""The libmemcached tools of a distribution: what an operator types, with their exit codes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.process import Server
from tests.support.wire import Wire, drain, stats


def run(server: Server, tool: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [tool, f"--servers=127.0.0.1:{server.port}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd)


@pytest.mark.programs("memcping")
def test_memcping_finds_the_server(server: Server) -> None:
    assert run(server, "memcping").returncode == 0


@pytest.mark.programs("memcstat")
def test_memcstat_shows_the_numbers(server: Server) -> None:
    said = run(server, "memcstat")
    assert said.returncode == 0 and "curr_items: 0" in said.stdout


@pytest.mark.programs("memcdump")
def test_memcdump_finds_no_keys_to_list(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.put("jobs", b"a")
    said = run(server, "memcdump")
    assert said.returncode == 0 and said.stdout == ""


@pytest.mark.programs("memccp", "memccat")
def test_memccat_takes_what_memccp_put_flags_included(server: Server, tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("hello")
    assert run(server, "memccp", "--flag=7", "jobs", cwd=tmp_path).returncode == 0
    server.restart()
    assert run(server, "memccat", "--flag", "jobs").stdout.split() == ["7", "hello"]
    assert run(server, "memccat", "jobs").returncode != 0


@pytest.mark.programs("memccat")
def test_memccat_can_peek_and_wait(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.put("jobs", b"a")
    assert run(server, "memccat", "jobs/peek").stdout == "a\n"
    assert run(server, "memccat", "jobs/t=100").stdout == "a\n"
    assert run(server, "memccat", "jobs/t=100").returncode != 0


@pytest.mark.programs("memcrm")
def test_memcrm_deletes_a_queue_once(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.put("jobs", b"a")
    assert run(server, "memcrm", "jobs").returncode == 0
    assert run(server, "memcrm", "jobs").returncode != 0
    assert "queue_jobs_items" not in stats(server.address)


@pytest.mark.programs("memcflush")
def test_memcflush_empties_every_queue(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.put("a", b"1")
        wire.put("b", b"2")
    assert run(server, "memcflush").returncode == 0
    assert stats(server.address)["curr_items"] == "0"


@pytest.mark.programs("memcexist")
def test_memcexist_is_refused_and_leaves_no_empty_item_behind(server: Server) -> None:
    assert run(server, "memcexist", "jobs").returncode != 0
    assert drain(server.address, "jobs") == []


@pytest.mark.programs("memctouch")
def test_memctouch_finds_no_read_of_its_own_and_the_item_stays(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.put("jobs", b"a")
    assert run(server, "memctouch", "--expire=10", "jobs").returncode != 0
    assert drain(server.address, "jobs") == [b"a"]


@pytest.mark.programs("memcslap")
def test_memcslap_may_put_its_load(server: Server) -> None:
    said = run(server, "memcslap", "--concurrency=2", "--execute-number=50", "--test=set")
    assert said.returncode == 0, said.stderr
    assert int(stats(server.address)["total_items"]) == 100
