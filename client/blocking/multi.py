# Made of client/aio/multi.py by packaging/blocking_client.py (`make blocking`): change that file, not this one.
"""A client of several servers: puts are spread over them, gets are fair to all, and a lost one is set aside.

Unlike Client it reconnects by itself. It repeats only requests that are known to have had no effect.
`client/servers.py` decides which server is asked, `client/cluster.py` which one of a cluster, both without sockets.
"""

from __future__ import annotations

import math
import os
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from staniel.client.blocking.client import Client
from staniel.client.blocking.closing import Closing
from staniel.client.blocking.leading import ask_leader
from staniel.client.blocking.monitoring import MultiMonitoring
from staniel.client.blocking.transport import Turn, shielded
from staniel.client.cluster import Cluster, is_not_leader, may_search_on
from staniel.client.errors import Busy, ClientError, ConnectionLost, Full, NotAllStored, NotOpen, Outcome, Refused
from staniel.client.headers import ItemWithHeaders, Tracing
from staniel.client.messages import PutOutcome, Queues, ServerBatch, ServerItem, milliseconds
from staniel.client.servers import REDIRECTS_MAX, Address, Servers, chance, leader_of
from staniel.protocol.client.replies import History, Item

ValueT = TypeVar("ValueT")
Ask = Callable[[Client], ValueT]

TURN_S_MIN = 0.01
TURN_S_MAX = 0.25
"""The time for which one server may hold a waiting get before all others are asked; it doubles each time."""

BUSY = "another thread is using this client; give each thread one of its own"


class MultiClient(Closing):
    """Connections to several servers, one to each, for one request at a time, of one thread at a time.

    A connection is made when its server's turn comes, and again after it was lost. A forked process begins with
    connections of its own.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        *,
        cluster: bool | Cluster = False,
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
        """Prepare a client of `servers`, each a host and a port; nothing is sent yet.

        With `cluster`, they are the members of one cluster: the client asks the one that leads, finds it by the
        refusals of the others, and remembers it. If none leads, it searches for `leader_wait_s` before NoLeader is
        raised. Clients that are given the same Cluster know the leader that one of them has found.

        If it is unknown whether an item was stored, a put raises ConnectionLost; with `repeat_unknown` the item is put
        on the next server, and may be there twice. The other arguments are those of Client, for all servers, and for a
        leader that a server names. Raises ValueError as Client does, and for no server, or one that is named twice.
        """
        self._servers = Servers([(host, port) for host, port in servers], chance)
        if isinstance(cluster, Cluster):
            self._cluster: Cluster | None = cluster
        else:
            self._cluster = Cluster(self._servers.addresses, chance) if cluster else None
        if not leader_wait_s >= 0:
            raise ValueError(f"a wait is a number of seconds from 0 up: leader_wait_s is {leader_wait_s}")
        self._leader_wait_s = leader_wait_s
        self._repeat_unknown = repeat_unknown
        self._tracing = tracing

        def make(address: Address) -> Client:
            return Client(
                *address,
                tls=tls,
                user=user,
                secret=secret,
                name=name,
                connect_timeout_s=connect_timeout_s,
                answer_timeout_s=answer_timeout_s,
                tracing=tracing,
            )

        make(self._servers.addresses[0])  # a login that cannot be sent is refused now
        self._make = make
        self._reset_connections()

    def _reset_connections(self) -> None:
        self._process = os.getpid()
        self._clients: dict[Address, Client] = {}
        self._turn = Turn()
        self._asked: Client | None = None
        """The client that was asked last."""
        self._is_closed = False

    @property
    def is_reusable(self) -> bool:
        """True if no item is open and no request is under way; lost connections are made again."""
        if self._is_closed or os.getpid() != self._process:
            return False
        hold = object()
        try:
            return self._turn.acquire(hold) and not any(client._open for client in list(self._clients.values()))
        finally:
            try:
                self._turn.end(hold)
            finally:
                self._turn.end(hold)  # in case an exception came first

    def _drop_lost(self) -> None:
        """Close the connections that cannot be used any more, so that the next request makes others."""
        for client in list(self._clients.values()):
            if not client.is_reusable:
                client.close()

    def close(self) -> None:
        """Close all connections. Open reads go back to the head of their queues."""
        self._is_closed = True
        for client in list(self._clients.values()):
            client.close()

    # put

    def put(
        self, queue: str, data: bytes, *, ttl_s: float | None = None, flags: int = 0, key: str = "", delay_s: float = 0
    ) -> PutOutcome:
        """Append an item on the next server, or on the leader of a cluster. Raises Full if all of them are full; raises
        Refused.

        A server that cannot be reached, refuses for a reason of its own (SERVER_ERROR) or is full has not stored the
        item, so the next one is asked. ConnectionLost with the outcome UNKNOWN means that one may have stored it: it is
        then put on no other, except with `repeat_unknown`. With NOT_DONE none has it.

        Keys belong to a queue of one server. So an item with a `key` is put on the server that the key belongs to, the
        same for all clients with the same `servers`, and on no other.
        """

        def ask(client: Client) -> PutOutcome:
            return client.put(queue, data, ttl_s=ttl_s, flags=flags, key=key, delay_s=delay_s)

        return self._on_one(ask, self._repeat_unknown, key)

    def put_many(
        self, queue: str, items: Sequence[bytes], *, ttl_s: float | None = None, flags: int = 0, delay_s: float = 0
    ) -> None:
        """Append items in order, all of them on the next server, as `put` does. Raises NotAllStored.

        Once a server has stored some, the others are put on no other server.
        """

        def ask(client: Client) -> None:
            try:
                client.put_many(queue, items, ttl_s=ttl_s, flags=flags, delay_s=delay_s)
            except NotAllStored as error:
                if len(error.refused) == len(items):
                    raise error.refused[0] from error  # none is stored
                raise

        self._on_one(ask, self._repeat_unknown)

    # read

    def get(self, queue: Queues, *, wait_s: float = 0) -> ServerItem | None:
        """Take the next item of any server, None if none comes within `wait_s`. Servers are asked in turns, and the
        client never waits for one while another has an item. Raises ConnectionLost if none can be reached. If that has
        an `item`, the item is done, or it will be delivered again.
        """
        return self._read(queue, wait_s, lambda client, turn_s: client.get(queue, wait_s=turn_s))

    def peek(self, queue: Queues, *, wait_s: float = 0) -> ServerItem | None:
        """Return the next item of any server and leave it there. Another client may take it at any moment."""
        return self._read(queue, wait_s, lambda client, turn_s: client.peek(queue, wait_s=turn_s))

    def open(self, queue: Queues, *, wait_s: float = 0) -> ServerItem | None:
        """Open the next item of any server, None if none comes within `wait_s`. End it with `confirm` or `abort`, which
        go to the server that it came from.
        """
        return self._read(queue, wait_s, lambda client, turn_s: client.open(queue, wait_s=turn_s))

    @contextmanager
    def reserve(self, queue: Queues, *, wait_s: float = 0) -> Iterator[ServerItem | None]:
        """Open the next item of any server for the length of the block, None if none comes within `wait_s`. It ends as
        in Client.reserve, on the server that it came from.
        """
        item = self.open(queue, wait_s=wait_s)
        client = None
        try:
            if item is None:
                yield None
                return
            client, mine = self._clients[item.server], item.known_as
            if self._tracing is not None and isinstance(mine, ItemWithHeaders):
                with self._tracing.processing(mine.queue, mine):
                    yield item
            else:
                yield item
            if client._holds(mine):  # else the block has ended it
                with self._told_of(item):
                    client._confirm_at_end(mine.queue, mine)
        except BaseException:
            client = client or (self._clients.get(item.server) if item is not None else None)
            if item is not None and client is not None and client._holds(item.known_as):
                client._hand_back(item.known_as)
            raise

    def next_items(
        self, queue: Queues, max_items: int, *, wait_s: float = 0, confirm: Sequence[ServerItem] = ()
    ) -> ServerBatch:
        """Confirm items on their servers, then open the next ones of one server, at most `max_items`: for workers. It
        costs a round trip to each server that has items of `confirm`, and those of `open`.

        It waits for the first item alone, up to `wait_s`, as `open` does. The `not_open` of the result are those of
        `confirm` that are not open any more, also because their connection was lost. If ConnectionLost is raised,
        each of `confirm` is done or will be delivered again.
        """

        def ask(client: Client, turn_s: float) -> list[Item] | None:
            return (client.next_items(queue, max_items, wait_s=turn_s)).items or None

        def work() -> ServerBatch:
            not_open = self._confirm_together(queue, confirm)
            if max_items <= 0:
                return ServerBatch([], not_open)
            items, server = self._first(wait_s, ask) or ([], ("", 0))
            return ServerBatch([_of_server(item, server) for item in items], not_open)

        return self._in_turn(work, opens=True)

    def _confirm_together(self, queue: Queues, items: Sequence[ServerItem]) -> list[ServerItem]:
        """Confirm items, those of each server in one round trip, and return those that were not open any more. Raises
        the first error after all servers were asked.
        """
        of_servers: dict[Address, list[ServerItem]] = {}
        for item in items:
            of_servers.setdefault(item.server, []).append(item)
        not_open: list[ServerItem] = []
        errors: list[ClientError] = []
        for server, its in of_servers.items():
            client = self._clients.get(server)
            try:
                gone = its if client is None else self._confirmed(client, queue, its)
            except ClientError as error:
                errors.append(error)
            else:
                not_open += gone
        if errors:
            raise errors[0]
        return not_open

    @contextmanager
    def monitor(self, queue: str, *, wait_s: float, max_items: int | None = None) -> Iterator[MultiMonitoring]:
        """Open items of all servers as they come, for `wait_s`, at most `max_items` (None: as many as come).

        If the block ends well, the items given to its loop are confirmed together; NotOpen names the first that was
        not open any more, after all others were confirmed. If the block raises or is interrupted, every item returns to
        its queue. Servers of the Kestrel dialect have no ids: one of their items can be open.
        """
        items = MultiMonitoring(self.next_items, queue, time.monotonic() + milliseconds(wait_s) / 1000, max_items)
        try:
            yield items
        except BaseException:
            self._hand_back(items.left_over[::-1] + items.handed_over[::-1])
            raise
        self._hand_back(items.left_over[::-1])
        with shielded():
            not_open = self._confirm_together(queue, items.handed_over)
        if not_open:
            raise NotOpen(f"{len(not_open)} items of {queue} were no longer open", not_open[0])

    def _hand_back(self, items: Sequence[ServerItem]) -> None:
        """Abort items, the newest first, which restores their order."""
        for item in items:
            client = self._clients.get(item.server)
            if client is not None and client._holds(item.known_as):
                client._hand_back(item.known_as)

    def confirm(self, item: ServerItem) -> None:
        """Close an open item on its server: it is done, and removed for good. Raises as Client.confirm. Raises NotOpen
        also if the connection was lost before, which returned the item to its queue; this client then continues with a
        new connection.
        """
        with self._told_of(item):
            self._holder(item).confirm(item.known_as)

    def abort(self, item: ServerItem) -> None:
        """Hand an open item back to the head of its queue. Raises NotOpen if it is not open any more."""
        with self._told_of(item):
            self._holder(item).abort(item.known_as)

    def extend(self, item: ServerItem) -> None:
        """Let the time of an open item begin again. Raises NotOpen if it has timed out, or went back."""
        with self._told_of(item):
            self._holder(item).extend(item.known_as)

    def history(self, item: ServerItem) -> History:
        """Return how often an open item has been delivered by its server, and the past of a dead letter."""
        with self._told_of(item):
            return self._holder(item).history(item.known_as)

    def _holder(self, item: ServerItem) -> Client:
        self._check_usable()
        client = self._clients.get(item.server)
        if client is None:
            raise _not_open(item)
        return client

    @contextmanager
    def _told_of(self, item: ServerItem) -> Iterator[None]:
        """Raise the errors of this client for `item`. Raise NotOpen if the item's connection was lost before the
        request was sent, or its server no longer leads the cluster: the item returned to its queue, and this client
        survives both.
        """
        try:
            yield
        except NotOpen as error:
            error.item = item
            raise
        except Refused as error:
            if self._cluster is None or not is_not_leader(error):
                raise
            self._clients[item.server].close()
            raise _not_open(item) from error
        except ConnectionLost as lost:
            if lost.outcome is Outcome.NOT_DONE:
                raise _not_open(item) from lost
            if lost.item is not None:
                lost.item = item
            raise

    def _confirmed(self, client: Client, queue: Queues, items: Sequence[ServerItem]) -> list[ServerItem]:
        """Confirm items of one server, and return those that were not open any more."""
        try:
            gone = (client.next_items(queue, 0, confirm=[item.known_as for item in items])).not_open
        except ConnectionLost as lost:
            if lost.outcome is Outcome.NOT_DONE:
                return list(items)
            raise
        except Refused as error:
            if self._cluster is None or not is_not_leader(error):
                raise
            gone = [item.known_as for item in items if client._holds(item.known_as)]
            client.close()
        return [item for item in items if item.known_as in gone]

    # the rest

    def delete(self, queue: str) -> bool:
        """Delete a queue with all its items on each server. Return False if no server had it. Raises the first error
        after all servers were asked.
        """
        if self._cluster is not None:
            return self._on_one(lambda client: client.delete(queue), False)
        return any(is_there for _, is_there in self._on_all(lambda client: client.delete(queue)))

    def flush(self, queue: str) -> None:
        """Remove all items except open ones on each server. Raises the first error after all servers were asked."""
        if self._cluster is not None:
            return self._on_one(lambda client: client.flush(queue), False)
        self._on_all(lambda client: client.flush(queue))

    def stats(self) -> dict[Address, dict[str, str]]:
        """Return the statistics of each server that replies. Raises ConnectionLost if none does."""
        return dict(self._on_all(lambda client: client.stats(), in_part=True))

    def version(self) -> dict[Address, str]:
        """Return the version of each server that replies. Raises ConnectionLost if none does."""
        return dict(self._on_all(lambda client: client.version(), in_part=True))

    # internal

    def _check_usable(self) -> None:
        """Begin again in a forked process. Raises ConnectionLost after `close`."""
        if os.getpid() != self._process:
            self._reset_connections()  # the connections are the parent's
        if self._is_closed:
            raise ConnectionLost("closed by this program", Outcome.NOT_DONE)

    def _in_turn(self, work: Callable[[], ValueT], *, opens: bool = False) -> ValueT:
        """Return the result of `work`, while no other call uses this client. If that is cut off and may have opened
        items that the program does not get, close the connection that has them. Raises Busy.
        """
        self._check_usable()
        turn, hold = self._turn, object()
        try:
            if not turn.acquire(hold):
                raise Busy(BUSY)
            self._asked = None
            result = work()
            turn.end(hold)
            return result
        except BaseException as error:
            if opens and turn.is_held_by(hold) and self._asked is not None and not isinstance(error, ClientError):
                self._asked.close()
            raise
        finally:
            try:
                turn.end(hold)
            finally:
                turn.end(hold)  # in case an exception came first

    def _client(self, address: Address) -> Client:
        if self._is_closed:  # meanwhile
            raise ConnectionLost("closed by this program", Outcome.NOT_DONE)
        client = self._clients.get(address)
        if client is not None and client.is_lost:
            client.close()
            client = None
        if client is None:
            client = self._clients[address] = self._make(address)
        self._asked = client
        return client

    def _ask(self, address: Address, ask: Ask[ValueT]) -> ValueT:
        """Ask one server, or the leader that it names. Raises ClientError, whose server is set aside if it is lost."""
        redirects = 0
        while True:
            try:
                value = ask(self._client(address))
            except Refused as error:
                leader = leader_of(str(error))
                if leader is None or redirects == REDIRECTS_MAX:
                    raise
                redirects += 1
                self._servers.follows(address, leader, time.monotonic())
                address = leader
            except ConnectionLost:
                self._servers.lost(address, time.monotonic())
                raise
            else:
                self._servers.heard(address)
                return value

    def _on_leader(
        self, cluster: Cluster, ask: Ask[ValueT], may_repeat: Callable[[ConnectionLost], bool]
    ) -> tuple[ValueT, Address]:
        """Ask the leader of the cluster. While none leads, search again for `leader_wait_s`. Raises NoLeader, and at
        once what a request raised that may not be repeated.
        """

        def ask_at(address: Address, patience_s: float) -> ValueT:
            client = self._client(address)
            client._connection.limit_answers(patience_s)
            return ask(client)

        def may_go_on(error: ClientError) -> bool:
            return not self._is_closed and may_search_on(error, may_repeat)

        return ask_leader(cluster, ask_at, may_go_on, self._leader_wait_s)

    def _on_one(self, ask: Ask[ValueT], repeat_unknown: bool, key: str = "") -> ValueT:
        """Ask servers in turn until one has done it. Raises the first error that says more than a lost server."""

        def work() -> ValueT:
            if self._cluster is not None:
                return (self._on_leader(self._cluster, ask, lambda lost: _is_undone(lost) or repeat_unknown))[0]
            errors: list[ClientError] = []
            addresses = [self._servers.of_key(key)] if key else self._servers.in_turn(time.monotonic())
            for address in addresses:  # the loop also sees those that are added meanwhile
                try:
                    return self._ask(address, ask)
                except ClientError as error:
                    if not _may_ask_next(error, repeat_unknown):
                        raise
                    errors.append(error)
                    addresses += [] if key else self._followers_beside(addresses, error)
            raise _worst(errors)

        return self._in_turn(work)

    def _read(self, queue: Queues, wait_s: float, ask: Callable[[Client, float], Item | None]) -> ServerItem | None:
        """Return the first item that a server has for `ask`."""

        def work() -> ServerItem | None:
            found = self._first(wait_s, ask)
            return None if found is None else _of_server(*found)

        return self._in_turn(work, opens=True)

    def _first(self, wait_s: float, ask: Callable[[Client, float], ValueT | None]) -> tuple[ValueT, Address] | None:
        """Ask all servers in turn; then let one hold a waiting get for a while, and ask the others again."""
        until_s = time.monotonic() + milliseconds(wait_s) / 1000
        if self._cluster is not None:
            return self._first_of_leader(self._cluster, until_s, ask)
        turn_s = 0.0
        while True:
            errors: list[ClientError] = []
            addresses = self._servers.in_turn(time.monotonic())
            for number, address in enumerate(addresses):  # the loop also sees those that are added meanwhile
                is_last = number == len(addresses) - 1
                now_s = time.monotonic()
                held_s = max(0.0, min(turn_s, until_s - now_s)) if is_last else 0.0
                try:
                    value, server = self._ask(address, _located(ask, held_s))
                except ClientError as error:
                    if not _may_read_on(error):
                        raise
                    errors.append(error)
                    addresses += self._followers_beside(addresses, error)
                    continue
                if value is not None:
                    return value, server
            if len(errors) == len(addresses):
                raise _worst(errors)
            if time.monotonic() >= until_s:
                return None
            turn_s = self._next_turn_s(turn_s, len(addresses))

    def _first_of_leader(
        self, cluster: Cluster, until_s: float, ask: Callable[[Client, float], ValueT | None]
    ) -> tuple[ValueT, Address] | None:
        """Return what the leader of the cluster has, which holds a waiting get for as long as it may wait."""

        def waiting(client: Client) -> ValueT | None:
            return ask(client, max(0.0, until_s - time.monotonic()))

        value, server = self._on_leader(cluster, waiting, _may_read_on)
        return None if value is None else (value, server)

    def _followers_beside(self, asked: Sequence[Address], error: ClientError) -> list[Address]:
        """Return the servers to ask as well, because the server that they had named as their leader was lost."""
        return self._servers.due_beside(asked, time.monotonic()) if isinstance(error, ConnectionLost) else []

    def _next_turn_s(self, turn_s: float, count: int) -> float:
        """Return how long the last server asked holds the next get: one alone until another one is asked again."""
        if count == 1:
            now_s = time.monotonic()
            due_s = self._servers.next_due_s(now_s)
            return math.inf if due_s is None else max(TURN_S_MIN, due_s - now_s)
        return min(TURN_S_MAX, max(TURN_S_MIN, turn_s * 2))

    def _on_all(self, ask: Ask[ValueT], *, in_part: bool = False) -> list[tuple[Address, ValueT]]:
        """Ask every server, including those that are set aside. `in_part`: an error counts only if all have one. Of a
        cluster every member is asked, whether it leads or not.
        """

        def work() -> list[tuple[Address, ValueT]]:
            values: list[tuple[Address, ValueT]] = []
            errors: list[ClientError] = []
            for address in self._servers.addresses:
                try:
                    if self._cluster is None:
                        values.append((address, self._ask(address, ask)))
                    else:
                        values.append((address, ask(self._client(address))))
                except ClientError as error:
                    errors.append(error)
            if errors and not (in_part and values):
                raise errors[0]
            return values

        return self._in_turn(work)


def _located(ask: Callable[[Client, float], ValueT | None], turn_s: float) -> Ask[tuple[ValueT | None, Address]]:
    """Return `ask` with the address of the server that replied in the end, which may be another one, a leader."""

    def located(client: Client) -> tuple[ValueT | None, Address]:
        return ask(client, turn_s), client.address

    return located


def _of_server(item: Item, server: Address) -> ServerItem:
    return ServerItem(item.data, item.flags, item.id, item.key, server, item)


def _not_open(item: ServerItem) -> NotOpen:
    return NotOpen(f"this client has no item of {item.server[0]}:{item.server[1]} open", item)


def _may_ask_next(error: ClientError, repeat_unknown: bool) -> bool:
    """Return True if a put that raised `error` may be sent to another server."""
    if isinstance(error, ConnectionLost):
        return _is_undone(error) or repeat_unknown
    return isinstance(error, Full) or _is_of_the_server(error)


def _is_undone(lost: ConnectionLost) -> bool:
    """Return True if nothing of the request was sent."""
    return lost.outcome is Outcome.NOT_DONE


def _may_read_on(error: ClientError) -> bool:
    """Return True if another server may be read after `error`: the program has no item of the first one."""
    if isinstance(error, ConnectionLost):
        return error.item is None
    return _is_of_the_server(error)


def _is_of_the_server(error: ClientError) -> bool:
    """Return True for a refusal that is due to this server, and that another server may not have."""
    return isinstance(error, Refused) and str(error).startswith("SERVER_ERROR")


def _worst(errors: list[ClientError]) -> ClientError:
    """Return the error to raise when no server did it: one of unknown outcome, else a refusal, else a lost one."""
    for error in errors:
        if error.outcome is Outcome.UNKNOWN:
            return error
    for error in errors:
        if not isinstance(error, ConnectionLost):
            return error
    return errors[0]
