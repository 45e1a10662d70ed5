"""Sending dead letters home: each item returns to the queue that it left, where several queues share a dead-letter
queue.

A redrive is a move whose slices have targets of their own: the items set aside in a turn are sent in one slice for each
home.
"""

from __future__ import annotations

from staniel.broker import access
from staniel.broker.operations.move import RunningMove, move_error
from staniel.broker.operations.running import OperationRequest, Operations
from staniel.broker.operations.undo import UndoRecord
from staniel.queues.item import Item
from staniel.queues.past import past_of
from staniel.queues.queue import Queue
from staniel.queues.registry import QueueRefused, TryNextTurn

NO_HOME = "the next item does not say which queue it comes from: say where to move it (`to`, --to)"


def home_of(item: Item) -> str:
    """Return the name of the queue that a dead letter left; "" if the item does not say."""
    past = past_of(item)
    return past.origin_name if past is not None else ""


class RunningRedrive(RunningMove):
    """A redrive to as many queues as the items come from. It ends early at an item that cannot go home."""

    slices_per_step = 16

    def __init__(
        self,
        operations: Operations,
        request: OperationRequest,
        source: Queue,
        now_ms: int,
        record: UndoRecord | None = None,
    ) -> None:
        super().__init__(operations, request, source, "", now_ms, record)
        self.takes_paused = True

    def _first_targets(self, now_ms: int) -> dict[str, Queue]:
        return {}

    def _target_of(self, head: Item, now_ms: int) -> Queue:
        name = home_of(head)
        if name in self._targets:
            return self._targets[name]
        self.next_target = name
        if why := self._refusal(name):
            raise QueueRefused(why, client=False)
        if self._must_wait_for(name):
            raise TryNextTurn
        self._targets[name] = self._check_target(name, now_ms)
        return self._targets[name]

    def _refusal(self, name: str) -> str:
        """Return why an item may not go home to `name`; "" if it may. The user's present rights count."""
        queues, rights = self.tools.queues, self.tools.clients.rights_of(self.user) if self.user else None
        if not name:
            return NO_HOME
        if self.user and rights is None:
            return f"there is no user {self.user} any more, whose rights this needs"
        why = access.target_refusal(rights, queues, name) if rights is not None else ""
        return why or move_error(queues, self.source.name, name)
