"""The chromium on the PATH, driven by Playwright."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any


def complaints_of(page: Any) -> list[str]:
    """The list to which the browser's complaints about a page, and dialogs that it opens, are added."""
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
    page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
    return complaints


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()
