"""Counters of the server's statistics."""

from __future__ import annotations


class ServerCounters:
    """Counts since the start of the process. The class is not a Struct, because setting a Struct's fields takes more
    than twice as long.
    """

    __slots__ = (
        "bytes_read",
        "bytes_written",
        "cmd_get",
        "cmd_get_open_dropped",
        "cmd_get_timeout_dropped",
        "cmd_monitor",
        "cmd_monitor_get",
        "cmd_peek",
        "cmd_set",
        "curr_connections",
        "finished_but_add",
        "get_hits",
        "get_misses",
        "noreply_refused",
        "total_connections",
        "total_items",
    )

    def __init__(self) -> None:
        self.curr_connections = 0
        self.total_connections = 0
        self.cmd_get = 0
        self.cmd_set = 0
        self.cmd_peek = 0
        self.get_hits = 0
        self.get_misses = 0
        self.total_items = 0
        self.cmd_monitor = 0
        self.cmd_monitor_get = 0
        self.cmd_get_timeout_dropped = 0  # waits cut short because the client disconnected
        self.cmd_get_open_dropped = 0  # open reads given back because the client disconnected
        self.finished_but_add = 0  # items that arrived for a client which had just disconnected
        self.noreply_refused = 0  # requests that were refused without an answer, so that their clients do not know
        self.bytes_read = 0
        self.bytes_written = 0
