"""A wall clock that is set: noted, told, and known to the next start; items, dates and waits as they were to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from staniel.broker.operations.health import health
from staniel.broker.operations.reasons import ReasonName
from staniel.broker.wall_clock import APART_MS, Reading
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from staniel.sim.world import START_MS
from tests.support.world import Client, World

HOUR_MS = 3_600_000
STEPS_MS = [8 * HOUR_MS, -8 * HOUR_MS, 400 * 24 * HOUR_MS, -400 * 24 * HOUR_MS, 1000, -1000]


class Machine:
    """Its clocks. `wall_ms` may be set; `boot` changes with a start of the machine."""

    def __init__(self) -> None:
        self.shift_ms = 0
        self.passed_ms = START_MS
        self.boot = "a"
        self.booted_ms = START_MS - HOUR_MS
        self.world: World | None = None
        self.disk: Disk | None = None

    @property
    def wall_ms(self) -> int:
        return self.passed_ms + self.shift_ms

    def read(self) -> Reading:
        return Reading(self.wall_ms, self.passed_ms - self.booted_ms, self.boot)

    def start(self, config: str = "") -> Client:
        self.world = World(config, self.disk, self.wall_ms, read_clocks=self.read)
        return self.world.client()

    def pass_time(self, ms: int) -> None:
        self.passed_ms += ms
        if self.world is not None:
            self.world.now_ms += ms
            self.world.turn()

    def set_wall(self, by_ms: int) -> None:
        self.shift_ms += by_ms
        if self.world is not None:
            self.world.broker.wall.look(self.world.now_ms)

    def fail(self) -> None:
        """The server's process ends, with what is on the disk."""
        assert self.world is not None
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
    return [each.name for each in health(world.broker, world.now_ms).reasons if each.name is ReasonName.CLOCK_APART]


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


def test_the_unit_starts_once_the_clock_is_right() -> None:
    unit = (Path(__file__).parents[2] / "packaging" / "staniel.service").read_text()
    assert "time-sync.target" in next(line for line in unit.splitlines() if line.startswith("After="))
    assert "Wants=time-sync.target" in unit.splitlines()
