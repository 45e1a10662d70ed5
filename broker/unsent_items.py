"""Items that were removed for good, until their replies are sent. If the client disconnects before that, they are put
back.

For each item there is the position in the client's output at which its reply begins. The hub reports how many bytes
were sent.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from staniel.queues.item import Delivery
from staniel.queues.queue import Queue

Entry = tuple[int, Queue, Delivery]


class Recipient(Protocol):
    """A client with replies in `out` that are not sent yet."""

    out: list[bytes]


Client = TypeVar("Client", bound=Recipient)


class SessionUnsent:
    """The unsent items of one client. `new`: by the piece of its session's `out` in which the item's reply begins.
    `placed`: by the number of bytes before the reply, counted from where `sent` was 0.
    """

    __slots__ = ("new", "placed", "sent")

    def __init__(self) -> None:
        self.new: list[Entry] = []
        self.placed: deque[Entry] = deque()
        self.sent = 0


class UnsentItems(Generic[Client]):
    """The unsent items of all sessions. `new`: the sessions with new ones from replies of this turn."""

    __slots__ = ("by_session", "new")

    def __init__(self) -> None:
        self.by_session: dict[Client, SessionUnsent] = {}
        self.new: dict[Client, None] = {}

    def add(self, session: Client, queue: Queue, taken: Delivery) -> None:
        """Note that the next piece of the session's `out` shows this item."""
        owed = self.by_session.get(session)
        if owed is None:
            owed = self.by_session[session] = SessionUnsent()
        owed.new.append((len(session.out), queue, taken))
        self.new[session] = None

    def place(self, session: Client, ahead_bytes: int) -> None:
        """Place the new items of a session, whose `out` begins after `ahead_bytes` unsent bytes."""
        owed, out = self.by_session[session], session.out
        at, done = owed.sent + ahead_bytes, 0
        for piece, queue, taken in owed.new:
            at += sum([len(data) for data in out[done:piece]])
            done = piece
            owed.placed.append((at, queue, taken))
        owed.new.clear()

    def left(self, session: Client, size: int) -> None:
        """Note that `size` bytes were sent. An item with the first byte of its reply sent belongs to the client."""
        owed = self.by_session.get(session)
        if owed is None:
            return
        owed.sent += size
        placed = owed.placed
        while placed and placed[0][0] < owed.sent:
            placed.popleft()
        if not placed and not owed.new:
            del self.by_session[session]

    def pop(self, session: Client) -> list[tuple[Queue, Delivery]]:
        """Remove and return the items whose replies have no byte sent."""
        self.new.pop(session, None)
        owed = self.by_session.pop(session, None)
        return [] if owed is None else [(queue, taken) for _, queue, taken in (*owed.placed, *owed.new)]
