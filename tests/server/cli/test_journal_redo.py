"""The journal tools and a spool whose redo log is in use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.process import Server, run_staniel, running, until
from tests.support.wire import Wire

CONFIG = '[server]\nredo_log = "1MB"\n[default]\nsync_journal = "always"\n'


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Left by a server that was killed with a redo log in use."""
    copy = tmp_path / "copy"
    with running(tmp_path / "server", config=CONFIG) as server:
        assert until(lambda: "staniel-spool 2" in version(server))
        with Wire(server.address) as wire:
            assert until(lambda: is_logged(server, wire))
            for number in range(5):
                wire.say(b"set jobs 0 0 6\r\nitem %d\r\n" % number)
                assert wire.line() == b"STORED"
        server.kill()
        for path in [server.spool / "jobs", *(server.spool / ".staniel").iterdir()]:
            if path.is_file() and path.name != "ballast":
                to = copy / path.relative_to(server.spool)
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(path.read_bytes())
    return copy


def is_logged(server: Server, wire: Wire) -> bool:
    """Whether the log has an item's journal: what is put while the log is being made is synced as a file."""
    assert wire.put("jobs", b"first") == b"STORED" and wire.get("jobs") == b"first"
    return b"jobs" in (server.spool / ".staniel" / "redo.0").read_bytes()


def version(server: Server) -> str:
    with Wire(server.address) as wire:  # a turn of the server
        wire.ask(b"version")
    return (server.spool / ".staniel" / "version").read_text()


def test_dump_prints_the_batches_of_a_redo_log(spool: Path) -> None:
    done = run_staniel("journal", "dump", "--json", str(spool / ".staniel" / "redo.0"))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    bound = next(line for line in lines if line["op"] == "BIND")
    written = [(line["to"], line["bytes"]) for line in lines if line["op"] == "DATA"]
    assert bound["path"] == "jobs" and written and written[0][0] == bound["safe"]
    assert sum(written[-1]) == (spool / "jobs").stat().st_size
    told = run_staniel("journal", "dump", "--quiet", str(spool / ".staniel" / "redo.0"))
    assert "batches," in told.stdout


def test_verify_says_that_a_redo_log_is_in_use(spool: Path) -> None:
    done = run_staniel("journal", "verify", str(spool))
    assert done.returncode == 0, done.stderr
    assert "a redo log is in use (" in done.stderr and "about 1 files" in done.stderr
    (spool / ".staniel" / "redo.0").write_bytes(bytes(4096))
    done = run_staniel("journal", "verify", str(spool))
    assert "a redo log is in use (gone, 0 batches" in done.stderr


def test_repair_makes_no_copy_of_journals_that_lack_what_the_redo_log_has(spool: Path, tmp_path: Path) -> None:
    journal = spool / "jobs"
    journal.write_bytes(journal.read_bytes()[:-30])  # as a power cut may leave it
    for what in (spool, journal):
        done = run_staniel("journal", "repair", str(what), "--to", str(tmp_path / "new"))
        assert done.returncode == 2 and not (tmp_path / "new").exists()
        assert f"such as {journal}, lack changes that the redo log has: start a server" in done.stderr


def test_a_repaired_copy_has_no_redo_log_in_use(spool: Path, tmp_path: Path) -> None:
    done = run_staniel("journal", "repair", str(spool), "--to", str(tmp_path / "new"))
    assert done.returncode == 0 and "jobs: 5 items" in done.stdout, done.stderr
    assert (tmp_path / "new" / ".staniel" / "version").read_text() == "staniel-spool 1\n"
