"""A request and its reply, whole or in pieces, over as many turns as it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from staniel.broker.admin.views import ServerView, server_view
from staniel.broker.commands.batches import PieceCommand
from staniel.broker.failures import ANSWER, report_failure
from staniel.broker.operations.audit import Result
from staniel.broker.rights import Rights
from staniel.broker.session import Session
from staniel.protocol.http import replies
from staniel.protocol.http.requests import RAW, HttpRequest

T = TypeVar("T")
PIECE_BYTES = 64 << 10


class BadBody(Exception):
    """The refusal of a body that does not suit the path; the text says why."""


class Exchange:
    """A request to the admin listener while it is served. `names`: the open parts of the path, in their order. `rights`
    None: all.
    """

    def __init__(self, session: Session, request: HttpRequest, names: tuple[str, ...] = ()) -> None:
        self.session = session
        self.broker = session.broker
        self.request = request
        self.names = names
        self.rights: Rights | None = None
        self.operation = ""  # the name in the audit log if the request is refused; "": refusals are not audited
        self.now_ms = 0
        self._held: list[bytes] = []  # pieces of a body
        self._held_bytes = 0
        self._has_begun = False  # a part of the reply has been given to the session

    def server_view(self, now_ms: int) -> ServerView:
        broker = self.broker
        jobs = broker.workq.jobs if broker.serves_jobs else None
        return server_view(broker.queues, broker.spool, broker.status, broker.counters, jobs, now_ms)

    def number(self, name: str, default: int, most: int) -> int:
        """Return a number of the query, from 0 to `most`. Raises BadBody."""
        text = self.request.query.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise BadBody(f"{name} is not a number")
        return min(int(text), most)

    def body(self, kind: type[T]) -> T:
        """Decode the body as a `kind`; an empty body is {}. Raises BadBody."""
        if self.request.content_type == RAW:
            raise BadBody("this path takes JSON")
        try:
            return msgspec.json.decode(self.request.body or b"{}", type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadBody(f"the body is not what this path takes: {error}") from None

    def json(self, value: Any, status: int = 200) -> None:
        self.send(replies.json_reply(self.request, status, value))

    def error(self, status: int, why: str, more: dict[str, str] | None = None) -> None:
        self._note_refusal(why)
        self.send(replies.error_reply(self.request, status, why, more))

    def forbid(self, why: str) -> None:
        """Refuse a request that the client's rights do not allow."""
        self.broker.logins.refused += 1
        self.session.log_refusal(why, self.now_ms)
        self._note_refusal(why, is_forbidden=True)
        self.send(replies.error_reply(self.request, 403, why))

    def _note_refusal(self, why: str, *, is_forbidden: bool = False) -> None:
        if not self.operation:
            return
        about = self.names[0] if self.names else ""
        self.broker.audit.record_operation(
            self.session,
            self.operation,
            self.now_ms,
            queue=about,
            result=Result.REFUSED,
            why=why,
            is_forbidden=is_forbidden,
        )

    def fail(self, error: Exception, now_ms: int) -> None:
        """Handle `error`, which serving this request raised: reply 500, or disconnect if a part of the reply has been
        sent.
        """
        request = self.request
        report_failure(
            self.broker.client_events, f"{request.method} {request.path}", self.session.address, error, now_ms
        )
        if self._has_begun:
            self.session.hang_up(b"")
        else:
            self.send(replies.error_reply(request, 500, ANSWER))

    def guarded(self, step: Callable[..., None]) -> Callable[..., None]:
        """Wrap `step`, a later part of serving this request, so that an exception in it becomes a 500."""

        def run(*arguments: Any) -> None:
            try:
                step(*arguments)
            except Exception as error:
                self.fail(error, self.now_ms)

        return run

    def reply(self, status: int, body: bytes, content_type: str, more: dict[str, str] | None = None) -> None:
        self.send(replies.reply(self.request, status, body, content_type, more))

    def send(self, reply: bytes) -> None:
        """Send a whole reply and end this request."""
        self._has_begun = True
        self.session.out.append(reply)
        self.session.out_bytes += len(reply)
        self._end(replies.is_kept(self.request, 0))

    def begin_pieces(self, content_type: str) -> None:
        """Begin a reply in pieces: `add` them, then `end`."""
        self._held.append(replies.head(self.request, 200, content_type, None))

    def add(self, data: bytes) -> None:
        self._held.append(replies.chunk(self.request, data))
        self._held_bytes += len(data)
        if self._held_bytes >= PIECE_BYTES:
            self.flush()

    def add_each(self, pieces: Iterator[bytes]) -> None:
        """Send pieces with `add`, as many in a turn as there is time for, then `end`. A piece is made just before it is
        sent.
        """
        work = PieceCommand(self.session, map(self.add, pieces), lambda now_ms: self.end(), self.fail)
        self.session.yield_turn(work.make_some)

    def end(self) -> None:
        self._held.append(replies.last_chunk(self.request))
        self.flush()
        self._end(replies.is_kept(self.request, None))

    def flush(self) -> None:
        """Send the added pieces at the end of this turn."""
        self._has_begun = True
        data = b"".join(self._held)
        self.session.out.append(data)
        self.session.out_bytes += len(data)
        self._held, self._held_bytes = [], 0

    def _end(self, is_kept: bool) -> None:
        if not is_kept:
            self.session.hang_up(b"")
