"""A real file system that fills up: puts are refused and everything else goes on; with space, all goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from staniel.bench.harness.small_disk import SmallDisk, small_disk
from staniel.bench.soak.clients import Crew
from staniel.bench.soak.loop import Loop
from staniel.journal.disk.os_fs import OsFs
from tests.support.process import Server, running, until
from tests.support.wire import Wire, drain

pytestmark = pytest.mark.programs("unshare", "nsenter", "mount")

DISK_BYTES = 64 << 20
FULL = b"SERVER_ERROR disk full, nothing can be stored until there is space"
SPACE_SECONDS_MAX = 60.0  # promised is one; the machine may be busy
KILLS = 4
LEAVE_BYTES = 200 << 10
STEP_BYTES = 32 << 10
FULL_SECONDS_MAX = 60.0
SEED = int(os.environ.get("STANIEL_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as made:
        yield made


@pytest.fixture
def server(tmp_path: Path, disk: SmallDisk) -> Iterator[Server]:
    with running(tmp_path / "run", "--spool", str(disk.folder / "spool"), wrapper=disk.wrapper) as started:
        yield started


def accepted(wire: Wire, data: bytes) -> bool:
    """Whether a put is stored by now."""
    said = wire.put("jobs", data)
    assert said in (b"STORED", FULL)
    return said == b"STORED"


def fill_up(disk: SmallDisk) -> None:
    """Take every block, until none is left."""
    while disk.free_bytes():
        disk.fill(0)


def left_over(disk: SmallDisk) -> list[str]:
    """Files of the spool that should not outlive what made them."""
    return [path.name for path in (disk.view / "spool").rglob("*") if "~~" in path.name or path.suffix == ".new"]


def test_room_that_was_set_aside_is_there_when_the_disk_is_full(disk: SmallDisk) -> None:
    fs, kept, other = OsFs(), str(disk.view / "kept"), str(disk.view / "other")
    fs.set_aside(kept, STEP_BYTES)
    files = [fs.append(path) for path in (kept, other)]
    fill_up(disk)
    files[0].write(bytes(STEP_BYTES))
    for file in files:
        with pytest.raises(OSError):
            file.write(b"1")
        file.close()


def test_the_disk_fills_up_in_the_middle_of_an_item_and_nothing_that_was_answered_is_lost(
    disk: SmallDisk, server: Server
) -> None:
    big = bytes(range(256)) * 4096
    with Wire(server.address) as wire:
        for number in range(40):
            assert wire.put("jobs", b"%d" % number) == b"STORED"
        disk.fill(100_000)
        assert wire.put("jobs", big) == b"STORED"  # 100 kB of it are written, then the ballast makes room
        assert "disk.full" in server.stderr
        assert wire.put("jobs", b"late") == FULL == wire.put("a_new_queue", b"late")
        assert [wire.get("jobs") for _ in range(10)] == [b"%d" % number for number in range(10)]
        assert wire.get("jobs/open") == b"10"
        assert wire.get("jobs/close/open") == b"11"
        assert wire.ask(b"get jobs/abort") == b"END"
    server.restart()
    with Wire(server.address) as wire:
        assert wire.put("jobs", b"late") == FULL
        assert wire.get("jobs") == b"11"
        disk.clear()
        assert until(lambda: accepted(wire, b"new"), SPACE_SECONDS_MAX)
    assert "disk.space" in server.stderr
    server.restart()
    assert drain(server.address, "jobs") == [*(b"%d" % number for number in range(12, 40)), big, b"new"]
    assert left_over(disk) == []


def test_what_takes_even_the_reserve_ends_the_server_and_nothing_that_was_answered(
    disk: SmallDisk, server: Server
) -> None:
    with Wire(server.address) as wire:
        for number in range(200):
            assert wire.put("jobs", b"%03d" % number * 1000) == b"STORED"
        disk.fill(50_000)
        assert wire.put("jobs", bytes(100_000)) == b"STORED"
        fill_up(disk)
        taken = 0
        wire.sock.settimeout(30)
        try:
            while wire.get("jobs/open") and wire.ask(b"get jobs/close") == b"END":
                taken += 1  # each writes a few bytes, and the file's last block has room for some
        except (ConnectionError, AssertionError):
            pass
    if taken < 200:
        assert server.wait() == 1
        assert "No space left on device; nothing was acknowledged since" in server.stderr
        disk.clear()
        server.start()
    left = drain(server.address, "jobs")
    assert left[-1:] == [bytes(100_000)] or taken > 200
    assert 0 <= 201 - taken - len(left) <= 1


def test_the_disk_fills_up_again_and_again_and_what_was_stored_is_there_after_a_kill(
    disk: SmallDisk, server: Server
) -> None:
    stored: list[bytes] = []
    with Wire(server.address) as wire:
        for at in range(5):
            assert until(lambda: accepted(wire, b"space"), SPACE_SECONDS_MAX)
            disk.fill(4096)
            batch = [b"%d-%d %b" % (at, number, bytes(100 + at * 37)) for number in range(60)]
            wire.say(b"".join(b"set jobs 0 0 %d\r\n%b\r\n" % (len(item), item) for item in batch))
            said = [wire.line() for _ in batch]
            assert set(said) <= {b"STORED", FULL}
            stored += [item for item, word in zip(batch, said, strict=True) if word == b"STORED"]
            disk.clear()
    assert "disk.full" in server.stderr
    server.restart()
    assert [item for item in drain(server.address, "jobs") if item != b"space"] == stored


class FullDiskLoop(Loop):
    """Each life fills the disk in its middle; some die with the disk full, some once it has space again."""

    refusal = b"SERVER_ERROR disk full"
    disk: SmallDisk
    refused = 0

    def work(self, crew: Crew, seconds: float) -> int:
        ballast = self.disk.view / "spool" / ".staniel" / "ballast"
        assert until(ballast.exists, SPACE_SECONDS_MAX)
        self.disk.fill(LEAVE_BYTES)

        def is_full() -> bool:
            if ballast.exists():  # only then: a filler must not take the reserve that was just given back
                self.disk.fill(self.disk.free_bytes() - STEP_BYTES)
            self.insist(crew, seconds)
            return crew.refused > 0

        assert until(is_full, FULL_SECONDS_MAX, rest=0), "the disk was never full"
        if self.random.randrange(2):
            self.disk.clear()
            self.insist(crew, seconds)
        self.refused += crew.refused
        return 0

    def read_queues(self) -> dict[str, list[bytes]]:
        """Recovered on a disk that may be full. What expires there stays aside until there is space: so look twice."""
        found = super().read_queues()
        if any(ledger.check(found) for ledger in self.ledgers):
            self.disk.filler.unlink(missing_ok=True)
            until(lambda: not any(ledger.check(super(FullDiskLoop, self).read_queues()) for ledger in self.ledgers), 30)
            found = super().read_queues()
        return found


@pytest.mark.slow
def test_a_disk_that_fills_up_under_load_breaks_no_promise(
    tmp_path: Path, disk: SmallDisk, closing_line: Callable[[str], None]
) -> None:
    FullDiskLoop.spool, FullDiskLoop.disk = str(disk.folder / "spool"), disk
    (tmp_path / "run").mkdir()
    loop = FullDiskLoop(tmp_path / "run", SEED, "mixed", signal.SIGKILL, (0.02, 0.1), disk.wrapper)
    for ledger in loop.ledgers:
        ledger.is_all_seen = False  # what has expired stays aside while there is no room for it in the other queue
    operations = 0
    with loop.victim:
        for _ in range(KILLS):
            cycle = loop.cycle()
            operations += cycle.operations
            assert cycle.wrong == [], f"seed {SEED}, cycle {loop.number}"
            disk.filler.unlink(missing_ok=True)
        assert until(lambda: accepted_by(loop), SPACE_SECONDS_MAX)
        loop.victim.end(signal.SIGTERM)  # a killed one may leave a summary in the making
        assert left_over(disk) == []
    closing_line(f"full disk: {KILLS} kills amid {operations} operations, {loop.refused} puts refused, seed {SEED}")


def accepted_by(loop: Loop) -> bool:
    with Wire(loop.victim.address) as wire:
        return accepted(wire, b"new")
