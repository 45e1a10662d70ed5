"""Clients for the threads of one program: each is lent to one thread at a time.

A lent client is the borrower's alone, so open items can be ended by their ids. One that comes back with open items, or
whose connection was lost, is closed; the server then puts the items back.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from staniel.client.blocking.client import Client
from staniel.client.errors import Busy


class Pool:
    """Connections to one server, at most `max_clients`, made when they are needed. The other arguments are those of
    Client.

    A process that was forked begins with an empty pool of its own.
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
        connect_timeout_s: float = 10,
        answer_timeout_s: float = 30,
    ) -> None:
        """Prepare a pool; nothing is sent yet. Raises ValueError as Client does, and for `max_clients` below 1."""
        if max_clients < 1:
            raise ValueError(f"max_clients is a number from 1 up, not {max_clients}")
        self._max_clients = max_clients

        def make() -> Client:
            return Client(
                host,
                port,
                tls=tls,
                user=user,
                secret=secret,
                connect_timeout_s=connect_timeout_s,
                answer_timeout_s=answer_timeout_s,
            )

        make()  # a login that cannot be sent is refused now
        self._make = make
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lent = 0
        self._idle: list[Client] = []
        self._changed = threading.Condition()
        self._is_closed = False

    @contextmanager
    def client(self, *, wait_s: float = 10) -> Iterator[Client]:
        """Yield a connected client, lent for the length of the block. Raises Busy if none becomes free within `wait_s`,
        ConnectionLost if the server cannot be reached.
        """
        if os.getpid() != self._process:
            for each in self._idle:
                each.close()  # this process's descriptor alone: the connection is the parent's
            self._begin()
        client = self._borrow(wait_s)
        try:
            client.connect()
            yield client
        finally:
            self._give_back(client)

    def _borrow(self, wait_s: float) -> Client:
        until = time.monotonic() + wait_s
        with self._changed:
            while True:
                if self._is_closed:
                    raise ValueError("the pool is closed; make another")
                while self._idle:  # the one used last, so that others can be closed by the server for their silence
                    client = self._idle.pop()
                    if client.is_reusable:
                        self._lent += 1
                        return client
                    client.close()
                if self._lent < self._max_clients:
                    self._lent += 1
                    return self._make()
                left_s = until - time.monotonic()
                if left_s <= 0:
                    raise Busy(
                        f"all {self._max_clients} clients of the pool are lent, and none came back in {wait_s:g} s"
                    )
                self._changed.wait(left_s)

    def _give_back(self, client: Client) -> None:
        is_kept = client.is_reusable
        with self._changed:
            self._lent -= 1
            if is_kept and not self._is_closed:
                self._idle.append(client)
            self._changed.notify()
        if not is_kept or self._is_closed:
            client.close()

    def close(self) -> None:
        """Close the idle clients, and the lent ones when they come back."""
        with self._changed:
            self._is_closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for client in idle:
            client.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
