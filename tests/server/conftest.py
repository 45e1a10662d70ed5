"""A server for each test of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import Server, running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A running server with the default configuration; a traceback on its standard error fails the test."""
    with running(tmp_path) as started:
        yield started
