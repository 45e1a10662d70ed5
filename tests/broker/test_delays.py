"""Puts with a delay: no client gets an item before it is due, and each is there at that moment, wherever the power
fails.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from staniel.journal.tools.repair import Repair
from staniel.protocol.memcache.keys import DELAY_MS_MAX
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.delays import UNDYING_MS, delay_of
from staniel.queues.queue import RESTS_PER_STEP, Queue
from staniel.sim.disk.disk import PowerCut
from staniel.sim.disk.durable import Choose, Crash
from tests.broker.operations.test_undo import asked
from tests.broker.test_wall_clock import Machine
from tests.support.streams import LIB, all_of, asks, settle
from tests.support.world import World

ROTATING = "[default]\nmax_memory_size = 300\ndefault_journal_size = 50\nmax_journal_size = 600\n"
ROTATING += "min_journal_compact_delay = 1\n"
CONFIGS = {
    "one file": "",
    "files rotate, and memory has room for one item at rest": ROTATING,
    "files are rewritten": ROTATING.replace("300", "3000"),
    "a redo log": 'server.redo_log = "32KB"\n',
    "Kestrel 2.4": '[default]\njournal_dialect = "kestrel-2.4"\n',
    "an age": '[default]\nmax_age = "1h"\n',
    "left to the OS": '[default]\nsync_journal = "os"\n',
}
STRICT = [name for name in CONFIGS if name != "left to the OS"]
LATE_MS = 16  # a delay may end later than asked for: by the mark of its era (8, queues/calendar.py) and a timer (8)


def put(world: World, delay_ms: int | str, data: str = "x", queue: str = "q") -> str:
    return asks(world, f"set {queue}/delay={delay_ms} 0 0 {len(data)}", data)


def queue_of(world: World, name: str = "q") -> Queue:
    queue = world.broker.queues.find(name)
    assert queue is not None
    return queue


def take(world: World, name: str = "q") -> str:
    """Take an item for good. Return its payload, "" if there is none."""
    heard = asks(world, f"get {name}").split()
    return heard[4] if heard[0] == "VALUE" else ""


def after(world: World, ms: int) -> World:
    world.turn(ms)
    settle(world)
    return world


# the promise, over crashes


class Told:
    """A story of puts with delays, told until the power is cut before step `stop`. `due_ms`: by payload, when it may be
    handed out at the earliest; `known`: stored, as an answer said; `taken`: handed out, as an answer said.
    """

    def __init__(self, config: str, stop: int | None = None) -> None:
        self.world = World(config)
        self.first = len(self.world.disk.log)
        self.world.disk.stop_at = stop
        self.due_ms: dict[str, int] = {}
        self.known: set[str] = set()
        self.taken: set[str] = set()
        self.is_asking = False  # a get has no answer
        try:
            self._tell()
        except PowerCut:
            pass
        self.last = len(self.world.disk.log)

    def _tell(self) -> None:
        for name, delay_ms in (("a", 400), ("b", 0), ("c" * 40, 90), ("d", 5000)):
            self._put(name, delay_ms)
        self._get()  # lets `a` rest and gets `b`
        self._get()  # lets the others rest
        for name, delay_ms in (("e", 0), ("f" * 30, 300), ("g" * 30, 0), ("h" * 30, 20_000)):
            self._put(name, delay_ms)
        for _ in range(4):
            self.world.turn(110)
            self._get()

    def _put(self, name: str, delay_ms: int) -> None:
        self.due_ms[name] = self.world.now_ms + delay_ms
        if put(self.world, delay_ms, name) == "STORED":
            self.known.add(name)

    def _get(self) -> None:
        self.is_asking = True
        name = take(self.world)
        self.is_asking = False
        if name:
            assert self.world.now_ms >= self.due_ms[name], name
            self.taken.add(name)


def check_rest(told: Told, again: World, *, is_strict: bool = True) -> None:
    """Take everything: nothing is lost, doubled, early or late."""
    got: Counter[str] = Counter()
    for ms in (0, 50, 300, 4500, 20_000):
        after(again, ms)
        while name := take(again):
            assert again.now_ms >= told.due_ms[name], (name, again.now_ms)
            got[name] += 1
        due = [name for name in told.known - told.taken if told.due_ms[name] + LATE_MS <= again.now_ms]
        missing = [name for name in due if not got[name]]
        # The client may have got the last one without knowing it.
        assert not is_strict or len(missing) <= told.is_asking, missing
    assert all(count == 1 for count in got.values()), got
    assert not is_strict or not told.taken & got.keys()
    if (queue := again.broker.queues.find("q")) is not None:
        queue.check()
        assert not queue.waiting_items


def cuts(seeds: int) -> list[Crash | Choose]:
    return [*Crash, *(random.Random(seed).randrange for seed in range(seeds))]


@pytest.mark.parametrize("name", STRICT)
def test_an_item_is_handed_out_once_and_when_it_is_due_wherever_the_power_fails(name: str) -> None:
    whole = Told(CONFIGS[name])
    assert whole.last - whole.first > 20 and len(whole.taken) >= 3
    assert whole.known == whole.due_ms.keys() or CONFIGS[name] is ROTATING
    for stop in range(whole.first, whole.last + 1):
        told = Told(CONFIGS[name], stop)
        for how in cuts(3):
            check_rest(told, told.world.crash(how))


@pytest.mark.parametrize("name", CONFIGS)
def test_an_item_is_handed_out_once_and_when_it_is_due_whenever_the_server_is_killed(name: str) -> None:
    whole = Told(CONFIGS[name])
    for stop in range(whole.first, whole.last + 1):
        told = Told(CONFIGS[name], stop)
        again = World(CONFIGS[name], told.world.disk.kill(), told.world.now_ms + 1000)
        check_rest(told, again, is_strict=name in STRICT)


def test_rests_leave_no_more_records_with_each_start() -> None:
    world = World()
    assert put(world, 60_000) == "STORED" and take(world) == ""
    sizes = []
    for _ in range(4):
        world = world.crash(Crash.DROP)
        assert take(world) == "" and len(queue_of(world).resting) == 1
        sizes.append(queue_of(world).journal.written_bytes)  # type: ignore[attr-defined]
    assert len(set(sizes)) == 1, sizes


def test_a_repaired_copy_keeps_the_delays() -> None:
    world = World()
    assert put(world, 5000, "a") == "STORED" and take(world) == "" and put(world, 9000, "b") == "STORED"
    disk = world.disk.kill()
    assert not any(each.has_losses for each in Repair(disk, "s", None, "copy", world.now_ms, lambda size: None).run())
    disk.rename("s", "first")
    disk.rename("copy", "s")
    again = World(disk=disk, now_ms=world.now_ms + 100)
    assert queue_of(again).waiting_items == 2 and take(again) == "" and take(after(again, 4000)) == ""
    assert [take(after(again, ms)) for ms in (1000, 0, 4000)] == ["a", "", "b"]


# what readers see


def test_a_delayed_item_does_not_block_those_behind_it_and_comes_when_it_is_due() -> None:
    world = World()
    assert put(world, 5000, "late") == put(world, 0, "soon") == "STORED"
    assert asks(world, "get q/peek").split()[4] == "soon"
    assert take(world) == "soon" and asks(world, "get q/peek") == "END" and take(world) == ""
    assert take(after(world, 4999)) == ""
    assert take(after(world, 1 + LATE_MS)) == "late" and take(world) == ""


def test_an_item_that_nobody_looked_at_before_it_was_due_never_rests() -> None:
    world = World()
    assert put(world, 100, "a") == put(world, 0, "b") == "STORED"
    after(world, 100 + LATE_MS)
    assert take(world) == "a" and take(world) == "b"
    assert queue_of(world).last_rest_xid == 0


def test_items_come_in_the_order_in_which_they_are_due() -> None:
    world = World()
    for delay_ms in (300, 100, 200):
        assert put(world, delay_ms, str(delay_ms)) == "STORED"
    assert take(world) == ""
    after(world, 300 + LATE_MS)
    assert [take(world) for _ in range(4)] == ["100", "200", "300", ""]


@pytest.mark.parametrize("read", ["get q/t=60000", "get q/t=60000/open", "get q/t=60000/peek", "monitor q 60"])
def test_a_waiting_reader_is_woken_when_an_item_is_due(read: str) -> None:
    world = World()
    reader = world.client().says(read)
    world.turn()
    assert put(world, 700, "late") == "STORED"
    after(world, 699)
    assert reader.hears() == ""
    after(world, 1 + LATE_MS)
    assert reader.hears().split()[4] == "late"


def test_a_rest_is_no_delivery() -> None:
    config = '[queues.q]\nmax_deliveries = 1\ndead_letter_queue = "dead"\n'
    world = World(config)
    for name, delay_ms in (("a", 5000), ("b", 20)):
        assert put(world, delay_ms, name) == "STORED"
    assert take(world) == ""
    world = World(config, world.disk.kill(), world.now_ms + 3000)  # `b` became due meanwhile
    assert take(world) == "b"
    after(world, 5000)
    assert asks(world, "stats").count("STAT queue_dead_items") == 0
    client = world.client().says("get q/open")
    settle(world)
    assert client.hears().split()[4] == "a"
    (held,) = queue_of(world).open_reads.values()
    client.says(f"mg q/id={held.id} d")
    settle(world)
    assert client.hears() == "HD d1"
    client.says("get q/abort")
    settle(world)
    after(world, 0)
    assert take(world, "dead") == "a"


def test_a_dead_letter_and_an_expired_item_have_no_delay_any_more() -> None:
    world = World('[queues.q]\nmax_deliveries = 1\ndead_letter_queue = "d"\nexpire_to_queue = "e"\n')
    assert put(world, 100, "dies") == "STORED"
    after(world, 200)
    client = world.client().says("get q/open")
    settle(world)
    client.says("get q/abort")
    settle(world)
    after(world, 0)
    assert asks(world, "set q/delay=60000 0 2 4", "ends") == "STORED" and take(world) == ""
    after(world, 2500)
    assert take(world) == ""
    after(world, 0)
    for name, data in (("d", "dies"), ("e", "ends")):
        (item,) = queue_of(world, name).line.items()
        assert item.data == data.encode() and delay_of(item) is None and item.expires_ms == 0


def test_an_item_whose_life_ends_before_its_delay_is_never_handed_out() -> None:
    world = World('queues.aged.max_age = "3s"\n')
    assert asks(world, "set q/delay=5000 0 2 1", "x") == "STORED" and take(world) == ""
    assert put(world, 5000, queue="aged") == "STORED" and take(world, "aged") == ""
    for _ in range(8):
        after(world, 1000)
        assert take(world) == take(world, "aged") == ""
    for name in ("q", "aged"):
        assert queue_of(world, name).waiting_items == 0 and queue_of(world, name).counters.expired_items == 1


def test_more_heads_than_one_step_takes_go_to_rest() -> None:
    world = World()
    count = 2 * RESTS_PER_STEP + 10
    client = world.client()
    for _ in range(count):
        client.sends(b"set q/delay=900 0 0 1\r\nx\r\n")
    client.sends(b"set q 0 0 1\r\ny\r\n")
    settle(world)
    reader = world.client().says("get q/t=100")
    for _ in range(4):
        settle(world)
    assert reader.hears().split()[4] == "y"
    assert len(queue_of(world).resting) == count
    after(world, 900 + LATE_MS)
    for _ in range(5):
        after(world, 0)
    queue_of(world).check()
    assert all_of(world, "q") == ["x"] * count


# what counts, and what is removed


def test_items_at_rest_count_as_waiting_and_for_limits() -> None:
    world = World("queues.q.max_items = 3\nqueues.b.max_size = 10\n")
    assert [put(world, 1000), take(world), put(world, 1000), take(world)] == ["STORED", "", "STORED", ""]
    stats = asks(world, "stats")
    assert "STAT queue_q_items 2 " in stats and "STAT queue_q_delayed_items 2 " in stats
    assert "STAT queue_q_bytes 2 " in stats and "STAT curr_items 2 " in stats
    assert asks(world, "set q 0 0 1", "y") == "STORED" and asks(world, "set q 0 0 1", "y") == "NOT_STORED"
    assert put(world, 10) == "NOT_STORED"
    after(world, 1000 + LATE_MS)
    assert asks(world, "set q 0 0 1", "y") == "NOT_STORED"
    assert [take(world) for _ in range(3)] == ["x", "x", "y"] and asks(world, "set q 0 0 1", "y") == "STORED"
    assert put(world, 1000, "x" * 10, "b") == "STORED" and take(world, "b") == ""
    assert asks(world, "set b 0 0 1", "y") == "NOT_STORED"


def test_a_full_queue_that_discards_old_items_discards_those_at_rest_last() -> None:
    world = World("[queues.q]\nmax_items = 2\ndiscard_old_when_full = true\n")
    assert put(world, 1000, "a") == "STORED" and take(world) == ""
    for name in "bcd":
        assert asks(world, "set q 0 0 1", name) == "STORED"
    assert queue_of(world).waiting_items == 2
    assert put(world, 1100, "e") == "STORED" and take(world) == "" and put(world, 1200, "f") == "STORED"
    assert queue_of(world).waiting_items == 2 and take(world) == ""
    after(world, 2000)
    assert [take(world) for _ in range(3)] == ["e", "f", ""]


def test_memory_holds_so_many_items_at_rest_and_the_next_one_waits_as_the_head() -> None:
    config = "[default]\nmax_memory_size = 2000\n"
    world = World(config)
    for number in range(6):
        assert put(world, 1000 + number, str(number)) == "STORED"
    assert asks(world, "set q 0 0 1", "y") == "STORED"
    assert take(world) == ""
    assert len(queue_of(world).resting) == 4
    assert put(world, 10) == (
        "SERVER_ERROR items with a delay fill the memory of q (max_memory_size): put again when some are due"
    )
    again = World(config, world.disk.kill(), world.now_ms + 10)
    for each in (world, again):
        after(each, 1020)
        got = sorted(take(each) for _ in range(7))
        assert got == ["0", "1", "2", "3", "4", "5", "y"], got


def test_a_reload_with_more_memory_serves_readers_behind_items_that_may_rest_now() -> None:
    world = World("[default]\nmax_memory_size = 500\n")
    for delay_ms in (10_000, 20_000, 0):
        assert put(world, delay_ms, str(delay_ms)) == "STORED"
    reader = world.client().says("get q/t=60000")
    settle(world)
    assert reader.hears() == ""
    world.config = "[default]\nmax_memory_size = 5000\n"
    asks(world, "reload")
    for _ in range(4):
        after(world, 10)
    assert reader.hears().split()[4] == "0"


@pytest.mark.parametrize("command", ["flush q", "flush_all", "delete q"])
def test_what_empties_a_queue_removes_items_at_rest(command: str) -> None:
    world = World()
    assert put(world, 1000) == "STORED" and take(world) == "" and put(world, 2000) == "STORED"
    asks(world, command)
    again = world.crash(Crash.DROP)
    for each in (world, again):
        after(each, 5000)
        assert take(each) == ""


@pytest.mark.parametrize("request_", [("POST", "/api/queues/q/purge"), ("DELETE", "/api/queues/q")])
def test_a_purge_or_deletion_that_is_undone_brings_delayed_items_back_with_their_delay(
    request_: tuple[str, str],
) -> None:
    world = World()
    for name, delay_ms in (("a", 60_000), ("b", 0), ("c", 90_000)):
        assert put(world, delay_ms, name) == "STORED"
    assert take(world) == "b" and asks(world, "get q") == "END"
    assert len(queue_of(world).resting) == 2
    assert put(world, 120_000, "d") == "STORED"
    status, heard = asked(world, *request_, {})
    assert status == 200, heard
    queue = world.broker.queues.find("q")
    assert queue is None or not queue.waiting_items
    again = World(world.config, world.disk.kill(), world.now_ms + 10)
    status, said = asked(again, "POST", f"/api/undo/{heard['undo']}", {})
    assert status == 200, said
    assert queue_of(again).waiting_items == 3
    assert take(again) == ""
    after(again, 59_000)
    assert take(again) == ""
    after(again, 1200)
    assert take(again) == "a" and take(again) == ""
    after(again, 60_000)
    assert [take(again), take(again)] == ["c", "d"]


def test_a_move_leaves_items_whose_delay_has_not_ended() -> None:
    world = World()
    for name, delay_ms in (("a", 5000), ("b", 0), ("c", 6000)):
        assert put(world, delay_ms, name) == "STORED"
    assert asks(world, "move q r").split()[-1] == "1"
    after(world, 0)
    assert all_of(world, "r") == ["b"] and queue_of(world).waiting_items == 2
    after(world, 6010)
    assert [take(world), take(world)] == ["a", "c"]


def test_each_child_of_a_fan_out_and_each_queue_of_an_alias_keeps_the_delay() -> None:
    world = World('aliases.all = ["q", "r"]\n')
    assert asks(world, "get q+x") == "END"
    assert put(world, 1000, "a", "all") == "STORED"
    for name in ("q", "q+x", "r"):
        assert take(world, name) == ""
    world = world.crash(Crash.DROP)
    for name in ("q", "q+x", "r"):
        assert take(world, name) == ""
    after(world, 1000)
    assert [take(world, name) for name in ("q", "q+x", "r")] == ["a"] * 3


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_a_delay_lasts_as_long_as_asked_whatever_the_wall_clock_shows(step_ms: int, *, restarts: bool) -> None:
    machine = Machine()
    client = machine.start()
    began_ms = machine.passed_ms
    assert machine.asks(client, "set q/delay=10000 0 0 5", "rests") == "STORED"
    assert machine.asks(client, "get q") == "END"
    assert machine.asks(client, "set q/delay=20000 0 0 6", "stands") == "STORED"
    machine.set_wall(step_ms)
    if restarts:
        client = machine.start_again()
    for name, due_ms in (("rests", 10_000), ("stands", 20_000)):
        machine.pass_time(began_ms + due_ms - 500 - machine.passed_ms)
        assert machine.asks(client, "get q") == "END"
        machine.pass_time(began_ms + due_ms + LATE_MS - machine.passed_ms)
        assert machine.asks(client, "get q").split()[4] == name


# the protocol


@pytest.mark.parametrize("delay", ["", "-1", "x", "1.5", "5/x", str(DELAY_MS_MAX + 1), "9" * 30])
def test_a_delay_is_a_number_of_milliseconds_within_a_year(delay: str) -> None:
    world = World()
    refused = f"CLIENT_ERROR delay= needs a number of milliseconds from 0 to {DELAY_MS_MAX}"
    assert asks(world, f"set q/delay={delay} 0 0 1", "x", "version").startswith(f"{refused} VERSION")
    assert asks(world, f"ms q/delay={delay} 1", "x", "mn") == f"{refused} MN"
    assert world.broker.queues.find("q") is None


def test_no_delay_and_the_longest_one() -> None:
    world = World()
    assert put(world, 0, "a") == put(world, DELAY_MS_MAX, "b") == "STORED"
    assert take(world) == "a" and take(world) == ""
    assert [each.item.expires_ms for each in queue_of(world).resting.values()] == [UNDYING_MS]


def test_a_delay_goes_with_a_key_that_comes_last() -> None:
    world = World()
    for said in ("STORED", "EXISTS"):
        assert asks(world, "set q/delay=1000/key=a/delay=5 0 0 1", "x") == said
    assert asks(world, "ms q/delay=1000/key=b 1", "x") == "HD" and asks(world, "ms q/delay=0/key=b 1", "x") == "EX"
    world = world.crash(Crash.DROP)
    assert asks(world, "set q/delay=1/key=a/delay=5 0 0 1", "x") == "EXISTS"
    assert take(world) == "" and take(after(world, 1010)) == "x"


def test_a_reader_of_meta_commands_sees_no_expiry_that_nobody_asked_for() -> None:
    world = World()
    assert put(world, 100) == "STORED"
    after(world, 200)
    assert asks(world, "mg q t") == "HD t-1"


def test_libkestrels_format_has_no_delays() -> None:
    world = World(LIB)
    assert put(world, 5).startswith("CLIENT_ERROR delay= is not possible in libkestrel's format, which q has")
    assert asks(world, "set q/delay=0 0 0 1", "x") == "STORED" and take(world) == "x"


def test_kestrels_dialect_has_no_delays() -> None:
    world = World()
    client = world.client(Dialect.KESTREL).says("set q/delay=5 0 0 1", "x")
    settle(world)
    assert "STORED" not in client.hears().split()


def put_by_http(world: World, delay_ms: object) -> tuple[int, object]:
    return asked(world, "POST", "/api/queues/q/put", {"data": "x", "delay_ms": delay_ms})


def test_http_has_delays_too() -> None:
    world = World()
    assert put_by_http(world, 1000) == (200, {"stored": 1})
    assert take(world) == "" and take(after(world, 1010)) == "x"
    for wrong in (-1, DELAY_MS_MAX + 1, "5"):
        assert put_by_http(world, wrong)[0] == 400


# restarts, operations and limits


def test_items_of_one_moment_come_in_their_order_after_a_restart_behind_it() -> None:
    world = World()
    client = world.client()
    for name in "abc":
        client.sends(b"set q/delay=1000 0 0 1\r\n%b\r\n" % name.encode())
    settle(world)
    assert take(world) == ""
    again = World("", world.disk.kill(), world.now_ms + 3000)
    assert [take(again) for _ in range(4)] == ["a", "b", "c", ""]


@pytest.mark.parametrize("undo", [False, True])
def test_a_purge_of_items_at_rest_serves_readers_behind_a_head_that_has_room_to_rest_now(*, undo: bool) -> None:
    world = World("[default]\nmax_memory_size = 500\n")
    for delay_ms in (10_000, 3_600_000, 0):
        assert put(world, delay_ms, str(delay_ms)) == "STORED"
    reader = world.client().says("get q/t=600000")
    settle(world)
    assert reader.hears() == ""
    body = {"expected": 1} if undo else {"expected": 1, "no_undo": True}
    assert asked(world, "POST", "/api/queues/q/purge", body)[0] == 200
    after(world, 10)
    assert reader.hears().split()[4] == "0"


@pytest.mark.parametrize(
    "request_",
    [
        ("POST", "/api/queues/q/purge", {}),
        ("POST", "/api/queues/q/purge", {"where": ["text~z"]}),
        ("DELETE", "/api/queues/q", {}),
    ],
)
def test_an_item_that_an_operation_had_set_aside_is_no_dead_letter_before_it_is_due(
    request_: tuple[str, str, object],
) -> None:
    config = '[queues.q]\nmax_deliveries = 1\ndead_letter_queue = "dead"\n'
    stop = 0
    while True:
        world = World(config)
        for name, delay_ms in (("late", 3_600_000), ("z", 0)):
            assert put(world, delay_ms, name) == "STORED"
        world.disk.stop_at = len(world.disk.log) + stop
        try:
            asked(world, *request_)
        except PowerCut:
            again = World(config, world.disk.kill(), world.now_ms + 1000)
        else:
            break
        for _ in range(3):
            after(again, 10)
        assert "late" not in [take(again, name) for name in ("q", "dead") for _ in range(3)], stop
        stop += 1
    assert stop > 5


def test_an_undo_into_libkestrels_format_waits_for_the_delays() -> None:
    world = World()
    assert put(world, 60_000, "late") == "STORED"
    _, heard = asked(world, "DELETE", "/api/queues/q", {})
    world.config = LIB
    asks(world, "reload")
    status, said = asked(world, "POST", f"/api/undo/{heard['undo']}", {})
    assert status == 503 and "which has no delays" in said["error"]
    assert take(world) == ""
    after(world, 60_010)
    assert asked(world, "POST", f"/api/undo/{heard['undo']}", {})[0] == 200 and take(world) == "late"


def test_a_start_counts_items_at_rest() -> None:
    world = World()
    assert put(world, 60_000, "late") == "STORED" and take(world) == ""
    summary = World("", world.disk.kill(), world.now_ms + 10).summary
    assert (summary.items, summary.bytes) == (1, 4)


def test_a_key_that_is_known_is_known_also_while_items_at_rest_fill_the_memory() -> None:
    world = World("[default]\nmax_memory_size = 500\n")
    assert asks(world, "set q/delay=60000/key=k 0 0 1", "x") == "STORED" and take(world) == ""
    assert asks(world, "set q/delay=60000/key=k 0 0 1", "x") == "EXISTS"
    assert put(world, 5).startswith("SERVER_ERROR items with a delay fill the memory")


def test_a_reader_behind_items_at_rest_goes_on_when_the_memory_of_all_queues_suffices_again() -> None:
    world = World("server.max_memory_size_total = 40000\n")
    for _ in range(5):
        assert asks(world, "set big 0 0 20000", "B" * 20_000) == "STORED"
    while put(world, 3_600_000, "r" * 400) == "STORED" and queue_of(world).waiting_items < 30:
        pass
    assert asks(world, "set q 0 0 1", "y") == "STORED"
    reader = world.client().says("get q/t=600000")
    settle(world)
    assert reader.hears() == "" and queue_of(world).is_resting_full
    asks(world, "flush big")
    after(world, 10)
    assert reader.hears().split()[4] == "y"
