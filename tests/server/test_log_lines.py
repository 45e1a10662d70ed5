"""What the server tells its operator about what clients do: one line each, with the client's address."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from staniel.broker.events import CLIENT_EVENTS_MAX, SELDOM_MS
from tests.server.test_workq import add, leased
from tests.support.job_world import job_id
from tests.support.process import Server, running, until
from tests.support.wire import Wire

CONFIG = """
[queues.q]
max_deliveries = 1
dead_letter_queue = "dead"

[queues.timed]
open_transaction_timeout = 50
"""


def address(wire: Wire) -> str:
    host, port = wire.sock.getsockname()
    return f"client={host}:{port}"


def lines(server: Server, event: str) -> list[str]:
    """The lines about `event`, each without its time and level."""
    found = [line.split(" ", 3)[2:] for line in server.stderr.splitlines()]
    return [words[1] if len(words) > 1 else "" for words in found if words[0] == event]


def test_what_changes_or_empties_queues_leaves_a_line_with_the_address(server: Server) -> None:
    with Wire(server.address) as wire:
        client = address(wire)
        for queue in ("a", "a", "b", "c"):
            wire.put(queue, b"x")
        for line in (b"flush c", b"pause a puts", b"resume a", b"move a b", b"delete b", b"delete none", b"flush_all"):
            wire.ask(line)
        for line in (b"status readonly", b"status up"):
            wire.ask(line)
    assert lines(server, "queue.flushed") == [f"{client} queue=c items=1"]
    assert lines(server, "queue.paused") == [f"{client} queue=a paused=puts"]
    assert lines(server, "queue.resumed") == [f"{client} queue=a paused=none"]
    assert lines(server, "queue.moved") == [f"{client} queue=a target=b items=2"]
    assert lines(server, "queue.deleted") == [f"{client} queue=b items=3"]
    assert lines(server, "queues.flushed") == [f"{client} queues=2"]
    assert lines(server, "status.changed") == [f"{client} was=up now=readonly", f"{client} was=readonly now=up"]


def test_dead_letters_and_reads_that_time_out_leave_a_line_with_the_address(tmp_path: Path) -> None:
    with running(tmp_path, config=CONFIG) as server, Wire(server.address) as wire, Wire(server.address) as other:
        for queue in ("q", "q", "timed"):
            other.put(queue, b"x")
        assert wire.get("q/open") == wire.get("timed/open") == b"x"
        assert wire.ask(b"get q/abort") == b"END"
        assert until(lambda: lines(server, "read.timed_out"))
        client = address(wire)
        assert lines(server, "read.timed_out")[0].startswith(f"{client} queue=timed item=")
        assert wire.get("q/open") == b"x"
        wire.sock.close()
        assert until(lambda: len(lines(server, "item.dead")) == 2)
        for line in lines(server, "item.dead"):
            assert line.startswith(f"{client} queue=q item=") and line.endswith(" deliveries=1 target=dead")


def test_a_worker_that_does_not_finish_in_time_leaves_a_line(tmp_path: Path) -> None:
    with running(tmp_path, "--workq-port", "0") as server, Wire(server.workq_address) as worker:
        worker.say(add(1, ttr=30) + b"lease q 0\r\n")
        worker.hear(len(b"+OK\r\n" + leased(1)) - 3)
        assert until(lambda: lines(server, "job.timed_out"))
        assert lines(server, "job.timed_out") == [f"{address(worker)} name=q job={job_id(1)} attempts=1"]


def test_a_client_that_does_it_without_end_gets_a_few_lines(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.put("q", b"x")
        began_s = time.monotonic()
        for _ in range(5 * CLIENT_EVENTS_MAX):
            wire.ask(b"flush q")
        windows = 1 + int((time.monotonic() - began_s) * 1000) // SELDOM_MS
    assert CLIENT_EVENTS_MAX <= len(lines(server, "queue.flushed")) <= windows * CLIENT_EVENTS_MAX


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "shutdown"])
def test_the_last_line_says_why_the_server_stops(server: Server, how: str) -> None:
    with Wire(server.address) as wire:
        expected = f"why=shutdown {address(wire)}" if how == "shutdown" else f'why="signal {how}"'
        if how == "shutdown":
            wire.say(b"shutdown\r\n")
        else:
            server.signal(getattr(signal, how))
        assert server.wait() == 0
    assert lines(server, "server.stopped") == [expected]


def test_lines_may_be_json_and_hold_whatever_a_name_holds(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / os.fsdecode(b'spool/q.\xff"\n')).touch()
    with running(tmp_path, "--log-format", "json") as server, Wire(server.address) as wire:
        assert wire.put("a", b"1") == b"STORED" and wire.ask(b"flush a") == b"END"
        told = [json.loads(line) for line in server.stderr.splitlines()]
    by_event = {line["event"]: line for line in told}
    assert all(set(line) > {"time", "level", "event"} for line in told)
    flushed = by_event["queue.flushed"]
    assert (flushed["queue"], flushed["items"], flushed["level"]) == ("a", 1, "info")
    assert by_event["spool.foreign"]["file"] == 'q.\\udcff"\n'


def test_a_name_that_is_no_utf_8_does_not_break_a_line(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / os.fsdecode(b'spool/q.\xff"\n')).touch()
    with running(tmp_path) as server:
        assert 'spool.foreign file="q.\\\\udcff\\"\\n"' in server.stderr and len(server.stderr.splitlines()) == 1
