"""The timers of simulated members: those of server/cluster/supervision.py, each on a clock with a rate of its own; and
leases that end by etcd's clock.
"""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING

from staniel.cluster.member import Member
from staniel.server.cluster.disk_calls import DiskCalls
from staniel.server.cluster.etcd_link import RENEWALS_A_LEASE, MemberEntry
from staniel.server.cluster.supervision import Supervision
from tests.cluster.driven import ignore

if TYPE_CHECKING:
    from staniel.cluster.durable import Kept
    from tests.cluster.node import Node

LEASE_S = 5.0
RATES = (0.5, 0.8, 1.0, 1.25, 2.0)
STEPS_S = (0.1, 0.3, 0.5, 2.0)
ENTRY = MemberEntry("n", "127.0.0.1:1", "127.0.0.1:2")


class ProcessEnded(Exception):
    """The end of a process in the midst of its timers."""


class Leases:
    """The time, the clocks, and etcd's leases: of each machine the id of its member, and when that ends by etcd's
    clock.
    """

    def __init__(self, random: Random, machines: int) -> None:
        self._random = random
        self.now = 0.0
        self.rates = [random.choice(RATES) for _ in range(machines)]
        self.etcd_rate = random.choice(RATES)
        self.held: dict[int, tuple[bytes, float]] = {}

    def step(self) -> None:
        """Let time pass, and leases end."""
        self.now += self._random.choice(STEPS_S)
        self.held = {name: lease for name, lease in self.held.items() if lease[1] > self.now * self.etcd_rate}

    def renew(self, name: int, member_id: bytes) -> None:
        """Begin a lease, or its time anew."""
        self.held[name] = member_id, self.now * self.etcd_rate + LEASE_S


class TimedDriver:
    """The driver, as far as the timers know one, of the process that runs on a machine now."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._life = node.life
        self.links = self.copies = self

    @property
    def member(self) -> Member:
        if self._node.member is None or self._node.life != self._life:
            raise ProcessEnded
        return self._node.member

    @property
    def kept(self) -> Kept:
        return self.member.core.kept

    @property
    def file(self) -> SimpleNamespace:
        return SimpleNamespace(running=self._node.syncs[0] if self._node.syncs else None)

    def carry_out(self) -> None:
        self._node.carry_out()

    def trim(self) -> None:
        """Do nothing: the world trims."""

    def forget_written(self, upto: int) -> None:
        """Do nothing: no operator asks."""

    def compared(self, connection: int) -> int:
        return 0

    def sent_bytes(self, connection: int) -> int:
        return 0

    def drop_link(self, connection: int, why: str) -> None:
        self._node.world.close(self._node, connection)
        self.member.disconnected(connection)
        self.carry_out()


class Timers:
    """The timers of one process. `serves`: it has begun to, and its timers do not know it yet."""

    def __init__(self, node: Node, leases: Leases) -> None:
        self._node = node
        self._leases = leases
        self._renewed_at = 0.0
        self._has_lease = False
        self._entries: dict[bytes, MemberEntry] = {}
        driver = TimedDriver(node)
        self._calls = DiskCalls()
        self.supervision = Supervision(driver, self._entries, LEASE_S, ignore, self._calls)  # type: ignore[arg-type]
        self.serves = False

    @property
    def now(self) -> float:
        """What this machine's clock says."""
        return self._leases.now * self._leases.rates[self._node.name]

    def believes_in_lease(self) -> bool:
        """Tell whether this machine's clock says that its lease goes on."""
        return self._has_lease and self.now < self._renewed_at + LEASE_S

    def look_after(self) -> None:
        """Do what is due."""
        self._calls.running = {"recovery": self._node.work[0]} if self._node.is_recovery_hung else {}
        try:
            if self._node.name not in self._node.world.etcd_blocked:
                self._ask_etcd()
            if self.serves:
                self.serves = False
                self.supervision.begin_to_serve(SimpleNamespace(running_sync=None))  # type: ignore[arg-type]
            self.supervision.look_after(self.now)
        except ProcessEnded:
            pass

    def _ask_etcd(self) -> None:
        is_due = not self._has_lease or self.now - self._renewed_at >= LEASE_S / RENEWALS_A_LEASE
        if is_due and self.supervision.is_alive():
            self._leases.renew(self._node.name, self._node.id)
            self._renewed_at, self._has_lease = self.now, True
        self._entries.clear()
        self._entries.update({member_id: ENTRY for member_id, _ in self._leases.held.values()})
        self.supervision.has_entries = True
