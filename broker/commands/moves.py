"""`move` and `requeue`: an operator sends items from the head of one queue to the end of another.

Knows who may, how much goes in one turn and when to stop. How an item gets across safely, transfers.py knows. A move
is not a put: it has no fan-out, and the target is one queue, never an alias.
"""

from __future__ import annotations

from staniel.broker import access as gate
from staniel.broker.commands.puts import DISK_FULL
from staniel.broker.session import Session
from staniel.journal.journals import outlet
from staniel.protocol.memcache import requests as memcache
from staniel.queues.names import name_error
from staniel.queues.ports import Admission
from staniel.queues.queue import Queue
from staniel.queues.registry import Refused

ITEMS_A_SLICE = 256  # some milliseconds; then it is the other clients' turn, and the disk's
BYTES_A_SLICE = 1 << 20
RECORD_OVERHEAD_BYTES = 512  # an item's intent, its copy's head and its records in the source, generously


def move(session: Session, request: memcache.Move, now_ms: int) -> None:
    """Answers when everything has been sent, with how many items that were."""
    if why := mistake_in(session, request):
        session.mistake(why)
        return
    queues = session.broker.queues
    if why := queues.why_blocked(request.source) or queues.why_blocked(request.target):
        session.refuse(why)
        return
    source = queues.find(request.source)
    if source is None:
        session.out.append(session.replies.not_found)
        return
    there = len(source.line)
    count = there if request.count is None else min(request.count, there)
    Move(session, source, request.target, count).go_on(now_ms)


def mistake_in(session: Session, request: memcache.Move) -> str:
    """What is wrong with the two names; empty if nothing is."""
    queues = session.broker.queues
    for name in (request.source, request.target):
        if queues.find(name) is None and (why := name_error(name)):
            return why
        if name in queues.aliases:
            return f"{name} is an alias, name a queue"
    return "the two queues are the same" if request.source == request.target else ""


class Move:
    """One running move. It ends early when the source has nothing live left, when the target is full, or when one of
    them may no longer be used.
    """

    def __init__(self, session: Session, source: Queue, target: str, count: int) -> None:
        self.session = session
        self.source = source
        self.target = target
        self.left = count
        self.moved = 0
        self.is_ahead = False  # of the disk: as much of the source as may be is under way

    def go_on(self, now_ms: int) -> None:
        """Send a slice; then yield to other clients, or answer."""
        try:
            more = self._send_slice(now_ms)
        except Refused as refused:
            if not self.moved:
                self.session.refuse(refused.why)
                return
            more = False
        if self.is_ahead:
            self._wait_for_disk()
        elif more:
            self.session.put_off(self.go_on)
        else:
            self.session.out.append(self.session.replies.moved(self.moved))
            source, target = self.source.name, self.target
            self.session.note("queue.moved", now_ms, queue=source, target=target, items=self.moved)

    def _wait_for_disk(self) -> None:
        """Go on after the next sync. (A turn after the other would ask without an end while a sync is slow.)"""
        session, own = self.session, outlet(self.source.journal)
        if own is None:
            session.put_off(self.go_on)
            return
        session.hold_on(lambda _, now_ms: session.put_off(self.go_on))
        session.broker.group.after(own, lambda now_ms: session.deliver(True))

    def _send_slice(self, now_ms: int) -> bool:
        """Whether there is more to do. Raises Refused."""
        self.is_ahead = False
        if not self.left:
            return False
        target = self._check_target(now_ms)
        last = self.moved + ITEMS_A_SLICE
        size = 0
        sent: int | None = 0
        while self.left and self.moved < last and size < BYTES_A_SLICE and sent is not None:
            sent = self._send_one(target, now_ms)
            size += sent or 0
        self.session.depend_on(self.source)
        self.session.depend_on(target)
        return self.left > 0 and (sent is not None or self.source.sweep.is_unfinished)

    def _check_target(self, now_ms: int) -> Queue:
        """The target, made if need be. A lot may have happened since the last slice. Raises Refused and Later."""
        session = self.session
        queues = session.broker.queues
        for name in (self.target, self.source.name):
            if name in queues.aliases:
                raise Refused(f"{name} is an alias now", client=False)
        if why := gate.write_refusal(session, None) or gate.read_refusal(session, self.source):
            raise Refused(why, client=False)
        target = queues.make_for_client(self.target, now_ms)
        if why := gate.write_refusal(session, target):
            raise Refused(why, client=False)
        return target

    def _send_one(self, target: Queue, now_ms: int) -> int | None:
        """The bytes of the item that was sent; None if none can be. Raises Refused."""
        deletions = self.session.broker.deletions
        if deletions.is_put_off(self.source) or deletions.is_put_off(target):
            return None
        head = self.source.peek(now_ms)
        if head is None or not target.has_room(head.item):
            return None
        size = len(head.item.data) + RECORD_OVERHEAD_BYTES
        if not self.session.broker.group.admits(size):
            raise Refused(DISK_FULL, client=False)
        match self.session.broker.transfers.admits(self.source, len(head.item.data)):
            case Admission.SOON:
                self.is_ahead = True
                return None
            case Admission.LATER:
                raise Refused(f"too much of {self.source.name} waits for a queue that cannot be used", client=False)
        self.source.send_head(self.target, now_ms)
        self.moved += 1
        self.left -= 1
        return size
