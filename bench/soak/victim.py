"""A server process on real files: started, killed and started again on the same spool."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol

from staniel.bench.harness.process import StartFailed, child_setup

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0
GREETING = re.compile(
    r" listens on 127\.0\.0\.1:(?P<port>\d+), .*?"
    r" (?P<items>\d+) items?(?:, \d+ jobs?)? recovered in (?P<took_ms>\d+) ms"
)
PORT = re.compile(r"127\.0\.0\.1:(\d+)")


class Child(Protocol):
    """A process, as far as a Victim uses it: of subprocess, or of what stands in for it."""

    @property
    def pid(self) -> int: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended. Return its exit code."""

    def send_signal(self, sig: int, /) -> None:
        """Signal the process, unless it has ended."""


class Victim:
    """A server process. `folder` gets the configuration, the spool, and the server's standard error. `wrapper` is a
    command line that runs ours. `launch`, if there is one, starts the server instead, from its arguments and the
    descriptor of its standard error.
    """

    launch: Callable[[list[str], int], Child] | None = None

    def __init__(self, folder: Path, config: str, wrapper: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.wrapper = wrapper
        self.environment: dict[str, str] = {}  # added to this process's, from the next start on
        self.config_path = folder / "staniel.toml"
        self.configure(config)
        self.port = 0
        self.ports: tuple[int, ...] = ()  # of all listeners, that of jobs last
        self.ready_s = 0.0  # from the start of the process to its greeting, in the present life
        self.recovery_s = 0.0  # the part of that which its recovery took, according to the greeting
        self.end_s = 0.0  # from the last signal of `end` to the end of the process
        self._child: Child | None = None

    def __enter__(self) -> Victim:
        return self

    def __exit__(self, kind: type[BaseException] | None, wrong: BaseException | None, at: TracebackType | None) -> None:
        if self._child is not None:
            self.end(signal.SIGKILL)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def said(self) -> str:
        """The standard error of every life."""
        return (self.folder / "stderr").read_text(errors="replace")

    def configure(self, config: str) -> None:
        """Replace the file as a whole, as a careful operator does."""
        fresh = self.config_path.with_suffix(".new")
        fresh.write_text(config)
        fresh.replace(self.config_path)

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def start(self) -> None:
        """Start the server; return once it has printed its greeting. Raises StartFailed."""
        self.spawn()
        self.await_greeting(time.monotonic())

    def await_greeting(self, began_s: float) -> None:
        """Wait for the greeting of the process that was spawned at that time. Raises StartFailed."""
        child = self._child
        assert child is not None and child.stdout is not None
        poller = select.poll()
        poller.register(child.stdout, select.POLLIN)
        greeting = child.stdout.readline().decode() if poller.poll(START_SECONDS_MAX * 1000) else ""
        found = GREETING.search(greeting)
        if found is None:
            raise StartFailed(f"no greeting but {greeting!r}: {self.said[-2000:]}")
        self.ready_s = time.monotonic() - began_s
        self.recovery_s = int(found["took_ms"]) / 1000
        self.port = int(found["port"])
        self.ports = tuple(int(port) for port in PORT.findall(greeting))

    def spawn(self) -> Child:
        """Spawn the process without waiting for it."""
        assert self._child is None
        arguments = ["serve", "--config", str(self.config_path), "--port", "0"]
        command = [*self.wrapper, str(Path(sys.executable).with_name("staniel")), *arguments]
        with (self.folder / "stderr").open("ab") as stderr:
            if self.launch is not None:
                self._child = self.launch(arguments, stderr.fileno())
            else:
                self._child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
                    env={**os.environ, **self.environment}, preexec_fn=child_setup(None),
                )  # fmt: skip
        return self._child

    def send_signal(self, number: signal.Signals) -> None:
        assert self._child is not None
        self._child.send_signal(number)

    def end(self, number: signal.Signals) -> int:
        """Signal the process and wait until it is dead. Return its exit code."""
        began_s = time.monotonic()
        self.send_signal(number)
        code = self.wait()
        self.end_s = time.monotonic() - began_s
        return code

    def wait(self) -> int:
        """Wait until the process has ended. Return its exit code."""
        child, self._child = self._child, None
        assert child is not None and child.stdout is not None
        code = child.wait(STOP_SECONDS_MAX)
        child.stdout.close()
        return code
