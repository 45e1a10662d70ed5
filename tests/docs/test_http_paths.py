"""The list of paths in docs/admin.md has every path of the admin listener with its method, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from staniel.broker.admin.http.routes import ROUTES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "admin.md").read_text("utf-8")
SECTION = TEXT.partition("\n## Paths\n")[2].partition("\n## ")[0]
KNOWN = {(route.method, re.sub(r"\{\w+\}", "*", route.path)) for route in ROUTES}


def told() -> set[tuple[str, str]]:
    """(method, path) of each quoted path at the beginning of an entry. `/waiters` behind a path stands for the one with
    this end that the server has; a method before the next one is of the same path.
    """
    found = set()
    for head in re.findall(r"^- ((?:`[^`]+`[,;]?\s+)*`[^`]+`):", SECTION, re.MULTILINE):
        methods, before, is_open = list[str](), "", False
        for quoted in re.findall(r"`([^`]+)`", " ".join(head.split())):
            method, _, path = quoted.rpartition(" ") if quoted.startswith("/") else quoted.partition(" ")
            if method:
                methods = [*(methods if is_open else []), method]
            is_open = not path
            if is_open:
                continue
            path = re.sub(r"\b(?:NAME|XID|NUMBER|ID)\b", "*", path.partition("?")[0])
            parts = before.split("/")
            longer = ["/".join(parts[:count]) + path for count in range(len(parts), 0, -1)]
            before = next((each for each in longer if (methods[-1], each) in KNOWN), path)
            found |= {(each, before) for each in methods}
    return found


def test_every_path_has_an_entry_and_every_entry_a_path() -> None:
    page = {("GET", "/"), ("GET", "/page/…")}
    in_prose = {path for path in KNOWN if f"`{path[1]}`" in SECTION and path not in told()}
    assert told() - page == KNOWN - in_prose
    assert {path for _, path in in_prose} == {
        *("/ping", "/stats.json", "/stats.txt", "/server_info.txt", "/server_info.json"),
    }
