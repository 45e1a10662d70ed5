"""What the broker has to say to whoever operates it: one event a happening, with fields. Refuses to know where it
goes.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class Level(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Report(Protocol):
    """`event` is a short dotted name; `fields` are numbers and texts."""

    def __call__(self, level: Level, event: str, /, **fields: object) -> None: ...


def silent(level: Level, event: str, /, **fields: object) -> None:
    """Says nothing."""
