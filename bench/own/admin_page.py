"""The operator's page in chromium: its first paint, and its frames while queues change, scroll, sort, filter.

A blank page measured the same way shows the machine's share.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

PAINT_MS_MAX = 300.0
LONG_TASKS_MAX = 0.0
STANDING_SECONDS = 20.0
HANDLED_SECONDS = 10.0
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
# Before anything of the page runs: tasks longer than 50 ms, the time between two frames, and the first rows.
WATCH = """
window.watched = {long: [], gaps: [], last: 0, rowsAt: 0};
new PerformanceObserver((list) => watched.long.push(...list.getEntries().map((each) => each.duration)))
  .observe({type: 'longtask', buffered: true});
const frame = (at) => {
  if (watched.last) watched.gaps.push(at - watched.last);
  watched.last = at;
  if (!watched.rowsAt && document.querySelector('#queues tr.r:not([hidden])')) watched.rowsAt = at;
  requestAnimationFrame(frame);
};
requestAnimationFrame(frame);
"""
FORGET = "watched.long.length = watched.gaps.length = watched.last = 0"
PAINTS = "Object.fromEntries(performance.getEntriesByType('paint').map((each) => [each.name, each.startTime]))"

Figure = tuple[str, float, str, float | None]


def opened(browser: Any, url: str) -> Any:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.add_init_script(WATCH)
    page.goto(url)
    return page


def paints(browser: Any, url: str, rounds: int) -> Iterator[Figure]:
    first, rows_at = [], []
    for _ in range(3 * rounds):
        page = opened(browser, url)
        page.wait_for_selector("#queues tr.r:not([hidden])")
        page.wait_for_timeout(100)  # a frame has come since
        first.append(page.evaluate(PAINTS)["first-contentful-paint"])
        rows_at.append(page.evaluate("watched.rowsAt"))
        page.context.close()
    yield "the page: first paint, best", min(first), "ms", PAINT_MS_MAX
    yield "the page: first paint, median", median(first), "ms", None
    yield "the page: its first queues, best", min(rows_at), "ms", None
    yield "the page: its first queues, median", median(rows_at), "ms", None


def handle(page: Any) -> None:
    """Use the page once: scroll, sort and filter it."""
    for _ in range(20):
        page.mouse.wheel(0, 600)
        page.wait_for_timeout(50)
    for key in ("name", "items", "in"):
        page.click(f"[data-sort={key}]")
        page.wait_for_timeout(200)
    for text in ("queue", "changing-1", "items>0", ""):
        page.fill("#filter", text)
        page.wait_for_timeout(200)
    page.evaluate("scrollTo(0, 0)")


def watched(page: Any, name: str, work: Callable[[], None], goal: float | None) -> Iterator[Figure]:
    """Yield the figures of the page while `work` runs."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = metrics(session)
    page.evaluate(FORGET)
    work()
    long, gaps = page.evaluate("[watched.long, watched.gaps]")
    after = metrics(session)
    span = (sum(gaps) or 1.0) / 1_000
    yield f"{name}: tasks of more than 50 ms", float(len(long)), "", goal
    yield f"{name}: the longest of them", max(long, default=0.0), "ms", None
    yield f"{name}: frames that came after more than 50 ms", float(sum(gap > 50 for gap in gaps)), "", None
    yield f"{name}: the longest time between two frames", max(gaps, default=0.0), "ms", None
    yield f"{name}: the page's thread, of a core", (after - before) / span * 100, "%", None


def metrics(session: Any) -> float:
    """Return the seconds of work of the page's thread."""
    found = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    return float(found["TaskDuration"])


def measured(port: int, queues: int, rounds: int) -> Iterator[Figure]:
    from playwright.sync_api import sync_playwright

    url = f"http://127.0.0.1:{port}/"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        yield from paints(browser, url, rounds)
        blank = opened(browser, "about:blank")
        blank.evaluate(WATCH)
        yield from watched(blank, "a blank page", lambda: blank.wait_for_timeout(STANDING_SECONDS * 1_000), None)
        blank.context.close()
        page = opened(browser, url)
        page.wait_for_selector(f"text={queues:,} of {queues:,}")
        page.wait_for_timeout(2_000)
        stand = lambda: page.wait_for_timeout(STANDING_SECONDS * 1_000)  # noqa: E731
        yield from watched(page, "the page, 400 queues changing", stand, LONG_TASKS_MAX)
        yield from watched(page, "scrolled, sorted, filtered", lambda: handled(page), LONG_TASKS_MAX)
        browser.close()


def handled(page: Any) -> None:
    began = page.evaluate("performance.now()")
    while page.evaluate("performance.now()") - began < HANDLED_SECONDS * 1_000:
        handle(page)
