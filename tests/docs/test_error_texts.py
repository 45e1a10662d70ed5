"""Errors and events that any document names are those of the code: who searches for a text finds it on both sides."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.test_events import DOTTED, events

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "monitoring").glob("*.md"))]
PACKAGES = ("broker", "client", "cluster", "journal", "protocol", "queues", "server", "worker")
REPLY = re.compile(r"`-?(?:CLIENT|SERVER)[_-]ERROR ([^`]+)`")
END = re.compile(r"the process ends(?: and [\w ]+)?: `([^`]+)`")
VARIES = re.compile(r"…|<\w+>|\b[A-Z]{3,}\b|\d[\d,.]*")
"""What stands in a document for a name, a number or a reason."""
FILES = re.compile(r".*\.(?:conf|html|js|json|lock|log|md|pack|pem|plan|py|pyx|room|rw|service|toml|txt|yaml|yml)")
PYTHON = re.compile(r"(?:asyncio|opentelemetry|pipeline|staniel|sys)\.\w+")


@cache
def texts_of_code() -> str:
    """Every text of the program, one a line; a zero stands where a value is put into it."""
    found = []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("\0".join(str(each.value) for each in node.values if isinstance(each, ast.Constant)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                found.append(node.value if isinstance(node.value, str) else node.value.decode("latin-1"))
    return "\n".join(found)


def unknown_in(text: str) -> list[str]:
    """The parts of the errors in a document that no text of the program has."""
    errors = [" ".join(each.split()) for each in (*REPLY.findall(text), *END.findall(text))]
    parts = [part.strip(" :,.") for error in errors for part in VARIES.split(error)]
    return [part for part in parts if part not in texts_of_code()]


@cache
def worker_events() -> set[str]:
    nodes = (node for path in (ROOT / "worker").rglob("*.py") for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value)
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_error_that_a_document_quotes_is_a_text_of_the_program(path: Path) -> None:
    assert unknown_in(path.read_text("utf-8")) == []


def test_an_error_that_nothing_says_is_found() -> None:
    invented = "`SERVER_ERROR disk full, …` `CLIENT_ERROR the queue is\nvery tired` the process ends: `no more coffee`"
    assert unknown_in(invented) == ["the queue is very tired", "no more coffee"]
    told = [path for path in DOCUMENTS if REPLY.search(path.read_text("utf-8")) or END.search(path.read_text("utf-8"))]
    assert len(told) >= 5


def test_every_event_that_a_document_names_is_logged() -> None:
    known = events() | worker_events()
    lost = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in DOCUMENTS
        if "decisions" not in path.parts
        for name in re.findall(rf"`({DOTTED.pattern})`", path.read_text("utf-8"))
        if name not in known and not FILES.fullmatch(name) and not PYTHON.fullmatch(name)
    ]
    assert lost == []
