"""Clients of a hub that put items with idempotency keys, and put them again: at once, behind a lost answer, from
another connection, in a later life of the server.

Each item has one key. It is stored once at most, whatever was asked how often; and exactly once if an answer said that
it is there.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from staniel.sim.history import SeedPlan
from staniel.sim.hub.clients import Answer, NetClient, Request, Want
from staniel.sim.hub.ledgers import Found, Ledger
from staniel.sim.hub.run import HubRun
from staniel.sim.violations import Kind, Violation

DELETED = "c"  # the only queue that is deleted, which forgets its keys: nothing is put to it with a key
RECENT = 12  # items among which the next one to be put again is chosen


class KeyClient(NetClient):
    """A client whose puts may be known already."""

    def may_end(self, request: Request, line: bytes) -> bool:
        return (request.want is Want.PUT and line == b"EXISTS") or super().may_end(request, line)


class KeyLedger(Ledger):
    """A ledger of items with keys."""

    def __init__(self) -> None:
        super().__init__()
        self.times_stored: Counter[int] = Counter()
        self.perhaps_read: set[int] = set()  # in earlier lives, by requests whose answers were lost

    def hears(self, client: NetClient, answer: Answer) -> None:
        request = answer.request
        if request.want is Want.PUT and request.queue != DELETED:
            if answer.end == b"EXISTS" and request.item not in self.perhaps_read:
                self.stored[request.queue].add(request.item)
            elif answer.end == b"STORED":
                self.times_stored[request.item] += 1
                if self.times_stored[request.item] > 1:
                    raise Violation(Kind.DUPLICATED, f"{client.name} is told that #{request.item} is stored, again")
                self.perhaps_read.discard(request.item)
        super().hears(client, answer)

    def go_on_from(self, found: Found) -> None:
        loose = [queue for queue, count in self.loose.items() if count]
        self.perhaps_read.update(
            item for item, queue in self.put.items() if queue in loose and item not in found.get(queue, ())
        )
        super().go_on_from(found)


class KeyRun(HubRun):
    """A seed of the profile whose clients put items with keys."""

    def __init__(self, seed_plan: SeedPlan) -> None:
        super().__init__(seed_plan)
        self.is_alike = False
        self.ledger = KeyLedger()
        self._puts: list[Request] = []  # with keys, of all lives

    def _config(self) -> str:
        if not hasattr(self, "_format"):  # it stays, or a queue would have files of both
            is_stream = self.rng.randrange(1000) < self.profile.streams
            self._format = f'default.journal_format = "{"libkestrel" if is_stream else "kestrel"}"\n'
        return super()._config() + self._format

    def _new_client(self) -> NetClient:
        return KeyClient(f"c{self.actors}", self.world.connect())

    def _one_of(self, rng: Random, client: NetClient, before: list[Request]) -> Request:
        if self._puts and rng.random() < 0.4:
            unanswered = [request for other in self.clients for request in other.unanswered if b"/key=" in request.line]
            again = rng.choice(unanswered if unanswered and rng.random() < 0.6 else self._puts[-RECENT:])
            return Request(Want.PUT, again.queue, again.line, again.item)
        request = self._one(rng)
        if request.want is Want.DELETE:
            return Request(Want.DELETE, DELETED, f"delete {DELETED}\r\n".encode())
        if request.want is Want.PUT and request.queue != DELETED:
            head, name = b"set %b " % request.queue.encode(), b"%b/key=item-%d" % (request.queue.encode(), request.item)
            line = request.line.replace(head, b"set %b " % name, 1)
            request = Request(Want.PUT, request.queue, line, request.item)
            self._puts.append(request)
        return request
