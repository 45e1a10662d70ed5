"""Handling of an exception in an operator's request: the request gets an error, and the log a line.

Only requests that show something, or change settings, are guarded so. An exception in a client's put or get, or in a
change of a queue, ends the process: recovery restores what is durable.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from staniel.broker.events import Level
from staniel.journal.group_commit import JournalFailure
from staniel.queues.registry import TryNextTurn

if TYPE_CHECKING:
    from staniel.broker.broker import Broker
    from staniel.broker.session import Session

PASSED = (TryNextTurn, JournalFailure, MemoryError)
"""Exceptions that pass. TryNextTurn is no failure; the others always end the process."""
ANSWER = "the server failed to serve this request; its log says why (request.failed)"
Handler = Callable[["Session", Any, int], None]


def report_failure(broker: Broker, what: str, client: str, error: Exception, now_ms: int) -> None:
    """Log an exception that has been caught, with the line of code that raised it. Raises it if it is one of PASSED."""
    if isinstance(error, PASSED):
        raise error
    frames = extract_tb(error.__traceback__)
    at = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    why = f"{type(error).__name__}: {error}"
    fields = {"request": what, "client": client, "why": why, "at": at}
    broker.client_events.of_kind((what, at), Level.ERROR, "request.failed", now_ms, **fields)


def guarded(handler: Handler) -> Handler:
    """Wrap `handler` of a text protocol's request: an exception becomes a server error."""

    def serve(session: Session, request: Any, now_ms: int) -> None:
        try:
            handler(session, request, now_ms)
        except Exception as error:
            refuse_failed(session, type(request).__name__, error, now_ms)

    return serve


def refuse_failed(session: Session, what: str, error: Exception, now_ms: int) -> None:
    """Reply with an error to a request of a text protocol that raised `error`. Raises it if it must not be caught."""
    report_failure(session.broker, what, session.address, error, now_ms)
    if session.protocol == "memcache":
        session.refuse(ANSWER)
    else:
        session.hang_up(b"")
