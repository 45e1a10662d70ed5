"""What the pipeline calls a torn end: the same as every other tool, in every format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.libkestrel.records import SEGMENT_MAGIC, encode_put
from staniel.journal.workq import encoder as cmdlog
from staniel.pipeline.formats.adapters import list_segments
from staniel.pipeline.formats.base import OnCorrupt, Part, Reading
from staniel.pipeline.formats.kestrel.adapter import read_summaries
from staniel.pipeline.lake.folders import FileVanished, LocalFolder
from staniel.pipeline.tasks import verify as module
from staniel.queues.config import JournalDialect
from staniel.queues.item import Item
from tests.journal.workq.test_recovery import add

ITEM = Item(b"item", 1_700_000_000_000)
KESTREL = Encoder(JournalDialect.DOCUMENTS).addx(ITEM)
FILES: dict[str, tuple[list[str], bytes]] = {
    "kestrel": (["q.5", "q"], KESTREL * 2),
    "libkestrel": (["q.5", "q.7"], SEGMENT_MAGIC + encode_put(ITEM, 1) + encode_put(ITEM, 2)),
    "workq": (["000000001.log", "000000002.log"], cmdlog.MAGIC + add(1) + add(2)),
}


def here(spark: object, tasks: list[Any], do: Callable[[Any], Any], _: object) -> list[Any]:
    return [do(task) for task in tasks]


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("sealed", [False, True])
def test_verify_names_it_and_it_is_bad_in_a_sealed_file_only(
    form: str, sealed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, data = FILES[form]
    for name in names:
        (tmp_path / name).write_bytes(data)
    file = names[0] if sealed else names[1]
    (tmp_path / file).write_bytes(data[:-3])
    monkeypatch.setattr(module, "run_each", here)
    found = module.verify(None, str(tmp_path), {"format": form})  # type: ignore[arg-type]
    assert [each.items for each in found] == ([1, 2] if sealed else [2, 1])
    (one,) = [each for each in found if each.wrong]
    assert (one.file, one.torn, one.bad) == (file, not sealed, sealed)
    first, second = one.lines()
    assert first.endswith(": damaged" if sealed else ": torn end")
    assert second.startswith(f"{file}: byte {one.at}, {len(data) - 3 - one.at} bytes: ")
    assert (": torn end, " in second) != sealed


def test_the_tail_of_a_summary_is_torn_or_corrupt_as_the_file_is_written_to_or_sealed(tmp_path: Path) -> None:
    for name in ("q.5", "q"):
        (tmp_path / name).write_bytes(KESTREL * 2 + KESTREL[:-3])
    _, found = list_segments(LocalFolder(str(tmp_path)), "kestrel")
    part = Part("q", found["q"])
    batches = read_summaries(LocalFolder(str(tmp_path)), part, Reading(on_corrupt=OnCorrupt.PERMISSIVE))
    rows = [row for each in batches for row in each.to_pylist()]
    assert [(row["file"], row["tail"], row["badOffset"]) for row in rows] == [
        ("q.5", "corrupt", 2 * len(KESTREL)),
        ("q", "torn", 2 * len(KESTREL)),
    ]


def test_verify_says_why_a_queue_could_not_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "q").write_bytes(KESTREL)
    monkeypatch.setattr(module, "run_each", lambda spark, tasks, do, _: [FileVanished("no files here") for _ in tasks])
    with pytest.raises(FileVanished, match="queues q, at each of 5 tries: no files here"):
        module.verify(None, str(tmp_path), {})  # type: ignore[arg-type]
