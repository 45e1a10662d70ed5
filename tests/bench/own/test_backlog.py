"""The backlog benchmark: what it takes for right and wrong, its charts, and a small run of it."""

from __future__ import annotations

import socket
from pathlib import Path
from xml.etree import ElementTree

import pytest

from staniel.bench.harness import chart
from staniel.bench.harness.probe import delays, percentile
from staniel.bench.harness.served import ServerFailed, served
from staniel.bench.own import backlog
from staniel.bench.own.backlog import Items, hear, size

SMALL = '[default]\nsync_journal = "1s"\nmax_memory_size = "1MB"\n'


def test_sizes_are_read_as_the_configuration_writes_them() -> None:
    assert size("128MB") == 128 << 20
    with pytest.raises(ValueError, match="128MB"):
        size("lots")


def test_every_item_is_its_own_and_known_without_being_kept() -> None:
    items = Items(b"q", 64, 1000)
    made = [items.data(number) for number in range(1000)]
    assert len(set(made)) == 1000
    assert {len(data) for data in made} == {64}
    requests, answers = items.gets(7, 1)
    assert (requests, answers) == (b"get q\r\n", b"VALUE q 0 64\r\n" + made[7] + b"\r\nEND\r\n")


def test_an_answer_with_one_wrong_byte_ends_the_run() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"VALUE q 0 1\r\nb\r\nEND\r\n")
        with pytest.raises(ServerFailed, match="instead of b'a"):
            hear(ours, 0, b"VALUE q 0 1\r\na\r\nEND\r\n")


def test_percentiles_are_of_what_was_measured() -> None:
    assert percentile([], 0.5) == 0.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 1.0) == 4.0
    assert delays([0.004, 0.001, 0.002, 0.003]).max_ms == 4.0


def test_a_small_backlog_is_filled_restarted_and_drained_with_every_item_in_its_place(tmp_path: Path) -> None:
    with served(SMALL, tmp_path) as server:
        story, restart_seconds = backlog.measure(server, 1024, 1 << 20, 6 << 20)
    names = [part.name for part in story.parts]
    small = 2 * backlog.SMALL_ROUNDS + backlog.DRAIN_SLICES
    assert names.count("fill in memory") == names.count("drain in memory") == small
    assert [name for name in names if "memory" not in name] == ["fill", "restart"] + ["drain"] * backlog.DRAIN_SLICES
    assert all(part.delays is None or part.delays.requests >= 0 for part in story.parts)
    shares, cpu_shares = backlog.drain_shares(story.parts)
    assert restart_seconds > 0 and min(shares) > 0 and len(shares) == len(cpu_shares) == backlog.DRAIN_SLICES
    assert not list(tmp_path.iterdir())


def test_charts_are_well_formed_and_say_what_they_show() -> None:
    lines = [chart.Line("a < b", [(0.0, 1.0), (2.0, 3.0)])]
    shown = chart.over_time("over time", [chart.Panel("MB", lines, ("limit", 4.0))], [chart.Span("fill", 0.0, 1.0)])
    bars = chart.ratios("against", [chart.Bar("put", 0.9, 0.8, 1.1)], "as fast")
    amounts = chart.amounts("of each", [("parse", 1234.0)], "instructions")
    for svg, words in (
        (amounts, ("of each", "parse", "1,234", "instructions")),
        (shown, ("over time", "a < b", "limit", "fill", "MB")),
        (bars, ("against", "put", "0.90")),
    ):
        texts = [element.text for element in ElementTree.fromstring(svg).iter() if element.text]
        assert set(words) <= set(texts)


def test_the_same_figures_give_the_same_chart() -> None:
    assert chart.amounts("of each", [("parse", 1.0)], "s") == chart.amounts("of each", [("parse", 1.0)], "s")


def test_names_of_short_spans_do_not_cover_each_other() -> None:
    spans = [chart.Span("restart", 0.0, 5.0), chart.Span("drain", 5.0, 60.0), chart.Span("end", 60.0, 100.0)]
    assert chart.rows_of(spans, 100.0) == [0, 1, 0]
