"""A long start says how far it is: on a terminal all the time, in the log now and then; a short one says nothing."""

from __future__ import annotations

import io

from staniel.broker.broker import Broker
from staniel.broker.events import Level
from staniel.broker.recovery import RecoveryProgress
from staniel.server.progress import CLEAR, Display
from staniel.sim.world import config_of
from tests.support.world import World


class Screen(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


class Start:
    """A start of 10 s, a tenth of the bytes each second; a hundred queues, all but one small."""

    def __init__(self, is_terminal: bool, seconds: int = 10) -> None:
        self.now_ms = 0
        self.events: list[dict[str, object]] = []
        self.screen = Screen(is_terminal)
        display = Display(self._report, lambda: self.now_ms, self.screen)
        progress = RecoveryProgress(99, 0, 100, 10_000_000_000)
        for _ in range(seconds * 10):
            self.now_ms += 100
            progress.bytes += 100_000_000
            display(progress)
        progress.queues = 100
        display(progress)

    def _report(self, level: Level, event: str, /, **fields: object) -> None:
        assert (level, event) == (Level.INFO, "recovery.progress")
        self.events.append(fields)


def test_a_terminal_shows_one_line_that_changes_and_is_gone_in_the_end() -> None:
    shown = Start(is_terminal=True).screen.getvalue()
    assert "\n" not in shown and shown.endswith(CLEAR)
    assert f"{CLEAR}recovering: 50 %, 5000 of 10000 MB, 99 of 100 queues, 1000 MB/s" in shown


def test_the_log_gets_a_line_every_few_seconds_and_a_file_no_more_than_that() -> None:
    start = Start(is_terminal=False)
    assert start.screen.getvalue() == ""
    assert [event["done_mb"] for event in start.events] == [5000, 10000]
    assert start.events[0] == {
        "done_mb": 5000,
        "all_mb": 10_000,
        "queues": 99,
        "all_queues": 100,
        "mb_a_second": 1000,
    }


def test_a_short_start_says_nothing() -> None:
    start = Start(is_terminal=True, seconds=0)
    assert start.screen.getvalue() == "" and not start.events


def test_recovery_tells_how_far_it_is_small_queues_first() -> None:
    world = World()
    client = world.client()
    for name, size in ("large", 300_000), ("a", 10), ("middle", 1000):
        client.puts("x" * size, name)
        world.sync()
    told: list[tuple[int, int]] = []
    broker = Broker(config_of(""), world.disk.kill())
    summary = broker.recover(world.now_ms, lambda progress: told.append((progress.queues, progress.bytes)))
    assert [queue.name for queue in broker.queues] == ["a", "large", "middle"]
    assert dict(reversed(told)) | dict(told) == {0: 31, 1: 31 + 1021, 2: 31 + 1021 + 300_021, 3: summary.read_bytes}
    assert told == sorted(told) and told[-1] == (3, summary.read_bytes)
    assert summary.read_bytes == 300_000 + 1000 + 10 + 3 * 21 and not summary.spared_bytes
