"""Sending dead letters home: each item to the queue that it left, where several queues share a dead-letter queue.

Each item is sent by an intent of its own, so no crash loses or doubles one. There is no undo: an undo knows one queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from staniel.broker import access
from staniel.broker.operations.move import RunningMove, move_error
from staniel.broker.operations.running import CANCELLED, Requester
from staniel.broker.operations.transfer import WORK_PER_ITEM
from staniel.broker.selection.chosen import PASSED_PER_TURN, Chosen, Head
from staniel.journal.journals import removal_log
from staniel.queues.interfaces import Admission, Reason
from staniel.queues.item import Item
from staniel.queues.past import past_of
from staniel.queues.queue import Queue, QueueState
from staniel.queues.registry import Later, Refused

if TYPE_CHECKING:
    from staniel.broker.broker import Broker

ITEMS_PER_STEP = 32  # each costs an intent and three records
NO_HOME = "the next item does not say which queue it comes from: say where to move it (`to`, --to)"


def target_of(item: Item) -> str:
    """Return the name of the queue that a dead letter left; "" if it does not say."""
    past = past_of(item)
    return past.origin_name if past is not None else ""


class RunningRedrive(RunningMove):
    """A redrive to as many queues as the items come from. It ends early at an item that cannot go home."""

    def __init__(
        self,
        broker: Broker,
        by: Requester,
        source: Queue,
        count: int | None,
        now_ms: int,
        target_refusal: Callable[[str], str],
        chosen: Chosen | None = None,
    ) -> None:
        """`target_refusal(name)`: why its user may not move items to that queue; empty if allowed."""
        self._target_refusal = target_refusal
        super().__init__(broker, by, source, "", count, now_ms, "redrive", chosen=chosen)
        self.takes_paused = True

    def _open_file(self, now_ms: int) -> None:
        """There is none, so there is no undo."""

    def _begin_slice(self, now_ms: int) -> int:
        if self.is_cancelled and self.left:
            self.stop_sending(CANCELLED, now_ms)
            return 0
        sent = 0
        try:
            while sent < ITEMS_PER_STEP and not self._is_waiting and self._send_next(now_ms):
                sent += 1
        except Later:
            return sent
        except Refused as refused:
            self.stop_sending(refused.why, now_ms)
        return sent + (PASSED_PER_TURN // WORK_PER_ITEM if self._head is Head.MORE else 0)

    def _send_next(self, now_ms: int) -> bool:
        """Send the head home; whether there was one. Raises Refused and Later."""
        source, transfers, log = self.source, self.broker.transfers, removal_log(self.source.journal)
        if source.state is QueueState.CLOSED:
            raise Refused(f"{source.name} is deleted", client=False)
        if why := access.read_refusal(self, source):
            raise Refused(why, client=False)
        self._head = self._reach_head(now_ms) if self.left else Head.NONE
        if self._head is not Head.CHOSEN:
            if self._head is Head.TOO_FAR and self._chosen is not None:
                raise Refused(self._chosen.too_far, client=False)
            if self._head is Head.NONE and not source.is_unsettled:
                self.stop_sending((access.trouble(source) if self.left else "") or self._why_less, now_ms)
            return False
        head = source.line.head()
        assert head is not None
        name = target_of(head)
        target = self._home(name, now_ms)
        if not target.has_room(head, now_ms):
            self.is_target_full = True
            self.stop_sending(f"{name} is full (max_items or max_size)", now_ms)
            return False
        if transfers.admits(source, len(head.data)) is not Admission.NOW:
            if self.broker.group.is_full or log is None:
                raise Refused(access.disk_full(self.broker.group), client=False)
            self._is_waiting = True
            self.broker.group.after(log, self._go_on)
            return False
        self.left -= 1
        taken = source.open_to_leave() if self._chosen is None else self._chosen.take(source, head)
        transfers.accept(source, taken, Reason.MOVED, now_ms, name)
        self.advance(self.done + 1, now_ms)
        return True

    def _home(self, name: str, now_ms: int) -> Queue:
        """The queue of that name, made if need be. Raises Refused and Later."""
        queues = self.broker.queues
        if not name:
            raise Refused(NO_HOME, client=False)
        if why := self._target_refusal(name) or access.write_refusal(self, None):
            raise Refused(why, client=False)
        if why := move_error(queues, self.source.name, name):
            raise Refused(why, client=False)
        target = queues.make_for_client(name, now_ms)
        if why := access.write_refusal(self, target):
            raise Refused(why, client=False)
        return target
