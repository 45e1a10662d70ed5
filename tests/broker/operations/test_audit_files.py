"""The files of the audit log on a disk whose power is cut."""

from __future__ import annotations

from staniel.sim.disk.durable import Crash
from tests.broker.operations.test_undo import asked, filled, settles


def test_the_last_lines_before_a_new_file_are_synced_too() -> None:
    world = filled(1, 'admin.audit_log = "64KB"')
    while "audit.1" not in [name for name, _ in world.disk.list("s/.staniel")]:
        asked(world, "POST", "/api/queues/q/pause")
    path = "s/.staniel/audit.1"
    lines = world.disk.read(path, 0, world.disk.size(path))
    world.turn(1000)
    settles(world)
    world.disk.sync_folder("s/.staniel")
    assert world.disk.crash(Crash.DROP).read(path, 0, len(lines) + 1) == lines


def test_a_line_that_was_synced_has_a_name_too() -> None:
    world = filled(1, 'admin.audit_log = "64KB"')
    asked(world, "POST", "/api/queues/q/pause")
    world.turn(1000)
    settles(world)
    assert b'"operation":"pause"' in world.disk.crash(Crash.DROP).read("s/.staniel/audit", 0, 1000)
