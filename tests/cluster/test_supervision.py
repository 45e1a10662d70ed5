"""The timers of a member: against which leader it stands and when, and which connections it gives up."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

from staniel.cluster.durable import ALL_FIXED, Fixed
from staniel.cluster.effects import Transact
from staniel.cluster.follower import FollowerState
from staniel.cluster.key import Key
from staniel.server.cluster.etcd_link import MemberEntry
from staniel.server.cluster.supervision import GREETING_S, Supervision
from tests.cluster.driven import FOLLOWED, A, B, C, Process, ignore, key, write_member

LEASE_S = 5.0
ENTRY = MemberEntry("n", "127.0.0.1:1", "127.0.0.1:2")


class Supervised(Process):
    """Member B, whose timers run on a clock that the test steps. `entries`: members that are alive."""

    def __init__(self, folder: Path, *, is_ahead: bool = False) -> None:
        super().__init__(write_member(folder, *FOLLOWED, *([Fixed(ALL_FIXED)] if is_ahead else [])))
        self.entries = dict.fromkeys((A, B, C), ENTRY)
        self.supervision = Supervision(self.driver, self.entries, LEASE_S, ignore)
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


def test_a_refused_port_of_one_leader_says_nothing_of_the_next(tmp_path: Path) -> None:
    member = Supervised(tmp_path)
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
    member = Supervised(tmp_path, is_ahead=True)
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
        member = Supervised(folder)
        del member.entries[C]
        member.see(key(epoch, C))
        waits.append(member.wait(key(epoch, C), 60))
        assert member.has_stood
    assert waits == pytest.approx([0.8, 1.6, 3.2, 6.4, 6.4, 6.4], abs=0.4)


def test_a_connection_that_was_reset_before_it_was_known_is_followed_by_another(tmp_path: Path) -> None:
    member = Supervised(tmp_path)
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


def test_a_connection_on_which_the_leader_does_not_reply_is_ended(tmp_path: Path) -> None:
    member = Supervised(tmp_path)
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
