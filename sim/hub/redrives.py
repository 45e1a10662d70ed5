"""Dead letters of several queues in one, and redrives that send each home, while clients let items die there again.

An item is in the queue that it was put to, or among the dead letters, and never in another's home. While no client asks
for anything else, a redrive followed by its undo changes nothing.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from staniel.queues.queue import Queue
from staniel.sim.history import SeedPlan
from staniel.sim.hub import operators
from staniel.sim.hub.clients import Answer, NetClient, Request, Want
from staniel.sim.hub.equal import EqualRun
from staniel.sim.hub.ledgers import QUEUES, EqualLedger, Found, Ledger
from staniel.sim.violations import Kind, Violation

HOMES = ("a", "b")
DEAD = "c"
STEPS_OF_REDRIVE = 90  # steps of the disk within which one is cut off
Lines = dict[str, Counter[bytes]]
"""The items of each queue, each by its beginning."""


class HomeLedger(Ledger):
    """A ledger of items that die, go home, and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.together = dict.fromkeys(QUEUES, frozenset(QUEUES))

    def hears(self, client: NetClient, answer: Answer) -> None:
        super().hears(client, answer)
        self._check_homes(answer.request.queue, answer.items)

    def judge(self, content: Found) -> None:
        super().judge(content)
        for home in HOMES:
            self._check_homes(home, content.get(home, []))

    def _check_homes(self, queue: str, items: list[int]) -> None:
        if strange := [item for item in items if queue in HOMES and self.put.get(item) != queue]:
            raise Violation(Kind.INVENTED, f"{queue} has {strange}, whose home is another queue")


def _is_busy(queue: Queue) -> bool:
    return bool(queue.count_waiters() or queue.open_reads or queue.delayed or queue.in_transfer)


class RedriveRun(EqualRun):
    """A seed of the profile of redrives."""

    def __init__(self, seed_plan: SeedPlan) -> None:
        super().__init__(seed_plan)
        self.is_lax = False
        self.ledger = EqualLedger(QUEUES) if self.is_alike else HomeLedger()

    def _settings_of_seed(self) -> str:
        lines = [f'queues.{DEAD}.journal_format = "kestrel"']  # which has room for pasts
        if self.rng.randrange(1000) < self.profile.streams:
            lines.append('default.journal_format = "libkestrel"')
        for home in HOMES:
            lines += [f'queues.{home}.dead_letter_queue = "{DEAD}"', f"queues.{home}.max_deliveries = 1"]
        return "".join(f"{line}\n" for line in lines)

    def _act(self) -> None:
        draw = self.rng.randrange(100)
        if self.is_due and self.world.broker.operations.running:
            self.rng.choice(self.world.workers).advance()
            self._meanwhile()
        elif self.is_due and draw < 40:
            self._cut_off()
        elif draw < 25:
            self._let_die(self.rng.choice(HOMES))
        elif draw < 30:
            self._there_and_back()
        elif draw < 38:
            self._ask(self._one_of_operator(self.rng))
        elif draw < 60:
            self._request()
        else:
            self._meanwhile()

    def _let_die(self, home: str) -> None:
        """Put items, and let a client open and abort them."""
        count = self.rng.choice((1, 1, 2, 4))
        self._put_some(home, count)
        client = self._worker()
        queue = home.encode()
        for _ in range(count):
            opens = Request(Want.OPEN, home, b"get %b/open\r\n" % queue)
            client.send_requests([opens, Request(Want.ABORT, home, b"get %b/abort\r\n" % queue)])
        client.push(self.rng, all_of_it=True)

    def _worker(self) -> NetClient:
        self.actors += 1
        client = self._new_client()
        if self.ends_silent:
            client.why_over = "silence"
        self.clients.append(client)
        return client

    def _cut_off(self) -> None:
        """Begin a redrive, or its undo, with an accident on the way."""
        for home in self.rng.sample(HOMES, 2):
            self._let_die(home)
        self._hear_all()
        self._ask(operators.redrives(DEAD, self.rng))
        if self.rng.random() < 0.5:
            self._hear_all()
            if known := self._redrives():
                self._ask(operators.undoes(known[-1], self.rng))
        self._arm()
        self.disk.stop_at = len(self.disk.log) + self.rng.randrange(STEPS_OF_REDRIVE)

    def _redrives(self) -> list[int]:
        return [number for number, undo in self.world.broker.undos.by_id.items() if not undo.is_in_use]

    def _there_and_back(self) -> None:
        """Redrive and undo while no client asks for anything else. Raises Violation if anything has changed."""
        self._hear_all()
        operations, before = self.world.broker.operations, self._lines()
        if operations.running or any(map(_is_busy, self.world.broker.queues)):
            return
        last = max(self.world.broker.undos.by_id, default=0)
        self._ask(operators.redrives(DEAD, self.rng))
        self._hear_all()
        known = [number for number in self._redrives() if number > last]
        ended = operations.find(known[-1]) if known else None
        if ended is None or not ended.ended_ms or operations.running or not ended.done:
            return
        self._look_at_homes(before, ended.done)
        self._ask(operators.undoes(known[-1], self.rng))
        self._hear_all()
        if not operations.running and (after := self._lines()) != before:
            raise Violation(Kind.LOST, f"a redrive and its undo make {after} of {before}")

    def _look_at_homes(self, before: Lines, count: int) -> None:
        now = self._lines()
        came = sum(now[home].total() - before[home].total() for home in HOMES)
        if not came == count == before[DEAD].total() - now[DEAD].total():
            raise Violation(Kind.LOST, f"a redrive of {count} items makes {now} of {before}")

    def _lines(self) -> Lines:
        lines: Lines = {name: Counter() for name in QUEUES}
        for queue in self.world.broker.queues:
            lines[queue.name] = Counter(item.data[:8].rstrip(b".") for item in queue.line.walk())
        return lines

    def _one_of_operator(self, rng: Random) -> Request:
        draw, known = rng.randrange(100), list(self.world.broker.undos.by_id)
        running = list(self.world.broker.operations.running)
        if draw < 40:
            return operators.redrives(DEAD, rng)
        if known and draw < 65:
            return operators.undoes(rng.choice(known), rng)
        if running and draw < 80:
            return operators.cancels(rng.choice(running), rng)
        if draw < 90:
            return operators.takes(rng.choice(QUEUES), rng)
        return operators.looks(rng.choice(QUEUES), rng) if draw < 99 else operators.deletes(rng.choice(HOMES), rng)

    def _one(self, rng: Random) -> Request:
        if rng.randrange(100) < 2:
            number, data = self._new_item(DEAD, rng)  # it has no past that names its queue
            return Request(Want.PUT, DEAD, b"set %b 0 0 %d\r\n%b\r\n" % (DEAD.encode(), len(data), data), number)
        return super()._one(rng)
