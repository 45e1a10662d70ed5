"""Files of which a start cannot tell the format, because the system refuses to read the first bytes."""

from __future__ import annotations

import errno

import pytest

from staniel.sim.disk.disk import Disk
from tests.faults.rich import _puts, files
from tests.support.world import World

CONFIG = """
default.sync_journal = "always"
queues.news.journal_format = "libkestrel"
"""


def segments_alone() -> Disk:
    """A queue of which there are segments alone: no client has read it."""
    world = World(CONFIG)
    _puts(world, "news", 5, 20)
    left = world.disk.copy()
    for path in files(left):
        if path.startswith("s/news.read"):
            left.remove(path)
    left.sync_folder("s")
    return left


@pytest.fixture
def disk() -> Disk:
    return segments_alone()


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM, errno.ESTALE])
def test_a_segment_that_cannot_be_read_for_a_moment_is_no_damaged_archive(disk: Disk, code: int) -> None:
    (segment,) = [path for path in files(disk) if path.startswith("s/news.")]
    before = disk.read(segment, 0, 1 << 20)
    disk.fail("read", segment, code)
    world = World(CONFIG, disk)
    assert "journal.mixed" in world.events and "news" in world.broker.queues.blocked
    assert disk.read(segment, 0, 1 << 20) == before and not [path for path in files(disk) if "/damaged/" in path]
    again = World(CONFIG, disk.copy())
    assert len(again.items("news")) == 5
