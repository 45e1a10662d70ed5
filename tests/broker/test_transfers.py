"""Items that leave a queue for another one, with the power cut at every step: each is in exactly one queue after it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from staniel.queues.journal_view import JournalView
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Choose, Crash
from staniel.sim.world import end_operations
from tests.support.world import START_MS, Client, World

EXPIRING = '[queues.q]\nexpire_to_queue = "late"\n'
DEAD = '[queues.q]\nmax_deliveries = 2\ndead_letter_queue = "dead"\n'
ROTATING = "[default]\nmax_memory_size = 60\ndefault_journal_size = 50\nmax_journal_size = 300\n"
ROTATING += "min_journal_compact_delay = 1\n"
STREAMS = ROTATING + 'journal_format = "libkestrel"\n'
TO_KESTREL = STREAMS + '[queues.late]\njournal_format = "kestrel"\n'
CHAIN = '[queues.q]\nexpire_to_queue = "late"\nmax_deliveries = 2\ndead_letter_queue = "late"\n'
CHAIN += '[queues.late]\nmax_age = "2s"\nexpire_to_queue = "last"\n'

Story = Callable[[World], Iterator[object]]
"""What happens; each `yield` lets the disk have a sync."""


def put(client: Client, data: str, seconds: int = 0, queue: str = "q") -> None:
    client.says(f"set {queue} 0 {seconds} {len(data)}", data)


def two_expire(world: World) -> Iterator[object]:
    client = world.client()
    put(client, "a", 1)
    put(client, "b", 1)
    put(client, "c")
    yield
    world.turn(2500)
    yield
    yield
    put(client, "d")
    yield


def two_expire_among_puts(world: World) -> Iterator[object]:
    """Puts into both queues before the copies are safe; an open read that starts behind what has left."""
    client = world.client()
    put(client, "a", 1)
    put(client, "b", 1)
    put(client, "c")
    put(client, "z", queue="late")
    yield
    world.now_ms += 2500
    put(client, "d")
    put(client, "e", queue="late")
    world.turn()
    put(client, "f")
    client.says("get q/open")
    yield
    put(client, "g")
    client.says("get q/abort")
    yield
    yield


def one_by_one(world: World) -> Iterator[object]:
    """A transfer begins while the one before it is still being ended."""
    client = world.client()
    for number, data in enumerate("abcd", 1):
        put(client, data, number)
    yield
    for _ in range(4):
        world.turn(1000)
        yield
    yield
    yield


def taken_by_one_who_waits(world: World) -> Iterator[object]:
    """The item leaves the queue by a get: it goes under a transaction for the journal."""
    client, holder = world.client(), world.client()
    put(client, "a", 1)
    put(client, "b")
    put(client, "c")
    yield
    world.now_ms += 1500
    holder.says("get q/open")
    yield
    holder.hangs_up()
    yield
    yield


def delivered_twice(world: World) -> Iterator[object]:
    client = world.client()
    put(client, "a")
    put(client, "b")
    yield
    for _ in range(2):
        client.says("get q/open", "get q/abort")
        yield
    yield


def delivered_twice_among_puts(world: World) -> Iterator[object]:
    client, other = world.client(), world.client()
    put(client, "a")
    put(client, "b")
    other.says("get q/open")
    client.says("get q/open", "get q/abort")
    put(client, "c")
    yield
    client.says("get q/open", "get q/abort")
    put(client, "d")
    put(client, "e", queue="dead")
    yield
    other.says("get q/abort")
    other.says("get q/open")
    other.hangs_up()
    put(client, "f")
    yield
    yield


def twins_move(world: World) -> Iterator[object]:
    """Equal items, put in one packet, and one of them sent elsewhere."""
    client = world.client()
    client.says("set q 0 0 4", "tick", "set q 0 0 4", "tick", "set q 0 0 4", "tick", "move q dead 1")
    yield
    yield
    yield
    client.says("get q/open")
    yield
    client.says("move q dead 1", "set dead 0 0 4", "tick")
    for _ in range(6):
        yield
    client.says("move dead other 1")  # has the disk know of the put, too, whatever its policy
    for _ in range(6):
        yield
    put(client, "z")
    yield


def twins_of_two_queues_move(world: World) -> Iterator[object]:
    """Within a millisecond, to the same queue; one of the two moves comes first, and then the other."""
    client, other = world.client(), world.client()
    client.says("set q 0 0 4", "tick", "set q 0 0 4", "tick", "set r 0 0 4", "tick")
    yield
    yield
    client.sends(b"move q dead\r\n")
    other.sends(b"move r dead\r\n")
    for _ in range(2):
        for session in (other.session, client.session):
            session.run_backlog(world.now_ms)
    world.turn()
    for _ in range(9):
        yield
    put(client, "z")
    yield


def twins_die(world: World) -> Iterator[object]:
    client = world.client()
    client.says("set q 0 0 4", "tick", "set q 0 0 4", "tick", "set dead 0 0 4", "tick")
    client.says("get q/open", "get q/abort", "get q/open", "get q/abort")
    yield
    yield
    yield
    put(client, "z")
    yield


def twins_expire(world: World) -> Iterator[object]:
    """One of two equal items has expired: their keys do not say which."""
    client = world.client()
    client.says("set q 0 1 4", "tick", "set q 0 60 4", "tick", "set q 0 1 4", "tick")
    yield
    world.turn(2500)
    yield
    client.says("get q/open")
    yield
    yield
    put(client, "z")
    yield


STORIES: dict[str, tuple[Story, str]] = {
    "two expire": (two_expire, EXPIRING),
    "two expire among puts": (two_expire_among_puts, EXPIRING),
    "two expire among puts, files rotate": (two_expire_among_puts, EXPIRING + ROTATING),
    "two expire, synced at leisure": (two_expire_among_puts, EXPIRING + '[default]\nsync_journal = "20ms"\n'),
    "two expire, left to the OS": (two_expire_among_puts, EXPIRING + '[default]\nsync_journal = "os"\n'),
    "one by one": (one_by_one, EXPIRING),
    "one by one, files rotate": (one_by_one, EXPIRING + ROTATING),
    "taken by one who waits": (taken_by_one_who_waits, EXPIRING),
    "delivered twice": (delivered_twice, DEAD),
    "delivered twice among puts": (delivered_twice_among_puts, DEAD),
    "delivered twice among puts, files rotate": (delivered_twice_among_puts, DEAD + ROTATING),
    "two expire among puts, in libkestrel's format": (two_expire_among_puts, EXPIRING + STREAMS),
    "delivered twice, in libkestrel's format": (delivered_twice, DEAD + STREAMS),
    "two expire into the other format": (two_expire_among_puts, EXPIRING + TO_KESTREL),
    "twins move": (twins_move, ""),
    "twins move, left to the OS": (twins_move, '[default]\nsync_journal = "os"\n'),
    "twins move, files rotate": (twins_move, ROTATING),
    "twins move, in libkestrel's format": (twins_move, STREAMS),
    "twins of two queues move": (twins_of_two_queues_move, ""),
    "twins of two queues move, in libkestrel's format": (twins_of_two_queues_move, STREAMS),
    "twins die": (twins_die, DEAD),
    "twins expire": (twins_expire, EXPIRING),
    "twins expire, left to the OS": (twins_expire, EXPIRING + '[default]\nsync_journal = "os"\n'),
}


class Telling:
    """A story, told until the power is cut before step `stop`. `safe`: (step, what the disk has for good by then)."""

    def __init__(self, story: Story, config: str, stop: int | None = None) -> None:
        self.world = World(config)
        self.first = len(self.world.disk.log)
        self.world.disk.stop_at = stop
        self.safe: list[tuple[int, Counter[bytes]]] = []
        try:
            for _ in story(self.world):
                self.world.sync()
                if stop is None:
                    self.safe.append((len(self.world.disk.log), where(self.world.crash(Crash.DROP))))
                self.world.turn()
        except PowerCut:
            pass
        self.last = len(self.world.disk.log)

    def safe_by(self, stop: int) -> Counter[bytes]:
        """How many of each item: equal ones may be there several times."""
        safe: Counter[bytes] = Counter()
        for step, items in self.safe:
            if step <= stop:
                safe |= items
        return safe


def crashes(seeds: int) -> list[Crash | Choose]:
    """All lost, all kept, and so many mixtures."""
    return [*Crash, *(random.Random(seed).randrange for seed in range(seeds))]


def where(world: World) -> Counter[bytes]:
    """How many copies of each item all queues together hold, with those whose reads recovery ends in the next turn.
    Moves that a crash has cut off end first.
    """
    end_operations(world)
    waiting = Counter(item.data for queue in world.broker.queues for item in JournalView(queue).snapshot()[1])
    return waiting + Counter(
        taken.item.data for queue in world.broker.queues for taken in queue.open_reads.values() if not world.clients
    )


def is_in_one_place(found: Counter[bytes], safe: Counter[bytes], most: Counter[bytes] | None = None) -> bool:
    """`most`: of items that were put more than once, how often."""
    most = most or Counter()
    return safe <= found and all(count <= max(1, most[item]) for item, count in found.items())


def settle_down(world: World) -> Counter[bytes]:
    """Where everything is once every transfer that is still due has been made, and the server was stopped."""
    for _ in range(5):
        world.turn(1000)
        while world.sync():
            world.turn()
    world.broker.shutdown(world.now_ms)
    return where(world.crash(Crash.DROP))


class Starts:
    """Starts of servers on what power losses have left. Disks that no start can tell apart are started on once."""

    def __init__(self, config: str) -> None:
        self.config = config
        self.found: dict[tuple[bytes, int], Counter[bytes]] = {}

    def on(self, disk: Disk, now_ms: int = START_MS) -> Counter[bytes]:
        key = disk.digest(), now_ms
        if key not in self.found:
            self.found[key] = where(World(self.config, disk, now_ms))
        return self.found[key]


@pytest.mark.parametrize("name", STORIES)
def test_nothing_is_lost_or_doubled_wherever_the_power_fails(name: str) -> None:
    story, config = STORIES[name]
    whole, starts = Telling(story, config), Starts(config)
    most = whole.safe_by(whole.last)
    assert whole.last - whole.first > 15 and most.total() >= 2
    for stop in range(whole.first, whole.last + 1):
        world, safe = Telling(story, config, stop).world, whole.safe_by(stop)
        for number, how in enumerate(crashes(12)):
            found = starts.on(world.disk.crash(how), world.now_ms + 1000)
            assert is_in_one_place(found, safe, most), (stop, number, found, safe)


@pytest.mark.parametrize("name", STORIES)
def test_a_killed_server_loses_and_doubles_nothing_and_goes_on(name: str) -> None:
    story, config = STORIES[name]
    whole = Telling(story, config)
    for stop in range(whole.first, whole.last + 1):
        again = World(config, Telling(story, config, stop).world.disk.kill())
        found = where(again)
        assert is_in_one_place(found, whole.safe_by(stop), whole.safe_by(whole.last)), (stop, found)
        assert settle_down(again) == found, stop


@pytest.mark.parametrize("name", ["two expire among puts", "delivered twice among puts", "twins move, left to the OS"])
def test_the_power_fails_again_at_any_step_of_the_recovery(name: str) -> None:
    story, config = STORIES[name]
    whole, starts = Telling(story, config), Starts(config)
    most = whole.safe_by(whole.last)
    recovered: set[tuple[bytes, tuple[bytes, ...]]] = set()
    for stop in range(whole.first, whole.last + 1):
        left, safe = Telling(story, config, stop).world.disk, whole.safe_by(stop)
        for how in crashes(1):
            disk = left.crash(how)
            state = disk.digest(), tuple(sorted(safe.elements()))
            if state in recovered:
                continue
            recovered.add(state)
            for steps in range(100):
                second = disk.crash(Crash.KEEP)
                second.stop_at = steps
                try:
                    World(config, second)
                except PowerCut:
                    for again in crashes(2):
                        found = starts.on(second.crash(again))
                        assert is_in_one_place(found, safe, most), (stop, steps, found)
                else:
                    break
            else:
                raise AssertionError("recovery takes more steps than expected")


@pytest.mark.parametrize("config", ["", STREAMS], ids=["kestrel", "libkestrel"])
def test_an_equal_item_that_is_put_into_the_target_before_the_copy_is_not_taken_for_it(config: str) -> None:
    world = World(config)
    client, other = world.client(), world.client()
    put(client, "tick")
    world.sync()
    client.says("move q dead")
    put(other, "tick", queue="dead")  # within the millisecond
    world.sync()
    for how in crashes(5):
        assert where(world.crash(how)) == {b"tick": 2}
    settle_down(world)
    assert client.hears() == "STORED MOVED 1"


def some_load(world: World, choose: random.Random, steps: int) -> Iterator[list[str]]:
    """Puts, reads that are aborted, time, hang-ups; never a confirmation. Yields every item whose put was answered."""
    client, holder, count, answered = world.client(), world.client(), 0, 0
    heard = ""
    for _ in range(steps):
        match choose.randrange(8):
            case 0 | 1 | 2:
                count += 1
                queue = choose.choice(["q", "q", "late", "last"])
                put(client, f"{count:03}", 0 if queue == "last" else choose.choice([0, 1, 2, 3]), queue)
            case 3 | 4:
                holder.says("get q/open")
            case 5:
                holder.says("get q/abort")
            case 6:
                world.turn(choose.choice([1, 300, 1100]))
            case 7:
                holder.hangs_up()
                holder = world.client()
        if choose.randrange(3) == 0:
            world.sync()
            world.turn()
        heard += client.hears()
        answered = heard.count("STORED")
        yield [f"{number:03}" for number in range(1, answered + 1)]


@pytest.mark.parametrize("rotating", ["", ROTATING], ids=["as it is", "files rotate"])
def test_a_random_load_on_a_chain_of_queues_neither_loses_nor_doubles(rotating: str) -> None:
    for seed in range(60):
        choose = random.Random(seed)
        world = World(CHAIN + rotating)
        world.disk.stop_at = len(world.disk.log) + choose.randrange(20, 250)
        safe: Counter[bytes] = Counter()
        try:
            for answered in some_load(world, choose, 200):
                safe = Counter(each.encode() for each in answered)
        except PowerCut:
            pass
        ways = crashes(8)
        for number, how in enumerate(ways):
            found = where(world.crash(how))
            assert is_in_one_place(found, safe), (seed, number, found, safe)
        again = World(world.config, world.disk.kill())
        found = where(again)
        assert is_in_one_place(found, safe), (seed, found)
        assert settle_down(again) == found


def test_expired_and_dead_items_end_where_the_configuration_says() -> None:
    world = World(EXPIRING)
    for _ in two_expire(world):
        world.sync()
        world.turn()
    assert (world.items("q"), world.items("late")) == ([b"c", b"d"], [b"a", b"b"])
    again = world.crash(Crash.DROP)
    assert (again.items("q"), again.items("late")) == ([b"c", b"d"], [b"a", b"b"])
    world = World(DEAD)
    for _ in delivered_twice(world):
        world.sync()
        world.turn()
    assert (world.items("q"), world.items("dead")) == ([b"b"], [b"a"])


def test_the_last_item_of_a_queue_is_journaled_as_open_if_the_queue_is_flushed_while_it_leaves() -> None:
    """Left alone it costs a plain removal, as in Kestrel."""
    written = {}
    for flushed in (False, True):
        world = World(EXPIRING)
        client = world.client()
        put(client, "a", 1)
        world.sync()
        world.turn()
        size = world.disk.size("s/q")
        world.turn(2500)
        if flushed:
            client.says("flush q")
        for _ in range(3):
            world.sync()
            world.turn()
        assert (world.items("q"), world.items("late")) == ([], [b"a"])
        written[flushed] = world.disk.read("s/q", size, 100)
    assert written == {False: b"\x01", True: b"\x03" + b"\x06\x01\0\0\0"}


def test_the_queue_for_expired_items_is_there_as_soon_as_theirs_and_after_a_restart() -> None:
    world = World(EXPIRING)
    world.client().puts("x")
    assert {queue.name for queue in world.broker.queues} == {"q", "late"}
    world = World("")
    world.client().puts("a")
    world.sync()
    world.config = EXPIRING
    assert {queue.name for queue in world.crash(Crash.DROP).broker.queues} == {"q", "late"}
