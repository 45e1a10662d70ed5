"""The machines of a run: members, with a disk of their own each, and etcds."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from staniel.bench.harness.process import child_setup
from staniel.bench.harness.small_disk import EXT4, SmallDisk, small_disk
from staniel.bench.soak.cluster.network import Network

MEMBERS = ("a", "b", "c")
ETCDS = ("x", "y", "z")
DISK_BYTES = 256 << 20
FILL_LEAVES_BYTES = 100 << 10
SLOW_DISK = Path(__file__).parents[1] / "mix" / "slow_disk.c"
WHOLE_S_MAX = 120.0
TOKEN = "of-a-soak-of-this-machine-alone"
CLIENTS_PORT, MEMBERS_PORT, ADMIN_PORT, ETCD_PORT, PEERS_PORT = 22133, 22233, 22134, 2379, 2380
CONFIG = """
[server]
host = "{host}"
spool = "{spool}"
open_network = true
[memcache]
port = {clients}
[admin]
port = {admin}
token_file = "{token}"
[cluster]
name = "soak"
member = "{name}"
listen = "{host}:{members}"
advertise = "{host}:{clients}"
etcd = {etcds}
min_in_sync = 2
lease = "{lease_s}s"
[default]
default_journal_size = "64KB"
max_memory_size = "128KB"
max_journal_size = "1MB"
min_journal_compact_delay = "100ms"
[queues.stream]
journal_format = "libkestrel"
"""
ENDS = re.compile(r"Traceback|AssertionError")


class DidNotHappen(Exception):
    """The error when what must happen after an accident does not; the text says what, and what the members say."""


class Machine:
    """A process on a machine of its own. It keeps its address over restarts."""

    def __init__(self, name: str, address: str, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self.name, self.address, self.log = name, address, log
        self._command, self._environment = command, environment
        self._child: subprocess.Popen[bytes] | None = None
        self.is_frozen = False

    def start(self) -> None:
        """Start the process, or let it go on."""
        if self.is_frozen:
            self.thaw()
        if self.is_running:
            return
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=os.environ | self._environment, preexec_fn=child_setup(None),
            )  # fmt: skip

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def kill(self) -> None:
        """End it as a crash does."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self.is_frozen = False

    def stop(self) -> None:
        """Order it to stop, and do not wait."""
        if self.is_running and self._child is not None:
            self._child.terminate()

    def wait(self) -> None:
        """Wait until it has ended."""
        if self._child is not None:
            self._child.wait()

    def freeze(self) -> None:
        """Stop it until it is thawed or started."""
        if self.is_running and self._child is not None:
            self._child.send_signal(signal.SIGSTOP)
            self.is_frozen = True

    def thaw(self) -> None:
        """Let it go on."""
        if self._child is not None:
            self._child.send_signal(signal.SIGCONT)
        self.is_frozen = False

    @property
    def lines(self) -> str:
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""


class Member(Machine):
    """A member's server. `slow`: the file that slows its disk down."""

    disk: SmallDisk
    slow: Path

    def ask(self, path: str, body: object = None) -> Any:
        """Return the reply of its admin listener; None if there is none, or a refusal."""
        data = None if body is None else json.dumps(body).encode()
        heads = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        request = urllib.request.Request(f"http://{self.address}:{ADMIN_PORT}{path}", data, heads)
        try:
            with urllib.request.urlopen(request, timeout=2) as reply:
                return json.load(reply)
        except (OSError, ValueError):
            return None

    @property
    def status(self) -> dict[str, Any]:
        """The state that it tells of itself; {} if it cannot be asked."""
        return (self.ask("/cluster") if self.is_running and not self.is_frozen else None) or {}


def leading_of(statuses: list[dict[str, Any]]) -> int | None:
    """Return which of these members leads the newest epoch, None if none leads."""
    leading = [(status["epoch"], at) for at, status in enumerate(statuses) if status.get("role") == "leading"]
    return max(leading)[1] if leading else None


class Machines:
    """All machines of a run."""

    def __init__(self, network: Network, members: list[Member], etcds: list[Machine]) -> None:
        self.network, self.members, self.etcds = network, members, etcds

    @property
    def all(self) -> list[Machine]:
        return [*self.members, *self.etcds]

    @property
    def leader(self) -> Member | None:
        """The member that leads the newest epoch, of those that can be asked."""
        at = leading_of([member.status for member in self.members])
        return None if at is None else self.members[at]

    @property
    def epoch(self) -> int:
        """The newest epoch of which a member tells."""
        return max([int(member.status.get("epoch", 0)) for member in self.members])

    def form(self) -> None:
        """Start all, and make the cluster. Raises DidNotHappen."""
        for machine in self.all:
            machine.start()
        first = self.members[0]

        def is_made() -> bool:
            if not first.is_running:
                raise DidNotHappen(f"the first member has ended: {first.lines[-400:]}")
            return first.ask("/cluster/init", {}) is not None

        self.wait_for(is_made, "the cluster")
        self.wait_until_whole()

    def is_whole(self) -> bool:
        """Tell whether all members are in sync."""
        statuses = [member.status for member in self.members]
        at = leading_of(statuses)
        if at is None or len(statuses[at]["in_sync"]) < len(statuses):
            return False
        return all(status.get("role") == "following" for status in statuses[:at] + statuses[at + 1 :])

    def wait_until_whole(self) -> None:
        """Wait until all members are in sync; those that have ended, on a full disk for example, are started again.
        Raises DidNotHappen.
        """

        def is_whole() -> bool:
            for machine in self.all:
                machine.start()
            return self.is_whole()

        self.wait_for(is_whole, "all members in sync")

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something holds. Raises DidNotHappen."""
        until_s = time.monotonic() + WHOLE_S_MAX
        while not condition():
            if time.monotonic() > until_s:
                told = "; ".join(f"{member.name}: {member.status}" for member in self.members)
                ends = "; ".join(f"{member.name}: {member.lines[-300:]}" for member in self.members)
                raise DidNotHappen(
                    f"{what} did not happen within {WHOLE_S_MAX:g} s: {told}; the ends of their logs: {ends}"
                )
            time.sleep(0.2)

    def heal(self) -> None:
        """Undo what accidents have left: cuts, slow and full disks, machines that are gone or frozen."""
        self.network.heal()
        for member in self.members:
            member.slow.unlink(missing_ok=True)
            member.disk.filler.unlink(missing_ok=True)
        for machine in self.all:
            machine.start()

    def wrong(self) -> list[str]:
        """Return what members have logged that no accident explains."""
        return [
            f"member {member.name}: {line}"
            for member in self.members
            for line in member.lines.splitlines()
            if ENDS.search(line)
        ]


@contextmanager
def machines(folder: Path, lease_s: int) -> Iterator[Machines]:
    """Yield machines that are not started yet; all is gone at the end, but the logs. Raises CannotJoin, CannotMount,
    OSError.
    """
    network = Network(MEMBERS + ETCDS)
    library = folder / "slow_disk.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SLOW_DISK), "-ldl"], check=True)
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    with ExitStack() as stack:
        stack.enter_context(network.open())
        etcds = [_etcd(network, name, folder) for name in ETCDS]
        members = []
        for name in MEMBERS:
            disk = stack.enter_context(small_disk(folder / name, DISK_BYTES, EXT4))
            members.append(_member(network, name, folder, disk, lease_s, library))
        for machine in [*members, *etcds]:
            stack.callback(machine.kill)
        yield Machines(network, members, etcds)


def _etcd(network: Network, name: str, folder: Path) -> Machine:
    def peers(name: str) -> str:
        return f"http://{network.address(name)}:{PEERS_PORT}"

    clients = f"http://{network.address(name)}:{ETCD_PORT}"
    command = [*network.wrapper(name), "etcd", "--name", name, "--data-dir", str(folder / f"etcd-{name}")]
    command += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
    command += ["--listen-peer-urls", peers(name), "--initial-advertise-peer-urls", peers(name)]
    command += ["--initial-cluster", ",".join(f"{etcd}={peers(etcd)}" for etcd in ETCDS)]
    return Machine(name, network.address(name), command, folder / f"etcd-{name}.log", {})


def _member(network: Network, name: str, folder: Path, disk: SmallDisk, lease_s: int, library: Path) -> Member:
    config, slow = folder / f"{name}.toml", folder / f"{name}.slow"
    etcds = [f"http://{network.address(etcd)}:{ETCD_PORT}" for etcd in ETCDS]
    settings = CONFIG.format(
        host=network.address(name), name=name, spool=disk.folder / "spool", token=folder / "token", lease_s=lease_s,
        clients=CLIENTS_PORT, members=MEMBERS_PORT, admin=ADMIN_PORT, etcds=json.dumps(etcds),
    )  # fmt: skip
    config.write_text(settings)
    command = [*disk.wrapper, *network.wrapper(name), sys.executable, "-m", "staniel.server"]
    command += ["serve", "--config", str(config)]
    environment = {"LD_PRELOAD": str(library), "SLOW_DISK": str(slow)}
    member = Member(name, network.address(name), command, folder / f"{name}.log", environment)
    member.disk, member.slow = disk, slow
    return member
