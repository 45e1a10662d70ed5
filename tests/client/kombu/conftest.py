"""Connections of kombu to a server that all tests of a module share; each test has queues of its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.process import Server, running

CONFIG = """
[server]
max_open_transactions = 10
[queues.full]
max_items = 1
[queues.small]
max_item_size = "1KB"
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("kombu"), config=CONFIG) as started:
        yield started


@pytest.fixture
def kombu() -> Any:
    """The library, with our transport in it. It is imported here, so that machines without it can collect the tests."""
    importlib.import_module("staniel.kombu")
    return importlib.import_module("kombu")


@pytest.fixture
def connected(kombu: Any) -> Iterator[Callable[..., Any]]:
    """A function that makes connections, which are closed at the end."""
    made = []

    def connect(server: Server, **options: Any) -> Any:
        made.append(kombu.Connection(url(server), **options))
        return made[-1]

    yield connect
    for connection in made:
        connection.release()


def url(server: Server) -> str:
    return f"staniel://127.0.0.1:{server.port}//"
