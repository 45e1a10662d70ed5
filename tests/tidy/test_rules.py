"""Each tidy rule finds what it is there to find, and lets the neighbouring good case pass."""

from __future__ import annotations

import ast

import pytest

from tests.tidy import rules

LONG_FUNCTION = "def f():\n" + "    x = 1\n" * 60

FOLDER = "work"  # kept apart from its slashes, so that a search for paths of one machine does not find this file


def test_a_function_of_61_lines_is_too_long_and_one_of_60_is_not() -> None:
    assert rules.too_long(LONG_FUNCTION) == ["line 1: f has 61 lines, more than 60"]
    assert rules.too_long(LONG_FUNCTION.removesuffix("    x = 1\n")) == []


def test_methods_and_nested_functions_count_with_their_docstrings() -> None:
    text = 'class A:\n    def f(self):\n        """Says."""\n        def g(): ...\n        return g\n'
    assert sorted(rules.functions(ast.parse(text))) == [rules.Length(1, "g", 4), rules.Length(4, "f", 2)]


@pytest.mark.parametrize("text", ["", "# only a comment\n", '"""Knows."""\nx = 1\n'])
def test_an_empty_file_or_one_that_opens_with_a_docstring_passes(text: str) -> None:
    assert rules.docstring_missing(text) == []


def test_code_without_a_docstring_is_found() -> None:
    assert rules.docstring_missing("x = 1\n'late'\n") == ["line 1: the module has no docstring"]


@pytest.mark.parametrize("text", ["", '"""Queues."""', '"""One.\n\nTwo.\n\n' + "Three. " * 20 + '"""'])
def test_a_room_without_one_paragraph_on_it_is_found(text: str) -> None:
    assert len(rules.room_docstring_missing(text)) == 1


def test_a_room_described_in_a_paragraph_passes() -> None:
    assert rules.room_docstring_missing(f'"""{"What it is for. " * 8}"""\n') == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""Files.\n\nKnows names. Refuses to know bytes."""', ["line 1: Knows"]),
        ('x = 1\ndef f():\n    """Reads. Refuses to know."""', ["line 2: Refuses to know"]),
        ('"""Nothing else knows. It knows how."""', []),
    ],
)
def test_the_formula_of_old_docstrings_is_found(text: str, found: list[str]) -> None:
    assert rules.formulas(text) == found


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("protocol/parser.py", "from staniel.queues.queue import Queue"),
        ("queues/queue.py", "import staniel.journal.kestrel.log"),
        ("journal/kestrel/log.py", "from broker import broker"),
        ("journal/kestrel/log.py", "import time"),
        ("broker/broker.py", "from random import random"),
        ("broker/broker.py", "def f():\n    import trio"),
        ("server/hub.py", "import staniel.sim.disk.disk"),
        ("server/hub.py", "import pyspark.sql"),
        ("sim/world.py", "import trio"),
        ("sim/world.py", "from staniel.server.loop import Loop"),
        ("sim/world.py", "import staniel.server.machine"),
        ("server/hub.py", "import trio"),
        ("server/connection.py", "from time import perf_counter_ns"),
        ("queues/queue.py", "import tests.conftest"),
        ("cluster/model.py", "import trio"),
        ("server/hub.py", "from staniel.cluster.etcd.client import Etcd"),
    ],
)
def test_a_forbidden_import_is_found(path: str, line: str) -> None:
    assert len(rules.forbidden_imports(path, line)) == 1


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("journal/kestrel/log.py", "from staniel.queues.changes import Change"),
        ("journal/disk/os_fs.py", "import os, fcntl"),
        ("broker/broker.py", "import msgspec"),
        ("broker/broker.py", "from .session import Session"),
        ("server/loop.py", "import time, random, trio, staniel.broker.broker"),
        ("sim/world.py", "import random, staniel.broker.broker"),
        ("sim/hub/world.py", "from staniel.server.hub import Hub"),
        ("pipeline/sessions.py", "import pyspark"),
        ("cluster/etcd/watch.py", "import trio"),
    ],
)
def test_an_allowed_import_passes(path: str, line: str) -> None:
    assert rules.forbidden_imports(path, line) == []


@pytest.mark.parametrize(
    "line",
    [
        "async def f(): pass",
        "os.fsync(3)",
        "from os import write",
        "open('x')",
        "print('x')",
        "datetime.now()",
    ],
)
def test_a_forbidden_call_is_found_below_the_server_and_allowed_in_it(line: str) -> None:
    assert len(rules.forbidden_calls("journal/kestrel/log.py", line)) == 1
    assert rules.forbidden_calls("server/hub.py", line) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("journal/disk/os_fs.py", "os.fdatasync(3)"),
        ("journal/disk/os_fs.py", "open('x')"),
        ("journal/kestrel/files.py", "os.path.join('a', 'b')"),
        ("queues/queue.py", "queue.open(3)"),
        ("queues/queue.py", "self.now()"),
    ],
)
def test_the_disk_in_its_own_file_and_names_that_only_look_alike_pass(path: str, line: str) -> None:
    assert rules.forbidden_calls(path, line) == []


@pytest.mark.parametrize("text", [f"see /{FOLDER}/main", "open('/root/x')", "cd ../shared", "/home/ada/spool"])
def test_a_path_of_one_machine_is_found(text: str) -> None:
    assert len(rules.machine_words(text)) == 1


@pytest.mark.parametrize("text", ["get work/t=500/open", "/var/spool/staniel", f"spool/{FOLDER}/x", "a shared lock"])
def test_queue_names_and_paths_of_every_machine_pass(text: str) -> None:
    assert rules.machine_words(text) == []


@pytest.mark.parametrize(
    "text", ["# Somebody waits", "nobody's item", "for whoever asks", "for everyone", "whom it calls"]
)
def test_a_word_for_a_person_is_found(text: str) -> None:
    assert len(rules.persons(text)) == 1


@pytest.mark.parametrize("text", ["the body of some reply", "no one_id", "the client whose item it is", "some bodies"])
def test_words_that_only_look_like_persons_pass(text: str) -> None:
    assert rules.persons(text) == []


def test_a_type_ignore_without_its_error_is_found() -> None:
    assert len(rules.bare_ignores("x = 1  # type: ignore\n")) == 1
    assert rules.bare_ignores("x = 1  # type: ignore[assignment]\n") == []


def test_a_test_that_skips_itself_is_found() -> None:
    assert len(rules.skips("@pytest.mark.skipif(True)\ndef f():\n    pytest.skip('x')\n")) == 2
    assert rules.skips("pytest.fail('x')\nself.skip(3)\n") == []
