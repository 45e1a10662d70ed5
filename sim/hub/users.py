"""Clients of a hub that has users: logins in pipelines, rights that change while requests are under way, and the
replies that are possible then.

The rights of a client are computed here a second time, in the simplest way, and compared with its replies. A reload
falls between two turns, so a request may be judged by any configuration since it was sent.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import scrypt
from random import Random

from msgspec import Struct

from staniel.sim.history import SeedPlan
from staniel.sim.hub.clients import READS, Answer, NetClient, Request, Side, Want
from staniel.sim.hub.net import Link
from staniel.sim.hub.run import HubRun
from staniel.sim.violations import Kind, Violation

NAMES = ("reader", "writer", "both", "keeper", "boss")
PATTERNS = (("a",), ("a", "b"), ("a*",), ("b*", "c"), ("*",), ("*",))
ROLES = {
    "reader": (("read",), ("read",), ("read", "operate")),
    "writer": (("write",), ("write",), ("write", "read")),
    "both": (("read", "write"), ("read", "write"), ("read", "write", "operate"), ("read",)),
    "keeper": (("operate",), ("operate", "read", "write")),
    "boss": (("admin",), ("admin",), ("read",)),
}
NEEDED = {Want.PUT: "write", Want.DELETE: "operate", Want.PING: "operate", Want.STATUS: "admin"}
ANY_NAME = "none"  # the subject of PING
REFUSALS = (b"CLIENT_ERROR user ", b"CLIENT_ERROR unauthenticated", b"CLIENT_ERROR bad authentication token format")
ENDED = "its rights have ended"


@cache
def hash_of(password: str) -> str:
    """Return a password hash with parameters that cost almost no time."""
    salt = password.encode().ljust(16, b".")
    key = scrypt(password.encode(), salt=salt, n=2, r=1, p=1, dklen=32)
    return f"scrypt$1$1$1${b64encode(salt).decode()}${b64encode(key).decode()}"


class Permission(Struct, frozen=True):
    """The permissions of one user."""

    roles: tuple[str, ...]
    queues: tuple[str, ...]
    password: str

    def allows(self, request: Request) -> bool:
        if "admin" in self.roles or request.want is Want.QUIT:
            return True
        role = "read" if request.want in READS else NEEDED[request.want]
        name = request.queue or ANY_NAME
        return role in self.roles and any(_matches(pattern, name) for pattern in self.queues)

    def keeps(self, before: Permission) -> bool:
        """Tell whether a client of `before` stays connected."""
        if self.password != before.password:
            return False
        if "admin" in self.roles:
            return True
        return set(before.roles) <= set(self.roles) and all(
            any(_matches(mine, theirs) for mine in self.queues) for theirs in before.queues
        )


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


Generation = dict[str, Permission]


class UserClient(NetClient):
    """A client that may log in. `user`: the user of its login. `since`: the configuration in force when a request was
    sent. `ended_at`: the first configuration under which its user had lost a right. `may_be_expelled`: its user has
    lost a right, or had while it logged in.
    """

    def __init__(self, name: str, link: Link) -> None:
        super().__init__(name, link)
        self.user = ""
        self.since: dict[Request, int] = {}
        self.said: dict[Request, tuple[str, str]] = {}  # user and password of each login
        self.ended_at = 0
        self.may_be_expelled = False

    def may_end(self, request: Request, line: bytes) -> bool:
        return line.startswith(REFUSALS) or super().may_end(request, line)

    @property
    def users(self) -> set[str]:
        """The users that the client may be in the view of the server."""
        asked = {self.said[request][0] for request in self.unanswered if request in self.said}
        return asked | ({self.user} if self.user else set())


class UserRun(HubRun):
    """A seed of the profile with users. `generations`: the users of each configuration, the newest last."""

    clients: list[UserClient]  # type: ignore[assignment]

    def __init__(self, seed_plan: SeedPlan) -> None:
        self.generations: list[Generation] = []
        super().__init__(seed_plan)

    def _config(self) -> str:
        text, rng = super()._config(), self.rng
        before = self.generations[-1] if self.generations else {}
        made: Generation = {}
        for name in NAMES:
            known = before.get(name)
            if known is not None and rng.random() < 0.5:
                made[name] = known
            elif rng.random() < 0.9:
                made[name] = Permission(rng.choice(ROLES[name]), rng.choice(PATTERNS), f"{name}{rng.choice('112')}")
        made = made or {"boss": Permission(("admin",), ("*",), "boss1")}
        self.generations.append(made)
        return text + "".join([_as_toml(name, permission) for name, permission in made.items()])

    def _connect(self) -> NetClient:
        self.actors += 1
        client = UserClient(f"c{self.actors}", self.world.connect())
        client.why_over = "silence"  # until a user has logged in
        self.clients.append(client)
        return client

    def _pipeline(self, rng: Random, client: NetClient) -> list[Request]:
        assert isinstance(client, UserClient)
        requests = super()._pipeline(rng, client)
        if not client.users and rng.random() < 0.7:
            requests.insert(rng.choice((0, 0, 0, len(requests) - 1)), self._login(rng, client))
        client.since.update(dict.fromkeys(requests, len(self.generations) - 1))
        return requests

    def _login(self, rng: Random, client: UserClient) -> Request:
        known = self.generations[-1]
        name = rng.choice(list(known))
        password = known[name].password
        draw = rng.randrange(100)
        if draw < 15:
            password = f"{name}{rng.choice('12')}"
        elif draw < 16:
            name = "stranger"  # an unknown user, whose login costs as much as a real one
        said = f"{name} {password}".encode()
        line = b"set auth 0 0 %d\r\n%b\r\n" % (len(said), said)
        request = Request(Want.LOGIN, "", line, waits=True)
        client.said[request] = name, password
        return request

    def _reload(self) -> None:
        super()._reload()
        before, after = self.generations[-2:]
        lost = {name for name, permission in before.items() if name not in after or not after[name].keeps(permission)}
        for client in self.clients:
            if lost & client.users and client.side is not Side.GONE:
                client.why_over, client.may_be_expelled = ENDED, True
                if client.user in lost:
                    client.ended_at = len(self.generations) - 1

    def _look_at(self, client: NetClient, answer: Answer) -> None:
        """Check that the client's rights allow this reply. Raises Violation."""
        assert isinstance(client, UserClient)
        request, end = answer.request, answer.end
        since = client.since[request]
        generations = self.generations[since:]
        if request in client.said:
            self._look_at_login(client, request, end, generations)
            return
        is_refused = end.startswith(REFUSALS)
        what = f"{client.name} ({client.user or 'a stranger'}): {end!r} to {request.line[:40]!r}"
        if not client.user:
            if not is_refused:
                raise Violation(Kind.RIGHTS, what)
            return
        if client.ended_at and since >= client.ended_at:
            raise Violation(Kind.RIGHTS, f"{what}, behind the end of its rights")
        allowed = [client.user in generation and generation[client.user].allows(request) for generation in generations]
        if is_refused and (all(allowed) or not end.startswith(REFUSALS[0])):
            raise Violation(Kind.NO_ANSWER, f"{what}, which it has the right to")
        if not is_refused and not any(allowed):
            raise Violation(Kind.RIGHTS, what)

    def _look_at_login(self, client: UserClient, request: Request, end: bytes, generations: list[Generation]) -> None:
        name, password = client.said[request]
        right = [name in generation and generation[name].password == password for generation in generations]
        if end == b"STORED":
            if not any(right):
                raise Violation(Kind.RIGHTS, f"{client.name} is let in as {name} with {password}")
            client.user = name
            if client.why_over == "silence" and not self.ends_silent:
                client.why_over = "" if client.side is Side.OPEN else "it has shut its side"
        elif end.startswith(b"CLIENT_ERROR") and all(right):
            raise Violation(Kind.NO_ANSWER, f"{client.name} is not let in as {name} with {password}")

    def _may_be_short(self, client: NetClient) -> bool:
        assert isinstance(client, UserClient)
        return client.why_over == "silence" or client.may_be_expelled or super()._may_be_short(client)

    def _turn_until_idle(self) -> None:
        super()._turn_until_idle()
        for client in self.clients:
            if client.ended_at and client.side is Side.OPEN and not client.is_hung_up_on:
                raise Violation(Kind.RIGHTS, f"{client.name} is not hung up on, and {client.user} has lost a right")


def _as_toml(name: str, permission: Permission) -> str:
    roles, queues = (", ".join([f'"{word}"' for word in words]) for words in (permission.roles, permission.queues))
    password_hash = hash_of(permission.password)
    return f'users.{name} = {{ roles = [{roles}], queues = [{queues}], password_hash = "{password_hash}" }}\n'
