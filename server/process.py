"""The figures of this process, from /proc (proc_pid_stat(5), proc_pid_statm(5))."""

from __future__ import annotations

import os
import resource
from time import time

from staniel.broker.admin.process import ProcessFigures

PAGE_BYTES = resource.getpagesize()
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
START_TICKS_AT = 19  # the index behind the command's name: field 22 in all


class ProcessReader:
    """A reader of the figures, called for each scrape: 40 us."""

    def __init__(self) -> None:
        self._started_s = _started_s()

    def __call__(self) -> ProcessFigures | None:
        """Return the figures, None on a system without /proc."""
        try:
            with open("/proc/self/statm", "rb") as file:
                virtual, resident = file.read().split()[:2]
            used = resource.getrusage(resource.RUSAGE_SELF)
            return ProcessFigures(
                cpu_s=used.ru_utime + used.ru_stime,
                resident_bytes=int(resident) * PAGE_BYTES,
                virtual_bytes=int(virtual) * PAGE_BYTES,
                open_fds=_open_fds(),
                max_fds=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                started_s=self._started_s,
            )
        except (OSError, ValueError):
            return None


def _open_fds() -> int:
    """Return the number of open files. Since Linux 6.2 the size of the folder is that number; reading the folder takes
    3 ms with 10,000 clients.
    """
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd")) - 1


def _started_s() -> float:
    """Return the start time by the system's uptime: the boot time since 1970 shifts when the clock is set."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[START_TICKS_AT])
        with open("/proc/uptime", "rb") as file:
            uptime_s = float(file.read().split()[0])
        return time() - (uptime_s - ticks / TICKS_PER_S)
    except (OSError, ValueError, IndexError):
        return time()
