"""The file names of a command log's folder.

    000000001.log          a segment: nine digits, exactly
    000000001.log.rw       its unfinished successor; replaced by the next rewrite
    000000001.log.damaged  set aside, because its header is not a command log's; then .damaged.2 and so on
    append.lock            held by the server that appends
    read.lock              held while the segments are read or replaced

The original uses the segments and the locks only. Source: "Log Directory Structure" of the workq documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

HELD_AS = ".cmdlog"  # in the place of a queue's name in retention holds; no queue can have it
OWN_FOLDER = "cmdlog"  # within the spool's own folder, unless configured elsewhere
APPEND_LOCK = "append.lock"
READ_LOCK = "read.lock"
REWRITE_SUFFIX = ".rw"
ASIDE_SUFFIX = ".damaged"
NUMBER_MAX = 999_999_999
SEGMENT_BYTES = 64 << 20  # of a segment, unless configured
_SEGMENT = re.compile(r"([0-9]{9})\.log")


def segment_name(number: int) -> str:
    assert 0 <= number <= NUMBER_MAX
    return f"{number:09}.log"


def segment_numbers(entries: Iterable[tuple[str, bool]]) -> list[int]:
    """Return the numbers of the segments in a listing of (name, is a regular file), lowest first."""
    matches = (_SEGMENT.fullmatch(name) for name, is_file in entries if is_file)
    return sorted(int(match[1]) for match in matches if match)


def holes(numbers: list[int]) -> list[tuple[int, int]]:
    """Return (first, last) of each run of numbers that is missing between the lowest and the highest."""
    pairs = pairwise(numbers)
    return [(before + 1, after - 1) for before, after in pairs if after - before > 1]
