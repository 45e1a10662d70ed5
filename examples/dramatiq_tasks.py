"""Dramatiq on Staniel: a broker of 150 lines over the blocking client, and tasks that use it.

    python dramatiq_tasks.py --count 20                    # put tasks
    dramatiq dramatiq_tasks --processes 1 --threads 2      # work on them; kill -9 it, and start it again

The server is the one of the environment's STANIEL, `host:port` [127.0.0.1:22133]. What a worker holds is open on its
connections: when they end, for whatever reason, the server puts it back at the head of its queue.
"""

from __future__ import annotations

import argparse
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import dramatiq
from dramatiq.broker import Broker, Consumer, MessageProxy
from dramatiq.common import current_millis, dq_name
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound

from staniel.client import Client, ClientError, ConnectionLost, Full, Item, Pool, Refused

DEAD_LETTERS = "dead_letters"
DYING_MAX = 1000
"""The most messages that may wait for room among the dead letters before a consumer takes no further ones."""
BURY_AGAIN_S = 5.0
log = logging.getLogger("staniel.dramatiq")


def server_name(queue: str) -> str:
    """A queue's name on the server, which has no dots: Dramatiq's `default.DQ` becomes `default:DQ`."""
    return queue.replace(".", ":")


class Delivery(MessageProxy):
    """A message whose item is open, with the client whose connection holds it."""

    def __init__(self, message: dramatiq.Message[Any], consumer: Consumer, client: Client, item: Item) -> None:
        super().__init__(message)
        self.consumer = consumer
        self.client = client
        self.item = item


class StanielBroker(Broker):
    """Puts messages over a pool of clients. A delayed message waits in `NAME.DQ`, held by a worker until it is due."""

    def __init__(self, host: str, port: int, **options: Any) -> None:
        super().__init__(**options)
        self._address = (host, port)
        self._pool = Pool(host, port)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> Consumer:
        try:
            return StanielConsumer(self, self._address, server_name(queue_name), prefetch, timeout / 1000)
        except ConnectionLost as error:
            raise ConnectionClosed(error) from error

    def declare_queue(self, queue_name: str) -> None:
        if queue_name in self.queues:
            return
        self.emit_before("declare_queue", queue_name)
        self.queues[queue_name] = None
        self.emit_after("declare_queue", queue_name)
        self.delay_queues.add(dq_name(queue_name))
        self.emit_after("declare_delay_queue", dq_name(queue_name))

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Store a message: on return it is as safe as the queue's sync policy says.

        Raises ConnectionClosed, and Full or Refused as the client does.
        """
        queue_name = message.queue_name
        if delay is not None:
            queue_name = dq_name(queue_name)
            message = message.copy(queue_name=queue_name, options={"eta": current_millis() + delay})
        self.emit_before("enqueue", message, delay)
        self.put(server_name(queue_name), message.encode())
        self.emit_after("enqueue", message, delay)
        return message

    def put(self, name: str, data: bytes) -> None:
        try:
            with self._pool.client() as client:
                client.put(name, data)
        except ConnectionLost as error:
            raise ConnectionClosed(error) from error

    def flush(self, queue_name: str) -> None:
        with self._pool.client() as client:
            for name in (queue_name, dq_name(queue_name)):
                client.flush(server_name(name))

    def flush_all(self) -> None:
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until nothing of a queue is stored, held or delayed."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        give_up = None if timeout is None else time.monotonic() + timeout / 1000
        while self._left(queue_name):
            if give_up is not None and time.monotonic() > give_up:
                raise QueueJoinTimeout(queue_name)
            time.sleep(0.1)

    def _left(self, queue_name: str) -> int:
        with self._pool.client() as client:
            stats = client.stats()
        names = [server_name(name) for name in (queue_name, dq_name(queue_name))]
        return sum(
            int(stats.get(f"queue_{name}_{what}", 0)) for name in names for what in ("items", "open_transactions")
        )

    def close(self) -> None:
        self._pool.close()


class StanielConsumer(Consumer):
    """Opens items without a wait over connections that hold them, and waits over another.

    Dramatiq's worker threads end messages while its consumer thread waits for the next one, so that a connection
    that waits cannot be one that holds.
    """

    def __init__(
        self, broker: StanielBroker, address: tuple[str, int], name: str, prefetch: int, wait_s: float
    ) -> None:
        self._broker = broker
        self._address = address
        self._name = name
        self._prefetch = prefetch
        self._wait_s = wait_s
        self._lock = threading.Lock()  # a client is one thread's at a time
        self._has_room = threading.Condition(self._lock)
        self._held = 0
        self._dying: list[tuple[Client, Item]] = []
        self._bury_at = 0.0
        self._holders: list[Client] = []
        self._watch = Client(*address)
        self._watch.connect()

    def __next__(self) -> Delivery | None:
        """The next message, None if none comes for a while."""
        try:
            with self._lock:
                if self._dying and time.monotonic() >= self._bury_at:
                    self._bury()
                is_full = self._held >= self._prefetch or len(self._dying) >= DYING_MAX
                if is_full and not self._has_room.wait(self._wait_s):
                    return None
            return self._opened() or (self._opened() if self._watch.peek(self._name, wait_s=self._wait_s) else None)
        except ConnectionLost as error:
            raise ConnectionClosed(error) from error

    def _opened(self) -> Delivery | None:
        with self._lock:
            for client in self._holders:
                try:
                    item = client.open(self._name)
                    break
                except Refused as error:
                    if "open on this connection" not in str(error):  # it holds as many as a connection may
                        raise
            else:
                self._holders.append(client := Client(*self._address))
                item = client.open(self._name)
            if item is None:
                return None
            try:
                message = dramatiq.Message.decode(item.data)
            except DecodeError as error:
                log.error("an item of %s is no message, it goes to %s: %s", self._name, DEAD_LETTERS, error)
                self._dying.append((client, item))
                self._bury()
                return None
            self._held += 1
            return Delivery(message, self, client, item)

    def ack(self, message: Delivery) -> None:
        """Confirm an item. One that is not held any more, since its connection was lost, comes again."""
        self._end(message, Client.confirm)

    def nack(self, message: Delivery) -> None:
        """Set a message aside that has failed for good."""
        self._end(message, lambda client, item: self._dying.append((client, item)))
        with self._lock:
            self._bury()

    def _bury(self) -> None:
        """Put what has failed for good on the queue of dead letters, and only then confirm it. If that queue takes
        nothing, what is left stays open, beside the messages that are prefetched, and is tried again later. The caller
        holds the lock.
        """
        while self._dying:
            client, item = self._dying[0]
            try:
                self._broker.put(DEAD_LETTERS, item.data)
                client.confirm(item)
            except (Full, Refused) as error:
                log.error("%d items wait for room in %s: %s", len(self._dying), DEAD_LETTERS, error)
                self._bury_at = time.monotonic() + BURY_AGAIN_S
                return
            except (ClientError, ConnectionClosed) as error:
                log.warning("an item of %s was not ended; it comes again: %s", self._name, error)
            del self._dying[0]

    def requeue(self, messages: Iterable[Delivery]) -> None:
        """Hand items back to the head of the queue, the newest first, which restores their order."""
        for message in reversed(list(messages)):
            self._end(message, Client.abort)

    def _end(self, message: Delivery, end: Callable[[Client, Item], None]) -> None:
        if message.consumer is not self:  # Dramatiq has made a new consumer since the connection was lost
            log.warning("%s of %s is not held any more; it comes again", message, self._name)
            return
        with self._lock:
            self._held -= 1
            self._has_room.notify()
            try:
                end(message.client, message.item)
            except ClientError as error:
                log.warning("%s of %s was not ended; it comes again: %s", message, self._name, error)

    def close(self) -> None:
        with self._lock:
            for client in (self._watch, *self._holders):
                client.close()


host, _, port = os.environ.get("STANIEL", "127.0.0.1:22133").rpartition(":")
dramatiq.set_broker(StanielBroker(host, int(port)))


@dramatiq.actor(max_retries=3, min_backoff=100, max_backoff=200)
def note(number: int, path: str, seconds: float) -> None:
    """Write a line when the work is done. It may be cut off at any point, and is then done again."""
    time.sleep(seconds)
    with Path(path).open("a") as file:
        file.write(f"{number}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Put tasks for Dramatiq's workers.")
    parser.add_argument("--count", type=int, default=10, help="how many [10]")
    parser.add_argument("--first", type=int, default=0, help="the number of the first [0]")
    parser.add_argument("--work-ms", type=int, default=100, help="how long a task takes [100]")
    parser.add_argument("--delay-ms", type=int, default=0, help="when a task may begin [at once]")
    parser.add_argument("--done", type=Path, default=Path("done.txt"), help="file of finished tasks [done.txt]")
    args = parser.parse_args()
    for number in range(args.first, args.first + args.count):
        note.send_with_options(
            args=(number, str(args.done.resolve()), args.work_ms / 1000), delay=args.delay_ms or None
        )


if __name__ == "__main__":
    main()
