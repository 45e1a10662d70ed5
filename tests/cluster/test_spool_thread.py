"""The thread that works on a follower's files: in order, beside the loop, and what waits for it and what does not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from staniel.cluster.durable import Copied, Fitness, Marked
from staniel.cluster.effects import Apply, Persist, Sync, WritePiece
from staniel.cluster.messages import GREETING, Acknowledge, Message, MessageDecoder, Records, Welcome, encode_message
from staniel.cluster.places import Place
from staniel.cluster.spool_changes import FileAppended, FileCreated, FileTruncated, encode_changes
from staniel.cluster.stream import RecordKind
from staniel.server.cluster import driver as driver_module
from staniel.server.cluster.driver import MustBeginAnew
from tests.cluster.driven import CLUSTER, FOLLOWED, A, Process, key, write_member

CUT = next(iter(encode_changes([FileTruncated("q", 2)])))
MORE = next(iter(encode_changes([FileCreated("r"), FileAppended("r", 0, b"more")])))


class Gate:
    """A call of the spool that waits until it is let go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.goes_on = threading.Event()
        right = getattr(owner, name)

        def wait(*arguments: object, **more: object) -> object:
            assert self.goes_on.wait(60)
            return right(*arguments, **more)

        monkeypatch.setattr(owner, name, wait)


class Following(Process):
    """Member B, which follows A over a socket that the test has the other end of."""

    def __init__(self, folder: Path) -> None:
        super().__init__(write_member(folder, *FOLLOWED))
        self.read_key(key(1, A), 5)
        ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.theirs.sendall(GREETING)
        self.connection = self.driver.connected(ours)
        self._decoder = MessageDecoder()
        self.hear()
        self.say(Welcome(2, 2))
        self.end_syncs()

    def say(self, body: object) -> None:
        """Have A say this."""
        self.theirs.sendall(encode_message(Message(CLUSTER, A, 1, body)))  # type: ignore[arg-type]
        self.driver.reactor.handle_events(0)

    def hear(self) -> list[object]:
        """What the member has said since the last call."""
        try:
            return [message.body for message in self._decoder.feed(self.theirs.recv(1 << 20))]
        except BlockingIOError:
            return []

    def close(self) -> None:
        super().close()
        self.theirs.close()


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Following]:
    with closing(Following(tmp_path)) as following:
        yield following


def test_a_follower_acknowledges_while_its_files_are_cut_and_synced(
    member: Following, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, member.driver.spool, "apply")
    member.hear()
    member.say(Records(1, 2, ((1, RecordKind.PUT, CUT), (1, RecordKind.PUT, MORE)), 4))
    member.end_syncs()
    assert member.hear()[-1] == Acknowledge(1, 4)
    assert member.driver.files.running is not None and not tmp_path.joinpath("r").exists()
    gate.goes_on.set()
    member.end_work()
    assert tmp_path.joinpath("q").read_bytes() == b"it" and tmp_path.joinpath("r").read_bytes() == b"more"


def test_records_are_given_up_once_they_are_durable_in_files_and_not_before(
    member: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "KEPT_RECORDS_MAX", 0)
    member.say(Records(1, 2, ((1, RecordKind.PUT, MORE),), 3))
    member.end_syncs()
    member.end_work()
    gate = Gate(monkeypatch, member.driver.spool, "sync")
    member.driver.trim()
    assert member.driver.kept.stream.base.number == 0
    gate.goes_on.set()
    member.end_work()
    member.driver.trim()
    assert member.driver.kept.stream.base == Place(1, 3)
    member.end_work()


def test_a_member_whose_files_are_busy_reads_no_further_from_its_leader(
    member: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "WAITING_BYTES_MAX", 100)
    gate = Gate(monkeypatch, member.driver.spool, "apply")
    member.say(Records(1, 2, ((1, RecordKind.PUT, MORE),), 3))
    member.say(Records(1, 3, ((1, RecordKind.PUT, CUT),), 4))
    member.end_syncs()
    assert member.driver.kept.stream.last.number == 3
    gate.goes_on.set()
    member.end_work()
    member.driver.reactor.handle_events(0)
    member.end_syncs()
    member.end_work()
    assert member.driver.kept.stream.last.number == 4


def test_a_sync_waits_for_the_bytes_of_a_copy_that_were_written_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_member(tmp_path, *FOLLOWED, Marked(Fitness.HALF))
    with closing(Process(paths)) as process:
        driver = process.driver
        gate = Gate(monkeypatch, driver.spool, "write_piece")
        driver._carry_out_one(Persist((Copied(1, 2, ((1, 1),)),)))
        driver._carry_out_one(WritePiece(b"\x90"))
        driver._carry_out_one(Sync(7))
        assert driver.file.running is None
        gate.goes_on.set()
        process.end_work()
        assert driver.file.running is not None and driver.file.running.number == 7
        process.end_syncs()


def test_files_that_are_not_what_their_leader_says_are_marked(member: Following, tmp_path: Path) -> None:
    tmp_path.joinpath("q").unlink(missing_ok=True)
    member.say(Records(1, 2, ((1, RecordKind.PUT, next(iter(encode_changes([FileAppended("z", 5, b"x")])))),), 3))
    with pytest.raises(MustBeginAnew):
        member.end_work()
    assert member.driver.kept.fitness is Fitness.HALF


def test_a_take_over_comes_behind_all_that_was_to_be_applied(
    member: Following, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, member.driver.spool, "apply")
    member.driver._carry_out_one(Apply(2))
    told: list[bytes] = []
    member.driver.files.become_leaders(2, lambda: told.append(tmp_path.joinpath("q").read_bytes()))
    assert told == []
    gate.goes_on.set()
    member.end_work()
    assert told == [b"item"]
    assert not tmp_path.joinpath(".staniel/follower").exists()
