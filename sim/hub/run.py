"""A history of the hub: clients with sockets, threads and time, in every order that a machine could produce.

It checks connections, and the items as clients see them. queues/run.py checks the inside of queues.
"""

from __future__ import annotations

from random import Random

from staniel.journal.group_commit import JournalFailure
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.journal.undo_file import DELETE, UndoContent, read_content
from staniel.journal.undo_file import FOLDER as UNDO_FOLDER
from staniel.sim.disk.disk import Disk
from staniel.sim.history import UNABLE, History, SeedPlan
from staniel.sim.hub import operators
from staniel.sim.hub.clients import ITEM, WAIT_MS, Answer, NetClient, Request, Side, Want
from staniel.sim.hub.ledgers import PADDING, QUEUES, EqualLedger, Found, Ledger
from staniel.sim.hub.operators import Operator, Page
from staniel.sim.hub.world import HubWorld
from staniel.sim.queues.promises import Accident
from staniel.sim.violations import Kind, Violation
from staniel.sim.world import AUDIT_LOG, START_MS

STATUS = (b"status quiescent\r\n", *(b"status up\r\n",) * 5)
ALIKE_SHARE = 0.25  # of the seeds of any profile
CONTENTS = (1, 1, 1, 2)  # the contents of equal items
TURNS_OF_ALIKE_MS = (*(0,) * 30, 1, 5, 30)  # most items of a life come in one millisecond
REST_MS = 3500  # longer than any wait, and than the server lingers


class HubRun(History):
    """A seed of a profile that has a hub."""

    world: HubWorld
    turns_ms: tuple[int, ...] = (0, 0, 0, 1, 1, 5, 30)
    settles = 0.6  # the chance that clients read all replies before an accident

    def __init__(self, seed_plan: SeedPlan) -> None:
        super().__init__(seed_plan)
        # Drawn from a source of its own, so that the other seeds keep their histories.
        self.is_alike = self.profile.equal or Random(f"alike: {seed_plan.seed}").random() < ALIKE_SHARE
        self.ledger = EqualLedger() if self.is_alike else Ledger()
        if self.is_alike:
            self.turns_ms = TURNS_OF_ALIKE_MS
        self.clients: list[NetClient] = []
        self.ends_silent = False
        self._said: list[tuple[str, str, str]] = []
        self._answers = 0
        self.diligence = self.rng.choice((0.05, 0.3))  # the chance that a thread advances
        self.clients_max = self.rng.choice((3, 100, 100))
        self.config = self._config()

    def _config(self) -> str:
        rng = self.rng
        small = rng.random() < 0.7
        timeout = rng.choice(("", "", "", "400ms")) if not self.profile.stands_still else "400ms"
        self.ends_silent = self.ends_silent or bool(timeout)
        lines = [
            f'server.expiration_timer_frequency = "{rng.choice(("100ms", "1s", "none"))}"',
            f'default.sync_journal = "{rng.choice(self.profile.policies)}"',
            f'queues.b.sync_journal = "{rng.choice(self.profile.policies)}"',
            f"default.default_journal_size = {rng.choice((200, 500)) if small else 5000}",
            f"default.max_memory_size = {rng.choice((150, 300, 600)) if small else 100_000}",
            f"default.max_journal_size = {rng.choice((400, 900)) if small else 1_000_000}",
            "default.min_journal_compact_delay = 0",
        ]
        if self.profile.redo_logs:
            lines.append(f'server.redo_log = "{rng.choice(self.profile.redo_logs)}"')
        if self.profile.undo:
            lines.append(f'{AUDIT_LOG} = "64KB"')
        if timeout:
            lines.append(f'server.client_timeout = "{timeout}"')
        return "\n".join(lines) + "\n"

    def begin_life(self) -> None:
        self.clients = []
        if self.is_alike and self.rng.random() < 0.7:
            self.now_ms = START_MS - 1000  # a start adds a second: items of both lives have the same time

    def make_world(self) -> HubWorld:
        world = HubWorld(self.config, self.disk, self.now_ms, self.rng, self.clients_max)
        world.stands_still = world.net.tells_all = self.profile.stands_still
        return world

    def end_life(self) -> tuple[list[tuple[str, str, str]], int, int]:
        """Disconnect every client."""
        for client in self.clients:
            self.ledger.leaves(client)
        self.clients = []
        return self._said, self.world.turns if hasattr(self, "world") else 0, self._answers

    def content_of(self, disk: Disk) -> Found:
        try:
            content = self.contents.of(disk)
        except (*UNABLE, AssertionError) as failure:
            raise Violation(Kind.NO_START, f"a server on a copy of the disk: {failure!r}") from failure
        return {name: [int(ITEM.match(data)[1]) for data in items] for name, items in content.items()}  # type: ignore[index]

    def judge(self, content: Found, accident: Accident) -> Found:
        if not self.clients:  # otherwise clients may still receive replies that are unknown here
            self.ledger.judge(content)
        return content

    def knows_power_cuts(self) -> bool:
        return set(self.profile.policies) == {"always"}  # the ledger does not know when a sync has come

    def go_on_from(self, judged: Found) -> None:
        self.ledger.go_on_from(judged)
        self.ledger.resumed = resumed_deletions(self.disk)

    def _end(self, accident: Accident) -> None:
        if self.rng.random() < self.settles:
            self._end_clients()
        super()._end(accident)

    def _stop(self) -> None:
        for client in self.clients:  # some leave during the stop, and notice it then
            client.why_over = "the server stops"
        try:
            self.world.stop()
        except (JournalFailure, OSError) as failure:
            raise self._died(failure) from failure
        for client in self.clients:
            client.why_over = "the server stops"
            self._hear(client)
        for client in self.clients:
            link = client.link
            if not link.server_ended and not link.is_reset:
                raise Violation(Kind.LEAK, f"{client.name} is connected to a server that has stopped")

    def _take_step(self) -> None:
        rng = self.rng
        self.world.net.meanwhile = self._meanwhile
        try:
            for _ in range(rng.choice((1, 1, 3, 8))):
                self._act()
            for _ in range(rng.choice((0, 1, 1, 3))):
                self.world.turn(rng.choice(self.turns_ms))
        except (JournalFailure, OSError) as failure:
            raise self._died(failure) from failure
        self.now_ms = self.world.now_ms
        for client in list(self.clients):
            if rng.random() < 0.7:
                self._hear(client)

    def _act(self) -> None:
        """Let something happen between two turns."""
        draw = self.rng.randrange(100)
        if draw < 40:
            self._request()
        elif draw < 50 and self.clients:
            self._leave(self.rng.choice(self.clients))
        elif draw < 52:
            self._reload()
        elif draw < 57:
            self._change_over()
        else:
            self._meanwhile()

    def _change_over(self) -> None:
        """Reset a client that waits for the disk and connect another, while threads finish."""
        waiting = [connection.sock for connection in self.world.hub._holding]
        those = [client for client in self.clients if client.side is Side.OPEN and client.link.server in waiting]
        if those:
            self._leave(self.rng.choice(those), how=0)
            self._connect()
            for worker in self.world.workers:
                while worker.advance():
                    pass
            self.world.turn()

    def _meanwhile(self) -> None:
        """Let something happen that the hub does not cause: a thread advances, bytes arrive, a client leaves."""
        rng = self.rng
        draw = rng.random()
        if draw < self.diligence:
            rng.choice(self.world.workers).advance()
        elif draw < 0.5 and self.clients:
            rng.choice(self.clients).push(rng)
        elif draw < 0.52 and self.clients:
            self._leave(rng.choice(self.clients))

    def _request(self) -> None:
        rng = self.rng
        here = [
            client
            for client in self.clients
            if client.side is Side.OPEN and client.why_over in ("", "silence") and not isinstance(client, Page)
        ]
        if not here or (len(here) < self.profile.clients and rng.random() < 0.5):
            client = self._connect()
        else:
            client = rng.choice(here)
        if isinstance(client, Page):
            client.push(rng)
            return
        requests = self._pipeline(rng, client)
        self._said.append(("asks", client.name, " ⏎ ".join(repr(bytes(request.line[:40])) for request in requests)))
        client.send_requests(requests)
        if requests[-1].want is Want.QUIT:
            client.why_over = "it has asked for that"
        client.push(rng)

    def _connect(self) -> NetClient:
        self.actors += 1
        if self.profile.operators and self.rng.randrange(100) < self.profile.operators:
            kind = Page if self.rng.randrange(4) == 0 else Operator
            client: NetClient = kind(f"o{self.actors}", self.world.connect_operator())
        elif self.profile.secure and self.rng.randrange(100) < self.profile.secure:
            client = NetClient(f"s{self.actors}", self.world.connect_secure())
        else:
            client = self._new_client()
        if self.ends_silent:
            client.why_over = "silence"
        self.clients.append(client)
        return client

    def _new_client(self) -> NetClient:
        """Connect a client that speaks memcache."""
        return NetClient(f"c{self.actors}", self.world.connect())

    def _pipeline(self, rng: Random, client: NetClient) -> list[Request]:
        requests: list[Request] = []
        for _ in range(rng.choice((1, 4, 12, 30) if self.profile.slices else (1, 1, 2, 4))):
            if isinstance(client, Operator):
                requests.append(self._one_of_operator(rng))
            else:
                requests.append(self._one_of(rng, client, requests))
            if requests[-1].want is Want.QUIT:
                break
        return requests

    def _one_of(self, rng: Random, client: NetClient, before: list[Request]) -> Request:
        """Return a request of a client that speaks memcache. `before`: the requests before it in the pipeline."""
        return self._one(rng)

    def _one_of_operator(self, rng: Random) -> Request:
        queue = rng.choice(QUEUES)
        draw = rng.randrange(100)
        known = list(self.world.broker.undos.by_id)
        if self.profile.undo and draw >= 35:
            if known and draw < 60:
                return operators.undoes(rng.choice(known), rng)
            if request := operators.draw_operation(draw, queue, rng, self._terms):
                if request.target:
                    self.ledger.joins(request.queue, request.target)
                return request
        if draw < 40:
            number, data = self._new_item(queue, rng)
            return operators.puts(queue, number, data, rng)
        return operators.takes(queue, rng) if draw < 60 else operators.looks(queue, rng)

    def _terms(self, rng: Random) -> list[str] | None:
        return operators.terms(rng) if self.profile.chosen and rng.randrange(100) < self.profile.chosen else None

    def _new_item(self, queue: str, rng: Random) -> tuple[int, bytes]:
        if self.is_alike:
            item = rng.choice(CONTENTS)
            self.ledger.asks(item, queue)
            return item, b"#%d#" % item + b"." * PADDING[item]
        self.ledger.count += 1
        number = self.ledger.count
        self.ledger.asks(number, queue)
        return number, b"#%d#" % number + b"." * rng.choice((0, 5, 60, 200, 900))

    def _one(self, rng: Random) -> Request:
        queue = rng.choice(QUEUES)
        wait = rng.choice(("", "", *(f"/t={ms}" for ms in WAIT_MS)))
        draw = rng.randrange(100)
        if draw < 40:
            number, data = self._new_item(queue, rng)
            return Request(Want.PUT, queue, b"set %b 0 0 %d\r\n%b\r\n" % (queue.encode(), len(data), data), number)
        at_work = [queue.name for queue in self.world.broker.queues if self.world.broker.maintenance.is_at_work(queue)]
        if draw < 48 or (draw < 56 and at_work):
            queue = rng.choice(at_work or [queue])
            return Request(Want.DELETE, queue, b"delete %b\r\n" % queue.encode())
        if draw < 58:
            self.ledger.count += 1
            return Request(Want.PING, "", b"md none O%d\r\n" % self.ledger.count, self.ledger.count)
        if draw < 62:
            line = f"monitor {queue} 1 {rng.randrange(1, 4)}\r\n"
            return Request(Want.MONITOR, queue, line.encode(), waits=True)
        if draw < 63:
            return Request(Want.QUIT, "", b"quit\r\n", waits=True)
        if draw < 66:
            return Request(Want.STATUS, "", rng.choice(STATUS))
        want, words = rng.choice(
            (
                (Want.GET, wait),
                (Want.GET, wait),
                (Want.OPEN, f"{wait}/open"),
                (Want.CLOSE, "/close"),
                (Want.CLOSE, "/close"),
                (Want.ABORT, "/abort"),
                (Want.SOME, f"{wait}/n=3"),
            )
        )
        return Request(want, queue, f"get {queue}{words}\r\n".encode(), waits=bool(wait))

    def _leave(self, client: NetClient, how: int | None = None) -> None:
        if client.side is not Side.OPEN:
            return
        if how is None:
            how = self.rng.randrange(4)
        self._said.append(("leaves", client.name, ("by a reset", "at once", "shuts its side", "shuts its side")[how]))
        if how < 2:
            self._hear(client)
            client.leave(by_reset=how == 0)
            self._gone(client)
        else:
            client.end()

    def _gone(self, client: NetClient) -> None:
        self.ledger.leaves(client)
        if client in self.clients:
            self.clients.remove(client)

    def _hear(self, client: NetClient) -> None:
        for answer in client.hear(may_time_out=self.ends_silent):
            self._answers += 1
            self._look_at(client, answer)
            self.ledger.hears(client, answer)
            self.ledger.opens(answer.request, len(answer.items))
            self._said.append(("hears", client.name, f"{answer.items} {answer.end!r}"))
        if client.is_hung_up_on:
            if client.unanswered and not client.unanswered[0].waits and not self._may_be_short(client):
                raise Violation(
                    Kind.UNANSWERED, f"{client.name} is hung up on, and not told: {client.unanswered[0].line[:60]!r}"
                )
            if client.side is not Side.GONE:
                client.leave(by_reset=False)
            self._gone(client)

    def _look_at(self, client: NetClient, answer: Answer) -> None:
        """Check a reply against the rules of this profile. Raises Violation."""

    def _may_be_short(self, client: NetClient) -> bool:
        """Tell whether the server had another reason to send no more."""
        return self.ends_silent or self.world.hub.is_stopping or client.link.is_reset

    def _reload(self) -> None:
        self.config = self.world.config = self._config()
        for client in self.clients:
            if self.ends_silent and not client.why_over:
                client.why_over = "silence"
        self._said.append(("reload", "", ""))
        self.world.hub.reload()

    def _end_clients(self) -> None:
        """Send the remaining bytes, read the replies, disconnect all clients. Anything open after that is a mistake."""
        world = self.world
        world.net.meanwhile = lambda: None
        self._said.append(("settle", "", ""))
        try:
            while True:
                for client in self.clients:
                    client.push(self.rng, all_of_it=True)
                self._turn_until_idle()
                outside = world.outside
                for client in list(self.clients):
                    if client.unanswered and client.link.server is not None:
                        raise Violation(Kind.UNANSWERED, f"{client.name} waits for {client.unanswered[0].line[:60]!r}")
                self._look_at_pages()
                inside = [client for client in self.clients if client.link.server is not None]
                if outside and not inside:
                    raise Violation(Kind.UNANSWERED, f"{outside} clients are not accepted, and none is connected")
                for client in inside or list(self.clients):
                    client.leave(by_reset=self.rng.random() < 0.3)
                    self._gone(client)
                if not self.clients and not outside:
                    break
            self._turn_until_idle()
            self._check_events()
            world.look_for_leaks()
        except (JournalFailure, OSError) as failure:
            raise self._died(failure) from failure
        self.now_ms = world.now_ms

    def _look_at_pages(self) -> None:
        """Check, after a rest, that each page knows the lengths of all queues. Raises Violation."""
        lengths = {queue.name: len(queue.line) for queue in self.world.broker.queues}
        pages = [client for client in self.clients if isinstance(client, Page) and client.side is Side.OPEN]
        for page in pages:
            if page.link.server is not None and not (page.is_told_all and page.table == lengths):
                raise Violation(Kind.UNANSWERED, f"{page.name} is told of {page.table}, and there is {lengths}")

    def _turn_until_idle(self) -> None:
        """Run turns until nothing happens any more, while all clients read."""
        while True:
            before = self._answers
            self.world.turn_until_idle(
                self.world.now_ms + REST_MS
            )  # counted from the last reply, because a wait may begin after it
            for client in list(self.clients):
                self._hear(client)
                client.push(self.rng, all_of_it=True)
            if self._answers == before and not self.world.net.ready_events():
                return


def resumed_deletions(disk: Disk) -> set[str]:
    """Return the queues whose deletion the next start continues. Items that clients open meanwhile go along."""
    folder = f"s/{OWN_FOLDER}/{UNDO_FOLDER}"
    try:
        names = [name for name, is_file in disk.list(folder) if is_file]
    except FileNotFoundError:  # no operation has begun
        return set()
    contents = [read_content(disk, f"{folder}/{name}") for name in names]
    begun = [content for content in contents if isinstance(content, UndoContent) and content.began.operation == DELETE]
    return {content.queues[0] for content in begun if content.is_cut_off or content.has_queue_left}
