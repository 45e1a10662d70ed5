"""A connection: a conversation of `protocol/client` over a socket, with its time-outs.

An interrupted exchange closes the connection, because the rest of its reply would be read as the reply to the next
request. `client.py` and `jobs.py` interpret replies.

A signal's handler may raise at any line. So each exchange has a token of its own, its hold: `leave_exchange` knows by
it whether the exchange has the turn, also if the call that took it or gave it back was cut off. What a reply means for
the client is noted before `end_exchange`: so no reply is lost on a connection that stays open.

    hold = object()
    try:
        connection.begin_exchange(hold)
        ...
        connection.end_exchange(hold)
    except BaseException as error:
        await connection.leave_exchange(hold, error)
        raise
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Generic, NoReturn, TypeVar, cast

from staniel.client.aio.transport import Transport, Turn, in_shield, open_transport, shielded
from staniel.client.errors import Busy, ClientError, ConnectionLost, Outcome
from staniel.client.forks import FORKS
from staniel.client.sockets import SHIELD_S, NoAnswer, TooSlow, no_answer
from staniel.client.talk import ReplyT, RequestT, Talk
from staniel.protocol.client.replies import ProtocolViolation

ValueT = TypeVar("ValueT")

BUSY = "another task is using this client; give each task one of its own"
FORKED = "this process was forked after the client had connected; make a client in each process"


class ConnectionState(Enum):
    NEW = "new"
    OPEN = "open"
    CLOSED = "closed"  # for ever; `why` says the reason


_OPEN, _NOT_DONE = ConnectionState.OPEN, Outcome.NOT_DONE  # found in fewer steps
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
        self._answer_timeout_s = self._answer_timeout_s_max = answer_timeout_s
        self._turn = Turn()
        self._conversation = conversation
        self._replies: list[ReplyT | ProtocolViolation] = []
        self._outcome = Outcome.NOT_DONE
        self._is_touched = False
        """True if the present exchange has used the socket."""
        self._forks = FORKS.count

    async def connect(self, timeout_s: float) -> None:
        """Connect, within an exchange. Raises ConnectionLost if no server listens there or its certificate is not
        accepted.
        """
        host, port = self._address
        try:
            self.transport = await open_transport(host, port, self._tls, timeout_s)
        except OSError as error:
            why = str(error) if str(error) and not isinstance(error, TimeoutError) else f"too slow, {timeout_s:g} s"
            raise ConnectionLost(f"no connection to {host}:{port}: {why}", Outcome.NOT_DONE) from error
        if self.state is ConnectionState.CLOSED:  # meanwhile, by another task
            await self.transport.close()
            raise ConnectionLost(self.why, Outcome.NOT_DONE)
        self._is_touched = True
        self._forks = FORKS.count
        self.state = ConnectionState.OPEN

    def limit_answers(self, seconds: float) -> None:
        """Wait for replies no longer than this, and no longer than the client was told to."""
        self._answer_timeout_s = min(seconds, self._answer_timeout_s_max)

    # exchanges

    def begin_exchange(self, hold: object) -> None:
        """Begin an exchange. Raises ConnectionLost if the connection cannot be used, Busy during another exchange."""
        if self.state is not _OPEN or FORKS.count != self._forks:
            self._must_be_usable()
        if not self._turn.acquire(hold):
            raise Busy(BUSY)
        self._outcome = _NOT_DONE
        self._is_touched = False

    async def begin_in_turn(self, hold: object, timeout_s: float) -> None:
        """Begin an exchange when those of others are over. Raises as `begin_exchange`, Busy if others take too long."""
        if self.state is not _OPEN or FORKS.count != self._forks:
            self._must_be_usable()
        if not self._turn.acquire(hold) and not await self._turn.wait(hold, timeout_s):
            raise Busy(BUSY)
        self._outcome = _NOT_DONE
        self._is_touched = False
        if self.state is ConnectionState.CLOSED:  # meanwhile
            raise ConnectionLost(self.why, Outcome.NOT_DONE)

    def _must_be_usable(self) -> None:
        """Raise ConnectionLost if the connection is closed, or is one of the process that has forked this one."""
        if self.state is not ConnectionState.NEW:
            raise ConnectionLost(self.why if self.state is ConnectionState.CLOSED else FORKED, Outcome.NOT_DONE)
        if FORKS.count != self._forks:  # one of the parent may have been connecting
            self._forks, self._turn, self.transport = FORKS.count, Turn(), None

    def end_exchange(self, hold: object) -> None:
        """End an exchange whose replies have all come."""
        self._turn.end(hold)

    async def leave_exchange(self, hold: object, error: BaseException) -> None:
        """End an exchange that raised `error`. If it was cut off, or has a request without its reply, close the
        connection. Do nothing if the exchange had not begun, or was over.
        """
        if not self._turn.is_held_by(hold):
            return
        try:
            if self.transport is not None:
                self.transport.note_unused()
            if self.state is ConnectionState.NEW:  # cut off while it connected: it can connect again
                transport, self.transport = self.transport, None
                if transport is not None:
                    await transport.close()
            elif self._is_owed or (self._is_touched and not isinstance(error, ClientError)):
                await self.close(CUT_OFF)
        finally:
            try:
                self._turn.end(hold)
            finally:
                self._turn.end(hold)  # in case an exception came first

    @property
    def _is_owed(self) -> bool:
        """True if a request has no reply, or a reply was not taken."""
        return bool(self._conversation.unanswered or self._replies)

    async def in_exchange(self, work: Callable[[], Awaitable[ValueT]]) -> ValueT:
        """Return the result of `work`, which sends and receives within an exchange."""
        hold = object()
        try:
            self.begin_exchange(hold)
            result = await work()
            if self._is_owed:
                await self.close(CUT_OFF)
            self.end_exchange(hold)
            return result
        except BaseException as error:
            await self.leave_exchange(hold, error)
            raise

    @property
    def is_at_rest(self) -> bool:
        """True if the connection is open, belongs to this process, has no exchange under way, and nothing unexpected
        was received.
        """
        if self.state is not ConnectionState.OPEN or FORKS.count != self._forks:
            return False
        hold = object()
        try:
            return self._turn.acquire(hold) and self.transport is not None and self.transport.is_quiet
        finally:
            try:
                self._turn.end(hold)
            finally:
                self._turn.end(hold)  # in case an exception came first

    async def request(self, request: RequestT, wait_s: float = 0, *, is_shielded: bool = False) -> ReplyT:
        """Return the reply to one request, in an exchange of its own. `is_shielded`: see `ask`."""
        hold = object()
        try:
            self.begin_exchange(hold)
            reply = await self._answered(request, wait_s + self._answer_timeout_s, is_shielded)
            self.end_exchange(hold)
            return reply
        except BaseException as error:
            await self.leave_exchange(hold, error)
            raise

    async def request_in_turn(self, request: RequestT, timeout_s: float) -> ReplyT:
        """Return the reply to one request, when exchanges of others are over. `timeout_s` is for each of the two.
        Raises Busy if others take too long.
        """
        hold = object()
        try:
            await self.begin_in_turn(hold, timeout_s)
            reply = await self._answered(request, timeout_s)
            self.end_exchange(hold)
            return reply
        except BaseException as error:
            await self.leave_exchange(hold, error)
            raise

    # requests within an exchange

    async def ask(self, data: bytes, wait_s: float = 0, settle_s: float = 0, is_shielded: bool = False) -> bytes:
        """Send the bytes of a frequent request, and return the bytes that come next: `send` and `receive` with fewer
        steps. The caller compares them with the usual reply, and gives others to `read_reply`. `settle_s` is the time
        for the reply instead of the usual one. With `is_shielded`, the wait begins in a shield, for SHIELD_S.
        """
        transport = self.transport
        if transport is None:
            raise ConnectionLost(self.why or "not connected", Outcome.NOT_DONE)
        timeout_s = settle_s or wait_s + self._answer_timeout_s
        self._is_touched = True
        try:
            if is_shielded:
                heard = await self._exchange_in_shield(transport, data, timeout_s)
            else:
                heard = await transport.exchange(data, self._answer_timeout_s, timeout_s)
        except OSError as error:
            self._outcome = Outcome.UNKNOWN
            await self._fail_by(error)
        if heard is None:
            self._outcome = Outcome.NOT_DONE
            await self._fail_by_unasked()
        return heard

    async def read_reply(self, request: RequestT, heard: bytes, timeout_s: float | None = None) -> ReplyT:
        """Return the reply that `heard` is, or begins, after `ask`. `request` need be like the one that was sent only
        as far as that matters to the reply.
        """
        self._outcome = Outcome.UNKNOWN
        self._conversation.send(request)
        self._replies = self._conversation.receive(heard)[::-1]
        return await self._receive_alone(timeout_s)

    async def _exchange_in_shield(self, transport: Transport, data: bytes, timeout_s: float) -> bytes | None:
        """Send, and return the bytes that come next; wait for them in a shield, but for SHIELD_S only."""
        shield_s = min(SHIELD_S, timeout_s)
        try:
            return await in_shield(transport.exchange(data, shield_s, shield_s))
        except NoAnswer:
            if shield_s == timeout_s:
                raise
        try:
            return await transport.receive(timeout_s - shield_s)
        except NoAnswer:
            raise no_answer(timeout_s) from None

    async def _answered(self, request: RequestT, timeout_s: float, is_shielded: bool = False) -> ReplyT:
        """Return the reply to one request: `send` and `receive` with fewer steps."""
        data = self._conversation.send(request)
        transport = self.transport
        if self.state is ConnectionState.CLOSED or transport is None:
            raise ConnectionLost(self.why or "not connected", Outcome.NOT_DONE)
        self._is_touched = True
        try:
            if is_shielded:
                heard = await self._exchange_in_shield(transport, data, timeout_s)
            else:
                heard = await transport.exchange(data, self._answer_timeout_s, timeout_s)
        except OSError as error:
            self._outcome = Outcome.UNKNOWN
            await self._fail_by(error)
        if heard is None:
            self._outcome = Outcome.NOT_DONE
            await self._fail_by_unasked()
        self._outcome = Outcome.UNKNOWN
        self._replies = self._conversation.receive(heard)[::-1]
        return await self._receive_alone(timeout_s)

    async def _receive_alone(self, timeout_s: float | None) -> ReplyT:
        """Return the reply to the only request of an exchange."""
        reply = await self.receive(timeout_s=timeout_s)
        if self._is_owed:
            await self.close(CUT_OFF)  # more has come than was asked for
        return reply

    async def send(self, requests: Sequence[RequestT]) -> None:
        """Send requests within an exchange. Receive replies before sending more than fits the server's send buffer."""
        is_first = not self._conversation.unanswered
        data = self._conversation.send(*requests)
        if self.state is ConnectionState.CLOSED or self.transport is None:
            raise ConnectionLost(self.why or "not connected", Outcome.NOT_DONE)
        self._is_touched = True
        if is_first and self.transport.has_unasked():
            await self._fail_by_unasked()
        self._outcome = Outcome.UNKNOWN
        try:
            await self.transport.send(data, self._answer_timeout_s)
        except OSError as error:
            await self._fail_by(error)

    async def receive(self, wait_s: float = 0, *, timeout_s: float | None = None) -> ReplyT:
        """Return the next reply within an exchange. The wait of the request, `wait_s`, is added to the time-out."""
        if timeout_s is None:
            timeout_s = wait_s + self._answer_timeout_s
        while not self._replies:
            self._replies = self._conversation.receive(await self._read(timeout_s))[::-1]
        reply = self._replies.pop()
        if isinstance(reply, ProtocolViolation):
            await self._fail(f"out of step with the server, {reply.why}: {reply.line!r}")
        return reply

    async def receive_some(self) -> list[ReplyT]:
        """Return the next replies within an exchange, one at least: those that have come together."""
        some = self._replies[::-1]
        self._replies = []
        while not some:
            some = self._conversation.receive(await self._read(self._answer_timeout_s))
        if isinstance(some[-1], ProtocolViolation):
            self._replies = [some.pop()]
            if not some:
                await self.receive()  # which raises
        return cast(list[ReplyT], some)

    async def _read(self, timeout_s: float) -> bytes:
        if self.transport is None or self.state is ConnectionState.CLOSED:
            raise ConnectionLost(self.why, self._outcome)
        try:
            data = await self.transport.receive(timeout_s)
        except OSError as error:
            await self._fail_by(error)
        if not data:
            await self._fail("the server closed the connection")
        return data

    async def _fail_by_unasked(self) -> NoReturn:
        """Fail before a request is sent: the server has closed the connection, or has sent bytes that would be read as
        the reply.
        """
        data = await self._read(1)
        await self._fail(f"out of step with the server, which has sent what was not asked for: {data[:80]!r}")

    async def _fail_by(self, error: OSError) -> NoReturn:
        if isinstance(error, TimeoutError) and error.errno is None and not isinstance(error, TooSlow):
            raise error  # neither ours nor the system's: a signal's handler has raised it
        await self._fail(str(error) if isinstance(error, TooSlow) else f"the connection broke: {error}")

    async def _fail(self, why: str) -> NoReturn:
        await self.close(why)
        raise ConnectionLost(self.why, self._outcome)

    async def close(self, why: str) -> None:
        """Close at once, without waiting for the server. The first reason is kept. A second call does what an exception
        has kept the first one from.
        """
        if self.state is not ConnectionState.CLOSED:
            self.why = why
            self.state = ConnectionState.CLOSED
        if self.transport is not None:
            with shielded():  # the caller may have other connections to close
                await self.transport.close()
