"""Functions are not called by everyday verbs without an object, locals by words that say nothing, or exceptions by
a bare adjective: which of them may stay, and how many.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterable
from functools import cache, lru_cache

import pytest

from tests.tidy.findings import expect_none
from tests.tidy.test_tidy import python_files, short

FOLDERS = (
    *("server", "broker", "queues", "journal", "protocol", "client", "worker", "pipeline", "cluster"),
    *("sim", "bench"),
)

# How many functions of FOLDERS may have this word, without its underscores, as their whole name. Only lower a figure.
CEILINGS = {
    "beside": 0,
    "begin": 3,
    "come": 1,
    "due": 0,
    "each": 0,
    "finish": 17,
    "found": 0,
    "give": 0,
    "go_on": 2,
    "look": 3,
    "note": 1,
    "nothing": 0,
    "rest": 1,
    "settle": 0,
    "step": 2,
    "take": 2,
    "tell": 4,
}
SLACK = 3  # a ceiling that is further above the count must be lowered

LOCALS_FOLDERS = (*FOLDERS, "packaging", "src")
LOCAL_CEILINGS = {"beside": 3, "each": 0, "found": 115, "rest": 24, "there": 13}
"""How often a local or a parameter of LOCALS_FOLDERS may be given this word as its whole name. Only lower a figure."""

ONE_WORD_EXCEPTIONS = {
    "Busy": "programs catch it: staniel.client",
    "Full": "likewise",
    "Refused": "likewise",
    "Violation": "a noun that says what it is: a promise was broken",
}
"""Exceptions whose names may be one word that does not end in Error, each with the reason."""

MEND = "Give the function a verb and its object: `sync_all`, not `settle`. A word at 0 may not come back."
MEND_EXCEPTION = "Call the exception after a noun and what happened to it, `ServerLost`, or end its name in Error."
MEND_LOCAL = "Call the local what it holds: `for queue in queues`, not `for each in queues`."

Function = ast.FunctionDef | ast.AsyncFunctionDef


@lru_cache(maxsize=1)
def nodes_of(text: str) -> tuple[ast.AST, ...]:
    """Return what stands in a file. The last one is kept: all words are looked for in a file before the next."""
    return tuple(ast.walk(ast.parse(text)))


def functions_called(word: str, text: str) -> list[str]:
    """Return a finding for each function of a file whose whole name is `word`."""
    return [
        f"{node.lineno}: `{node.name}` does not say its object"
        for node in nodes_of(text)
        if isinstance(node, Function) and node.name.strip("_") == word
    ]


def locals_called(word: str, text: str) -> list[str]:
    """Return a finding for each place of a file that gives the name `word` to a local or a parameter."""
    return [
        f"{node.lineno}: `{word}` does not say what it holds"
        for node in nodes_of(text)
        if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == word)
        or (isinstance(node, ast.arg) and node.arg == word)
    ]


def exceptions_of_one_word(files: dict[str, str]) -> list[str]:
    """Return a finding for each exception whose name is one word and does not end in Error. `files`: texts by path."""
    classes = [
        (path, node, {ast.unparse(base).rpartition(".")[2] for base in node.bases})
        for path, text in files.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    ]
    exceptions = {name for name, value in vars(builtins).items() if _is_exception(value)} | {"ClickException"}
    while more := {node.name for _, node, bases in classes if bases & exceptions} - exceptions:
        exceptions |= more
    return [
        f"{path}:{node.lineno}: `{node.name}` does not say what it is"
        for path, node, bases in classes
        if bases & exceptions and re.fullmatch(r"_?[A-Z][a-z]+", node.name) and not node.name.endswith("Error")
    ]


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


@cache
def found_by_word() -> dict[str, list[str]]:
    return _found(CEILINGS, FOLDERS, functions_called)


@cache
def locals_by_word() -> dict[str, list[str]]:
    return _found(LOCAL_CEILINGS, LOCALS_FOLDERS, locals_called)


def _found(words: Iterable[str], folders: Iterable[str], rule: Callable[[str, str], list[str]]) -> dict[str, list[str]]:
    findings: dict[str, list[str]] = {word: [] for word in words}
    for path in python_files(folders):
        text = path.read_text("utf-8")
        for word in findings:
            if word in text:
                findings[word] += [f"{short(path)}:{finding}" for finding in rule(word, text)]
    return findings


@pytest.mark.parametrize("word", CEILINGS)
def test_no_more_functions_have_an_everyday_verb_as_their_name(word: str) -> None:
    found = found_by_word()[word]
    if len(found) > CEILINGS[word]:
        expect_none(found, f"{MEND} `{word}` may stand {CEILINGS[word]} times.")


@pytest.mark.parametrize("word", CEILINGS)
def test_a_ceiling_follows_the_count_down(word: str) -> None:
    count = len(found_by_word()[word])
    assert CEILINGS[word] - count <= SLACK, f"lower the ceiling of {word} to {count}"


@pytest.mark.parametrize("word", LOCAL_CEILINGS)
def test_no_more_locals_have_a_word_that_says_nothing(word: str) -> None:
    findings = locals_by_word()[word]
    if len(findings) > LOCAL_CEILINGS[word]:
        expect_none(findings, f"{MEND_LOCAL} `{word}` may stand {LOCAL_CEILINGS[word]} times.")


@pytest.mark.parametrize("word", LOCAL_CEILINGS)
def test_a_ceiling_of_locals_follows_the_count_down(word: str) -> None:
    count = len(locals_by_word()[word])
    assert LOCAL_CEILINGS[word] - count <= SLACK, f"lower the ceiling of {word} to {count}"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("for each in items: ...", 1),
        ("def f(each): return each", 1),
        ("[each for each in items]", 1),
        ("lambda each: each", 1),
        ("each = 1", 1),
        ("a.each = each", 0),
        ("f(each=1)", 0),
        ("each_item = 'each'", 0),
    ],
)
def test_a_local_is_found_where_it_gets_its_name(text: str, count: int) -> None:
    assert len(locals_called("each", text)) == count


def test_an_exception_says_what_it_is() -> None:
    files = {short(path): path.read_text("utf-8") for path in python_files(LOCALS_FOLDERS)}
    findings = [
        finding
        for finding in exceptions_of_one_word(files)
        if finding.split("`")[1].lstrip("_") not in ONE_WORD_EXCEPTIONS
    ]
    expect_none(findings, MEND_EXCEPTION)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("class Lost(Exception): ...", 1),
        ("class Lost(OSError): ...\nclass _Gone(Lost): ...", 2),
        ("class Lost(click.ClickException): ...", 1),
        ("class ServerLost(Exception): ...", 0),
        ("class Error(Exception): ...", 0),
        ("class Lost: ...", 0),
    ],
)
def test_an_exception_of_one_word_is_found(text: str, count: int) -> None:
    assert len(exceptions_of_one_word({"a.py": text})) == count


@pytest.mark.parametrize(
    ("text", "count"), [("def settle(): ...", 1), ("def _settle(): ...", 1), ("def settled(): ...", 0)]
)
def test_a_word_is_found_as_a_whole_name(text: str, count: int) -> None:
    assert len(functions_called("settle", text)) == count
