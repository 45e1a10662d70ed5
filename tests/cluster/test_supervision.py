"""The timers of a member: against which leader it stands and when, and which connections it gives up."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from staniel.cluster.core import MemberConfig
from staniel.cluster.durable import ALL_FIXED, Fixed
from staniel.cluster.effects import Transact
from staniel.cluster.follower import FollowerState
from staniel.cluster.key import Key
from staniel.cluster.leader import PeerState
from staniel.cluster.messages import GREETING, Bodies, Hello, Message, OwnFiles, encode_message
from staniel.server.cluster.disk_calls import DiskCalls
from staniel.server.cluster.etcd_link import MemberEntry
from staniel.server.cluster.member_file import FileSync
from staniel.server.cluster.member_view import heirs_of
from staniel.server.cluster.supervision import GREETING_S, PROGRESS_BYTES, PROGRESS_LEASES, Supervision
from tests.cluster.driven import CLUSTER, FOLLOWED, A, B, C, Process, ignore, key, write_member

STRANGER = b"d" * 16
LEASE_S = 5.0
ENTRY = MemberEntry("n", "127.0.0.1:1", "127.0.0.1:2")


class Supervised(Process):
    """Member B, whose timers run on a clock that the test steps. `entries`: members that are alive."""

    def __init__(self, folder: Path, *, is_ahead: bool = False) -> None:
        super().__init__(write_member(folder, *FOLLOWED, *([Fixed(ALL_FIXED)] if is_ahead else [])))
        self.entries = dict.fromkeys((A, B, C), ENTRY)
        self.calls = DiskCalls()
        self.supervision = Supervision(self.driver, self.entries, LEASE_S, ignore, self.calls)
        self.supervision.has_entries = True
        self.now = 0.0

    @property
    def has_stood(self) -> bool:
        return isinstance(self.asked[-1], Transact)

    def see(self, now: Key) -> None:
        """Have etcd say this key."""
        self.read_key(now, 5 + now.epoch)
        self.driver.key_watched(now, 5 + now.epoch)
        self.end_syncs()

    def wait(self, key_now: Key, most_s: float) -> float:
        """Run the timers until the member stands, or for this long. Return the seconds."""
        begin = self.now
        while not self.has_stood and self.now - begin < most_s:
            self.now += 0.1
            self.supervision.look_after(self.now)
            self.read_key(key_now, 5 + key_now.epoch)
        return self.now - begin


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Supervised]:
    with closing(Supervised(tmp_path)) as supervised:
        yield supervised


def test_a_follower_connects_as_soon_as_it_is_known_where_its_leader_listens(member: Supervised) -> None:
    member.driver.connect_now()
    assert member.connects == 0
    member.see(key(1, A))
    asked = member.connects
    member.driver.connect_now()
    assert member.connects == asked + 1
    ours, theirs = socket.socketpair()
    with theirs:
        member.driver.connected(ours)
        member.driver.connect_now()
    assert member.connects == asked + 1


def test_a_refused_port_of_one_leader_says_nothing_of_the_next(member: Supervised) -> None:
    member.see(key(1, A))
    member.supervision.note_connect(key(1, A), is_refused=True)
    member.see(key(2, C))
    member.wait(key(2, C), 60)
    assert not member.has_stood
    member.supervision.note_connect(key(2, C), is_refused=True)
    member.supervision.note_connect(key(2, C), is_refused=False)
    member.wait(key(2, C), 60)
    assert not member.has_stood
    member.supervision.note_connect(key(2, C), is_refused=True)
    assert member.wait(key(2, C), 60) < 10


def test_a_member_that_was_killed_waits_for_a_living_leader_that_recovers(tmp_path: Path) -> None:
    with closing(Supervised(tmp_path, is_ahead=True)) as member:
        member.see(key(2, C))
        member.wait(key(2, C), 120)
        assert not member.has_stood
        del member.entries[C]
        assert member.wait(key(2, C), 60) < 60


def test_elections_that_led_to_no_service_double_the_wait_up_to_a_bound(tmp_path: Path) -> None:
    waits = []
    for epoch in (1, 2, 3, 4, 5, 50):
        folder = tmp_path / str(epoch)
        folder.mkdir()
        with closing(Supervised(folder)) as member:
            del member.entries[C]
            member.see(key(epoch, C))
            waits.append(member.wait(key(epoch, C), 60))
            assert member.has_stood
    assert waits == pytest.approx([0.8, 1.6, 3.2, 6.4, 6.4, 6.4], abs=0.4)


def test_a_connection_that_was_reset_before_it_was_known_is_followed_by_another(member: Supervised) -> None:
    member.see(key(2, C))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
    number = member.driver.connected(ours)
    follower = member.driver.member.follower
    assert follower is not None and not member.driver.links.has(number) and follower.connection is None
    connects = member.connects
    member.wait(key(2, C), 2)
    assert member.connects > connects


def test_a_connection_on_which_the_leader_does_not_reply_is_ended(member: Supervised) -> None:
    member.see(key(2, C))
    ours, theirs = socket.socketpair()
    with theirs:
        number = member.driver.connected(ours)
        follower = member.driver.member.follower
        assert follower is not None and follower.state is FollowerState.GREETING
        member.wait(key(2, C), GREETING_S - 1)
        assert member.driver.links.has(number)
        connects = member.connects
        member.wait(key(2, C), 3)
        assert not member.driver.links.has(number) and member.connects > connects


def joining(member: Supervised, member_id: bytes, folder: Path, *said: Bodies) -> tuple[int, socket.socket]:
    """Have a half-copied member greet this leader of a spool of 8 MB, and say more; return its connection."""
    member.lead()
    with folder.joinpath("big").open("wb") as file:
        file.truncate(8 << 20)
    ours, theirs = socket.socketpair()
    number = member.driver.links.add(ours)
    theirs.sendall(GREETING)
    for body in (Hello((), 0, 0, True), *said):
        say(member, theirs, member_id, body)
    return number, theirs


def say(member: Supervised, theirs: socket.socket, member_id: bytes, body: Bodies) -> None:
    """Send this leader a message, and let it do what follows."""
    theirs.sendall(encode_message(Message(CLUSTER, member_id, 2, body)))
    member.driver.reactor.handle_events(0)
    member.end_copies()


def step(member: Supervised, seconds: float) -> None:
    """Run the timers and the connections for this long."""
    for _ in range(round(10 * seconds)):
        member.now += 0.1
        member.driver.reactor.handle_events(0)
        member.supervision.look_after(member.now)


@pytest.mark.parametrize(
    ("member_id", "said", "state"),
    [
        (A, [], PeerState.LEAVING),
        (STRANGER, [], PeerState.COMPARING),
        (STRANGER, [OwnFiles(b"", False)], PeerState.COMPARING),
        (STRANGER, [OwnFiles(b"", True)], PeerState.COPYING),
    ],
)
def test_a_member_that_joins_and_gets_no_further_is_disconnected(
    member_id: bytes, said: list[Bodies], state: PeerState, member: Supervised, tmp_path: Path
) -> None:
    number, theirs = joining(member, member_id, tmp_path, *said)
    leader = member.driver.member.leader
    assert leader is not None and leader.peers[number].state is state
    with theirs:
        step(member, PROGRESS_LEASES * LEASE_S - 1)
        assert number in leader.peers
        step(member, 3)
        assert number not in leader.peers and not member.driver.links.has(number)


def test_a_member_that_takes_a_copy_slowly_is_not_disconnected(member: Supervised, tmp_path: Path) -> None:
    number, theirs = joining(member, STRANGER, tmp_path, OwnFiles(b"", True))
    leader = member.driver.member.leader
    assert leader is not None
    with theirs:
        for _ in range(6):
            step(member, PROGRESS_LEASES * LEASE_S - 1)
            for _ in range(16):
                theirs.recv(PROGRESS_BYTES // 8)
                member.driver.reactor.handle_events(0)
                member.end_copies()
        assert leader.peers[number].state is PeerState.COPYING


def test_a_member_that_sums_its_files_slowly_is_not_disconnected(member: Supervised, tmp_path: Path) -> None:
    number, theirs = joining(member, STRANGER, tmp_path)
    leader = member.driver.member.leader
    assert leader is not None
    with theirs:
        for _ in range(6):
            step(member, PROGRESS_LEASES * LEASE_S - 1)
            say(member, theirs, STRANGER, OwnFiles(b"", False))
        assert leader.peers[number].state is PeerState.COMPARING


def test_a_member_whose_sums_cannot_be_read_is_disconnected(member: Supervised, tmp_path: Path) -> None:
    number, theirs = joining(member, STRANGER, tmp_path, OwnFiles(b"nothing that is encoded", False))
    with theirs:
        assert not member.driver.links.has(number)


def succeed(member: Supervised, min_in_sync: int) -> Key | None:
    """Have this follower of A take over. Return the key that it asks for once it serves."""
    member.driver.member.core.config = MemberConfig("b:1", min_in_sync)
    member.read_key(key(1, A), 5)
    step(member, 0.1)
    member.lead()
    asked = len(member.asked)
    member.supervision.begin_to_serve(RunningSync())  # type: ignore[arg-type]
    wanted = [effect.key for effect in member.asked[asked:] if isinstance(effect, Transact)]
    return wanted[0] if wanted else None


def test_the_leader_before_leaves_the_set_at_once_and_puts_wait_for_that(member: Supervised) -> None:
    wanted = succeed(member, 2)
    leader, asking = member.driver.member.leader, member.driver.member.core.asking
    assert wanted is not None and wanted.members == (B, C) and leader is not None and asking is not None
    assert leader.waits_for() == {A, C}
    member.driver.member.transaction_taken(asking.number, 7)
    member.driver.carry_out()
    assert leader.waits_for() == {C}


def test_a_member_that_is_about_to_leave_the_set_is_not_shown_as_one_that_can_be_given_the_lead(
    member: Supervised, tmp_path: Path
) -> None:
    succeed(member, 3)
    leader = member.driver.member.leader
    assert leader is not None
    ours, theirs = socket.socketpair()
    with theirs:
        last = member.driver.kept.stream.last
        connection = member.driver.links.add(ours)
        hello = Hello(((1, 1), (last.epoch, last.number)), last.number, 0, False)
        assert leader.greet(connection, A, hello) and leader.peers[connection].state is PeerState.FOLLOWING
        assert list(heirs_of(leader, member.entries)) == [A]
        member.driver.member.take_out(A)
        assert A in leader.members and list(heirs_of(leader, member.entries)) == []


def test_the_leader_before_stays_in_a_set_that_would_be_too_small_for_puts(member: Supervised) -> None:
    assert succeed(member, 3) is None
    step(member, LEASE_S / 2 - 1)
    leader = member.driver.member.leader
    assert leader is not None and leader.waits_for() == {A, C} and not leader.leaving


class RunningSync:
    """A leader whose journals are being synced, on another disk than the member's file."""

    running_sync: object = None


def test_a_member_whose_journals_hang_renews_no_lease_although_its_own_file_is_synced(member: Supervised) -> None:
    member.lead()
    service = RunningSync()
    member.supervision.service = service  # type: ignore[assignment]
    for hung in (None, object()):
        service.running_sync = hung
        for _ in range(round(10 * LEASE_S)):
            member.now += 0.1
            member.driver.file._running = FileSync(member.driver.file._file, 1)  # each time another one
            member.supervision.look_after(member.now)
        assert member.supervision.is_alive() is (hung is None)
    member.driver.file._running = None


def test_a_member_whose_disk_hangs_in_any_thread_renews_no_lease(member: Supervised) -> None:
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def recover() -> None:
        with member.calls.noted():
            with member.calls.noted():
                pass  # a call within, as a read of a file whose folder is being made
            begun.set()
            goes_on.wait(60)
        ended.set()

    threading.Thread(target=recover, daemon=True).start()
    assert begun.wait(60)
    step(member, 0.1)
    assert member.supervision.is_alive()
    step(member, LEASE_S / 2)
    assert not member.supervision.is_alive()
    goes_on.set()
    assert ended.wait(60)
    step(member, 0.1)
    assert member.supervision.is_alive()
