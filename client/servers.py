"""The servers that a MultiClient knows: which is asked next, which is set aside and until when, which is the leader.

Nothing here waits or reads a clock: `now_s` is an argument, and the client asks.

    a server   is asked                                         then
    well       in its turn                                      `lost` or `follows`: set aside
    set aside  once its time has come, or if all are set aside  `heard`: well; `lost`: set aside for twice as long
    follower   as one set aside; at once if its leader is lost  `heard`: well; `lost`: set aside

pymemcache's HashClient tries a lost server again after 1 s and 60 s, Kafka's and redis' clients after exponentially
longer times with jitter; so does this one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

Address = tuple[str, int]

ASIDE_S_MIN = 0.1
ASIDE_S_MAX = 30.0
FOLLOWER_ASIDE_S = 5.0
"""A server that named a leader is asked again after this time, because it may be the leader then, and its refusal is
cheap.
"""
REDIRECTS_MAX = 5
"""The most leaders followed for one request. If servers name each other in a circle, the program gets the last
refusal.
"""

_NOT_THE_LEADER = re.compile(r"SERVER_ERROR not the leader: (?:\[([^\]\s]+)\]|([^:\s]+)):([0-9]{1,5})")


def chance() -> float:
    """Return a random number from 0 up to 1, exclusive."""
    return int.from_bytes(os.urandom(4)) / 2**32


def leader_of(refusal: str) -> Address | None:
    """Return the address of the leader that a refusal names; None if it names none."""
    match = _NOT_THE_LEADER.fullmatch(refusal.strip())
    if match is None or not 0 < int(match[3]) < 65_536:
        return None
    return match[1] or match[2], int(match[3])


@dataclass
class _Known:
    """The state of one server: times it was lost in a row, when it is asked again, and the leader that is asked instead
    until then.
    """

    times_lost: int = 0
    again_s: float = 0.0
    leader: Address | None = None


class Servers:
    """The addresses, in turns, and their state."""

    def __init__(self, addresses: Sequence[Address], chance: Callable[[], float]) -> None:
        """Begin with any of the servers: many clients that start together do not all begin with the same. `chance`
        returns a number from 0 up to 1, exclusive. Raises ValueError for no address, or one that is there twice.
        """
        self._known = {address: _Known() for address in addresses}
        if not addresses or len(self._known) != len(addresses):
            raise ValueError(f"expected one address (host, port) or more, each once, not {list(addresses)}")
        self._given = tuple(addresses)
        self._chance = chance
        self._next = int(chance() * len(addresses))

    def of_key(self, key: str) -> Address:
        """Return the server that items with this key are put on, the same in each program with the same servers: that
        with the highest digest, so that most keys keep their server when one is added or removed.
        """
        return max(self._given, key=lambda address: sha256(f"{address[0]}:{address[1]} {key}".encode()).digest())

    @property
    def addresses(self) -> list[Address]:
        return list(self._known)

    def in_turn(self, now_s: float) -> list[Address]:
        """Return the servers to ask, in this order, and let the next call begin with the next one.

        Those that are set aside are left out; if all are, the one whose time comes first is asked.
        """
        addresses = list(self._known)
        self._next %= len(addresses)
        rotated = addresses[self._next :] + addresses[: self._next]
        self._next += 1
        due = [address for address in rotated if self._known[address].again_s <= now_s]
        return due or [min(rotated, key=lambda address: self._known[address].again_s)]

    def due_beside(self, asked: Sequence[Address], now_s: float) -> list[Address]:
        """Return the servers that are neither set aside nor in `asked`: the followers of a lost leader."""
        return [address for address, known in self._known.items() if address not in asked and known.again_s <= now_s]

    def next_due_s(self, now_s: float) -> float | None:
        """Return the time at which a server that is set aside is asked again; None if there is none."""
        aside = [known.again_s for known in self._known.values() if known.again_s > now_s]
        return min(aside, default=None)

    def heard(self, address: Address) -> None:
        """Note that a server has replied."""
        known = self._known[address]
        known.times_lost, known.again_s, known.leader = 0, 0.0, None

    def lost(self, address: Address, now_s: float) -> None:
        """Set a server aside: for ASIDE_S_MIN, then twice as long each time, at most ASIDE_S_MAX, less a random part so
        that many clients do not come back at the same moment. The servers that had named it as their leader are asked
        at once: one of them may be the leader now.
        """
        for follower in self._known.values():
            if follower.leader == address:
                follower.again_s, follower.leader = 0.0, None
        known = self._known[address]
        known.leader = None
        known.times_lost += 1
        longest = min(ASIDE_S_MAX, ASIDE_S_MIN * 2 ** min(known.times_lost - 1, 20))
        known.again_s = now_s + longest * (1 - self._chance() / 2)

    def follows(self, address: Address, leader: Address, now_s: float) -> None:
        """Note that `leader` leads `address`: it is asked instead, also if it was set aside or not known before."""
        self._known.setdefault(leader, _Known())
        self.heard(leader)
        if address != leader:
            known = self._known[address]
            known.again_s, known.leader = now_s + FOLLOWER_ASIDE_S, leader
