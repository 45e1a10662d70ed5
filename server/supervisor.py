"""The notifications to systemd: that the server serves, that it stops, and, regularly, that it is alive. Without
systemd nothing is sent. Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import trio


class Supervisor:
    """A sender of notifications. `environment` is what the supervisor gave the process with the number `pid`."""

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        period_us = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        self.watchdog_s = int(period_us) / 1e6 if self._address and is_ours and period_us.isdecimal() else 0.0

    def notify(self, *assignments: str) -> None:
        """Send assignments. A supervisor that does not listen, or has too much to read, does not stop the server."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(assignments).encode(), os.fsencode(self._address))
        except OSError:
            pass

    async def stay_alive(self) -> None:
        """Report twice in each watchdog period that the process is alive. It runs between turns, so a hanging hub
        reports nothing.
        """
        while self.watchdog_s:
            self.notify("WATCHDOG=1")
            await trio.sleep(self.watchdog_s / 2)
