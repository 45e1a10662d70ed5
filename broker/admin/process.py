"""Figures of the server's process, under the names of Prometheus' client libraries. The driver reads them from the
system.
"""

from __future__ import annotations

from msgspec import Struct


class ProcessFigures(Struct, frozen=True):
    """The figures of a process. `cpu_s`: of all its threads since its start, in user and system mode. `started_s`:
    seconds since 1970.
    """

    cpu_s: float
    resident_bytes: int
    virtual_bytes: int
    open_fds: int
    max_fds: int
    started_s: float


def no_figures() -> ProcessFigures | None:
    """Return the figures of a driver without a process, such as the simulator."""
    return None
