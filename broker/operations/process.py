"""What the system says of the server's process, under the names of Prometheus' client libraries. The driver asks it."""

from __future__ import annotations

from msgspec import Struct


class ProcessFigures(Struct, frozen=True):
    """`cpu_s`: of all its threads since its start, in user and system mode. `started_s`: seconds since 1970."""

    cpu_s: float
    resident_bytes: int
    virtual_bytes: int
    open_fds: int
    max_fds: int
    started_s: float


def no_figures() -> ProcessFigures | None:
    """Of a driver that has no process, as the simulator."""
    return None
