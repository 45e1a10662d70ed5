"""What the server's status, white lists and a fan-out-only parent refuse: what is said, what is done, what is made."""

from __future__ import annotations

import pytest

from staniel.broker import protocols
from staniel.broker.session import Session, SessionState
from staniel.broker.status import ServerStatus
from staniel.protocol.memcache.requests import Dialect
from staniel.protocol.thrift.requests import ThriftFlush, ThriftFlushAll, ThriftGet, ThriftPeek
from staniel.queues.item import Item
from staniel.queues.queue import SWEEP_MAX
from tests.support.job_world import JobWorld
from tests.support.streams import settle
from tests.support.world import Client, World

MEMORY = "[default]\nkeep_journal = false\n"
QUIESCENT = 'default.keep_journal = false\nserver.default_status = "quiescent"'
LISTED = MEMORY + '[queues.q]\nwhite_list_client_id_for_dequeue = "job"\n'
FED_ONLY = MEMORY + "[queues.m]\nfanout_only = true\nmax_item_size = 3\n[aliases]\nal = ['m']\n"


def text(world: World, line: str) -> str:
    client = Client(world, protocols.text(Dialect.KESTREL))
    world.clients.append(client)
    client.sends(line.encode() + b"\n")
    world.turn()
    return client.hears()


def thrift(world: World, client_id: str, request: type[ThriftGet | ThriftPeek | ThriftFlush], *more: object) -> bytes:
    session: Session = world.broker.connect(protocols.thrift(Dialect.KESTREL))
    session.execute([request(1, client_id, True, "q", *more)], world.now_ms)
    return b"".join(session.out)


@pytest.mark.parametrize("line", ["monitor q 5", "flush_expired q"])
def test_kestrel_hangs_up_without_a_word_on_a_refused(line: str) -> None:
    world = World(QUIESCENT)
    assert world.client().says(line).hears().startswith("SERVER_ERROR the server is quiescent")
    client = world.client(Dialect.KESTREL).says(line, "version")
    assert client.is_cut_off and client.hears() == ""


@pytest.mark.parametrize("line", ["get q", "get q/peek", "get q/open/t=50", "monitor q 5", "monitor q 5 0"])
def test_a_read_that_is_refused_or_cannot_fetch_makes_no_queue(line: str) -> None:
    world = World(QUIESCENT)
    world.client().says(line)
    text(world, "get q")
    thrift(world, "", ThriftGet, 1, 0, 0)
    assert not len(world.broker.queues)


def test_a_monitor_of_no_items_ends_at_once_even_on_an_illegal_name() -> None:
    assert World(MEMORY).client(Dialect.KESTREL).says("monitor a.b 5 0").hears() == "END"


@pytest.mark.parametrize("dialect", Dialect)
def test_a_white_list_of_readers_lets_everybody_look(dialect: Dialect) -> None:
    world = World(LISTED)
    assert world.client(dialect).puts("x").says("get q/peek").hears().endswith("0 1 x END")
    assert world.client(dialect).says("get q").hears().startswith("SERVER_ERROR")
    assert text(world, "peek q") == ":x"
    assert b"\x00\x00\x00\x01x" in thrift(world, "", ThriftPeek)
    assert world.items() == [b"x"]


def test_a_white_list_of_readers_keeps_others_from_flushing() -> None:
    world = World(LISTED)
    world.client().puts("x").puts("y", "other")
    for line in ("flush q", "flush_all"):
        assert world.client(Dialect.KESTREL).says(line).hears() == "SERVER_ERROR"
    assert text(world, "flush q") == "-Server not available for operation flush"
    assert b"reads of q are for job only" in thrift(world, "", ThriftFlush)
    assert world.items() == [b"x"] and world.items("other") == [b"y"]
    thrift(world, "job", ThriftFlush)
    assert world.items() == []


def test_a_flush_of_all_queues_is_refused_before_any_is_empty() -> None:
    world = World(LISTED)
    world.client().puts("y", "other").puts("x")
    session = world.broker.connect(protocols.thrift(Dialect.KESTREL))
    session.execute([ThriftFlushAll(1, "", True)], world.now_ms)
    assert world.items("other") == [b"y"]
    session.execute([ThriftFlushAll(2, "job", True)], world.now_ms)
    assert world.items() == world.items("other") == []


@pytest.mark.parametrize("dialect", Dialect)
def test_an_alias_does_not_lead_past_a_white_list_of_writers(dialect: Dialect) -> None:
    world = World(MEMORY + '[queues.w]\nwhite_list_client_id_for_enqueue = "job"\n[aliases]\nal = ["w"]\n')
    assert world.client(dialect).puts("x", "al").hears().startswith("SERVER_ERROR")
    assert world.items("w") == []


@pytest.mark.parametrize("queue", ["m", "al"])
def test_who_only_feeds_its_children_takes_nothing_too_large(queue: str) -> None:
    world = World(FED_ONLY)
    assert world.client(Dialect.KESTREL).puts("four", queue).puts("abc", queue).hears() == "NOT_STORED STORED"
    answers = world.client().puts("four", queue).puts("abc", queue).hears()
    assert answers.startswith("CLIENT_ERROR object too large") and answers.endswith(" STORED")
    assert world.items("m") == [] and world.broker.counters.total_items == 2


@pytest.mark.parametrize("grace", ["none", "100ms"])
@pytest.mark.parametrize(
    "wait", ["get q/t=5000", "get q/t=5000/open", "get q/t=5000/peek", "get q/t=5000/n=3", "monitor q 5"]
)
def test_a_server_that_becomes_quiescent_ends_the_waits_and_hands_out_nothing(wait: str, grace: str) -> None:
    world = World(f'default.keep_journal = false\nserver.status_change_grace_period = "{grace}"')
    holder, waiter, operator = world.client().puts("a"), world.client(), world.client()
    assert "a END" in holder.says("get q/open").hears()
    waiter.says(wait)
    assert operator.says("status quiescent").hears() == "END"
    world.turn(200)
    assert waiter.hears() == "END"
    holder.says("get q/abort")
    assert waiter.hears() == "" and world.items() == [b"a"]
    operator.says("status up")
    assert "a END" in waiter.says("get q").hears()


def test_a_monitor_between_two_turns_hands_out_nothing_once_the_server_is_quiescent() -> None:
    world = World(MEMORY)
    for _ in range(3):
        world.client().sends(b"set q 0 0 600000\r\n%b\r\n" % bytes(600_000))
    reader, operator = world.client(), world.client()
    reader.sends(b"monitor q 1000 3\r\n")
    assert reader.session.wants_turn and len(world.items()) == 1  # it has others go first
    assert operator.says("status quiescent").hears() == "END"
    for _ in range(3):
        world.turn()
    assert reader.hears().count("VALUE") == 2 and reader.hears() == "" and len(world.items()) == 1


def test_a_thrift_wait_ends_when_the_server_becomes_quiescent() -> None:
    world = World(MEMORY)
    waiter = Client(world, protocols.thrift(Dialect.KESTREL))
    world.clients.append(waiter)
    waiter.session.execute([ThriftGet(1, "", True, "q", 3, 5000, 0)], world.now_ms)
    world.client().says("status quiescent")
    assert waiter.session.state is SessionState.READY


def test_who_waits_for_a_queue_that_nobody_has_made_is_handed_nothing_by_a_quiescent_server() -> None:
    world = World(f'{MEMORY}[queues.q]\nmax_deliveries = 1\ndead_letter_queue = "dead"\n')
    holder, waiter = world.client().puts("a"), world.client()
    assert "a END" in holder.says("get q/open").hears()
    waiter.says("get dead/t=5000")
    assert world.client().says("status quiescent").hears() == "END"
    assert waiter.hears() == "END" and not list(world.broker.queues.waiters_by_name)
    holder.says("get q/abort")
    settle(world)
    assert waiter.hears() == "" and world.items("dead") == [b"a"]


def test_a_lease_that_waits_ends_when_the_server_becomes_quiescent() -> None:
    world = JobWorld()
    worker, waiter = world.worker(), world.worker()
    assert [worker.adds(1, ttr=100), worker.leases()] == ["+OK", "1"]
    waiter.says("lease other q 5000")
    world.broker.set_status(ServerStatus.QUIESCENT, world.now_ms)
    world.turn()
    assert waiter.hears() == "-TIMEOUT"
    assert not any(queue.waiters for queue in world.broker.workq.jobs.queues.values())
    world.pass_time(300)
    job = world.job(1)
    assert waiter.hears() == "" and job is not None and job.state.name == "PENDING"


READS = [
    ("memcache", "get q"),
    ("memcache", "get q/open"),
    ("memcache", "get q/close/open"),
    ("memcache", "get q/t=5000"),
    ("memcache", "get q/t=5000/n=2"),
    ("memcache", "get q nothing"),
    ("memcache", "mg q/t=5000 v"),
    ("memcache", "monitor q 5"),
    ("text", "get q 5000"),
    ("thrift", ""),
]


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(("wire", "line"), READS)
def test_a_read_behind_expired_items_asks_the_status_again_when_they_are_gone(wire: str, line: str, live: bool) -> None:
    world = World(f'server.expiration_timer_frequency = "none"\n{MEMORY}')
    queue = world.broker.queues.make("q", world.now_ms)
    for _ in range(2 * SWEEP_MAX + 1):
        queue.add(Item(b"x", world.now_ms, world.now_ms + 1000), world.now_ms)
    world.now_ms += 2000
    if live:
        queue.add(Item(b"live", world.now_ms), world.now_ms - 2000)
    wires_by_name = {"memcache": protocols.memcache, "text": protocols.text, "thrift": protocols.thrift}
    reader = Client(world, wires_by_name[wire](Dialect.MEMCACHED))
    world.clients.append(reader)
    if wire == "thrift":
        reader.session.execute([ThriftGet(1, "", True, "q", 3, 5000, 0)], world.now_ms)
    else:
        reader.sends(f"{line}\r\n".encode())
    assert queue.is_unsettled and not reader.session.out
    world.broker.set_status(ServerStatus.QUIESCENT, world.now_ms)
    for _ in range(10):
        world.turn()
    assert b"live" not in reader._heard and reader._heard
    assert reader.session.state is SessionState.READY and not queue.waiters and not queue.open_reads
    assert (b"live" in world.items("q")) is live


def test_a_white_list_that_comes_by_a_reload_ends_the_waits_of_who_is_not_on_it() -> None:
    world = World(MEMORY)
    world.broker.queues.make("q", world.now_ms)
    here, absent = world.client().says("get q/t=5000"), world.client().says("get r/t=5000")
    world.config = f'{LISTED}[queues.r]\nwhite_list_client_id_for_dequeue = "job"\n'
    operator = world.client().says("reload").puts("x").puts("y", "r")
    assert operator.hears().endswith("STORED STORED")
    assert (here.hears(), absent.hears()) == ("END", "END")
    assert (world.items("q"), world.items("r")) == ([b"x"], [b"y"])


def test_a_reload_that_leaves_the_white_list_as_it_is_ends_no_wait() -> None:
    world = World(MEMORY)
    waiter, absent = world.client().says("get q/t=5000"), world.client().says("get r/t=5000")
    world.client().says("reload").puts("x")
    assert waiter.hears().endswith("x END") and absent.hears() == ""
