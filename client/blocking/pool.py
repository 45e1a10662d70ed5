# Made of client/aio/pool.py by packaging/blocking_client.py (`make blocking`): change that file, not this one.
"""Shared clients: each is lent to one thread at a time.

Only the borrower uses a lent client, so open items can be ended by their ids. A client that comes back with open items,
or with a lost connection, is closed; the server then returns the items to their queues.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from staniel.client.blocking.client import Client
from staniel.client.blocking.closing import Closing
from staniel.client.blocking.multi import MultiClient
from staniel.client.blocking.transport import Places
from staniel.client.cluster import Cluster
from staniel.client.errors import Busy
from staniel.client.headers import Tracing
from staniel.client.servers import Address, chance


class Lent(Protocol):
    """A client that a pool can lend."""

    @property
    def is_reusable(self) -> bool:
        """True if it may be lent again."""

    def close(self) -> None:
        """Close it."""


LentT = TypeVar("LentT", bound=Lent)
LAST = (-1,)


class Lending(Closing, Generic[LentT]):
    """The clients of a pool, of either kind."""

    def __init__(self, make: Callable[[], LentT], max_clients: int) -> None:
        """Prepare a pool; nothing is sent yet. Raises ValueError as `make` does, and for `max_clients` below 1."""
        if max_clients < 1:
            raise ValueError(f"max_clients is a number from 1 up, not {max_clients}")
        self._max_clients = max_clients
        make()  # a login that cannot be sent is refused now
        self._make = make
        self._reset_connections()

    def _get_ready(self, client: LentT) -> None:
        """Make a client ready to be lent."""
        raise NotImplementedError

    def _reset_connections(self) -> None:
        self._process = os.getpid()
        self._idle: list[LentT] = []
        self._places = Places(self._max_clients)

    @contextmanager
    def client(self, *, wait_s: float = 10) -> Iterator[LentT]:
        """Yield a client, lent for the length of the block. Raises Busy if none becomes free within `wait_s`.

        A Pool's client is connected: it raises ConnectionLost if the server cannot be reached. A ClusterPool's client
        connects with its first request.
        """
        if os.getpid() != self._process:
            before = self._idle
            self._reset_connections()
            for idle in before:
                idle.close()  # this process's descriptor alone: the connection is the parent's
        places, hold = self._places, object()
        lent: list[LentT] = []  # the client, from the moment on in which it is not idle
        try:
            if not places.acquire(hold, wait_s):
                if places.is_over:
                    raise ValueError("the pool is closed; make another")
                raise Busy(f"all {self._max_clients} clients of the pool are lent, and none came back in {wait_s:g} s")
            try:
                self._borrow(lent)
                self._get_ready(lent[0])
                yield lent[0]
            finally:
                try:
                    for client in lent:
                        self._take_back(client)
                except BaseException:
                    for client in lent:
                        client.close()
                    raise
        finally:
            try:
                places.give_back(hold)
            finally:
                places.give_back(hold)  # in case an exception came first

    def _borrow(self, lent: list[LentT]) -> None:
        """Add a client to `lent`: that used last, so that the server can close others that are idle, or a new one."""
        while True:
            try:
                lent.extend(map(self._idle.pop, LAST))  # one call, in which no signal's handler runs
            except IndexError:
                lent.append(self._make())
                return
            if lent[0].is_reusable:
                return
            lent[0].close()
            lent.clear()

    def _take_back(self, client: LentT) -> None:
        if client.is_reusable:
            self._idle.append(client)
            if self._places.is_over:
                self._close_idle()  # by this call or by the one in `close`, whichever comes later
        else:
            client.close()

    def close(self) -> None:
        """Close the idle clients, and the lent ones when they come back."""
        self._places.end()
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            try:
                client = self._idle.pop()
            except IndexError:
                return
            client.close()


class Pool(Lending[Client]):
    """Connections to one server, at most `max_clients`, made when they are needed. The other arguments are those of
    Client.

    A forked process begins with an empty pool of its own.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 22133,
        *,
        max_clients: int = 8,
        tls: ssl.SSLContext | None = None,
        user: str = "",
        secret: str = "",
        name: str = "",
        connect_timeout_s: float = 10,
        answer_timeout_s: float = 30,
        tracing: Tracing | None = None,
    ) -> None:
        """Prepare a pool; nothing is sent yet. Raises ValueError as Client does, and for `max_clients` below 1."""

        def make() -> Client:
            return Client(
                host,
                port,
                tls=tls,
                user=user,
                secret=secret,
                name=name,
                connect_timeout_s=connect_timeout_s,
                answer_timeout_s=answer_timeout_s,
                tracing=tracing,
            )

        super().__init__(make, max_clients)

    def _get_ready(self, client: Client) -> None:
        client.connect()


class ClusterPool(Lending[MultiClient]):
    """Clients of a cluster, at most `max_clients`, that follow its leader. The other arguments are those of MultiClient
    with `cluster`. The leader that one client has found is known to all.

    A forked process begins with an empty pool of its own.
    """

    def __init__(
        self,
        members: Sequence[Address],
        *,
        max_clients: int = 8,
        leader_wait_s: float = 5,
        repeat_unknown: bool = False,
        tls: ssl.SSLContext | None = None,
        user: str = "",
        secret: str = "",
        name: str = "",
        connect_timeout_s: float = 2,
        answer_timeout_s: float = 30,
        tracing: Tracing | None = None,
    ) -> None:
        """Prepare a pool; nothing is sent yet. Raises ValueError as MultiClient does, and for `max_clients` below 1."""
        cluster = Cluster([(host, port) for host, port in members], chance) if members else True

        def make() -> MultiClient:
            return MultiClient(
                members,
                cluster=cluster,
                leader_wait_s=leader_wait_s,
                repeat_unknown=repeat_unknown,
                tls=tls,
                user=user,
                secret=secret,
                name=name,
                connect_timeout_s=connect_timeout_s,
                answer_timeout_s=answer_timeout_s,
                tracing=tracing,
            )

        super().__init__(make, max_clients)

    def _get_ready(self, client: MultiClient) -> None:
        client._drop_lost()
