"""Connections of kombu to a server that all tests of a module share; each test has queues of its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from staniel.client import Client
from tests.support.process import Server, running, until

LONG_S = 60.0  # a busy machine's patience: nothing here is about time
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


def eventually(condition: Callable[[], object]) -> bool:
    """Wait for a condition, longer than any machine takes."""
    return until(condition, LONG_S)


def stored(server: Server) -> dict[str, int]:
    """The names of the server's queues with their numbers of items, without those that are open."""
    with Client(*server.address) as client:
        stats = client.stats()
    ending = "_items"
    names = [key.removeprefix("queue_").removesuffix(ending) for key in stats if key.endswith(ending)]
    return {name: int(stats[f"queue_{name}_items"]) for name in names if f"queue_{name}_waiters" in stats}


def held(server: Server, queue: str) -> int:
    """The number of a queue's items that are open."""
    with Client(*server.address) as client:
        return int(client.stats()[f"queue_{queue}_open_transactions"])
