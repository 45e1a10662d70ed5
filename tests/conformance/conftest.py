"""Runs the cases that wait for a server ahead, several at a time, so that one's pauses are another's work.

A test that asks for `outcome` is parametrized with `play`, a function without arguments; all of a file's are handed to
a few threads at once, and each test then reports what became of its own. Not all of the session's: every process of
pytest-xdist knows them all, and would play the files of the others, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import pytest

AT_ONCE = 6  # on two cores: most of a case's time is spent waiting

Play = Callable[[], None]


@pytest.fixture(scope="module")
def _outcomes(request: pytest.FixtureRequest) -> Iterator[dict[Play, Future[None]]]:
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    plays: list[Play] = [cast(Play, item.callspec.params["play"]) for item in items if "outcome" in item.fixturenames]
    pool = ThreadPoolExecutor(AT_ONCE, "conformance")
    yield {play: pool.submit(play) for play in plays}
    pool.shutdown(cancel_futures=True)


@pytest.fixture
def outcome(play: Play, _outcomes: dict[Play, Future[None]]) -> Callable[[], None]:
    """Waits for the case; raises what it raised."""
    return _outcomes[play].result
