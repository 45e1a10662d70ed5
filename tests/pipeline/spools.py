"""Spools of random histories on a real disk, and what replay finds in them; without Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from staniel.journal.kestrel.replay import Replay
from staniel.queues.config import JournalDialect
from tests.support.records import NOW_MS, Scribe, feed

STEP_WEIGHTS = {"add": 10, "remove_head": 3, "open": 5, "confirm": 4, "abort": 2}


def history(seed: int, steps: int, dialect: JournalDialect = JournalDialect.DOCUMENTS, size: int = 40) -> Scribe:
    """A queue that was used for a while, and its journal."""
    chance = random.Random(seed)
    scribe = Scribe(dialect)
    for at in range(steps):
        (verb,) = chance.choices(list(STEP_WEIGHTS), STEP_WEIGHTS.values())
        rest: tuple[object, ...] = ()
        if verb == "add":
            data = b"%d-" % at + chance.randbytes(chance.randrange(size))
            rest = (data, chance.choice([0, 0, 0, 7, 2**32 - 1]))
        elif verb in ("confirm", "abort"):
            rest = (chance.randrange(50),)
        scribe.step(NOW_MS + at, verb, *rest)
    return scribe


def write(folder: Path, queue: str, scribe: Scribe, files: int) -> list[Path]:
    """The journal as `files` files: archives, and the current one."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = sorted(set(scribe.ends))
    cuts = [0, *(ends[len(ends) * at // files] for at in range(1, files)), len(scribe.data)]
    paths = []
    for at in range(files):
        name = queue if at == files - 1 else f"{queue}.{NOW_MS + at}"
        paths.append(folder / name)
        paths[-1].write_bytes(scribe.data[cuts[at] : cuts[at + 1]])
    return paths


def replayed(paths: list[Path]) -> Replay:
    replay = Replay(0)
    for path in paths:
        feed(replay, path.read_bytes())
    return replay


def contents(replay: Replay) -> list[tuple[Any, ...]]:
    """The state as rows of the view `state`: (state, value, flags, deliveries, xid, id if it has left before)."""
    line = [
        ("returned", each.item.data, each.item.flags, each.deliveries, None, each.id) for each in replay.line.returned
    ]
    rows: list[tuple[Any, ...]] = line[::-1]
    while len(replay.line):
        taken = replay.line.pop()
        if taken.deliveries == 1:
            rows.append(("queued", taken.item.data, taken.item.flags, 0, None, taken.id))
    held = sorted(replay.open.items())
    return rows + [("open", each.item.data, each.item.flags, each.deliveries, xid, each.id) for xid, each in held]
