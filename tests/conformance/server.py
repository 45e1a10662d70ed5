"""A real server in a process of its own, on a spool that a case has filled: command line, TOML file, greeting."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import starter
from tests.support.ready import is_readable

LISTENERS = ("memcache", "text", "thrift")
START_S = 60  # a machine that runs six of us at once on two cores is slow, not broken
STOP_S = 60
# Kestrel's built-in defaults, where ours are kinder.
KESTREL_SERVER = {"maxOpenTransactions": 1, "expirationTimerFrequency": None}
_ADDRESS = re.compile(r"127\.0\.0\.1:(\d+)")


class Mismatch(AssertionError):
    """The server did something else than the case says. Nothing but this is an expected failure."""


class Crashed(AssertionError):
    """The server left a traceback: never expected, not even of a case that is expected to fail."""


class StartFailed(Exception):
    """The server printed no greeting; the text is what it said instead."""


def snake(name: str) -> str:
    """`maxOpenTransactions` as our files write it."""
    return re.sub("[A-Z]", lambda match: "_" + match[0].lower(), name)


def value(given: object) -> str:
    """A setting of a case as a TOML value: durations are ms, sizes bytes, null is "none"."""
    return json.dumps("none" if given is None else given)


def table(name: str, settings: Mapping[str, object]) -> str:
    lines = [f"[{name}]", *(f"{snake(key)} = {value(given)}" for key, given in settings.items())]
    return "\n".join(lines) + "\n"


def toml(config: Mapping[str, Any], spool: str, dialect: str = "kestrel") -> str:
    """The whole file for a case's `config`, whose keys are Kestrel's own. Every listener takes any free port."""
    defaults = KESTREL_SERVER if dialect == "kestrel" else {}
    parts = [table("server", {"host": "127.0.0.1", "spool": spool} | defaults | config.get("server", {}))]
    parts += [table("memcache", {"port": 0, "dialect": dialect}), table("text", {"port": 0})]
    parts += [table("thrift", {"port": 0}), table("default", config.get("default", {}))]
    parts += [table(f"queues.{json.dumps(name)}", given) for name, given in config.get("queues", {}).items()]
    aliases = [f"{json.dumps(name)} = {json.dumps(given)}\n" for name, given in config.get("aliases", {}).items()]
    return "".join([*parts, "[aliases]\n", *aliases])


class Server:
    """One configuration and one spool, and the process that serves them, if it runs."""

    def __init__(self, folder: Path, config: Mapping[str, Any], dialect: str = "kestrel") -> None:
        self.folder = folder
        self.spool = folder / "spool"
        self.spool.mkdir(exist_ok=True)
        self.dialect = dialect
        self.ports: dict[str, int] = {}
        self._errors = folder / "stderr"
        self._process: starter.Child | None = None
        self.configure(config)

    def configure(self, config: Mapping[str, Any]) -> None:
        """Write the file; a running server reads it when it is told to."""
        self.config = config
        (self.folder / "staniel.toml").write_text(toml(config, str(self.spool), self.dialect), "utf-8")

    def start(self) -> None:
        """Returns when the server listens. Raises StartFailed."""
        with self._errors.open("ab") as errors:
            self._process = starter.start(["serve", "--config", str(self.folder / "staniel.toml")], errors.fileno())
        greeting = self._greeting()
        where = greeting.partition(", spool ")[0]
        self.ports = dict(zip(LISTENERS, map(int, _ADDRESS.findall(where)), strict=False))

    def _greeting(self) -> str:
        process = self._process
        assert process is not None and process.stdout is not None
        line, until = b"", time.monotonic() + START_S
        while not line.endswith(b"\n"):
            ready = is_readable(process.stdout, until - time.monotonic())
            piece = process.stdout.read1() if ready else b""
            if not piece:
                self._end(kill=True)
                raise StartFailed(f"no greeting, only {line!r}; standard error: {self.stderr()[-2000:]}")
            line += piece
        return line.decode()

    def stop(self) -> None:
        """A clean stop: SIGTERM, and exit code 0."""
        code = self._end(kill=False)
        if code:
            raise Mismatch(f"SIGTERM ended the server with code {code}: {self.stderr()[-2000:]}")

    def kill9(self) -> None:
        self._end(kill=True)

    def wait_exit(self) -> None:
        """The server ends by itself, cleanly."""
        if self._process is not None and (code := self._reap()):
            raise Mismatch(f"the server ended with code {code}: {self.stderr()[-2000:]}")

    def port(self, listener: str) -> int:
        if listener not in self.ports:
            raise Mismatch(f"the server does not listen for {listener}")
        return self.ports[listener]

    def stderr(self) -> str:
        return self._errors.read_text("utf-8", errors="replace") if self._errors.exists() else ""

    def check_stderr(self) -> None:
        """A traceback is a failure, whatever the clients saw."""
        if "Traceback" in self.stderr():
            raise Crashed(f"traceback on standard error: {self.stderr()[-3000:]}")

    def files(self) -> dict[str, bytes]:
        """The spool's regular files, without the sub-folders."""
        return read_folder(self.spool)

    def _end(self, kill: bool) -> int:
        if self._process is None:
            return 0
        if kill:
            self._process.kill()
        else:
            self._process.terminate()
        return self._reap()

    def _reap(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Mismatch(f"the server still ran after {STOP_S} s") from None
        finally:
            assert process.stdout is not None
            process.stdout.close()


def read_folder(folder: Path) -> dict[str, bytes]:
    """name -> content of the regular files. One that goes away meanwhile is not there."""
    found = {}
    for path in sorted(folder.iterdir()):
        try:
            if path.is_file():
                found[path.name] = path.read_bytes()
        except FileNotFoundError:
            pass
    return found


def fill(spool: Path, files: Mapping[str, str]) -> None:
    """Put a case's files, name -> hex, into a spool."""
    for name, content in files.items():
        (spool / name).write_bytes(bytes.fromhex(content))


@contextmanager
def serving(config: Mapping[str, Any], files: Mapping[str, str], dialect: str = "kestrel") -> Iterator[Server]:
    """A server that runs on a fresh spool holding `files`; in the end it must stop cleanly, and have nothing to regret.

    A traceback of the server is what is raised, rather than what a client heard of it.
    """
    folder = Path(tempfile.mkdtemp(prefix="staniel-"))
    server = Server(folder, config, dialect)
    try:
        fill(server.spool, files)
        server.start()
        yield server
        server.stop()
        server.check_stderr()
    except Mismatch:
        server.check_stderr()
        raise
    finally:
        server.kill9()
        shutil.rmtree(folder)
