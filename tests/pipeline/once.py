"""A task of the sink whose rows are stored once, tried again and again, for tests of items and of jobs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from staniel.pipeline.sources.item_rows import Row
from staniel.pipeline.sources.live_options import SinkOptions
from staniel.pipeline.sources.repeat_guard import RepeatGuard, TaskCommit
from staniel.pipeline.sources.row_keys import RowKeys
from staniel.pipeline.sources.sink import put_all


class Once:
    """A task of a batch that is tried again and again, each time from nothing but its note."""

    def __init__(self, address: str, guard: Path, **options: str) -> None:
        given = {"servers": address, "queue": "jobs", "windowItems": "6", "txnAppId": "copy", **options}
        self.options = SinkOptions({**given, "guardPath": str(guard)})
        self.now_ms = 1_000_000

    def guard(self) -> RepeatGuard:
        return RepeatGuard(self.options.guard_path, "k.1.0.json", lambda: self.now_ms)

    def put(self, values: list[str], guard: RepeatGuard | None = None) -> TaskCommit:
        rows = iter([pa.RecordBatch.from_pydict({"value": values})])
        return put_all(rows, self.options, guard or self.guard(), RowKeys("copy", "query", 1, 0))

    def die_in(self, monkeypatch: pytest.MonkeyPatch, window: int, values: list[str]) -> None:
        """Put until a window's rows are stored and not noted."""

        class Died(BaseException):
            pass

        def noting(self: RepeatGuard, rows: list[Row], left: list[int] = [window]) -> None:  # noqa: B006
            left[0] -= 1
            if not left[0]:
                raise Died
            real(self, rows)

        real = RepeatGuard.note_stored
        with monkeypatch.context() as patched:
            patched.setattr(RepeatGuard, "note_stored", noting)
            with pytest.raises(Died):
                self.put(values)
