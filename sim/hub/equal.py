"""Items that are all alike, put at the same moment, and operations that carry them two at a time.

No byte distinguishes such items, so the judge counts (ledgers.py): of each content there must be as many as clients
were told, over all queues together.
"""

from __future__ import annotations

from random import Random

from staniel.broker.operations.running import LOOK_AGAIN_MS
from staniel.sim.history import SeedPlan
from staniel.sim.hub import operators
from staniel.sim.hub.clients import Request, Side, Want
from staniel.sim.hub.ledgers import QUEUES, EqualLedger
from staniel.sim.hub.operators import Operator
from staniel.sim.hub.run import HubRun
from staniel.sim.queues.promises import Accident

TURNS_MS = (*(0,) * 80, LOOK_AGAIN_MS)
TURNS_TO_ACCIDENT_MS = (0, 0, 0, LOOK_AGAIN_MS)
"""Most turns take no time, so most puts of a life come in one millisecond. When an accident is near, operations need
not wait for each other.
"""
SETTLES = 0.2
FLAGS = (1, 2, 3, 5, 8, 13, 20, 40, 2**31 - 1)
FLAGGED_BESIDE = 60  # percent
PUTS_BESIDE = {False: 10, True: 50}  # percent, by whether copies are still to come
TURNS_OF_A_PUT = 7
STEPS_OF_A_PUT = 4
STEPS_OF_TWO = 60  # of the disk, within which two operations are cut off
PLACES = (2, 3, 4, 6, 100)  # places in a bounded queue
LAX = "c"
"""A queue whose items come only from other queues and go only to other queues, in seeds that give it another sync
policy. So none of its items may be lost or doubled under any policy.
"""


class EqualRun(HubRun):
    settles = SETTLES

    def __init__(self, seed_plan: SeedPlan) -> None:
        super().__init__(seed_plan)
        self.ledger = EqualLedger(QUEUES)
        self.is_lax = self.rng.random() < 0.4
        self._settings = self._settings_of_seed()
        self.config = self._config()

    def _settings_of_seed(self) -> str:
        """Return the settings that the reloads of a seed do not change."""
        lines = []
        if self.rng.randrange(1000) < self.profile.streams:
            lines.append('default.journal_format = "libkestrel"')
        if self.is_lax:
            lines.append(f'queues.{LAX}.sync_journal = "os"')
        if self.is_lax or self.rng.random() < 0.6:
            lines += [f'queues.{LAX}.dead_letter_queue = "a"', f"queues.{LAX}.max_deliveries = 1"]
        if self.profile.bounded:
            lines += [f"queues.{name}.max_items = {self.rng.choice(PLACES)}" for name in QUEUES]
        return "".join(f"{line}\n" for line in lines)

    def _config(self) -> str:
        return super()._config() + getattr(self, "_settings", "")

    def _accident(self, accident: Accident) -> None:
        for client in list(self.clients):
            self._hear(client)  # the client reads what the server has sent
        super()._accident(accident)

    def _take_step(self) -> None:
        self.turns_ms = TURNS_TO_ACCIDENT_MS if self.is_due else TURNS_MS
        super()._take_step()

    def _act(self) -> None:
        """Prefer a new operation to anything else. When an accident is near, begin only some puts, so that most
        requests have replies and count.
        """
        draw = self.rng.randrange(100)
        if self.is_due and self.world.broker.operations.running:
            if self.profile.flagged:
                if draw < FLAGGED_BESIDE:
                    self._put_flagged(self.rng.choice(self._open_to_clients), self.rng.choice((1, 2)))
            elif draw < PUTS_BESIDE[self.world.broker.transfers.are_copies_to_come]:
                self._put_beside()
            self.rng.choice(self.world.workers).advance()
            self._meanwhile()
        elif self.is_due or draw < 15:
            self._begin_two()
        elif draw < 30:
            self._put_some(self.rng.choice(self._open_to_clients), self.rng.choice((1, 2, 4)))
        elif draw < 45:
            self._request()
        elif draw < 55:
            self._dead_letters()
        else:
            self._meanwhile()

    def _begin_two(self) -> None:
        """Let two operators request long operations in one turn, perhaps after all other replies, and perhaps before an
        accident.
        """
        is_last = not self.is_due and self.rng.random() < 0.7
        queues = self.rng.sample(QUEUES, 3)
        if is_last:
            self._prepare(*queues)
        self._ask(*self._two_operations(*queues))
        if is_last:
            self._arm()
            if not self.profile.torn_groups:
                self.disk.stop_at = len(self.disk.log) + self.rng.randrange(STEPS_OF_TWO)

    def _prepare(self, target: str, *sources: str) -> None:
        """Put items that two operations can bring to `target`, or back to it."""
        rng = self.rng
        self._hear_all()
        for source in sources:
            if rng.random() < 0.6 and target in self._open_to_clients:
                self._put_some(target)
                taken = operators.moves(target, source, rng) if rng.random() < 0.3 else None
                self._ask(taken or operators.purges(target, rng, no_undo=False))
            elif source in self._open_to_clients:
                self._put_some(source)
            self._hear_all()

    def _put_some(self, queue: str, count: int = 2) -> None:
        self._hear_all()
        if self.profile.flagged:
            self._put_flagged(queue, count)
        else:
            client = self._operator()
            client.send_requests(
                [operators.puts(queue, *self._new_item(queue, self.rng), self.rng) for _ in range(count)]
            )
        self._hear_all()

    def _put_flagged(self, queue: str, count: int) -> None:
        """Let a client put items whose flags look like numbers of transactions, in one packet."""
        self.actors += 1
        client = self._new_client()
        if self.ends_silent:
            client.why_over = "silence"
        self.clients.append(client)
        requests = []
        for _ in range(count):
            number, data = self._new_item(queue, self.rng)
            words = queue.encode(), self.rng.choice(FLAGS), len(data), data
            requests.append(Request(Want.PUT, queue, b"set %b %d 0 %d\r\n%b\r\n" % words, number))
        self._said.append(("asks", client.name, f"puts {count} items with flags into {queue}"))
        client.send_requests(requests)
        client.push(self.rng, all_of_it=True)

    def _put_beside(self) -> None:
        """Put an item equal to those that the operations carry, in the millisecond that most of them have. In half of
        the cases wait for its reply while the operations run, then let the disk stop soon.
        """
        world = self.world
        running = world.broker.operations.running.values()
        targets = sorted({operation.target or operation.queue_name for operation in running} & {*self._open_to_clients})
        if not targets:
            return
        queue = self.rng.choice(targets)
        self._ask(operators.puts(queue, *self._new_item(queue, self.rng), self.rng))
        if self.rng.random() < 0.5:
            return
        for _ in range(TURNS_OF_A_PUT):
            world.turn(0)
            world.machine.syncs.advance()
            for client in list(self.clients):
                self._hear(client)
        self.disk.stop_at = len(self.disk.log) + self.rng.randrange(STEPS_OF_A_PUT)

    def _ask(self, *requests: Request) -> None:
        """Send each request by an operator of its own."""
        for request in requests:
            client = self._operator()
            self._said.append(("asks", client.name, repr(request.line[:40])))
            client.send_requests([request])
            client.push(self.rng, all_of_it=True)

    def _two_operations(self, target: str, *sources: str) -> list[Request]:
        """Return operations that bring items to `target` in preference to other queues."""
        rng, known = self.rng, self.world.broker.undos.by_id
        candidates = [number for number, record in known.items() if record.queue == target][-2:]
        undos = [operators.undoes(number, rng) for number in candidates]
        moves = [operators.moves(source, target, rng) for source in sources]
        purges = [operators.purges(queue, rng, no_undo=False) for queue in (target, sources[0])]
        if len(undos) == 2 and rng.random() < 0.7:
            return undos
        return rng.choice((undos[:1] + moves[:1], undos[:1] + purges[:1], moves, purges, purges[:1]))

    def _hear_all(self) -> None:
        """Read every reply that waits only for the disk, while no time passes."""
        before, self.world.net.meanwhile = self.world.net.meanwhile, lambda: None
        for _ in range(2):
            for client in list(self.clients):
                client.push(self.rng, all_of_it=True)
            self.world.turn_until_idle(self.world.now_ms)
            for client in list(self.clients):
                self._hear(client)
        self.world.net.meanwhile = before

    def _dead_letters(self) -> None:
        """Let a client open items and abort some of them in one packet, whether or not that is durable."""
        self.actors += 1
        client = self._new_client()
        if self.ends_silent:
            client.why_over = "silence"
        self.clients.append(client)
        queue = LAX.encode()
        opens = [Request(Want.OPEN, LAX, b"get %b/open\r\n" % queue) for _ in range(self.rng.choice((1, 1, 2)))]
        client.send_requests([*opens, Request(Want.ABORT, LAX, b"get %b/abort\r\n" % queue)])
        client.push(self.rng, all_of_it=True)
        if not self.is_due and self.rng.random() < 0.1:
            self._arm()

    def _operator(self) -> Operator:
        idle = [client for client in self.clients if type(client) is Operator and client.side is Side.OPEN]
        free = [operator for operator in idle if not operator.unanswered and operator.why_over in ("", "silence")]
        if free:
            return free[0]
        self.actors += 1
        client = Operator(f"o{self.actors}", self.world.connect_operator())
        if self.ends_silent:
            client.why_over = "silence"
        self.clients.append(client)
        return client

    def _one_of_operator(self, rng: Random) -> Request:
        """Return a request of an operator. Requests that make the number of items unknown are rare."""
        queue, draw = rng.choice(self._open_to_clients), rng.randrange(100)
        if draw < 30:
            return operators.takes(queue, rng)
        return operators.looks(queue, rng) if draw < 99 else operators.deletes(queue, rng)

    def _one(self, rng: Random) -> Request:
        queue = rng.choice(self._open_to_clients)
        want, words = rng.choice(((Want.GET, ""), (Want.OPEN, "/open"), (Want.CLOSE, "/close"), (Want.ABORT, "/abort")))
        return Request(want, queue, f"get {queue}{words}\r\n".encode())

    @property
    def _open_to_clients(self) -> tuple[str, ...]:
        return tuple(queue for queue in QUEUES if not (self.is_lax and queue == LAX))
