"""The walk-through of examples/, function by function, in the session that the tests share."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.example_modules import load_example
from tests.pipeline.slow_workers import retried
from tests.pipeline.spools import contents, history, replayed, write
from tests.pipeline.test_drain import server_address
from tests.support.process import running


@pytest.fixture(scope="module")
def walk() -> ModuleType:
    return load_example("journals_on_spark")


def test_the_walk_through_says_what_replay_knows(
    spark: SparkSession, walk: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = write(tmp_path / "spool", "jobs", history(41, 1000), 2)
    held = contents(replayed(paths))
    walk.what_happened(spark, str(tmp_path / "spool"))
    assert "|confirm|" in capsys.readouterr().out.replace(" ", "")
    walk.what_is_there(spark, str(tmp_path / "spool"))
    opens = sum(row[0] == "open" for row in held)
    assert f"|jobs|open|{opens}|" in capsys.readouterr().out.replace(" ", "")
    walk.what_was_there(spark, str(tmp_path / "spool"))
    assert "ms:" in capsys.readouterr().out
    retried(lambda: walk.into_a_lake(spark, str(tmp_path / "spool"), str(tmp_path / "lake")))
    told = capsys.readouterr().out.splitlines()
    assert told[0] != "first run: 0 records" and told[-1] == "second run: 0 records"
    with running(tmp_path / "server") as server:
        walk.through_a_live_queue(spark, server_address(server), "jobs", str(tmp_path / "lake"))
    assert capsys.readouterr().out == "drained 100 items, 100 ids\n"
