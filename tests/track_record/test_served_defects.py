"""Defects of Kestrel 2.4 that lie between the socket and the queue: played through with the real server."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.process import running, until
from tests.support.wire import Wire, stats

TIMEOUT = '[server]\nclient_timeout = "3s"\n'


def open_reads(address: tuple[str, int], queue: str) -> str:
    return stats(address).get(f"queue_{queue}_open_transactions", "")


def test_a_client_that_waits_longer_than_its_time_out_is_not_cut_off(tmp_path: Path) -> None:
    with running(tmp_path, config=TIMEOUT) as server, Wire(server.address) as wire:
        began = time.monotonic()
        assert wire.get("q/t=3500") is None
        assert time.monotonic() - began > 3.2
        assert wire.ask(b"version").startswith(b"VERSION")


def test_a_client_that_says_nothing_for_its_time_out_is_hung_up_on(tmp_path: Path) -> None:
    with running(tmp_path, config=TIMEOUT) as server, Wire(server.address) as wire:
        assert wire.closed_by_server()


def test_a_monitor_whose_client_has_gone_gives_back_what_it_held(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with Wire(server.address) as wire:
            wire.put("q", b"a")
            assert wire.ask(b"monitor q 3600").startswith(b"VALUE ")
            assert open_reads(server.address, "q") == "1"
        assert until(lambda: open_reads(server.address, "q") == "0")
        with Wire(server.address) as other:
            assert other.get("q") == b"a"


def test_a_request_sent_behind_a_monitor_is_answered(tmp_path: Path) -> None:
    with running(tmp_path) as server, Wire(server.address) as wire:
        assert wire.say(b"monitor q 1\r\nversion\r\n").line() == b"END"
        assert wire.line().startswith(b"VERSION")


def test_the_journal_of_a_queue_that_keeps_none_any_more_is_set_aside_and_does_not_come_back(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with Wire(server.address) as wire:
            wire.put("q", b"old")
        journal = (server.spool / "q").read_bytes()
        server.stop()
        server.config.write_text("[default]\nkeep_journal = false\n")
        with Wire(server.start().address) as wire:
            assert wire.get("q") is None
        server.stop()
        assert "journal.set_aside" in server.stderr
        server.config.unlink()
        with Wire(server.start().address) as wire:
            assert wire.get("q") is None
        (aside,) = (server.spool / ".staniel").glob("aside.*/q")
        assert aside.read_bytes() == journal
