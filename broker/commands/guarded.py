"""The guard of requests that show something or change settings: an exception becomes an error for the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from staniel.broker.failures import ANSWER, report_failure
from staniel.broker.session import Session

Handler = Callable[[Session, Any, int], None]


def guarded(handler: Handler) -> Handler:
    """Wrap `handler` of a text protocol's request: an exception becomes a server error."""

    def serve(session: Session, request: Any, now_ms: int) -> None:
        try:
            handler(session, request, now_ms)
        except Exception as error:
            refuse_failed(session, type(request).__name__, error, now_ms)

    return serve


def refuse_failed(session: Session, what: str, error: Exception, now_ms: int) -> None:
    """Reply with an error to a request of a text protocol that raised `error`. Raise `error` again if it must not be
    caught.
    """
    report_failure(session.broker.client_events, what, session.address, error, now_ms)
    if session.protocol == "memcache":
        session.refuse(ANSWER)
    else:
        session.hang_up(b"")
