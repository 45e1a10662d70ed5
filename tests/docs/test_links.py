"""Every link of the documents leads somewhere: to a file of the tree, and to a heading in it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
OUTSIDE = ("https://", "http://", "mailto:")


def documents() -> list[Path]:
    return sorted(
        [
            *ROOT.glob("*.md"),
            *(ROOT / "docs").rglob("*.md"),
            *(ROOT / "examples").glob("*.md"),
            *(ROOT / "bench").rglob("*.md"),
            *(ROOT / "monitoring").glob("*.md"),
            *(ROOT / "sim").glob("*.md"),
            *(ROOT / "tests").rglob("*.md"),
        ]
    )


def prose(path: Path) -> str:
    """The text without its programs and transcripts, in which brackets mean something else; code that is the text of a
    link stands as a word.
    """
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]*`", "code", text)


def anchors(path: Path) -> set[str]:
    """The names that headings get: lower case, blanks to hyphens, other signs dropped."""
    headings = re.findall(r"^#+ +(.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_broken(page: Path, target: str) -> bool:
    if target.startswith(OUTSIDE):
        return False
    name, _, record_as_open = target.partition("#")
    found = (page.parent / name).resolve() if name else page
    return not found.exists() or (record_as_open != "" and record_as_open not in anchors(found))


def broken_in(page: Path) -> list[str]:
    return [f"{page.relative_to(ROOT)}: {target}" for target in LINK.findall(prose(page)) if is_broken(page, target)]


def test_every_link_leads_somewhere() -> None:
    assert [broken for path in documents() for broken in broken_in(path)] == []


def test_a_link_to_nowhere_is_found() -> None:
    page = ROOT / "docs" / "durability.md"
    text = "[a](durability.md) [b](durability.md#file-systems) [c](nowhere.md) [d](durability.md#nowhere) [e](https://x.y/)"
    assert [target for target in LINK.findall(text) if is_broken(page, target)] == [
        "nowhere.md",
        "durability.md#nowhere",
    ]
    assert sum(len(LINK.findall(prose(path))) for path in documents()) > 30


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text("utf-8")
    assert [path.name for path in folder.glob("0*.md") if f"]({path.name})" not in index] == []


def linked(page: Path) -> Iterator[Path]:
    """The documents that one click leads to."""
    for target in LINK.findall(prose(page)):
        name = target.partition("#")[0]
        if name and not target.startswith(OUTSIDE):
            found = (page.parent / name).resolve()
            yield found / "README.md" if found.is_dir() else found


def clicks_from(page: Path) -> dict[Path, int]:
    clicks, waiting = {page: 0}, deque([page])
    while waiting:
        here = waiting.popleft()
        for there in linked(here) if here.suffix == ".md" else ():
            if there not in clicks:
                clicks[there] = clicks[here] + 1
                waiting.append(there)
    return clicks


def test_every_document_is_two_clicks_from_the_front_page() -> None:
    clicks = clicks_from(ROOT / "docs" / "README.md")
    assert [path.relative_to(ROOT).as_posix() for path in documents() if clicks.get(path, 3) > 2] == []


@pytest.mark.parametrize(
    ("person", "wants", "clicks_max"),
    [
        ("new user", "README.md", 1),
        ("new user", "docs/start/pymemcache.md", 1),
        ("new user", "docs/howto/install.md", 1),
        ("new user", "docs/libraries.md", 1),
        ("operator with an alert", "docs/alerts/StanielQueueFull.md", 1),
        ("operator with an alert", "docs/alerts/StanielDiskFull.md", 2),
        ("operator with an alert", "docs/events.md", 1),
        ("operator with an alert", "docs/howto/backup.md", 1),
        ("contributor", "CONTRIBUTING.md", 1),
        ("contributor", "docs/contributing/recipes.md", 1),
        ("contributor", "docs/contributing/code.md", 2),
        ("contributor", "docs/contributing/first-issue.md", 2),
    ],
)
def test_three_people_find_what_they_want(person: str, wants: str, clicks_max: int) -> None:
    assert clicks_from(ROOT / "docs" / "README.md").get(ROOT / wants, 99) <= clicks_max, f"the {person} looks for it"
