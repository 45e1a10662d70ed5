"""Whole sessions under made-up bytes, on the simulator's disk, clock, sockets and threads."""

from __future__ import annotations

import re
import ssl
from functools import cache
from random import Random
from zlib import crc32

from staniel.broker import protocols
from staniel.broker.session import ProtocolSpec
from staniel.protocol.memcache.requests import Dialect
from staniel.sim.disk.disk import Disk
from staniel.sim.history import SeedPlan
from staniel.sim.hub.net import Link
from staniel.sim.hub.secure import SecureLink, client_context
from staniel.sim.hub.users import hash_of
from staniel.sim.hub.world import HubWorld
from staniel.sim.profiles import PROFILES
from staniel.sim.run import history_of
from staniel.sim.world import START_MS, Client, World, end_operations

LOG = "s/.staniel/cmdlog"
WORKQ = f'[workq]\nport = 0\ncmdlog_path = "{LOG}"\n'
OTHER = b"\x1b"  # the other client speaks
STEP_MS = 7


def new_disk() -> Disk:
    disk = Disk()
    disk.make_folder(LOG)
    disk.sync_all("")
    return disk


def _talk(spoken: tuple[ProtocolSpec, ProtocolSpec], data: bytes) -> tuple[World, list[bytes]]:
    """Two clients of one server, until both are gone; each ESC lets the other one speak. What they have heard."""
    world = World(WORKQ, new_disk())
    clients = [Client(world, each) for each in spoken]
    world.clients += clients
    for number, piece in enumerate(data.split(OTHER)):
        client = clients[number % 2]
        if not client.is_cut_off:
            client.sends(piece)
        world.turn(STEP_MS)
        world.sync()
    world.do_tasks()
    world.turn(STEP_MS)
    end_operations(world)  # a stop ends a deletion that is under way, so a restart has fewer queues than before it
    heard = [client._heard for client in clients]
    for client in clients:
        client.hangs_up()
    world.sync()
    return world, heard


def _restarts_alike(world: World) -> None:
    held = {queue.name: world.items(queue.name) for queue in world.broker.queues}
    world.broker.shutdown(world.now_ms)
    again = World(WORKQ, world.disk.kill(), world.now_ms)
    assert {queue.name: again.items(queue.name) for queue in again.broker.queues} == held, "a restart changes queues"


def conversation(data: bytes) -> None:
    """The first byte says which protocols."""
    if not data:
        return
    spoken = (
        protocols.memcache(Dialect.MEMCACHED),
        protocols.memcache(Dialect.KESTREL),
        protocols.text(Dialect.MEMCACHED),
        protocols.workq(),
    )
    world, _ = _talk((spoken[data[0] % 4], spoken[data[0] // 4 % 4]), data[1:])
    _restarts_alike(world)


def thrift_calls(data: bytes) -> None:
    """Thrift beside memcache."""
    world, _ = _talk((protocols.thrift(Dialect.MEMCACHED), protocols.memcache(Dialect.MEMCACHED)), data)
    _restarts_alike(world)


def admin(data: bytes) -> None:
    """An operator beside a client: what it hears are whole replies of HTTP, and none says that the server is broken."""
    world, heard = _talk((protocols.http(), protocols.memcache(Dialect.MEMCACHED)), data)
    _read_replies(heard[0])
    _restarts_alike(world)


HEAD_LINE = re.compile(rb"[!-9;-~]+: [ -~]*")  # a control character would be the end of it, and the next one's begin


def _read_replies(data: bytes) -> None:
    while data:
        head, blank, data = data.partition(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        assert blank and re.fullmatch(rb"HTTP/1\.1 [1-5]\d\d [ -~]+", status), head
        assert not status.startswith(b"HTTP/1.1 500"), head
        assert all(HEAD_LINE.fullmatch(line) for line in lines), head
        headers = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
        if headers.get(b"transfer-encoding") == b"chunked":
            if data.startswith(b"HTTP/1.1 "):  # of a HEAD
                continue
            while data:
                size, _, data = data.partition(b"\r\n")
                data = data[int(size, 16) + 2 :]
                if not int(size, 16):
                    break
        elif b"content-length" not in headers and headers.get(b"connection") == b"close":
            return  # for HTTP/1.0, which has no pieces: the rest is the body
        elif not data.startswith(b"HTTP/1.1 "):
            length = int(headers.get(b"content-length", b"0"))
            assert len(data) in (0, length) or len(data) > length, "a reply that is cut short"
            data = data[length:]


READER, WRITER = ("reader", "correct horse"), ("writer", "battery staple")
USERS = WORKQ + "".join(
    f'[users.{name}]\nroles = ["{role}"]\nqueues = ["{name}*"]\npassword_hash = "{hash_of(password)}"\n'
    for (name, password), role in ((READER, "read"), (WRITER, "write"))
)
KEPT = {"secret": [b"of nobody here"], "reader": [b"one", b"two"], "writer": [b"three"]}


@cache
def _kept() -> Disk:
    world = World(WORKQ, new_disk())
    client = world.client()
    for name, items in KEPT.items():
        for item in items:
            client.puts(item.decode(), name)
            world.sync()
    world.broker.shutdown(world.now_ms)
    return world.disk.kill()


def users(data: bytes) -> None:
    """Two clients of a server that has users, one who may read some queues and one who may write others: whatever they
    say, no queue holds what its user may not have done.
    """
    if not data:
        return
    spoken = (protocols.memcache(Dialect.MEMCACHED), protocols.text(Dialect.MEMCACHED), protocols.workq())
    world = World(USERS, _kept().copy())
    clients = [Client(world, spoken[0]), Client(world, spoken[data[0] % 3])]
    world.clients += clients
    for number, piece in enumerate(data[1:].split(OTHER)):
        client = clients[number % 2]
        if not client.is_cut_off:
            client.sends(piece)
        for wait_ms in (STEP_MS, 600, 1100):  # wrong logins are answered late
            world.do_tasks()
            world.turn(wait_ms)
            world.sync()
    heard = b"".join(client._heard for client in clients)
    assert KEPT["secret"][0] not in heard and KEPT["writer"][0] not in heard, "an item of a queue that may not be read"
    for client in clients:
        client.hangs_up()
    for queue in world.broker.queues:
        before, now = KEPT.get(queue.name, []), world.items(queue.name)
        if queue.name.startswith("reader"):
            assert now == before[len(before) - len(now) :], f"{queue.name} was written to"
        elif queue.name.startswith("writer"):
            assert now[: len(before)] == before, f"{queue.name} was read"
        else:
            assert now == before, f"{queue.name} was touched"


RAW, BEHIND_HELLO, BEHIND_HANDSHAKE, WITHIN = range(4)
"""Where the bytes of `tls` stand: instead of all else, behind the beginning of a handshake, between records, in them"""
HELLO_MS = 11_000  # longer than a handshake may take
PAUSES_MS = 2000  # longer than a listener pauses that found no descriptors left, some times over


@cache
def _contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    older = client_context()
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    return client_context(), older


def tls(data: bytes) -> None:
    """A client under TLS, or what pretends to be one: another client is served meanwhile, and nothing of it is left.

    The first byte says where the others stand; how TLS 1.2 or 1.3; and in what pieces they come.
    """
    if not data:
        return
    where, context, size = data[0] % 4, _contexts()[data[0] // 4 % 2], (1, 5, 100, 4096)[data[0] // 8 % 4]
    world = HubWorld("", _empty_spool(), START_MS, Random(crc32(data)), 20)
    plain = world.connect()
    link = world.connect_secure()
    wire = link.wire
    world._secure_links.clear()  # it is moved here, as far as it goes
    if where == BEHIND_HELLO:
        wire.to_server += _hello(context)
    elif where in (BEHIND_HANDSHAKE, WITHIN):
        link._tls = context.wrap_bio(link._arrived, link._leaving)
        _shake_hands(world, link)
    for at in range(1, len(data), size):
        if wire.is_reset or wire.server_ended:
            break
        if where == WITHIN:
            link._tls.write(data[at : at + size])
            wire.to_server += link._leaving.read()
        else:
            wire.to_server += data[at : at + size]
        wire.to_client.clear()
        world.turn(1)
    _is_served(world, plain)
    wire.client_gone = wire.client_ended = True
    plain.client_gone = plain.client_ended = True
    world.turn_until_idle(world.now_ms + HELLO_MS)
    world.look_for_leaks()
    world.stop()


def _empty_spool() -> Disk:
    disk = Disk()
    disk.make_folder("s")
    disk.sync_folder("")
    return disk


def _hello(context: ssl.SSLContext) -> bytes:
    arrived, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(arrived, leaving).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return leaving.read()


def _shake_hands(world: HubWorld, link: SecureLink) -> None:
    for _ in range(200):
        link.pump()
        world.turn(PAUSES_MS // 200)
        if link._is_open and not link.wire.to_server:
            return
    raise AssertionError("an honest handshake has no end")


def _is_served(world: HubWorld, link: Link) -> None:
    link.to_server += b"set tls-neighbour 0 0 2\r\nhi\r\nget tls-neighbour\r\n"
    world.turn_until_idle(world.now_ms + PAUSES_MS)
    assert bytes(link.to_client) == b"STORED\r\nVALUE tls-neighbour 0 2\r\nhi\r\nEND\r\n", (
        "another client is not served"
    )


class ByteRandom(Random):
    """Chances that are taken from given bytes, in their order, as long as there are any."""

    def __init__(self, data: bytes) -> None:
        self._left = data
        self._at = 0
        super().__init__()
        super().seed(crc32(data))  # what follows when there are none left

    def random(self) -> float:
        return self._taken(2) / (1 << 16)

    def getrandbits(self, count: int, /) -> int:
        if self._at >= len(self._left):
            return super().getrandbits(count)
        return self._taken(-(-count // 8)) & ((1 << count) - 1)

    def _taken(self, count: int) -> int:
        piece = self._left[self._at : self._at + count]
        self._at += count
        return int.from_bytes(piece, "little") if piece else super().getrandbits(8 * count)

    def seed(self, *args: object) -> None:
        """Steps begin where the one before has ended."""


def history(data: bytes) -> None:
    """The simulator with its chances taken from the bytes: the first one says which profile, then comes what each step
    asks for, with a crash and a start in between. Everything that a seed is judged by is judged.
    """
    if not data:
        return
    names = list(PROFILES)
    profile = PROFILES[names[data[0] % len(names)]]
    found = history_of(SeedPlan(0, profile, crashes=1, steps=40))
    found.rng = ByteRandom(data[1:])
    violation = found.outcome().violation
    assert violation is None, f"{profile.name}: {violation}"
