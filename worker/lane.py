"""A lane: one thread that takes items over a connection of its own, calls the function, and confirms.

The confirm of an item travels with the request for the next one, so a round trip suffices for both. Where the function
is quick, several items travel together. Failed items stay open on the connection while they rest; should the worker
die, the server hands them to another at once.

    lane      holds                                    then
    fetching  resting items                            running; resting ones become due
    running   one running, others fresh, done, resting  fetching; the keeper hands fresh ones back if it takes long
    leaving   nothing that runs                        closed; everything that is open has been handed back
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from msgspec import Struct

from staniel.client.blocking.client import Client
from staniel.client.cluster import Cluster
from staniel.client.errors import ClientError, ConnectionLost, Full, NotOpen, Refused
from staniel.protocol.client.replies import Item
from staniel.worker.dead import DeadLetter, shortened
from staniel.worker.events import Teller
from staniel.worker.ledger import Ledger, Standing
from staniel.worker.pace import Pace
from staniel.worker.runners import FORKED, End, Outcome, Runner
from staniel.worker.settings import OPEN_ITEMS_MAX, Server, Settings, rest_s

RECONNECT_S = 0.1
RECONNECT_MAX_S = 5.0
QUICK_S = 0.005
"""A batch that was done in less time is followed by one twice as large."""
SLOW_S = 0.05
"""A batch that took longer is followed by one that would have taken so long, or by a single item."""
RUNNING_ELSEWHERE_S = 0.5


class Stop:
    """The stop of a worker: first `stopping`, then `forced`, when functions are cut off."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.forced = threading.Event()


class Shared(Struct, frozen=True):
    """The part of a worker that its lanes share. `chance` returns a random number from 0 to 1."""

    settings: Settings
    server: Server
    cluster: Cluster
    ledger: Ledger
    pace: Pace
    teller: Teller
    stop: Stop
    chance: Callable[[], float]


class Resting(Struct):
    """An open item that is to be tried again, or, with a `reason`, to be put on the queue of dead letters."""

    item: Item
    due_s: float
    reason: str = ""
    attempts: int = 0
    is_gone: bool = False


class Lane:
    """A lane. `io` is held while its connection is in use, by its thread or by the keeper."""

    def __init__(self, shared: Shared, runner: Runner, number: int = 0) -> None:
        """Prepare a lane. Lanes of different numbers begin with different queues, where they read in turns."""
        self.shared = shared
        self.runner = runner
        self._begin_search()
        self.client: Client = shared.server.client(shared.settings.name, self._address)
        self.io = threading.Lock()
        self.running: Item | None = None
        self.running_since_s = 0.0
        self.fresh: deque[Item] = deque()
        self.resting: list[Resting] = []
        self.done: deque[Item] = deque()
        self.is_abandoned = False
        """True if its function did not end after its time limit: another lane has taken its place."""
        self._reads = deque(shared.settings.reads)
        self._reads.rotate(-number)
        self._process = os.getpid()
        self._batch = 1
        self._may_run_on = not (shared.pace.is_limited or shared.teller.has_hooks)
        self._extended_s = time.monotonic()
        self._pause_s = RECONNECT_S
        self._is_connected = False
        self._is_served = False
        """True once a request for items on this connection had a reply: the server leads."""
        self.thread = threading.Thread(target=self._live, daemon=True, name="staniel-lane")

    def _live(self) -> None:
        try:
            while not self._is_leaving:
                try:
                    self._turn()
                    self._pause_s = RECONNECT_S
                except ClientError as error:
                    self._lose(error)
                except Exception:  # a surprise: without its lane what is open would stay open for ever
                    self._lose(ClientError(traceback.format_exc()))
            self._leave()
        finally:
            self.runner.close()

    @property
    def _is_leaving(self) -> bool:
        return self.shared.stop.stopping.is_set() or self.is_abandoned

    def _begin_search(self) -> None:
        """Begin with the server that leads the cluster, as far as known."""
        self._search = self.shared.cluster.search()
        address = self._search.next_server()
        assert address is not None
        self._address = address

    def _lose(self, error: ClientError) -> None:
        """Begin anew on another connection: at once to the leader that the server names and to each other member, then
        after a pause. The server has put everything back that was open.
        """
        teller = self.shared.teller
        lost = self._address
        self._search.note_failure(lost, error)
        other = self._search.next_server()
        if other is None:
            self._begin_search()
        else:
            self._address = other
        with self.io:
            self.client.close()
            self.client = self.shared.server.client(self.shared.settings.name, self._address)
        self.fresh.clear()
        self.resting = []
        self.done.clear()
        if isinstance(error, ConnectionLost):
            teller.counters.add("connections_lost")
        again_in_s = 0 if other is not None else round(self._pause_s, 1)
        teller.log("warning", "connection.lost", server=f"{lost[0]}:{lost[1]}", why=str(error), again_in_s=again_in_s)
        self._is_connected = self._is_served = False
        if other is not None:
            return
        self.shared.stop.stopping.wait(self._pause_s * (0.5 + self.shared.chance() / 2))
        self._pause_s = min(2 * self._pause_s, RECONNECT_MAX_S)

    def _turn(self) -> None:
        """Take items and call the function with each, or with one that has rested."""
        if not self._is_connected:
            self.client.connect()
            self._is_connected = True
            self.shared.teller.log("debug", "connection.made")
        now_s = time.monotonic()
        due = [resting for resting in self.resting if resting.due_s <= now_s]
        for resting in due:
            self.resting.remove(resting)
            if not resting.is_gone:
                self._bury(resting) if resting.reason else self._call(resting.item)
            if self._is_leaving:
                return
        self._fetch()
        began_s = time.monotonic()
        count = len(self.fresh)
        while (item := self._take_fresh()) is not None:
            self._call(item)
        self._learn_batch(count, time.monotonic() - began_s)

    def _take_fresh(self) -> Item | None:
        """Return the next fresh item, None if there is none, or if the lane leaves."""
        try:
            return None if self._is_leaving else self.fresh.popleft()
        except IndexError:  # the keeper may have taken the last one
            return None

    def _learn_batch(self, count: int, took_s: float) -> None:
        if self.shared.pace.is_limited:
            self._batch = 1
        elif took_s > SLOW_S:
            self._batch = max(1, int(count * SLOW_S / took_s))
        elif count == self._batch and took_s < QUICK_S:
            self._batch = min(2 * self._batch, self.shared.settings.prefetch)

    def _fetch(self) -> None:
        """Confirm what is done, and open the next items."""
        settings = self.shared.settings
        now_s = time.monotonic()
        if self.resting and now_s - self._extended_s > settings.extend_s:
            with self.io:
                self.extend()
        wait_s = min([settings.wait_s, *[max(resting.due_s - now_s, 0) for resting in self.resting]])
        room = min(self._batch, OPEN_ITEMS_MAX - len(self.resting))
        with self.io:
            confirm = self._take_done()
            batch = self.client.next_items(self._reads[0], room, wait_s=wait_s, confirm=confirm)
            self.fresh.extend(batch.items)
        self._reads.rotate(-1)
        if not self._is_served:
            self._is_served = True
            self._search.note_leader(self._address)
            self._begin_search()  # for the time when it does not lead any more
        self.note_confirmed(confirm, batch.not_open)
        if room <= 0:
            self.shared.stop.stopping.wait(wait_s)

    def note_confirmed(self, confirmed: list[Item], not_open: list[Item]) -> None:
        """Note the replies to confirms. What was not open any more comes again, and is then not done twice."""
        if not_open:
            confirmed = [item for item in confirmed if item not in not_open]
            for item in not_open:
                self.shared.teller.counters.add("timed_out", item.queue)
                self.shared.teller.log("warning", "item.timed_out", queue=item.queue, id=item.id or 0)
        self.shared.ledger.forget_confirmed(confirmed)

    def extend(self) -> None:
        """Let the time of all open items begin again. The caller holds `io`."""
        self._extended_s = time.monotonic()
        running = self.running
        held = [Resting(running, 0)] if running is not None else []
        for open_item in [*held, *self.resting]:
            try:
                self.client.extend(open_item.item)
            except NotOpen:
                open_item.is_gone = True

    def _call(self, item: Item) -> None:
        """Call the function with an open item, and do what the outcome asks for."""
        if not self._prepare(item) or not self._begin_item(item):
            return
        outcome = self.runner.run(item.data, self._next_data if self._may_run_on else None)
        if os.getpid() != self._process:
            os._exit(FORKED)  # the function has forked and returned twice: this is not the worker
        if outcome is None:
            return
        assert self.running is not None
        item, self.running = self.running, None
        if outcome.end is End.DONE:
            self._note_success(item)
        elif self.shared.stop.forced.is_set():
            self.shared.ledger.cut_off(item)
            self.fresh.appendleft(item)  # handed back when the lane leaves
        else:
            self._fail(item, outcome)

    def _prepare(self, item: Item) -> bool:
        """Let the runner prepare a call. Return False if that took so long that the item has timed out."""
        began_s = time.monotonic()
        self.runner.prepare()
        if time.monotonic() - began_s > self.shared.settings.extend_s:
            try:
                with self.io:
                    self.extend()
                    self.client.extend(item)
            except NotOpen:  # it comes again
                self.note_confirmed([], [item])
                return False
        return True

    def _begin_item(self, item: Item) -> bool:
        """Note that an item runs. Return False if it must not, or not now."""
        shared = self.shared
        if item.id is None:
            raise Refused("the server speaks the Kestrel dialect, which has no ids: a worker needs dialect = memcached")
        now_s = time.monotonic()
        standing = shared.ledger.begin_item(item, now_s)
        if standing is not Standing.NEW:
            self._put_aside(item, standing, now_s)
            return False
        if shared.pace.is_limited and not self._has_turn(item, now_s + shared.pace.delay_s(now_s)):
            return False
        shared.teller.call(shared.teller.hooks.started, item)
        self.running_since_s = time.monotonic()
        self.running = item
        return True

    def _next_data(self) -> bytes | None:
        """Note that the running item is done, and begin the next fresh one. The runner's thread may call it, where
        nothing in it waits (`_may_run_on`).
        """
        assert self.running is not None
        done, self.running = self.running, None
        self._note_success(done)
        while (item := self._take_fresh()) is not None:
            if self._begin_item(item):
                return item.data
        return None

    def _note_success(self, item: Item) -> None:
        shared = self.shared
        took_s = time.monotonic() - self.running_since_s
        shared.ledger.succeed(item)
        shared.teller.counters.did(took_s, item.queue)
        shared.teller.call(shared.teller.hooks.succeeded, item, took_s)
        self.done.append(item)

    def _has_turn(self, item: Item, at_s: float) -> bool:
        """Wait until the pace lets an item run, and keep it open meanwhile. Return False if it does not run: the worker
        stops, or the item is gone.
        """
        shared, runs = self.shared, False
        try:
            while not shared.stop.stopping.wait(max(0, min(at_s - time.monotonic(), shared.settings.extend_s))):
                if at_s <= time.monotonic():
                    runs = True
                    return True
                with self.io:
                    self.extend()
                    self.client.extend(item)
            self.fresh.appendleft(item)  # handed back when the lane leaves
        except NotOpen:  # it comes again
            self.note_confirmed([], [item])
        finally:
            if not runs:
                shared.ledger.cut_off(item)
        return False

    def _put_aside(self, item: Item, standing: Standing, now_s: float) -> None:
        """Keep an item that came again after a lost connection."""
        if standing is Standing.DONE:
            self.shared.teller.counters.add("repeated", item.queue)
            self.done.append(item)
            return
        later_s = now_s + RUNNING_ELSEWHERE_S
        due_s = later_s if standing is Standing.RUNNING else self.shared.ledger.due_s(item, later_s)
        self.resting.append(Resting(item, due_s))

    def _fail(self, item: Item, outcome: Outcome) -> None:
        shared = self.shared
        attempts = shared.ledger.fail(item)
        shared.teller.counters.add("failed", item.queue)
        shared.teller.call(shared.teller.hooks.failed, item, attempts, outcome.reason)
        last = outcome.reason.strip().rpartition("\n")[2]
        if attempts >= shared.settings.attempts or outcome.end is End.GAVE_UP:
            shared.teller.log(
                "error", "item.died", queue=item.queue, id=item.id or 0, attempts=attempts, why=outcome.reason
            )
            self._bury(Resting(item, 0, outcome.reason or "failed", attempts))
            return
        pause_s = rest_s(shared.settings, attempts, shared.chance)
        shared.teller.log(
            "warning", "item.failed", queue=item.queue, id=item.id or 0, attempts=attempts,
            again_in_s=round(pause_s, 2), why=last,
        )  # fmt: skip
        due_s = time.monotonic() + pause_s
        shared.ledger.schedule_retry(item, due_s)
        self.resting.append(Resting(item, due_s))

    def _bury(self, dying: Resting) -> None:
        """Put an item on the queue of dead letters; only then may it be confirmed."""
        shared, item = self.shared, dying.item
        queue = shared.settings.dead_queue(item.queue)
        letter = DeadLetter(
            item.queue, item.id or 0, item.flags, dying.attempts,
            datetime.now(UTC).isoformat(timespec="milliseconds"), shared.settings.name, shortened(dying.reason),
            item.data,
        )  # fmt: skip
        try:
            with self.io:
                self.client.put(queue, letter.encode())
        except (Full, Refused) as error:
            pause_s = shared.settings.backoff_max_s
            shared.teller.log("error", "dead_letter.refused", queue=queue, why=str(error), again_in_s=pause_s)
            dying.due_s = time.monotonic() + pause_s
            self.resting.append(dying)
            return
        shared.ledger.succeed(item)
        shared.teller.counters.add("dead", item.queue)
        shared.teller.call(shared.teller.hooks.died, item, dying.reason)
        self.done.append(item)

    def relieve(self) -> None:
        """Hand fresh items back and confirm the done ones, because the running item takes long. The caller holds
        `io`.
        """
        while self.fresh:
            try:
                item = self.fresh.pop()
            except IndexError:
                break
            self._abort(item)
        if confirm := self._take_done():
            self.note_confirmed(confirm, self.client.next_items(self._reads[0], 0, confirm=confirm).not_open)

    def _take_done(self) -> list[Item]:
        """Return the items to confirm. The other thread may append meanwhile, so each is taken by itself."""
        taken: list[Item] = []
        while self.done:
            taken.append(self.done.popleft())
        return taken

    def _abort(self, item: Item) -> None:
        try:
            self.client.abort(item)
            self.shared.teller.counters.add("handed_back", item.queue)
        except NotOpen:
            return

    def _leave(self) -> None:
        """Confirm what is done, hand everything else back, and close."""
        try:
            with self.io:
                self.fresh.extend(resting.item for resting in self.resting)
                self.resting = []
                self.relieve()
        except ClientError as error:
            self.shared.teller.log("warning", "connection.lost", why=str(error))
        finally:
            with self.io:
                self.client.close()
