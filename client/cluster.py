"""The leader of a cluster: which server is asked for it next, and when the search ends.

All queues of a cluster are on the server that leads it; the others refuse requests with `SERVER_ERROR not the leader:
HOST:PORT`. Nothing here waits or reads a clock: MultiClient asks.

    the leader is     asked first                        then
    known             it                                 the servers that refusals name, then the other members
    not known         any member, another in each client  likewise

A search asks no server twice, so servers that name each other end it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from staniel.client.errors import ClientError, ConnectionLost, NoLeader, Outcome, Refused
from staniel.client.servers import REDIRECTS_MAX, Address, leader_of
from staniel.client.sockets import TooSlow

PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0
"""The pause between two searches doubles from one to the other: an election takes some time."""

PATIENCE_S_MIN = 1.0
"""The shortest time for a reply, once a server was silent during a search."""

_REFUSAL = "SERVER_ERROR not the leader"


def is_not_leader(error: ClientError) -> bool:
    """Return True for the refusal of a server that does not lead its cluster: the request had no effect."""
    return isinstance(error, Refused) and str(error).startswith(_REFUSAL)


def was_silent(error: ClientError) -> bool:
    """Return True if the server took the connection and then nothing, or did not reply in time."""
    return isinstance(error, ConnectionLost) and isinstance(error.__context__, TooSlow)


class Cluster:
    """The members of a cluster, as the program names them, and its leader, as far as known."""

    def __init__(
        self, members: Sequence[Address], chance: Callable[[], float], *, names_are_addresses: bool = True
    ) -> None:
        """Begin with any of the members, at least one: clients that start together do not all ask the same one.
        `chance` returns a number from 0 up to 1, exclusive. Without `names_are_addresses`, a refusal names a port for
        another protocol: then it only says on which host the leader is.
        """
        self.names_are_addresses = names_are_addresses
        first = int(chance() * len(members))
        self.members = [*members[first:], *members[:first]]
        self.leader: Address | None = None

    def search(self) -> Search:
        """Begin a search for the server that leads."""
        return Search(self)


class Search:
    """The search of one request."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        leader = cluster.leader  # read once: other threads search, too
        self._left = deque([*([] if leader is None else [leader]), *cluster.members])
        self._asked: set[Address] = set()
        self._redirects = 0
        self._errors: list[tuple[Address, ClientError]] = []

    def next_server(self) -> Address | None:
        """Return the server to ask next; None if all were asked."""
        while self._left:
            address = self._left.popleft()
            if address not in self._asked:
                self._asked.add(address)
                return address
        return None

    def note_failure(self, address: Address, error: ClientError) -> None:
        """Note that a server does not lead, or was lost. A leader that it names is asked next."""
        if self._cluster.leader == address:
            self._cluster.leader = None
        self._errors.append((address, error))
        leader = leader_of(str(error)) if isinstance(error, Refused) else None
        if leader is None or self._redirects == REDIRECTS_MAX:
            return
        self._redirects += 1
        if self._cluster.names_are_addresses:
            self._left.appendleft(leader)
        else:
            self._left = deque(sorted(self._left, key=lambda member: member[0] != leader[0]))

    def note_leader(self, address: Address) -> None:
        """Note that a server leads: it has done what it was asked for."""
        self._cluster.leader = address

    @property
    def error(self) -> NoLeader:
        """The error of a search without success. Its outcome is UNKNOWN if that of one request was."""
        said = []
        for (host, port), error in self._errors:
            leader = leader_of(str(error)) if isinstance(error, Refused) else None
            if leader is not None:
                said.append(f"{host}:{port} names {leader[0]}:{leader[1]}")
            elif is_not_leader(error):
                said.append(f"{host}:{port} names none")
            else:
                said.append(f"{host}:{port} is lost: {error}")
        unknown = any(error.outcome is Outcome.UNKNOWN for _, error in self._errors)
        return NoLeader(
            f"no server leads the cluster: {'; '.join(said)}", Outcome.UNKNOWN if unknown else Outcome.NOT_DONE
        )


def may_search_on(error: ClientError, may_repeat: Callable[[ConnectionLost], bool]) -> bool:
    """Return True if the leader may be searched for after `error`: the server does not lead, or is lost and the request
    may be repeated.
    """
    return may_repeat(error) if isinstance(error, ConnectionLost) else is_not_leader(error)
