"""The operator's page in a real browser: what an operator clicks, types and reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from staniel.broker.version import VERSION
from staniel.compiled import BUILD
from tests.server.admin.asking import Operator
from tests.server.page.conftest import Opened
from tests.support.process import Server, running, until
from tests.support.transcripts import free_port
from tests.support.wire import Wire

pytestmark = [pytest.mark.programs("chromium", "python:playwright"), pytest.mark.slow]

HOSTILE = ["<img\u00a0src=x>\"'&", "a+<b>", "caf\u00e9;$(id)`x`", "\u00ad%2F%00#?"]
PAYLOADS = [
    b"<script>alert(1)</script>",
    b'"><img src=x onerror=alert(1)>',
    b"\x1b[31mred\x00\n",
    b'{"__proto__": 1e999}',
]


def fill(server: Server, **counts: int) -> None:
    with Wire(server.address) as wire:
        for name, count in counts.items():
            for number in range(count):
                assert wire.put(name, json.dumps({"number": number}).encode()) == b"STORED"


def test_queues_are_found_sorted_and_opened(server: Server, opened: Opened) -> None:
    fill(server, mails=3, mails_dead=1, orders=12, other=5)
    page = opened.go()
    page.wait_for_selector("text=4 of 4")
    page.wait_for_selector("#queues tr.r:not([hidden]) >> nth=0 >> text=mails_dead")  # with its reason
    assert opened.names() == ["mails_dead", "orders", "other", "mails"]
    page.click("[data-sort=name]")
    assert opened.names() == ["mails", "mails_dead", "orders", "other"]
    page.click("[data-sort=items]")
    page.click("[data-sort=items]")
    assert opened.names() == ["mails_dead", "mails", "other", "orders"]
    page.fill("#filter", "o items>6")
    assert opened.names() == ["orders"]
    page.fill("#filter", "")
    page.click("[data-filter=dead]")
    assert opened.names() == ["mails_dead"]
    page.click("[data-filter=all]")
    page.click("text=orders")
    page.wait_for_selector("h1:has-text('orders')")
    assert page.url.endswith("#/queues/orders")
    assert page.title().endswith("orders · Staniel")


def test_what_happens_is_shown_without_asking(server: Server, opened: Opened) -> None:
    page = opened.go()
    page.wait_for_selector("text=No queues yet")
    fill(server, born=7)
    page.wait_for_selector("#queues .c-it:has-text('7')")
    with Wire(server.address) as wire:
        assert wire.ask(b"delete born") == b"DELETED"
        page.wait_for_selector("text=No queues yet")


def test_retention_holds_are_shown_with_what_they_keep(server: Server, opened: Opened, operator: Operator) -> None:
    fill(server, q=3)
    page = opened.go()
    page.wait_for_selector("text=1 of 1")
    assert not page.is_visible("#holds")
    operator.post("/api/holds", {"name": "archive"})
    page.wait_for_selector("#holds:has-text('Holds: archive keeps 0, moved')")
    with Wire(server.address) as wire:
        assert wire.ask(b"delete q") == b"DELETED"
    fill(server, r=1)
    page.wait_for_selector("#holds:has-text('archive keeps ')")
    page.wait_for_selector("#holds:not(:has-text('keeps 0'))")


def test_items_are_browsed_as_text_json_and_hex_and_none_is_taken(
    server: Server, opened: Opened, operator: Operator
) -> None:
    fill(server, q=40)
    page = opened.go("#/queues/q")
    page.wait_for_selector("#items tr.r")
    assert page.locator("#items tbody tr").count() == 25
    assert page.inner_text(".pay pre") == '{\n  "number": 0\n}'
    page.click("[data-mode=hex]")
    assert "000000  7b 22 6e" in page.inner_text(".pay pre")
    page.click("[data-mode=text]")
    assert page.inner_text(".pay pre") == '{"number": 0}'
    page.focus("#items")
    page.keyboard.press("j")
    page.wait_for_selector("h2:has-text('Position 1')")
    page.click("text=Later")
    page.wait_for_selector("h2:has-text('Position 25')")
    page.fill("#seek", '"number": 39')
    page.keyboard.press("Enter")
    page.wait_for_selector("h2:has-text('Position 39')")
    assert operator.get("/api/queues/q")["items"] == 40


def test_a_dead_letter_shows_its_past(server: Server, opened: Opened) -> None:
    with Wire(server.address) as wire:
        here = "{}:{}".format(*wire.sock.getsockname())
        assert wire.put("mails", b"bad") == b"STORED"
        while wire.get("mails/t=50/open") is not None:
            assert wire.ask(b"get mails/abort") == b"END"
    page = opened.go("#/queues/mails_dead")
    page.wait_for_selector("dt:has-text('Died in')")
    facts = page.inner_text(".pay dl")
    assert "mails" in facts and here in facts and "First put" in facts


def test_a_purge_names_its_count_and_leaves_what_has_come_since(
    server: Server, opened: Opened, operator: Operator
) -> None:
    fill(server, q=5)
    page = opened.go("#/queues/q")
    page.click("#purge")
    page.wait_for_selector("h2:has-text('Purge 5 items from q?')")
    assert page.evaluate("document.activeElement.id") == "cancel"
    assert "staniel purge q --yes" in page.inner_text("dialog")
    fill(server, q=1)
    page.click("#confirm")
    page.wait_for_selector(".toast:has-text('Purged 5 items from q. Until')")
    assert operator.get("/api/queues/q")["items"] == 1


def test_what_was_purged_or_moved_is_taken_back_by_a_button_or_a_key(
    server: Server, opened: Opened, operator: Operator
) -> None:
    fill(server, q=5)
    page = opened.go("#/queues/q")
    page.keyboard.press("u")
    page.wait_for_selector(".toast:has-text('Nothing to undo')")
    page.click("#purge")
    page.click("#confirm")
    page.click(".toast:has-text('Purged 5 items') button:has-text('Undo')")
    page.wait_for_selector(".toast:has-text('Returned 5 items to q.')")
    assert operator.get("/api/queues/q")["items"] == 5
    page.click("#move")
    page.fill("#move-to", "elsewhere")
    page.click("#confirm")
    page.wait_for_selector(".toast:has-text('Moved 5 items to elsewhere. Until')")
    page.keyboard.press("u")
    assert until(lambda: operator.get("/api/queues/q")["items"] == 5)  # the first toast of this text may still be there
    assert operator.get("/api/undo") == []


def test_gets_are_paused_and_go_on(server: Server, opened: Opened, operator: Operator) -> None:
    fill(server, q=1)
    page = opened.go("#/queues/q")
    page.click("#pause:has-text('Pause gets')")
    page.wait_for_selector("#paused:has-text('gets paused')")
    assert operator.get("/api/queues/q")["paused"] == "gets"
    page.goto(opened.url + "#/")
    page.wait_for_selector(".health:has-text('q is paused')")
    page.goto(opened.url + "#/queues/q")
    page.click("#pause:has-text('Resume')")
    page.wait_for_selector("#paused", state="detached")
    assert operator.get("/api/queues/q")["paused"] == "none"


def test_items_are_moved_and_dead_letters_go_back(server: Server, opened: Opened, operator: Operator) -> None:
    fill(server, mails=1, mails_dead=4, q=9)
    page = opened.go("#/queues/q")
    page.click("#move")
    page.fill("#move-to", "elsewhere")
    page.fill("#move-count", "4")
    assert "staniel move q elsewhere -n 4 --yes" in page.inner_text("dialog")
    page.click("#confirm:has-text('Move 4 items')")
    page.wait_for_selector(".toast:has-text('Moved 4 items to elsewhere.')")
    assert operator.get("/api/queues/q")["items"] == 5
    page.goto(opened.url + "#/queues/mails_dead")
    page.click("#redrive")
    page.click("#confirm:has-text('Redrive 4 items')")
    page.wait_for_selector(".toast:has-text('Redrove 4 items to mails.')")
    assert operator.get("/api/queues/mails")["items"] == 5


def test_one_item_is_retried_moved_and_deleted_and_each_is_undone(
    server: Server, opened: Opened, operator: Operator
) -> None:
    with Wire(server.address) as wire:
        assert wire.put("mails", b"bad") == b"STORED"
        while wire.get("mails/t=50/open") is not None:
            assert wire.ask(b"get mails/abort") == b"END"
    page = opened.go("#/queues/mails_dead")
    page.click(".pay button:has-text('Retry')")
    assert "staniel move mails_dead mails --where id=" in page.inner_text("dialog")
    page.click("#confirm:has-text('Retry 1 item')")
    page.wait_for_selector(".toast:has-text('Sent 1 item back to mails.')")
    page.wait_for_selector("text=The queue is empty")
    assert operator.get("/api/queues/mails")["items"] == 1
    fill(server, q=9)
    page.goto(opened.url + "#/queues/q")
    page.click("#item-4")
    page.wait_for_selector("h2:has-text('Position 4')")
    page.click(".pay button:has-text('Delete')")
    page.click("#confirm:has-text('Delete 1 item')")
    page.wait_for_selector(".toast:has-text('Deleted 1 item from q.')")
    numbers = [json.loads(each["data"])["number"] for each in operator.get("/api/queues/q/items")["items"]]
    assert numbers == [0, 1, 2, 3, 5, 6, 7, 8]
    page.click(".toast:has-text('Deleted') button:has-text('Undo')")
    page.wait_for_selector(".toast:has-text('Returned 1 item to q.')")
    page.click("#item-2")
    page.wait_for_selector("h2:has-text('Position 2')")
    page.click(".pay button:has-text('Move')")
    page.fill("#item-to", "kept")
    page.click("#confirm:has-text('Move 1 item')")
    page.wait_for_selector(".toast:has-text('Moved 1 item to kept.')")
    (item,) = operator.get("/api/queues/kept/items")["items"]
    assert item["data"] == '{"number": 2}'


def test_an_item_that_has_left_is_told(server: Server, opened: Opened, operator: Operator) -> None:
    fill(server, q=2)
    page = opened.go("#/queues/q")
    page.click("#item-1")
    page.click(".pay button:has-text('Delete')")
    operator.post("/api/queues/q/purge", {})
    page.click("#confirm")
    page.wait_for_selector("dialog:has-text('It is not in the queue any more')")
    opened.complaints.clear()


def test_open_reads_are_shown_with_their_holder_and_given_back(
    server: Server, opened: Opened, operator: Operator
) -> None:
    fill(server, q=3)
    with Wire(server.address) as wire:
        assert wire.get("q/open") is not None
        page = opened.go("#/queues/q/open")
        here = "{}:{}".format(*wire.sock.getsockname())
        page.wait_for_selector(f"text={here}")
        page.click(".toggle")
        page.click("[data-xid]")
        page.wait_for_selector("dialog:has-text('may be done twice')")
        page.click("#confirm")
        page.wait_for_selector("text=No open reads")
        assert operator.get("/api/queues/q")["items"] == 3


def test_markup_in_names_and_payloads_is_text(server: Server, opened: Opened) -> None:
    with Wire(server.address) as wire:
        for name in HOSTILE:
            for payload in PAYLOADS:
                raw = name.encode("latin-1")
                assert wire.ask(b"set %b 0 0 %d\r\n%b" % (raw, len(payload), payload)) == b"STORED"
    page = opened.go()
    page.wait_for_selector(f"text={len(HOSTILE)} of {len(HOSTILE)}")
    assert page.locator("#queues img, #queues b, #queues script").count() == 0
    for at in range(len(HOSTILE)):
        page.goto(opened.url + "#/")
        page.locator("#queues tr.r:not([hidden]) .name").nth(at).click()
        page.wait_for_selector("#items tr.r >> nth=3")
        for row in range(len(PAYLOADS)):
            page.locator("#items tr.r").nth(row).click()
            page.wait_for_selector(f"h2:has-text('Position {row}')")
        page.click("#purge")
        page.click("#cancel")
        page.keyboard.press(".")
    assert page.locator("main img, main script").count() == 0


def test_a_stranger_script_would_not_run(opened: Opened) -> None:
    page = opened.go()
    with pytest.raises(Exception, match="TrustedHTML"):
        page.evaluate("() => { document.body.innerHTML = '<b>x</b>'; }")
    opened.complaints.clear()


def test_light_and_dark_follow_the_system_and_then_the_switch(browser: Any, server: Server) -> None:
    opened = Opened(browser, server, color_scheme="dark")
    page = opened.go()
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(ground) == "rgb(17, 19, 21)"
    page.click("#theme")
    assert page.evaluate(ground) == "rgb(251, 250, 248)"
    page.reload()
    page.wait_for_selector("#live:not(.wait)")
    assert page.evaluate(ground) == "rgb(251, 250, 248)"
    page.keyboard.press("t")
    assert page.evaluate(ground) == "rgb(17, 19, 21)"
    opened.context.close()
    assert opened.complaints == []


def test_the_page_says_that_it_is_cut_off_and_goes_on_after_a_restart(tmp_path: Path, browser: Any) -> None:
    port = free_port()
    with running(tmp_path, config=f"[admin]\nport = {port}\n") as server:
        fill(server, q=2)
        opened = Opened(browser, server)
        page = opened.go("#/queues/q")
        page.wait_for_selector("#items tr.r")
        server.kill()
        page.wait_for_selector("#gone:has-text('Disconnected')")
        assert page.is_disabled("#purge")
        assert page.title().startswith("✕")
        server.start()
        page.wait_for_selector("#live:not(.off)")
        page.wait_for_selector("#gone", state="hidden")
        page.wait_for_selector("#purge:not([disabled])")
        fill(server, q=1)
        page.wait_for_selector(".strip:has-text('3')")
        opened.context.close()


def test_a_token_is_asked_for_once(tmp_path: Path, browser: Any) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    with running(tmp_path, config="[admin]\nport = 0\ntoken_file = 'token'\n") as server:
        opened = Opened(browser, server)
        page = opened.page
        page.goto(opened.url)
        page.fill("#token", "a wrong one")
        page.click("#login button")
        page.wait_for_selector("#why:has-text('This is not the token.')")
        assert page.locator("#queues").count() == 0
        page.fill("#token", "0123456789abcdef")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=No queues yet")
        page.reload()
        page.wait_for_selector("text=No queues yet")
        assert "0123456789abcdef" not in page.content()
        opened.context.close()


def test_of_many_queues_only_the_rows_on_the_screen_exist(server: Server, opened: Opened) -> None:
    with Wire(server.address) as wire:
        for number in range(1000):
            assert wire.put(f"tenant-{number:04}", b"1") == b"STORED"
    page = opened.go()
    page.wait_for_selector("text=1,000 of 1,000")
    assert page.locator("#queues tr.r").count() < 60
    page.click("[data-sort=name]")
    page.keyboard.press("End")
    page.wait_for_selector("text=tenant-0999")
    assert page.locator("#queues tr.r").count() < 60
    page.fill("#filter", "0500")
    assert opened.names() == ["tenant-0500"]


def test_keys_reach_everything(server: Server, opened: Opened) -> None:
    fill(server, a=3, b=2)
    page = opened.go()
    page.wait_for_selector("text=2 of 2")
    page.keyboard.press("j")
    page.keyboard.press("j")
    current = page.get_attribute("#queues", "aria-activedescendant")
    assert page.get_attribute(f"#{current}", "aria-selected") == "true"
    page.keyboard.press("m")
    page.wait_for_selector("dialog:has-text('Move items from b')")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('b')")
    page.keyboard.press("4")
    page.wait_for_selector("#tab-journal[aria-selected=true]")
    page.keyboard.press("Shift+P")
    page.wait_for_selector("dialog:has-text('Purge 2 items')")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    page.keyboard.press("Control+k")
    page.keyboard.type("a")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('a')")
    page.keyboard.press("Control+k")
    page.keyboard.type("light or")
    page.wait_for_selector("#found:has-text('Light or dark')")
    page.keyboard.press("Escape")
    for words in ("purge b", "b purge"):
        page.keyboard.press("Control+k")
        page.keyboard.type(words)
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog:has-text('Purge 2 items from b?')")
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="detached")
    page.keyboard.press("?")
    page.wait_for_selector("dialog:has-text('Keys')")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_selector("h1:has-text('Jobs')")


def test_settings_are_shown_as_a_file_says_them(server: Server, operator: Operator, opened: Opened) -> None:
    said = {"always": '"always"', "os": '"os"', "late": '"50ms"'}
    text = server.config.read_text()
    server.config.write_text(text + "".join(f"[queues.{name}]\nsync_journal = {said[name]}\n" for name in said))
    operator.post("/api/reload", {})
    fill(server, **dict.fromkeys(said, 1))
    for name, shown in {"always": "always", "os": "os", "late": "50 ms"}.items():
        page = opened.go(f"#/queues/{name}/settings")
        page.wait_for_selector(f"h1:has-text('{name}')")
        page.wait_for_selector(f"tr:has-text('sync_journal') td:text-is('{shown}')")
        page.wait_for_selector("tr:has-text('max_deliveries') td:text-is('none')")


def test_the_page_names_the_build_that_runs(opened: Opened) -> None:
    page = opened.go()
    page.wait_for_selector(f".foot span:text-is('Staniel {VERSION}, {BUILD}')")


@pytest.mark.parametrize("path", ["", "#/queues/q", "#/queues/q/open", "#/queues/q/journal", "#/queues/q/settings"])
def test_a_phone_shows_it_within_its_width_and_controls_have_names(browser: Any, server: Server, path: str) -> None:
    fill(server, q=3)
    opened = Opened(browser, server, viewport={"width": 390, "height": 844})
    page = opened.go(path)
    page.wait_for_selector(".foot span")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    nameless = page.eval_on_selector_all(
        "button:not([hidden]), a, input, canvas",
        """all => all.filter(each => !(each.textContent.trim() || each.ariaLabel || each.labels?.length
            || each.placeholder)).map(each => each.outerHTML)""",
    )
    assert nameless == []
    opened.context.close()
    assert opened.complaints == []


def test_the_files_of_the_page_are_what_the_page_asks_for(operator: Operator) -> None:
    from staniel.broker.admin.http.page import FILES

    html = operator.ask("GET", "/")
    asked = set(re.findall(r'"/page/([^"]+)"', html.body.decode()))
    assert asked == set(FILES) - {"index.html"}
    policy = html.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for name in asked:
        reply = operator.ask("GET", f"/page/{name}")
        assert reply.status == 200 and reply.headers["content-security-policy"] == policy
        packed = operator.ask("GET", f"/page/{name}", accept_encoding="gzip")
        assert len(packed.body) < len(reply.body) or name == "icon.svg"
        if name.endswith(".js"):
            imported = set(re.findall(r"from '\./([^']+)'", reply.body.decode()))
            assert imported <= set(FILES)
            for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
                assert forbidden not in reply.body.decode()
    assert operator.ask("GET", "/page/__init__.py").status == operator.ask("GET", "/page/../page.css").status == 404


def test_pages_that_come_and_go_leave_nothing(browser: Any, server: Server, operator: Operator) -> None:
    fill(server, q=3)
    for _ in range(3):  # one page that stays is one too many; a load costs a second of processor time
        opened = Opened(browser, server)
        page = opened.go()
        for _ in range(2):
            page.reload()
            page.wait_for_selector("#live:not(.wait)")
        opened.context.close()
    assert until(lambda: operator.get("/api/server")["connections"] == 1)
