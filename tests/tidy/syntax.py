"""The syntax of a file, for rules that look at statements alone: a file has five times as many other nodes."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator

Blocks = ast.stmt | ast.ExceptHandler | ast.match_case
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

TEXT_OR_COMMENT = re.compile(
    r'"""(?:[^\\]|\\.)*?"""'
    r"|'''(?:[^\\]|\\.)*?'''"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)*'"
    r"|#([^\n]*)",
    re.DOTALL,
)
"""As Python 3.11 reads them: the quotes of an f-string do not stand inside it."""


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that `ast.walk` yields, in its order, without expressions and what stands in them."""
    waiting = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        for name in node._fields:
            children = getattr(node, name, None)
            if isinstance(children, list):
                waiting.extend(each for each in children if isinstance(each, Blocks))


def documented(tree: ast.AST) -> Iterator[Documented]:
    """Yield the module, and its classes and functions, nested ones too."""
    return (node for node in statements(tree) if isinstance(node, Documented))


def comments(source: str) -> list[str]:
    """Return the comments of a module, without their first sign."""
    return [found for found in TEXT_OR_COMMENT.findall(source) if found]
