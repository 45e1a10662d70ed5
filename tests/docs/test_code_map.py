"""The code map of ARCHITECTURE.md names every file of the packages, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
PACKAGES = ("protocol", "queues", "journal", "broker", "server", "sim", "client", "bench")


def on_the_map(package: str) -> list[str]:
    section = re.split(r"^##+ ", TEXT.partition(f"### {package}/ ")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^\| `([\w/]+\.py)` \|", section, re.MULTILINE)


def test_the_map_names_every_file_once_and_no_file_that_is_not_there() -> None:
    for package in PACKAGES:
        there = {
            str(path.relative_to(ROOT / package))
            for path in (ROOT / package).rglob("*.py")
            if path.name != "__init__.py"
        }
        assert sorted(on_the_map(package)) == sorted(there), package
