"""Deletions by operators that must lose no waiting item: those that can be undone, and those that may remove no item.
They are requested during purges, undos and puts.

Only items that are open when a queue is deleted may be lost.
"""

from __future__ import annotations

from random import Random

from staniel.queues.queue import Queue
from staniel.sim.history import SeedPlan
from staniel.sim.hub import operators
from staniel.sim.hub.clients import ITEM, Answer, NetClient, Request, Want
from staniel.sim.hub.ledgers import QUEUES, Ledger
from staniel.sim.hub.run import HubRun
from staniel.sim.hub.world import HubWorld
from staniel.sim.violations import Kind, Violation


class CarefulLedger(Ledger):
    """A ledger in which a deletion frees only the items that were open."""

    def hears(self, client: NetClient, answer: Answer) -> None:
        if answer.request.want is not Want.DELETE_UNDOABLY:
            super().hears(client, answer)

    def leaves(self, client: NetClient) -> None:
        for request in [request for request in client.unanswered if request.want is Want.DELETE_UNDOABLY]:
            client.unanswered.remove(request)
        super().leaves(client)

    def goes(self, queue: Queue) -> None:
        """Note the items that are open when `queue` is deleted. Raises Violation if others wait in it: no deletion of
        this profile may remove those.
        """
        if queue.line.present:
            raise Violation(Kind.LOST, f"{queue.name} goes with {queue.line.present} items that wait, without an undo")
        matches = [ITEM.match(read.item.data) for read in queue.open_reads.values()]
        self.freed.update(int(match[1]) for match in matches if match is not None)


class DeletionRun(HubRun):
    """A seed of the profile of deletions."""

    ledger: CarefulLedger

    def __init__(self, seed_plan: SeedPlan) -> None:
        super().__init__(seed_plan)
        self.is_alike = False
        self.ledger = CarefulLedger()

    def make_world(self) -> HubWorld:
        world = super().make_world()
        queues = world.broker.queues
        remove = queues.remove

        def removed(queue: Queue) -> None:
            self.ledger.goes(queue)
            remove(queue)

        queues.remove = removed  # type: ignore[method-assign]
        return world

    def _one_of_operator(self, rng: Random) -> Request:
        broker, draw = self.world.broker, rng.randrange(100)
        under_way = [
            operation.queue_name for operation in broker.operations.running.values() if operation.queue_name in QUEUES
        ]
        queue = rng.choice(under_way or QUEUES)
        if under_way and draw < 45:
            return operators.deletes(queue, rng, at_most_none=rng.random() < 0.5)
        if (known := list(broker.undos.by_id)) and draw < 60:
            return operators.undoes(rng.choice(known), rng)
        if draw < 75:
            return operators.purges(queue, rng, no_undo=False)
        if draw < 80:
            return operators.deletes(queue, rng)
        if draw < 95:
            return operators.puts(queue, *self._new_item(queue, rng), rng)
        return operators.takes(queue, rng)

    def _one(self, rng: Random) -> Request:
        while (request := super()._one(rng)).want is Want.DELETE:
            pass
        return request
