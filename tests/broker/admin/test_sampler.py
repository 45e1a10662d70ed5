"""What is kept of queues over time: rows in the order of their changes, and histories bounded in bytes."""

from __future__ import annotations

from staniel.broker.admin import sampler as sampling
from staniel.broker.admin.history import POINTS, RING_BYTES_MAX, SPARK_ALPHABET, HistoryRing, Point, view
from staniel.broker.admin.sampler import RINGS_MAX, SLICE, Sampler
from staniel.broker.protocols import http
from staniel.broker.session import SessionState
from tests.support.world import Client, World

MEMORY = "default.keep_journal = false\n"


def passes(world: World, ms: int, step_ms: int = 100) -> None:
    for _ in range(0, ms, step_ms):
        world.turn(step_ms)


def begun(world: World) -> Sampler:
    return world.broker.sampler(world.now_ms)


def point(items: float = 0, puts: float = 0, age_ms: float = 0, unsynced: float = 0) -> Point:
    return Point(items, puts, 0, age_ms, 0, unsynced)


def test_rates_are_counted_over_the_time_between_two_looks() -> None:
    world = World(MEMORY)
    sampler = begun(world)
    sampler.watch(world.now_ms)
    client = world.client()
    client.puts("x", "q")
    passes(world, 1500)
    for _ in range(100):
        client.puts("x", "q")
    sampler.watch(world.now_ms)
    passes(world, 900)
    rates = {row.shown.put_rate for row in sampler.changed_since(0) if row.shown is not None}
    assert any(90 <= rate <= 110 for rate in rates), rates
    assert sampler.totals.items == 101


def test_changes_come_in_their_order_and_once() -> None:
    world = World(MEMORY)
    sampler = begun(world)
    client = world.client()
    for name in ("a", "b", "c"):
        client.puts("x", name)
    sampler.watch(world.now_ms)
    passes(world, 3200)
    known = max(row.number for row in sampler.rows.values())
    assert sampler.changed_since(known) == []
    client.puts("x", "b")
    sampler.watch(world.now_ms)
    passes(world, 1200)
    assert [row.queue.name for row in sampler.changed_since(known)] == ["b"]
    client.sends(b"delete b\r\n")
    sampler.watch(world.now_ms)
    passes(world, 1200)
    (gone,) = [row for row in sampler.changed_since(known) if row.queue.name == "b"]
    assert gone.shown is None and sampler.totals.items == 2


def test_a_slice_looks_at_few_queues_however_many_there_are() -> None:
    world = World(MEMORY)
    for number in range(3 * SLICE):
        world.broker.queues.make(f"q{number}", world.now_ms)
    sampler = begun(world)
    sampler.watch(world.now_ms)
    looked = []
    for _ in range(4):
        looked.append(len(sampler.rows))
        sampler.on_timer(world.now_ms)
    assert looked == [0, SLICE, 2 * SLICE, 3 * SLICE]


def test_rings_are_for_so_many_queues_and_go_from_idle_ones_to_busy_ones() -> None:
    world = World(MEMORY)
    for number in range(RINGS_MAX):
        world.broker.queues.make(f"q{number}", world.now_ms)
    sampler = begun(world)
    passes(world, 12_000)
    assert sampler.rings == RINGS_MAX
    world.client().puts("x", "late")
    passes(world, 12_000)
    assert "late" not in sampler.rows or sampler.rows["late"].ring is None
    for row in sampler.rows.values():
        if row.ring is not None:
            row.ring.idle_points = POINTS[0]
    passes(world, 30_000)
    assert sampler.rows["late"].ring is not None and sampler.rings == RINGS_MAX


def test_a_ring_grows_to_its_bound_and_no_further() -> None:
    ring = HistoryRing()
    for step in range(3 * 24 * 720):
        ring.add(point(step), step * 5000)
    size = sum(level._values.buffer_info()[1] * level._values.itemsize for level in ring.levels)
    assert size <= RING_BYTES_MAX
    assert view("q", ring, "10m").items[-2:] == [3 * 24 * 720 - 3, 3 * 24 * 720 - 2]
    assert len(view("q", ring, "1d").items) == POINTS[2]


def test_a_coarse_point_keeps_the_peaks_and_the_mean_of_rates() -> None:
    ring = HistoryRing()
    for step, (puts, age_ms) in enumerate([(10, 5), (20, 900), (30, 7), (40, 1), (50, 2), (60, 3), (0, 0), (0, 0)]):
        ring.add(point(step, puts, age_ms, age_ms), step * 5000)
    hour = view("q", ring, "1h")
    assert (hour.items, hour.put_rate, hour.age_ms, hour.unsynced_bytes) == ([5], [35], [900], [900])
    assert hour.end_at_ms == 30_000


def test_a_time_without_a_look_is_a_gap() -> None:
    ring = HistoryRing()
    for at_ms in (0, 5000, 20_000, 25_000):
        ring.add(point(1), at_ms)
    assert view("q", ring, "10m").items == [1, 1, None, None, 1]
    ring.add(point(1), 1000)  # the clock has gone back
    assert len(view("q", ring, "10m").items) == 6


def test_a_spark_is_letters_of_what_fits_in_a_string() -> None:
    ring = HistoryRing()
    for step in range(200):
        ring.add(point(step), step * 5000)
    most, letters = ring.spark()
    assert most == 198 and len(letters) == 60 and letters[-1] == SPARK_ALPHABET[-1]
    assert not set(letters) & set('"\\<')
    assert len(set(SPARK_ALPHABET)) == 64


def test_pages_begin_anew_when_they_could_not_be_told_of_all_that_is_gone() -> None:
    world = World(MEMORY)
    sampler = begun(world)
    client = world.client()
    client.puts("x", "a")
    passes(world, 6000)
    epoch = sampler.epoch
    client.sends(b"delete a\r\n")
    passes(world, 6000)
    assert sampler.epoch == epoch + 1 and sampler.rows == {}
    assert sampling.GONE_MAX > 0


def test_a_page_that_is_left_is_no_get_that_was_dropped() -> None:
    world = World(MEMORY)
    page = Client(world, http())
    page.sends(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    world.turn()
    assert page.session.state is SessionState.PARKED
    page.hangs_up()
    assert world.broker.counters.cmd_get_timeout_dropped == 0
