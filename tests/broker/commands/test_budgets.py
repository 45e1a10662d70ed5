"""What one client asks for is done in slices: other clients go first in between, and it is answered once, in order."""

from __future__ import annotations

import re
from itertools import pairwise
from uuid import UUID

import pytest

from staniel.broker.broker import QUEUES_PER_TURN
from staniel.broker.commands import gets, puts
from staniel.broker.commands.admin import BLOCKS_PER_TURN
from staniel.broker.commands.thrift import ITEMS_MAX
from staniel.broker.protocols import ProtocolSpec, memcache, text, thrift, workq
from staniel.broker.version import WIRE_VERSION
from staniel.protocol.limits import WORK_PER_FEED
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.jobs.jobs import IDLE_QUEUES_MAX
from tests.support.thrift_calls import call
from tests.support.world import Client, World

MEMORY = "default.keep_journal = false\n"
MANY = 4 * gets.KEYS_PER_TURN + 3


def asks(world: World, data: bytes, wire: ProtocolSpec | None = None, syncs: bool = True) -> tuple[int, bytes]:
    """How many turns a client's requests take, and the answer."""
    client = world.client()
    if wire is not None:
        world.clients.remove(client)
        client = Client(world, wire)
        world.clients.append(client)
    client.sends(data)
    world.turn()
    world.sync()
    turns = 1
    while client.session.wants_turn:
        world.turn()
        world.sync()
        turns += 1
    return turns, client._heard


def test_a_get_of_many_names_that_nobody_has_made_takes_several_turns() -> None:
    world = World()
    names = b" ".join(b"n%d" % number for number in range(MANY))
    turns, heard = asks(world, b"get " + names + b"\r\nversion\r\n")
    assert turns >= 2 * (MANY // gets.KEYS_PER_TURN) and heard == b"END\r\nVERSION %b\r\n" % WIRE_VERSION.encode()
    assert not len(world.broker.queues) and world.broker.counters.get_misses == MANY


def test_a_get_of_many_names_finds_what_is_there_and_spares_it_if_one_is_wrong() -> None:
    world = World(MEMORY)
    for name in ("n0", "n200"):
        world.client().puts("x", name)
    names = b" ".join(b"n%d" % number for number in range(MANY))
    wrong = asks(world, b"get " + names + b" q/t=x\r\n")[1]
    assert wrong.startswith(b"CLIENT_ERROR t= needs") and world.items("n200") == [b"x"]
    assert asks(world, b"get " + names + b"\r\n")[1] == b"VALUE n0 0 1\r\nx\r\nVALUE n200 0 1\r\nx\r\nEND\r\n"


def test_a_queue_deleted_between_two_slices_of_a_get_finds_nothing() -> None:
    world = World(MEMORY)
    world.client().puts("x", "n200")
    client = world.client()
    client.sends(b"get " + b" ".join(b"n%d" % number for number in range(MANY)) + b"\r\n")
    world.client().says("delete n200")
    for _ in range(20):
        world.turn()
    assert client.hears() == "END"


def test_large_items_of_several_keys_leave_some_a_turn() -> None:
    world = World(MEMORY)
    client = world.client()
    for number in range(6):
        client.sends(b"set n%d 0 0 600000\r\n%b\r\n" % (number, bytes(600_000)))
        world.turn()
    turns, heard = asks(world, b"get n0 n1 n2 n3 n4 n5\r\n")
    assert turns >= 3 and heard.count(b"VALUE ") == 6 and heard.endswith(b"END\r\n")


@pytest.mark.parametrize("request_", ["set new%d 0 0 1\r\nx\r\n", "get polite+%d\r\n", "ms new%d 1\r\nx\r\n"])
def test_only_so_many_queues_are_made_in_a_turn(request_: str) -> None:
    world = World(MEMORY)
    count = 3 * QUEUES_PER_TURN + 1
    client = world.client()
    client.sends("".join(request_ % number for number in range(count)).encode())
    made = [0]
    while client.session.wants_turn or not made[-1]:
        made.append(len(world.broker.queues))
        world.turn()
    made.append(len(world.broker.queues))
    assert max(after - before for before, after in pairwise(made)) <= QUEUES_PER_TURN
    assert made[-1] == count and len(client.hears().replace("HD", "END").split()) == count
    assert world.broker.counters.cmd_set in (0, count)


def test_all_clients_together_make_only_so_many_queues_in_a_turn() -> None:
    world = World(MEMORY)
    clients = [world.client() for _ in range(2 * QUEUES_PER_TURN)]
    for number, client in enumerate(clients):
        client.sends(b"set new%d 0 0 1\r\nx\r\n" % number)
    assert len(world.broker.queues) == QUEUES_PER_TURN
    world.turn()
    world.turn()
    assert [client.hears() for client in clients] == ["STORED"] * len(clients)


def test_there_are_only_so_many_queues_and_children() -> None:
    world = World(MEMORY + "server.max_queues = 5\nserver.max_fanout_children = 2\n")
    client = world.client().puts("x")
    client.hears()
    assert client.says("get q+a", "get q+b", "get q+c").hears().startswith("END END SERVER_ERROR q has 2 fan-out")
    client.puts("x", "r").puts("x", "s").hears()
    assert client.puts("x", "t").hears().startswith("SERVER_ERROR there are 5 queues, no more can be made")
    assert client.says("get q+a", "delete s").puts("x", "t").hears().endswith("DELETED STORED")
    world.config = MEMORY
    assert client.says("reload").puts("x", "u").says("get q+c").hears().endswith("STORED END")


def test_the_limits_hold_for_the_other_protocols() -> None:
    world = World(MEMORY + "server.max_queues = 0\n")
    assert b"no more can be made" in asks(world, b"get q\n", text(Dialect.MEMCACHED))[1]
    put = call("put", queue_name="q", items=[b"x"], expiration_msec=0)
    assert b"no more can be made" in asks(world, put, thrift(Dialect.MEMCACHED))[1]


def test_a_text_put_of_many_items_takes_several_turns() -> None:
    world = World(MEMORY)
    count = 10 * puts.ITEMS_PER_TURN
    turns, heard = asks(world, b"put q:\n" + b"x\n" * count + b"\n", text(Dialect.MEMCACHED))
    assert turns >= 9 and heard == b"+%d\n" % count and len(world.items()) == count


def test_a_thrift_put_of_many_items_takes_several_turns_and_its_get_has_an_end() -> None:
    world = World(MEMORY)
    count = 2 * ITEMS_MAX
    put = call("put", queue_name="q", items=[b"x"] * count, expiration_msec=0)
    assert asks(world, put, thrift(Dialect.MEMCACHED))[0] >= count // puts.ITEMS_PER_TURN
    get = call("get", queue_name="q", max_items=10 * count, timeout_msec=0, auto_abort_msec=0)
    asks(world, get, thrift(Dialect.MEMCACHED))
    assert len(world.items()) == count - ITEMS_MAX


def test_a_series_that_is_refused_midway_says_what_is_stored() -> None:
    world = World(MEMORY)
    client = Client(world, text(Dialect.MEMCACHED))
    world.clients.append(client)
    client.sends(b"put q:\n" + b"x\n" * (2 * puts.ITEMS_PER_TURN) + b"\n")
    world.client().says("status readonly")
    world.turn()
    assert client.hears() == f"+{puts.ITEMS_PER_TURN}".strip()


def test_dumps_of_many_queues_take_several_turns() -> None:
    for command in (b"dump_config", b"dump_stats"):
        world = World(MEMORY)
        names = b" ".join(b"n%d" % number for number in range(3 * BLOCKS_PER_TURN))
        turns, heard = asks(world, command + b" " + names + b"\r\n")
        assert turns >= 2 and heard.count(b"queue '") == 3 * BLOCKS_PER_TURN and heard.endswith(b"END\r\n")


def test_a_request_for_many_items_is_the_last_of_its_turn() -> None:
    world = World(MEMORY)
    client = world.client()
    for _ in range(100):
        client.puts("x")
    assert asks(world, b"get q/n=30\r\n" * 3 + b"version\r\n")[0] >= 3


def test_a_put_to_many_children_is_the_last_of_its_turn() -> None:
    world = World(MEMORY)
    world.client().says(*(f"get q+{number}" for number in range(puts.TARGETS_AT_ONCE + 1)))
    world.turn()
    assert asks(world, b"set q 0 0 1\r\nx\r\n" * 3)[0] >= 3


def test_names_that_are_only_asked_for_are_forgotten_in_the_end() -> None:
    world = World("workq.port = 0\n")
    queues = world.broker.workq.jobs.queues
    waiter = Client(world, workq())
    world.clients.append(waiter)
    waiter.sends(b"lease early 10000\r\n")
    world.broker.workq.jobs.queue(b"kept")
    for number in range(4 * IDLE_QUEUES_MAX // 500):
        names = b" ".join(b"n%d-%d" % (number, each) for each in range(500))
        asks(world, b"lease " + names + b" 0\r\n", workq())
    assert len(queues) <= IDLE_QUEUES_MAX + 2 and {b"early", b"kept"} <= set(queues)
    waiter.hangs_up()
    assert b"early" in queues, "a queue is known from its first lease on"


def job_id(number: int) -> bytes:
    return str(UUID(int=number, version=4)).encode()


MANY_REQUESTS = 3 * WORK_PER_FEED
ITEMS = [b"%04d" % number for number in range(MANY_REQUESTS)]
IN_PIECES: dict[str, tuple[ProtocolSpec, list[bytes]]] = {
    "memcache": (
        memcache(Dialect.MEMCACHED),
        [b"set q %d 0 4\r\n%b\r\n" % (number, item) for number, item in enumerate(ITEMS)],
    ),
    "text": (text(Dialect.MEMCACHED), [b"put q:\n%b\n\n" % item for item in ITEMS]),
    "thrift": (
        thrift(Dialect.MEMCACHED),
        [call("put", queue_name="q", items=[item], expiration_msec=0) for item in ITEMS],
    ),
    "workq": (
        workq(),
        [b"add %b q %d 60000 4\r\n%b\r\n" % (job_id(int(item)), 60_000 + int(item), item) for item in ITEMS],
    ),
}


@pytest.mark.parametrize("name", IN_PIECES)
@pytest.mark.parametrize("pieces", [2, 3, 7])
def test_what_arrives_while_the_parser_has_paused_does_not_overtake_what_came_before(name: str, pieces: int) -> None:
    wire, requests = IN_PIECES[name]
    world = World(MEMORY + ("workq.port = 0\n" if name == "workq" else ""))
    client = Client(world, wire)
    world.clients.append(client)
    data = b"".join(requests)
    size = -(-len(data) // pieces)
    for at in range(0, len(data), size):
        client.sends(data[at : at + size])
    while client.session.wants_turn:
        world.turn()
        world.sync()
    if name == "workq":
        client.sends(b"lease q 0\r\n" * MANY_REQUESTS)
        while client.session.wants_turn:
            world.turn()
            world.sync()
        assert re.findall(rb" 4\r\n(\d{4})\r\n", client._heard) == ITEMS
    else:
        assert world.items("q") == ITEMS
