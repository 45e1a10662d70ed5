"""The operator's page with a thousand queues, its reasons, and its lists of clients, operations, audit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.admin.asking import Operator
from tests.server.page.conftest import Opened
from tests.support.process import Server, running
from tests.support.wire import Wire

pytestmark = [pytest.mark.programs("chromium", "python:playwright"), pytest.mark.slow]

COUNT = 1000
CONFIG = """
[admin]
port = 0
[default]
keep_journal = false
dead_letter_queue = "dead"
max_deliveries = 3
[queues.dead]
dead_letter_queue = "none"
max_deliveries = "none"
[queues.small1]
max_items = 2
[queues.small2]
max_items = 2
"""
ROW = "#queues tr.r:not([hidden])"
HOLD_EVENTS = """
  const Real = EventSource;
  window.EventSource = class extends Real {
    set onmessage(f) { super.onmessage = (event) => { if (!window.isHeld) f(event); }; }
    get onmessage() { return super.onmessage; }
  };
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a thousand queues that share their dead letters; the last by name is paused."""
    with running(tmp_path_factory.mktemp("many"), config=CONFIG) as server:
        with Wire(server.address) as wire:
            for at in range(COUNT):
                assert wire.put(f"mail-{at:04}", b"x") == b"STORED"
            for name in ("dead", "zz-last"):
                assert wire.put(name, b"x") == b"STORED"
            assert wire.ask(b"pause zz-last") == b"OK"
        yield server


@pytest.fixture
def shown(browser: Any, many: Server) -> Iterator[Opened]:
    made = Opened(browser, many, viewport={"width": 1280, "height": 800})
    yield made
    made.context.close()
    assert made.complaints == []


@pytest.fixture
def few(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, config=CONFIG) as server:
        yield server


@pytest.fixture
def page_of_few(browser: Any, few: Server) -> Iterator[Opened]:
    made = Opened(browser, few, viewport={"width": 1440, "height": 900})
    made.context.add_init_script(HOLD_EVENTS)
    yield made
    made.context.close()
    assert made.complaints == []


def put(server: Server, name: str, count: int = 1) -> None:
    with Wire(server.address) as wire:
        for _ in range(count):
            assert wire.put(name, b"x") == b"STORED"


def test_all_queues_are_listed_in_their_order_under_a_pointer_that_rests_on_the_table(shown: Opened) -> None:
    page = shown.page
    page.mouse.move(600, 500)
    shown.go()
    page.wait_for_selector(f"#order:has-text('{COUNT + 2:,} of {COUNT + 2:,}')")
    page.mouse.move(600, 501)
    page.wait_for_selector(f"{ROW} >> nth=0 >> text=zz-last")
    page.wait_for_selector("#order:has-text('order held')")


def test_what_comes_while_the_order_is_held_stands_where_it_belongs(many: Server, shown: Opened) -> None:
    page = shown.go()
    page.wait_for_selector(f"#order:has-text('{COUNT + 2:,} of')")
    page.hover(f"{ROW} >> nth=5")
    page.wait_for_selector("#order:has-text('order held')")
    put(many, "mail-0000-new")
    page.wait_for_selector(f"{ROW}:has-text('mail-0000-new')")
    names = shown.names()
    assert names.index("mail-0000-new") == names.index("mail-0000") + 1
    with Wire(many.address) as wire:
        wire.ask(b"delete mail-0000-new")
    page.wait_for_selector(f"{ROW}:has-text('mail-0000-new')", state="hidden")


@pytest.mark.parametrize("width", [390, 900, 1280, 1720])
def test_dead_letters_of_a_thousand_queues_fit_into_the_window(browser: Any, many: Server, width: int) -> None:
    opened = Opened(browser, many, viewport={"width": width, "height": 800})
    page = opened.go("#/queues/dead")
    page.wait_for_selector("#origins:has-text('and 99')")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("#redrive")
    page.wait_for_selector("dialog:has-text('Back to, one of 1,00')")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    opened.context.close()


def test_equal_warnings_are_one_line_with_a_count_and_the_command_that_mends_them(
    few: Server, page_of_few: Opened
) -> None:
    put(few, "small1", 2)
    put(few, "small2", 2)
    put(few, "dead", 3)
    page = page_of_few.go()
    page.wait_for_selector(".health li:has-text('dead letters')")
    lines = page.eval_on_selector_all(".health li", "all => all.map(each => each.innerText.replace(/\\s+/g, ' '))")
    assert len(lines) == 2
    assert lines[0].startswith("2 queues small1, small2 are full: their puts are refused Show them")
    assert lines[0].endswith("staniel reload")
    assert lines[1].startswith("queue dead holds 3 dead letters") and lines[1].endswith("staniel redrive dead")
    put(few, "other")
    page.click("[data-reason=queue_full]")
    page.wait_for_selector("#order:has-text('2 of 4')")
    assert page_of_few.names() == ["small1", "small2"]
    page.goto(f"{page_of_few.url}#/queues/small1")
    page.wait_for_selector(".health:has-text('small1 holds 2 items, is full and refuses puts')")


def test_the_filter_the_heading_and_the_order_count_the_same_queues(few: Server, page_of_few: Opened) -> None:
    put(few, "busy", 9)
    page = page_of_few.go()
    page.wait_for_selector(f"{ROW}:has-text('busy')")
    put(few, "dead", 3)
    page.wait_for_selector(".health b:text-is('Ready. 1 queue needs you')")
    page.wait_for_selector("[data-filter=attention] .n:text-is('1')")
    with Wire(few.address) as wire:
        assert wire.ask(b"pause busy") == b"OK"
        page.wait_for_selector(".health b:text-is('Ready. 2 queues need you')")
        page.wait_for_selector("[data-filter=attention] .n:text-is('2')")
        page.click("[data-filter=attention]")
        assert page_of_few.names() == ["busy", "dead"]  # what is paused stands before dead letters, which can wait
        assert wire.ask(b"status writeavoid") == b"END"
        page.wait_for_selector(".health b:text-is('Ready. 2 queues and 1 other thing need you')")
        assert wire.ask(b"resume busy") == b"OK"
        assert wire.ask(b"flush dead") == b"END"
    page.wait_for_selector(".health b:text-is('Ready. 1 thing beside the queues needs you')")
    page.wait_for_selector("[data-filter=attention] .n:text-is('0')")


def test_growing_is_what_the_trend_says_and_ends_when_nothing_is_put_any_more(few: Server, page_of_few: Opened) -> None:
    page = page_of_few.go()
    put(few, "grows")
    page.wait_for_selector(f"{ROW}:has-text('grows')")
    put(few, "grows", 200)
    # Both at once: it grows for seconds only.
    page.wait_for_selector(f"body:has([data-filter=grows] .n:text-is('1')):has({ROW} .c-dr:text-matches('^\\\\+'))")
    page.wait_for_selector(f"body:has([data-filter=grows] .n:text-is('0')):has({ROW} .c-dr:text-is('no reader'))")
    page.wait_for_selector(f"{ROW} >> nth=0 >> .c-in:text-is('0')")


def test_a_queue_that_the_server_says_grows_is_growing_whatever_the_last_seconds_were(
    few: Server, page_of_few: Opened
) -> None:
    put(few, "orders")
    page = page_of_few.go()
    page.wait_for_selector(f"{ROW}:has-text('orders')")
    shown = page.evaluate("""async () => {
        const { store, notePause } = await import('/page/store.js');
        const { trendText } = await import('/page/overview.js');
        const texts = [];
        for (const [inSmooth, reasons] of [[2, []], [2, ['queue_grows']], [9, ['queue_grows']]]) {
            Object.assign(store.rows.get('orders'), { inSmooth, outSmooth: 7, reasons });
            notePause('orders', { gets_paused: false, puts_paused: false });
            texts.push(trendText(store.rows.get('orders')).replace(/in .*/, 'in'));
        }
        return texts;
    }""")
    assert shown == ["empty in", "grows", "+2.0/s"]


def test_a_pause_shows_in_its_row_with_the_answer_and_not_with_the_next_event(few: Server, page_of_few: Opened) -> None:
    put(few, "mails")
    page = page_of_few.go()
    page.wait_for_selector(f"{ROW}:has-text('mails')")
    page.evaluate("window.isHeld = true")
    page.focus("#queues")
    page.keyboard.press("p")
    page.wait_for_selector(f"{ROW} .tag:has-text('gets paused')")
    page.keyboard.press("p")
    page.wait_for_selector(f"{ROW} .tag:has-text('gets paused')", state="hidden")
    page.evaluate("window.isHeld = false")


@pytest.mark.parametrize(
    ("words", "label"),
    [
        ("pause puts", "mails: Pause puts"),
        ("delete", "mails: Delete…"),
        ("give back", "mails: Give back all…"),
        ("waiters", "mails: Waiters"),
        ("abort", "mails: Give back all…"),
        ("flush mails", "mails: Purge…"),
        ("redrive", "dead: Redrive…"),
        ("retry", "dead: Redrive…"),
        ("reload", "Reload the configuration"),
        ("status read", "Status readonly…"),
        ("stop", "Stop the server…"),
        ("shutdown", "Stop the server…"),
        ("cancel", "Operations"),
        ("undo", "Undo the last operation"),
        ("clients", "Clients"),
        ("operations", "Operations"),
        ("audit", "Audit"),
    ],
)
def test_what_operators_can_do_is_found_by_its_name(browser: Any, of_actions: Opened, words: str, label: str) -> None:
    page = of_actions.page
    page.keyboard.press("Control+k")
    page.keyboard.type(words)
    page.wait_for_selector(f"#found li:has-text('{label}')")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")


@pytest.fixture(scope="module")
def of_actions(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with running(tmp_path_factory.mktemp("actions"), config=CONFIG) as server, Wire(server.address) as wire:
        assert wire.put("mails", b"x") == wire.put("mails", b"x") == wire.put("dead", b"x") == b"STORED"
        assert wire.get("mails/open") == b"x"
        opened = Opened(browser, server)
        opened.go().wait_for_selector(f"{ROW}:has-text('mails')")
        yield opened
        opened.context.close()


def test_a_queue_is_deleted_and_comes_back_by_undo(few: Server, page_of_few: Opened) -> None:
    put(few, "mails", 3)
    page = page_of_few.go("#/queues/mails")
    page.wait_for_selector(".strip:has-text('3')")
    page.keyboard.press("Control+k")
    page.keyboard.type("mails delete")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog:has-text('Delete mails, with 3 items?')")
    page.click("#confirm")
    page.wait_for_selector("text=There is no such queue")
    page.click(".toast button")
    page.wait_for_selector("h1:has-text('mails')")
    page.wait_for_selector(".strip:has-text('3')")


def test_clients_are_shown_with_what_each_holds_since_when_and_from_where(few: Server, page_of_few: Opened) -> None:
    put(few, "mails", 2)
    with Wire(few.address) as wire, Wire(few.address) as waiting:
        assert wire.get("mails/open") == b"x"
        waiting.say(b"get nothing-yet/t=600000\r\n")
        page = page_of_few.go("#/clients")
        row = "#clients tr.r:has-text('of mails')"
        page.wait_for_selector(f"{row} >> text=/1 of mails for/")
        assert page.inner_text(f"{row} td >> nth=0").startswith("127.0.0.1:")
        page.wait_for_selector("#clients tr.r:has-text('nothing-yet')")
        page.fill("#client-filter", "mails")
        page.wait_for_selector("text=/^1 of \\d+ clients match/")
        page.click(f"{row} [data-client]")
        page.wait_for_selector("dialog:has-text('may be done twice')")
        page.click("#confirm")
        page.wait_for_selector(row, state="detached")
        page.wait_for_selector(".toast:has-text('Gave back 1 open read')")


def test_operations_are_shown_with_their_progress_and_taken_back(few: Server, page_of_few: Opened) -> None:
    put(few, "mails", 5)
    Operator(few.second_port).post("/api/queues/mails/move", {"to": "other"})
    page = page_of_few.go("#/operations")
    row = "#operations tr.r:has-text('move')"
    page.wait_for_selector(f"{row}:has-text('5 of 5'):has-text('mails → other')")
    assert page.get_attribute(f"{row} [role=progressbar]", "aria-valuenow") == "100"
    page.click(f"{row} [data-undo]")
    page.wait_for_selector(".toast:has-text('Returned 5 items to mails')")


def test_a_long_operation_shows_how_far_it_is_and_is_cancelled(page_of_few: Opened) -> None:
    page = page_of_few.page
    running = {
        "id": 7, "operation": "move", "queue": "a", "target": "b", "state": "running", "done": 250, "total": 1000,
        "rate_per_second": 125, "remaining_ms": 6000, "started_at_ms": 1, "ended_at_ms": 0, "by": "carol", "why": "",
        "undo": 0, "undo_until_at_ms": 0, "open": 0, "gone": 0,
    }  # fmt: skip
    asked: list[str] = []
    page.route("**/api/operations", lambda route: route.fulfill(json=[running]))
    page.route(
        "**/api/operations/7/cancel", lambda route: (asked.append(route.request.method), route.fulfill(json=running))
    )
    page_of_few.go("#/operations")
    row = "#operations tr.r"
    page.wait_for_selector(f"{row}:has-text('250 of 1,000'):has-text('125/s'):has-text('6 s'):has-text('carol')")
    assert page.get_attribute(f"{row} [role=progressbar]", "aria-valuenow") == "25"
    page.wait_for_selector(".strip:has-text('750')")
    page.click(f"{row} [data-cancel]")
    page.wait_for_selector(".toast:has-text('Operation 7 ends between two items')")
    assert asked == ["POST"]


def test_the_audit_log_is_shown_and_filtered(few: Server, page_of_few: Opened) -> None:
    put(few, "mails", 2)
    operator = Operator(few.second_port)
    operator.post("/api/queues/mails/pause", {})
    operator.post("/api/queues/mails/purge", {})
    page = page_of_few.go("#/audit")
    page.wait_for_selector("#audit tr.r:has-text('purge'):has-text('mails'):has-text('127.0.0.1')")
    page.fill("#audit-filter", "pause")
    page.wait_for_selector("#audit tr.r:has-text('purge')", state="detached")
    page.wait_for_selector("#audit tr.r:has-text('pause')")


@pytest.mark.parametrize("path", ["#/clients", "#/operations", "#/audit"])
def test_a_phone_shows_each_list_within_its_width(browser: Any, few: Server, path: str) -> None:
    put(few, "mails", 2)
    Operator(few.second_port).post("/api/queues/mails/move", {"to": "a-queue-with-quite-a-long-name-for-a-phone"})
    opened = Opened(browser, few, viewport={"width": 390, "height": 844})
    page = opened.go(path)
    page.wait_for_selector("table tr.r")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    wide = page.eval_on_selector_all(
        "table td", "all => all.filter(each => each.getBoundingClientRect().right > 391).length"
    )
    assert wide == 0
    opened.context.close()


def test_a_chart_of_a_page_that_is_cut_off_goes_on_with_a_gap(few: Server, page_of_few: Opened) -> None:
    put(few, "mails", 2)
    page = page_of_few.go()
    page.wait_for_selector(f"{ROW}:has-text('mails')")
    few.kill()
    page.wait_for_selector("#gone:has-text('What you see is')")
    page.evaluate("{ const real = Date.now.bind(Date); Date.now = () => real() + 300000; }")
    page.wait_for_selector("#gone:has-text('What you see is 5 m')")
    edges = page.evaluate("['gone', 'main'].map((id) => document.getElementById(id).getBoundingClientRect().left)")
    assert edges[0] - edges[1] in (0, 24), "it stands at the edge of what is below it"
    drawn = page.evaluate("""async () => {
        const { Chart, History } = await import('/page/charts.js');
        const chart = new Chart({ title: 't', history: new History(), format: String, series: [] });
        chart.width = 400; chart.height = 100; chart.left = 0;
        const drawn = [];
        const g = new Proxy({}, { get: (_, name) => (...all) => drawn.push([name, all]), set: () => true });
        chart.lost(g);
        return drawn.filter(([name]) => name === 'rect')[0][1];
    }""")
    assert 150 < drawn[0] < 210 and drawn[0] + drawn[2] == 400, "half of the ten minutes, at the right"
    page_of_few.complaints.clear()  # the browser tells of each refused connection
