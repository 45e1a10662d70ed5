"""`staniel journal stats`, `history` and `at` on the files of a server that has them open, and on damaged ones."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_world import job_id
from tests.support.process import STANIEL, START_SECONDS_MAX, Server, run_staniel, running
from tests.support.wire import Wire

CONFIG = 'queues.mail.journal_format = "libkestrel"\n[workq]\nport = 0\n'
STEERING = b"\x1b[31mred\x07\r\n\xff"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("reading"), config=CONFIG) as started:
        with Wire(started.address) as wire:
            for queue in ("orders", "mail"):
                for data in (b"first", STEERING, b"third"):
                    assert wire.put(queue, data) == b"STORED"
                assert wire.ask(b"get %b" % queue.encode()).startswith(b"VALUE")
                assert [wire.line() for _ in range(2)] == [b"first", b"END"]
        with Wire(started.workq_address) as wire:
            assert wire.ask(b"add %b work 60000 600000 3\r\nabc" % job_id(7).encode()) == b"+OK"
        yield started


def read(*arguments: str | Path, spool: Path | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    where = () if spool is None else ("--spool", str(spool))
    said = run_staniel("journal", *map(str, arguments), *where)
    assert said.returncode == code and "Traceback" not in said.stderr, said.stderr
    assert "\x1b" not in said.stdout + said.stderr and "\x07" not in said.stdout
    return said


def objects(*arguments: str | Path, spool: Path | None = None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read(*arguments, "--json", spool=spool).stdout.splitlines()]


def test_stats_of_a_spool_in_use_tell_every_queue_and_the_jobs(server: Server) -> None:
    found = {each["name"]: each for each in objects("stats", server.spool)}
    assert set(found) == {"orders", "mail", "command log"}
    assert found["orders"]["records"] == {"ADD": 3, "REM": 1} and found["orders"]["files"] == 1
    assert found["orders"]["items"]["orders"]["states"] == found["mail"]["items"]["mail"]["states"] == {"waiting": 2}
    assert found["mail"]["records"]["PUT"] == 3
    assert (
        found["command log"]["items"]["work"]["states"] == {"ready": 1} and found["command log"]["packed_share"] > 0.8
    )
    text = read("stats", server.spool, "-Q", "orders").stdout
    assert text.startswith("orders: kestrel, 1 file, ") and "  records: 3 ADD, 1 REM\n" in text
    assert "  items: 2 waiting; 17 B; added 20" in text and "% of the files\n" in text
    assert read("stats", server.spool, "-Q", "nothing", code=2).stderr.startswith("Error: no journal file of such a")


@pytest.mark.parametrize("queue", ["orders", "mail"])
def test_what_a_queue_holds_and_held(server: Server, queue: str) -> None:
    *items, end = objects("at", "now", queue, "--payload", "hex", spool=server.spool)
    assert [bytes.fromhex(item["data"]) for item in items] == [STEERING, b"third"]
    assert (end["items"], end["perhaps"]) == (2, 0)
    before = read("at", items[0]["added_ms"] - 1, queue, spool=server.spool).stdout
    assert before.splitlines()[0].startswith("ID") and "added" not in before.splitlines()[1]
    text = read("at", "now", queue, spool=server.spool).stdout
    assert "\\x1b[31mred\\x07\\r\\n\\xff" in text and text.count("waiting") >= 2
    then = read("at", items[-1]["added_ms"], queue, "--limit", "0", spool=server.spool).stdout
    assert "perhaps waiting" in then and "note: " in then


def test_the_life_of_an_item_by_its_id(server: Server) -> None:
    first, _ = (
        line.partition(" ")[0] for line in read("at", "0", "orders", spool=server.spool).stdout.splitlines()[:2]
    )
    assert first == "ID"
    *events, end = objects("history", "orders", "orders:0", spool=server.spool)
    assert [event["happened"] for event in events] == ["added", "removed"] and end["is_there"] is False
    assert events[0]["not_before_ms"] == events[0]["not_after_ms"] <= events[1]["not_before_ms"]
    text = read("history", "mail", "1", spool=server.spool).stdout
    assert "closed in mail" in text and text.splitlines()[3] == "not there any more"
    assert read("history", "mail", "2", spool=server.spool).stdout.splitlines()[2] == "still there"
    text = read("history", "work", job_id(7), spool=server.spool).stdout
    assert " added " in text and "000000001.log" in text
    for wrong, why in (
        ("orders:1", "no record of orders"),
        ("xid=5", "no record of orders"),
        ("x", "is no id of this"),
    ):
        assert why in read("history", "orders", wrong, spool=server.spool, code=2).stderr
    assert "there is no queue" in read("history", "none", "1", spool=server.spool, code=2).stderr


def test_jobs_of_a_moment(server: Server) -> None:
    job, end = objects("at", "now", "work", spool=server.spool)
    assert (job["id"], job["state"], job["data"], end["format"]) == (job_id(7), "ready", "abc", "workq")
    (end,) = objects("at", "1h", "work", spool=server.spool)
    assert end["items"] == 0
    assert objects("at", "now", "work", "--jobs", spool=server.spool / ".staniel" / "cmdlog")[0]["id"] == job_id(7)


@pytest.mark.parametrize("moment", ["2026-02-30", "soon", "12:00", "1e9", "-", "-1"])
def test_what_is_no_moment_is_said(server: Server, moment: str) -> None:
    assert "is no moment: give 2026-" in read("at", "--spool", server.spool, "--", moment, "orders", code=2).stderr


@pytest.mark.parametrize(
    ("moment", "at_ms"),
    [
        ("2001-09-09T01:46:40", 1_000_000_000_000),
        ("2001-09-09 01:46:40.250", 1_000_000_000_250),
        ("2001-09-09T03:46:40+02:00", 1_000_000_000_000),
        ("1000000000", 1_000_000_000_000),
        ("1000000000000", 1_000_000_000_000),
    ],
)
def test_moments_may_be_written_in_many_ways(server: Server, moment: str, at_ms: int) -> None:
    assert objects("at", moment, "orders", spool=server.spool)[-1]["at_ms"] == at_ms


def test_damage_is_told_and_the_rest_is_shown(tmp_path: Path) -> None:
    with running(tmp_path) as server, Wire(server.address) as wire:
        assert wire.put("q", b"whole") == wire.put("q", b"broken") == b"STORED"
        server.kill()
        data = (server.spool / "q").read_bytes()
        (server.spool / "q").write_bytes(data[:26] + b"\x63" + data[27:])
        for arguments in (["stats", server.spool], ["at", "now", "q", "--spool", server.spool]):
            said = read(*arguments, code=1)
            assert f"{server.spool}/q: byte 26, 27 bytes: unknown opcode 99" in said.stderr
            assert "1 waiting" in said.stdout or "whole" in said.stdout
        (server.spool / "q").write_bytes(data[:-1])
        assert "torn end" in read("history", "q", "0", "--spool", server.spool).stderr


def test_progress_is_for_a_terminals_standard_error_alone(tmp_path: Path) -> None:
    """A tool that has read for a second shows how far it is."""
    record = b"\x02" + (20).to_bytes(4, "little") + time.time_ns().to_bytes(8, "little") + bytes(8) + b"data"
    (tmp_path / "q").write_bytes(record * 600_000)
    outer, inner = pty.openpty()
    command = [*STANIEL, "journal", "stats", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=inner) as child:
        os.close(inner)
        assert child.stdout is not None
        told = child.stdout.read()
        assert child.wait(START_SECONDS_MAX) == 0
    shown = os.read(outer, 1 << 16)
    os.close(outer)
    assert b"600,000 waiting" in told and b"\x1b" not in told
    assert b"read: " in shown and shown.endswith(b"\r\x1b[K")
