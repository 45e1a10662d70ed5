"""Machines' networks: a namespace of the kernel for each machine, joined by a bridge, and cuts between them.

A cut drops packets where they arrive, so that it may be made one way, and so that connections hang as they do behind a
broken switch, instead of being refused. Needs root, `ip`, `iptables` and `nsenter`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

OUTSIDE = "outside"  # where clients are: the namespace of this process
LOSS = 0.2


class CannotJoin(Exception):
    """The error when no networks can be made here; the text says why."""


class Network:
    """The machines' networks. Addresses end with 1 and on, in the order of the names; clients' with 254."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        # Two runs at once have networks of their own.
        self._mark = os.getpid() % 65_536
        self._prefix = f"10.{self._mark >> 8}.{self._mark & 255}"
        self.bridge = f"stn{self._mark:x}"

    def address(self, name: str) -> str:
        """Return the address of a machine, or of the clients."""
        return f"{self._prefix}.{254 if name == OUTSIDE else self.names.index(name) + 1}"

    def namespace(self, name: str) -> str:
        return f"{self.bridge}-{name}"

    def wrapper(self, name: str) -> tuple[str, ...]:
        """Return the beginning of a command that runs on machine `name`."""
        return ("nsenter", f"--net=/run/netns/{self.namespace(name)}", "--")

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make the networks; they are gone at the end. Raises CannotJoin."""
        with ExitStack() as stack:
            run("ip", "link", "add", self.bridge, "type", "bridge")
            stack.callback(run, "ip", "link", "delete", self.bridge)
            run("ip", "address", "add", f"{self.address(OUTSIDE)}/24", "dev", self.bridge)
            run("ip", "link", "set", self.bridge, "up")
            for at, name in enumerate(self.names):
                space, end = self.namespace(name), f"{self.bridge}v{at}"
                run("ip", "netns", "add", space)
                stack.callback(run, "ip", "netns", "delete", space)
                run("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
                run("ip", "link", "set", end, "master", self.bridge, "up")
                run(*self.wrapper(name), "ip", "address", "add", f"{self.address(name)}/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    run(*self.wrapper(name), "ip", "link", "set", device, "up")
            yield

    def cut(self, source: str, target: str) -> None:
        """Let nothing from `source` arrive at `target`, a machine."""
        self._drop(target, "-s", self.address(source))

    def cut_to_clients(self, source: str) -> None:
        """Let nothing from machine `source` reach the clients."""
        run(*self.wrapper(source), "iptables", "-A", "OUTPUT", "-d", self.address(OUTSIDE), "-j", "DROP")

    def lose(self, target: str) -> None:
        """Drop one in five of the packets that arrive at `target`, but none within it."""
        self._drop(target, "-i", "eth0", "-m", "statistic", "--mode", "random", "--probability", str(LOSS))

    def _drop(self, target: str, *which: str) -> None:
        run(*self.wrapper(target), "iptables", "-A", "INPUT", *which, "-j", "DROP")

    def heal(self) -> None:
        """Undo all cuts."""
        for name in self.names:
            run(*self.wrapper(name), "iptables", "-F")


def run(*command: str) -> None:
    """Run a command. Raises CannotJoin."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise CannotJoin(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        raise CannotJoin(f"{' '.join(command)}: {done.stderr.strip()}")
