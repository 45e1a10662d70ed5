"""Handling of an exception in an operator's request: the request gets an error, and the log a line.

Only requests that show something or change settings are guarded. An exception in a client's put or get, or in a change
of a queue, ends the process: recovery restores what is durable.
"""

from __future__ import annotations

import os
from traceback import extract_tb

from staniel.broker.events import Level, RateLimitedSink
from staniel.journal.group_commit import JournalFailure
from staniel.queues.registry import TryNextTurn

PASSED = (TryNextTurn, JournalFailure, MemoryError)
"""Exceptions that are not caught. TryNextTurn is not a failure; the others always end the process."""
ANSWER = "the server failed to serve this request; its log says why (request.failed)"


def report_failure(client_events: RateLimitedSink, what: str, client: str, error: Exception, now_ms: int) -> None:
    """Log a caught exception with the line of code that raised it. If it is one of PASSED, raise it again."""
    if isinstance(error, PASSED):
        raise error
    frames = extract_tb(error.__traceback__)
    at = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    why = f"{type(error).__name__}: {error}"
    fields = {"request": what, "client": client, "why": why, "at": at}
    client_events.of_kind((what, at), Level.ERROR, "request.failed", now_ms, **fields)
