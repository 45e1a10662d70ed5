"""What the audit log says of operations, whichever way they came, and that nothing floods it or is stopped by it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from staniel.broker.operations.audit import BURST
from tests.server.admin.asking import Operator
from tests.support.process import Server, run_staniel, running
from tests.support.wire import Wire

CONFIG = """
admin = { port = 0, audit_log = "64KB" }
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, config=CONFIG) as server:
        yield server


def operations(operator: Operator) -> list[tuple[str, str, int, str]]:
    found = operator.get("/api/audit?limit=1000")
    return [(each["operation"], each["queue"], each["items"], each["result"]) for each in reversed(found)]


def test_who_did_what_to_which_queue(server: Server, operator: Operator) -> None:
    with Wire(server.address) as wire:
        for queue in ("a", "b", "c", "d"):
            for _ in range(3):
                assert wire.put(queue, b"x") == b"STORED"
        assert wire.ask(b"flush a") == b"END"
        assert wire.ask(b"delete b") == b"DELETED"
        assert wire.ask(b"flush_all") == b"OK"
        assert wire.put("c", b"x") == b"STORED"
    operator.post("/api/queues/c/pause", {"puts": True, "gets": False})
    operator.post("/api/queues/c/resume")
    operator.post("/api/queues/c/move", {"to": "e"})
    Operator(server.spool).post("/api/queues/e/purge")
    assert operator.ask("POST", "/api/queues/e/purge", {"expected": -1}).status == 400
    operator.post("/api/status", {"status": "readonly"})
    operator.post("/api/status", {"status": "up"})
    assert operations(operator) == [
        ("flush", "a", 3, "done"),
        ("delete", "b", 3, "done"),
        ("flush_all", "", 0, "begun"),
        ("flush_all", "", 6, "done"),
        ("pause", "c", 0, "done"),
        ("resume", "c", 0, "done"),
        ("move", "c", 1, "begun"),
        ("move", "c", 1, "done"),
        ("purge", "e", 1, "begun"),
        ("purge", "e", 1, "done"),
        ("purge", "e", 0, "refused"),
        ("status", "", 0, "done"),
        ("status", "", 0, "done"),
    ]
    by_operation = {each["operation"]: each for each in operator.get("/api/audit") if each["result"] == "done"}
    flush, purge = by_operation["flush"], by_operation["purge"]
    assert flush["protocol"] == "memcache" and flush["client"].startswith("127.0.0.1:") and flush["uid"] == -1
    assert (purge["protocol"], purge["uid"], purge["pid"]) == ("admin", os.geteuid(), os.getpid())
    assert by_operation["move"]["target"] == "e"
    numbers = [each["id"] for each in operator.get("/api/audit")]
    assert numbers == sorted(numbers, reverse=True) and len(set(numbers)) == len(numbers) - 3  # begun and done of one


def test_numbers_rise_over_restarts_and_signals_are_in_it(server: Server, operator: Operator) -> None:
    operator.post("/api/reload")
    before = operator.get("/api/audit")
    server.stop()
    server.start()
    after = Operator(server.second_port).get("/api/audit")
    assert [each["operation"] for each in after] == ["stop", "reload"]
    assert after[0]["client"] == "signal SIGTERM" and after[0]["protocol"] == "signal"
    assert after[1:] == before and after[0]["id"] > before[0]["id"]


def test_a_flood_leaves_room_for_what_others_do(server: Server, operator: Operator) -> None:
    operator.post("/api/queues/q/put", {"data": "x"})
    operator.post("/api/queues/q/pause")
    with Wire(server.address) as wire:
        for _ in range(10 * BURST):
            assert wire.ask(b"flush q") == b"END"
    found = operations(operator)
    assert found.count(("flush", "q", 0, "done")) + found.count(("flush", "q", 1, "done")) == BURST
    assert found[0][0] == "pause"


def test_the_files_are_bounded(server: Server, operator: Operator) -> None:
    operator.post("/api/queues/q/put", {"data": "x"})
    for _ in range(200):
        operator.post("/api/queues/q/pause")
        operator.post("/api/queues/q/resume")
    sizes = [(server.spool / ".staniel" / name).stat().st_size for name in ("audit", "audit.1")]
    assert 32 << 10 < sum(sizes) <= 64 << 10
    lines = (server.spool / ".staniel" / "audit").read_bytes().splitlines()
    assert json.loads(lines[-1])["operation"] == "resume"


def test_a_line_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    with running(tmp_path, config=CONFIG) as server:
        operator = Operator(server.second_port)
        operator.post("/api/queues/q/put", {"data": "x"})
        (server.spool / ".staniel" / "audit").mkdir()
        operator.post("/api/queues/q/pause")
        assert operations(operator) == [("pause", "q", 0, "done")]
        assert "audit.unwritten" in server.stderr


def test_the_command_shows_it_and_nothing_steers_the_terminal(server: Server) -> None:
    with Wire(server.address) as wire:
        assert wire.put("caf\u00e9", b"x") == b"STORED"
        assert wire.ask("flush caf\u00e9".encode()) == b"END"
    shown = run_staniel("audit", STANIEL_SPOOL=str(server.spool))
    assert shown.returncode == 0 and "flush" in shown.stdout and "memcache" in shown.stdout
    as_json = run_staniel("audit", "--json", "-n", "1", STANIEL_SPOOL=str(server.spool))
    assert json.loads(as_json.stdout)[0]["operation"] == "flush"
