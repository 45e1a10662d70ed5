"""Signals that arrive before the hub's own receiver exists, and while the server ends.

The process calls `hold_signals` first, and `begin_service` when the hub's own receiver exists. Only the standard
library's lightest modules are imported here: by default SIGHUP, SIGUSR1 and SIGUSR2 end a process, and loading the
server takes a few tenths of a second.
"""

from __future__ import annotations

import os
import select
import signal
from enum import Enum
from types import FrameType


class Phase(Enum):
    STARTING = "starting"
    SERVING = "serving"  # and ending: when the receiver has closed, signals come here again


class _SignalState:
    phase = Phase.STARTING
    reload_wanted = False


def hold_signals() -> None:
    """Hold signals: remember SIGHUP, end a start cleanly at SIGTERM and SIGINT, ignore SIGUSR1 and SIGUSR2."""
    signal.signal(signal.SIGHUP, _remember)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def begin_service() -> bool:
    """Leave signals to the receiver. Return True if SIGHUP came before: then the configuration must be reloaded."""
    _SignalState.phase = Phase.SERVING
    return _SignalState.reload_wanted


def _remember(number: int, frame: FrameType | None) -> None:
    _SignalState.reload_wanted = True


def _stop(number: int, frame: FrameType | None) -> None:
    """Exit on the spot: the next start finds the spool as after a crash, whatever this one was doing. An exception
    instead would be raised in the middle of trio.
    """
    if _SignalState.phase is not Phase.STARTING:
        return
    flag = select.poll()
    flag.register(2, select.POLLOUT)
    try:
        if flag.poll(0):  # a pipe without a reader must not prevent the end
            os.write(2, f"staniel: stopped by {signal.Signals(number).name} before it served\n".encode())
    except OSError:
        pass  # standard error is closed
    os._exit(0)
