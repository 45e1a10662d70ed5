"""A leader's hub on real sockets, turned by hand: the other members are silent, or have acknowledged all."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from staniel.broker import protocols
from staniel.broker.broker import Broker
from staniel.broker.config.load import parse
from staniel.cluster.spool_changes import encode_changes
from staniel.journal.spool import lock_spool
from staniel.protocol.memcache.requests import Dialect
from staniel.server.clock import ServerClock
from staniel.server.cluster.gate import HELD_BYTES_MAX, GatedAcceptor
from staniel.server.cluster.leading import LeaderHub
from staniel.server.listener import Endpoint
from staniel.server.machine import ListeningSocket, SystemMachine
from staniel.server.poller import Poller
from tests.cluster.driven import FOLLOWED, Process, write_member
from tests.support.wire import Wire

CONFIG = """
server.spool = "{}"
default.sync_journal = "always"
[cluster]
name = "test"
member = "b"
listen = "127.0.0.1:1"
advertise = "127.0.0.1:2"
etcd = ["http://127.0.0.1:3"]
"""
ITEM_BYTES = 500_000
PEEKS = 2 * HELD_BYTES_MAX // ITEM_BYTES


class Leading(Process):
    """Member B, which leads with a hub of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(write_member(folder, *FOLLOWED[:-1]))
        self.elect()
        self.end_syncs()
        self.driver.files.become_leaders(self.driver.member.core.last, lambda: None)
        self.end_work()
        self.machine = SystemMachine(ServerClock())
        lock_spool(self.driver.recording_fs, str(folder))
        broker = Broker(parse(CONFIG.format(folder).encode(), ""), self.driver.recording_fs)
        broker.recover(self.machine.clock.now_ms())
        self.driver.member.recovered(tuple(encode_changes(self.driver.recorder.take_changes())))
        self.driver.carry_out()
        self.hub = LeaderHub(broker, self.machine, 100, self.driver)
        self._listener = socket.create_server(("127.0.0.1", 0))  # the gate leaves it to the process
        self.address = self._listener.getsockname()
        acceptor = GatedAcceptor(ListeningSocket(self._listener), self.driver.gate)
        self.hub.listen(Endpoint(acceptor, protocols.memcache(Dialect.MEMCACHED)))

    def turn(self) -> bool:
        """Run a turn for what is ready within a moment; tell whether anything was."""
        events = self.machine.poller.poll(0.2)
        self.hub.turn(events)
        return bool(events) or not self.hub.is_idle

    def rest(self) -> None:
        """Turn until nothing is ready."""
        for _ in range(2000):
            if not self.turn():
                return
        raise AssertionError("something is ready in every turn")

    def close(self) -> None:
        self.hub.close()
        self._listener.close()
        super().close()


@pytest.fixture
def leading(tmp_path: Path) -> Iterator[Leading]:
    with closing(Leading(tmp_path)) as leader:
        yield leader


def test_a_leader_does_not_wake_for_a_client_whose_replies_are_held(leading: Leading) -> None:
    with Wire(leading.address) as client:
        client.say(b"set q 0 0 %d\r\n%s\r\n" % (ITEM_BYTES, bytes(ITEM_BYTES)))
        client.say(b"get q/peek\r\n" * PEEKS)
        leading.rest()
        assert isinstance(leading.machine.poller, Poller)
        leading.driver.gate.release(leading.driver.member.core.last + 100)
        came = b""
        while len(came) < PEEKS * ITEM_BYTES:
            leading.turn()
            leading.driver.gate.release(leading.driver.member.core.last + 100)
            came += client.sock.recv(1 << 20)
        assert came.count(b"VALUE") == PEEKS
