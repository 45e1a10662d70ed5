"""The report's page in a browser: what it draws and chooses, no requests, and no name that is read as HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec import structs

from staniel.pipeline.report.figures import ReportFigures, SeriesLine, lines_of
from staniel.pipeline.report.page import page_of, write, write_tables
from tests.pipeline.fleets import FIRST, STEPS, fleet
from tests.support.browser import chromium, complaints_of

WAIT_MS = 60_000
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'`${alert(1)}",
    "&lt;b&gt;&amp;",
    "<b>bold</b><a href='javascript:alert(1)'>x</a>",
    "größe 數 \U0001f600",
    "right\u202eto\u2028left",
    "$x^2$ %{y}",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


class Shown:
    """A report in a browser. `complaints` has what the browser complains of, and whatever asks the network."""

    def __init__(self, browser: Any, page: Path, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.complaints = complaints_of(self.page)
        self.page.on("request", self._asked)
        self.page.goto(page.as_uri())
        self.page.wait_for_selector("body[data-drawn]")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.complaints.append(f"asked for {request.url}")

    def names(self) -> list[str]:
        found: list[str] = self.page.eval_on_selector_all("#rows tbody tr td:first-child", TEXTS)
        return found

    def keys(self) -> list[str]:
        found: list[str] = self.page.eval_on_selector_all("#keys li", TEXTS)
        return found

    def lines(self, plot: str) -> list[dict[str, Any]]:
        """The lines of a plot as plotly has them."""
        found: list[dict[str, Any]] = self.page.evaluate(f"document.getElementById('plot-{plot}').data")
        return found

    def is_shown(self, plot: str) -> bool:
        return bool(self.page.locator(f"#plot-{plot}").is_visible())


TEXTS = "all => all.map(each => each.textContent)"
Show = Callable[..., Shown]


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Show]:
    opened: list[Shown] = []

    def show(report: ReportFigures, **options: Any) -> Shown:
        opened.append(Shown(browser, write(report, tmp_path / "report"), **options))
        return opened[-1]

    yield show
    for shown in opened:
        shown.context.close()
        assert shown.complaints == []


def test_a_fleet_is_searched_sorted_and_chosen_from(show: Show) -> None:
    shown = show(fleet(["web1", "web2", "web3"], ["mail", "jobs", "news"]))
    assert len(shown.names()) == 9 and len(shown.keys()) == 8 and shown.keys() == shown.names()[:8]
    shown.page.fill("#search", "web2 m")
    assert shown.names() == shown.keys() == ["web2/mail"]
    shown.page.fill("#search", "")
    shown.page.select_option("#sort", "redelivered")
    shown.page.select_option("#top", "3")
    assert shown.keys() == shown.names()[:3]
    for name in ("web1/jobs", "web3/news"):
        shown.page.locator("#rows tbody tr", has_text=name).locator("input").check()
    assert sorted(shown.keys()) == ["web1/jobs", "web3/news"]
    assert [line["name"] for line in shown.lines("depth")] == shown.keys()
    shown.page.click("#clear")
    assert len(shown.keys()) == 3
    shown.page.locator("#rows th button").first.click()
    assert shown.names() == sorted(shown.names())


def test_hosts_names_and_all_together_have_the_sums(show: Show) -> None:
    report = fleet(["web1", "web2"], ["mail", "jobs"])
    shown = show(report)
    for kind, names in (("hosts", {"web1", "web2"}), ("names", {"mail", "jobs"}), ("all", {"all queues together"})):
        shown.page.select_option("#kind", kind)
        assert set(shown.names()) == names
        drawn = sum(sum(y or 0 for y in line["y"]) for line in shown.lines("arrivals"))
        assert drawn * 432 == pytest.approx(sum(row.added for row in report.rows), rel=1e-6)


def test_what_is_not_known_is_a_gap(show: Show) -> None:
    """A host whose copy of the journals ends earlier, and lines that begin when the first item came."""
    report = fleet(["web1", "web2"], ["mail"], steps={"web2": 150})
    shown = show(report)
    for plot in ("arrivals", "removals", "depth"):
        for line in shown.lines(plot):
            series = report.series["queues"][line["name"]]
            known = [y is not None for y in line["y"]]
            end = series.at + len(series.added)
            assert known == [series.at <= step < end for step in range(STEPS)] and not line["connectgaps"]
    assert report.series["queues"]["web2/mail"].at + len(report.series["queues"]["web2/mail"].added) <= 150


def test_figures_that_a_format_does_not_tell_are_not_drawn(show: Show) -> None:
    report = fleet([""], ["mail", "jobs"])
    rows = [structs.replace(row, dead=None, wait_99_s=None, wait_median_s=None, redelivered=0) for row in report.rows]
    series = {
        kind: {name: SeriesLine(line.at, line.added, None, None) for name, line in lines.items()}
        for kind, lines in report.series.items()
    }
    shown = show(structs.replace(report, rows=rows, series=series, waits={}))
    assert shown.is_shown("arrivals") and shown.is_shown("ages")
    for plot in ("removals", "depth", "waits", "retries", "all-waits"):
        assert not shown.is_shown(plot), plot
    assert "–" in shown.page.locator("#rows tbody tr").first.inner_text()
    assert shown.page.locator("#kind option").count() == 2, "one spool has no hosts"


def test_a_report_without_items_says_so(show: Show) -> None:
    report = structs.replace(
        fleet([""], ["q"]), begin=None, end=None, rows=[], counts={}, series={"all": {}}, steps=0, sizes={}, ages={}
    )
    shown = show(report)
    assert shown.page.inner_text("#times") == "The journals hold no item." and shown.names() == []


@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Adelaide"])
def test_times_are_those_of_the_reader_s_zone(show: Show, zone: str) -> None:
    report = fleet([""], ["mail"])
    shown = show(report, timezone_id=zone, locale="en-GB")
    said = shown.page.inner_text("#times")
    assert zone in said
    offset_ms = {"America/New_York": -4, "Australia/Adelaide": 10.5}[zone] * 3_600_000
    assert shown.lines("depth")[0]["x"][0] == FIRST * 432_000 + offset_ms
    shown.page.check("#utc")
    assert "(UTC)" in shown.page.inner_text("#times")
    assert shown.lines("depth")[0]["x"][0] == FIRST * 432_000


def test_names_that_are_html_are_shown_as_they_are(show: Show) -> None:
    report = fleet([""], HOSTILE)
    report = structs.replace(report, path="</title><script>alert(2)</script>&amp;", unknown=(HOSTILE[0],))
    page = page_of(report)
    for text in (HOSTILE[0], HOSTILE[1], "alert(1)", "<script>alert(2)"):
        assert text not in page, "all of it is in compressed text"
    shown = show(report)
    assert sorted(shown.names()) == sorted(HOSTILE) and set(shown.keys()) == set(HOSTILE)
    assert shown.page.inner_text("h1") == "Queues of </title><script>alert(2)</script>&amp;"
    assert shown.page.inner_text("main ul.dim li") == HOSTILE[0]
    assert shown.page.locator("main img, main b.x, main script, #plots a[href]").count() == 0
    labels: list[str] = shown.page.eval_on_selector_all("#plot-ages .xtick text", TEXTS)
    assert "&lt;b&gt;&amp;" in labels, "not read as entities of HTML"
    shown.page.locator("#plot-arrivals .nsewdrag").hover()
    shown.page.wait_for_selector("#plot-arrivals .hoverlayer text")
    assert "alert(1)" in shown.page.inner_html("#plot-arrivals .hoverlayer")
    assert shown.page.locator("#plot-arrivals .hoverlayer :is(img, script, a)").count() == 0


def test_a_zoom_into_one_picture_is_one_into_all_times(show: Show) -> None:
    shown = show(fleet([""], ["mail", "jobs"]))
    box = shown.page.locator("#plot-arrivals .nsewdrag").bounding_box()
    middle = box["y"] + box["height"] / 2
    shown.page.mouse.move(box["x"] + box["width"] * 0.2, middle)
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=5)
    shown.page.mouse.up()
    same = "['arrivals', 'removals', 'depth'].map(n => String(document.getElementById('plot-' + n).layout.xaxis.range))"
    shown.page.wait_for_function(
        f"new Set({same}).size === 1 && !document.getElementById('plot-depth').layout.xaxis.autorange"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_has_all_of_it_in_both_themes(show: Show, scheme: str) -> None:
    names = [f"a-host-with-a-rather-long-name-{number}.example.com" for number in range(4)]
    shown = show(fleet(names, ["mail", "jobs"]), viewport={"width": 400, "height": 800}, color_scheme=scheme)
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 400
    colors = shown.page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, document.getElementById('plot-depth').layout.font.color]"
    )
    dark = ["rgb(21, 24, 28)", "#e4e7ea"]
    assert colors == (dark if scheme == "dark" else ["rgb(255, 255, 255)", "#1c1e21"])
    shown.page.select_option("#theme", "light" if scheme == "dark" else "dark")
    assert shown.page.evaluate("document.getElementById('plot-depth').layout.font.color") != colors[1]
    for plot in ("arrivals", "depth", "retries"):
        assert shown.page.locator(f"#plot-{plot}").bounding_box()["width"] <= 400


@pytest.mark.slow
def test_200_hosts_of_50_queues_are_one_page_of_less_than_6_mb(show: Show, tmp_path: Path) -> None:
    report = fleet(
        [f"web{number:03d}.example.com" for number in range(200)], [f"q{number:02d}" for number in range(50)]
    )
    shown = show(report)
    assert (tmp_path / "report" / "report.html").stat().st_size < 6_000_000
    assert shown.page.inner_text("#matches") == "10,000 of 10,000" and len(shown.names()) == 50
    shown.page.fill("#search", "web117 q3")
    assert shown.page.inner_text("#matches") == "10 of 10,000"
    shown.page.select_option("#kind", "hosts")
    shown.page.fill("#search", "web117")
    assert len(shown.lines("depth")) == 1, "every host has its lines"


def test_the_tables_have_every_queue(tmp_path: Path) -> None:
    report = fleet(["web1", "web2/spool"], [*HOSTILE[4:5], "mail"])
    report = structs.replace(report, series={"queues": {}, "all": {}})
    queues, series, histograms = (pq.read_table(path) for path in write_tables(report, tmp_path / "tables"))
    assert {(row["host"], row["queue"]) for row in queues.to_pylist()} == {
        (host, queue) for host in ("web1", "web2/spool") for queue in ("mail", HOSTILE[4].rpartition("/")[2])
    } or queues.num_rows == 4
    assert sum(queues["added"].to_pylist()) == sum(row.added for row in report.rows)
    arrived = sum(rate * 432 for rate in series["arrivals_per_s"].to_pylist())
    assert arrived == pytest.approx(sum(row.added for row in report.rows))
    assert set(histograms["of"].to_pylist()) == {"size_bytes", "age_s", "wait_ms", "deliveries"}


def test_a_sum_of_lines_begins_with_the_first_and_ends_with_the_last() -> None:
    counts = {"a/q": [(10, 5, 1), (12, 1, 1)], "b/q": [(11, 7, 2), (14, 1, 9)]}
    made = lines_of(counts, ["a/q"], 10, True)
    assert made["queues"] == {"a/q": SeriesLine(0, [5, 0, 1], [1, 0, 1], [4, 4, 4])}
    assert made["names"] == {"q": SeriesLine(0, [5, 7, 1, 0, 1], [1, 2, 1, 0, 9], [4, 9, 9, 5, 0])}
    assert made["all"][""] == made["names"]["q"] and set(made["hosts"]) == {"a", "b"}
    counts["b/q"] = [(11, 7, None)]
    assert lines_of(counts, [], 10, True)["all"][""] == SeriesLine(0, [5, 7, 1], None, None)
