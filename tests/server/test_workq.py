"""workq over real sockets: the command line, the two protocols side by side, restarts, and clients that mean ill."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.job_world import job_id
from tests.support.process import Server, run_staniel, running, until
from tests.support.wire import Wire, stats


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, "--workq-port", "0") as started:
        yield started


def add(number: int, payload: bytes = b"x", name: bytes = b"q", ttr: int = 60_000, ttl: int = 600_000) -> bytes:
    return b"add %b %b %d %d %d\r\n%b\r\n" % (job_id(number).encode(), name, ttr, ttl, len(payload), payload)


def leased(number: int, payload: bytes = b"x", name: bytes = b"q") -> bytes:
    return b"+OK 1\r\n%b %b 60000 %d\r\n%b\r\n" % (job_id(number).encode(), name, len(payload), payload)


def hears(wire: Wire, what: bytes) -> bool:
    return wire.hear(len(what)) == what


def test_a_job_goes_from_client_to_client_and_its_result_back(server: Server) -> None:
    with Wire(server.workq_address) as boss, Wire(server.workq_address) as worker:
        worker.say(b"lease q 20000\r\n")
        boss.say(add(1, b"work") + b"result %b 20000\r\n" % job_id(1).encode())
        assert hears(worker, leased(1, b"work")) and hears(boss, b"+OK\r\n")
        worker.say(b"complete %b 4\r\ndone\r\n" % job_id(1).encode())
        assert hears(worker, b"+OK\r\n")
        assert hears(boss, b"+OK 1\r\n%b 1 4\r\ndone\r\n" % job_id(1).encode())


def test_jobs_and_queues_live_in_one_server_and_survive_together(server: Server) -> None:
    with Wire(server.address) as memcache, Wire(server.workq_address) as worker:
        memcache.put("items", b"an item")
        worker.say(add(1) + add(2) + b"lease q 0\r\n")
        assert hears(worker, b"+OK\r\n+OK\r\n" + leased(1))
        server.restart()
    assert "1 queue, 1 item, 2 jobs recovered" in server.greeting
    with Wire(server.address) as memcache, Wire(server.workq_address) as worker:
        assert memcache.get("items") == b"an item"
        worker.say(b"lease q 0\r\nlease q 0\r\n")
        assert hears(worker, leased(2) + b"-TIMEOUT\r\n")
        assert stats(server.address)["jobs_q_leased"] == "2"


def test_a_clean_stop_answers_what_was_asked_and_keeps_it(server: Server) -> None:
    with Wire(server.workq_address) as worker:
        worker.say(b"".join(add(number) for number in range(1, 200)))
        assert hears(worker, b"+OK\r\n" * 199)
    server.stop()
    server.start()
    assert "199 jobs recovered" in server.greeting


def test_a_stop_answers_those_who_wait_for_jobs(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        leaser, runner, watcher = (stack.enter_context(Wire(server.workq_address)) for _ in range(3))
        watcher.say(add(1, name=b"other"))
        assert hears(watcher, b"+OK\r\n")
        leaser.say(b"lease q 600000\r\n")
        runner.say(b"run %b third 60000 600000 1\r\nx\r\n" % job_id(2).encode())
        watcher.say(b"result %b 600000\r\n" % job_id(1).encode())
        assert until(lambda: stats(server.address).get("jobs_third_ready") == "1")
        assert until(lambda: stats(server.address)["jobs_q_waiters"] == "1")
        server.stop()
        assert leaser.rest() == watcher.rest() == b"-TIMEOUT\r\n"
        assert runner.rest() == b"-SERVER-ERROR The server stops, the job is gone\r\n"


@pytest.mark.parametrize("dashes", ["-", "--"])
def test_the_originals_flags_are_understood(tmp_path: Path, dashes: str) -> None:
    log = tmp_path / "my log"
    flags = ["cmdlog-path", str(log), "cmdlog-sync", "interval", "cmdlog-sync-int", "500", "cmdlog-clean-int", "60000",
             "cmdlog-seg-size", "200"]  # fmt: skip
    options = [flag if at % 2 else dashes + flag for at, flag in enumerate(flags)]
    with running(tmp_path, "--workq-port", "0", *options) as server, Wire(server.workq_address) as worker:
        worker.say(b"".join(add(number) for number in range(1, 6)))
        assert hears(worker, b"+OK\r\n" * 5)
        assert sorted(name for name in os.listdir(log) if name.endswith(".log")) == [
            "000000001.log", "000000002.log",
        ]  # fmt: skip


def test_without_a_path_the_log_lies_in_the_spool(server: Server) -> None:
    with Wire(server.workq_address) as worker:
        worker.say(add(1))
        assert hears(worker, b"+OK\r\n")
    assert (server.spool / ".staniel" / "cmdlog" / "000000001.log").stat().st_size > 8


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--cmdlog-sync", "interval", "--cmdlog-sync-int", "0"), "--cmdlog_sync_int: expected more than 0"),
        (("--cmdlog-sync", "sometimes"), "--cmdlog-sync"),
        (("--cmdlog-seg-size", "-5"), "--cmdlog-seg-size"),
    ],
)
def test_wrong_options_are_told_in_one_line(tmp_path: Path, options: tuple[str, ...], why: str) -> None:
    ended = run_staniel("serve", "--port", "0", "--workq-port", "0", "--spool", str(tmp_path / "s"), *options)
    assert ended.returncode == 1 and len(ended.stderr.splitlines()) == 1
    assert why.replace("_", "-") in ended.stderr.replace("_", "-")


def test_a_log_that_another_server_appends_to_is_left_alone(tmp_path: Path) -> None:
    options = ("--workq-port", "0", "--cmdlog-path", str(tmp_path / "log"))
    with running(tmp_path / "a", *options):
        ended = run_staniel("serve", "--port", "0", "--spool", str(tmp_path / "b"), *options)
        assert ended.returncode == 1 and "is in use by" in ended.stderr and "--cmdlog-path" in ended.stderr


def test_a_client_that_vanishes_while_it_waits_leaves_nothing_behind(server: Server) -> None:
    for verb in (b"lease q 60000\r\n", b"run %b other 60000 60000 1\r\nx\r\n" % job_id(9).encode()):
        gone = Wire(server.workq_address)
        gone.say(verb)
        gone.sock.close()
    with Wire(server.workq_address) as worker:
        worker.say(add(1))
        assert hears(worker, b"+OK\r\n")
        worker.say(b"lease q 20000\r\n")
        assert hears(worker, leased(1))
        worker.say(b"inspect job %b\r\n" % job_id(9).encode())
        assert hears(worker, b"-NOT-FOUND\r\n")


def test_a_client_that_is_reset_while_it_waits_gets_no_job(server: Server) -> None:
    gone = Wire(server.workq_address)
    gone.say(b"lease q 60000\r\n")
    gone.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    gone.sock.close()
    with Wire(server.workq_address) as worker:
        worker.say(add(1) + b"lease q 20000\r\n")
        assert hears(worker, b"+OK\r\n" + leased(1))


def test_a_lease_on_a_thousand_names(server: Server) -> None:
    names = b" ".join(b"name-%d" % number for number in range(1000))
    with Wire(server.workq_address) as worker, Wire(server.workq_address) as boss:
        worker.say(b"lease %b 30000\r\n" % names)
        boss.say(add(1, name=b"name-999"))
        assert hears(boss, b"+OK\r\n") and hears(worker, leased(1, name=b"name-999"))
        worker.say(b"lease %b 0\r\n" % names)
        assert hears(worker, b"-TIMEOUT\r\n")


def test_a_payload_without_end_costs_what_has_arrived(server: Server) -> None:
    before = server.memory_bytes()
    slow = [Wire(server.workq_address) for _ in range(200)]
    for number, wire in enumerate(slow, 1):
        wire.say(b"add %b q 1000 1000 1048576\r\n" % job_id(number).encode() + b"x" * 1000)
    with Wire(server.workq_address) as worker:
        worker.say(add(999))
        assert hears(worker, b"+OK\r\n")
    assert server.memory_bytes() - before < 40 << 20
    for wire in slow:
        wire.sock.close()


@pytest.mark.parametrize(
    "line",
    [b"add %b q 1 1 99999999999999999999\r\n", b"add %b q 1 1 -1\r\n", b"add %b q 1 1 1048577\r\n",
     b"add %b q 1 1 0x10\r\n", b"complete %b 4294967296\r\n", b"fail %b 9223372036854775808\r\n"],
)  # fmt: skip
def test_absurd_sizes_are_refused_and_the_connection_lives(server: Server, line: bytes) -> None:
    with Wire(server.workq_address) as wire:
        wire.say(line % job_id(1).encode())
        kind = b"result" if line.startswith(b"fail") else b"payload"
        assert hears(wire, b"-CLIENT-ERROR Invalid %b size\r\n" % kind)
        wire.say(b"inspect queues 0 1\r\n")
        assert hears(wire, b"+OK 0\r\n")


@pytest.mark.parametrize("data", [b"\n", b"lease q 5\n", b"x" * 1_060_000])
def test_a_line_that_is_none_ends_the_connection_without_a_word(server: Server, data: bytes) -> None:
    with Wire(server.workq_address) as wire:
        try:
            wire.say(data)
            assert wire.line() == b""
        except ConnectionError:
            pass
    with Wire(server.workq_address) as wire:
        wire.say(b"lease q 0\r\n")
        assert hears(wire, b"-TIMEOUT\r\n")


def test_a_line_that_drips_is_not_put_together_again_for_each_byte(server: Server) -> None:
    with Wire(server.workq_address) as wire:
        for _ in range(2000):
            wire.say(b"a-name ")
        wire.say(b"x" * 500_000 + b"\r\n")
        assert hears(wire, b"-CLIENT-ERROR Unknown command\r\n")


def test_a_long_pipeline_is_answered_in_its_order(server: Server) -> None:
    with Wire(server.workq_address) as wire:
        asked = b"".join(
            add(number) + b"lease q 0\r\ndelete %b\r\n" % job_id(number).encode() for number in range(1, 500)
        )
        wire.say(asked)
        assert hears(wire, b"".join(b"+OK\r\n" + leased(number) + b"+OK\r\n" for number in range(1, 500)))


def test_what_a_kill_leaves_is_read_by_the_next_start_and_told_if_torn(tmp_path: Path) -> None:
    with running(tmp_path, "--workq-port", "0") as server:
        with Wire(server.workq_address) as worker:
            worker.say(add(1) + add(2))
            assert hears(worker, b"+OK\r\n+OK\r\n")
        server.signal(signal.SIGKILL)
        server.wait()
        segment = server.spool / ".staniel" / "cmdlog" / "000000001.log"
        segment.write_bytes(segment.read_bytes()[:-3])
        server.start()
        assert "1 job recovered" in server.greeting and "warning cmdlog.torn" in server.stderr
        [kept] = (server.spool / ".staniel" / "damaged").iterdir()
        assert kept.name.startswith("000000001.log@")
