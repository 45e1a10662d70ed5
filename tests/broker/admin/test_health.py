"""The one list of reasons: when each of those that take time to see begins, and when it ends."""

from __future__ import annotations

import pytest

from staniel.broker.admin.health import DAY_MS
from staniel.broker.admin.http.exchange import Exchange
from staniel.broker.admin.http.queries import server_metrics
from staniel.broker.admin.metrics import queue_samples
from staniel.broker.admin.reasons import HealthReason, ReasonName, Severity
from staniel.broker.admin.watch import AT_ONCE_MAX, HELD_MS, MARK_MS, ROUND_MS, UNREAD_MS, Watch
from staniel.broker.figures import METRICS, QueueLook, snapshot
from staniel.protocol.http.requests import HttpRequest
from staniel.queues.line import IsOver, Line
from staniel.queues.sweeping import FRESH_MS, Sweep
from tests.broker.operations.test_undo import asked
from tests.support.world import World

CONFIG = """
[queues.small]
max_items = 10
[queues.drops]
max_items = 2
discard_old_when_full = true
[queues.mails]
max_deliveries = 1
dead_letter_queue = "dead"
[queues.bills]
dead_letter_queue = "dead"
"""


def reasons(world: World) -> dict[ReasonName, HealthReason]:
    world.broker.watch.may_look = True  # each question is a turn's first
    return {each.name: each for each in world.broker.health.check(world.now_ms).reasons}


def told(world: World) -> set[ReasonName]:
    return set(reasons(world))


def test_a_full_queue_is_told_as_long_as_its_puts_are_refused() -> None:
    world = World(CONFIG)
    client = world.client()
    for _ in range(8):
        assert client.puts("x", "small")
    assert told(world) == set()
    assert client.puts("x", "small")
    filling = reasons(world)[ReasonName.QUEUE_FILLING]
    assert "queue small is full to 90%" in filling.text and filling.severity is Severity.WARNING
    client.puts("x", "small")
    full = reasons(world)[ReasonName.QUEUE_FULL]
    assert full.text == "queue small is full: its puts are refused" and full.queues == ("small",)
    assert full.mend.endswith("staniel reload") and ReasonName.QUEUE_FILLING not in told(world)
    assert world.broker.health.check(world.now_ms).ready_for_puts, "the other queues take puts"
    client.sends(b"get small\r\n")
    client.sends(b"get small\r\n")
    assert told(world) == set()


def test_a_queue_that_drops_its_oldest_items_is_not_full() -> None:
    world = World(CONFIG)
    client = world.client()
    for _ in range(5):
        client.puts("x", "drops")
    assert told(world) == set()


def test_a_queue_that_nothing_reads_is_told_after_five_minutes_until_something_does() -> None:
    world = World(CONFIG)
    client = world.client()
    client.puts("x", "mails")
    client.puts("x", "mails")
    assert told(world) == set()
    world.turn(UNREAD_MS - 1)
    assert told(world) == set()
    world.turn(1)
    found = reasons(world)[ReasonName.QUEUE_NOT_READ]
    assert found.text == "queue mails holds 2 items that nothing has read for 5 minutes"
    client.sends(b"get mails\r\n")
    assert told(world) == set()
    world.turn(UNREAD_MS)
    assert ReasonName.QUEUE_NOT_READ in told(world)
    client.sends(b"get mails/open\r\n")
    assert told(world) == set()


def test_a_paused_queue_is_told_as_paused_and_not_as_unread() -> None:
    world = World(CONFIG)
    client = world.client()
    client.puts("x", "mails")
    told(world)
    client.sends(b"pause mails\r\n")
    world.turn(2 * UNREAD_MS)
    found = reasons(world)
    assert set(found) == {ReasonName.QUEUES_PAUSED} and found[ReasonName.QUEUES_PAUSED].mend == "staniel resume mails"


def test_dead_letters_are_told_as_such_with_the_command_that_sends_them_back() -> None:
    world = World(CONFIG)
    client = world.client()
    client.puts("x", "mails")
    client.sends(b"get mails/open\r\n")
    client.sends(b"get mails/abort\r\n")
    world.turn(100)
    found = reasons(world)
    assert set(found) == {ReasonName.DEAD_LETTERS}
    assert found[ReasonName.DEAD_LETTERS].text == "queue dead holds 1 dead letter"
    assert found[ReasonName.DEAD_LETTERS].mend == "mend the workers, then: staniel redrive dead"
    world.turn(2 * UNREAD_MS)
    assert told(world) == {ReasonName.DEAD_LETTERS}
    client.sends(b"get dead\r\n")
    assert told(world) == set()


def test_a_queue_grows_once_it_is_longer_by_a_fifth_than_some_minutes_ago() -> None:
    world = World("default.keep_journal = false\n")
    client = world.client()

    def put(count: int) -> None:
        for _ in range(count):
            client.puts("x", "q")

    put(1000)
    told(world)
    put(500)
    assert told(world) == set(), "nothing is known of how long it was"
    world.turn(MARK_MS)
    client.sends(b"get q\r\n")  # something reads it
    assert told(world) == set()
    put(100)
    world.turn(MARK_MS)
    told(world)
    put(800)
    client.sends(b"get q\r\n")
    assert told(world) == {ReasonName.QUEUE_GROWS}
    for _ in range(2):
        world.turn(MARK_MS)
        client.sends(b"get q\r\n")
        told(world)
    assert told(world) == set()


STREAM = """
default.journal_format = "libkestrel"
default.default_journal_size = "64KB"
default.max_item_size = "32KB"
"""
KILO = "x" * 1024


def held(world: World, name: str = "q") -> tuple[int, int]:
    """What open reads of a queue keep: bytes and milliseconds, the same wherever they are told."""
    queue = world.broker.queues.find(name)
    assert queue is not None
    view = snapshot(QueueLook(queue, world.now_ms, world.broker.spool))
    at = [figure.metric for figure in METRICS].index("held_bytes")
    assert queue_samples(world.broker.spool, queue, world.now_ms)[at : at + 2] == (view.held_bytes, view.held_ms / 1000)
    reply = world.client().says("stats").hears()
    assert (f"queue_{name}_held_bytes {view.held_bytes}" in reply) == (view.held_bytes > 0)
    return view.held_bytes, view.held_ms


def test_an_open_read_tells_what_it_keeps_of_a_libkestrel_queue_until_it_is_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("staniel.broker.admin.watch.HELD_BYTES_MIN", 100 << 10)
    world = World(STREAM)
    client = world.client()
    for _ in range(500):
        client.puts(KILO, "q")
    client.sends(b"get q/open\r\n")
    assert held(world) == (0, 0), "what follows was not read: it waits"
    reader = world.client()
    for _ in range(499):
        reader.sends(b"get q\r\n")
    world.turn(1000)
    kept, age_ms = held(world)
    files = world.broker.queues.find("q").journal.segments.files  # type: ignore[union-attr]
    assert kept == sum(file.size for file in files[:-1]) > 400 << 10 and age_ms == 1000
    assert ReasonName.READS_HELD not in told(world)
    world.turn(HELD_MS)
    found = reasons(world)[ReasonName.READS_HELD]
    assert found.queues == ("q",) and found.mend.endswith("staniel open q")
    assert "keep 0 MB of files that are otherwise read, for up to 5 minutes" in found.text
    client.sends(b"get q/close\r\n")
    world.turn(1)
    assert held(world) == (0, 0) and len(files) > 1 and ReasonName.READS_HELD not in told(world)
    assert len(world.broker.queues.find("q").journal.segments.files) == 1  # type: ignore[union-attr]


def test_what_another_reader_or_an_item_that_waits_again_keeps_is_no_open_reads_fault() -> None:
    world = World(STREAM)
    client = world.client()
    client.puts(KILO, "q+slow")
    for _ in range(200):
        client.puts(KILO, "q")
    reader = world.client()
    client.sends(b"get q/open\r\n")
    for _ in range(200):
        reader.sends(b"get q\r\n")
    assert held(world) == (0, 0), "the other reader has not read anything"
    for _ in range(201):
        reader.sends(b"get q+slow\r\n")
    assert held(world)[0] > 100 << 10
    client.sends(b"get q/abort\r\n")
    assert held(world) == (0, 0), "it waits again"


def test_equal_reasons_of_many_queues_are_one_with_a_count() -> None:
    world = World("default.max_items = 1\ndefault.keep_journal = false\n")
    client = world.client()
    for at in range(30):
        client.puts("x", f"q{at}")
    found = reasons(world)[ReasonName.QUEUE_FULL]
    assert found.count == 30 and len(found.queues) == 10
    assert found.text.endswith("q9 and 20 more are full: their puts are refused")


@pytest.mark.parametrize("count", [2, 300])
def test_the_command_that_mends_several_queues_names_those_that_the_text_names(count: int) -> None:
    world = World()
    for number in range(count):
        world.client().puts("x", f"q{number}")
        assert asked(world, "POST", f"/api/queues/q{number}/pause", {})[0] == 200
    found = reasons(world)[ReasonName.QUEUES_PAUSED]
    assert found.mend == f"staniel resume {' '.join(found.queues)}" and found.queues[:2] == ("q0", "q1")
    assert found.count == count and all(name in found.text for name in found.queues)


def test_a_command_for_a_queue_is_quoted_for_the_shell() -> None:
    world = World(CONFIG)
    client = world.client()
    client.puts("x", "a;reboot")
    client.sends(b"pause a;reboot\r\n")
    assert reasons(world)[ReasonName.QUEUES_PAUSED].mend == "staniel resume 'a;reboot'"


@pytest.mark.parametrize(("slow", "told_of"), [(4, False), (5, True)])
def test_slow_syncs_are_told_when_there_are_several(slow: int, told_of: bool) -> None:
    world = World("default.keep_journal = false\n")
    told(world)
    for took_ms in [300] * slow + [1] * 400:
        world.broker.latencies.syncs.add(took_ms * 1_000_000)
    assert (ReasonName.SYNCS_SLOW in told(world)) is told_of
    world.turn(MARK_MS)
    told(world)
    world.turn(MARK_MS)
    told(world)
    assert told(world) == set(), "what was slow ten minutes ago is not told any more"


def test_syncs_of_which_one_in_a_thousand_is_slow_are_not_told() -> None:
    world = World("default.keep_journal = false\n")
    told(world)
    for took_ms in [300] * 10 + [1] * 9_990:
        world.broker.latencies.syncs.add(took_ms * 1_000_000)
    assert told(world) == set()


def test_a_disk_that_fills_within_four_hours_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("default.keep_journal = false\n")
    free = [290_000]
    monkeypatch.setattr(Watch, "_free_bytes", lambda watch: (free[0] << 20, 1_000_000 << 20))
    assert told(world) == set()
    for _ in range(3):
        world.turn(MARK_MS)
        free[0] -= 3_000  # a seventy-second of what is free, every five minutes: full in eight hours
        assert told(world) == set()
    for _ in range(9):
        world.turn(MARK_MS)
        free[0] -= 9_000
        told(world)
    found = reasons(world)[ReasonName.DISK_FILLING]
    assert "the disk is full in 2 h" in found.text
    for _ in range(13):
        world.turn(MARK_MS)
        told(world)
    assert told(world) == set()


def test_the_log_says_when_a_reason_begins_and_ends() -> None:
    world = World(CONFIG)
    world.broker.watch.begin_rounds(world.now_ms)
    client = world.client()
    for _ in range(10):
        client.puts("x", "small")
    for _ in range(3):
        world.turn(ROUND_MS)
    why = "queue small is full: its puts are refused"
    assert world.reported("health.warning") == [{"reason": "queue_full", "queue": "small", "why": why}]
    client.sends(b"get small\r\n")
    client.sends(b"get small\r\n")
    for _ in range(3):
        world.turn(ROUND_MS)
    assert world.reported("health.ended") == world.reported("health.warning")


def test_many_requests_of_one_turn_look_at_the_queues_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(CONFIG)
    client = world.client()
    for at in range(20):
        client.puts("x", f"q{at}")
    looks: list[str] = []
    right = Watch._check_queue
    monkeypatch.setattr(
        Watch, "_check_queue", lambda self, name, now_ms: (looks.append(name), right(self, name, now_ms))
    )
    for turn in (1, 2):
        world.turn()
        for _ in range(3):
            world.broker.health.check(world.now_ms)
        assert len(looks) == turn * len(world.broker.queues.by_name) > 0


def test_a_look_sweeps_no_queue_and_learns_from_the_sweep_that_it_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(CONFIG)
    client = world.client()
    client.puts("x", "small")
    for _ in range(9):
        client.sends(b"set small 0 5 1\r\nx\r\n")
    queue = world.broker.queues.find("small")
    assert queue is not None
    sweeps: list[int] = []
    right = type(queue.sweeping).sweep_some

    def step(self: Sweep, line: Line, is_over: IsOver, now_ms: int, count_max: int) -> int:
        sweeps.append(now_ms)
        return right(self, line, is_over, now_ms, count_max)

    monkeypatch.setattr(Sweep, "sweep_some", step)
    for _ in range(3):
        assert ReasonName.QUEUE_FULL not in told(world) and not sweeps, "it is not known whether some have expired"
    world.turn(100)
    assert len(sweeps) == 1
    assert ReasonName.QUEUE_FULL in told(world)
    world.turn(6_000)  # they expire
    assert ReasonName.QUEUE_FULL in told(world), "as long as the last sweep's finding holds"
    world.turn(FRESH_MS)
    assert ReasonName.QUEUE_FULL in told(world) and len(sweeps) == 1
    world.turn(100)
    assert told(world) == set() and len(sweeps) == 2 and len(queue.line) == 10


def test_of_many_queues_a_round_sees_what_one_look_would_not() -> None:
    world = World("default.keep_journal = false\ndefault.max_items = 1\n")
    client = world.client()
    for at in range(AT_ONCE_MAX + 1):
        client.puts("x", f"q{at}")
    assert told(world) == set()
    world.broker.watch.begin_rounds(world.now_ms)
    for _ in range(20):
        world.turn(100)
    assert reasons(world)[ReasonName.QUEUE_FULL].count == AT_ONCE_MAX + 1
    client.sends(b"delete q7\r\n")
    for _ in range(20):
        world.turn(ROUND_MS // 10)
    assert reasons(world)[ReasonName.QUEUE_FULL].count == AT_ONCE_MAX


def test_where_consumers_can_drain_the_server_is_ready_and_not_for_puts() -> None:
    world = World(CONFIG)
    client = world.client()
    client.sends(b"status readonly\r\n")
    found = world.broker.health.check(world.now_ms)
    assert found.ready and not found.ready_for_puts
    assert [(each.name, each.severity) for each in found.reasons] == [(ReasonName.STATUS, Severity.REFUSES)]
    client.sends(b"status quiescent\r\n")
    assert not world.broker.health.check(world.now_ms).ready


@pytest.mark.pure  # patches a class
def test_a_full_disk_leaves_a_server_ready_for_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(CONFIG)
    monkeypatch.setattr(type(world.broker.group), "is_full", property(lambda group: True))
    found = world.broker.health.check(world.now_ms)
    assert found.ready and not found.ready_for_puts
    assert found.reasons[0].name is ReasonName.DISK_FULL and found.reasons[0].severity is Severity.REFUSES


def test_every_reason_that_is_in_the_list_is_told_by_something() -> None:
    """A reason without code would be a metric that is always 0."""
    import inspect

    from staniel.broker.admin import health as of_health
    from staniel.broker.admin import watch as of_watch
    from staniel.server.cluster import member_metrics as of_members

    code = inspect.getsource(of_health) + inspect.getsource(of_watch) + inspect.getsource(of_members)
    assert [reason for reason in ReasonName if f"ReasonName.{reason.name}" not in code] == []


def test_a_backup_is_too_old_when_backup_max_age_says_so_and_one_that_is_not_known_always() -> None:
    world = World()
    assert ReasonName.BACKUP_OLD not in told(world), "nobody has asked for backups"
    assert b"staniel_backup_age_seconds" not in scraped(world)
    assert asked(world, "POST", "/api/backup/made", {"made_at_ms": world.now_ms, "where": "/mnt/a b"})[0] == 200
    world.turn(3 * DAY_MS)
    assert b"staniel_backup_age_seconds 259200.0" in scraped(world) and ReasonName.BACKUP_OLD not in told(world)

    again = World('server.backup_max_age = "36h"\n', world.disk.kill(), world.now_ms)
    found = reasons(again)[ReasonName.BACKUP_OLD]
    assert found.text == "the last backup is 3 d 0 h old, and backup_max_age is 36h"
    assert (found.severity, found.mend) == (Severity.WARNING, "staniel backup '/mnt/a b'")
    again.broker.watch.begin_rounds(again.now_ms)
    again.turn(ROUND_MS)
    assert [each["reason"] for each in again.reported("health.warning")] == ["backup_old"]
    earlier = {"made_at_ms": again.now_ms - 2 * DAY_MS - 1, "where": "/x"}
    later = {"made_at_ms": again.now_ms + DAY_MS, "where": "/y"}
    for made, where in ((earlier, "/x"), (later, "/y"), (earlier, "/y")):
        assert asked(again, "POST", "/api/backup/made", made)[0] == 200
        assert again.broker.last_backup.made is not None and again.broker.last_backup.made.where == where
    assert ReasonName.BACKUP_OLD not in told(again), "a moment that is still to come is taken for now"
    again.turn(ROUND_MS)
    assert [each["reason"] for each in again.reported("health.ended")] == ["backup_old"]
    assert asked(again, "POST", "/api/backup/made", {"made_at_ms": -1, "where": ""})[0] == 400

    (unknown,) = reasons(World("server.backup_max_age = '1d'")).values()
    assert unknown.text == "no backup of this spool is known, and backup_max_age is 1d"
    assert unknown.mend == "staniel backup DEST"


def scraped(world: World) -> bytes:
    return server_metrics(Exchange(world.client().session, HttpRequest("GET", "/metrics", {}, {}, b"")), world.now_ms)
