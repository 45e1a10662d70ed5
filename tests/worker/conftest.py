"""What every test of workers needs."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def path_of_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give `sys.path` back: a worker adds the working folder, which other tests of this process must not see."""
    monkeypatch.setattr(sys, "path", list(sys.path))
