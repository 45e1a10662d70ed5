"""Clients of a hub that have several items of a queue open, and end their reads by the ids of the items, in any order.

A client knows the id of an item from the reply that showed it. Sometimes it names an item that another client has open,
or one that it had open before: that must end no read.
"""

from __future__ import annotations

from random import Random

from staniel.sim.hub.clients import Answer, NetClient, Request, Want
from staniel.sim.hub.net import Link
from staniel.sim.hub.run import HubRun
from staniel.sim.violations import Kind, Violation

ENDINGS = (Want.CONFIRM_ID, Want.CONFIRM_ID, Want.ABORT_ID, Want.EXTEND_ID)
LINES = {
    Want.CONFIRM_ID: "delete {}/id={}\r\n",
    Want.ABORT_ID: "touch {}/id={}/abort 0\r\n",
    Want.EXTEND_ID: "touch {}/id={} 0\r\n",
}
ONE_ITEM = {Want.GET, Want.SOME, Want.OPEN, Want.CLOSE, Want.ABORT, Want.MONITOR}
DELETED = "c"  # the only queue that is deleted: items of others stay open until their clients end the reads
Held = tuple[str, int]
"""A queue and the id of an item of it."""


class IdClient(NetClient):
    """A client that opens several items. `by_id`: its open items, `ended`: its ended ones, each with its number.
    `asked`: the items that its requests name, and whether it had them open.
    """

    def __init__(self, name: str, link: Link) -> None:
        super().__init__(name, link)
        self.by_id: dict[Held, int] = {}
        self.ended: dict[Held, int] = {}
        self.asked: dict[Request, tuple[Held, bool]] = {}


class IdRun(HubRun):
    """A seed of the profile whose clients end reads by id."""

    def _new_client(self) -> NetClient:
        return IdClient(f"c{self.actors}", self.world.connect())

    def _one_of(self, rng: Random, client: NetClient, before: list[Request]) -> Request:
        assert isinstance(client, IdClient)
        if client.by_id and rng.random() < 0.5:
            which = rng.choice(sorted(client.by_id))
            want, item = rng.choice(ENDINGS), client.by_id[which]
            if want is not Want.EXTEND_ID:
                client.ended[which] = client.by_id.pop(which)
            return self._asks(client, want, which, item, is_held=True)
        strange = self._strange(client, before)
        if strange and rng.random() < 0.2:
            which = rng.choice(sorted(strange))
            return self._asks(client, rng.choice(ENDINGS), which, strange[which], is_held=False)
        request = self._one(rng)
        if request.want in ONE_ITEM:
            wait = "/t=100" if request.waits else ""
            line = f"gets {request.queue}{wait}/open\r\n".encode()
            return Request(Want.OPEN, request.queue, line, waits=request.waits)
        if request.want is Want.DELETE:
            return Request(Want.DELETE, DELETED, f"delete {DELETED}\r\n".encode())
        return request

    def _strange(self, client: IdClient, before: list[Request]) -> dict[Held, int]:
        """Return the items that the client does not have open, and that no outstanding reply can show it."""
        opening = {request.queue for request in (*client.unanswered, *before) if request.want is Want.OPEN}
        strange = dict(client.ended)
        for other in self.clients:
            if isinstance(other, IdClient) and other is not client:
                strange |= other.by_id
        return {which: item for which, item in strange.items() if which[0] not in opening and which not in client.by_id}

    def _asks(self, client: IdClient, want: Want, which: Held, item: int, *, is_held: bool) -> Request:
        request = Request(want, which[0], LINES[want].format(*which).encode(), item)
        client.asked[request] = which, is_held
        return request

    def _look_at(self, client: NetClient, answer: Answer) -> None:
        """Check that exactly the client's own open items were ended. Raises Violation."""
        assert isinstance(client, IdClient)
        request = answer.request
        if request.want is Want.OPEN:
            for number, item in zip(answer.ids, answer.items, strict=True):
                client.by_id[request.queue, number] = item
                client.ended.pop((request.queue, number), None)
        if request.want not in LINES:
            return
        which, is_held = client.asked.pop(request)
        is_done = answer.end in (b"DELETED", b"TOUCHED")
        if is_done and not is_held:
            raise Violation(Kind.STOLEN, f"{client.name} does not hold {which}, and hears {answer.end!r}")
        if is_held and not is_done and which[0] != DELETED:
            raise Violation(Kind.LOST, f"{client.name} holds {which}, and hears {answer.end!r}")
