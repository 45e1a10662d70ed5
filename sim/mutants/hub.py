"""Broken rules of the hub: of its turns, descriptors, threads, and how connections end."""

from __future__ import annotations

import select
import ssl
from typing import Any

from staniel.broker.admin import sampler
from staniel.broker.admin.http.events import PageEvents
from staniel.broker.admin.http.exchange import Exchange
from staniel.broker.admin.sampler import Sampler
from staniel.broker.commands import batches
from staniel.broker.operations.deletions import Deletions
from staniel.broker.share import Share
from staniel.journal.kestrel.log import Log
from staniel.protocol.http.parser import HttpParser, HttpState
from staniel.protocol.memcache.parser import MemcacheParser, MemcacheState
from staniel.queues.queue import Queue, QueueState
from staniel.server.connection import Connection, ConnectionState
from staniel.server.disk_work import TaskRunner
from staniel.server.dispatcher import Dispatcher
from staniel.server.hub import Hub
from staniel.server.timeouts import ClientTimeouts
from staniel.server.tls_socket import RECORD_BYTES_MAX, TlsSocket
from staniel.sim.hub.net import ServerSock
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced


@mutant("a delete waits for the background task on its queue's files", "hub")
def delete_waits() -> Any:
    """Restore an old mistake: a client whose flag was handled later in the same batch waited for ever."""

    def make(right: Any) -> Any:
        def search(self: Deletions, queue: Queue, now_ms: int) -> None:
            upkeep = self._maintenance
            if isinstance(queue.journal, Log) and upkeep.is_at_work(queue):
                for task in list(upkeep.tasks._running):
                    upkeep.tasks.complete(task, now_ms)
            right(self, queue, now_ms)

        return search

    return replaced(Deletions, "search", make)


@mutant("a flag's handler waits for the end of a background task", "hub")
def flag_waits() -> Any:
    def make(right: Any) -> Any:
        def on_ready(self: TaskRunner, now_ms: int) -> None:
            self._finish_task(self._worker.wait(), now_ms)

        return on_ready

    return replaced(TaskRunner, "on_ready", make)


@mutant("a descriptor is used again within the batch of events that speaks of its last owner", "hub")
def closed_at_once() -> Any:
    """Restore an old mistake: events were served in their order, and sockets closed immediately."""

    def make(right: Any) -> Any:
        def turn(self: Hub, events: list[tuple[int, int]]) -> None:
            for event in events:
                right(self, [event])
            right(self, [])

        return turn

    return replaced(Hub, "turn", make)


@mutant("the socket of a dropped client is never closed", "hub")
def never_closed() -> Any:
    return replaced(Dispatcher, "close_dropped", lambda right: lambda self: self.dropped.clear())


@mutant("the last event of a long batch is dropped, and its client not heard again", "hub")
def event_dropped() -> Any:
    def make(right: Any) -> Any:
        def turn(self: Hub, events: list[tuple[int, int]]) -> None:
            right(self, events[:3])
            for fd, mask in events[3:]:
                if fd in self._connections and mask == select.EPOLLIN:
                    self._poller.modify(fd, 0)

        return turn

    return replaced(Hub, "turn", make)


@mutant("an event of a closed descriptor is honoured", "hub")
def stale_honoured() -> Any:
    def make(right: Any) -> Any:
        def turn(self: Hub, events: list[tuple[int, int]]) -> None:
            is_stale = any(fd not in self._dispatcher and fd not in self._connections for fd, _ in events)
            if is_stale and self._connections:
                self._on_peer_end(next(iter(self._connections.values())), self.clock.now_ms())
            right(self, events)

        return turn

    return replaced(Hub, "turn", make)


@mutant("a reply that the socket has taken in part is sent from its beginning", "hub")
def sent_twice() -> Any:
    def make(right: Any) -> Any:
        def send(self: Connection) -> int:
            whole = self.unsent
            sent = int(right(self))
            if self.unsent:
                self.unsent = whole
            return sent

        return send

    return replaced(Connection, "send", make)


@mutant("a reply overtakes one that the socket has not taken yet", "hub")
def overtaken() -> Any:
    def make(right: Any) -> Any:
        def collect(self: Connection, durable: int) -> bool:
            before, self.unsent = self.unsent, b""
            has_collected = bool(right(self, durable))
            self.unsent = b"".join((self.unsent, before))
            return has_collected

        return collect

    return replaced(Connection, "collect", make)


@mutant("an answer does not wait for its sync", "hub-durable")
def not_held() -> Any:
    def make(right: Any) -> Any:
        def answer_now(self: Connection, durable: int) -> int:
            return int(right(self, 1 << 60))

        return answer_now

    return replaced(Connection, "answer_now", make)


@mutant("a client that has shut its side is never let go", "hub")
def never_let_go() -> Any:
    def make(right: Any) -> Any:
        def finish_none(self: Hub, connection: Connection, now_ms: int) -> None:
            if connection.state is not ConnectionState.FLUSHING:
                right(self, connection, now_ms)

        return finish_none

    return replaced(Hub, "_end_connection", make)


@mutant("a client that has shut its side is let go before it is answered", "hub")
def let_go_early() -> Any:
    def make(right: Any) -> Any:
        def on_peer_end(self: Hub, connection: Connection, now_ms: int) -> None:
            self.drop(connection, now_ms)

        return on_peer_end

    return replaced(Hub, "_on_peer_end", make)


@mutant("a stop leaves clients connected", "hub")
def stop_leaves() -> Any:
    return replaced(Hub, "_send_last", lambda right: lambda self, connection: None)


@mutant("a stop asks for a sync that has landed already", "hub")
def stop_hangs() -> Any:
    def make(right: Any) -> Any:
        def close(self: Hub) -> None:
            self._workers[0].wait()
            right(self)

        return close

    return replaced(Hub, "close", make)


@mutant("clients that leave are served in the order of events", "hub")
def leavers_late() -> Any:
    def make(right: Any) -> Any:
        def turn(self: Hub, events: list[tuple[int, int]]) -> None:
            for fd, mask in events:
                connection = self._connections.get(fd)
                if connection is not None and mask == select.EPOLLIN and connection.state is ConnectionState.OPEN:
                    self._read(connection, self.clock.now_ms())
            right(self, events)

        return turn

    return replaced(Hub, "turn", make)


@mutant("an alarm keeps the client that is gone", "hub")
def alarm_kept() -> Any:
    return replaced(ClientTimeouts, "cancel", lambda right: lambda self, connection: None)


@mutant("a client that waits behind a delete is not told that it is done", "hub")
def deletion_untold() -> Any:
    def make(right: Any) -> Any:
        def forget_postponed(self: Deletions, now_ms: int) -> None:
            for sessions in self.postponed.values():
                del sessions[:]
            right(self, now_ms)

        return forget_postponed

    return replaced(Deletions, "carry_out", make)


@mutant("a server that refuses reads goes on with waits", "hub")
def waits_go_on() -> Any:
    def make(right: Any) -> Any:
        def dismiss_waiters(self: Queue) -> None:
            if self.state is QueueState.CLOSED:
                right(self)

        return dismiss_waiters

    return replaced(Queue, "dismiss_waiters", make)


@mutant("items go back though their answer has left, when a later one cannot", "hub")
def sent_is_not_forgotten() -> Any:
    def make(right: Any) -> Any:
        def answer_with_items(self: Hub, now_ms: int) -> None:
            handed = self.broker.unsent
            new, handed.new = handed.new, {}
            for session in new:
                connection = self._of_session[session]
                handed.place(session, connection.unsent_bytes + connection.held_bytes)
            self._answer_all(now_ms)

        return answer_with_items

    return replaced(Hub, "_answer_with_items", make)


@mutant("a client to be read behind the others is never read", "hub")
def rear_never_read() -> Any:
    return replaced(Hub, "_read_queued", lambda right: lambda self, *_: self._schedule.queue.clear())


__all__ = ["MUTANTS"]


@mutant("what arrives behind a slice is understood before the slice's turn", "hub-slices")
def slice_overtakes() -> Any:
    """Restore an old mistake: two slices were running, and one continuation, which the earlier one had scheduled."""

    def make(right: Any) -> Any:
        def enter(self: MemcacheParser, state: MemcacheState) -> None:
            self._state = MemcacheState.LINE if state is MemcacheState.PAUSED else state

        return enter

    return replaced(MemcacheParser, "_enter", make)


@mutant("an operator's answer waits for no sync", "hub-admin")
def operator_told_early() -> Any:
    def make(right: Any) -> Any:
        def send(self: Exchange, reply: bytes) -> None:
            self.session.batch = 0
            right(self, reply)

        return send

    return replaced(Exchange, "send", make)


@mutant("what arrives behind an operator's long pipeline is forgotten", "hub-admin")
def operator_unheard() -> Any:
    def make(right: Any) -> Any:
        def feed(self: HttpParser, data: bytes) -> list[Any]:
            return [] if self.state is HttpState.PAUSED else right(self, data)

        return feed

    return replaced(HttpParser, "feed", make)


@mutant("the last piece of an operator's long answer is left out", "hub-admin")
def operator_told_half() -> Any:
    def make(right: Any) -> Any:
        def end(self: Exchange) -> None:
            self.flush()

        return end

    return replaced(Exchange, "end", make)


@mutant("a deleted queue stays on pages", "hub-admin")
def page_keeps_the_dead() -> Any:
    def make(right: Any) -> Any:
        def mark_gone(self: Sampler, name: str) -> None:
            del self.rows[name]

        return mark_gone

    return replaced(Sampler, "_mark_gone", make)


@mutant("events are made for a page that does not read", "hub-admin")
def page_piles_up() -> Any:
    def make(right: Any) -> Any:
        def send_all_queues(self: PageEvents, waited: Any, now_ms: int) -> None:
            if self._broker.status.is_stopping:
                right(self, waited, now_ms)
            else:
                self._epoch = -1  # sends all queues each time, because the simulator has few
                self._send_event(now_ms)

        return send_all_queues

    return replaced(PageEvents, "_send_next", make)


@mutant("a page that awaits more is not told that it has all", "hub-full-targets")
def page_awaits_for_nothing() -> Any:
    def make(right: Any) -> Any:
        def send_event(self: PageEvents, now_ms: int) -> None:
            self._awaits_more = False
            right(self, now_ms)

        return send_event

    return replaced(PageEvents, "_send_event", make)


@mutant("a client's time is over before what it said in it has been read", "hub-stopped")
def silence_is_believed() -> Any:
    def make(right: Any) -> Any:
        def turn(self: Hub, events: list[tuple[int, int]]) -> None:
            self._schedule.turn_ms = self.clock.now_ms()
            right(self, events)

        return turn

    return replaced(Hub, "turn", make)


@mutant("an end that comes with the handshake hides what was said before it", "hub-tls")
def early_end_hides() -> Any:
    """Restore an old mistake: the end of the stream was looked for only in the socket."""

    def make(right: Any) -> Any:
        def recv(self: TlsSocket, count: int) -> bytes:
            below = self.below
            assert isinstance(below, ServerSock)
            if not self._said_all and below.link.client_ended and not below.link.to_server:
                return b""
            return bytes(right(self, count))

        return recv

    return replaced(TlsSocket, "recv", make)


@mutant("what has arrived under TLS is decrypted a record at a time", "hub-tls")
def one_record() -> Any:
    """Decrypt one record at a time. The poller reports bytes in the kernel, not the decrypted bytes that wait after
    them.
    """

    def make(right: Any) -> Any:
        def decrypt(self: TlsSocket, pieces: list[bytes]) -> None:
            try:
                piece = self._tls.read(RECORD_BYTES_MAX)
            except ssl.SSLWantReadError:
                return
            except ssl.SSLError:
                piece = b""
            self._heard_all = not piece
            pieces += [piece] if piece else []

        return decrypt

    return replaced(TlsSocket, "_decrypt", make)


@mutant("a part of a record that the socket has not taken counts as sent", "hub-tls")
def half_a_record() -> Any:
    def make(right: Any) -> Any:
        def send(self: TlsSocket, data: bytes | memoryview) -> int:
            sent = int(right(self, data))
            taken = sum([count for _, count in self._records])
            self._records.clear()
            return sent + taken

        return send

    return replaced(TlsSocket, "send", make)


class Unspent(Share):
    """A share with an old mistake: it counts requests and queues, regardless of their time."""

    @property
    def is_spent(self) -> bool:
        return False


@mutant("a share of a turn is never spent", "hub-shares")
def shares_are_unspent() -> Any:
    def make(right: Any) -> Any:
        return property(lambda self: False)

    return replaced(Share, "is_spent", make)


@mutant("commands on many queues count them, and do not look at the clock", "hub-shares")
def batches_are_counted() -> Any:
    return replaced(batches, "Share", lambda right: Unspent)


@mutant("the page's look at all queues counts them, and does not look at the clock", "hub-shares")
def samples_are_counted() -> Any:
    return replaced(sampler, "Share", lambda right: Unspent)
