"""A journal's file that was closed for others is opened again where no descriptors are left: others close theirs."""

from __future__ import annotations

import errno

import pytest

from staniel.broker.events import Level
from staniel.journal.disk.fs import JournalFailure
from staniel.server.reopening import PAUSE_MS, TRIES_MAX, ReopenWait
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


REFUSALS = [errno.EACCES, errno.EPERM, errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.ENAMETOOLONG, errno.ELOOP]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("number", [*REFUSALS, errno.EMFILE])
def test_what_is_refused_for_a_while_is_written_once_that_is_let_and_answered_then(text: str, number: int) -> None:
    world = closed(text)
    lines: list[tuple[Level, str, object]] = []
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 20:
            world.disk._faults.clear()

    world.broker.group.open_files.wait = ReopenWait(
        lambda level, event, /, **fields: lines.append((level, event, fields["why"])), pause
    )
    world.disk.fail("open", "/s/q0", number, times=ALWAYS)
    assert asks(world, "set q0 0 0 1", "x") == "STORED" and len(waits) == 20
    ((level, event, why),) = lines
    assert (level, event) == (Level.ERROR, "journal.unopened") and str(why).startswith("cannot use s/q0")
    again = World(text, world.disk.kill(), world.now_ms)
    assert again.items("q0") == [b"0", b"x"]


@pytest.mark.parametrize("number", [*REFUSALS, errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOENT])
def test_after_ten_seconds_and_on_a_broken_disk_at_once_the_process_ends(number: int) -> None:
    world = closed("")
    waits: list[float] = []
    world.broker.group.open_files.wait = ReopenWait(lambda level, event, /, **fields: None, waits.append)
    world.disk.fail("open", "/s/q0", number, times=ALWAYS)
    with pytest.raises(JournalFailure, match="cannot write s/q0"):
        asks(world, "set q0 0 0 1", "x")
    assert len(waits) == (TRIES_MAX if number in REFUSALS else 0) and TRIES_MAX * PAUSE_MS == 10_000
    disk = world.disk.kill()
    disk.fail("open", "/s/q0", number, times=ALWAYS)
    if number in REFUSALS:
        again = World("", disk, world.now_ms)
        assert asks(again, "get q0").startswith("SERVER_ERROR queue q0 is not available: ")
        assert asks(again, "get q1").startswith("VALUE")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("number", [errno.EISDIR, *REFUSALS])
def test_no_reply_waits_for_a_journal_that_cannot_be_created(text: str, number: int) -> None:
    world = closed(text)
    waits: list[float] = []
    world.broker.group.open_files.wait = ReopenWait(lambda level, event, /, **fields: None, waits.append)
    world.disk.fail("open", "/s/new", number, times=ALWAYS)
    assert asks(world, "set new 0 0 1", "x").startswith("SERVER_ERROR cannot create the journal of queue new: ")
    assert not waits
    assert asks(world, "set q0 0 0 1", "x") == "STORED"
