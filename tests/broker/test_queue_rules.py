"""Which rule of a queue holds on which path: every cell of queue_rules.md is tried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from staniel.journal.spool import Spool
from staniel.journal.tools.convert import Conversion
from staniel.queues.config import Format
from staniel.sim.disk.durable import Crash
from tests.broker.operations.test_undo import asked, settles
from tests.support.world import Client, World

DOCUMENT = Path(__file__).parent / "queue_rules.md"
SETTINGS_PAGE = Path(__file__).parents[2] / "docs" / "config.md"
HEAD = "| rule | abort |"
LIVES_S = 30
REST_MS = 2000
PAUSE_MS = 2 * REST_MS  # before a path: what rests from the first delivery is back
AFTER_MS = 1000 * LIVES_S - PAUSE_MS + 500  # what counts on is over then, and what counts anew is not

SETTINGS = {
    "max_items, max_size": "max_items = 1\n",
    "max_deliveries": 'max_deliveries = 2\ndead_letter_queue = "dead"\n',
    "retry_delay": f"retry_delay = {REST_MS}\n",
    "expiry of the item": "",
    "max_age": f'max_age = "{LIVES_S}s"\n',
    "pause": "",
}


def table() -> dict[tuple[str, str], str]:
    """What the document says, by rule and path."""
    rows = DOCUMENT.read_text("utf-8").split(HEAD, 1)[1].split("\n\n", 1)[0].splitlines()
    paths = ["abort", *(cell.strip() for cell in rows[0].strip("|").split("|"))]
    found = {}
    for row in rows[2:]:
        rule, *cells = [cell.strip() for cell in row.strip("|").split("|")]
        found |= {(rule, path): cell for path, cell in zip(paths, cells, strict=True)}
    return found


CELLS = table()


class Story:
    """One cell: item `a` of queue `q` comes back by `path`, under `rule`."""

    def __init__(self, rule: str, path: str) -> None:
        self.rule, self.path = rule, path
        self.config = f"[queues.q]\nopen_transaction_timeout = 100\n{SETTINGS[rule]}"
        self.world = World("" if path == "reload" else self.config)
        self.client = self.world.client()
        expiry = LIVES_S if rule == "expiry of the item" else 0
        self.client.says(f"set q 0 {expiry} 1", "a")
        self.holder: Client = self.world.client().says("get q/open", "get q/abort")
        self.world.turn(PAUSE_MS)
        settles(self.world)

    def runs(self) -> str:
        """Have the item come back, and return in which word of the table that ended."""
        is_held = self.path in ("abort", "hang-up", "time-out", "recovery", "reload")
        if is_held:
            self.holder.says("get q/open")
            settles(self.world)
            assert len(self.world.broker.queues.by_name["q"].open_reads) == 1
        if self.rule == "max_items, max_size" and self.path not in ("undo", "move"):
            self.client.puts("b")
            if not is_held:  # the queue has no room for both
                assert self.client.says("get q/open") and self.client.puts("b") and self.client.says("get q/abort")
        if self.rule == "pause":
            self.client.says("pause q gets")
        settles(self.world)
        PATHS[self.path](self)
        settles(self.world)
        return OBSERVED[self.rule](self)

    def restarts(self, config: str = "", how: Crash = Crash.KEEP) -> None:
        self.world = World(config or self.world.config, self.world.disk.crash(how), self.world.now_ms + 1)
        self.client = self.world.client()


def reloaded(story: Story) -> None:
    story.world.config = story.config
    story.client.says("reload")
    settles(story.world)
    story.holder.says("get q/abort")


def undone(story: Story) -> None:
    _, purged = asked(story.world, "POST", "/api/queues/q/purge", {})
    if story.rule == "max_items, max_size":
        story.client.puts("b")
    assert asked(story.world, "POST", f"/api/undo/{purged['undo']}")[1]["returned"] == 1


def moved(story: Story) -> None:
    story.client.says("move q side")
    settles(story.world)
    if story.rule == "max_items, max_size":
        story.client.puts("b")
    story.client.says("move side q")


def converted(story: Story) -> None:
    world = story.world
    world.broker.shutdown(world.now_ms)
    disk = world.disk.crash(Crash.KEEP)
    Conversion(Spool(disk, "s"), "q", world.now_ms, lambda *_: None).run(Format.LIBKESTREL)
    world.disk = disk
    story.restarts(f'{story.config}journal_format = "libkestrel"\n')


PATHS: dict[str, Callable[[Story], object]] = {
    "abort": lambda story: story.holder.says("get q/abort"),
    "hang-up": lambda story: story.holder.hangs_up(),
    "time-out": lambda story: story.world.turn(120),
    "recovery": lambda story: story.restarts(),
    "undo": undone,
    "move": moved,
    "conversion": converted,
    "reload": reloaded,
}


def limited(story: Story) -> str:
    found = sorted(story.world.items())
    return {(b"a", b"b"): "goes back", (b"b",): "stays out"}[tuple(found)]


def delivered(story: Story) -> str:
    if story.world.items("dead") == [b"a"] and not story.world.items():
        return "dead letter"
    head = story.world.broker.queues.by_name["q"].peek(story.world.now_ms)
    assert head is not None
    return {1: "counts anew", 2: "counts on"}[head.deliveries]


def rested(story: Story) -> str:
    if story.world.items():
        return "at once"
    story.world.turn(REST_MS + 20)
    assert story.world.items() == [b"a"]
    return "rests"


def lived(story: Story) -> str:
    assert story.world.items() == [b"a"]
    story.world.turn(AFTER_MS)
    client = story.world.client()
    client.says("get q/peek")
    story.world.sync()
    return "counts anew" if "VALUE" in client.hears() else "counts on"


def paused(story: Story) -> str:
    client = story.client
    client.hears()
    client.says("get q/peek")
    settles(story.world)
    is_held = client.hears() == "END"
    client.says("resume q gets", "get q/peek")
    settles(story.world)
    assert client.hears().endswith("VALUE q/peek 0 1 a END")
    return "held" if is_held else "not held"


OBSERVED: dict[str, Callable[[Story], str]] = {
    "max_items, max_size": limited,
    "max_deliveries": delivered,
    "retry_delay": rested,
    "expiry of the item": lived,
    "max_age": lived,
    "pause": paused,
}


@pytest.mark.parametrize(("rule", "path"), CELLS)
def test_a_rule_holds_on_a_path_as_the_document_says(rule: str, path: str) -> None:
    assert Story(rule, path).runs() == CELLS[rule, path]


def test_the_table_is_whole() -> None:
    assert set(CELLS) == {(rule, path) for rule in SETTINGS for path in PATHS}


def test_a_queue_that_delays_needs_no_setting_of_its_own() -> None:
    """The recipe, as the document has it."""
    text = SETTINGS_PAGE.read_text("utf-8")
    lines = text[text.index("    [queues.later]") :].split("\n\n", 1)[0].splitlines()
    world = World("\n".join(line.strip() for line in lines) + "\n")
    client = world.client().puts("a", "later")
    world.turn(30_000)
    client.puts("b", "later")
    settles(world)
    world.turn(29_000)
    settles(world)
    assert (world.items("later"), world.items("due")) == ([b"a", b"b"], [])
    world.turn(2000)
    settles(world)
    assert (world.items("later"), world.items("due")) == ([b"b"], [b"a"])
    again = World(world.config, world.disk.crash(Crash.DROP), world.now_ms + 40_000)
    again.turn(1000)
    settles(again)
    assert (again.items("later"), again.items("due")) == ([], [b"a", b"b"])
