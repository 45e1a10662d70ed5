"""A server of ours as a process: start, kill, its figures in /proc, and a blocking client that sends in bursts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from staniel.bench.harness.contestant import ROOT
from staniel.bench.harness.machine import cores
from staniel.bench.harness.probe import Delays, Probe
from staniel.bench.harness.process import child_setup

BURST = 256
HEAR_SECONDS_MAX = 120.0
SERVER_CORE, OUR_CORE = cores()
PROGRAM = (sys.executable, "-m", "staniel.server")


class ServerFailed(Exception):
    """The server refused, lost or reordered something."""


class Served:
    """A real server on a spool of its own, killed and started again at will: `program`, run in `checkout`."""

    def __init__(self, folder: Path, config: str, program: Sequence[str] = PROGRAM, checkout: Path = ROOT) -> None:
        self.folder = folder
        self._program, self._checkout = program, checkout
        (folder / "staniel.toml").write_text(config)
        self.most_files = 0
        self.restart_ms = self.restart_cpu_ms = 0.0
        self.start()
        self._empty_start_cpu_ms = self.cpu_ms()

    def start(self) -> None:
        command = [*self._program, "serve", "--config", str(self.folder / "staniel.toml")]
        command += ["--port", "0", "--spool", str(self.folder / "spool"), "--log-level", "error"]
        self._child = subprocess.Popen(
            command,
            cwd=self._checkout,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=child_setup(SERVER_CORE),
        )
        assert self._child.stdout is not None
        self.greeting = self._child.stdout.readline().decode()
        if not self.greeting:
            raise ServerFailed("the server does not start")
        addresses = self.greeting.partition(" listens on ")[2].partition(", spool ")[0].split(", ")
        self.ports = [int(address.rpartition(":")[2]) for address in addresses]
        self.port = self.ports[0]
        self.restart_ms = float(self.greeting.rpartition(" in ")[2].split()[0])

    @property
    def pid(self) -> int:
        return self._child.pid

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()
        assert self._child.stdout is not None
        self._child.stdout.close()

    def restart(self, items: int) -> None:
        """Kill the server with SIGKILL, and start it again; every item must be there."""
        self.kill()
        self.start()
        self.restart_cpu_ms = max(0.0, self.cpu_ms() - self._empty_start_cpu_ms)
        if f" {items} items recovered" not in self.greeting:
            raise ServerFailed(f"{items} items expected: {self.greeting.strip()}")

    def cpu_ms(self) -> float:
        """Return the processor time used so far, from the process's clock as Linux numbers it."""
        return time.clock_gettime((~self._child.pid << 3) | 2) * 1000

    def rss_kb(self) -> float:
        pages = (Path("/proc") / str(self._child.pid) / "statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1024

    def files(self) -> int:
        self.most_files = max(self.most_files, len(os.listdir(f"/proc/{self._child.pid}/fd")))
        return self.most_files

    def most_rss_kb(self) -> float:
        """Return the highest resident size since the start."""
        status = (Path("/proc") / str(self._child.pid) / "status").read_text()
        return float(status.partition("VmHWM:")[2].split()[0])

    def forget_most_rss(self) -> None:
        """Restart the count of `most_rss_kb`."""
        (Path("/proc") / str(self._child.pid) / "clear_refs").write_text("5")

    def journal_kb(self) -> float:
        return sum(path.stat().st_size for path in (self.folder / "spool").glob("*") if path.is_file()) / 1024


class Client:
    """A blocking connection that sends in bursts."""

    def __init__(self, server: Served) -> None:
        self.server = server
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=HEAR_SECONDS_MAX)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def hear(self, end: bytes, count: int = 1) -> bytes:
        """Return everything up to `count` times `end`."""
        heard = bytearray()
        seen = 0
        while seen < count:
            data = self.sock.recv(1 << 18)
            if not data or b"ERROR" in data:
                raise ServerFailed(f"{data[:200]!r} after {seen} of {count} answers")
            tail = heard[-len(end) + 1 :]
            seen += (bytes(tail) + data).count(end)
            heard += data
        return bytes(heard)

    def ask(self, requests: Sequence[bytes], end: bytes) -> bytes:
        """Send bursts, and wait for the replies to each. Return all received bytes."""
        heard = []
        for at in range(0, len(requests), BURST):
            burst = requests[at : at + BURST]
            self.sock.sendall(b"".join(burst))
            heard.append(self.hear(end, len(burst)))
            if at % (16 * BURST) == BURST:
                self.server.files()
        return b"".join(heard)

    def put(self, queues: Sequence[str], data: Sequence[bytes]) -> None:
        sets = [
            b"set %b 0 0 %d\r\n%b\r\n" % (name.encode(), len(one), one) for name, one in zip(queues, data, strict=True)
        ]
        self.ask(sets, b"STORED\r\n")

    def get(self, keys: Sequence[str]) -> bytes:
        return self.ask([b"get %b\r\n" % key.encode() for key in keys], b"END\r\n")


@contextmanager
def served(
    config: str, base: Path | None = None, program: Sequence[str] = PROGRAM, checkout: Path = ROOT
) -> Iterator[Served]:
    """Yield a server with this configuration, in a folder under `base`; both are removed afterwards, in every case."""
    folder = Path(tempfile.mkdtemp(prefix="bench-ours-", dir=base))
    try:
        server = Served(folder, config, program, checkout)
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def polite_delays(server: Served, rate: int, clients: int, seconds: float) -> Delays:
    """Return the delays of `clients` clients that together put and get `rate` items a second. Raises ServerFailed."""
    probe = Probe(server.port, "polite", rate, OUR_CORE, clients)
    try:
        time.sleep(seconds)
        delays = probe.collect_delays()
    except BaseException:
        probe.kill()
        raise
    if delays.harm:
        raise ServerFailed(f"the polite clients: {delays.harm}")
    return delays
