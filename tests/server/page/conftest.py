"""A browser, and a server whose page it opens: the chromium on the PATH, driven by Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.admin.asking import Operator
from tests.support.browser import chromium, complaints_of
from tests.support.process import Server, running

WAIT_MS = 60_000  # more than any machine that tests needs


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    config = "[admin]\nport = 0\n[queues.mails]\nmax_deliveries = 5\ndead_letter_queue = 'mails_dead'\n"
    with running(tmp_path, config=config) as server:
        yield server


@pytest.fixture
def operator(server: Server) -> Operator:
    return Operator(server.second_port)


class Opened:
    """A page of the browser; whatever the browser complains of is in `complaints`."""

    def __init__(self, browser: Any, server: Server, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.complaints = complaints_of(self.page)
        self.url = f"http://127.0.0.1:{server.second_port}/"

    def go(self, path: str = "") -> Any:
        self.page.goto(self.url + path)
        self.page.wait_for_selector("#live:not(.wait):not(.off)")
        return self.page

    def names(self) -> list[str]:
        """The queues in the table, from the top on."""
        found: list[str] = self.page.eval_on_selector_all(
            "#queues tr.r:not([hidden]) .name", "all => all.map(each => each.textContent)"
        )
        return found


@pytest.fixture
def opened(browser: Any, server: Server) -> Iterator[Opened]:
    made = Opened(browser, server, viewport={"width": 1440, "height": 900})
    yield made
    made.context.close()
    assert made.complaints == []
