"""The site that `make docs` builds: strictly, whole, readable and searchable from files, with the links of the tree."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_links import documents

pytestmark = pytest.mark.programs("python:mkdocs", "python:material")
ROOT = Path(__file__).resolve().parents[2]
SCREEN = {"width": 1920, "height": 1080}
ELSEWHERE = re.compile(r"""<(?:script|link|img|iframe)[^>]* (?:src|href)=["']?(?:https?:)?//(?!127\.0\.0\.1)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    titles = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    for path in documents():
        name = path.relative_to(ROOT).as_posix()
        page = name.removeprefix("docs/") if name.startswith("docs/") else f"tree/{name}"
        page = re.sub(r"README\.md$", "index.html", page).replace(".md", ".html")
        assert page in titles, f"{name} is no page of the site: name it in PAGES of packaging/docs_hook.py"


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    assert [path.name for path in site.rglob("*.html") if ELSEWHERE.search(path.read_text("utf-8"))] == []


def test_every_link_of_a_page_leads_to_a_file_of_the_site(site: Path) -> None:
    lost = [
        f"{page.relative_to(site)}: {target}"
        for page in site.rglob("*.html")
        for target in re.findall(r'<a href="?([^" >#]+)', page.read_text("utf-8"))
        if "://" not in target and not target.startswith("mailto:") and not (page.parent / target).exists()
    ]
    assert [each for each in lost if not each.startswith("404.html")] == []


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A page of the site in a browser, on a screen that is wide enough for the left column."""
    with importlib.import_module("playwright.sync_api").sync_playwright() as found:
        browser = found.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(path.as_uri())
        yield page
        browser.close()


@pytest.mark.programs("chromium", "python:playwright")
def test_the_search_works_from_files(site: Path) -> None:
    with opened(site / "index.html") as page:
        page.click(".md-search__input")
        page.keyboard.type("max_deliveries")
        page.wait_for_selector(".md-search-result__item", timeout=60_000)
        found_pages = page.eval_on_selector_all(".md-search-result__link", "each => each.map(a => a.pathname)")
    assert any(path.endswith("config.html") for path in found_pages)


@pytest.mark.programs("chromium", "python:playwright")
@pytest.mark.parametrize("name", ["index.html", "glossary.html"])
def test_the_left_column_of_a_page_without_a_section_shows_all_sections(name: str, site: Path) -> None:
    with opened(site / name) as page:
        links = page.locator(".md-nav--primary a.md-nav__link:visible").all_inner_texts()
    assert {"Before production", "Configuration", "How it is tested", "Glossary"} <= set(links)


@pytest.mark.programs("chromium", "python:playwright")
@pytest.mark.parametrize("folder", ["howto", "alerts"])
def test_a_page_of_steps_fits_on_a_screen(folder: str, site: Path) -> None:
    heights = {}
    with opened(site / "index.html") as page:
        page.set_viewport_size(SCREEN)
        for path in sorted((site / folder).glob("*.html")):
            if path.name != "index.html":  # the list of alerts and reasons is a reference
                page.goto(path.as_uri())
                heights[path.name] = page.locator("article").bounding_box()["height"]
    assert len(heights) >= 15
    assert {name: height for name, height in heights.items() if height > SCREEN["height"]} == {}
