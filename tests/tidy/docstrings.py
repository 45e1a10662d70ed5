"""The rule for the first word of a docstring.

A function begins with an imperative verb of verbs.txt. No docstring begins with a word of references.txt: pronouns,
conjunctions and prepositions, which refer to a noun that the reader has not met. A property, a fixture or an overload
is named like a noun and may begin with one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.syntax import documented

FOLDER = Path(__file__).parent
REFERENCES = frozenset((FOLDER / "references.txt").read_text("ascii").split())
VERBS = frozenset((FOLDER / "verbs.txt").read_text("ascii").split())
NOUN_DECORATORS = ("property", "fixture", "overload")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def bad_first_words(text: str) -> list[str]:
    """Find the docstrings of modules, classes, functions and fields that begin with a wrong word."""
    return [f"line {at}: {why}" for at, why in sorted(bad_lines(text).items())]


def bad_lines(text: str) -> dict[int, str]:
    """Return the line of each docstring that begins with a wrong word, and why the word is wrong."""
    found: dict[int, str] = {}
    for node, docstring in _docstrings(ast.parse(text)):
        said = str(docstring.value).split()
        first = said[0].rstrip(",.:;").lower() if said else ""
        if re.fullmatch("[a-z]+", first) and first in REFERENCES:
            found[docstring.lineno] = f"begins with {said[0]!r}, which refers to a noun that is not there"
        elif isinstance(node, Function) and first not in VERBS and not _is_like_a_noun(node):
            found[docstring.lineno] = f"{node.name} begins with {said[:1]}, not with an imperative verb"
    return found


def _docstrings(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.Constant]]:
    """Yield each docstring and the module, class, function or assignment that it describes."""
    for node in documented(tree):
        for position, statement in enumerate(node.body):
            before = node.body[position - 1] if position else node
            is_described = isinstance(before, ast.Assign | ast.AnnAssign) and not isinstance(node, Function)
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and (position == 0 or is_described):
                yield before, value


def _is_like_a_noun(node: Function) -> bool:
    return any(word in ast.unparse(each) for each in node.decorator_list for word in NOUN_DECORATORS)
