"""Inside pytest, for `make quick`: leaves out slow tests and those that would begin too late, and writes down which.

tests/conftest.py registers it for the option `--quick FILE`, a file with the options as JSON. Where two processes share
the files, both append to one report.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

import pytest
from msgspec import Struct

SPARK_FIXTURES = {"spark", "holder", "no_spark"}
BROWSERS = {"chromium", "python:playwright"}


class Why(Enum):
    """Why a test is left out."""

    SLOW = "marked slow"
    BROWSER = "in a browser"
    SPARK = "with Spark"
    LATE = "out of time"


class Options(Struct):
    """What `make quick` tells pytest."""

    deadline: float
    """When the last test may begin: a value of time.monotonic(), which all processes share."""
    collect_until: float
    """When the last file may be imported; some files take as long to import as to run."""
    slow: list[str]
    """Test files of which each test counts as slow. Relative to the root, as all paths here."""
    report: str
    """Where to append a line for each test that is left out: why, a tab, the file."""


class NotCollected(pytest.Module):
    """A file for whose import there was no time."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return []


class Budget:
    def __init__(self, options: Options, root: Path) -> None:
        self.options = options
        self.root = root

    @classmethod
    def from_file(cls, path: str, root: Path) -> Budget:
        return cls(Options(**json.loads(Path(path).read_text("utf-8"))), root)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
        path = module_path.relative_to(self.root).as_posix()
        if time.monotonic() < self.options.collect_until:
            return None
        self.report([(Why.LATE, path)])
        return NotCollected.from_parent(parent, path=module_path)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        slow = [(item, why) for item in items if (why := self.why_slow(item))]
        if slow:
            self.report([(why, self.file_of(item)) for item, why in slow])
            left_out = {item for item, _ in slow}
            items[:] = [item for item in items if item not in left_out]
            config.hook.pytest_deselected(items=list(left_out))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Pass over a test that would begin too late, by saying that it was run."""
        if time.monotonic() < self.options.deadline:
            return None
        self.report([(Why.LATE, self.file_of(item))])
        return True

    def why_slow(self, item: pytest.Item) -> Why | None:
        path = self.file_of(item)
        programs = {str(name) for mark in item.iter_markers("programs") for name in mark.args}
        if programs & BROWSERS:
            return Why.BROWSER
        if SPARK_FIXTURES & set(getattr(item, "fixturenames", ())):
            return Why.SPARK
        return Why.SLOW if path in self.options.slow or item.get_closest_marker("slow") else None

    def file_of(self, item: pytest.Item) -> str:
        return item.path.relative_to(self.root).as_posix()

    def report(self, left_out: list[tuple[Why, str]]) -> None:
        with open(self.options.report, "a") as file:
            file.write("".join(f"{why.value}\t{path}\n" for why, path in left_out))
