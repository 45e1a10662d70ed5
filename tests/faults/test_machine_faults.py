"""What else a machine does to a real server: it stops for a while, is short of memory or descriptors, and its disk is
read-only from one moment to the next.
"""

from __future__ import annotations

import errno
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.faults.armed import Armed
from tests.faults.preloaded import build
from tests.support.process import Server, until
from tests.support.wire import Wire, drain

MB = 1 << 20
STOPPED_SECONDS = 3.5  # longer than every time-out below
BIG_ITEMS_MAX = 100
HEADROOM_BYTES = 60 * MB
IN_SECONDS = """
[server]
client_timeout = "3s"
stall_timeout = "3s"
tcp_keepalive = "3s"
tcp_user_timeout = "3s"
"""


def test_a_server_that_was_stopped_for_longer_than_its_timeouts_drops_no_client_that_spoke(tmp_path: Path) -> None:
    """SIGSTOP, a suspended virtual machine, a long swap storm: to its own clock all clients were silent."""
    with Server(tmp_path, config=IN_SECONDS) as server, ExitStack() as wires:
        asks, begins, waits, holds, comes = (wires.enter_context(Wire(server.address)) for _ in range(5))
        assert asks.put("q", b"1") == asks.put("held", b"1") == b"STORED"
        begins.say(b"set q 0 0 5\r\n12")
        waits.say(b"get none/t=500\r\n")
        assert holds.get("held/open") == b"1"
        assert comes.put("q", b"2") == b"STORED"
        server.signal(signal.SIGSTOP)
        asks.say(b"set q 0 0 1\r\n3\r\n")
        holds.say(b"get held/close\r\n")
        begins.say(b"345\r\n")
        time.sleep(STOPPED_SECONDS)
        comes.say(b"set q 0 0 1\r\n4\r\n")
        server.signal(signal.SIGCONT)
        assert [wire.line() for wire in (asks, begins, holds, comes)] == [b"STORED", b"STORED", b"END", b"STORED"]
        assert waits.line() == b"END"
        found = drain(server.address, "q")
        assert found[:2] == [b"1", b"2"] and sorted(found[2:]) == [b"12345", b"3", b"4"]
        assert drain(server.address, "held") == []


def test_a_server_that_runs_out_of_memory_ends_with_one_line_and_keeps_what_it_answered(tmp_path: Path) -> None:
    """Without a limit of its own the system kills a process (its cgroup's OOM killer): that is SIGKILL's case."""
    config = '[server]\nmax_pending_size_total = "1GB"\n[default]\nmax_memory_size = "1GB"\n'
    with Server(tmp_path, config=config) as server:
        pages = int((Path("/proc") / str(server.pid) / "statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + HEADROOM_BYTES
        resource.prlimit(server.pid, resource.RLIMIT_AS, (limit, limit))
        stored: list[bytes] = []
        with Wire(server.address) as wire:
            for number in range(BIG_ITEMS_MAX):
                item = b"%03d" % number * (2 * MB)
                try:
                    answer = wire.put("q", item)
                except OSError:
                    break
                if answer != b"STORED":
                    break
                stored.append(item[:3])
        assert server.wait() == 1
        (said,) = server.stderr.splitlines()
        assert said.startswith("staniel: out of memory; nothing was acknowledged since; ")
        server.start()
        found = [item[:3] for item in drain(server.address, "q")]
        assert found[: len(stored)] == stored and len(found) <= len(stored) + 1


@contextmanager
def open_files_at_most(server: Server, more: int) -> Iterator[None]:
    """So many more than it has open now."""
    before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    numbers = [int(path.name) for path in (Path("/proc") / str(server.pid) / "fd").iterdir()]
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (max(numbers) + 1 + more, before[1]))
    yield
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)


def test_a_server_without_descriptors_serves_those_who_are_there_and_others_once_it_has_some(tmp_path: Path) -> None:
    with Server(tmp_path) as server, Wire(server.address) as wire:
        assert wire.put("q", b"1") == b"STORED"
        with open_files_at_most(server, 0):
            assert wire.put("other", b"1") == b"STORED"  # the journal of q is closed for it, and opened again later
            late = Wire(server.address).say(b"version\r\n")
            assert until(lambda: "accept.failed" in server.stderr)
            assert wire.put("q", b"2") == b"STORED" and wire.get("q") == b"1"
        assert late.line().startswith(b"VERSION ")
        assert wire.put("other", b"2") == b"STORED"
        late.sock.close()
        server.restart()
        assert drain(server.address, "q") == [b"2"] and drain(server.address, "other") == [b"1", b"2"]


@pytest.mark.programs("cc")
def test_a_file_system_that_is_read_only_all_at_once_ends_the_server_until_it_is_mended(tmp_path: Path) -> None:
    """As ext4 does after an error (errors=remount-ro), with files open for writing."""
    preload = build("failing_calls.c", tmp_path)
    changes = "write pwrite fallocate mkdir link rename unlink ftruncate"
    with Armed(tmp_path, preload, code=errno.EROFS) as server:
        with Wire(server.address) as wire:
            assert wire.put("q", b"1") == b"STORED"
            server.fail(changes, "/spool/")
            assert wire.put("q", b"2") == b""
        assert server.wait() == 1
        assert server.stderr.count("\n") == 1 and "Read-only file system; nothing was acknowledged" in server.stderr
        server.fail(f"open {changes}", "/spool/")
        with pytest.raises(AssertionError, match=r"Read-only file system; look at the system's log for why"):
            server.start()
        assert server.wait() == 1
        server.mend()
        server.start()
        assert drain(server.address, "q") == [b"1"]
