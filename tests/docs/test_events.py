"""docs/events.md names every event that the server may log, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "events.md").read_text("utf-8")
DOTTED = re.compile(r"[a-z_]+\.[a-z_]+")
SETTINGS = re.compile(r"(?:admin|default|memcache|server|terms|text|thrift|tls|workq|memory|line|counters|held)\.\w+")
EVENTS_LIKE_SETTINGS = {"admin.no_socket", "admin.refused", "tls.refused", "tls.certificate_expires"} | {
    "server.failed",
    "server.stopped",
}
OTHER = {
    "queue.name",
    "cluster.etcd",
    "cluster.etcd_password_file",
    "queue.had_children",
    "queue.blocked",
    "queue.waiting_bytes",
    "queue.waiting_items",
    "failed_sync.room",
    "convert.plan",
    "_file.size",
    "top.command",
}
"""Attributes, settings, names of files, a module, and an event of a journal that only `staniel adopt` looks for."""


def dotted_texts() -> Iterator[str]:
    """Every text of the server's code that has the form of an event's name."""
    for package in ("broker", "server", "journal", "queues"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
                    yield node.value


def events() -> set[str]:
    files = re.compile(r".*\.(?:css|csv|html|js|json|lock|py|pyx|pxd|sock|svg|toml|txt)")
    found = {each for each in dotted_texts() if each not in OTHER and not files.fullmatch(each)}
    return {each for each in found if each in EVENTS_LIKE_SETTINGS or not SETTINGS.fullmatch(each)}


def entries() -> list[tuple[str, str]]:
    """The names at the beginning of each entry of the log, and what the page says of them."""
    section = PAGE.partition("\n## The log\n")[2]
    return re.findall(r"^- ((?:`[\w.]+`,?\s+)*`[\w.]+`):((?: .+|\n  .+)*)$", section, re.MULTILINE)


def told() -> set[str]:
    return {name for names, _ in entries() for name in re.findall(r"`([\w.]+)`", names)}


def test_every_event_of_the_code_has_an_entry_and_every_entry_an_event() -> None:
    missing, invented = events() - told(), told() - events()
    assert not missing, f"docs/events.md lacks {sorted(missing)}: add an entry, or name it in OTHER if it is no event"
    assert not invented, f"docs/events.md names {sorted(invented)}, which nothing logs: remove the entry"


def test_every_entry_says_what_it_means() -> None:
    section = PAGE.partition("\n## The log\n")[2]
    assert len(entries()) == section.count("\n- ") > 80
    assert [names for names, meaning in entries() if len(meaning.split()) < 3] == []
