"""Figures of a queue: the same under their names in every interface, and no two of them swapped."""

from __future__ import annotations

import re
from pathlib import Path

from staniel.broker.figures import BY_NAME, FIGURES, QueueLook, QueueRow, QueueSnapshot, snapshot
from staniel.queues.counters import CHANGES_COUNTED, QueueCounters
from staniel.server.cli.top.model import COLUMNS, TopEvent, TopModel
from tests.broker import figures_state

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
OTHER_ROWS = {  # one figure each in `stats` and in /metrics, which the docs tell together
    "mem_items": "memory_bytes",
    "total_items": "put_items_total",
    "age": "age_seconds",
    "logsize": "journal_bytes",
    "items": "items",
    "held_ms": "held_seconds",
}
ROW = ("q", 11, 2 << 10, 5_000, 3.5, 4.5, 5, 6, 7 << 10, 8 << 10, "gets", "os", 9, "d", False, 10 << 10)


def test_every_figure_of_a_fixed_state_is_told_under_its_name() -> None:
    expected = Path(__file__).with_name("figures.txt").read_text("utf-8")
    assert figures_state.text() == expected, "if it ought to be so: python -m tests.broker.figures_state > figures.txt"


def test_the_figures_of_one_state_differ_so_that_none_can_be_swapped() -> None:
    world = figures_state.made()
    queue = figures_state.queue(world, "busy")
    look = QueueLook(queue, world.now_ms, world.broker.spool)
    counters = [figure.read(look) for figure in FIGURES if figure.is_counter]
    assert len({*counters}) == len(counters) > 7, "COUNTERS of figures_state.py has a value for each counter"
    view = snapshot(look)
    for name in QueueSnapshot.__struct_fields__:
        assert getattr(view, name) == BY_NAME[name].read(look), name


def test_a_counter_of_changes_is_a_counter_and_has_its_name_in_the_statistics() -> None:
    assert all(getattr(QueueCounters(), name) == 0 for name in CHANGES_COUNTED)
    assert CHANGES_COUNTED.keys() <= {each.stat for each in FIGURES}


def test_names_are_there_once() -> None:
    for names in ([each.name for each in FIGURES], [each.stat for each in FIGURES], [each.metric for each in FIGURES]):
        shown = [name for name in names if name]
        assert len({*shown}) == len(shown)
    assert all(each.help for each in FIGURES if each.metric)


def test_the_docs_tell_the_statistic_and_the_metric_of_a_figure_in_one_entry() -> None:
    section = DOCS.read_text("utf-8").partition("\n## Of each queue\n")[2].partition("\n\n## ")[0]
    heads = [re.findall(r"`(\w+)`", head) for head in re.findall(r"^- ([^:]+):", section, re.MULTILINE)]
    wanted = {each.stat: each.metric for each in FIGURES if each.stat and each.metric} | OTHER_ROWS
    for stat, metric in wanted.items():
        assert any(stat in head and f"staniel_queue_{metric}" in head for head in heads), stat


def test_top_takes_the_fields_of_rows_by_name_in_any_order() -> None:
    names = QueueRow.__struct_fields__[: len(ROW)]
    plain, turned = TopModel(), TopModel()
    plain.learn(TopEvent(is_first=True, fields=[*names, "reasons"], rows=[[*ROW, []]]), 0)
    turned.learn(TopEvent(is_first=True, fields=["new", "reasons", *names[::-1]], rows=[[0, [], *ROW[::-1]]]), 0)
    assert plain.rows == turned.rows
    shown = {column.title: column.text(plain.rows["q"], 9_000) for column in COLUMNS}
    assert shown == {
        "NAME": "q",
        "ITEMS": "11",
        "BYTES": "2.0 KB",
        "AGE": "4 s",
        "IN/s": "3.5",
        "OUT/s": "4.5",
        "OPEN": "5",
        "WAIT": "6",
        "MEMORY": "10 KB",
        "JOURNAL": "8.0 KB",
        "UNSYNCED": "7.0 KB",
        "SYNC": "os",
        "PAUSED": "gets",
    }


def test_a_page_is_told_the_names_of_the_fields_of_rows_with_its_first_event() -> None:
    first, *others = figures_state.events(figures_state.made())
    assert first["fields"] == list(QueueRow.__struct_fields__)
    assert others and all("fields" not in event for event in others)
