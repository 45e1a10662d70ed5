"""Definitions that nothing uses, and public names that stand twice: rules over all files at once.

Each rule takes the files as {"journal/kestrel/log.py": text} and returns findings, "path:line: name". The analysis goes
by name, so it misses what shares its name with something that is used. test_definitions.py lists the exceptions.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

RUNTIME = ("protocol", "queues", "journal", "broker", "server", "pipeline")
PLAIN_BASES = {"Struct", "Enum", "IntEnum", "Flag", "IntFlag", "Protocol", "NamedTuple", "Generic", "Exception", "ABC"}
CACHES = {"cache", "lru_cache"}  # decorators that register nothing

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Assignment = ast.Assign | ast.AnnAssign


class Defined(NamedTuple):
    """A function, class, method, field or constant. `owner` is the class that it stands in, or ""."""

    path: str
    owner: str
    name: str
    node: Definition | Assignment

    def __str__(self) -> str:
        return f"{self.path}:{self.node.lineno}: {self.owner}{'.' if self.owner else ''}{self.name}"


def top_level_unused(files: Mapping[str, str], users: Mapping[str, str]) -> list[str]:
    """Functions, classes and constants of `files` at the top level of a module that neither it nor `users` mention.

    Another module mentions a name by importing it from there, as an attribute of the imported module, or in a string.
    """
    trees = [parse(text) for text in users.values()]
    mentioned = {pair for tree in trees for pair in _imported(tree)}
    strings = {text for tree in trees for text in _strings(tree)}
    for tree in trees:
        attributes = {node.attr for node in _nodes(tree) if isinstance(node, ast.Attribute)}
        modules = {f"{module}.{name}" if name else module for module, name in _imported(tree)}
        mentioned |= {(module, name) for module in modules if module.startswith("staniel") for name in attributes}
    found = []
    for path, text in files.items():
        tree = parse(text)
        here = _names(tree)
        for each in _defined(path, "", tree.body):
            within = 0 if isinstance(each.node, Assignment) else _names(each.node)[each.name]
            if here[each.name] <= within and (_module(path), each.name) not in mentioned and each.name not in strings:
                found.append(str(each))
    return found


def members_unused(files: Mapping[str, str], users: Mapping[str, str]) -> list[str]:
    """Methods, fields and class constants of `files` whose names occur nowhere in `users`, themselves apart.

    Left out: classes that extend a foreign one, which may call them, and members of an Enum that is made by value.
    """
    uses: Counter[str] = Counter()
    trees = [parse(text) for text in users.values()]
    for tree in trees:
        uses += _names(tree)
        uses.update(node.attr for node in _nodes(tree) if _is_read(node))
        uses.update(name for node in _nodes(tree) if isinstance(node, ast.MatchClass) for name in node.kwd_attrs)
        uses.update(text for text in _strings(tree) if text.isidentifier())
    by_value = {name for tree in trees for name in _taken_by_value(tree)}
    ours = {node.name: node for tree in trees for node in _nodes(tree) if isinstance(node, ast.ClassDef)}
    found = []
    for path, text in files.items():
        for node in _nodes(parse(text)):
            if not isinstance(node, ast.ClassDef) or _is_foreign(node, ours):
                continue
            if _is_enum(node) and node.name in by_value:
                continue
            found += [str(each) for each in _defined(path, node.name, node.body) if uses[each.name] <= _own(each)]
    return found


def doubled_classes(files: Mapping[str, str]) -> dict[str, list[str]]:
    """Public classes of one name in two modules: the name, and where."""
    places: dict[str, list[str]] = {}
    for path, text in files.items():
        for node in parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


@cache
def parse(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def _nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of the tree: each rule goes through them several times."""
    return tuple(ast.walk(tree))


def _module(path: str) -> str:
    return "staniel." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _defined(path: str, owner: str, body: list[ast.stmt]) -> Iterator[Defined]:
    for node in body:
        if isinstance(node, Definition):
            if not any(_registers(each) for each in node.decorator_list):
                yield from _named(Defined(path, owner, node.name, node))
        elif isinstance(node, Assignment):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        yield from _named(Defined(path, owner, name.id, node))
        elif isinstance(node, ast.If | ast.Try):
            yield from _defined(path, owner, [*node.body, *node.orelse])


def _named(each: Defined) -> Iterator[Defined]:
    if not each.name.startswith("__") and each.name != "_":
        yield each


def _registers(decorator: ast.expr) -> bool:
    """Whether a decorator is a call, which as a rule enters the function in a table: `@cli.command("ping")`."""
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func) not in CACHES


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


@cache
def _names(tree: ast.AST) -> Counter[str]:
    return Counter(
        node.id for node in _nodes(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)
    )


def _is_read(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store)


def _taken_by_value(tree: ast.AST) -> Iterator[str]:
    """Classes that are called, indexed or gone through: `Kind(1)`, `Kind["ITEM"]`, `for kind in Kind`."""
    for node in _nodes(tree):
        match node:
            case (
                ast.Call(func=ast.Name(id=name))
                | ast.Subscript(value=ast.Name(id=name))
                | ast.For(iter=ast.Name(id=name))
                | ast.comprehension(iter=ast.Name(id=name))
            ):
                yield name


def _strings(tree: ast.AST) -> Iterator[str]:
    return (node.value for node in _nodes(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _own(each: Defined) -> int:
    """How often a definition reads its own name: a method that calls itself is not thereby used."""
    if isinstance(each.node, Assignment):
        return 0
    return sum(isinstance(node, ast.Attribute) and node.attr == each.name for node in ast.walk(each.node))


def _bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases]


def _is_foreign(node: ast.ClassDef, ours: Mapping[str, ast.ClassDef]) -> bool:
    """Whether a class extends one that is not ours, and whose methods somebody else may call."""
    for base in _bases(node):
        if base in PLAIN_BASES:
            continue
        if base not in ours or (base != node.name and _is_foreign(ours[base], ours)):
            return True
    return False


def _is_enum(node: ast.ClassDef) -> bool:
    return any(base.endswith(("Enum", "Flag")) for base in _bases(node))
