"""Compiles the hot path beside the server that `make serve` starts, so that the next start is the compiled build.

`python packaging/compile_beside.py` decides, says so in one line, and returns at once; a process of lowest priority and
its own session does the work, so Ctrl-C at the server does not end it. It fills the folder that `make compiled` fills,
as a whole and at the end. STANIEL_PURE=1 asks for plain Python, so nothing is compiled.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import extensions

FOLDER = Path(sys.prefix, "lib", "staniel-compiled")
TOOLS = ("cython>=3.1,<4", "setuptools>=75")
IN_BACKGROUND = "--in-background"


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Return False if the user has chosen a build: plain Python, or a folder of their own."""
    return environment.get("STANIEL_PURE", "0") in ("", "0") and not environment.get("STANIEL_COMPILED")


def is_current(folder: Path) -> bool:
    """Tell whether a start would use the extensions in `folder`: all are there, and made of the present sources."""
    if not folder.is_dir():
        return False
    os.environ["STANIEL_PURE"] = "1"  # the package says at its import, once more, why it does not use them
    from staniel.compiled import BuildRefused, read_manifest

    try:
        read_manifest(str(folder))
    except BuildRefused:
        return False
    return True


def locked(folder: Path) -> int | None:
    """Return the descriptor of the locked file; None if another process compiles into `folder`."""
    file = os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def compile_in_background(log: Path) -> None:
    """Start the process that compiles."""
    with open(log, "a", encoding="utf-8") as file:
        command = [sys.executable, str(Path(__file__).resolve()), IN_BACKGROUND]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)


def run(folder: Path, names: list[str] | None = None) -> int:
    """Install the tools and compile all modules, or `names`, into `folder`, unless another process does it. Return the
    exit status.
    """
    lock = locked(folder)
    if lock is None:
        return 0
    constraints = os.environ.get("CONSTRAINTS", "")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    done = subprocess.run([*pip, *(["--constraint", constraints] if constraints else []), *TOOLS])
    if done.returncode:
        print(f"not compiled: pip could not install {' and '.join(TOOLS)}")
        return done.returncode
    print(f"{len(extensions.compile_all(folder, names, processes=1))} modules compiled")
    os.close(lock)
    return 0


def note(folder: Path, environment: Mapping[str, str]) -> str:
    """Start to compile into `folder` if that is wanted, needed and possible. Return what to tell the user; empty if
    there is nothing to tell.
    """
    if not is_wanted(environment) or is_current(folder):
        return ""
    lock = locked(folder)
    if lock is None:
        return "another process compiles the hot path; the start after that uses it"
    os.close(lock)
    if lacking := extensions.missing_tool():
        return f"plain Python runs; with {lacking} the next start would be the compiled build"
    log = folder.with_suffix(".log")
    compile_in_background(log)
    return f"plain Python runs; the compiled build is made meanwhile, for the next start (some minutes, log: {log})"


def leave_the_processor_to_others() -> None:
    """Take the lowest priority, for this process and for its session: Linux compares sessions first."""
    os.nice(19)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19", "ascii")


def main() -> int:
    if sys.argv[1:] == [IN_BACKGROUND]:
        leave_the_processor_to_others()
        return run(FOLDER)
    if told := note(FOLDER, dict(os.environ)):
        print(f"staniel: {told}. STANIEL_PURE=1 does without", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
