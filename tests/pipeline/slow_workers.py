"""Starts a stream again when Spark's ten seconds for a new Python worker were too short on a busy machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import PySparkException

Result = TypeVar("Result")
TRIES = 5
TOO_SLOW = "failed to connect back"


def retried(start: Callable[[], Result]) -> Result:
    """`start`, again if a worker was too slow to come up: then nothing was read, and a stream goes on where it was."""
    for _ in range(TRIES):
        try:
            return start()
        except PySparkException as error:
            if TOO_SLOW not in str(error):
                raise
            slow = error
    raise slow
