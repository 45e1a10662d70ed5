"""Real members: server processes on loopback with spools and ports of their own, and one real etcd."""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from staniel.cluster.durable import Kept, compacted, read_file
from staniel.cluster.key import Key, decode_key, encode_key, prefix_of
from staniel.cluster.spool_names import SpoolPaths
from staniel.journal.disk.os_fs import OsFs
from tests.cluster.etcd_process import EtcdProcess, started
from tests.support.certificates import Files
from tests.support.process import die_with_the_tests, until
from tests.support.transcripts import free_port

SECONDS_MAX = 180.0
KEY_NAME = prefix_of("test") + b"leader"


class MemberServer:
    """A member's process. Its ports stay the same over restarts. `wrapper`: a command line that runs another."""

    def __init__(self, folder: Path, name: str, etcd: str, settings: str = "", min_in_sync: int = 2) -> None:
        self.folder, self.name = folder, name
        self.spool = folder / name
        self.port, self.replication_port, self.admin_port = free_port(), free_port(), free_port()
        self.config = folder / f"{name}.toml"
        self.config.write_text(
            f'[server]\nspool = "{self.spool}"\nlog_level = "debug"\n[memcache]\nport = {self.port}\n'
            f"[admin]\nport = {self.admin_port}\n"
            f'[cluster]\nname = "test"\nmember = "{name}"\nlisten = "127.0.0.1:{self.replication_port}"\n'
            f'advertise = "127.0.0.1:{self.port}"\netcd = ["{etcd}"]\nlease = "4s"\nmin_in_sync = {min_in_sync}\n'
            + settings
        )
        self.log = folder / f"{name}.log"
        self.wrapper: tuple[str, ...] = ()
        self.wires: list[Wire] = []
        self._id = ""
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process."""
        program = str(Path(sys.executable).with_name("staniel"))
        command = [*self.wrapper, program, "serve", "--config", str(self.config)]
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_the_tests)

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def kill(self) -> None:
        """End it as a crash does."""
        assert self._child is not None
        self._child.kill()
        self._child.wait()

    @property
    def kept(self) -> Kept:
        """What its file says."""
        content = read_file((self.spool / ".staniel" / "member").read_bytes())
        assert not isinstance(content, str), content
        return content.kept

    def cut_power(self, queue: str) -> None:
        """Make its disk what a power cut may leave of it, once it was killed: the last third of a queue's journal is
        gone, and the last record of the stream.
        """
        kept = self.kept
        assert kept.unsynced == OsFs().boot_id()
        stream = kept.stream
        stream.cut(max(stream.base.number, stream.last.number - 1))
        kept.unsynced = b"another boot".ljust(16)
        (self.spool / ".staniel" / "member").write_bytes(compacted(kept))
        journal = self.spool / queue
        data = journal.read_bytes()
        journal.write_bytes(data[: len(data) * 2 // 3])

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self._child is not None
        self._child.send_signal(number)

    def wait(self) -> int:
        """Return the exit code, once the process has ended."""
        assert self._child is not None
        return self._child.wait(SECONDS_MAX)

    def call(self, path: str, body: object = None) -> tuple[int, Any]:
        """Ask the admin listener: POST if there is a body. Return the status and the reply; 0 if there is none."""
        data = None if body is None else json.dumps(body).encode()
        url, type_ = f"http://127.0.0.1:{self.admin_port}{path}", {"Content-Type": "application/json"}
        request = urllib.request.Request(url, data, type_)
        seconds_max = 5 if body is None else 60  # a look can be repeated, also at one that is stopped
        try:
            with urllib.request.urlopen(request, timeout=seconds_max) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, None

    def text_of(self, path: str) -> str:
        """Ask the admin listener for text, such as /metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=60) as reply:
            return str(reply.read().decode())

    @property
    def status(self) -> dict[str, Any]:
        """What it tells of itself; {} if it does not run."""
        return self.call("/cluster")[1] or {}

    @property
    def role(self) -> str:
        return str(self.status.get("role", ""))

    @property
    def lines(self) -> str:
        """Its log."""
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    @property
    def member_id(self) -> str:
        """Its id. One that is stopped by a signal has told it before."""
        self._id = self._id or str(self.status.get("id", ""))
        return self._id

    @property
    def files(self) -> dict[str, bytes]:
        """The replicated files of its spool, but for the notes of its clock. Its process must have ended."""
        paths, fs = SpoolPaths(str(self.spool)), OsFs()
        names = [name for name in paths.replicated_files(fs) if name != ".staniel/clock"]
        return {name: Path(paths.path_of(name)).read_bytes() for name in names}

    def stop(self) -> None:
        """Stop it, and wait until it has ended."""
        self.signal(signal.SIGTERM)
        assert not self.wait(), self.lines

    def wire(self, seconds_max: float = SECONDS_MAX) -> Wire:
        """Connect as a client. The connection is closed with the cluster."""
        self.wires.append(Wire(self.port, seconds_max))
        return self.wires[-1]


class Wire:
    """A client's connection, byte for byte."""

    def __init__(self, port: int, seconds_max: float = SECONDS_MAX) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), seconds_max)
        self.file = self.sock.makefile("rwb")

    def line(self) -> str:
        """Read a line; "" at the end."""
        return self.file.readline().decode().rstrip("\r\n")

    def last_line(self) -> str:
        """Read a line from a server that may reset the connection; "" if nothing comes any more."""
        try:
            return self.line()
        except ConnectionError:
            return ""

    def say(self, text: str) -> None:
        """Send a request, without reading its reply."""
        self.file.write(text.replace("\n", "\r\n").encode())
        self.file.flush()

    def put(self, queue: str, data: str) -> str:
        """Put an item. Return the reply."""
        self.say(f"set {queue} 0 0 {len(data)}\n{data}\n")
        return self.line()

    def get(self, queue: str) -> str | None:
        """Take an item; None if there is none. Raises ConnectionError if the server refuses."""
        self.say(f"get {queue}\n")
        head = self.line()
        if head == "END":
            return None
        if not head.startswith("VALUE"):
            raise ConnectionError(head)
        data = self.line()
        assert self.line() == "END"
        return data

    def drain(self, queue: str) -> list[str]:
        """Take all items."""
        items = []
        while (item := self.get(queue)) is not None:
            items.append(item)
        return items

    def has_bytes(self) -> bool:
        """Whether something has come, or the end of the stream."""
        return bool(select.select([self.sock], [], [], 0)[0])

    def close(self) -> None:
        with suppress(OSError):  # the rest of a request cannot be sent
            self.file.close()
        self.sock.close()


class Servers:
    """The members of one cluster."""

    def __init__(self, members: list[MemberServer], etcd: EtcdProcess) -> None:
        self.members = members
        self.etcd = etcd

    def __getitem__(self, at: int) -> MemberServer:
        return self.members[at]

    @property
    def key(self) -> Key:
        """The key in etcd."""
        (held,) = self.etcd.call("kv/range", key=b64encode(KEY_NAME).decode())["kvs"]  # type: ignore[misc,attr-defined]
        key = decode_key(b64decode(held["value"]))
        assert isinstance(key, Key), key
        return key

    def elect(self, member: MemberServer) -> None:
        """Write the key as a candidate does, or a leader that hands over: this member leads the next epoch."""
        key = self.key.led_by(bytes.fromhex(member.member_id), f"127.0.0.1:{member.port}")
        self.etcd.call("kv/put", key=b64encode(KEY_NAME).decode(), value=b64encode(encode_key(key)).decode())

    def told(self) -> str:
        """All logs, for a test that fails."""
        return "\n".join(f"--- {member.name} {member.status}\n{member.lines}" for member in self.members)

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait until `condition` holds."""
        assert until(condition, SECONDS_MAX), f"{what} did not happen\n{self.told()}"

    def form(self) -> MemberServer:
        """Start all, make the cluster with the first one, and wait until all are in sync. Return the leader."""
        first = self.members[0]
        for member in self.members:
            member.start()
        self.wait_for(lambda: first.role == "waiting", "the first member waits")
        self.wait_for(lambda: first.call("/cluster/init", {})[0] == 202, "the cluster is made")
        self.wait_for(lambda: self.leader is not None, "a member leads")
        self.wait_until_whole()
        leader = self.leader
        assert leader is not None
        return leader

    def wait_until_whole(self) -> None:
        """Wait until all that run are in sync."""
        running = [member for member in self.members if member.is_running]

        def is_whole() -> bool:
            statuses = [member.status for member in running]
            leading = [status for status in statuses if status.get("role") == "leading"]
            following = [status for status in statuses if status.get("role") == "following"]
            return (
                len(leading) == 1
                and len(following) == len(running) - 1
                and len(leading[0].get("in_sync", ())) == len(running)
            )

        self.wait_for(is_whole, f"{len(running)} members in sync")

    def wait_until_same(self) -> None:
        """Wait until all have applied all that the leader has written."""
        leader = self.leader
        assert leader is not None
        last = leader.status["last"]
        self.wait_for(lambda: all(member.status.get("answered", 0) >= last for member in self.members), "all applied")

    def end_all(self) -> None:
        """End all: followers cleanly, so that their files have all that they know; then the leader, as it is."""
        leader = self.leader
        assert leader is not None
        for member in self.members:
            if member is not leader and member.is_running:
                member.stop()
        leader.kill()

    @property
    def leader(self) -> MemberServer | None:
        """The member that leads the newest epoch."""
        statuses = [(member.status, member) for member in self.members if member.is_running]
        leading = [(status["epoch"], member) for status, member in statuses if status.get("role") == "leading"]
        return max(leading, key=lambda pair: pair[0])[1] if leading else None


@contextmanager
def cluster(
    folder: Path, count: int = 3, settings: str = "", min_in_sync: int = 2, etcd_tls: Files | None = None
) -> Iterator[Servers]:
    """Members that are not started yet, and their etcd. All processes are gone when the block ends. `settings` begin
    with further ones of [cluster].
    """
    with started(folder / "etcd", tls=etcd_tls) as (etcd,):
        members = [MemberServer(folder, f"m{at}", etcd.url, settings, min_in_sync) for at in range(count)]
        servers = Servers(members, etcd)
        try:
            yield servers
        finally:
            for member in members:
                if member.is_running:
                    member.kill()
                for wire in member.wires:
                    wire.close()
