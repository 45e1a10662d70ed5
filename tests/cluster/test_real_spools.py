"""The stream of a broker on the real disk, its tasks in a thread, applied to another folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import cast

import pytest

from staniel.cluster.follower_spool import Applied, FollowerSpool, forget_place
from staniel.cluster.places import Place
from staniel.cluster.recording_fs import ChangeRecorder, RecordingFs
from staniel.cluster.spool_changes import encode_changes
from staniel.cluster.spool_names import SpoolPaths
from staniel.journal.disk.os_fs import OsFs
from staniel.sim.disk.disk import Disk
from tests.cluster.spools import CONFIG, contents, everything
from tests.support.world import World


class ThreadedWorld(World):
    """A world that runs each task in a thread of its own, beside a turn with the requests of one more client."""

    def run_task(self, task: object) -> None:
        thread = threading.Thread(target=super().run_task, args=(task,))
        thread.start()
        thread.join()


def items_of(world: World) -> dict[str, list[bytes]]:
    names = sorted(queue.name for queue in world.broker.queues)
    return {name: world.items(name) for name in names if name != "big"}  # its items are read from files in slices


def test_a_real_spool_is_followed_and_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.makedirs("s")
    os.makedirs("other/s")
    disk, other = OsFs(), OsFs()
    recorder = ChangeRecorder(threading.Lock())
    world = ThreadedWorld(CONFIG, cast(Disk, RecordingFs(disk, SpoolPaths("s"), recorder)))
    everything(world)
    items = items_of(world)
    assert len(items["mail"]) == len(items["q"]) == 30
    world.broker.shutdown(world.now_ms)
    follower = FollowerSpool(other, SpoolPaths("other/s"))
    number = 0
    for number, record in enumerate(encode_changes(recorder.take_changes()), 1):
        assert follower.apply(Place(1, number), record) is Applied.APPLIED
    assert follower.sync() == (1, number)
    follower.close()
    assert contents(other, SpoolPaths("other/s")) == contents(disk, SpoolPaths("s"))
    disk.close()
    monkeypatch.chdir(tmp_path / "other")
    forget_place(other, SpoolPaths("s"))
    again = World(CONFIG, cast(Disk, other), world.now_ms + 1000)
    assert items_of(again) == items
    again.broker.shutdown(again.now_ms)
    other.close()
