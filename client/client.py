"""The client's requests: put, get, reserve, peek, monitor and the others. Each says what is true when it fails.

The client never reconnects by itself: only the program knows which requests may be repeated.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from staniel.client.connection import Connection
from staniel.client.errors import ConnectionLost, Full, NotAllStored, Outcome, Refused
from staniel.client.messages import (
    SETTLE_SECONDS,
    PutOutcome,
    chunks_of,
    expect,
    milliseconds,
    put_outcome,
    put_request,
    put_requests,
    refusal_of,
    refused,
    with_options,
)
from staniel.client.monitoring import Monitoring
from staniel.protocol.client.conversation import read
from staniel.protocol.client.login import login, must_log_in
from staniel.protocol.client.replies import Answer, Error, Item, Reply, StatsReply, Text
from staniel.protocol.memcache.item_requests import Set
from staniel.protocol.memcache.requests import Confirm, Delete, Flush, Monitor, Request, Stats, Version


@asynccontextmanager
async def connect(
    host: str = "127.0.0.1",
    port: int = 22133,
    *,
    tls: ssl.SSLContext | None = None,
    user: str = "",
    secret: str = "",
    connect_timeout_s: float = 10,
    answer_timeout_s: float = 30,
) -> AsyncIterator[Client]:
    """Yield a connected client, and close it at the end of the block.

    `tls` is needed for a `tls_port`; `ssl.create_default_context()` trusts the system's authorities and checks that the
    certificate names `host`. `secret` is the password or token of `user`; only a server that asks for it gets it. A
    server that is silent for longer than its wait plus `answer_timeout_s` counts as lost.

    Raises ConnectionLost if no server listens there or its certificate is not accepted, Refused if it rejects `user`,
    ValueError for a name or secret with blanks.
    """
    request = login(user, secret.encode("utf-8", "surrogateescape")) if user or secret else None
    try:
        with trio.fail_after(connect_timeout_s):
            stream = await _open_stream(host, port, tls)
    except trio.BrokenResourceError as error:  # of the handshake
        raise ConnectionLost(f"no connection to {host}:{port}: {error.__cause__ or error}", Outcome.NOT_DONE) from error
    except (OSError, trio.TooSlowError) as error:
        raise ConnectionLost(f"no connection to {host}:{port}: {str(error) or 'too slow'}", Outcome.NOT_DONE) from error
    client = Client(stream, answer_timeout_s=answer_timeout_s)
    try:
        if request is not None:
            await client._log_in(request)
        yield client
    finally:
        await client.aclose()


async def _open_stream(host: str, port: int, tls: ssl.SSLContext | None) -> trio.abc.Stream:
    """Connect, with a TLS handshake if `tls` is given. Raises OSError, trio.BrokenResourceError."""
    plain = await trio.open_tcp_stream(host, port)
    if tls is None:
        return plain
    try:
        secure = trio.SSLStream(plain, tls, server_hostname=host)
        await secure.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(plain)
        raise
    return secure


class Client:
    """A connection for one request at a time, of one task at a time. A second task gets trio.BusyResourceError; only
    the end of a reservation waits until the connection is free.

    A request that is cancelled, or whose reply does not come, closes the connection: the server puts its open reads
    back, and every later call raises ConnectionLost. Every method can raise ConnectionLost, and Refused with the
    server's text.
    """

    def __init__(self, stream: trio.abc.Stream, *, answer_timeout_s: float = 30) -> None:
        self._connection = Connection(stream, answer_timeout_s)
        self._reserved: set[str] = set()

    async def aclose(self) -> None:
        """Close the connection. Open reads go back to the head of their queues."""
        await self._connection.close("closed by this program")

    async def _log_in(self, request: Set) -> None:
        (reply,) = await self._connection.request([Version()])
        if must_log_in(reply):
            (reply,) = await self._connection.request([request])
            if isinstance(reply, Error):
                raise refused(reply)

    # put

    async def put(
        self, queue: str, data: bytes, *, ttl_s: float | None = None, flags: int = 0, key: str = "", delay_s: float = 0
    ) -> PutOutcome:
        """Append an item. On return it is stored, as safely as the queue's sync policy says. Raises Full, Refused.

        `ttl_s` is rounded up to whole seconds. If the call is cancelled or raises ConnectionLost, the item may be
        stored or not. With a `key`, an idempotency key, it may be put again: an item that is there already is
        ALREADY_STORED. With `delay_s` no client gets it before that time has passed.
        """
        (reply,) = await self._connection.request([with_options(put_request(queue, data, ttl_s, flags), key, delay_s)])
        return put_outcome(reply, queue)

    async def put_many(
        self, queue: str, items: Sequence[bytes], *, ttl_s: float | None = None, flags: int = 0, delay_s: float = 0
    ) -> None:
        """Append items in order, many to a round trip. Raises NotAllStored; a refused item does not stop the others.

        ConnectionLost says how many were `answered`. If the call is cancelled, the first items may be stored, any
        number of them.
        """
        requests = put_requests(queue, items, ttl_s, flags, delay_s)
        failed: dict[int, Full | Refused] = {}
        answered = 0
        try:
            async with self._connection.exchange():
                for chunk in chunks_of(requests):
                    await self._connection.send(chunk)
                    for _ in chunk:
                        refusal = refusal_of(await self._connection.receive(), queue)
                        if refusal is not None:
                            failed[answered] = refusal
                        answered += 1
        except ConnectionLost as lost:
            lost.answered, lost.refused = answered, failed
            raise
        if failed:
            raise NotAllStored(failed)

    # read

    @asynccontextmanager
    async def reserve(self, queue: str, *, wait_s: float = 0) -> AsyncIterator[Item | None]:
        """Open the next item for the length of the block, None if none comes within `wait_s`.

        If the block ends well, the item is closed, gone for good. If the server does not reply to the close,
        ConnectionLost has the `item`. If the block raises or is cancelled, the item returns to the head of its queue.
        Both are shielded from cancellation for SETTLE_SECONDS. A cancelled wait takes nothing from the queue. Raises
        RuntimeError if this client already has a reservation of `queue`.
        """
        if queue in self._reserved:
            raise RuntimeError(f"this client has an item of {queue} reserved; end that block, or use another client")
        item = await self._fetch(queue, wait_s, open=True)
        if item is None:
            yield None
            return
        self._reserved.add(queue)
        try:
            yield item
        except BaseException:
            await self._hand_back(queue)
            raise
        else:
            await self._close_read(queue, item)
        finally:
            self._reserved.discard(queue)

    async def get(self, queue: str, *, wait_s: float = 0) -> Item | None:
        """Take the next item, None if none comes within `wait_s`: reserve it, close it, return it.

        It costs two round trips, and a cancelled get loses nothing.
        """
        async with self.reserve(queue, wait_s=wait_s) as item:
            return item

    async def peek(self, queue: str, *, wait_s: float = 0) -> Item | None:
        """Return the next item and leave it in the queue. Another client may take it at any moment."""
        return await self._fetch(queue, wait_s, peek=True)

    @asynccontextmanager
    async def monitor(self, queue: str, *, wait_s: float, max_items: int | None = None) -> AsyncIterator[Monitoring]:
        """Open items as they come, for `wait_s` (whole seconds), at most `max_items` (None: the server's limit).

        If the block ends well, the items given to its loop are closed together. After a `break`, the end of the block
        first waits for the monitor's end; if more items have come, it closes the connection, which puts those back in
        order. If the block raises or is cancelled, the connection closes and every item returns to its queue.
        """
        if queue in self._reserved:
            raise RuntimeError(f"this client has an item of {queue} reserved; end that block, or use another client")
        async with self._connection.exchange():
            await self._connection.send([Monitor(queue.encode("latin-1"), queue, milliseconds(wait_s), max_items)])
            items = Monitoring(self._connection, math.ceil(wait_s))
            try:
                yield items
                await items.drain()
                await self._confirm(queue, items)
            except BaseException:
                await self._connection.close("closed because a monitor was cut off")
                raise

    # the rest

    async def delete(self, queue: str) -> bool:
        """Delete a queue with all its items. Return False if there was no such queue."""
        return expect(await self._one(Delete(queue)), Answer.DELETED, Answer.NOT_FOUND) is Answer.DELETED

    async def flush(self, queue: str) -> None:
        """Remove all items except open ones."""
        expect(await self._one(Flush(queue)), Answer.END)

    async def stats(self) -> dict[str, str]:
        """Return the server's statistics by name, in its order."""
        reply = await self._one(Stats())
        assert isinstance(reply, StatsReply)
        return reply.values

    async def version(self) -> str:
        reply = await self._one(Version())
        assert isinstance(reply, Text)
        return reply.text

    # internal

    async def _one(self, request: Request, wait_s: float = 0) -> Reply:
        (reply,) = await self._connection.request([request], wait_s)
        if isinstance(reply, Error):
            raise refused(reply)
        return reply

    async def _fetch(self, queue: str, wait_s: float, *, open: bool = False, peek: bool = False) -> Item | None:
        reply = await self._one(read(queue, milliseconds(wait_s), open=open, peek=peek, with_id=True), wait_s)
        if isinstance(reply, Item):
            return reply
        expect(reply, Answer.END)
        return None

    async def _close_read(self, queue: str, item: Item) -> None:
        """Close the item. If it stayed open, the next close of this queue would close it instead of its own item."""
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + SETTLE_SECONDS) as limit:
                await self._connection.wait_idle()
                await self._one(read(queue, close=True))
            if limit.cancelled_caught:
                await self._connection.close("closed because an item could not be closed in time")
                raise ConnectionLost(f"no answer to a close for {SETTLE_SECONDS:g} s")
        except ConnectionLost as lost:
            lost.item = item
            raise
        except Refused:
            await self._connection.close("closed to hand an item back")
            raise

    async def _hand_back(self, queue: str) -> None:
        """Abort the read. If that is not possible, close the connection, which has the same effect."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + SETTLE_SECONDS) as limit:
            try:
                await self._connection.wait_idle()
                await self._one(read(queue, abort=True))
            except (ConnectionLost, Refused):
                await self._connection.close("closed to hand an item back")
        if limit.cancelled_caught:
            await self._connection.close("closed to hand an item back")

    async def _confirm(self, queue: str, items: Monitoring) -> None:
        """Close the items of a monitor that its loop was given, shielded like `_close_read`."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + SETTLE_SECONDS) as limit:
            if items.handed_over:
                await self._connection.send([Confirm(queue, items.handed_over)])
                reply = await self._connection.receive()
                if isinstance(reply, Error):
                    raise refused(reply)
            if items.left_over:
                await self._connection.close("closed to hand back what a monitor was not asked for")
        if limit.cancelled_caught:
            raise ConnectionLost(f"no answer to a confirm for {SETTLE_SECONDS:g} s")
