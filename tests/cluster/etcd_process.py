"""Real etcds on loopback, each with its data in a folder of the test."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.certificates import Files
from tests.support.process import die_with_the_tests, until
from tests.support.transcripts import free_port

START_SECONDS_MAX = 60.0
SERVES = re.compile(rb"ready to serve client requests|address already in use")


class EtcdProcess:
    """A member. `tls`: its certificate. Ports are chosen before the start, so that the others and a restart know
    them; a port that was taken meanwhile fails the start, and `started` chooses again.
    """

    def __init__(self, folder: Path, name: str = "a", *, tls: Files | None = None, port: int = 0) -> None:
        self.folder, self.name = folder, name
        self.port, self.peer_port = port or free_port(), free_port()
        self._tls = tls
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.peer = f"{name}=http://127.0.0.1:{self.peer_port}"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def _log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def spawn(self, cluster: str = "", *options: str) -> None:
        """Start the process; `cluster` has the peers of all members."""
        peer = self.peer.partition("=")[2]
        command = ["etcd", "--name", self.name, "--data-dir", str(self.folder / self.name), *options]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", cluster or self.peer]
        if self._tls:
            command += ["--cert-file", str(self._tls.certificate), "--key-file", str(self._tls.key)]
        self._log.unlink(missing_ok=True)
        with self._log.open("wb") as log:
            environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD")}
            self._child = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, preexec_fn=die_with_the_tests
            )

    def wait(self) -> bool:
        """Wait until it serves; False if its port is taken."""
        assert until(lambda: SERVES.search(self._log.read_bytes()), START_SECONDS_MAX), self._log.read_text()
        return b"ready to serve" in self._log.read_bytes()

    def kill(self) -> None:
        """End it as a crash does."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def signal(self, number: int) -> None:
        """Send a signal, SIGSTOP for example."""
        assert self._child is not None
        self._child.send_signal(number)

    def call(self, path: str, **body: object) -> dict[str, object]:
        """Ask it by another client than ours: the standard library's."""
        request = urllib.request.Request(f"{self.url}/v3/{path}", json.dumps(body).encode(), method="POST")
        trusting = ssl._create_unverified_context() if self._tls else None
        with urllib.request.urlopen(request, timeout=START_SECONDS_MAX, context=trusting) as reply:
            said: dict[str, object] = json.load(reply)
            return said


@contextmanager
def started(
    folder: Path, names: str = "a", *, tls: Files | None = None, options: tuple[str, ...] = ()
) -> Iterator[list[EtcdProcess]]:
    """The members of one etcd, all serving; gone when the block ends."""
    folder.mkdir(exist_ok=True)
    for _ in range(5):
        members = [EtcdProcess(folder, name, tls=tls) for name in names]
        try:
            cluster = ",".join(member.peer for member in members)
            for member in members:
                member.spawn(cluster, *options)
            if False in [member.wait() for member in members]:
                continue  # another process has taken a port
            yield members
            return
        finally:
            for member in members:
                member.kill()
    raise AssertionError("no free ports")
