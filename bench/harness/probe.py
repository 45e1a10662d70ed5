"""Polite clients beside a heavy one: a number of small requests a second, and the delay of each reply.

It is a process of its own, because a thread would wait for its neighbours' interpreter. It is started with a port, a
queue, a rate and a number of connections; it prints an empty line once it is connected, measures until its standard
input ends, then prints JSON.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from staniel.bench.harness.contestant import ROOT
from staniel.bench.harness.process import child_setup

CONNECTIONS = 10
MORE_URGENT = -10  # than the heavy client on the same core; needs root
ANSWER_SECONDS_MAX = 60.0
NONE = b"END\r\n"


class Delays(Struct, frozen=True):
    """The delays of `requests` requests, in milliseconds, puts and gets in turn. `harm`: the failure, "" if there was
    none. `gone`: missing items, which are a failure unless the heavy request removes them.
    """

    requests: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    harm: str = ""
    gone: int = 0


class Probe:
    """The probe process, as its parent sees it."""

    def __init__(self, port: int, queue: str, rate: int, core: int | None, connections: int = CONNECTIONS) -> None:
        command = [sys.executable, "-m", "staniel.bench.harness.probe", str(port), queue, str(rate), str(connections)]
        self._child = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=child_setup(core)
        )
        assert self._child.stdout is not None
        self._child.stdout.readline()  # printed once it is connected

    def collect_delays(self) -> Delays:
        """End the process. Return its measurements."""
        out, _ = self._child.communicate(b"", timeout=2 * ANSWER_SECONDS_MAX)
        return msgspec.json.decode(out, type=Delays)

    def kill(self) -> None:
        self._child.kill()
        self._child.communicate()


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of rising values by the nearest rank; 0.0 for no values."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def delays(seconds: Sequence[float], harm: str = "", gone: int = 0) -> Delays:
    ms = sorted(1000 * one for one in seconds)
    p50_ms, p99_ms, p999_ms, max_ms = (round(percentile(ms, share), 3) for share in (0.5, 0.99, 0.999, 1.0))
    return Delays(len(ms), p50_ms, p99_ms, p999_ms, max_ms, harm, gone)


class Asker:
    """A connection with a queue of its own: it puts an item and gets it back, in turns."""

    def __init__(self, port: int, queue: bytes) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS_MAX)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._queue = queue
        self._number = 0
        self._wanted = self._heard = b""
        self._due = 0.0
        self.gone = 0

    def ask(self, due: float) -> None:
        data = b"small %08d" % (self._number // 2)
        if self._number % 2 == 0:
            self._wanted = b"STORED\r\n"
            self.sock.sendall(b"set %b 0 0 %d\r\n%b\r\n" % (self._queue, len(data), data))
        else:
            self._wanted = b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (self._queue, len(data), data)
            self.sock.sendall(b"get %b\r\n" % self._queue)
        self._number += 1
        self._heard = b""
        self._due = due

    def hear(self) -> float | None:
        """Return the seconds since the request was due; None while the reply is incomplete. Raises WrongReply."""
        more = self.sock.recv(4096)
        self._heard += more
        if self._heard == NONE and self._wanted.endswith(NONE):
            self.gone += 1
            return time.monotonic() - self._due
        if more and len(self._heard) < len(self._wanted):
            return None
        if self._heard != self._wanted:
            raise WrongReply(f"{self._heard[:80]!r} instead of {self._wanted[:80]!r}")
        return time.monotonic() - self._due

    @property
    def has_item(self) -> bool:
        """True if it has put an item and not got it back."""
        return self._number % 2 == 1


class WrongReply(Exception):
    """The error for an unexpected reply."""


def measure(port: int, queue: str, rate: int, connections: int) -> Delays:
    """Send requests due at even distances, each on a connection that has none in flight.

    A request that had to wait for such a connection is counted from the time when it was due; a request that was late
    only because of this program is not.
    """
    askers = [Asker(port, b"%b-%d" % (queue.encode(), number)) for number in range(connections)]
    by_fd = {asker.sock.fileno(): asker for asker in askers}
    poller = select.poll()
    poller.register(sys.stdin, select.POLLIN | select.POLLHUP)
    for fd in by_fd:
        poller.register(fd, select.POLLIN)
    idle = deque(askers)
    seconds: list[float] = []
    print(flush=True)
    due, waited, ending = time.monotonic(), False, False
    while not ending or len(idle) < len(askers):
        now = time.monotonic()
        while now >= due and idle and not ending:
            idle.popleft().ask(due if waited else now)
            due, waited = due + 1 / rate, False
        waited = now >= due
        for fd, _ in poller.poll(1000 if waited or ending else max(0.0, due - now) * 1000):
            if fd not in by_fd:
                ending = True
                poller.unregister(sys.stdin)
            elif (took := by_fd[fd].hear()) is not None:
                seconds.append(took)
                idle.append(by_fd[fd])
    for asker in askers:
        if asker.has_item:
            take_back(asker)
    gone = sum([asker.gone for asker in askers])
    return delays(seconds, f"{gone} items were not there any more" if gone else "", gone)


def take_back(asker: Asker) -> None:
    asker.ask(0.0)
    while asker.hear() is None:
        pass


def main() -> None:
    port, queue, rate, connections = sys.argv[1:]
    try:
        os.setpriority(os.PRIO_PROCESS, 0, MORE_URGENT)
    except PermissionError:
        pass
    try:
        result = measure(int(port), queue, int(rate), int(connections))
    except (OSError, WrongReply) as error:
        result = delays([], str(error))
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
