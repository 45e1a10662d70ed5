"""One real server: started on a free port, stopped, killed and started again on the same spool.

Command line, greeting, signals, exit code; what it answers is for `wire.py`. Whatever a test does, the process is gone
when its `with` block ends, and a traceback on the server's standard error fails the test.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from tests.support import starter
from tests.support.ready import is_readable

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0  # it takes milliseconds; the machine may be busy
UNTIL_SECONDS_MAX = 60.0  # only a failure takes so long, however busy the machine
POLL_SECONDS = 0.005
POLL_SECONDS_MAX = 0.1
REST = 9
GREETING = re.compile(
    r"staniel (?P<version>\S+) listens on (?P<host>\S+):(?P<port>\d+)(?:, \S+:(?P<second>\d+))?(?:, \S+)*"
    r", spool (?P<spool>/.*): "
    r"(?P<queues>\d+) queues?, (?P<items>\d+) items?(?:, (?P<jobs>\d+) jobs?)? recovered in (?P<took_ms>\d+) ms"
    r", (?P<read_mb>\d+) MB read.*\n"
)
STANIEL = (str(Path(sys.executable).with_name("staniel")),)

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def die_with_the_tests() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def until(condition: Callable[[], object], seconds_max: float = UNTIL_SECONDS_MAX, rest: int = REST) -> bool:
    """Wait for `condition`, looking often; whether it came true in time. One that asks servers would keep them and this
    process busy, while what it waits for needs the processor: between two looks it rests `rest` times as long as one
    takes, and 0.1 s at most. One that does the work itself, such as filling a disk, gets a `rest` of 0.
    """
    began = time.monotonic()
    give_up = began + seconds_max
    while not condition():
        ended = time.monotonic()
        if ended > give_up:
            return False
        time.sleep(min(max(POLL_SECONDS, rest * (ended - began)), POLL_SECONDS_MAX))
        began = time.monotonic()
    return True


def run_staniel(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself, within seconds. It is forked (see starter.py), unless it gets an environment."""
    if not environment and (ran := starter.run(list(arguments), START_SECONDS_MAX)) is not None:
        return ran
    env = {**os.environ, **environment}
    return subprocess.run([*STANIEL, *arguments], capture_output=True, text=True, timeout=START_SECONDS_MAX, env=env)


class Server:
    """`folder` gets the spool, the configuration if there is one, and what the server wrote to standard error."""

    def __init__(
        self, folder: Path, *options: str, config: str = "", wrapper: tuple[str, ...] = (), forked: bool = False
    ) -> None:
        self.folder = folder
        self.spool = folder / "spool"
        self.options = options
        self.wrapper = wrapper  # a command line that runs ours
        self.forked = forked and not wrapper  # by tests/support/starter.py, which says what that hides
        self.config = folder / "staniel.toml"
        if config:
            self.config.write_text(config)
        self.stderr_path = folder / "stderr"
        self.greeting = ""
        self.port = 0
        self.second_port = 0
        self._child: subprocess.Popen[bytes] | starter.Child | None = None

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, wrong: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        if kind is None:
            assert "Traceback" not in self.stderr, self.stderr
        shutil.rmtree(self.spool, ignore_errors=True)  # its ballast is 16 MB

    @property
    def command(self) -> list[str]:
        return [*self.wrapper, *STANIEL, *self._arguments]

    @property
    def _arguments(self) -> list[str]:
        config = ("--config", str(self.config)) if self.config.exists() else ()
        return ["serve", *config, "--port", "0", "--spool", str(self.spool), *self.options]

    @property
    def child(self) -> subprocess.Popen[bytes] | starter.Child:
        assert self._child is not None, "the server was not started"
        return self._child

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def workq_address(self) -> tuple[str, int]:
        """Where it listens beside memcache: for workq, if that is served."""
        return "127.0.0.1", self.second_port

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text(errors="replace") if self.stderr_path.exists() else ""

    def start(self) -> Server:
        """Start, and read the greeting line for the address."""
        assert self._child is None
        with self.stderr_path.open("ab") as stderr:
            if self.forked:
                self._child = starter.start(self._arguments, stderr.fileno(), Path.cwd())
            else:
                self._child = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
                    preexec_fn=die_with_the_tests,
                )  # fmt: skip
        self.greeting = self._read_line()
        found = GREETING.fullmatch(self.greeting)
        assert found, f"no greeting: {self.greeting!r}; {self.stderr}"
        self.port = int(found["port"])
        self.second_port = int(found["second"] or 0)
        return self

    def _read_line(self) -> str:
        stdout = self.child.stdout
        assert stdout is not None
        ready = is_readable(stdout, START_SECONDS_MAX)
        assert ready, f"silent for {START_SECONDS_MAX} s; {self.stderr}"
        return stdout.readline().decode()

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    def wait(self, seconds_max: float = STOP_SECONDS_MAX) -> int:
        """The exit code, once the process has ended."""
        code = self.child.wait(seconds_max)
        self._forget()
        return code

    def stop(self) -> None:
        """As an operator does it: SIGTERM, and the exit code is 0."""
        self.signal(signal.SIGTERM)
        assert self.wait() == 0, self.stderr

    def kill(self) -> None:
        """SIGKILL; nothing if it does not run."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
            self.wait()

    def restart(self) -> Server:
        """Kill it and start it again on the same spool."""
        self.kill()
        return self.start()

    def _forget(self) -> None:
        if self._child is not None and self._child.stdout is not None:
            self._child.stdout.close()
        self._child = None

    def memory_bytes(self) -> int:
        """Resident memory, from /proc."""
        return int((Path("/proc") / str(self.pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Processor time used so far, from /proc."""
        fields = (Path("/proc") / str(self.pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running(
    folder: Path, *options: str, config: str = "", wrapper: tuple[str, ...] = (), forked: bool = True
) -> Iterator[Server]:
    """A server in a folder of its own, made if need be. `forked` unless a test is about the start itself."""
    folder.mkdir(parents=True, exist_ok=True)
    with Server(folder, *options, config=config, wrapper=wrapper, forked=forked) as server:
        yield server
