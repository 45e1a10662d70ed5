"""A journal's file that was closed for others is opened again where no descriptors are left: others close theirs."""

from __future__ import annotations

import errno

import pytest

from staniel.journal.disk.fs import JournalFailure
from tests.journal.disk.test_refusals import ALWAYS
from tests.support.streams import asks
from tests.support.world import World

QUEUES = 12
TEXTS = ["", 'default.journal_format = "libkestrel"\n', 'default.sync_journal = "1s"\n']


def closed(text: str) -> World:
    """A world in which the file of `q0` is not open, while others are."""
    world = World(text)
    world.broker.group.open_files.allow(4)
    for number in range(QUEUES):
        assert asks(world, f"set q{number} 0 0 1", str(number % 10)) == "STORED"
        world.turn(2000)
        world.sync()
    return world


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("times", [1, 2])
def test_it_is_opened_at_the_cost_of_others(text: str, number: int, times: int) -> None:
    world = closed(text)
    before = len(world.broker.group.open_files)
    world.disk.fail("open", "/s/q0", number, times=times)
    assert asks(world, "set q0 0 0 1", "x") == "STORED"
    assert not world.disk._faults[0].times and len(world.broker.group.open_files) <= before
    again = World(text, world.disk.kill(), world.now_ms)
    assert again.items("q0") == [b"0", b"x"]
    assert again.items("q5") == [b"5"]


@pytest.mark.parametrize("text", TEXTS)
def test_where_that_does_not_help_the_process_ends_with_a_line(text: str) -> None:
    world = closed(text)
    world.disk.fail("open", "/s/q0", errno.EMFILE, times=ALWAYS)
    with pytest.raises(JournalFailure, match=r"cannot write s/q0.*Too many open files"):
        asks(world, "set q0 0 0 1", "x")
    assert World(text, world.disk.kill(), world.now_ms).items("q0") == [b"0"]
