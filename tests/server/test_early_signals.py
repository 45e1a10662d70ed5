"""Signals while the server starts, while it ends, and those that mean nothing to it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import Server, running
from tests.support.wire import Wire

AT_IMPORT = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {place!r}:
            strike()
sys.meta_path.insert(0, Finder())
"""
AT_CALL = """
import {module}
right = {module}.{name}
def struck(*args, **kwargs):
    strike()
    return right(*args, **kwargs)
{module}.{name} = struck
"""
SCRIPT = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which a child of nohup would not have
sys.argv = sys.argv[1:]
struck_already = False
def strike():
    global struck_already
    if not struck_already:
        struck_already = True
        os.kill(os.getpid(), {number})
from staniel.server.__main__ import main
{place}
sys.exit(main())
"""
PLACES = {
    "while the command line is read": AT_IMPORT.format(place="click"),
    "while the server is loaded": AT_IMPORT.format(place="staniel.server.app"),
    "during the recovery": AT_CALL.format(module="staniel.broker.recovery", name="KestrelQueues.recover"),
}
ENDING = AT_CALL.format(module="staniel.server.hub", name="Hub.close")


def struck_by(number: int, place: str) -> tuple[str, ...]:
    """The start of a command line that runs ours, and sends itself a signal at a place in its start or end."""
    return sys.executable, "-c", SCRIPT.format(number=int(number), place=place)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_before_the_greeting_does_not_end_the_server(tmp_path: Path, number: int, place: str) -> None:
    with running(tmp_path, wrapper=struck_by(number, PLACES[place])) as server:
        with Wire(server.address) as wire:
            assert wire.put("jobs", b"a") == b"STORED"
        server.stop()


def test_a_hang_up_during_the_recovery_has_the_file_read_again_once_it_serves(tmp_path: Path) -> None:
    wrapper = struck_by(signal.SIGHUP, PLACES["during the recovery"])
    with running(tmp_path, config="[default]\nmax_items = 9\n", wrapper=wrapper) as server:
        with Wire(server.address) as wire:
            wire.ask(b"version")
        assert server.stderr.count("config.reloaded") == 1
        server.stop()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_before_the_greeting_is_one_line_and_a_clean_end(tmp_path: Path, number: int, place: str) -> None:
    command = Server(tmp_path, wrapper=struck_by(number, PLACES[place])).command
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    name = signal.Signals(number).name
    assert (said.returncode, said.stdout) == (0, "")
    assert said.stderr == f"staniel: stopped by {name} before it served\n"


@pytest.mark.pure
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_while_it_ends_changes_nothing(tmp_path: Path, number: int) -> None:
    with running(tmp_path, wrapper=struck_by(number, ENDING)) as server:
        with Wire(server.address) as wire:
            wire.put("jobs", b"a")
        server.stop()
        assert "server.stopped" in server.stderr


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_signals_without_a_meaning_do_not_end_the_server(server: Server, number: int) -> None:
    for _ in range(3):
        server.signal(number)
        with Wire(server.address) as wire:
            assert wire.put("jobs", b"a") == b"STORED"
    server.stop()


def test_another_command_still_ends_by_a_hang_up() -> None:
    command = [*struck_by(signal.SIGHUP, AT_IMPORT.format(place="click")), "staniel", "--help"]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == -signal.SIGHUP
