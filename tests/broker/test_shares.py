"""No request does more in one step than its share of a turn, however much there is; and the answer is the same."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest

from staniel.broker.admin import watch
from staniel.broker.commands.monitor import CONFIRMED_AT_ONCE
from staniel.broker.leases import Leases
from staniel.broker.operations import audit
from staniel.broker.operations.audit import KEPT
from staniel.broker.protocols import http, memcache, workq
from staniel.broker.session import CLOSED, PARKED, ProtocolSpec
from staniel.broker.timers import Timers
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.item import Item
from staniel.sim.work_meter import WorkMeter
from staniel.sim.world import Client
from tests.broker.operations.test_undo import asked, filled
from tests.support.job_world import JobWorld, job_id

LINES_MAX = 620  # a share is a hundred; the last piece of a step, such as all figures of a queue, may be longer
MANY = 150

MEMCACHE = memcache(Dialect.MEMCACHED)


def jobs(world: JobWorld) -> None:
    worker = world.worker()
    for number in range(MANY):
        worker.sends(f"add {job_id(number)} name{number * 7 % MANY:03d} 60000 600000 1\r\nx\r\n".encode())
    world.turn()


def queues(world: JobWorld) -> None:
    for number in range(MANY):
        queue = world.broker.queues.make(f"q{number * 7 % MANY:03d}", world.now_ms)
        queue.add(Item(b"x", world.now_ms, world.now_ms + 1), world.now_ms)
    world.turn(1000)


def text(world: JobWorld) -> None:
    item(world, "größer \x01".encode() * 100_000)


def no_text(world: JobWorld) -> None:
    item(world, b"x" * 400_000 + b"\xff")


def item(world: JobWorld, data: bytes) -> None:
    world.broker.queues.make("q", world.now_ms).add(Item(data, world.now_ms), world.now_ms)
    world.turn()


def open_reads(world: JobWorld) -> None:
    for _ in range(MANY):
        client = world.client()
        client.puts("x", "q")
        client.sends(b"get q/open\r\n")
    world.turn()


def own_reads(world: JobWorld) -> None:
    """The last client's."""
    client = world.client()
    client.session.max_open_reads = 1000
    for _ in range(2 * CONFIRMED_AT_ONCE):
        client.puts("x", "q")
    client.sends(b"get q/open\r\n" * 2 * CONFIRMED_AT_ONCE)
    while client.session.backlog:
        world.turn()
    world.turn()
    client.hears()


def request(method: str, path: str) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
    return head.encode() + b"{}"


REQUESTS: dict[str, tuple[Callable[[JobWorld], None], ProtocolSpec, bytes]] = {
    "stats": (queues, MEMCACHE, b"stats\r\n"),
    "stats of jobs": (jobs, MEMCACHE, b"stats\r\n"),
    "stats server": (queues, MEMCACHE, b"stats server\r\n"),
    "dump_stats": (queues, MEMCACHE, b"dump_stats\r\n"),
    "dump_config": (queues, MEMCACHE, b"dump_config\r\n"),
    "flush_all": (queues, MEMCACHE, b"flush_all\r\n"),
    "flush_all_expired": (queues, MEMCACHE, b"flush_all_expired\r\n"),
    "inspect queues": (jobs, workq(), b"inspect queues 3 100\r\n" * 3),
    "a long text": (text, http(), request("POST", "/api/queues/q/take")),
    "a long item": (no_text, http(), request("POST", "/api/queues/q/take")),
    "a look at a long text": (text, http(), request("GET", "/api/queues/q/items?bytes=1000000")),
    "a look at a long item": (no_text, http(), request("GET", "/api/queues/q/items?bytes=1000000")),
    "open reads": (open_reads, http(), request("GET", "/api/queues/q/open?limit=3")),
    "queues": (queues, http(), request("GET", "/api/queues")),
    "metrics": (queues, http(), request("GET", "/metrics")),
    "Kestrel's stats": (queues, http(), request("GET", "/stats.json")),
    "Kestrel's stats as text": (queues, http(), request("GET", "/stats.txt")),
}


def steps(world: JobWorld, protocol: ProtocolSpec, data: bytes, meter: WorkMeter) -> tuple[str, list[int]]:
    """The answer, and the lines of each step."""
    client = Client(world, protocol)
    requests, lines = client.parser.feed(data), list[int]()
    with meter:
        client.session.execute(requests, world.now_ms)
    lines.append(meter.lines)
    while client.session.wants_turn or client.session.state.value == "suspended":
        before = meter.lines
        with meter:
            client.session.run_backlog(world.now_ms)
        lines.append(meter.lines - before)
        client.ran()
        client.collect(world.broker.group.durable)
        if not client.session.wants_turn:
            world.turn()
    client.ran()
    client.collect(world.broker.group.durable)
    return client.hears(), lines


@pytest.mark.parametrize(("line", "answer"), [(b"touch q 0\r\n", b"TOUCHED\r\n"), (b"confirm q 400\r\n", b"END\r\n")])
def test_what_is_asked_of_many_open_reads_of_a_client_takes_many_turns(line: bytes, answer: bytes) -> None:
    world, meter = JobWorld(), WorkMeter()
    own_reads(world)
    client = world.clients[-1]
    client.session.clear_out()
    world.broker.step_clock.now_ns = meter.ns
    steps = [meter.lines]
    with meter:
        client.session.execute(client.parser.feed(line), world.now_ms)
    while not (client.session.out or client.session.state is CLOSED):
        steps.append(meter.lines)
        with meter:
            client.session.run_backlog(world.now_ms)
            world.broker.timers.fire(world.now_ms)
            world.broker.resume_woken(world.now_ms)
    lines = [later - before for before, later in itertools.pairwise(steps)]
    assert max(lines) <= LINES_MAX and len(lines) >= 10 and client.session.out == [answer]


def test_many_reads_are_confirmed_though_their_client_goes_meanwhile() -> None:
    world, meter = JobWorld(), WorkMeter()
    own_reads(world)
    client = world.clients[-1]
    client.session.clear_out()
    world.broker.step_clock.now_ns = meter.ns
    with meter:
        client.session.execute(client.parser.feed(b"confirm q 400\r\n"), world.now_ms)
    queue = world.broker.queues.by_name["q"]
    assert 112 < len(queue.open_reads) <= 512
    client.session.close(world.now_ms)
    for _ in range(1000):
        with meter:
            world.broker.timers.fire(world.now_ms)
    assert not queue.open_reads and len(queue.line) == 112


@pytest.mark.parametrize("name", REQUESTS)
def test_a_step_of_a_request_is_short_and_the_answer_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "AT_ONCE_MAX", 0)
    prepare, protocol, data = REQUESTS[name]
    answers = []
    for is_metered in (False, True):
        world, meter = JobWorld(), WorkMeter()
        prepare(world)
        if is_metered:
            world.broker.step_clock.now_ns = meter.ns
        answer, lines = steps(world, protocol, data, meter)
        answers.append(answer)
    assert max(lines) <= LINES_MAX + (1000 if name == "metrics" else 0), lines  # the server's own are one piece
    assert len(lines) > 2 and answers[0] == answers[1]


def test_a_reload_of_many_queues_takes_many_turns_and_goes_on_without_its_client() -> None:
    world, meter = JobWorld(), WorkMeter()
    queues(world)
    client, other = Client(world, MEMCACHE), Client(world, MEMCACHE)
    world.config = 'default.sync_journal = "7s"\nqueues.q003.keep_journal = false\n' + world.config
    world.broker.step_clock.now_ns = meter.ns
    lines = list[int]()
    with meter:
        client.session.execute(client.parser.feed(b"reload\r\n"), world.now_ms)
    lines.append(meter.lines)
    with meter:
        other.session.execute(other.parser.feed(b"reload\r\n"), world.now_ms)
    client.session.close(world.now_ms)
    for _ in range(1000):
        before = meter.lines
        with meter:
            world.broker.timers.fire(world.now_ms)
        lines.append(meter.lines - before)
    world.turn()
    assert {queue.config.sync_ms for queue in world.broker.queues} == {7000}
    other.ran()
    other.collect(world.broker.group.durable)
    assert "q003" in other.hears() and not client.hears()
    assert max(lines[1:]) <= 2 * LINES_MAX and len([each for each in lines if each > 50]) > 10


def test_the_newest_of_two_reloads_prevails_whichever_ends_last() -> None:
    world, meter = JobWorld(), WorkMeter()
    queues(world)
    world.broker.step_clock.now_ns = meter.ns
    first = world.config
    with meter:
        world.config = 'default.sync_journal = "7s"\n' + first
        one = world.broker.reload(world.now_ms)
        world.config = 'default.sync_journal = "8s"\n' + first
        other = world.broker.reload(world.now_ms)
        while not other.is_done:
            other.on_timer(world.now_ms)
        assert not one.is_done
        while not one.is_done:
            one.on_timer(world.now_ms)
    assert {queue.config.sync_ms for queue in world.broker.queues} == {8000}


def test_the_lease_of_a_read_is_found_without_a_look_at_the_others() -> None:
    world = JobWorld()
    leases, session = Leases(Timers()), world.client().session
    queue = world.broker.queues.make("q", 0)
    taken = []
    for _ in range(3):
        queue.add(Item(b"x", 1), 1)
        one = queue.open(1)
        assert one is not None
        taken.append(one)
    numbers = [leases.grant(session.number, session.address, queue, one, 1000) for one in taken]
    meter = WorkMeter()
    with meter:
        found = leases.find(taken[2])
    assert found is not None and found.number == numbers[2] and meter.lines <= 2
    leases.pop(numbers[2])
    assert leases.find(taken[2]) is None


def test_the_first_operation_after_a_start_reads_no_more_old_lines_than_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = filled(1, 'admin.audit_log = "1MB"')
    asked(world, "POST", "/api/queues/q/pause")
    line = world.disk.read("s/.staniel/audit", 0, 10_000)
    file = world.disk.append("s/.staniel/audit")
    file.write(line * 2 * KEPT + line.replace(b'"id":1', b'"id":77').replace(b'"q"', b'"\\udcff"'))
    file.close()
    world.broker.audit._is_loaded = False
    world.broker.audit._entries.clear()
    decoded = list[bytes]()

    def counted(lines: list[bytes]) -> object:
        decoded.extend(lines)
        return before(lines)

    before = audit._decoded
    monkeypatch.setattr(audit, "_decoded", counted)
    assert world.broker.audit.next_id() == 78
    assert KEPT <= len(decoded) <= KEPT + 2
    newest = world.broker.audit.newest(0, 2 * KEPT)
    assert len(newest) == KEPT and newest[0].queue == "\udcff" and json.loads(line)["operation"] == newest[1].operation


SYNC_MS = 12
WAITS_FOR_DISK = {
    "pause": (MEMCACHE, b"pause q\r\nresume q\r\npause q\r\n", b"OK\r\n"),
    "status": (MEMCACHE, b"status readonly\r\nstatus up\r\nstatus readonly\r\n", b"END\r\n"),
    "pause by HTTP": (http(), 3 * request("POST", "/api/queues/q/pause"), b'{"gets_paused":true,"puts_paused":true}'),
    "resume by HTTP": (http(), 3 * request("POST", "/api/queues/q/resume"), b'{"gets_paused":false'),
}


@pytest.mark.parametrize("name", WAITS_FOR_DISK)
def test_a_pipeline_of_commands_that_wait_for_the_disk_leaves_the_others_as_much_time_as_it_takes(
    name: str,
) -> None:
    world = JobWorld()
    protocol, requests, answer = WAITS_FOR_DISK[name]
    item(world, b"x")
    client = Client(world, protocol)
    world.clients.append(client)
    ns = itertools.count(0, SYNC_MS * 10**6)  # each look at the clock is a sync later
    world.broker.step_clock.now_ns = lambda: next(ns)
    client.sends(requests)
    answers = []
    for _ in range(100):
        world.turn(2)
        assert client.session.state is not PARKED, "one that ended its side would be disconnected without the rest"
        if heard := client.hears():
            answers.append((world.now_ms, heard.count(answer.decode().strip())))
    assert [count for _, count in answers] == [1, 1, 1]
    moments = [at_ms for at_ms, _ in answers]
    assert all(later - before >= SYNC_MS for before, later in itertools.pairwise(moments))
