"""Checks an installed compiled wheel: every module is loaded from its extension, and a server of it keeps an item.

cibuildwheel and packaging/wheels.py run it with the Python of a fresh environment, anywhere but in a checkout. It needs
nothing but the wheel. packaging/extensions.py has it check a new set, which STANIEL_COMPILED names, before that is put
in place. Exit status 1, and a line that says what is wrong.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS_MAX = 60.0
BUILD = "(compiled)"
STANIEL = (sys.executable, "-P", "-m", "staniel")


def require(holds: bool, otherwise: str) -> None:
    """Exit with status 1 if it does not hold."""
    if not holds:
        raise SystemExit(f"check_wheel: {otherwise}")


def output(*arguments: str) -> str:
    """Return what a command of Staniel prints."""
    ran = subprocess.run([*STANIEL, *arguments], capture_output=True, text=True, timeout=SECONDS_MAX)
    require(ran.returncode == 0, f"staniel {' '.join(arguments)}: {ran.stdout}{ran.stderr}")
    return ran.stdout.strip()


def count_extensions() -> int:
    """Return the number of modules of the wheel that are compiled; each must be imported as an extension."""
    compiled = importlib.import_module("staniel.compiled")
    require(compiled.IS_COMPILED, f"the wheel is plain Python: {compiled.why_not_compiled()}")
    names = list(compiled.read_manifest(os.environ.get("STANIEL_COMPILED") or compiled.FOLDERS[0]))
    for name in names:
        file = str(importlib.import_module(name).__file__)
        require(file.endswith(".so"), f"{name} is loaded from {file}")
    return len(names)


def ask(port: int, request: bytes, end: bytes) -> bytes:
    """Return a server's reply up to `end`."""
    heard = b""
    with socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as sock:
        sock.sendall(request)
        while not heard.endswith(end):
            more = sock.recv(4096)
            require(bool(more), f"{request!r}: the server closed the connection after {heard!r}")
            heard += more
    return heard


def serve(spool: Path) -> None:
    """Run a server, put and get an item, and have each place that names the build name it."""
    command = [*STANIEL, "serve", "--port", "0", "--spool", str(spool), "--trust-file-system"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            greeting = server.stdout.readline().strip()
            told = re.search(r" listens on 127\.0\.0\.1:(\d+),", greeting)
            require(told is not None and greeting.endswith(BUILD), f"the greeting is {greeting!r}")
            port = int(told[1]) if told else 0
            stored = ask(port, b"set q 0 0 5\r\nhello\r\n", b"\r\n")
            require(stored == b"STORED\r\n", f"a put is answered {stored!r}")
            got = ask(port, b"get q\r\n", b"END\r\n")
            require(got == b"VALUE q 0 5\r\nhello\r\nEND\r\n", f"a get is answered {got!r}")
            require(b"STAT build compiled\r\n" in ask(port, b"stats\r\n", b"END\r\n"), "stats names another build")
            for name in ("health", "status"):
                said = output(name, "--spool", str(spool))
                require(BUILD in said, f"staniel {name} says {said!r}")
        finally:
            server.send_signal(signal.SIGTERM)
        require(server.wait(SECONDS_MAX) == 0, f"the server ended with status {server.returncode}")


def main() -> None:
    said = output("--version")
    require(said.endswith(BUILD), f"staniel --version says {said!r}")
    count = count_extensions()
    with tempfile.TemporaryDirectory() as folder:
        serve(Path(folder, "spool"))
    print(f"{said}: {count} extensions are loaded, a server keeps an item")


if __name__ == "__main__":
    main()
