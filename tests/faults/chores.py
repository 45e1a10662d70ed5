"""Everything that makes a server touch each kind of its files, and what it has answered: held against it later."""

from __future__ import annotations

import re
from time import monotonic, sleep

from staniel.bench.soak.ledger import Ledger, item_for
from tests.server.admin.asking import Operator
from tests.server.test_workq import add
from tests.support.job_world import job_id
from tests.support.process import Server, until
from tests.support.wire import Wire, drain

CONFIG = """
[server]
redo_log = "{redo}"
expiration_timer_frequency = "50ms"

[admin]
port = 0

[workq]
port = 0
cmdlog_seg_size = "4KB"

[default]
max_memory_size = "8KB"
default_journal_size = "4KB"
max_journal_size = "24KB"
min_journal_compact_delay = "10ms"

[queues.stream]
journal_format = "libkestrel"

[queues.brief]
max_age = "200ms"
expire_to_queue = "late"
"""
PORT = re.compile(r"127\.0\.0\.1:(\d+)")
PUTS, GETS = 20, 15  # of each round: some must stay
ROUNDS = 3
LETTERS = 300
READ_SECONDS_MAX = 60.0  # it tries each second


class HungUp(Exception):
    """The server has ended."""


class Chores:
    """`refused`: the answers that were errors, each once."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.ledgers = {name: Ledger(name) for name in ("q", "stream", "new")}
        self.ledgers["brief"] = Ledger("brief", "late")
        self.jobs: set[int] = set()
        self.refused: set[str] = set()
        self.number = 0

    @property
    def ports(self) -> list[int]:
        """Of memcache, workq and the admin listener."""
        return [int(port) for port in PORT.findall(self.server.greeting)]

    @property
    def operator(self) -> Operator:
        return Operator(self.ports[2])

    def do(self) -> None:
        """All of it once. Raises HungUp, OSError."""
        with Wire(self.server.address) as wire:
            for _ in range(ROUNDS):
                for queue in ("q", "stream"):
                    for _ in range(PUTS):
                        self.put(wire, queue)
                    for _ in range(GETS):
                        self.take(wire, queue)
            self.put(wire, "brief")
            self.put(wire, "new", is_keyed=True)
            self._ask(wire, b"set purged 0 0 1\r\n1")
        self.operate()
        with Wire(self.server.address) as wire:
            self._ask(wire, b"delete purged")
            self._await_expiry(wire)
        self._work()

    def put(self, wire: Wire, queue: str, *, is_keyed: bool = False) -> None:
        key = b"%b-%d" % (queue.encode(), self.number)
        self.number += 1
        ledger, item = self.ledgers[queue], item_for(key, LETTERS)
        ledger.sent(key)
        where = b"%b/key=%b" % (queue.encode(), key) if is_keyed else queue.encode()
        if self._ask(wire, b"set %b 0 0 %d\r\n%b" % (where, len(item), item)) == b"STORED":
            ledger.stored(key)
        else:
            ledger.refused(key)

    def take(self, wire: Wire, queue: str) -> None:
        """Open and close one."""
        ledger, head = self.ledgers[queue], self._ask(wire, b"get %b/open" % queue.encode())
        if not head.startswith(b"VALUE "):
            return
        item = wire.hear(int(head.split()[3]))
        wire.line()
        wire.line()
        key = ledger.delivered(item, {}, wire)
        ledger.closing(key)
        if self._ask(wire, b"get %b/close" % queue.encode()) == b"END":
            ledger.closed(key)

    def _await_expiry(self, wire: Wire) -> None:
        """Until what is in `brief` is on its way to `late`. Raises HungUp, OSError."""
        until_s = monotonic() + READ_SECONDS_MAX
        while (head := self._ask(wire, b"get brief/peek")).startswith(b"VALUE "):
            assert monotonic() < until_s, "what is to expire does not"
            wire.hear(int(head.split()[3]))
            wire.line()
            wire.line()
            sleep(0.02)

    def _ask(self, wire: Wire, request: bytes) -> bytes:
        answer = wire.ask(request)
        if not answer:
            raise HungUp
        if b"ERROR" in answer:
            self.refused.add(answer.decode())
        return answer

    def operate(self) -> None:
        """Purge, undo, pause, resume, status, reload."""
        operator = self.operator
        for path, body in (
            ("queues/purged/purge", {}),
            ("queues/q/pause", {}),
            ("queues/q/resume", {}),
            ("status", {"status": "up"}),
            ("reload", {}),
        ):
            reply = operator.ask("POST", f"/api/{path}", body)
            if reply.status != 200:
                self.refused.add(reply.json["error"])
            elif "undo" in (found := reply.json) and found["undo"]:
                operator.ask("POST", f"/api/undo/{found['undo']}", {})

    def _work(self) -> None:
        """A dozen jobs, each added and deleted but for one."""
        with Wire(("127.0.0.1", self.ports[1])) as worker:
            for _ in range(12):
                number = self.number = self.number + 1
                if self._ask_job(worker, add(number, ttl=86_400_000).removesuffix(b"\r\n")):
                    self.jobs.add(number)
                    if number % 12:
                        self.jobs.discard(number)
                        self._ask_job(worker, b"delete %b" % job_id(number).encode())

    def _ask_job(self, worker: Wire, request: bytes) -> bool:
        return self._ask(worker, request).startswith(b"+OK")

    def reads_again(self, queue: str) -> bool:
        """Whether the server comes to hand out items of it by itself."""

        def answers() -> bool:
            with Wire(self.server.address) as wire:
                return not wire.ask(b"get %b/peek" % queue.encode()).startswith(b"SERVER_ERROR")

        return until(answers, READ_SECONDS_MAX)

    def wrong(self) -> list[str]:
        """What the server, started again on a sound disk, has that it must not, or has not."""
        wrong = []
        self.operator.ask("POST", "/api/queues/q/resume", {})  # it may have ended between pause and resume
        for ledger in self.ledgers.values():
            found = {queue: drain(self.server.address, queue) for queue in ledger.queues}
            wrong += ledger.wrong + ledger.check(found)
        for number in self.jobs:
            with Wire(("127.0.0.1", self.ports[1])) as worker:
                if not worker.ask(b"inspect job %b" % job_id(number).encode()).startswith(b"+OK"):
                    wrong.append(f"job {number} is lost")
        return wrong
