"""Every setting at the ends of its range serves; expiries that lie at odd places are expiries."""

from __future__ import annotations

import pytest

from staniel.broker.config.load import ConfigError, parse
from staniel.broker.config.schema import ServerSettings, WorkqSettings
from staniel.broker.config.toml import keys_of
from staniel.broker.config.values import DURATION_MS_MAX
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.config import QueueConfig
from staniel.sim.world import START_MS
from tests.support.world import World

DURATIONS = [key for key, each in keys_of(QueueConfig).items() if "duration" in each.kind.word]
AMOUNTS = [key for key, each in keys_of(QueueConfig).items() if each.kind.word in ("number or none", "size or none")]
OF_SERVER = [key for key, each in keys_of(ServerSettings).items() if "duration" in each.kind.word]
OF_WORKQ = [key for key, each in keys_of(WorkqSettings).items() if "duration" in each.kind.word]
ITEM = ("max_item_size", "max_deliveries")  # have limits of their own


def serve(config: str) -> None:
    world = World(config)
    client = world.client()
    client.says("set q 0 0 1", "1", "set q 0 100 1", "2", "get q/open", "get q/abort", "get q/t=5", "get q/open")
    world.turn(1000)
    world.sync()
    world.turn(10_000)
    assert "ERROR" not in client.hears()
    world.broker.next_ms()
    client.hangs_up()
    world.turn(100_000)
    world.sync()
    world.broker.shutdown(world.now_ms)
    World(config, world.disk.kill(), world.now_ms)


@pytest.mark.parametrize("journal", ["kestrel", "libkestrel"])
@pytest.mark.parametrize("key", DURATIONS)
def test_the_longest_duration_serves_and_a_longer_one_is_refused(key: str, journal: str) -> None:
    name = f'default.journal_format = "{journal}"\ndefault.{key}'
    serve(f"{name} = {DURATION_MS_MAX}\n")
    for value in (DURATION_MS_MAX + 1, 2**63 - 1, '"36501d"'):
        with pytest.raises(ConfigError, match="36500d"):
            parse(f"{name} = {value}\n".encode(), "")


@pytest.mark.parametrize("key", [*(f"server.{key}" for key in OF_SERVER), *(f"workq.{key}" for key in OF_WORKQ)])
def test_so_do_those_of_the_server(key: str) -> None:
    workq = "" if key.startswith("server") else "workq.port = 0\n"
    serve(f"{workq}{key} = {DURATION_MS_MAX}\n")
    with pytest.raises(ConfigError, match="36500d"):
        parse(f"{key} = {2**63 - 1}\n".encode(), "")


@pytest.mark.parametrize("journal", ["kestrel", "libkestrel"])
@pytest.mark.parametrize("key", [key for key in AMOUNTS if key not in ITEM])
def test_the_largest_sizes_and_counts_serve(key: str, journal: str) -> None:
    most = 2**31 - 1 if "size" not in key else 2**63 - 1
    serve(f'default.journal_format = "{journal}"\ndefault.{key} = {most}\n')


@pytest.mark.parametrize("dialect", Dialect)
def test_an_expiry_that_falls_on_the_first_moment_of_all_is_over(dialect: Dialect) -> None:
    for ago_s in (START_MS // 1000, START_MS // 1000 + 1):
        world = World()
        client = world.client(dialect)
        world.now_ms = START_MS // 1000 * 1000
        client.says(f"set q 0 -{ago_s} 1", "1", "get q")
        world.sync()
        assert client.hears() == "STORED END"


def test_an_empty_queue_is_not_rewritten_at_every_get_by_a_size_of_nothing() -> None:
    world = World("default.default_journal_size = 0\n")
    client = world.client()
    renames = len([op for op in world.disk.log if op.verb == "rename"])
    for _ in range(20):
        client.puts("1" * 20).says("get q")
        world.sync()
    assert len([op for op in world.disk.log if op.verb == "rename"]) == renames
    for _ in range(80):
        client.puts("1" * 60).says("get q")
        world.sync()
    assert len([op for op in world.disk.log if op.verb == "rename"]) - renames in range(1, 4)
