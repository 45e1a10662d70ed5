"""The accidents of a run's machines. Each begins something; `Machines.heal` ends all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from staniel.bench.soak.cluster.machines import FILL_LEAVES_BYTES, Machine, Machines, Member
from staniel.bench.soak.cluster.network import OUTSIDE

SLOW_SYNC_MS = (20, 700)


class Accidents:
    """A source of accidents, which follow from `random`, and from who leads."""

    def __init__(self, machines: Machines, random: Random) -> None:
        self.machines, self.network, self.random = machines, machines.network, random
        self.kinds: dict[str, Callable[[], None]] = {
            "kill -9 of a member": lambda: self._member().kill(),
            "kill -9 of two members": lambda: self._kill(self.random.sample(self.machines.members, 2)),
            "kill -9 of all members": lambda: self._kill(self.machines.members),
            "SIGTERM to a member": lambda: self._member().stop(),
            "SIGSTOP of a member": lambda: self._member().freeze(),
            "a hand-over": self._hand_over,
            "a slow disk": self._slow_disk,
            "a full disk": lambda: self._member().disk.fill(FILL_LEAVES_BYTES),
            "a member cut off from all": self._isolate,
            "a member cut off from etcd": self._cut_from_etcd,
            "a member cut off from the others": self._cut_from_members,
            "a member cut off from the others, one way": self._cut_one_way,
            "a member that clients cannot reach, or hear": self._cut_from_clients,
            "a network that loses packets": self._lose,
            "kill -9 of an etcd": lambda: self.random.choice(self.machines.etcds).kill(),
            "kill -9 of two etcds": lambda: self._kill(self.random.sample(self.machines.etcds, 2)),
            "SIGSTOP of an etcd": lambda: self.random.choice(self.machines.etcds).freeze(),
        }

    def happen(self) -> str:
        """Cause one. Return its name."""
        name = self.random.choice(list(self.kinds))
        self.kinds[name]()
        return name

    def _member(self) -> Member:
        """Return the leader, mostly."""
        leader = self.machines.leader if self.random.random() < 0.6 else None
        return leader or self.random.choice(self.machines.members)

    def _kill(self, machines: Sequence[Machine]) -> None:
        for machine in machines:
            machine.kill()

    def _hand_over(self) -> None:
        leader = self.machines.leader
        if leader is not None:
            leader.ask("/cluster/handover", {})

    def _slow_disk(self) -> None:
        self._member().slow.write_text(str(self.random.randint(*SLOW_SYNC_MS)))

    def _isolate(self) -> None:
        member = self._member()
        for other in self.machines.all:
            if other is not member:
                self._cut(member.name, other.name)
        self._cut_clients(member)

    def _cut_from_etcd(self) -> None:
        member = self._member()
        for etcd in self.machines.etcds:
            self._cut(member.name, etcd.name)

    def _cut_from_members(self) -> None:
        member = self._member()
        for other in self.machines.members:
            if other is not member:
                self._cut(member.name, other.name)

    def _cut_one_way(self) -> None:
        member, hears = self._member(), self.random.random() < 0.5
        for other in self.machines.members:
            if other is not member:
                source, target = (member, other) if hears else (other, member)
                self.network.cut(source.name, target.name)

    def _cut_from_clients(self) -> None:
        member = self._member()
        if self.random.random() < 0.5:
            self.network.cut(OUTSIDE, member.name)
        else:
            self.network.cut_to_clients(member.name)

    def _cut_clients(self, member: Member) -> None:
        self.network.cut(OUTSIDE, member.name)
        self.network.cut_to_clients(member.name)

    def _cut(self, one: str, other: str) -> None:
        self.network.cut(one, other)
        self.network.cut(other, one)

    def _lose(self) -> None:
        for member in self.machines.members:
            self.network.lose(member.name)
