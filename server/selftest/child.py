"""A real server of this program, started by the self-test on a folder of its own, and a client for it."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

START_S_MAX, STOP_S_MAX, ANSWER_S_MAX = 60.0, 30.0, 30.0
GREETING = re.compile(r" listens on 127\.0\.0\.1:(\d+)")
PR_SET_PDEATHSIG = 1
QUEUES = ("kestrel", "libkestrel", "plain")
CONFIG = """
[server]
spool = "spool"
trust_file_system = true

[admin]
socket = false

[memcache]
port = 0

[default]
sync_journal = "always"
max_memory_size = "64KB"
default_journal_size = "16KB"
max_journal_size = "256KB"
min_journal_compact_delay = "10ms"

[queues.libkestrel]
journal_format = "libkestrel"

[queues.plain]
max_memory_size = "1GB"
"""
"""The settings: small files, so that a few seconds see them sealed, packed and removed. `plain` stays one file."""


class ChildFailed(Exception):
    """The server did not start; the text holds its output."""


class Child:
    """A server process. `folder` gets the settings and the spool. It dies with this process."""

    def __init__(self, folder: str, config: str = CONFIG, setup: Callable[[], None] | None = None) -> None:
        self.folder = folder
        self.port = 0
        self._setup = setup
        self._process: subprocess.Popen[bytes] | None = None
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/staniel.toml", "w") as file:
            file.write(config)

    def start(self) -> None:
        """Start the server. Raises ChildFailed."""
        command = [sys.executable, "-m", "staniel", "serve", "--config", f"{self.folder}/staniel.toml"]
        with open(f"{self.folder}/log", "ab") as log:
            self._process = process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                preexec_fn=self._prepare,
            )  # fmt: skip
        assert process.stdout is not None
        poller = select.poll()
        poller.register(process.stdout, select.POLLIN)
        greeting = GREETING.search(process.stdout.readline().decode() if poller.poll(START_S_MAX * 1000) else "")
        if greeting is None:
            self.kill()
            raise ChildFailed(self.said()[-400:] or "the server says nothing")
        self.port = int(greeting[1])

    def _prepare(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if self._setup is not None:
            self._setup()

    def said(self) -> str:
        """Return the log of all its runs."""
        with open(f"{self.folder}/log", errors="replace") as file:
            return file.read()

    def kill(self) -> None:
        """Kill it like `kill -9`; do nothing if it does not run."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop it as an operator does. Return the exit code."""
        return self._end(signal.SIGTERM)

    def limit(self, kind: int, most: int) -> None:
        """Set a resource limit of the running server."""
        assert self._process is not None
        resource.prlimit(self._process.pid, kind, (most, most))

    def wait(self) -> int:
        """Wait until it ends by itself. Return the exit code."""
        return self._end(0)

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdout is not None
        if number:
            process.send_signal(number)
        try:
            return process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            process.stdout.close()

    def client(self) -> ProbeClient:
        """Return a connected client. Raises OSError."""
        return ProbeClient(self.port)


class ProbeClient:
    """A connection, for the memcache protocol."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), ANSWER_S_MAX)
        self._stream = self._sock.makefile("rb")

    def close(self) -> None:
        self._stream.close()
        self._sock.close()

    def send(self, data: bytes) -> None:
        """Send bytes. Raises OSError."""
        self._sock.sendall(data)

    def line(self) -> bytes:
        """Return the next line; b"" once the server has ended."""
        try:
            return self._stream.readline().rstrip(b"\r\n")
        except OSError:
            return b""

    def item(self, queue: str) -> bytes | None:
        """Take an item with a plain get; None if the queue is empty. Raises OSError."""
        self.send(b"get %b\r\n" % queue.encode())
        head = self.line()
        if head == b"END":
            return None
        if not head.startswith(b"VALUE "):
            raise OSError(f"the server answers {head.decode(errors='replace')!r}")
        size = int(head.split()[3])
        data = self._stream.read(size + 7)
        if len(data) != size + 7:
            raise OSError("the server has hung up")
        return data[:size]

    def drain(self, queue: str) -> list[bytes]:
        """Take every item, in order. Raises OSError."""
        items = []
        while (item := self.item(queue)) is not None:
            items.append(item)
        return items
