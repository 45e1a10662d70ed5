"""The load generator in the protocols of NATS and RabbitMQ: with a real NATS server, with a broker of AMQP of our own
that answers as RabbitMQ may (several confirmations in one, in another order), and how those peers are set up.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from staniel.bench.harness.contestant import Contestant, Launch, Sync
from staniel.bench.peers import generator, servers
from staniel.bench.peers.rounds import Arena, line_up, run
from staniel.bench.peers.servers import OURS, PEERS
from staniel.bench.peers.workloads import WORKLOADS, Mode, Workload, steps

AMQP_BROKER = """
import collections, socketserver, struct, sys, threading

fault = sys.argv[2] if len(sys.argv) > 2 else "none"
lock, items, consumers = threading.Lock(), collections.deque(), []


def method(klass, number, rest=b"", channel=1):
    return struct.pack(">BHI", 1, channel, 4 + len(rest)) + struct.pack(">HH", klass, number) + rest + b"\\xce"


def confirmation(tag, all_before):
    return method(60, 80, struct.pack(">QB", tag, all_before))


class Client(socketserver.StreamRequestHandler):
    def handle(self):
        assert self.rfile.read(8) == b"AMQP\\0\\0\\x09\\x01"
        self.wfile.write(method(10, 10, b"\\0\\x09" + struct.pack(">III", 0, 0, 0), channel=0))
        self.room = self.sent = self.put = 0
        while head := self.rfile.read(7):
            kind, _, size = struct.unpack(">BHI", head)
            frame = self.rfile.read(size + 1)[:-1]
            if kind == 1:
                self.called(*struct.unpack(">HH", frame[:4]), frame[4:])
            elif kind == 3:
                self.stored(frame)

    def called(self, klass, number, rest):
        plain = {(10, 31): b"", (10, 40): method(10, 41, b"\\0", 0), (20, 10): method(20, 11, bytes(4))}
        plain |= {(50, 10): method(50, 11, b"\\0" + bytes(8)), (85, 10): method(85, 11), (60, 40): b""}
        plain |= {(10, 11): method(10, 30, struct.pack(">HIH", 10, 131072, 60), 0)}
        if (klass, number) in plain:
            self.wfile.write(plain[klass, number])
        elif (klass, number) == (60, 10):
            self.room, = struct.unpack(">H", rest[4:6])
            self.wfile.write(method(60, 11))
        elif (klass, number) == (60, 20):
            with lock:
                consumers.append(self)
                give()
        elif (klass, number) == (60, 80):
            with lock:
                self.room += 1
                give()

    def stored(self, body):
        self.put += 1
        with lock:
            items.extend({"loses": [], "doubles": [body, body]}.get(fault, [body]) if self.put == 3 else [body])
            give()
        if fault == "refuses" and self.put == 3:
            self.wfile.write(method(60, 120, struct.pack(">QB", self.put, 0)))
        elif self.put % 4 == 3:  # of four, the third first, and then one word for all
            self.wfile.write(confirmation(self.put, 0) + struct.pack(">BHI", 8, 0, 0) + b"\\xce")
        elif self.put % 4 == 0:
            self.wfile.write(confirmation(self.put, 1))


def give():
    for one in consumers:
        while items and one.room:
            one.room -= 1
            one.sent += 1
            body = items.popleft()
            head = struct.pack(">HHQH", 60, 0, len(body), 0)
            one.wfile.write(
                method(60, 60, b"\\x03tag" + struct.pack(">QB", one.sent, 0) + b"\\0\\x05bench")
                + struct.pack(">BHI", 2, 1, len(head)) + head + b"\\xce"
                + struct.pack(">BHI", 3, 1, len(body)) + body + b"\\xce"
            )


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64


Server(("127.0.0.1", int(sys.argv[1])), Client).serve_forever()
"""

BY_NAME = {one.name: one for one in PEERS}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generator.build(tmp_path_factory.mktemp("build"))


@pytest.fixture
def arena(program: Path, tmp_path: Path) -> Arena:
    return Arena(program, tmp_path, None, None)


def amqp_broker(tmp_path: Path, fault: str = "none") -> Contestant:
    script = tmp_path / "broker.py"
    script.write_text(AMQP_BROKER)
    words = [sys.executable, str(script)]
    return Contestant("broker", "amqp", sys.executable, lambda launch: [*words, str(launch.port), fault])


@pytest.mark.programs("cc")
@pytest.mark.parametrize("sync", Sync)
@pytest.mark.parametrize("reliable", [False, True])
@pytest.mark.parametrize("pipeline", [1, 8])
def test_the_limit_takes_the_rows_of_our_server_and_keeps_every_item(
    arena: Arena, pipeline: int, reliable: bool, sync: Sync
) -> None:
    for mode in (Mode.PUT, Mode.GET):
        workload = Workload("tiny", mode, conns=5, ops=300, pipeline=pipeline, reliable=reliable, sync=sync)
        done = run(arena, workload, BY_NAME["limit"], 0)
        assert done.failure == ""
        assert done.report is not None
        assert done.report.ops == 300


@pytest.mark.programs("cc", "nats-server")
@pytest.mark.parametrize("reliable", [False, True])
@pytest.mark.parametrize("pipeline", [1, 8])
def test_items_are_put_and_got_through_jetstream(arena: Arena, pipeline: int, reliable: bool) -> None:
    for mode in (Mode.PUT, Mode.GET):
        workload = Workload("tiny", mode, conns=5, ops=300, pipeline=pipeline, reliable=reliable)
        done = run(arena, workload, BY_NAME["nats"], 0)
        assert done.failure == ""
        assert done.report is not None
        assert done.report.ops == 300


@pytest.mark.programs("cc", "nats-server")
def test_items_go_through_several_streams_and_a_flood(arena: Arena) -> None:
    for workload in (
        Workload("queues", Mode.PUT, conns=4, ops=200, queues=4),
        Workload("flood", Mode.FLOOD, conns=6, producers=3, ops=300),
        Workload("waits", Mode.FLOOD, conns=6, producers=3, ops=300, wait=True),
        Workload("there and back", Mode.PINGPONG, conns=3, ops=60),
    ):
        assert run(arena, workload, BY_NAME["nats"], 0).failure == ""


@pytest.mark.programs("cc")
@pytest.mark.parametrize("mode", [Mode.PUT, Mode.GET])
def test_items_are_put_and_consumed_through_amqp(arena: Arena, tmp_path: Path, mode: Mode) -> None:
    workload = Workload("tiny", mode, conns=1 if mode is Mode.PUT else 2, ops=64, pipeline=8)
    done = run(arena, workload, amqp_broker(tmp_path), 0)
    assert done.failure == ""
    assert done.report is not None
    assert done.report.ops == 64


@pytest.mark.programs("cc")
@pytest.mark.parametrize(
    ("fault", "said"), [("loses", "1 items lost"), ("doubles", "1 items duplicated"), ("refuses", "1 items refused")]
)
def test_a_broker_of_amqp_that_harms_an_item_fails_its_run(
    arena: Arena, tmp_path: Path, fault: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "IDLE_MS", 200)
    workload = Workload("tiny", Mode.PUT, conns=1, ops=64, pipeline=8)
    done = run(arena, workload, amqp_broker(tmp_path, fault), 0)
    assert done.report is None
    assert said in done.failure


def test_a_server_that_cannot_sync_before_an_answer_is_in_no_durable_row() -> None:
    forgetful = Contestant("nats", "nats", "nats-server", lambda launch: [], promises=lambda: (Sync.JOURNALED,))
    field = [Contestant(OURS, "memcache", OURS, lambda launch: []), forgetful]
    rows = {one.name: [who.name for who in line_up(one, field, 0)] for one in WORKLOADS}
    assert rows["put"] == [OURS, "nats"]
    assert rows["durable-100c"] == [OURS]


def test_a_nats_server_that_does_not_know_the_setting_promises_no_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "nats-server"
    promised = []
    for status in (0, 1):
        program.write_text(f"#!/bin/sh\nexit {status}\n")
        program.chmod(0o755)
        servers._nats_promises.cache_clear()
        promised.append(servers._nats_promises())
    servers._nats_promises.cache_clear()
    assert promised == [(Sync.JOURNALED, Sync.DURABLE), (Sync.JOURNALED,)]


@pytest.mark.parametrize(
    ("peer", "file", "durable", "journaled"),
    [
        ("nats", "nats.conf", "sync_interval: always", ""),
        ("rabbitmq", "advanced.config", "{wal_write_strategy, default}", "{wal_write_strategy, sync_after_notify}"),
    ],
)
def test_a_broker_syncs_before_its_answer_in_the_durable_rows_alone(
    tmp_path: Path, peer: str, file: str, durable: str, journaled: str
) -> None:
    for sync, said in ((Sync.DURABLE, durable), (Sync.JOURNALED, journaled)):
        BY_NAME[peer].command(Launch(12345, tmp_path, sync))
        text = (tmp_path / file).read_text()
        assert said in text
        assert (durable in text) is (sync is Sync.DURABLE)


def test_a_rabbitmq_node_keeps_all_of_its_files_in_its_folder(tmp_path: Path) -> None:
    command = BY_NAME["rabbitmq"].command(Launch(12345, tmp_path, Sync.JOURNALED))
    settings = dict(word.split("=", 1) for word in command if "=" in word and not word.startswith("epmd"))
    folders = ("HOME", "RABBITMQ_MNESIA_BASE", "RABBITMQ_LOG_BASE", "RABBITMQ_CONFIG_FILE")
    assert all(settings[name].startswith(str(tmp_path)) for name in folders)
    assert {"12345", settings["ERL_EPMD_PORT"], settings["RABBITMQ_DIST_PORT"]} == {"12345", "12346", "12347"}


def test_a_confirmed_read_asks_nats_for_an_answer_to_its_acknowledgement() -> None:
    workload = Workload("reliable", Mode.GET, conns=1, ops=1, reliable=True)
    assert any("--reliable" in step.args for step in steps(workload, "nats", kv=False))
    assert not any("--reliable" in step.args for step in steps(workload, "amqp", kv=False))
