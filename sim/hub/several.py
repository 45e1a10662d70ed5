"""Clients of a hub that read from several queues with one request, beside clients that read from one, put, delete and
leave.

An item comes from one of the queues that its request names, under the name of that queue, and its open read is that
queue's alone: it is ended there by its id. No item leaves a queue for a client that has got another one.
"""

from __future__ import annotations

from random import Random

from staniel.sim.history import SeedPlan
from staniel.sim.hub.clients import TAKES, Answer, NetClient, Request, Want
from staniel.sim.hub.ids import IdClient, IdRun
from staniel.sim.hub.ledgers import QUEUES, Ledger
from staniel.sim.hub.net import Link


class SeveralClient(IdClient):
    """A client that names several queues in one request. `several`: the names of such requests."""

    def __init__(self, name: str, link: Link) -> None:
        super().__init__(name, link)
        self.several: dict[Request, tuple[str, ...]] = {}

    def _next(self, request: Request) -> Answer | None:
        """Return the next part of a reply. The first line of one with an item says from which queue that is."""
        names = self.several.get(request, ())
        line, newline, _ = bytes(self._heard).partition(b"\r\n")
        if names and newline and line.startswith(b"VALUE "):
            name = line.split(b" ")[1].decode()
            if name in names:
                request.queue = name
        return super()._next(request)


class SeveralLedger(Ledger):
    """A ledger of items that requests without a reply may have taken from any of several queues."""

    def leaves(self, client: NetClient) -> None:
        assert isinstance(client, SeveralClient)
        for request in client.unanswered:
            for name in client.several.get(request, ()):
                if name != request.queue:
                    self.loose[name] += TAKES.get(request.want, 0)
        super().leaves(client)


class SeveralRun(IdRun):
    """A seed of the profile whose clients read from several queues."""

    def __init__(self, seed_plan: SeedPlan) -> None:
        super().__init__(seed_plan)
        self.is_alike = False
        self.ledger = SeveralLedger()

    def _new_client(self) -> NetClient:
        return SeveralClient(f"c{self.actors}", self.world.connect())

    def _one_of(self, rng: Random, client: NetClient, before: list[Request]) -> Request:
        assert isinstance(client, SeveralClient)
        request = super()._one_of(rng, client, before)
        if request.want is not Want.OPEN or rng.random() < 0.3:
            return request
        names = rng.sample(QUEUES, rng.choice((2, 2, 3)))
        takes = not client.by_id and not self._names_asked(client, before, Want.OPEN) and rng.random() < 0.3
        options = ("/t=100" if request.waits else "") + ("" if takes else "/open") + f"/also={','.join(names[1:])}"
        want = Want.GET if takes else Want.OPEN
        request = Request(want, names[0], f"gets {names[0]}{options}\r\n".encode(), waits=request.waits)
        client.several[request] = tuple(names)
        return request

    def _names_asked(self, client: SeveralClient, before: list[Request], want: Want) -> set[str]:
        """Return the queues that outstanding requests of this kind name."""
        asked = [request for request in (*client.unanswered, *before) if request.want is want]
        return {name for request in asked for name in client.several.get(request, (request.queue,))}

    def _strange(self, client: IdClient, before: list[Request]) -> dict[tuple[str, int], int]:
        assert isinstance(client, SeveralClient)
        opening = self._names_asked(client, before, Want.OPEN)
        return {which: item for which, item in super()._strange(client, before).items() if which[0] not in opening}
