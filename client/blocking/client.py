# Made of client/aio/client.py by packaging/blocking_client.py (`make blocking`): change that file, not this one.
"""The client's requests: put, get, reserve, peek, monitor and the others. Each says what is true when it fails.

The client never reconnects by itself: only the program knows which requests may be repeated.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from staniel.client.blocking.closing import Connecting
from staniel.client.blocking.connection import Connection, ConnectionState
from staniel.client.blocking.monitoring import Monitoring
from staniel.client.blocking.transport import shielded
from staniel.client.errors import Busy, ConnectionLost, Full, NotAllStored, NotOpen, Outcome, Refused
from staniel.client.headers import ItemWithHeaders, Tracing, split, with_headers
from staniel.client.messages import (
    DELETED,
    DELETED_LINE,
    END_LINE,
    SETTLE_SECONDS,
    STORED,
    STORED_LINE,
    Batch,
    PutOutcome,
    Queues,
    bytes_of,
    chunks_of,
    confirm_head,
    expect,
    fetch_request,
    milliseconds,
    name_request,
    open_request,
    peek_request,
    put_head,
    put_outcome,
    put_request,
    put_requests,
    read_item,
    refusals_of,
    refused,
    with_options,
)
from staniel.protocol.client.conversation import Conversation, encode, read
from staniel.protocol.client.login import login, must_log_in
from staniel.protocol.client.replies import Answer, Error, History, Item, Reply, StatsReply, Text
from staniel.protocol.client.requests import history_request
from staniel.protocol.memcache.requests import (
    AbortItem,
    Confirm,
    ConfirmItem,
    Delete,
    ExtendItem,
    Flush,
    Monitor,
    Request,
    Stats,
    Version,
)

NEW = ConnectionState.NEW
PUT_STORED = PutOutcome.STORED
NO_IDS = "the server speaks the Kestrel dialect, which has no ids"


class Client(Connecting):
    """A connection for one request at a time, of one thread at a time: a second one gets Busy at once.

    It connects in its `with` block, by `connect`, or with the first request. A request that is interrupted, or
    whose reply does not come, closes the connection: the server puts its open reads back, and every later call raises
    ConnectionLost. Every method can raise ConnectionLost, Busy, and Refused with the server's text.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 22133,
        *,
        tls: ssl.SSLContext | None = None,
        user: str = "",
        secret: str = "",
        name: str = "",
        connect_timeout_s: float = 10,
        answer_timeout_s: float = 30,
        tracing: Tracing | None = None,
    ) -> None:
        """Prepare a client; nothing is sent yet.

        `tls` is needed for a `tls_port`; `ssl.create_default_context()` trusts the system's authorities and checks that
        the certificate names `host`. `secret` is the password or token of `user`; only a server that asks for it gets
        it. Operators see `name` beside the connection (`staniel clients`). A server that is silent for longer than its
        wait plus `answer_timeout_s` counts as lost. With `tracing`, such as `staniel.client.otel.Tracing()`, items are
        put with headers and read as ItemWithHeaders. Raises
        ValueError for a user or secret with blanks, and for a name that is not one word of ASCII.
        """
        self._tracing = tracing
        self.address = (host, port)
        self._login = login(user, secret.encode("utf-8", "surrogateescape")) if user or secret else None
        self._name = name_request(name) if name else None
        self._connect_timeout_s = connect_timeout_s
        self._connection: Connection[Request, Reply] = Connection((host, port), tls, answer_timeout_s, Conversation())
        self._open: dict[tuple[str, int | None], Item] = {}

    def connect(self) -> None:
        """Connect and log in, unless that is done. Raises ConnectionLost, Refused if the server rejects `user`."""
        try:
            self._connection.in_exchange(self._make_ready)
        except ConnectionLost as lost:
            lost.outcome = Outcome.NOT_DONE  # of the request that needs the connection
            raise

    def _make_ready(self) -> None:
        connection = self._connection
        if connection.state is not ConnectionState.NEW:
            return
        connection.connect(self._connect_timeout_s)
        if self._login is not None:
            self._log_in(self._login)
        if self._name is not None:
            connection.send((self._name,))
            connection.receive()  # a server that knows no names refuses it, and serves all the same

    @property
    def is_reusable(self) -> bool:
        """True if the connection is open and at rest in this process, and no item is open."""
        return not self._open and self._connection.is_at_rest

    @property
    def is_lost(self) -> bool:
        """True if the connection is closed: every later call raises ConnectionLost."""
        return self._connection.state is ConnectionState.CLOSED

    def _log_in(self, request: Request) -> None:
        connection = self._connection
        connection.send((Version(),))
        if not must_log_in(connection.receive()):
            return
        connection.send((request,))
        reply = connection.receive()
        if isinstance(reply, Error):
            connection.close("closed because the server refused the login")
            raise refused(reply)

    def close(self) -> None:
        """Close the connection. Open reads go back to the head of their queues."""
        self._connection.close("closed by this program")

    # put

    def put(
        self, queue: str, data: bytes, *, ttl_s: float | None = None, flags: int = 0, key: str = "", delay_s: float = 0
    ) -> PutOutcome:
        """Append an item. On return it is stored, as safely as the queue's sync policy says. Raises Full, Refused.

        `ttl_s` is rounded up to whole seconds. If the call is interrupted, the item may be stored or not; the `outcome`
        of ConnectionLost says whether that is known.

        With a `key`, an idempotency key of 1 to 250 letters, an item is stored once: while the server remembers the key
        (`put_key_life`), further puts of it to this queue are ALREADY_STORED, whatever their data. So such a put may be
        repeated after any failure, on a new connection to the same server. Raises ValueError for a key with blanks.

        With `delay_s`, at most a year, no client gets the item before that time has passed.
        """
        if self._tracing is not None:
            with self._tracing.sending(queue, 1) as headers:
                return self._put(queue, with_headers(data, headers), ttl_s, flags, key, delay_s)
        return self._put(queue, data, ttl_s, flags, key, delay_s)

    def _put(self, queue: str, data: bytes, ttl_s: float | None, flags: int, key: str, delay_s: float) -> PutOutcome:
        if type(data) is not bytes:
            data = bytes_of(data)
        if ttl_s is None and not key and not delay_s:  # the usual case, in fewer steps
            request: Request
            request, head = put_head(queue, flags)
            text = b"%b%d\r\n%b\r\n" % (head, len(data), data)
        else:
            request = with_options(put_request(queue, data, ttl_s, flags), key, delay_s)
            text = encode(request)
        connection = self._connection
        if connection.state is NEW:
            self.connect()
        hold = object()
        try:
            connection.begin_exchange(hold)
            heard = connection.ask(text)
            reply = STORED if heard == STORED_LINE else connection.read_reply(request, heard)
            connection.end_exchange(hold)
        except BaseException as error:
            connection.leave_exchange(hold, error)
            raise
        return PUT_STORED if reply is STORED else put_outcome(reply, queue)

    def put_many(
        self, queue: str, items: Sequence[bytes], *, ttl_s: float | None = None, flags: int = 0, delay_s: float = 0
    ) -> None:
        """Append items in order, many to a round trip. Raises NotAllStored; a refused item does not stop the others.

        ConnectionLost says how many were `answered`. If the call is interrupted, the first items may be stored, any
        number of them.
        """
        if self._tracing is not None:
            with self._tracing.sending(queue, len(items)) as headers:
                return self._put_many(queue, [with_headers(data, headers) for data in items], ttl_s, flags, delay_s)
        self._put_many(queue, items, ttl_s, flags, delay_s)

    def _put_many(self, queue: str, items: Sequence[bytes], ttl_s: float | None, flags: int, delay_s: float) -> None:
        requests = put_requests(queue, items, ttl_s, flags, delay_s)
        if self._connection.state is ConnectionState.NEW:
            self.connect()
        failed: dict[int, Full | Refused] = {}
        answered = 0

        def put_all() -> None:
            nonlocal answered, failed
            for chunk in chunks_of(requests):
                self._connection.send(chunk)
                until = answered + len(chunk)
                while answered < until:
                    replies = self._connection.receive_some()
                    if replies.count(Answer.STORED) < len(replies):
                        failed |= refusals_of(replies, queue, answered)
                    answered += len(replies)

        try:
            self._connection.in_exchange(put_all)
        except ConnectionLost as lost:
            lost.answered, lost.refused = answered, failed
            raise
        if failed:
            raise NotAllStored(failed)

    # read

    def get(self, queue: Queues, *, wait_s: float = 0) -> Item | None:
        """Take the next item, None if none comes within `wait_s`: open it, confirm it, return it.

        It costs two round trips, and an interrupted get loses nothing. Of several queues it reads the first one that
        has an item, in the order given; `item.queue` is its name. If none has one, it waits for all of them.
        """
        if self._open:
            self._check_ids(queue)
        request, text = open_request(queue if isinstance(queue, str) else tuple(queue), wait_s)
        connection = self._connection
        if connection.state is NEW:
            self.connect()
        hold = object()
        try:
            connection.begin_exchange(hold)
            heard = connection.ask(text, wait_s)
            item = read_item(heard, request)
            if item is None or self._tracing is not None:  # else the usual case
                item = self._item_of(item, heard, request)
            if item is not None:
                self._confirm_read(queue if isinstance(queue, str) else item.queue, item)
            connection.end_exchange(hold)
            return item
        except BaseException as error:
            connection.leave_exchange(hold, error)
            raise

    def peek(self, queue: Queues, *, wait_s: float = 0) -> Item | None:
        """Return the next item and leave it in the queue. Another client may take it at any moment."""
        return self._fetch(queue, wait_s, is_opened=False)

    @contextmanager
    def reserve(self, queue: Queues, *, wait_s: float = 0) -> Iterator[Item | None]:
        """Open the next item for the length of the block, None if none comes within `wait_s`. Several queues are read
        as by `get`.

        If the block ends well, the item is confirmed, gone for good; if it raises or is interrupted, the item goes back
        to the head of its queue. An item that the block has confirmed or aborted is left alone. If the server does not
        reply to the confirm, ConnectionLost has the `item`. Raises NotOpen at the end if the item has timed out.
        """
        item = self.open(queue, wait_s=wait_s)
        try:
            if item is None:
                yield None
                return
            if self._tracing is not None and isinstance(item, ItemWithHeaders):
                with self._tracing.processing(_name_read(queue, item), item):
                    yield item
            else:
                yield item
            if self._open.get((_name_read(queue, item), item.id)) is item:
                self._confirm_at_end(_name_read(queue, item), item)
        except BaseException:
            if item is not None and self._open.get((_name_read(queue, item), item.id)) is item:
                self._hand_back(item)
            raise

    def open(self, queue: Queues, *, wait_s: float = 0) -> Item | None:
        """Open the next item, None if none comes within `wait_s`. End it with `confirm` or `abort`. Several queues are
        read as by `get`.

        One client may have several items open and end them in any order. A server of the Kestrel dialect has no ids:
        there a second item of a queue is a RuntimeError.
        """
        if self._open:
            self._check_ids(queue)
        return self._fetch(queue, wait_s, is_opened=True)

    def next_items(self, queue: Queues, max_items: int, *, wait_s: float = 0, confirm: Sequence[Item] = ()) -> Batch:
        """Confirm items and open the next ones, at most `max_items`, in one round trip: for workers.

        It waits for the first item alone, up to `wait_s`. The `not_open` of the result are those of `confirm` that are
        not open on this client any more. If ConnectionLost is raised, each of `confirm` is done or will be delivered
        again. Raises Refused if nothing could be opened; then no item of `confirm` is left open but those that were
        refused.
        """
        names = (queue,) if isinstance(queue, str) else queue
        if any(number is None and name in names for name, number in self._open):
            raise RuntimeError(f"several items of {', '.join(names)} cannot be open, {NO_IDS}")
        batch = Batch([], [item for item in confirm if not self._holds(item)])
        error: Error | None = None
        confirm = [item for item in confirm if item not in batch.not_open]
        waiting = fetch_request(queue, wait_s, open=True)
        further = fetch_request(queue, 0, open=True)
        requests: list[Request] = [_confirmation(item.queue, item)[0] for item in confirm]
        if max_items > 0:
            requests += [waiting, *[further] * (max_items - 1)]
        if self._connection.state is ConnectionState.NEW:
            self.connect()

        def exchange() -> Batch:
            nonlocal error
            self._connection.send(requests)
            for item in confirm:
                reply = self._connection.receive()
                if isinstance(reply, Error):
                    error = reply
                    continue
                self._open.pop(_name_of(item), None)
                if reply is Answer.NOT_FOUND:
                    batch.not_open.append(item)
            for number in range(max_items):
                reply = self._connection.receive(0 if number else wait_s)
                if isinstance(reply, Item):
                    item = reply if self._tracing is None else split(reply)
                    self._open[_name_of(item)] = item
                    batch.items.append(item)
                elif isinstance(reply, Error):
                    error = reply
            if error is not None and not batch.items:
                raise refused(error)
            return batch

        return self._connection.in_exchange(exchange)

    def confirm(self, item: Item) -> None:
        """Close an open item: it is done, and gone for good.

        Raises NotOpen if it is not open any more; after a time-out it is delivered again. Raises Busy while the client
        is in use elsewhere, and leaves the item open. If no answer comes, ConnectionLost has the `item`: it is done,
        or it will be delivered again, which is certain if the connection was lost before (the outcome NOT_DONE).
        """
        self._end(item, *_confirmation(item.queue, item), is_shielded=True)

    def abort(self, item: Item) -> None:
        """Hand an open item back to the head of its queue. Raises NotOpen if it is not open any more."""
        request = _abortion(item)
        self._end(item, request, encode(request), is_shielded=False)

    def extend(self, item: Item) -> None:
        """Let the time of an open item begin again, where the queue has an `open_transaction_timeout`.

        Raises NotOpen if it has timed out.
        """
        self._ask_by_id(item, ExtendItem, "an item cannot be extended")

    def history(self, item: Item) -> History:
        """Return how often an open item has been delivered, and the past of a dead letter. It costs a round trip.

        Raises NotOpen if the item is not open any more, Refused by a server that cannot tell.
        """
        reply = self._ask_by_id(item, history_request, "an item has no history")
        assert isinstance(reply, History)
        return reply

    @contextmanager
    def monitor(self, queue: str, *, wait_s: float, max_items: int | None = None) -> Iterator[Monitoring]:
        """Open items as they come, for `wait_s` (whole seconds), at most `max_items` (None: the server's limit).

        If the block ends well, the items given to its loop are confirmed together. After a `break`, the end of the
        block first waits for the monitor's end; if more items have come, it closes the connection, which puts those
        back in order. If the block raises or is interrupted, the connection closes and every item returns to its queue.
        """
        if any(name == queue for name, _ in self._open):
            raise RuntimeError(f"this client has an item of {queue} open; end that one, or use another client")
        request = Monitor(queue.encode("latin-1"), queue, milliseconds(wait_s), max_items)
        if self._connection.state is ConnectionState.NEW:
            self.connect()
        connection, hold = self._connection, object()
        try:
            connection.begin_exchange(hold)
            connection.send((request,))
            items = Monitoring(connection, math.ceil(wait_s), has_headers=self._tracing is not None)
            try:
                yield items
                items.drain()
                self._confirm_monitored(queue, items)
            except BaseException:
                connection.close("closed because a monitor was cut off")
                raise
            connection.end_exchange(hold)
        except BaseException as error:
            connection.leave_exchange(hold, error)
            raise

    # the rest

    def delete(self, queue: str) -> bool:
        """Delete a queue with all its items. Return False if there was no such queue."""
        return expect(self._one(Delete(queue)), Answer.DELETED, Answer.NOT_FOUND) is Answer.DELETED

    def flush(self, queue: str) -> None:
        """Remove all items except open ones."""
        expect(self._one(Flush(queue)), Answer.END)

    def stats(self) -> dict[str, str]:
        """Return the server's statistics by name, in its order."""
        reply = self._one(Stats())
        assert isinstance(reply, StatsReply)
        return reply.values

    def version(self) -> str:
        """Return the server's reply to `version`."""
        reply = self._one(Version())
        assert isinstance(reply, Text)
        return reply.text

    # internal

    def _check_ids(self, queue: Queues) -> None:
        for name in (queue,) if isinstance(queue, str) else queue:
            if (name, None) in self._open:
                raise RuntimeError(f"an item of {name} is open, and {NO_IDS}; end that item, or use another client")

    def _one(self, request: Request, wait_s: float = 0) -> Reply:
        if self._connection.state is ConnectionState.NEW:
            self.connect()
        reply = self._connection.request(request, wait_s)
        if isinstance(reply, Error):
            raise refused(reply)
        return reply

    def _fetch(self, queue: Queues, wait_s: float, *, is_opened: bool) -> Item | None:
        request_of = open_request if is_opened else peek_request
        request, text = request_of(queue if isinstance(queue, str) else tuple(queue), wait_s)
        connection = self._connection
        if connection.state is NEW:
            self.connect()
        hold = object()
        try:
            connection.begin_exchange(hold)
            heard = connection.ask(text, wait_s)
            item = read_item(heard, request)
            if item is None or self._tracing is not None:  # else the usual case
                item = self._item_of(item, heard, request)
            if is_opened and item is not None:
                self._open[queue if isinstance(queue, str) else item.queue, item.id] = item
            connection.end_exchange(hold)
            return item
        except BaseException as error:
            connection.leave_exchange(hold, error)
            raise

    def _item_of(self, item: Item | None, heard: bytes, request: Request) -> Item | None:
        """Return the item that was read: `item` if it is known, else the one that `heard` is or begins, None if the
        server has none. Raises Refused.
        """
        if heard == END_LINE:
            return None
        reply = item or self._connection.read_reply(request, heard)
        if isinstance(reply, Item):
            return reply if self._tracing is None else split(reply)
        if isinstance(reply, Error):
            raise refused(reply)
        expect(reply, Answer.END)
        return None

    def _ask_by_id(self, item: Item, request_of: Callable[[str, int], Request], why_not: str) -> Reply:
        """Send a request about an open item. Raises NotOpen, and Refused with `why_not` if the item has no id."""
        queue, number = _name_of(item)
        if number is None:
            raise Refused(f"{why_not}, {NO_IDS}")
        self._must_hold(item)
        reply = self._one(request_of(queue, number))
        if reply is Answer.NOT_FOUND:
            self._open.pop(_name_of(item), None)
            raise NotOpen(f"item {number} of {queue} was no longer open", item)
        return reply

    def _holds(self, item: Item) -> bool:
        held = self._open.get(_name_of(item))
        return held is item or held == item

    def _must_hold(self, item: Item) -> None:
        name = _name_of(item)
        if not self._holds(item):
            raise NotOpen(f"this client has no item {name[1]} of {name[0]} open", item)

    def _end(self, item: Item, request: Request, text: bytes, *, is_shielded: bool) -> None:
        """End an open item at once."""
        self._must_hold(item)
        connection, hold = self._connection, object()
        try:
            connection.begin_exchange(hold)
            heard = connection.ask(text, is_shielded=is_shielded)
            reply = DELETED if heard == DELETED_LINE else connection.read_reply(request, heard)
            self._learn_end(_name_of(item)[0], item, reply)
            connection.end_exchange(hold)
        except BaseException as error:
            if isinstance(error, ConnectionLost):
                error.item = item
            connection.leave_exchange(hold, error)
            raise

    def _learn_end(self, queue: str, item: Item, reply: Reply) -> None:
        """Forget an item that has ended. Raises NotOpen, Refused."""
        if isinstance(reply, Error):
            raise refused(reply)
        self._open.pop((queue, item.id), None)
        if reply is Answer.NOT_FOUND:
            raise NotOpen(f"item {item.id} of {queue} was no longer open", item)

    def _confirm_at_end(self, queue: str, item: Item) -> None:
        """Confirm the item when the client is free. If that is not possible, close the connection: otherwise the item
        would stay open.
        """
        connection, hold = self._connection, object()
        try:
            connection.begin_in_turn(hold, SETTLE_SECONDS)
            self._confirm_read(queue, item)
            connection.end_exchange(hold)
        except Busy as busy:
            connection.close("closed because an item could not be confirmed in time")
            lost = ConnectionLost(f"the client was not free for {SETTLE_SECONDS:g} s", Outcome.NOT_DONE)
            lost.item = item
            raise lost from busy
        except BaseException as error:
            if isinstance(error, ConnectionLost):
                error.item = item
            connection.leave_exchange(hold, error)
            raise

    def _confirm_read(self, queue: str, item: Item) -> None:
        """Confirm an item within an exchange, or close the connection."""
        request: Request
        if item.id is not None:  # the usual case
            request, head = confirm_head(queue)
            text = b"%b%d\r\n" % (head, item.id)
        else:
            request, text = _confirmation(queue, item)
        try:
            heard = self._connection.ask(text, 0, SETTLE_SECONDS)
            if heard == DELETED_LINE:  # the usual case
                if self._open:
                    self._open.pop((queue, item.id), None)
                return
            reply = self._connection.read_reply(request, heard, SETTLE_SECONDS)
        except ConnectionLost as lost:
            lost.item = item
            raise
        if isinstance(reply, Error):
            self._connection.close("closed to hand an item back")
        self._learn_end(queue, item, reply)

    def _hand_back(self, item: Item) -> None:
        """Abort the read. If that is not possible, close the connection, which has the same effect."""
        try:
            with shielded():
                reply = self._connection.request_in_turn(_abortion(item), SETTLE_SECONDS)
                self._open.pop(_name_of(item), None)
                if isinstance(reply, Error):
                    self._connection.close("closed to hand an item back")
        except BaseException as error:
            self._connection.close("closed to hand an item back")
            if not isinstance(error, (ConnectionLost, Busy)):
                raise

    def _confirm_monitored(self, queue: str, items: Monitoring) -> None:
        """Confirm the items of a monitor that its loop was given."""
        with shielded():
            if items.handed_over:
                self._connection.send((Confirm(queue, items.handed_over),))
                reply = self._connection.receive(timeout_s=SETTLE_SECONDS)
                if isinstance(reply, Error):
                    raise refused(reply)
            if items.left_over:
                self._connection.close("closed to hand back what a monitor was not asked for")


def _name_read(queue: Queues, item: Item) -> str:
    """Return the name of the queue that an item was read from, as the program has written it."""
    return queue if isinstance(queue, str) else item.queue


def _name_of(item: Item) -> tuple[str, int | None]:
    """Return the queue of an item that this client has read, and its id."""
    return item.queue, item.id


def _confirmation(queue: str, item: Item) -> tuple[Request, bytes]:
    """Return the request that confirms an item, and its bytes."""
    if item.id is None:
        request = read(queue, close=True)
        return request, encode(request)
    return ConfirmItem(queue, item.id), b"%b%d\r\n" % (confirm_head(queue)[1], item.id)


def _abortion(item: Item) -> Request:
    queue, number = _name_of(item)
    return read(queue, abort=True) if number is None else AbortItem(queue, number)
