"""Every link of the documents leads somewhere: to a file of the tree, and to a heading in it."""

from __future__ import annotations

import re
from pathlib import Path

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
    """The text without its programs and transcripts, in which brackets mean something else."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


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
