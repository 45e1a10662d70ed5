"""The soak: it passes with a sound server, and does not with one that breaks a promise."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from msgspec import Struct

from staniel.bench.harness import machine
from staniel.bench.soak.mix import clients, warm_up
from staniel.bench.soak.mix.clients import Shift
from staniel.bench.soak.mix.report import chart, markdown
from staniel.bench.soak.mix.run import Guest, play
from staniel.bench.soak.mix.stage import Figures
from staniel.bench.soak.mix.verdict import Life, Seen

pytestmark = [pytest.mark.slow, pytest.mark.programs("cc", "openssl", "mkfs.ext4", "unshare", "nsenter", "mount")]

SECONDS = 12.0
RATE = 80.0
PLAIN = {"plain": '"none"'}


class Broken(Struct, frozen=True):
    """A rule of the server, replaced before it starts, and how the soak calls that."""

    what: str
    code: str
    told: tuple[str, ...]


MUTANTS = [
    Broken(
        "each fiftieth item is stored nowhere, and acknowledged",
        """
from staniel.queues.queue import Queue
add, seen = Queue.add, 0
def broken(self, item, now_ms, forced=False):
    global seen
    seen += 1
    return True if not seen % 50 else add(self, item, now_ms, forced)
Queue.add = broken
""",
        ("lost ",),
    ),
    Broken(
        "a confirmed read comes back",
        """
from staniel.queues.queue import Queue
seen = 0
def broken(self, taken):
    global seen
    seen += 1
    if self.open_reads.get(taken.xid) is not taken:
        return False
    if not seen % 20:
        self.abort(taken, 0)
        return True
    return confirm(self, taken)
confirm, Queue.confirm = Queue.confirm, broken
""",
        ("came again after its close",),
    ),
    Broken(
        "each fiftieth put is there twice",
        """
from staniel.queues.queue import Queue
seen = 0
add = Queue.add
def broken(self, item, now_ms, forced=False):
    global seen
    seen += 1
    if not seen % 50:
        add(self, item, now_ms, forced)
    return add(self, item, now_ms, forced)
Queue.add = broken
""",
        ("came again after its close", "was handed to two at a time"),
    ),
]


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole one takes 10 s, and is for the figures of memory, which are not judged in runs as short as these."""
    monkeypatch.setattr(warm_up, "OPEN_AT_ONCE", 2 * warm_up.AT_ONCE)
    monkeypatch.setattr(warm_up, "ENTRIES_MAX", warm_up.AT_ONCE)


def played(
    tmp_path: Path,
    redo_logs: dict[str, str],
    guests: tuple[Guest, ...] = (),
    environment: dict[str, str] | None = None,
    seconds: float = SECONDS,
) -> list[Seen]:
    return play(tmp_path / "soak", seconds, RATE, 7, lambda text: None, redo_logs, guests, environment)


def test_a_sound_server_passes_and_the_report_says_what_was_done(
    tmp_path: Path, closing_line: Callable[[str], None]
) -> None:
    seen = played(tmp_path, {"with": '"2MB"', "without": '"none"'})
    assert [each.all_wrong for each in seen] == [[], []]
    for each in seen:
        assert each.left_out == []
        assert each.counts["kills"] + each.counts["stops in full flight"] > 0
        assert sum(len(life.rests) for life in each.lives) >= 2
        assert "<svg" in chart(each)
    text = markdown(seen, machine.facts(tmp_path, []), SECONDS, 7, "staniel")
    assert "**passed**" in text and "not judged" in text and "connections under TLS" in text
    assert list((tmp_path / "soak").rglob("*.image")) == []
    put = sum(each.counts[f"put in {name}"] for each in seen for name in ("memcache", "text", "thrift", "workq"))
    closing_line(f"soak: {put} items and jobs, {sum(each.counts['kills'] for each in seen)} kills, nothing wrong")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_server_with_a_broken_rule_fails(tmp_path: Path, mutant: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "DRAIN_SECONDS_MAX", 3.0)  # what is lost is never drained
    (tmp_path / "sitecustomize.py").write_text(mutant.code)
    [seen] = played(tmp_path, PLAIN, environment={"PYTHONPATH": str(tmp_path), "STANIEL_PURE": "1"})
    assert any(told in line for told in mutant.told for line in seen.all_wrong), seen.all_wrong
    assert "FAILED" in markdown([seen], machine.facts(tmp_path, []), SECONDS, 7, "staniel")


def test_descriptors_that_are_not_given_back_are_counted_at_each_rest(tmp_path: Path) -> None:
    kept: list[socket.socket] = []

    async def keeps_connections(shift: Shift) -> None:
        kept.extend(socket.create_connection(shift.stage.address("text", is_secure=False)) for _ in range(7))
        await trio.lowlevel.checkpoint()

    [seen] = played(tmp_path, PLAIN, (keeps_connections,), seconds=1.0)  # each life has two rests, however short
    first = seen.lives[0]
    assert len(first.rests) >= 2
    for before, after in zip(first.rests, first.rests[1:], strict=False):
        assert after.files - before.files >= 4
    for sock in kept:
        sock.close()


def life(rss_kb: list[int], files: list[int]) -> Life:
    return Life("a", 0.0, 1.0, [Figures(at, *each, 100) for at, each in enumerate(zip(rss_kb, files, strict=True))])


@pytest.mark.parametrize(
    ("rss_kb", "files", "wrong"),
    [
        ([40_000] * 12, [40] * 12, []),
        ([30_000, 39_000, 39_800, *[40_000] * 9], [20, 30, *[40] * 10], []),
        ([40_000] * 8 + [40_300] * 4, [40] * 8 + [42] * 4, []),
        ([40_000] * 8 + [30_000] * 4, [40] * 12, []),
        ([40_000 + 100 * each for each in range(12)], [40] * 12, ["memory grew by 1.49%, more than 1%"]),
        ([40_000] * 12, [40 + each for each in range(12)], ["descriptors: +6, more than 2"]),
        ([40_000] * 12, [60 - each for each in range(12)], ["descriptors: -6, more than 2"]),
    ],
)
def test_drift_is_what_grows_after_the_warm_up(rss_kb: list[int], files: list[int], wrong: list[str]) -> None:
    assert life(rss_kb, files).drift.wrong == wrong


def test_a_run_in_which_a_protocol_did_nothing_fails() -> None:
    seen = Seen("one")
    seen.counts.update({"put in memcache": 3, "put in text": 4, "put in workq": 1})
    assert seen.all_wrong == ["nothing was put in thrift"]
