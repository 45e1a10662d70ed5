"""The operator's page that is open for long: hidden and shown, over upgrades, set clocks, slow and silent servers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.page.conftest import Opened
from tests.support.process import Server
from tests.support.wire import Wire

pytestmark = [pytest.mark.programs("chromium", "python:playwright"), pytest.mark.slow]

SET_HIDDEN = """(isHidden) => {
  Object.defineProperty(document, 'hidden', { get: () => isHidden, configurable: true });
  document.dispatchEvent(new Event('visibilitychange'));
}"""
STORE = "import('/page/store.js')"
TEN_MINUTES_MS = 600_000


def put(server: Server, name: bytes, *payloads: bytes) -> None:
    with Wire(server.address) as wire:
        for payload in payloads:
            assert wire.ask(b"set %b 0 0 %d\r\n%b" % (name, len(payload), payload)) == b"STORED"


def set_clock_forward(page: Any, ms: int) -> None:
    page.evaluate("(ms) => { const real = Date.now.bind(Date); Date.now = () => real() + ms; }", ms)


def test_what_is_shown_is_dated_by_the_last_event_and_not_by_the_end_of_the_stream(
    server: Server, opened: Opened
) -> None:
    page = opened.go()
    page.evaluate(SET_HIDDEN, True)
    server.kill()
    before_ms = page.evaluate("Date.now()")
    set_clock_forward(page, TEN_MINUTES_MS)
    page.evaluate(SET_HIDDEN, False)
    page.wait_for_selector("#gone:has-text('Disconnected')")
    assert page.evaluate(f"{STORE}.then(({{ store }}) => store.lostAt)") <= before_ms + 1000
    opened.complaints.clear()  # the browser tells of each refused connection


def test_a_clock_that_is_set_does_not_age_the_items(server: Server, opened: Opened) -> None:
    page = opened.go()
    set_clock_forward(page, TEN_MINUTES_MS)
    put(server, b"q", b"1")  # so there is an event
    page.wait_for_selector("#queues .c-it:has-text('1')")
    ahead_ms = page.evaluate(f"{STORE}.then(({{ now }}) => now() - Date.now())")
    assert abs(ahead_ms + TEN_MINUTES_MS) < 60_000


def test_steps_that_nobody_looked_at_are_a_gap_in_the_chart(opened: Opened) -> None:
    page = opened.go()
    found = page.evaluate("""async () => {
        const { History } = await import('/page/charts.js');
        const { now } = await import('/page/store.js');
        const history = new History();
        const column = () => [1, 2];
        history.take({ end_at_ms: now() - 17000, step_ms: 5000, is_kept: true, items: column(), put_rate: column(),
            get_rate: column(), age_ms: column(), open_reads: column(), unsynced_bytes: column() }, '10m');
        history.follow({ items: 9 });
        const few = [...history.columns.items];
        history.endMs -= 7 * 86400000;
        history.follow({ items: 9 });
        return [few, history.columns.items.length, history.columns.items.at(-1)];
    }""")
    assert found == [[1, 2, None, None, 9], 120, 9]


def test_a_page_of_another_program_than_the_server_says_so(opened: Opened) -> None:
    page = opened.go()
    assert page.is_hidden("#other")
    event = '{"at_ms":1,"is_first":true,"server":{"version":"9.0","build":"pure Python","spool":"s","started_at_ms":1}}'
    page.route(
        "**/api/events", lambda route: route.fulfill(content_type="text/event-stream", body=f"data: {event}\n\n")
    )
    page.evaluate(SET_HIDDEN, True)
    page.evaluate(SET_HIDDEN, False)
    page.wait_for_selector("#other:has-text('It is Staniel 9.0, pure Python, now')")
    page.unroute("**/api/events")
    page.click("#other button")
    page.wait_for_selector("#live:not(.wait):not(.off)")
    assert page.is_hidden("#other")


def test_a_part_that_changes_by_itself_keeps_the_focus_and_loses_no_click(opened: Opened) -> None:
    page = opened.go()
    page.evaluate("""async () => {
        const { refill, h } = await import('/page/dom.js');
        const box = h('div', { id: 'box' });
        window.again = () => refill(box, h('button', null, 'first'), h('button', { id: 'second' }, 'second'));
        document.querySelector('main').prepend(box);
        again();
    }""")
    page.focus("#second")
    assert page.evaluate("again()") is True
    assert page.evaluate("document.activeElement.id") == "second"
    page.hover("#second")
    page.mouse.down()
    assert page.evaluate("again()") is False
    page.mouse.up()
    assert page.evaluate("again()") is True


def test_a_slow_server_is_not_asked_again_before_it_has_answered(server: Server, opened: Opened) -> None:
    put(server, b"q", b"1")
    page = opened.go()
    page.wait_for_selector("#queues .c-it:has-text('1')")  # else its page is made once more when the queue comes
    asked: list[Any] = []
    page.route("**/api/queues/q/waiters", lambda route: asked.append(route))  # no answer
    page.goto(opened.url + "#/queues/q/waiters")
    page.wait_for_selector("#tab-waiters[aria-selected=true]")
    for _ in range(3):
        page.keyboard.press("r")
    page.evaluate("fetch('/health/live').then((reply) => reply.status)")  # so all requests before it are known
    assert len(asked) == 1
    asked[0].continue_()
    page.wait_for_selector("#panel:has-text('No client waits')")


def test_a_queue_that_comes_while_its_page_is_open_is_shown_whole(server: Server, opened: Opened) -> None:
    page = opened.go("#/queues/later")
    page.wait_for_selector("text=There is no such queue")
    opened.complaints.clear()  # the browser tells of each 404
    put(server, b"later", b"1")
    page.wait_for_selector("#items tr.r")


def test_units_of_the_filter_are_those_of_what_is_compared(server: Server, opened: Opened) -> None:
    put(server, b"small", b"x" * 1010)
    put(server, b"large", b"x" * 1030)
    put(server, b"many", *[b"x"] * 61)
    page = opened.go()
    page.wait_for_selector("text=3 of 3")
    for text, names in (
        ("bytes>1k", ["large"]),  # 1,024, as sizes are shown
        ("items>0.001m", []),  # a thousand, and not 60
        ("items>0.05k", ["many"]),
        ("age<5m", ["many", "large", "small"]),
        ("items>1h", []),  # no unit of a count: a part of a name
    ):
        page.fill("#filter", text)
        assert opened.names() == names, text


def test_a_name_of_which_some_bytes_are_utf_8_is_read_as_the_server_reads_it(opened: Opened) -> None:
    page = opened.go("#/queues/caf%C3%A9%FF%E2%82")
    assert page.inner_text("h1") == "caf\u00e9\\xff\\xe2\\x82"
    asked = page.evaluate("import('/page/format.js').then((f) => f.inPath('caf\\u00e9\\udcff\\udce2\\udc82'))")
    assert asked == "caf%C3%A9%ff%e2%82"
    page.wait_for_selector("text=There is no such queue")
    opened.complaints.clear()  # the browser tells of each 404


def test_an_operation_without_an_answer_is_not_said_to_be_refused(server: Server, opened: Opened) -> None:
    put(server, b"q", b"1")
    page = opened.go("#/queues/q")
    page.route("**/purge", lambda route: route.abort())
    page.click("#purge")
    page.click("#confirm")
    page.wait_for_selector("dialog:has-text('may have been done all the same')")
    assert page.locator("dialog:has-text('not as it was')").count() == 0
    opened.complaints.clear()


def test_a_search_says_in_how_many_items_it_has_looked(server: Server, opened: Opened) -> None:
    put(server, b"q", *[b"x" * 600_000] * 3)
    page = opened.go("#/queues/q")
    page.wait_for_selector("#items tr.r")
    page.fill("#seek", "zzz")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Not found in the 2 items from position 0")
