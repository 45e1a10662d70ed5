"""The map of rooms in ARCHITECTURE.md names every folder with code, and no other; the page stays short."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
PACKAGES = ("protocol", "queues", "journal", "broker", "server", "client", "sim", "pipeline", "bench")
LINES_MAX = 250


def rooms() -> set[str]:
    folders = [path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {f"{folder.relative_to(ROOT)}/" for folder in folders}


def test_the_map_names_every_room_once_and_none_that_is_not_there() -> None:
    section = TEXT.partition("## Map of rooms")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w/]+/)`", section)
    assert sorted(named) == sorted(rooms())


def test_the_page_can_be_read_in_one_go() -> None:
    assert len(TEXT.splitlines()) <= LINES_MAX
