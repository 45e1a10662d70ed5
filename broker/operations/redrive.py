"""Sending dead letters home: each item to the queue that it left, where several queues share a dead-letter queue.

Each item is sent by an intent of its own, so no crash loses or doubles one. There is no undo: an undo knows one queue.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.broker import access
from staniel.broker.operations.move import OVERHEAD_BYTES, RunningMove, move_error
from staniel.broker.session import Session
from staniel.queues.interfaces import Admission, Reason
from staniel.queues.item import Item
from staniel.queues.past import past_of
from staniel.queues.queue import Queue, QueueState
from staniel.queues.registry import Later, Refused

ITEMS_PER_STEP = 32  # each costs an intent and three records
NO_HOME = "the next item does not say which queue it comes from: say where to move it (`to`, --to)"


def target_of(item: Item) -> str:
    """Return the name of the queue that a dead letter left; "" if it does not say."""
    past = past_of(item)
    return past.origin_name if past is not None else ""


class RunningRedrive(RunningMove):
    """A redrive to as many queues as the items come from. It ends early at an item that cannot go home. `forbidden`:
    says of a queue's name why the rights of who asks do not allow it; empty if they do.
    """

    def __init__(
        self,
        session: Session,
        source: Queue,
        count: int | None,
        finish: Callable[[int, str], None],
        now_ms: int,
        forbidden: Callable[[str], str],
    ) -> None:
        super().__init__(session, source, "", count, finish, now_ms, "redrive")
        self.forbidden = forbidden

    def _take_slice(self, now_ms: int) -> bool:
        """Send the next items at once: nothing is set aside, as no undo file has to name them first. Raises Refused
        and Later.
        """
        self.is_ahead = False
        self._slice_bytes = 0
        sent, has_more = 0, True
        try:
            while self.left and sent < ITEMS_PER_STEP and (has_more := self._send_next(now_ms)):
                sent += 1
        except Later:
            if not sent:
                raise
        return self.left > 0 and (has_more or self.source.is_unsettled)

    def _send_next(self, now_ms: int) -> bool:
        """Send the head home; whether there was one that may go now. Raises Refused and Later."""
        source, broker = self.source, self.session.broker
        if source.state is QueueState.CLOSED:
            raise Refused(f"{source.name} is deleted", client=False)
        if source.name in broker.queues.aliases:
            raise Refused(f"{source.name} is an alias now", client=False)
        if why := access.read_refusal(self.session, source):
            raise Refused(why, client=False)
        head = None if broker.deletions.is_postponed(source) else source.peek(now_ms)
        if head is None:
            return False
        name, size = target_of(head.item), len(head.item.data)
        target = self._home(name, now_ms)
        if broker.deletions.is_postponed(target):
            return False
        if not target.has_room(head.item, now_ms):
            raise Refused(f"{name} is full (max_items or max_size)", client=False)
        self._slice_bytes += size + OVERHEAD_BYTES
        if not broker.group.admits(self._slice_bytes):
            raise Refused(access.DISK_FULL, client=False)
        match broker.transfers.admits(source, size):
            case Admission.SOON:
                self.is_ahead = True
                return False
            case Admission.LATER:
                raise Refused(f"too much of {source.name} waits for a queue that cannot be used", client=False)
        self.left -= 1
        self.moved += 1
        broker.transfers.accept(source, source.open_to_leave(), Reason.MOVED, now_ms, name)
        self.session.depend_on(source)
        self.session.depend_on(target)
        return True

    def _home(self, name: str, now_ms: int) -> Queue:
        """The queue of that name, made if need be. Raises Refused and Later."""
        session, queues = self.session, self.session.broker.queues
        if not name:
            raise Refused(NO_HOME, client=False)
        if why := self.forbidden(name) or access.write_refusal(session, None):
            raise Refused(why, client=False)
        if why := move_error(queues, self.source.name, name):
            raise Refused(why, client=False)
        target = queues.make_for_client(name, now_ms)
        if why := access.write_refusal(session, target):
            raise Refused(why, client=False)
        return target
