"""The processes that Spark keeps for Python tasks: what the first task has loaded is looked at once."""

from __future__ import annotations

import gc
import os
import time
from itertools import groupby

import pytest
from pyspark.sql import SparkSession

from staniel.pipeline.tasks.summarise import run
from staniel.pipeline.worker_gc import IS_REUSED, freeze_imports


def frozen(task: int) -> tuple[int, float, int]:
    return os.getpid(), time.monotonic(), gc.get_freeze_count()


def test_a_worker_looks_for_garbage_only_in_what_came_after_its_first_task(spark: SparkSession) -> None:
    told = sorted(run(spark, list(range(12)), frozen))
    later = [counts for _, some in groupby(told, key=lambda each: each[0]) for _, _, counts in list(some)[1:]]
    assert later and min(later) > 10_000


def test_other_processes_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(IS_REUSED, raising=False)
    before = gc.get_freeze_count()
    freeze_imports()
    assert gc.get_freeze_count() == before
