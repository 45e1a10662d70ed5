"""The client: what servers of a cluster ask of etcd, each a call that ends in time.

A call tries the endpoints in turn, the one that replied last first, and ends within `timeout_s` for each of them.
A read, a lease's grant, renewal or end can be carried out twice without harm, so a call that fails at one endpoint goes
on to the next. A put goes on only while nothing can have been written. If its reply is lost it is UNKNOWN: the caller
settles it by another put that compares the same revision, of which etcd carries out one at most.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from staniel.cluster.etcd.connection import Connection
from staniel.cluster.etcd.endpoints import Endpoints, worst_of
from staniel.cluster.etcd.errors import BadReplyError, Effect, EndpointFailure, EtcdRefusal, ForeignEtcd
from staniel.cluster.etcd.messages import (
    Found,
    Granted,
    Lease,
    Outcome,
    PutResult,
    Reading,
    Request,
    Revoked,
    Transacted,
    check_keys,
    decode_streamed,
    encode_grant,
    encode_put,
    encode_range,
    encode_renewal,
    encode_revoke,
)
from staniel.cluster.etcd.watch import Watch

TIMEOUT_S = 1.0
"""An endpoint's time: a third of the shortest lease that is of use."""
RENEW_S = 10.0
"""The time for which a watch believes in one connection."""
NOT_FOUND = 5


class Etcd:
    """An etcd, by the URLs of its members. `cluster_id` and `revision` are what is known of it from earlier, 0 if
    nothing is: an endpoint of another etcd is not asked, and one that went back raises EtcdWentBack.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout_s: float = TIMEOUT_S,
        renew_s: float = RENEW_S,
        tls: ssl.SSLContext | None = None,
        login: tuple[str, str] | None = None,
        cluster_id: int = 0,
        revision: int = 0,
    ) -> None:
        self._endpoints = Endpoints(urls, timeout_s, tls, login, cluster_id, revision)
        self._renew_s = renew_s

    @property
    def cluster_id(self) -> int:
        """The id of this etcd; 0: not known yet."""
        return self._endpoints.cluster_id

    @property
    def revision(self) -> int:
        """The highest revision that this client has seen."""
        return self._endpoints.revision

    @property
    def failures(self) -> dict[str, str]:
        """The reasons of endpoints that have failed and not replied since, by URL."""
        return dict(self._endpoints.failures)

    async def read_key(self, key: bytes) -> Reading:
        """Return a key as all of etcd agrees on it; no value if it is not there. Raises EtcdError."""
        return await self._read(key, is_prefix=False)

    async def read_prefix(self, prefix: bytes) -> Reading:
        """Return all keys that begin with `prefix`. Raises EtcdError, also if there are more than KEYS_MAX."""
        return await self._read(prefix, is_prefix=True)

    async def _read(self, key: bytes, *, is_prefix: bool) -> Reading:
        async def read(connection: Connection) -> Reading:
            return await self._endpoints.read(connection, key, is_prefix=is_prefix)

        return await self._endpoints.visit_any(read)

    async def put_if_unchanged(self, key: bytes, mod_revision: int, value: bytes, lease_id: int = 0) -> PutResult:
        """Write a key if it still has this revision, or if it is not there for 0; say what became of it.

        Raises EtcdRefusal, if etcd will not write it at all (no such lease, no permission), ForeignEtcd and
        EtcdWentBack: nothing was written, but for the last. A caller that is cancelled does not know the outcome.
        """
        request = encode_put(key, mod_revision, value, lease_id)
        failures: list[EndpointFailure] = []
        for endpoint in self._endpoints.in_turn():
            put = _Put(self._endpoints, request, key)
            try:
                return await self._endpoints.visit(endpoint, put.carry_out)
            except EndpointFailure as failure:
                if put.is_sent and failure.effect is not Effect.NONE:
                    return PutResult(Outcome.UNKNOWN, why=str(failure))
                failures.append(failure)
        worst = worst_of(failures)
        if isinstance(worst, ForeignEtcd):
            raise worst
        return PutResult(Outcome.NOT_TAKEN, why=str(worst))

    async def grant_lease(self, ttl_s: int) -> Lease:
        """Return a new lease. If the call fails there may be one without a key, which ends by itself. Raises
        EtcdError.
        """

        async def grant(connection: Connection) -> Lease:
            granted = await self._endpoints.ask(connection, encode_grant(ttl_s), Granted)
            if not (granted.ID and granted.TTL):
                raise BadReplyError("its reply has no lease")
            return Lease(granted.ID, granted.TTL)

        return await self._endpoints.visit_any(grant)

    async def renew_lease(self, lease_id: int) -> int:
        """Begin a lease's time anew, and return its seconds; 0 if it has ended. Raises EtcdError."""

        async def renew(connection: Connection) -> int:
            request = encode_renewal(lease_id)
            return (await self._endpoints.ask(connection, request, Granted, decode_streamed)).TTL

        return await self._endpoints.visit_any(renew)

    async def revoke_lease(self, lease_id: int) -> None:
        """End a lease, if it has not ended, and delete its keys. Raises EtcdError."""

        async def revoke(connection: Connection) -> None:
            await self._endpoints.ask(connection, encode_revoke(lease_id), Revoked)

        try:
            await self._endpoints.visit_any(revoke)
        except EtcdRefusal as refusal:
            if refusal.code != NOT_FOUND:
                raise

    def watch(self, key: bytes, *, is_prefix: bool = False) -> Watch:
        """Return a watch of a key, or of all that begin with it. `async with` closes it."""
        return Watch(self._endpoints, key, self._renew_s, is_prefix=is_prefix)


class _Put:
    """A put on one endpoint. `is_sent` is True from before its first byte leaves."""

    def __init__(self, endpoints: Endpoints, request: Request, key: bytes) -> None:
        self._endpoints, self._request, self._key = endpoints, request, key
        self.is_sent = False

    async def carry_out(self, connection: Connection) -> PutResult:
        """Write the key, after the endpoint has said of which etcd it is: a foreign one may have a key of this name and
        revision.
        """
        await self._endpoints.ask(connection, encode_range(self._key, is_local=True), Found)
        self.is_sent = True
        reply = await self._endpoints.ask_all(connection, self._request, Transacted)
        if reply.succeeded:
            return PutResult(Outcome.WRITTEN, revision=reply.header.revision)
        current = reply.current
        check_keys((current,) if current else (), self._key, is_prefix=False)
        return PutResult(Outcome.REFUSED, current=current)
