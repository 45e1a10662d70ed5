"""The benches of clients and workers do their work once, so that they are there when they are needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from staniel.bench.own.client_calls import CONTESTANTS, MANY, WORK, measured, table
from staniel.bench.own.worker import measure
from staniel.client import Client
from staniel.worker import Mode
from tests.support.process import running

QUICK = '[default]\nsync_journal = "os"\n'


def test_every_client_does_the_same_work_and_has_its_row(tmp_path: Path) -> None:
    with running(tmp_path, config=QUICK) as server:
        best = measured(server.address, None, MANY, 1)
        with Client(*server.address) as client:
            assert client.peek("q") is None
    assert set(best) == set(CONTESTANTS) - {"redis-py"}
    for of_work in best.values():
        assert set(of_work) == set(WORK) and all(took.wall_us > 0 for took in of_work.values())
    lines = table(best).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {name}" for name in best]


@pytest.mark.parametrize("mode", [Mode.THREADS, Mode.ASYNC])
def test_a_worker_is_measured_and_leaves_nothing(tmp_path: Path, mode: Mode) -> None:
    with running(tmp_path, config=QUICK) as server:
        assert measure(server.port, mode, 200, b"x") > 0
