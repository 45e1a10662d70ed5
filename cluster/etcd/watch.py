"""A watch of a key or a prefix, which outlives its connections.

It tells the state first, then changes. It begins anew where it was when a connection is lost, and in any case after
`renew_s`: a peer that is gone without a word cannot be told from one that has no news. Before each beginning it reads,
which only an etcd with a majority can reply to. If the changes since then are not kept any more (compacted), it tells
the state again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import TracebackType

import trio

from staniel.cluster.etcd.connection import Connection, Endpoint
from staniel.cluster.etcd.endpoints import Endpoints, worst_of
from staniel.cluster.etcd.errors import BadReplyError, EndpointFailure, EtcdRefusal
from staniel.cluster.etcd.messages import (
    Change,
    News,
    NewsKind,
    WatchMessage,
    check_keys,
    encode_watch,
)

PERMISSION_DENIED = 7
DENIED = "permission denied"


class Watch:
    """A watch, for one task. Who does not ask for news keeps none in memory: they wait in the connection."""

    def __init__(self, endpoints: Endpoints, key: bytes, renew_s: float, *, is_prefix: bool) -> None:
        self._endpoints, self._key, self._renew_s, self._is_prefix = endpoints, key, renew_s, is_prefix
        self._connection: Connection | None = None
        self._renew_at = 0.0  # trio's time
        self._told = 0  # the revision up to which all was told; 0: tell the state
        self._news: deque[News] = deque()

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. The next news come by another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def next_news(self) -> News:
        """Wait for the next news. Nothing is missed if a call is cancelled or raises: the next one goes on from there.

        Raises EtcdUnreachable if the connection is lost and no endpoint begins another; ForeignEtcd, EtcdWentBack,
        EtcdRefusal. A caller waits a little before it calls again.
        """
        failures: list[EndpointFailure] = []
        while not self._news:
            endpoints = self._endpoints.in_turn()
            if len(failures) > len(endpoints):  # each has failed since there was news, and the first one again
                raise worst_of(failures)
            try:
                if self._connection is None:
                    self._connection = await self._open_watch(endpoints[len(failures) % len(endpoints)])
                elif not await self._follow(self._connection):
                    failures.clear()
                    await self.close()
                if not self._told:
                    await self.close()
            except EndpointFailure as failure:
                failures.append(failure)
                await self.close()
            except BaseException:
                await self.close()
                raise
        return self._news.popleft()

    async def _open_watch(self, endpoint: Endpoint) -> Connection:
        """Return a connection on which the watch has begun."""
        connection, _ = await self._endpoints.open(endpoint, self._begin_on)
        self._renew_at = trio.current_time() + self._renew_s
        return connection

    async def _begin_on(self, connection: Connection) -> None:
        """Read what there is, ask for what comes behind what was told, and wait until etcd says that it looks."""
        reading = await self._endpoints.read(connection, self._key, is_prefix=self._is_prefix)
        if not self._told:
            self._news.append(News(NewsKind.STATE, reading.revision, values=reading.values))
            self._told = reading.revision
        request = encode_watch(self._key, self._told + 1, is_prefix=self._is_prefix)
        await self._endpoints.begin_stream(connection, request)
        self._take_messages(await self._endpoints.receive(connection, WatchMessage))

    async def _follow(self, connection: Connection) -> bool:
        """Wait for messages, and return True; False if it is time for another connection."""
        with self._endpoints.failing(connection.endpoint), trio.move_on_at(self._renew_at):
            self._take_messages(await self._endpoints.receive(connection, WatchMessage))
            return True
        return False

    def _take_messages(self, messages: Sequence[WatchMessage]) -> None:
        """Turn messages into news. If changes are not kept any more, nothing counts as told."""
        for message in messages:
            if message.compact_revision:
                self._told = 0
                return
            if message.canceled:
                if DENIED in message.cancel_reason:
                    raise EtcdRefusal(message.cancel_reason, PERMISSION_DENIED)
                raise BadReplyError(f"it has ended the watch: {message.cancel_reason or 'no reason given'}")
            self._tell_changes(message.events)

    def _tell_changes(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        check_keys([change.kv for change in changes], self._key, is_prefix=self._is_prefix)
        revisions = [change.kv.mod_revision for change in changes]
        if revisions[0] <= self._told or revisions != sorted(revisions):
            raise BadReplyError("changes come out of their order")
        self._told = revisions[-1]
        self._news.append(News(NewsKind.CHANGES, self._told, changes=tuple(changes)))
