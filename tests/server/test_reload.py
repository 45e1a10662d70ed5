"""Reading the configuration again while serving: by signal and by command, and what a broken file does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.process import Server, running, until
from tests.support.wire import Wire


def write_limit(server: Server, line: str) -> None:
    """Change the one limit of queue q in the server's file."""
    text = server.config.read_text()
    server.config.write_text(text[: text.index("[queues.q]")] + f"[queues.q]\n{line}\n")


def reload_by(how: str, server: Server, wire: Wire) -> None:
    if how == "signal":
        server.signal(signal.SIGHUP)
        assert until(lambda: "config.re" in server.stderr)
    else:
        wire.ask(b"reload")


@pytest.mark.parametrize("how", ["signal", "command"])
def test_limits_change_and_what_is_in_flight_is_not_disturbed(tmp_path: Path, how: str) -> None:
    with running(tmp_path, config="[queues.q]\nmax_items = 1\n") as server, Wire(server.address) as wire:
        wire.put("q", b"1")
        assert wire.get("q/open") == b"1"
        wire.put("q", b"2")
        assert wire.put("q", b"3") == b"NOT_STORED"
        write_limit(server, "max_items = 2")
        reload_by(how, server, wire)
        assert wire.put("q", b"3") == b"STORED"
        assert wire.ask(b"get q/close") == b"END"
        assert [wire.get("q"), wire.get("q"), wire.get("q")] == [b"2", b"3", None]


@pytest.mark.parametrize("how", ["signal", "command"])
def test_a_broken_file_changes_nothing_and_says_why(tmp_path: Path, how: str) -> None:
    with running(tmp_path, config="[queues.q]\nmax_items = 1\n") as server, Wire(server.address) as wire:
        wire.put("q", b"1")
        write_limit(server, "max_item = 2")
        reload_by(how, server, wire)
        assert 'queues.q.max_item: unknown key, did you mean \\"max_items\\"?' in server.stderr
        assert wire.put("q", b"2") == b"NOT_STORED"


def test_settings_taken_away_leave_the_items(tmp_path: Path) -> None:
    with running(tmp_path, config='[queues.q]\nmax_age = "1h"\n') as server, Wire(server.address) as wire:
        wire.put("q", b"1")
        server.config.write_text(server.config.read_text().replace('max_age = "1h"', ""))
        assert wire.ask(b"reload") == b"Reloaded config."
        assert wire.get("q") == b"1"


def test_the_answer_and_a_line_name_what_only_a_restart_takes_over(tmp_path: Path) -> None:
    with running(tmp_path, config="[server]\nlog_level = 'info'\n[queues.q]\n") as server, Wire(server.address) as wire:
        wire.put("q", b"1")
        text = server.config.read_text()
        server.config.write_text(
            "[server]\nconnection_backlog = 7\nclient_timeout = '1h'\n"
            "[text]\nport = 0\n[queues.q]\nkeep_journal = false\n"
        )
        keys = "server.connection_backlog, text.port, queues.q.keep_journal"
        for _ in range(2):  # they still wait for it
            assert wire.ask(b"reload").decode() == f"Reloaded config. Only a restart takes over: {keys}"
        assert server.stderr.count(f'config.later keys="{keys}"') == 2
        server.config.write_text(text)
        assert wire.ask(b"reload") == b"Reloaded config."


def test_kestrels_answer_to_reload_is_kestrels(tmp_path: Path) -> None:
    config = "[memcache]\ndialect = 'kestrel'\n"
    with running(tmp_path, config=config) as server, Wire(server.address) as wire:
        server.config.write_text(config + "[server]\nconnection_backlog = 7\n")
        assert wire.ask(b"reload") == b"Reloaded config."


def test_a_timer_that_a_reload_starts_runs_though_nobody_asks_for_anything(tmp_path: Path) -> None:
    never = '[server]\nexpiration_timer_frequency = "none"\n[queues.e]\nmax_age = "50ms"\nexpire_to_queue = "ex"\n'
    with running(tmp_path, config=never) as server:
        with Wire(server.address) as wire:
            assert wire.put("e", b"1") == b"STORED"
            assert wire.get("ex") is None
        until(lambda: False, 0.3)  # it is over by now, and the server waits for events
        target = server.spool / "ex"
        before = target.stat().st_size
        server.config.write_text(never.replace('"none"', '"50ms"'))
        server.signal(signal.SIGHUP)
        assert until(lambda: target.stat().st_size > before)
