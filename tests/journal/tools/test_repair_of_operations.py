"""A repaired copy of a spool whose server was killed amid an operation: a start on it finishes what was under way."""

from __future__ import annotations

from pathlib import Path

import pytest

from staniel.journal.disk.os_fs import OsFs
from staniel.journal.tools.repair import Repair
from staniel.sim.disk.disk import Disk
from staniel.sim.world import end_operations
from tests.broker.operations.test_undo import Admin, asked, filled
from tests.faults.rich import files
from tests.support.world import START_MS, World

LIBKESTREL = 'default.journal_format = "libkestrel"'


def repaired(disk: Disk, config: str, folder: Path) -> World:
    """`disk` as real files in `folder`, repaired, and back."""
    for path in files(disk, "s"):
        real = folder / path
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_bytes(disk.read(path, 0, disk.size(path)))
    fs = OsFs()
    assert list(Repair(fs, str(folder / "s"), None, str(folder / "t"), START_MS + 1000, lambda size: None).run())
    fs.close()
    copy = Disk()
    for made in [path for path in (folder / "t").rglob("*") if path.is_file()]:
        path = f"s/{made.relative_to(folder / 't')}"
        copy.make_folder(path.rpartition("/")[0])
        file = copy.append(path)
        file.write(made.read_bytes())
        file.close()
    copy.sync_all("")
    return World(config, copy, START_MS + 2000)


@pytest.mark.parametrize("format_", ["", LIBKESTREL], ids=["kestrel", "libkestrel"])
@pytest.mark.parametrize("what", ["purge", "move", "undo of a move"])
def test_every_item_is_there_once_whenever_the_server_was_killed(what: str, format_: str, tmp_path: Path) -> None:
    world = filled(8, format_)
    admin = Admin(world)
    if what == "undo of a move":
        number = asked(world, "POST", "/api/queues/q/move", {"to": "r"})[1]["undo"]
        admin.asks("POST", f"/api/undo/{number}")
    else:
        admin.asks("POST", f"/api/queues/q/{what}", {"to": "r"} if what == "move" else {})
    states = 0
    while world.broker.operations.running:
        again = repaired(world.disk, format_, tmp_path / str(states))
        end_operations(again)
        for each in asked(again, "GET", "/api/undo")[1] if what == "purge" else []:
            asked(again, "POST", f"/api/undo/{each['id']}")
        assert sorted(again.items("q") + again.items("r")) == sorted(f"item {number}".encode() for number in range(8))
        states += 1
        world.sync()
        world.do_tasks()
        world.turn(1)
    assert states > 1
