"""What the whole server counts. Numbers only, under the names that `stats` shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class ServerCounters:
    """Counts since the start of the process. No Struct: its fields are set at less than half the speed."""

    curr_connections: int = 0
    total_connections: int = 0
    cmd_get: int = 0
    cmd_set: int = 0
    cmd_peek: int = 0
    get_hits: int = 0
    get_misses: int = 0
    total_items: int = 0
    cmd_monitor: int = 0
    cmd_monitor_get: int = 0
    cmd_get_timeout_dropped: int = 0  # waits cut short by the client's end
    cmd_get_open_dropped: int = 0  # open reads given back by the client's end
    finished_but_add: int = 0  # items that came for a client which had just gone
    bytes_read: int = 0
    bytes_written: int = 0
