"""What a supervisor hears of a server, and the unit that makes systemd one."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from staniel.server.supervisor import Supervisor
from tests.support.process import START_SECONDS_MAX, running

UNIT = Path(__file__).parents[2] / "packaging" / "staniel.service"


@pytest.fixture(params=["path", "abstract"])
def ears(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A supervisor's socket, and how the environment names it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(START_SECONDS_MAX)
        name = str(tmp_path / "notify") if request.param == "path" else f"@{tmp_path}/notify"
        sock.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        yield sock, name


def hear(sock: socket.socket) -> list[str]:
    return sock.recv(4096).decode().split("\n")


def test_a_server_says_when_it_serves_that_it_lives_and_that_it_stops(
    tmp_path: Path, ears: tuple[socket.socket, str]
) -> None:
    sock, name = ears
    # The system keeps ten messages, and what comes beyond is dropped: these are five seconds.
    wrapper = ("env", f"NOTIFY_SOCKET={name}", "WATCHDOG_USEC=1000000")
    with running(tmp_path, wrapper=wrapper) as server:
        assert hear(sock) == ["STATUS=starting"]
        ready, status = hear(sock)
        assert ready == "READY=1" and status == f"STATUS={server.greeting.rstrip()}"
        assert [hear(sock) for _ in range(3)] == [["WATCHDOG=1"]] * 3
        server.signal(signal.SIGTERM)
        heard = hear(sock)
        while heard == ["WATCHDOG=1"]:
            heard = hear(sock)
        assert heard == ["STOPPING=1"] and server.wait() == 0


def test_a_watchdog_of_another_process_is_none_of_ours() -> None:
    given = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "20000", "WATCHDOG_PID": "7"}
    assert Supervisor(given, 7).watchdog_s == 0.02 and Supervisor(given, 8).watchdog_s == 0
    assert Supervisor({"WATCHDOG_USEC": "20000"}, 7).watchdog_s == 0
    Supervisor(given, 7).notify("READY=1")  # no such socket: nothing happens


@pytest.mark.programs("systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "staniel.service"
    unit.write_text(UNIT.read_text().replace("/opt/staniel/bin/staniel", "/bin/true"))
    said = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
