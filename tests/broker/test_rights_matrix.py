"""Every command of every protocol, said by every kind of user about every kind of queue.

Which commands there are is taken from the tables of the parsers, the declaration of the thrift service and the routes
of the admin listener; which right each needs stands once more in `needed_rights.py`. A command that has no row there
fails.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from urllib.parse import quote

import pytest

from staniel.broker import protocols
from staniel.broker.admin.http.routes import ROUTES
from staniel.broker.commands import authorized
from staniel.broker.rights import STRANGER
from staniel.broker.session import ProtocolSpec
from staniel.protocol.limits import Limits
from staniel.protocol.memcache import commands, commands_kestrel
from staniel.protocol.memcache.requests import Dialect
from staniel.protocol.requests import Invalid, More
from staniel.protocol.text import commands as text_commands
from staniel.protocol.thrift.requests import ThriftUpgrade
from staniel.protocol.thrift.service import service
from staniel.protocol.workq import commands as workq_commands
from staniel.sim.disk.disk import Disk
from tests.broker.needed_rights import NEEDED, Need, Row
from tests.support.job_world import LOG, disk_with_log, job_id
from tests.support.thrift_calls import call
from tests.support.world import Client, World

FITTING = ("team-a", "mine")
FOREIGN = ("other", "mineral", "Mine", "Team-a", "a-team-a", "tea", "mine+copy")
"""One that has nothing of either pattern; one that goes on where a whole name ends, two in another case, one that ends
like a permitted name, one that ends before a prefix does, and a child of a permitted queue.
"""
TARGETS = (*FOREIGN, *FITTING)
QUEUES = (*TARGETS, "team-from", "team-to")
NARROW, WIDE = '["mine", "team*"]', '["*"]'
ROLES = ("read", "write", "operate")
CONFIG = f'[workq]\nport = 0\ncmdlog_path = "{LOG}"\n' + "".join(
    f'[users.{role}-{kind}]\nroles = ["{role}"]\nqueues = {queues}\nuids = [{uid}]\n'
    for uid, (role, kind, queues) in enumerate(
        [(role, kind, queues) for role in ROLES for kind, queues in (("narrow", NARROW), ("wide", WIDE))], 1000
    )
)
ADMIN_UID = 2000
CONFIG += f'[users.boss]\nroles = ["admin"]\nuids = [{ADMIN_UID}]\n'
CONFIG += '[users.content]\nroles = ["read", "write", "operate"]\nqueues = ["*"]\ncreate = false\nuids = [2001]\n'
USERS = ("", *(f"{role}-{kind}" for role in ROLES for kind in ("narrow", "wide")), "boss")

SPOKEN: dict[str, Callable[[], ProtocolSpec]] = {
    "memcache": lambda: protocols.memcache(Dialect.MEMCACHED),
    "kestrel": lambda: protocols.memcache(Dialect.KESTREL),
    "text": lambda: protocols.text(Dialect.MEMCACHED),
    "thrift": lambda: protocols.thrift(Dialect.MEMCACHED),
    "workq": protocols.workq,
    "http": protocols.http,
}
COMMANDS: dict[str, set[str]] = {
    "memcache": {name.decode() for name in commands._COMMANDS},
    "kestrel": {name.decode() for name in commands_kestrel._COMMANDS},
    "text": {name.decode() for name in text_commands._COMMANDS},
    "thrift": set(service.thrift_services),
    "workq": {name.decode() for name in workq_commands.COMMANDS if name != b"inspect"}
    | {f"inspect {name.decode()}" for name in workq_commands.INSPECTIONS},
    "http": {f"{route.method} {route.path}" for route in ROUTES},
}
BEYOND_ROUTES = {
    *("GET /", "GET /page/main.js", "GET /openapi.json", "POST /login", "HEAD /api/queues/{queue}"),
    *("POST /api/queues/team-from/move", "POST /api/queues/team-from/redrive"),
}
REFUSED = re.compile(
    rb"user [a-z-]+ (may not |is no admin)|unauthenticated|bad authentication token format|^HTTP/1.1 403 "
)
TURNS = 8


def may(user: str, need: Need, queue: str) -> bool:
    """What the documents say, in the plainest way."""
    role, _, kind = user.partition("-")
    fits = kind == "wide" or queue in FITTING
    match need:
        case Need.NOTHING:
            return True
        case Need.LOGIN:
            return bool(user)
        case _ if user in ("", "boss"):
            return user == "boss"
        case Need.READ | Need.WRITE | Need.OPERATE:
            return role == need.value and fits
        case Need.LOOK_AT_ALL:
            return role in ("read", "operate") and kind == "wide"
        case Need.OPERATE_ALL:
            return role == "operate" and kind == "wide"
        case _:
            return False


class Speaker(Client):
    """A client on a Unix socket. It prepares as one who may do everything, and goes on as `user`."""

    def __init__(self, world: World, protocol: str) -> None:
        super().__init__(world, SPOKEN[protocol](), f"unix:uid={ADMIN_UID}")
        world.clients.append(self)

    def becomes(self, user: str) -> None:
        users = self.world.broker.users.by_name
        self.world.broker.authorize(self.session, user, users[user].rights if user else STRANGER)

    def asks(self, data: bytes) -> bytes:
        """What is answered in some turns, or as many as it takes."""
        self._heard = b""
        self.sends(data)
        turns = 0
        while turns < TURNS or self.session.wants_turn:
            turns += 1
            self.world.turn(1)
            while self.world.sync():
                pass
        return self._heard

    def goes(self) -> None:
        self.hangs_up()
        self.world.clients.remove(self)
        self.world.turn()


class Stage:
    """Queues with items, of each of which a client has one open, and jobs."""

    def __init__(self) -> None:
        self.world = World(CONFIG, _kept().copy())
        self.holder = Speaker(self.world, "memcache")
        for queue in QUEUES:
            assert b"secret" in self.holder.asks(f"get {queue}/open\r\n".encode())

    def state(self) -> object:
        """All that a command could have changed."""
        broker = self.world.broker
        queues = {
            queue.name: (
                [item.data for item in queue.line.items()],
                [(xid, taken.item.data) for xid, taken in queue.open_reads.items()],
                (queue.gets_paused, queue.puts_paused, len(queue.waiters)),
            )
            for queue in broker.queues
        }
        jobs = {job.id: (job.state, job.result) for job in broker.workq.jobs.by_id.values()}
        others = (sorted(broker.undos.by_id), len(broker.holds), broker.status.reported, broker.status.is_stopping)
        return queues, jobs, others, self.world.events.count("config.reloaded")

    def spelled(self, protocol: str, name: str, said: Any, queue: str) -> bytes:
        """The bytes of a command about `queue`."""
        found = self.world.broker.queues.find(queue)
        undos = self.world.broker.undos.by_id.values()
        of_queue = [each.id for each in undos if each.queue == queue] or [each.id for each in undos]
        blanks = {
            "queue": queue,
            "base64": b64encode(queue.encode()).decode(),
            "job": job_id(QUEUES.index(queue)) if queue in QUEUES else job_id(9998),
            "fresh": job_id(9999),
            "hold": "none",
            "xid": str(next(iter(found.open_reads), 0)) if found is not None else "0",
            "id": str([each.id for each in found.open_reads.values()][-1]) if found and found.open_reads else "0",
            "number": str(max(of_queue, default=self.holder.session.number)),
        }
        if protocol == "thrift":
            blanks["leases"] = set(self.world.broker.leases._leases)
            return call(name, **{key: _filled(value, blanks) for key, value in said.items()})
        if protocol == "http":
            method, _, path = name.partition(" ")
            target = path.format(**{**blanks, "queue": quote(queue, safe="")})
            said = said.replace("{queue}", queue)
            head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            return f"{head}Content-Length: {len(said)}\r\n\r\n{said}".encode()
        spelled: str = said.format(**blanks)
        return spelled.encode()


def _filled(value: Any, blanks: dict[str, Any]) -> Any:
    return blanks["leases"] if value == "{leases}" else value.format(**blanks) if isinstance(value, str) else value


@cache
def _kept() -> Disk:
    world = World(CONFIG, disk_with_log())
    client, worker = Speaker(world, "memcache"), Speaker(world, "workq")
    client.asks(b"get mine+copy\r\n")
    for number, queue in enumerate(QUEUES):
        for _ in range(3):
            assert client.asks(f"set {queue} 0 0 6\r\nsecret\r\n".encode()) == b"STORED\r\n"
        if "+" not in queue:
            assert worker.asks(f"add {job_id(number)} {queue} 60000 600000 6\r\nsecret\r\n".encode()) == b"+OK\r\n"
    world.broker.shutdown(world.now_ms)
    return world.disk.kill()


def play(stage: Stage, protocol: str, name: str, row: Row, user: str, queue: str) -> tuple[bytes, bool, bool]:
    """(what is answered, whether that is a refusal for want of rights, whether anything has changed)."""
    speaker = Speaker(stage.world, protocol)
    for command, said in row.before:
        speaker.asks(stage.spelled(protocol, command, said, queue))
    speaker.becomes(user)
    data, before = stage.spelled(protocol, name, row.said, queue), stage.state()
    heard = speaker.asks(data)
    changed = stage.state() != before
    speaker.goes()
    return heard, REFUSED.search(heard) is not None, changed


CASES = [
    pytest.param(protocol, name, row, id=f"{protocol} {name} {number}")
    for protocol, of_protocol in NEEDED.items()
    for name, rows in of_protocol.items()
    for number, row in enumerate(rows)
]


def case_text(values: Sequence[Any]) -> str:
    _, name, row = values
    return f"{name} {row.said}"


@pytest.mark.parametrize(("protocol", "name", "row"), CASES)
def test_who_may_does_and_who_may_not_changes_nothing(protocol: str, name: str, row: Row) -> None:
    names_a_queue = row.need in (Need.READ, Need.WRITE, Need.OPERATE)
    queues = [queue for queue in TARGETS if protocol != "workq" or "+" not in queue] if names_a_queue else ["other"]
    refusing = Stage()
    for user in USERS:
        for queue in queues:
            permitted = may(user, row.need, queue)
            stage = Stage() if permitted else refusing
            heard, is_refused, changed = play(stage, protocol, name, row, user, queue)
            case = f"{user or 'a stranger'}, {queue}: {heard!r}"
            assert is_refused is not permitted, case
            if permitted:
                assert row.heard.replace(b"{queue}", queue.encode()) in heard, case
                assert row.changes in (changed, None), case
            else:
                assert not changed and b"secret" not in heard, case


@pytest.mark.parametrize("protocol", COMMANDS)
def test_every_command_has_a_row(protocol: str) -> None:
    beyond = BEYOND_ROUTES if protocol == "http" else set()
    assert set(NEEDED[protocol]) == COMMANDS[protocol] | beyond


SPOKEN_AS = {"memcache": ("memcache", "kestrel"), "text": ("text",), "thrift": ("thrift",), "workq": ("workq",)}


@pytest.mark.parametrize("served", SPOKEN_AS)
def test_every_request_that_is_served_has_a_rule_and_a_row(served: str) -> None:
    stage, said = Stage(), set[type]()
    for protocol in SPOKEN_AS[served]:
        for name, rows in NEEDED[protocol].items():
            for row in rows:
                parser = SPOKEN[protocol]().parser(Limits())
                said |= {type(request) for request in parser.feed(stage.spelled(protocol, name, row.said, "other"))}
    handlers = SPOKEN[served]().handlers
    assert set(handlers) == set(authorized.commands_of(served))
    assert set(handlers) - said <= {Invalid, More, ThriftUpgrade}


@pytest.mark.parametrize(("protocol", "name", "row"), [case for case in CASES if "{queue}" in case_text(case.values)])
@pytest.mark.parametrize("queue", ["fresh", "mine+fresh"])
def test_who_may_not_make_queues_makes_none(protocol: str, name: str, row: Row, queue: str) -> None:
    stage = Stage()
    speaker = Speaker(stage.world, protocol)
    speaker.becomes("content")
    there = set(stage.world.broker.queues.by_name)
    speaker.asks(stage.spelled(protocol, name, row.said, queue))
    assert set(stage.world.broker.queues.by_name) <= there
