"""A hub with many queues, whose clock counts its work. Whatever clients request, no turn may do more than a turn's
share.
"""

from __future__ import annotations

from random import Random

from staniel.sim.disk.disk import Disk
from staniel.sim.hub.clients import Answer, NetClient, Request, Want
from staniel.sim.hub.ledgers import QUEUES
from staniel.sim.hub.operators import Operator
from staniel.sim.hub.run import HubRun
from staniel.sim.hub.world import HubWorld
from staniel.sim.violations import Kind, Violation
from staniel.sim.work_meter import WorkMeter

OTHERS = [f"x{number:03d}" for number in range(120)]
LINES_MAX = 13_000  # lines of the server's code in a turn; one check of all queues for `health` may have 5,000 of them
COMMANDS = (b"stats", b"stats server", b"dump_stats", b"dump_config", b"flush_all", b"flush_all_expired", b"reload")
LONG = frozenset((b"stats", b"stats server", b"dump_stats", b"dump_config"))


class MeteredWorld(HubWorld):
    """A world that measures each turn."""

    def __init__(self, config: str, disk: Disk, now_ms: int, rng: Random, clients_max: int) -> None:
        super().__init__(config, disk, now_ms, rng, clients_max)
        self.meter = WorkMeter()
        self.most_lines = 0
        self.hub._elapsed_ns = self.broker.step_clock.now_ns = self.meter.ns
        self.hub._samples._elapsed_ns = self.hub.handshakes._elapsed_ns = self.meter.ns
        for name in OTHERS:
            self.broker.queues.make(name, now_ms)

    def handle_events(self, events: list[tuple[int, int]]) -> None:
        before = self.meter.lines
        with self.meter:
            super().handle_events(events)
        lines = self.meter.lines - before
        self.most_lines = max(self.most_lines, lines)
        if lines > LINES_MAX:
            raise Violation(Kind.TOO_LONG, f"a turn executes {lines} lines, {LINES_MAX} may be")

    def turn_until_idle(self, until_ms: int, turns_max: int = 30_000) -> None:
        super().turn_until_idle(until_ms, turns_max)


class Listing(NetClient):
    """A client that also asks for all queues."""

    def _next(self, request: Request) -> Answer | None:
        if request.want is not Want.LOOK:
            return super()._next(request)
        end = b"END\r\n" if request.line[:-2] in LONG else b"\r\n"
        heard = bytes(self._heard)
        at = 0 if heard.startswith(end) else heard.find(end if end == b"\r\n" else b"\n" + end)
        if at < 0:
            return None
        self._heard = bytearray(heard[heard.index(end, at) + len(end) :])
        return Answer(request, [], b"LOOKED")


class ShareRun(HubRun):
    """A seed of the profile with many queues. Queues that clients use are durable, the many others keep no journal."""

    world: MeteredWorld

    def _config(self) -> str:
        kept = "".join([f"queues.{name}.keep_journal = true\n" for name in "abc"])
        return super()._config() + "default.keep_journal = false\nserver.stall_timeout = '1h'\n" + kept

    def make_world(self) -> MeteredWorld:
        return MeteredWorld(self.config, self.disk, self.now_ms, self.rng, self.clients_max)

    def _new_client(self) -> NetClient:
        return Listing(f"c{self.actors}", self.world.connect())

    def _one(self, rng: Random) -> Request:
        if rng.randrange(100) < 30:
            command = rng.choice(COMMANDS)
            if command == b"flush_all":
                self.ledger.doomed.update(QUEUES)  # all items may be removed, at an unknown moment
            return Request(Want.LOOK, "", command + b"\r\n")
        return super()._one(rng)

    def _pipeline(self, rng: Random, client: NetClient) -> list[Request]:
        requests = super()._pipeline(rng, client)
        if not isinstance(client, Operator) and rng.randrange(4) == 0:
            requests[:0] = [Request(Want.GET, "b", b"get b/t=50\r\n", waits=True)]
        return requests
