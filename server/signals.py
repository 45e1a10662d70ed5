"""Signals that arrive before the hub's own receiver is there, and while the server ends.

`hold` comes first in the process, `begin_service` when the hub's own receiver is there. Only the standard library's
lightest modules are imported here: by default SIGHUP, SIGUSR1 and SIGUSR2 end a process, and loading the server takes a
few tenths of a second.
"""

from __future__ import annotations

import os
import select
import signal
from enum import Enum
from types import FrameType


class Phase(Enum):
    STARTING = "starting"
    SERVING = "serving"  # and ending: when the receiver leaves, signals come here again


class _Held:
    phase = Phase.STARTING
    reload_wanted = False


def hold() -> None:
    """From now on SIGHUP is remembered, SIGTERM and SIGINT end a start cleanly, SIGUSR1 and SIGUSR2 mean nothing."""
    signal.signal(signal.SIGHUP, _remember)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def begin_service() -> bool:
    """The receiver handles signals now. Whether SIGHUP came before: the configuration is to be read again."""
    _Held.phase = Phase.SERVING
    return _Held.reload_wanted


def _remember(number: int, frame: FrameType | None) -> None:
    _Held.reload_wanted = True


def _stop(number: int, frame: FrameType | None) -> None:
    """Leave on the spot: whatever a start was doing, the next one finds the spool as a crash would leave it. Raising an
    exception instead would do so in the middle of trio.
    """
    if _Held.phase is not Phase.STARTING:
        return
    flag = select.poll()
    flag.register(2, select.POLLOUT)
    try:
        if flag.poll(0):  # a pipe without a reader must not keep it from ending
            os.write(2, f"staniel: stopped by {signal.Signals(number).name} before it served\n".encode())
    except OSError:
        pass  # standard error is closed
    os._exit(0)
