"""Clients of a hub that put items with a delay, from milliseconds to a minute, among others without one.

No client hears of an item before it is due, in whatever life of the server; nothing is lost or doubled; and a client
that waits for an item does not wait on beside one that is due.
"""

from __future__ import annotations

from random import Random

from staniel.queues.queue import Queue
from staniel.sim.history import SeedPlan
from staniel.sim.hub.clients import ITEM, Answer, NetClient, Request, Want
from staniel.sim.hub.ledgers import Ledger
from staniel.sim.hub.run import HubRun
from staniel.sim.violations import Kind, Violation

DELAYS_MS = (1, 20, 100, 500, 500, 2000, 5000, 60_000)
DELAYED_SHARE = 0.6  # of the puts
MEMORY_BYTES = (1500, 3000, 8000)  # room for a few items at rest
TURNS_MS = (0, 0, 0, 1, 1, 5, 30, 30)
LATE_MS = 60  # by the mark of an era, the slot of a timer, and a turn


class DelayRun(HubRun):
    """A seed of the profile whose clients put items with a delay."""

    def __init__(self, seed_plan: SeedPlan) -> None:
        self._due_ms: dict[int, int] = {}  # by item, when it may be handed out at the earliest
        self._delays_ms: dict[int, int] = {}
        self._latest_ms: dict[int, int] = {}  # by item that is stored, when it is due at the latest
        self._reloaded_ms = 0
        super().__init__(seed_plan)
        self.is_alike = False
        self.ledger, self.turns_ms = Ledger(), TURNS_MS

    def _config(self) -> str:
        memory_bytes = self.rng.choice(MEMORY_BYTES)
        lines = super()._config().splitlines()
        lines = [line for line in lines if not line.startswith("default.max_memory_size")]
        return "\n".join([*lines, f"default.max_memory_size = {memory_bytes}"]) + "\n"

    def _one_of(self, rng: Random, client: NetClient, before: list[Request]) -> Request:
        request = self._one(rng)
        if request.want is not Want.PUT or rng.random() > DELAYED_SHARE:
            return request
        delay_ms = rng.choice(DELAYS_MS)
        self._due_ms[request.item] = self.world.now_ms + delay_ms
        self._delays_ms[request.item] = delay_ms
        head, name = b"set %b " % request.queue.encode(), b"%b/delay=%d" % (request.queue.encode(), delay_ms)
        return Request(Want.PUT, request.queue, request.line.replace(head, b"set %b " % name, 1), request.item)

    def _look_at(self, client: NetClient, answer: Answer) -> None:
        now_ms, item = self.world.now_ms, answer.request.item
        if answer.request.want is Want.PUT and answer.end == b"STORED":
            self._latest_ms[item] = now_ms + self._delays_ms.get(item, 0)
        for number in answer.items:
            if (early_ms := self._due_ms.get(number, 0) - now_ms) > 0:
                raise Violation(Kind.EARLY, f"{client.name} gets #{number} {early_ms} ms too early")

    def _reload(self) -> None:
        super()._reload()
        self._reloaded_ms = self.world.now_ms

    def _take_step(self) -> None:
        super()._take_step()
        if self.world.now_ms == self._reloaded_ms:
            return  # a reload can make room for items at rest, and the next turn hands out what is behind them
        for queue in self.world.broker.queues:
            if queue.waiters and not (queue.is_unsettled or queue.is_resting_full or queue.gets_paused):
                self._check_waits(queue)

    def _check_waits(self, queue: Queue) -> None:
        """Check that no item is due while clients wait for one. Raises Violation."""
        reads = [*queue.resting.values(), *queue.line.returned]
        for item in [*(delivery.item for delivery in reads), *queue.line.in_memory]:
            number = ITEM.match(item.data)
            latest_ms = self._latest_ms.get(int(number[1])) if number else None
            if latest_ms is not None and latest_ms + LATE_MS < self.world.now_ms:
                why = f"{queue.name} keeps {item.data[:8]!r} for {self.world.now_ms - latest_ms} ms"
                raise Violation(Kind.LATE, why)
