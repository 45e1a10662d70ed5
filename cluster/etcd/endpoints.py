"""The endpoints of one etcd, tried in turn: for how long, with which token, and whether it is the etcd that it was (its
id, its revision).
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import trio

from staniel.cluster.etcd.connection import Connection, Endpoint, blamed_on, connect, parse_endpoint
from staniel.cluster.etcd.errors import (
    BadReplyError,
    Effect,
    EndpointFailure,
    EtcdError,
    EtcdRefusal,
    EtcdUnreachable,
    EtcdWentBack,
    ForeignEtcd,
)
from staniel.cluster.etcd.exchange import TOKEN
from staniel.cluster.etcd.messages import (
    Authenticated,
    Found,
    Header,
    Reading,
    Request,
    check_keys,
    decode,
    decode_streamed,
    encode_login,
    encode_range,
)

UNAUTHENTICATED = 16
# gRPC's codes of errors that are an endpoint's own, or pass: cancelled, unknown, deadline exceeded, resource exhausted,
# aborted, internal, unavailable. Zero: a gateway, or what stands before it, that gives none.
PASSING = frozenset({0, 1, 2, 4, 8, 10, 13, 14})
# Of those, what etcd replies before it hands a request on. "mvcc: database space exceeded" is not among them: etcd also
# says so of a transaction that it has carried out.
BEFORE_ANY_EFFECT = frozenset({"etcdserver: no leader", "etcdserver: too many requests"})

_ResultT = TypeVar("_ResultT")


class HasHeader(Protocol):
    """A reply of etcd."""

    @property
    def header(self) -> Header:
        """The reply's head."""


_ReplyT = TypeVar("_ReplyT", bound=HasHeader)


class Endpoints:
    """The endpoints, and what is known of the etcd behind them. `cluster_id` is 0 until the first reply. `revision` is
    the highest one in a reply that all of etcd stands behind. `failures` has the last one of each endpoint that has not
    replied since, by URL.
    """

    def __init__(
        self,
        urls: Sequence[str],
        timeout_s: float,
        tls: ssl.SSLContext | None,
        login: tuple[str, str] | None,
        cluster_id: int,
        revision: int,
    ) -> None:
        self._endpoints = [parse_endpoint(url) for url in urls]
        if not self._endpoints:
            raise ValueError("etcd needs at least one endpoint")
        if tls is None and any(endpoint.is_secure for endpoint in self._endpoints):
            raise ValueError("an endpoint with https needs a TLS context")
        self._timeout_s, self._tls = timeout_s, tls
        self.cluster_id, self.revision = cluster_id, revision
        self.failures: dict[str, str] = {}
        self._login = login
        self._token = ""

    def in_turn(self) -> list[Endpoint]:
        """Return the endpoints in the order in which to try them: the one that replied last is the first."""
        return list(self._endpoints)

    async def visit_any(self, action: Callable[[Connection], Awaitable[_ResultT]]) -> _ResultT:
        """Return the result of an action on the first endpoint that carries it out. Raises EtcdUnreachable,
        ForeignEtcd, EtcdWentBack, EtcdRefusal.
        """
        failures: list[EndpointFailure] = []
        for endpoint in self.in_turn():
            try:
                return await self.visit(endpoint, action)
            except EndpointFailure as failure:
                failures.append(failure)
        raise worst_of(failures)

    async def visit(self, endpoint: Endpoint, action: Callable[[Connection], Awaitable[_ResultT]]) -> _ResultT:
        """Return the result of an action on an endpoint. Raises EndpointFailure, EtcdWentBack, EtcdRefusal."""
        connection, result = await self.open(endpoint, action)
        await connection.close()
        return result

    async def open(
        self, endpoint: Endpoint, action: Callable[[Connection], Awaitable[_ResultT]]
    ) -> tuple[Connection, _ResultT]:
        """Return a new connection, and the result of an action on it, both within the time-out. Raises EndpointFailure,
        EtcdWentBack, EtcdRefusal.
        """
        with self.failing(endpoint):
            with trio.move_on_after(self._timeout_s):
                connection = await connect(endpoint, self._tls)
                try:
                    result = await action(connection)
                except BaseException:
                    await connection.close()
                    raise
                self._prefer(endpoint)
                return connection, result
            raise EndpointFailure(endpoint.url, f"no reply within {self._timeout_s:g} s")

    @contextmanager
    def failing(self, endpoint: Endpoint) -> Iterator[None]:
        """Raise what goes wrong with a connection as EndpointFailure, and remember it for operators."""
        try:
            with blamed_on(endpoint):
                yield
        except EndpointFailure as failure:
            self.failures[endpoint.url] = failure.why
            raise

    def _prefer(self, endpoint: Endpoint) -> None:
        """Begin with this endpoint from now on."""
        self.failures.pop(endpoint.url, None)
        at = self._endpoints.index(endpoint)
        self._endpoints = self._endpoints[at:] + self._endpoints[:at]

    async def read(self, connection: Connection, key: bytes, *, is_prefix: bool) -> Reading:
        """Return a key, or all that begin with it, as all of etcd agrees on them. Raises as `ask_all`."""
        reply = await self.ask_all(connection, encode_range(key, is_prefix=is_prefix), Found)
        if reply.more:
            raise BadReplyError(f"more than {len(reply.kvs)} keys begin with {key!r}")
        check_keys(reply.kvs, key, is_prefix=is_prefix)
        return Reading(reply.header.cluster_id, reply.header.revision, reply.kvs)

    async def ask_all(self, connection: Connection, request: Request, kind: type[_ReplyT]) -> _ReplyT:
        """Return the reply to a request for which the endpoint asks the others, so that its revision is not lower than
        that of any earlier reply. Raises EtcdWentBack, and as `ask`.
        """
        known = self.revision  # before the request leaves: others may be on their way
        reply = await self.ask(connection, request, kind)
        if not reply.header.revision:
            raise BadReplyError("its reply has no revision")
        if reply.header.revision < known:
            raise EtcdWentBack(connection.endpoint.url, known, reply.header.revision)
        self.revision = max(self.revision, reply.header.revision)
        return reply

    async def ask(
        self,
        connection: Connection,
        request: Request,
        kind: type[_ReplyT],
        decoder: Callable[[type[_ReplyT], bytes], _ReplyT] = decode,
    ) -> _ReplyT:
        """Return the reply to a request. Raises EtcdRefusal, EndpointFailure, and as a connection does."""
        token = await self._ask_for_token(connection)
        try:
            try:
                body = await connection.ask(request, token)
            except EtcdRefusal as refusal:
                if refusal.code != UNAUTHENTICATED or not token:
                    raise
                self._token = ""  # it has expired
                body = await connection.ask(request, await self._ask_for_token(connection))
            reply = decoder(kind, body)
        except EtcdRefusal as refusal:
            raise _by_code(connection.endpoint, refusal) from None
        self._check_cluster(connection.endpoint, reply)
        return reply

    async def begin_stream(self, connection: Connection, request: Request) -> None:
        """Send a request whose reply has no end. Raises as `ask`."""
        await connection.send(request, await self._ask_for_token(connection))

    async def receive(self, connection: Connection, kind: type[_ReplyT]) -> list[_ReplyT]:
        """Return the next messages of the stream, at least one. Raises as `ask`."""
        try:
            replies = [decode_streamed(kind, message) for message in await connection.receive_messages()]
        except EtcdRefusal as refusal:
            raise _by_code(connection.endpoint, refusal) from None
        for reply in replies:
            self._check_cluster(connection.endpoint, reply)
        return replies

    async def _ask_for_token(self, connection: Connection) -> str:
        """Return the token, the old one as long as there is one; empty without a login."""
        if self._login is None or self._token:
            return self._token
        try:
            reply = decode(Authenticated, await connection.ask(encode_login(*self._login), ""))
        except EtcdRefusal as refusal:
            raise _by_code(connection.endpoint, refusal) from None
        self._check_cluster(connection.endpoint, reply)
        if not TOKEN.fullmatch(reply.token):
            raise BadReplyError("its reply to the login has no token")
        self._token = reply.token
        return reply.token

    def _check_cluster(self, endpoint: Endpoint, reply: HasHeader) -> None:
        actual = reply.header.cluster_id
        self.cluster_id = self.cluster_id or actual
        if actual != self.cluster_id:
            raise ForeignEtcd(endpoint.url, self.cluster_id, actual)


def _by_code(endpoint: Endpoint, refusal: EtcdRefusal) -> EtcdError:
    """Return the refusal, or the endpoint's failure if another may do better."""
    if refusal.code not in PASSING:
        return refusal
    effect = Effect.NONE if refusal.message in BEFORE_ANY_EFFECT else Effect.UNKNOWN
    return EndpointFailure(endpoint.url, refusal.message, effect)


def worst_of(failures: Sequence[EndpointFailure]) -> EtcdError:
    """Return what to raise if all endpoints fail: that one is foreign says more than that others do not reply."""
    foreign = [failure for failure in failures if isinstance(failure, ForeignEtcd)]
    return foreign[0] if foreign else EtcdUnreachable(failures)
