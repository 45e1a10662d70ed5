"""The replies of the workq protocol as bytes."""

from __future__ import annotations

from collections.abc import Sequence

from staniel.protocol.workq.fields import show_id

ok = b"+OK\r\n"
not_found = b"-NOT-FOUND\r\n"
timeout = b"-TIMEOUT\r\n"
_LINE_ENDS = str.maketrans("\r\n", "  ")


def client_error(why: str) -> bytes:
    return b"-CLIENT-ERROR %b\r\n" % why.encode()


def server_error(why: str) -> bytes:
    return b"-SERVER-ERROR %b\r\n" % why.translate(_LINE_ENDS).encode("latin-1", "replace")


duplicate_job = client_error("Duplicate job")
duplicate_result = client_error("Duplicate result")
invalid_name = client_error("Invalid Name")
stopping = server_error("The server stops, the job is gone")
invalid_time = client_error("Invalid Time")
# The original's text for a log that cannot be written.
read_only = server_error("Read-only mode triggered by cmdlog circuit breaker")


def terms(name: bytes, ttr_ms: int) -> bytes:
    """Return the part of a lease's reply between the id of the job and the length of its payload."""
    return b" %b %d " % (name, ttr_ms)


def result(id: bytes, success: bool, data: bytes) -> bytes:
    return b"+OK 1\r\n%b %d %d\r\n%b\r\n" % (show_id(id), success, len(data), data)


def objects(blocks: Sequence[bytes]) -> bytes:
    return b"+OK %d\r\n%b" % (len(blocks), b"".join(blocks))


def block(name: bytes, lines: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return one inspected object: the number of its keys, then a line for each."""
    return b"%b %d\r\n%b" % (name, len(lines), b"".join(b"%b %b\r\n" % line for line in lines))
