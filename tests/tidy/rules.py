"""The rules, each a function from one file's text to what is wrong with it. Knows no paths of the disk, runs no code.

A finding is a string "line N: what is wrong". An empty list is a tidy file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.tidy.syntax import documented, statements

FUNCTION_LINES_MAX = 60

SYNCHRONOUS = ("protocol", "queues", "journal", "broker", "cluster")
OURS = (*SYNCHRONOUS, "server", "client", "worker", "sim", "pipeline", "bench")
MAY_IMPORT = {
    "protocol": set[str](),
    "queues": set[str](),
    "journal": {"queues"},
    "broker": {"protocol", "queues", "journal"},
    "server": {"broker", "protocol", "journal", "queues", "pipeline", "worker"},
    "sim": {"broker", "protocol", "journal", "queues"},  # and the hub
    "pipeline": {"journal", "queues", "protocol"},
    "cluster": {"journal"},
    "client": {"protocol"},
    "worker": {"client", "protocol"},
    "bench": set(OURS),
}
# Below server/ and sim/: no waiting, no clock, no randomness, no network.
WORLDLY = {
    *("trio", "asyncio", "socket", "select", "selectors", "signal", "ssl", "subprocess"),
    *("threading", "multiprocessing", "concurrent", "time", "random", "secrets", "uuid"),
    *("click", "pathlib", "shutil", "tempfile", "glob"),
}
HUB_MODULES = (
    *("hub", "connection", "listener", "handshakes", "timeouts", "disk_work", "interfaces", "connection_limits"),
    *("dispatcher", "latency_samples", "pending_bytes", "read_schedule"),
)
HUB = {f"staniel.server.{name}" for name in (*HUB_MODULES, "tls_socket")}  # OpenSSL over any socket
ANYWHERE = tuple(f"server/{name}.py" for name in HUB_MODULES)  # what they need is handed to them
ONLY_PLACE_FOR = {
    "trio": ("server", "client", "bench", "cluster"),
    "random": ("sim", "server", "worker", "bench"),
    "pyspark": ("pipeline",),
}
OF_MEMBERS = ("server/cluster/", "server/cli/cluster.py")  # what a server that stands alone does not load
DISK = "journal/disk/os_fs.py"
ETCD = "cluster/etcd/"  # import-linter says which of its modules may know trio
CLOCK_CALLS = {"now", "utcnow", "today"}

MACHINE_WORDS = re.compile(
    r"(?<![\w.])/(?:work|root|home)/|\.\./shared|/tmp/(?:brief|bash_jobs)|spec/(?:kestrel|libkestrel|workq)\.md"
)
BARE_IGNORE = re.compile(r"#\s*type:\s*ignore(?!\[)")
FORMULA = re.compile(r"(?:^|[.:;,]\s+)(Knows|Refuses to (?:know|be imported))\b")
FORMULA_WORDS = ("Knows", "Refuses to")
PERSONS = re.compile(r"\b(?:some|no|any|every)(?:body|one)\b|\bwho(?:ever|m)\b", re.IGNORECASE)
ROOM_DOCSTRING_MIN = 80
SKIPS = {"skip", "skipif", "importorskip"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Length(NamedTuple):
    """One function's length in lines, from `def` to its last line, docstring included, decorators not."""

    lines: int
    name: str
    at: int


def functions(tree: ast.Module) -> list[Length]:
    """The length of every function and method, nested ones too."""
    found = [node for node in statements(tree) if isinstance(node, Function)]
    return [Length((node.end_lineno or node.lineno) - node.lineno + 1, node.name, node.lineno) for node in found]


def too_long(text: str) -> list[str]:
    """Each function of more than 60 lines."""
    return [
        f"line {each.at}: {each.name} has {each.lines} lines, more than {FUNCTION_LINES_MAX}"
        for each in functions(ast.parse(text))
        if each.lines > FUNCTION_LINES_MAX
    ]


def room_docstring_missing(text: str) -> list[str]:
    """An `__init__.py` says in one paragraph what its folder is for and what may not enter."""
    said = ast.get_docstring(ast.parse(text)) or ""
    if len(said) < ROOM_DOCSTRING_MIN:
        return ["line 1: no paragraph on what this folder is for"]
    paragraphs = [each for each in said.split("\n\n")[1:] if not each.startswith("|")]  # a table is none
    return ["line 1: more than one paragraph"] if len(paragraphs) > 1 else []


def formulas(text: str) -> list[str]:
    """Docstrings that say "Knows … Refuses to know …" in place of what the thing does."""
    if not any(word in text for word in FORMULA_WORDS):
        return []
    found = [(node, ast.get_docstring(node) or "") for node in documented(ast.parse(text))]
    return [f"line {getattr(node, 'lineno', 1)}: {hit[1]}" for node, said in found if (hit := FORMULA.search(said))]


def docstring_missing(text: str) -> list[str]:
    """A module says in its first lines what it knows; only a file without any text need not."""
    if re.match(r'"""[^"\s]', text):
        return []
    tree = ast.parse(text)
    return [] if not tree.body or ast.get_docstring(tree) else ["line 1: the module has no docstring"]


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each import as (line, the module's name)."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "staniel":
            yield from ((node.lineno, f"staniel.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module


def forbidden_imports(path: str, text: str) -> list[str]:
    """What the package of `path` ("journal/kestrel/log.py") imports and must not."""
    package = path.partition("/")[0]
    return [
        f"line {line}: {package} must not import {name}"
        for line, name in imported(ast.parse(text))
        if not (package == "sim" and name in HUB) and not _may_import(path, package, name)
    ]


def _may_import(path: str, package: str, name: str) -> bool:
    top, _, rest = name.partition(".")
    if top == "staniel":
        allowed = {package, *MAY_IMPORT[package], *(("cluster",) if path.startswith(OF_MEMBERS) else ())}
        return rest == "compiled" or rest.partition(".")[0] in allowed
    if top in (*OURS, "tests"):  # one name for each module: staniel.journal, never journal
        return False
    name = top
    if package in SYNCHRONOUS and path != DISK and not path.startswith(ETCD) and name in WORLDLY:
        return False
    if path in ANYWHERE and name in WORLDLY - {"socket", "select"}:  # of these the constants
        return False
    return package in ONLY_PLACE_FOR.get(name, (package,))


def forbidden_calls(path: str, text: str) -> list[str]:
    """In the synchronous packages: async code, the disk outside journal/disk/os_fs.py, a clock by another name."""
    if path.partition("/")[0] not in SYNCHRONOUS or path.startswith(ETCD):
        return []
    found = ((getattr(node, "lineno", 0), _forbidden(path, node)) for node in ast.walk(ast.parse(text)))
    return [f"line {line}: {why}" for line, why in found if why]


def _forbidden(path: str, node: ast.AST) -> str:
    match node:
        case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
            return "async code below server/"
        case ast.ImportFrom(module="os") if path != DISK:
            return f"os outside {DISK}"
        case ast.Attribute(value=ast.Name(id="os"), attr=attr) if attr not in ("path", "fspath") and path != DISK:
            return f"os.{attr} outside {DISK}"
        case ast.Call(func=ast.Name(id="open")) if path != DISK:
            return f"open() outside {DISK}"
        case ast.Call(func=ast.Name(id="print")):
            return "print() below server/"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=attr)) if attr in CLOCK_CALLS:
            return f"a clock, {attr}(), below server/"
    return ""


def machine_words(text: str) -> list[str]:
    """Paths that only one machine has."""
    return _matches(MACHINE_WORDS, text)


def persons(text: str) -> list[str]:
    """Words for a person where a client, a reader, a reply or a thread is meant: say which."""
    return _matches(PERSONS, text)


def bare_ignores(text: str) -> list[str]:
    """A `type: ignore` that does not say which error it means."""
    return _matches(BARE_IGNORE, text)


def _matches(pattern: re.Pattern[str], text: str) -> list[str]:
    lines = enumerate(text.splitlines(), start=1)
    return [f"line {number}: {found.group()!r}" for number, line in lines for found in pattern.finditer(line)]


def skips(text: str) -> list[str]:
    """Tests do not skip themselves: what a machine may lack is said with the `programs` marker; CI insists on it."""
    if not any(word in text for word in SKIPS):
        return []
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute) and node.attr in SKIPS]
    return [f"line {each.lineno}: {ast.unparse(each)}" for each in found if ast.unparse(each).startswith("pytest.")]
