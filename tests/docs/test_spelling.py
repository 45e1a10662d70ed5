"""Every word of the documents, and of the docstrings and comments of the code, is English or in words.txt beside this
file, which has names and words of the field. Quoted code, blocks of code and addresses are left out.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.tidy.syntax import comments, documented

pytestmark = pytest.mark.programs("python:spellchecker")
ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("words.txt")
WORD = re.compile(r"(?<![\w.\\/~@#$'’])(?<!--)[A-Za-z][a-z]+(?![\w/]|\.\w)")
CODE = re.compile(r"^```.*?^```|^ {4}.*?$|`+[^`]*`+|\]\([^)]*\)|https?://\S+|<[^>\n]*>", re.MULTILINE | re.DOTALL)


def words_of(text: str) -> set[str]:
    return {found.lower() for found in WORD.findall(CODE.sub(" ", text))}


def told_in(source: str) -> Iterator[str]:
    """The docstrings and comments of a module."""
    for node in documented(ast.parse(source)):
        yield ast.get_docstring(node) or ""
    yield from comments(source)


@cache
def places() -> dict[str, list[str]]:
    """Each word, with the files that have it."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = defaultdict(list)
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix not in (".md", ".py") or path.is_symlink() or not path.is_file():
            continue
        text = path.read_text("utf-8")
        for word in words_of("\n\n".join(told_in(text)) if path.suffix == ".py" else text):
            found[word].append(name)
    return found


@cache
def english() -> Any:
    return importlib.import_module("spellchecker").SpellChecker()


def misspelled(words: Iterable[str]) -> set[str]:
    """Return the words that are neither in the dictionary nor in the list."""
    listed = set(LIST.read_text("utf-8").split())
    return {word for word in english().unknown(words) if word not in listed}


@pytest.mark.slow
def test_every_word_is_spelled_as_in_the_dictionary_or_the_list() -> None:
    wrong = {word: places()[word][:3] for word in sorted(misspelled(places()))}
    assert wrong == {}, f"correct them, or add names and words of the field to {LIST.relative_to(ROOT)}"


@pytest.mark.slow
def test_a_word_of_the_list_is_used_and_is_not_in_the_dictionary() -> None:
    listed = LIST.read_text("utf-8").split()
    assert listed == sorted(set(listed))
    assert set(listed) - set(english().unknown(listed) & places().keys()) == set(), "remove them from the list"


def test_a_planted_misspelling_is_found() -> None:
    page = "A durabel queue recieves `itmes`, [each](itmes.md) once.\n\n    pip instal itmes\n"
    assert misspelled(words_of(page)) == {"durabel", "recieves"}
    module = '"""Return the qeue."""\nitmes = 1  # thier length\n'
    assert misspelled(words_of("\n\n".join(told_in(module)))) == {"qeue", "thier"}
