"""Real members that are killed, stopped and told to hand over, one after the other, while a client goes on putting."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from random import Random

import pytest

from tests.cluster.servers import Servers, Wire, cluster

pytestmark = [pytest.mark.programs("etcd"), pytest.mark.slow]
ROUNDS = 6
PUTS_A_ROUND = 30
ANSWER_S = 8  # then a client gives up a connection to a member that hangs


class Putter:
    """A client that puts numbered items at whoever takes them. `unknown`: those whose reply did not come."""

    def __init__(self, servers: Servers) -> None:
        self.stored: list[str] = []
        self.unknown: set[str] = set()
        self._servers = servers
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._put_on)
        self._thread.start()

    def _put_on(self) -> None:
        number = at = 0
        while not self._is_over.is_set():
            at += 1
            try:
                wire = Wire(self._servers[at % len(self._servers.members)].port, ANSWER_S)
            except OSError:
                continue
            try:
                reply = "STORED"
                while reply == "STORED" and not self._is_over.is_set():
                    number += 1
                    item = f"item {number}"
                    self.unknown.add(item)
                    reply = wire.put("jobs", item)
                    if reply:
                        self.unknown.discard(item)
                    if reply == "STORED":
                        self.stored.append(item)
            except OSError:
                pass
            finally:
                wire.close()

    def stop(self) -> None:
        """Stop putting."""
        self._is_over.set()
        self._thread.join()


@pytest.mark.parametrize("seed", [1, 2])
def test_no_item_is_lost_whatever_happens_to_leaders(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    with cluster(tmp_path) as servers:
        servers.form()
        putter = Putter(servers)
        try:
            for _ in range(ROUNDS):
                leader = servers.leader
                victim = leader if leader is not None and random.random() < 0.7 else random.choice(servers.members)
                accident = random.choice(["kill", "kill", "stop", "hang", "hand over"])
                if accident == "kill":
                    victim.kill()
                elif accident == "stop":
                    victim.stop()
                elif accident == "hang":
                    victim.signal(signal.SIGSTOP)
                else:
                    victim.call("/cluster/handover", {})
                count = len(putter.stored) + PUTS_A_ROUND
                servers.wait_for(lambda count=count: len(putter.stored) >= count, f"puts after {accident}")  # type: ignore[misc]
                if accident == "hang":
                    victim.signal(signal.SIGCONT)
                elif not victim.is_running:
                    victim.start()
                servers.wait_until_whole()
        finally:
            putter.stop()
        servers.wait_until_whole()
        leader = servers.leader
        assert leader is not None
        items = leader.wire().drain("jobs")
        assert len(items) == len(set(items))
        assert set(putter.stored) <= set(items) <= set(putter.stored) | putter.unknown
        servers.wait_until_same()
        servers.end_all()
        expected = leader.files
        assert all(member.files == expected for member in servers.members)
