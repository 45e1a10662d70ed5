# Made of client/aio/connection.py by packaging/blocking_client.py (`make blocking`): change that file, not this one.
"""A connection: a conversation of `protocol/client` over a socket, with its time-outs.

An interrupted exchange closes the connection, because the rest of its reply would be read as the reply to the next
request. `client.py` and `jobs.py` interpret replies.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Generic, NoReturn, cast

from staniel.client.blocking.transport import Transport, Turn, open_transport, shielded
from staniel.client.errors import Busy, ConnectionLost, Outcome
from staniel.client.forks import FORKS
from staniel.client.talk import ReplyT, RequestT, Talk
from staniel.protocol.client.replies import ProtocolViolation

BUSY = "another thread is using this client; give each thread one of its own"
FORKED = "this process was forked after the client had connected; make a client in each process"


class ConnectionState(Enum):
    NEW = "new"
    OPEN = "open"
    CLOSED = "closed"  # for ever; `why` says the reason


_OPEN = ConnectionState.OPEN
CUT_OFF = "closed because a request was cut off before its answer"


class Connection(Generic[RequestT, ReplyT]):
    """A connection to one server, made by `connect`. `why` is the reason it was closed."""

    def __init__(
        self,
        address: tuple[str, int],
        tls: ssl.SSLContext | None,
        answer_timeout_s: float,
        conversation: Talk[RequestT, ReplyT],
    ) -> None:
        self.state = ConnectionState.NEW
        self.why = ""
        self.transport: Transport | None = None
        self._address = address
        self._tls = tls
        self._answer_timeout_s = answer_timeout_s
        self._turn = Turn()
        self._conversation = conversation
        self._replies: list[ReplyT | ProtocolViolation] = []
        self._outcome = Outcome.NOT_DONE
        self._forks = FORKS.count

    def connect(self, timeout_s: float) -> None:
        """Connect. Raises ConnectionLost if no server listens there or its certificate is not accepted."""
        host, port = self._address
        try:
            self.transport = open_transport(host, port, self._tls, timeout_s)
        except OSError as error:
            why = str(error) if str(error) and not isinstance(error, TimeoutError) else f"too slow, {timeout_s:g} s"
            raise ConnectionLost(f"no connection to {host}:{port}: {why}", Outcome.NOT_DONE) from error
        if self.state is ConnectionState.CLOSED:  # meanwhile, by another thread
            self.transport.close()
            raise ConnectionLost(self.why, Outcome.NOT_DONE)
        self._forks = FORKS.count
        self.state = ConnectionState.OPEN

    def begin_exchange(self) -> None:
        """Begin an exchange. Raises ConnectionLost if the connection is closed, Busy during another exchange."""
        if self.state is ConnectionState.NEW:
            self._forks = FORKS.count  # nothing is open yet that could belong to the parent
        if self.state is ConnectionState.CLOSED or FORKS.count != self._forks:
            self._refuse()
        if not self._turn.acquire():
            raise Busy(BUSY)
        self._outcome = Outcome.NOT_DONE

    def _refuse(self) -> NoReturn:
        raise ConnectionLost(self.why if self.state is ConnectionState.CLOSED else FORKED, Outcome.NOT_DONE)

    @property
    def is_at_rest(self) -> bool:
        """True if the connection is open, belongs to this process, has no exchange under way, and nothing unexpected
        was received.
        """
        if self.state is not ConnectionState.OPEN or FORKS.count != self._forks or not self._turn.acquire():
            return False
        try:
            return self.transport is not None and self.transport.is_quiet
        finally:
            self._turn.end()

    def end(self) -> None:
        """End an exchange. If it was interrupted, or a request is unanswered, close the connection."""
        try:
            if self._conversation.unanswered or self._replies:
                self.close(CUT_OFF)
        finally:
            self._turn.end()

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Let the block send and receive."""
        self.begin_exchange()
        try:
            yield
        finally:
            self.end()

    def request(self, request: RequestT, wait_s: float = 0) -> ReplyT:
        """Return the reply to one request."""
        if self.state is ConnectionState.CLOSED or FORKS.count != self._forks:
            self._refuse()
        if not self._turn.acquire():
            raise Busy(BUSY)
        return self._answered(request, wait_s + self._answer_timeout_s)

    def ask(
        self,
        request: RequestT,
        data: bytes,
        read: Callable[[bytes, RequestT], ReplyT | None],
        wait_s: float = 0,
        settle_s: float = 0,
    ) -> ReplyT:
        """Return the reply to a frequent request: `request` with fewer steps. `data` are its bytes; `request` need be
        like it only as far as that matters to the reply. `read` returns the reply that other bytes are, whole; if it
        returns None, the conversation reads them. With `settle_s` this waits for the end of other exchanges and for the
        reply, so long for each of the two.
        """
        if not self._turn.acquire() and not (settle_s and self._turn.wait(settle_s)):
            if self.state is ConnectionState.CLOSED:
                self._refuse()
            raise Busy(BUSY)
        transport = self.transport
        if transport is None or self.state is not _OPEN or FORKS.count != self._forks:
            self._fail_unsent()
        timeout_s = settle_s or wait_s + self._answer_timeout_s
        is_whole = is_noted = False
        try:
            heard = transport.exchange(data, self._answer_timeout_s, timeout_s)
            if heard is None:
                is_noted = True  # and has no reply to wait for
                self._outcome = Outcome.NOT_DONE
                self._fail_by_unasked()
            reply = read(heard, request)
            if reply is not None:
                is_whole = True
                return reply
            self._outcome = Outcome.UNKNOWN
            self._conversation.send(request)
            is_noted = True
            self._replies = self._conversation.receive(heard)[::-1]
            return self.receive(timeout_s=timeout_s)
        except OSError as error:
            self._outcome = Outcome.UNKNOWN
            self._fail_by(error)
        finally:
            if is_whole:
                self._turn.end()
            else:
                self._end_early(is_noted)

    def _fail_unsent(self) -> NoReturn:
        """Fail a request on a connection that cannot be used, and end the exchange."""
        self._turn.end()
        if self.state is ConnectionState.CLOSED or FORKS.count != self._forks:
            self._refuse()
        raise ConnectionLost("not connected", Outcome.NOT_DONE)

    def _end_early(self, is_noted: bool) -> None:
        """End an exchange whose reply was not read whole; a request that the conversation has not noted has none."""
        try:
            if not is_noted:
                self.close(CUT_OFF)
        finally:
            self.end()

    def _answered(self, request: RequestT, timeout_s: float) -> ReplyT:
        """Return the reply to one request, and end the exchange: `send`, `receive` and `end` with fewer steps."""
        is_whole = False
        try:
            data = self._conversation.send(request)
            transport = self.transport
            if self.state is ConnectionState.CLOSED or transport is None:
                raise ConnectionLost(self.why or "not connected", Outcome.NOT_DONE)
            try:
                heard = transport.exchange(data, self._answer_timeout_s, timeout_s)
            except OSError as error:
                self._outcome = Outcome.UNKNOWN
                self._fail_by(error)
            if heard is None:
                self._outcome = Outcome.NOT_DONE
                self._fail_by_unasked()
            self._outcome = Outcome.UNKNOWN
            replies = self._conversation.receive(heard)
            if len(replies) == 1:
                reply = replies[0]
                if not isinstance(reply, ProtocolViolation):
                    is_whole = True
                    return reply
            self._replies = replies[::-1]
            return self.receive(timeout_s=timeout_s)
        finally:
            if is_whole:
                self._turn.end()
            else:
                self.end()

    def request_in_turn(self, request: RequestT, timeout_s: float) -> ReplyT:
        """Return the reply to one request, when exchanges of others are over. `timeout_s` is for each of the two.
        Raises Busy if others take too long.
        """
        if self.state is ConnectionState.CLOSED or FORKS.count != self._forks:
            self._refuse()
        if not self._turn.acquire() and not self._turn.wait(timeout_s):
            raise Busy(BUSY)
        self._outcome = Outcome.NOT_DONE
        return self._answered(request, timeout_s)

    def send(self, requests: Sequence[RequestT]) -> None:
        """Send requests within an exchange. Receive replies before sending more than fits the server's send buffer."""
        is_first = not self._conversation.unanswered
        data = self._conversation.send(*requests)
        if self.state is ConnectionState.CLOSED or self.transport is None:
            raise ConnectionLost(self.why or "not connected", Outcome.NOT_DONE)
        if is_first and self.transport.has_unasked():
            self._fail_by_unasked()
        self._outcome = Outcome.UNKNOWN
        try:
            self.transport.send(data, self._answer_timeout_s)
        except OSError as error:
            self._fail_by(error)

    def receive(self, wait_s: float = 0, *, timeout_s: float | None = None) -> ReplyT:
        """Return the next reply within an exchange. The wait of the request, `wait_s`, is added to the time-out."""
        if timeout_s is None:
            timeout_s = wait_s + self._answer_timeout_s
        while not self._replies:
            self._replies = self._conversation.receive(self._read(timeout_s))[::-1]
        reply = self._replies.pop()
        if isinstance(reply, ProtocolViolation):
            self._fail(f"out of step with the server, {reply.why}: {reply.line!r}")
        return reply

    def receive_some(self) -> list[ReplyT]:
        """Return the next replies within an exchange, one at least: those that have come together."""
        some = self._replies[::-1]
        self._replies = []
        while not some:
            some = self._conversation.receive(self._read(self._answer_timeout_s))
        if isinstance(some[-1], ProtocolViolation):
            self._replies = [some.pop()]
            if not some:
                self.receive()  # which raises
        return cast(list[ReplyT], some)

    def _read(self, timeout_s: float) -> bytes:
        if self.transport is None or self.state is ConnectionState.CLOSED:
            raise ConnectionLost(self.why, self._outcome)
        try:
            data = self.transport.receive(timeout_s)
        except OSError as error:
            self._fail_by(error)
        if not data:
            self._fail("the server closed the connection")
        return data

    def _fail_by_unasked(self) -> NoReturn:
        """Fail before a request is sent: the server has closed the connection, or has sent bytes that would be read as
        the reply.
        """
        data = self._read(1)
        self._fail(f"out of step with the server, which has sent what was not asked for: {data[:80]!r}")

    def _fail_by(self, error: OSError) -> NoReturn:
        is_late = isinstance(error, TimeoutError) and error.errno is None  # ETIMEDOUT is the system's
        self._fail(str(error) if is_late else f"the connection broke: {error}")

    def _fail(self, why: str) -> NoReturn:
        self.close(why)
        raise ConnectionLost(self.why, self._outcome)

    def close(self, why: str) -> None:
        """Close at once, without waiting for the server. The first reason is kept."""
        if self.state is not ConnectionState.CLOSED:
            self.state = ConnectionState.CLOSED
            self.why = why
            if self.transport is not None:
                with shielded():  # the caller may have other connections to close
                    self.transport.close()
