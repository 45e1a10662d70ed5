"""A wall clock that is set: noted, told, and known to the next start; items, dates and waits as they were to be."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from staniel.broker import protocols
from staniel.broker.admin.reasons import ReasonName
from staniel.broker.wall_clock import APART_MS, ClockReading
from staniel.protocol.workq.fields import show_time
from staniel.queues.jobs.times import NS_A_MS
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from staniel.sim.world import START_MS
from tests.broker.admin.test_health import scraped
from tests.broker.operations.test_undo import asked
from tests.support.job_world import job_id
from tests.support.world import Client, World

HOUR_MS = 3_600_000
STEPS_MS = [8 * HOUR_MS, -8 * HOUR_MS, 400 * 24 * HOUR_MS, -400 * 24 * HOUR_MS, 1000, -1000]


class Machine:
    """Its clocks. `wall_ms` may be set; `boot` changes with a start of the machine. While a server runs time passes as
    its own does: some milliseconds go by with its turns.
    """

    def __init__(self) -> None:
        self.shift_ms = 0
        self._past_ms, self._began_ms = START_MS, 0  # when the server that runs was started, and by its own clock
        self.boot = "a"
        self.booted_ms = START_MS - HOUR_MS
        self.world: World | None = None
        self.disk: Disk | None = None

    @property
    def passed_ms(self) -> int:
        return self._past_ms if self.world is None else self._past_ms + self.world.now_ms - self._began_ms

    @property
    def wall_ms(self) -> int:
        return self.passed_ms + self.shift_ms

    def read(self) -> ClockReading:
        return ClockReading(self.wall_ms, self.passed_ms - self.booted_ms, self.boot)

    def start(self, config: str = "") -> Client:
        self._began_ms = self.wall_ms
        self.world = World(config, self.disk, self.wall_ms, read_clocks=self.read)
        return self.world.client()

    def pass_time(self, ms: int) -> None:
        """What is due then has happened."""
        if self.world is None:
            self._past_ms += ms
        else:
            self.world.turn(ms)

    def set_wall(self, by_ms: int) -> None:
        self.shift_ms += by_ms
        if self.world is not None:
            self.world.broker.wall.check_clock(self.world.now_ms)

    def fail(self) -> None:
        """The server's process ends, with what is on the disk."""
        assert self.world is not None
        self._past_ms = self.passed_ms
        self.disk, self.world = self.world.disk.crash(Crash.DROP), None

    def start_again(self, config: str = "") -> Client:
        self.fail()
        return self.start(config)

    def asks(self, client: Client, *lines: str) -> str:
        assert self.world is not None
        client.says(*lines)
        self.world.sync()
        self.world.turn()
        return client.hears()


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.mark.parametrize("put", ["set q 0 3600 1", "set aged 0 0 1"])
@pytest.mark.parametrize("step_ms", STEPS_MS)
@pytest.mark.parametrize("where", ["within", "restarted", "stopped"])
def test_a_life_of_an_hour_lasts_an_hour(machine: Machine, put: str, step_ms: int, where: str) -> None:
    config, name = 'queues.aged.max_age = "1h"\n', put.split()[1]
    client = machine.start(config)
    assert machine.asks(client, put, "a") == "STORED"
    if where == "stopped":
        machine.fail()
        machine.set_wall(step_ms)
        client = machine.start(config)
    else:
        machine.set_wall(step_ms)
    assert machine.asks(client, put, "b") == "STORED"
    if where == "restarted":
        client = machine.start_again(config)
    machine.pass_time(HOUR_MS - 1000)
    assert machine.asks(client, f"get {name}/peek") == f"VALUE {name}/peek 0 1 a END"
    machine.pass_time(1100)
    assert machine.asks(client, f"get {name}") == "END"


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("step_ms", [8 * HOUR_MS, -8 * HOUR_MS])
def test_a_date_is_the_walls(machine: Machine, step_ms: int, restarts: bool) -> None:
    client = machine.start()
    date_s = machine.wall_ms // 1000 + 9 * 3600
    assert machine.asks(client, f"set q 0 {date_s} 1", "a") == "STORED"
    machine.set_wall(step_ms)
    if restarts:
        client = machine.start_again()
    machine.pass_time(date_s * 1000 - machine.wall_ms)
    assert machine.asks(client, "get q/peek") == "VALUE q/peek 0 1 a END"
    machine.pass_time(1)
    assert machine.asks(client, "get q") == "END"


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_the_journal_has_the_walls_time(machine: Machine, step_ms: int) -> None:
    client = machine.start()
    machine.set_wall(step_ms)
    machine.asks(client, "set q 0 0 1", "a")
    client = machine.start_again()
    assert machine.world is not None
    (item,) = machine.world.broker.queues.by_name["q"].line.items()
    assert item.added_ms == machine.wall_ms


@pytest.mark.parametrize("step_ms", [8 * HOUR_MS, -8 * HOUR_MS])
def test_waits_and_open_reads_last_as_long_as_they_were_to(machine: Machine, step_ms: int) -> None:
    client = machine.start('queues.q.open_transaction_timeout = "10s"\n')
    machine.asks(client, "set q 0 0 1", "a")
    other = machine.world.client() if machine.world is not None else client
    assert machine.asks(client, "get q/open") == "VALUE q/open 0 1 a END"
    other.says("get q/t=5000")
    machine.set_wall(step_ms)
    machine.pass_time(4900)
    assert other.hears() == ""
    machine.pass_time(200)
    assert other.hears() == "END"
    machine.pass_time(5000)
    assert machine.asks(other, "get q") == "VALUE q 0 1 a END"


def test_a_wall_that_shows_less_after_the_machine_was_started_anew_has_let_no_time_pass(machine: Machine) -> None:
    client = machine.start()
    machine.asks(client, "set q 0 3600 1", "a")
    machine.fail()
    machine.boot, machine.booted_ms = "b", machine.passed_ms
    machine.set_wall(-24 * HOUR_MS)
    client = machine.start()
    machine.pass_time(HOUR_MS + 100)
    assert machine.asks(client, "get q") == "END"


def test_operators_are_told_while_server_and_wall_are_more_than_a_minute_apart(machine: Machine) -> None:
    machine.start()
    world = machine.world
    assert world is not None
    machine.set_wall(APART_MS - 1000)
    assert "clock.apart" not in world.events and not _reasons(world)
    machine.set_wall(8 * HOUR_MS)
    assert world.reported("clock.apart")[0]["seconds"] == 8 * 3600 + 59
    assert _reasons(world) == [ReasonName.CLOCK_APART]
    machine.set_wall(-8 * HOUR_MS)
    assert len(world.reported("clock.apart")) == 2 and not _reasons(world)


def _reasons(world: World) -> list[ReasonName]:
    return [
        each.name for each in world.broker.health.check(world.now_ms).reasons if each.name is ReasonName.CLOCK_APART
    ]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\0" * 200,
        b"{}",
        b'{"boot":"\xff"}',
        b'{"x":' + b"[" * 100_000,
        b'{"boot":"a","wall_ms":1,"steady_ms":1,"eras":[]}',
        b'{"boot":"a","wall_ms":1,"steady_ms":1,"eras":[{"mark":0,"ahead_ms":0}]}',
        b'{"boot":"a","wall_ms":1,"steady_ms":1,"eras":[{"mark":64,"ahead_ms":0}]}',
        b'{"boot":"a","wall_ms":1,"steady_ms":1,"eras":[{"mark":1,"ahead_ms":9223372036854775808}]}',
        b'{"boot":"a","wall_ms":1,"steady_ms":1,"eras":[{"mark":1,"ahead_ms":0,"since_ms":-9007199254740993}]}',
        b'{"boot":"a","wall_ms":99999999999999999999999,"steady_ms":1,"eras":[{"mark":1,"ahead_ms":0}]}',
        b'{"boot":"a","wall_ms":1,"steady_ms":1,"eras":['
        + b'{"mark":1,"ahead_ms":0},' * 64
        + b'{"mark":1,"ahead_ms":0}]}',
    ],
)
def test_a_file_that_no_server_has_written_is_told_and_made_again(machine: Machine, damage: bytes) -> None:
    machine.start()
    machine.fail()
    assert machine.disk is not None
    machine.disk.truncate("s/.staniel/clock", 0)
    file = machine.disk.append("s/.staniel/clock")
    file.write(damage)
    file.close()
    machine.start()
    world = machine.world
    assert world is not None and world.reported("clock.damaged")
    machine.start_again()
    assert machine.world is not None and "clock.damaged" not in machine.world.events


def test_a_damaged_file_is_told_and_made_again(machine: Machine) -> None:
    machine.start()
    machine.fail()
    assert machine.disk is not None
    machine.disk.truncate("s/.staniel/clock", 10)
    machine.start()
    world = machine.world
    assert world is not None and world.reported("clock.damaged")
    machine.start_again()
    assert machine.world is not None and "clock.damaged" not in machine.world.events


def test_a_step_that_no_look_has_seen_before_a_stop_is_noted_by_the_stop(machine: Machine) -> None:
    client = machine.start()
    assert machine.asks(client, "set q 0 3600 1", "a") == "STORED"
    machine.shift_ms += 8 * HOUR_MS
    world = machine.world
    assert world is not None
    world.broker.shutdown(world.now_ms)
    client = machine.start_again()
    machine.pass_time(HOUR_MS - 1000)
    assert machine.asks(client, "get q/peek") == "VALUE q/peek 0 1 a END"
    machine.pass_time(1100)
    assert machine.asks(client, "get q") == "END"


def test_a_wall_that_a_start_of_the_machine_sets_back_is_seen_by_a_note_of_the_last_minutes(machine: Machine) -> None:
    """The machine has no clock of its own, and the server was not stopped."""
    client = machine.start()
    for _ in range(24 * 6):
        machine.pass_time(HOUR_MS // 6)
    assert machine.asks(client, "set q 0 7200 1", "a") == "STORED"
    machine.pass_time(HOUR_MS)
    machine.fail()
    machine.boot, machine.booted_ms = "b", machine.passed_ms
    machine.set_wall(START_MS - 1000 - machine.wall_ms)
    client = machine.start()
    machine.pass_time(HOUR_MS + 11 * 60_000)
    assert machine.asks(client, "get q") == "END"


def test_a_note_that_cannot_be_written_is_written_later_and_told_once(machine: Machine) -> None:
    client = machine.start()
    assert machine.asks(client, "set q 0 3600 1", "a") == "STORED"
    world = machine.world
    assert world is not None
    for _ in range(3):
        world.disk.fail("create", "clock", errno.ENOSPC)
    machine.set_wall(8 * HOUR_MS)
    for _ in range(5):
        world.broker.wall.check_clock(world.now_ms)
    assert len(world.reported("clock.not_kept")) == 1
    client = machine.start_again()
    machine.pass_time(HOUR_MS - 1000)
    assert machine.asks(client, "get q/peek") == "VALUE q/peek 0 1 a END"


def test_the_unit_starts_once_the_clock_is_right() -> None:
    unit = (Path(__file__).parents[2] / "packaging" / "staniel.service").read_text()
    assert "time-sync.target" in next(line for line in unit.splitlines() if line.startswith("After="))
    assert "Wants=time-sync.target" in unit.splitlines()


# jobs


JOBS = "workq.port = 0\n"


def job_client(machine: Machine) -> Client:
    assert machine.world is not None
    client = Client(machine.world, protocols.workq())
    machine.world.clients.append(client)
    return client


def date(wall_ms: int) -> str:
    return show_time(wall_ms * NS_A_MS).decode()


@pytest.mark.parametrize("step_ms", STEPS_MS)
@pytest.mark.parametrize("where", ["within", "restarted", "stopped"])
def test_a_job_lives_as_long_as_it_was_to(machine: Machine, step_ms: int, where: str) -> None:
    machine.start(JOBS)
    client = job_client(machine)
    assert machine.asks(client, f"add {job_id(1)} work 60000 {HOUR_MS} 1", "a") == "+OK"
    if where == "stopped":
        machine.fail()
        machine.set_wall(step_ms)
        machine.start(JOBS)
        client = job_client(machine)
    else:
        machine.set_wall(step_ms)
    assert machine.asks(client, f"add {job_id(2)} work 60000 {HOUR_MS} 1", "b") == "+OK"
    if where == "restarted":
        machine.start_again(JOBS)
        client = job_client(machine)
    machine.pass_time(HOUR_MS - 1000)
    assert machine.world is not None
    jobs = machine.world.broker.workq.jobs.by_id
    assert len(jobs) == 2
    machine.pass_time(1100)
    machine.pass_time(0)
    assert not jobs


@pytest.mark.parametrize("step_ms", STEPS_MS)
@pytest.mark.parametrize("restarts", [False, True])
def test_jobs_keep_their_order(machine: Machine, step_ms: int, restarts: bool) -> None:
    machine.start(JOBS)
    client = job_client(machine)
    for number in range(4):
        machine.asks(client, f"add {job_id(number)} work 60000 {HOUR_MS} 1", str(number))
        if number % 2:
            machine.set_wall(step_ms)
    if restarts:
        machine.start_again(JOBS)
        client = job_client(machine)
    found = [machine.asks(client, "lease work 1000").split()[-1] for _ in range(4)]
    assert found == ["0", "1", "2", "3"]


@pytest.mark.parametrize("step_ms", [8 * HOUR_MS, -8 * HOUR_MS])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_schedule_is_the_walls_and_the_life_behind_it_lasts(machine: Machine, step_ms: int, restarts: bool) -> None:
    machine.start(JOBS)
    client = job_client(machine)
    when_ms = machine.wall_ms + 9 * HOUR_MS
    said = f"schedule {job_id(1)} work 60000 {HOUR_MS} {date(when_ms)} 1"
    assert machine.asks(client, said, "a") == "+OK"
    machine.set_wall(step_ms)
    if restarts:
        machine.start_again(JOBS)
        client = job_client(machine)
    assert date(when_ms) in machine.asks(client, f"inspect job {job_id(1)}")
    machine.pass_time(when_ms - machine.wall_ms - 1)
    assert machine.asks(client, "lease work 60000") == ""
    machine.pass_time(20)
    world = machine.world
    assert world is not None and world.sync()  # an answer waits for what it rests on
    world.turn()
    assert client.hears().split()[-1] == "a"
    jobs = world.broker.workq.jobs.by_id
    machine.pass_time(HOUR_MS - 1000)
    assert jobs
    machine.pass_time(1100)
    machine.pass_time(0)
    assert not jobs


@pytest.mark.parametrize("restarts", [False, True])
def test_a_wall_set_past_a_schedule_makes_its_job_ready_with_its_whole_life(machine: Machine, restarts: bool) -> None:
    machine.start(JOBS)
    client = job_client(machine)
    when = date(machine.wall_ms + HOUR_MS)
    assert machine.asks(client, f"schedule {job_id(1)} work 60000 {HOUR_MS} {when} 1", "a") == "+OK"
    machine.set_wall(8 * HOUR_MS)
    if restarts:
        machine.start_again(JOBS)
        client = job_client(machine)
    machine.pass_time(HOUR_MS - 1000)
    assert machine.asks(client, "lease work 1000").split()[-1] == "a"
    machine.pass_time(1100)
    machine.pass_time(0)
    assert machine.world is not None and not machine.world.broker.workq.jobs.by_id


@pytest.mark.parametrize("step_ms", [8 * HOUR_MS, -8 * HOUR_MS])
@pytest.mark.parametrize("restarts", [False, True])
def test_the_life_of_a_job_that_was_finished_before_its_date_begins_with_the_date(
    machine: Machine, step_ms: int, restarts: bool
) -> None:
    machine.start(JOBS)
    client = job_client(machine)
    when_ms = machine.wall_ms + 9 * HOUR_MS
    said = f"schedule {job_id(1)} work 60000 {HOUR_MS} {date(when_ms)} 1"
    assert machine.asks(client, said, "a") == "+OK"
    assert machine.asks(client, f"complete {job_id(1)} 1", "r") == "+OK"
    machine.set_wall(step_ms)
    if restarts:
        machine.start_again(JOBS)
    machine.pass_time(when_ms - machine.wall_ms + HOUR_MS - 1000)
    assert machine.world is not None
    jobs = machine.world.broker.workq.jobs.by_id
    assert jobs
    machine.pass_time(1100)
    machine.pass_time(0)
    assert not jobs


@pytest.mark.parametrize("restarts", [False, True])
def test_the_life_behind_a_date_that_was_past_already_begins_with_that_date(machine: Machine, restarts: bool) -> None:
    """Although the wall was set a moment before."""
    machine.start(JOBS)
    client = job_client(machine)
    machine.set_wall(8 * HOUR_MS)
    said = f"schedule {job_id(1)} work 60000 {HOUR_MS} {date(machine.wall_ms - HOUR_MS // 2)} 1"
    assert machine.asks(client, said, "a") == "+OK"
    if restarts:
        machine.start_again(JOBS)
    machine.pass_time(HOUR_MS // 2 - 2000)
    assert machine.world is not None
    jobs = machine.world.broker.workq.jobs.by_id
    assert jobs
    machine.pass_time(2100)
    machine.pass_time(0)
    assert not jobs


# what operators are shown


def about(ms: int) -> object:
    """Some milliseconds go by while a question is answered."""
    return pytest.approx(ms, abs=20, rel=0)


@pytest.mark.parametrize("step_ms", [8 * HOUR_MS, -8 * HOUR_MS])
def test_what_is_shown_is_the_walls_and_ages_are_true(machine: Machine, step_ms: int) -> None:
    client = machine.start('admin.port = 0\nserver.backup_max_age = "2h"\n')
    world = machine.world
    assert world is not None
    put_ms = machine.wall_ms
    machine.asks(client, "set q 0 0 1", "a")
    made = {"made_at_ms": machine.wall_ms, "where": "/b"}
    assert asked(world, "POST", "/api/backup/made", made)[0] == 200
    machine.pass_time(HOUR_MS)
    assert asked(world, "POST", "/api/queues/q/pause", {})[0] == 200
    paused_ms = machine.wall_ms
    machine.set_wall(step_ms)
    machine.pass_time(1000)
    server = asked(world, "GET", "/api/server")[1]
    assert server["now_ms"] == about(machine.wall_ms) and server["uptime_ms"] == about(HOUR_MS + 1000)
    assert server["started_at_ms"] == about(machine.wall_ms - HOUR_MS - 1000)
    assert asked(world, "GET", "/api/queues/q")[1]["age_ms"] == about(HOUR_MS + 1000)
    item = asked(world, "GET", "/api/queues/q/items")[1]["items"][0]
    assert item["added_at_ms"] == put_ms and item["age_ms"] == about(HOUR_MS + 1000)
    assert asked(world, "GET", "/api/audit")[1][0]["at_ms"] == about(paused_ms)
    assert asked(world, "POST", "/api/queues/q/resume", {})[0] == 200
    assert asked(world, "GET", "/api/audit")[1][0]["at_ms"] == about(machine.wall_ms)
    assert world.broker.last_backup.age_ms(world.now_ms) == about(HOUR_MS + 1000)
    assert asked(world, "POST", "/api/backup/made", {"made_at_ms": machine.wall_ms, "where": "/c"})[0] == 200
    assert world.broker.last_backup.age_ms(world.now_ms) == about(0)


@pytest.mark.parametrize("step_ms", [400 * 24 * HOUR_MS, -400 * 24 * HOUR_MS])
@pytest.mark.parametrize("restarts", [False, True])
def test_an_undo_can_be_done_as_long_as_was_said(machine: Machine, step_ms: int, restarts: bool) -> None:
    config = 'admin.port = 0\nadmin.undo_time = "1h"\n'
    client = machine.start(config)
    machine.asks(client, "set q 0 0 1", "a")
    assert machine.world is not None
    assert asked(machine.world, "POST", "/api/queues/q/purge", {})[0] == 200
    machine.set_wall(step_ms)
    if restarts:
        machine.start_again(config)
    machine.pass_time(HOUR_MS - 1000)
    assert machine.world is not None
    (found,) = asked(machine.world, "GET", "/api/undo")[1]
    assert found["until_at_ms"] == about(machine.wall_ms + 1000)
    machine.pass_time(1100)
    assert asked(machine.world, "GET", "/api/undo")[1] == []


@pytest.mark.parametrize("form", ["kestrel", "libkestrel"])
def test_items_of_a_clock_that_nobody_noted_are_told_once_and_neither_old_nor_expired(form: str) -> None:
    config = f'default.journal_format = "{form}"\ndefault.max_age = "1h"\n'
    later = World(config, None, START_MS + 80 * 365 * 24 * HOUR_MS)
    later.client().puts("x").says("set q 0 600 1", "y").puts("z")
    while later.sync():
        later.turn()
    world = World(config, later.disk.kill(), START_MS)
    world.broker.watch.begin_rounds(world.now_ms)
    for _ in range(20):
        world.client().says("peek q", "stats")
        world.turn(1000)
    told = world.reported("clock.items_ahead")
    assert len(told) == 1 and told[0]["queue"] == "q" and told[0]["seconds"] > 79 * 365 * 24 * 3600
    heard = world.client().says("stats").hears()
    assert "queue_q_age 0 " in heard and "queue_q_expired_items 0 " in heard and "queue_q_items 3 " in heard
    assert world.items() == [b"x", b"y", b"z"]


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_ages_in_the_metrics_are_those_of_health_after_a_step_of_the_wall(step_ms: int) -> None:
    machine = Machine()
    machine.start()
    world = machine.world
    assert world is not None
    assert asked(world, "POST", "/api/backup/made", {"made_at_ms": machine.wall_ms, "where": "/mnt/a"})[0] == 200
    made_ms = machine.wall_ms
    machine.pass_time(HOUR_MS)
    machine.set_wall(step_ms)
    copies = world.broker.watch.copies
    copies.list_copies, copies.oldest_ms = lambda now_ms: None, made_ms  # type: ignore[method-assign]
    shown = scraped(world).decode().splitlines()
    for name in ("staniel_backup_age_seconds", "staniel_damaged_oldest_seconds"):
        (age,) = [line.split()[1] for line in shown if line.startswith(f"{name} ")]
        assert int(float(age)) == HOUR_MS // 1000, name
