"""Compiles the hot path beside the server that `make serve` starts, so that the next start is the compiled build.

`python packaging/compile_beside.py` decides, says so in one line, and returns at once; a process of lowest priority and
its own session does the work, so Ctrl-C at the server does not end it. It fills the folder that `make compiled` fills,
as a whole and at the end; a start meanwhile, or after a build that failed or was interrupted, is plain Python.
STANIEL_PURE=1 asks for plain Python, so nothing is compiled.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from importlib import invalidate_caches, metadata
from pathlib import Path

import extensions
from compiled_set import locked, replacement

FOLDER = Path(sys.prefix, "lib", "staniel-compiled")
TOOLS = ("cython>=3.1,<4", "setuptools>=75")
IN_BACKGROUND = "--in-background"
REASON_ENDS = 80  # characters
RETRIED = "at the next start"  # instead of the inputs: of a failure that may be over by then


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


def compile_in_background(log: Path) -> None:
    """Start the process that compiles."""
    with open(log, "w", encoding="utf-8") as file:
        command = [sys.executable, str(Path(__file__).resolve()), IN_BACKGROUND]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)


def inputs() -> str:
    """Return a hash of what decides whether a build fails: the sources, the compiler, the interpreter."""
    os.environ["STANIEL_PURE"] = "1"
    from staniel.compiled import hash_of

    tree = extensions.ROOT
    hashes = [hash_of(str(extensions.stem_of(tree, name))) for name in extensions.modules(tree)]
    return hashlib.sha256(" ".join([*hashes, extensions.compiler(), sys.version]).encode()).hexdigest()


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def is_installed(tool: str) -> bool:
    """Tell whether a requirement such as `cython>=3.1,<4` is met by what can be imported."""
    try:
        present = numbers(metadata.version(re.split("[<>=]", tool)[0]))
    except metadata.PackageNotFoundError:
        return False
    bounds = [(sign, numbers(bound)) for sign, bound in re.findall(r"(>=|<)([\d.]+)", tool)]
    return all(present >= bound if sign == ">=" else present < bound for sign, bound in bounds)


def provide_tools(folder: Path) -> str:
    """Have Cython and setuptools in the path of imports: those of the environment, or else of `folder`, into which pip
    installs them. The environment stays as it is: the user's own pip may be at work in it. Return what went wrong.
    """
    if not all(map(is_installed, TOOLS)):
        sys.path.insert(0, str(folder))
    if all(map(is_installed, TOOLS)):
        return ""
    constraints = os.environ.get("CONSTRAINTS", "")
    options = ["--constraint", constraints] if constraints else []
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *options]
    try:
        with replacement(folder) as fresh:
            subprocess.run([*pip, "--target", str(fresh), *TOOLS], check=True)
    except subprocess.CalledProcessError:
        return f"pip could not install {' and '.join(TOOLS)}"
    invalidate_caches()
    return ""


def reason_of(error: BaseException) -> str:
    """Return the first line of an error, without the middle of a long command."""
    line = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return line if len(line) <= 2 * REASON_ENDS else f"{line[:REASON_ENDS]} … {line[-REASON_ENDS:]}"


def run(folder: Path, names: list[str] | None = None) -> int:
    """Compile all modules, or `names`, into `folder`, unless another process does it. Return the exit status. A failure
    is noted for the next start, with the inputs that failed.
    """
    lock = locked(folder)
    if lock is None:
        return 0
    note, made_of = failure_note(folder), inputs()
    note.unlink(missing_ok=True)
    try:
        if why := provide_tools(folder.with_name("staniel-build-tools")):
            note.write_text(f"{RETRIED}\n{why}\n", "utf-8")
            return 1
        print(f"{len(extensions.compile_all(folder, names, processes=1, is_tried=True))} modules compiled")
    except (Exception, SystemExit) as error:  # whatever a broken compiler, or a full disk, does
        traceback.print_exc()
        note.write_text(f"{made_of}\n{reason_of(error)}\n", "utf-8")
        return 1
    finally:
        os.close(lock)
    return 0


def failure_note(folder: Path) -> Path:
    """Return the file that says why the last build failed: a line with a hash of its inputs, and a line in words."""
    return folder.with_suffix(".failed")


def last_failure(folder: Path) -> tuple[str, str]:
    """Return the inputs of a failed build and the reason; two empty strings if the last one did not fail."""
    try:
        made_of, why = failure_note(folder).read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return "", ""
    return made_of, why


def announcement(folder: Path, environment: Mapping[str, str]) -> str:
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
    failed_with, why = last_failure(folder)
    if why and failed_with == inputs():
        return f"plain Python runs; compiling has failed: {why} (log: {log}). `make compiled` tries again"
    compile_in_background(log)
    told = f"plain Python runs; the compiled build is made meanwhile, for the next start (some minutes, log: {log})"
    return f"{told}; the last try failed: {why}" if why else told


def leave_the_processor_to_others() -> None:
    """Take the lowest priority, for this process and for its session: Linux compares sessions first."""
    os.nice(19)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19", "ascii")


def main() -> int:
    if sys.argv[1:] == [IN_BACKGROUND]:
        leave_the_processor_to_others()
        return run(FOLDER)
    if told := announcement(FOLDER, dict(os.environ)):
        print(f"staniel: {told}. STANIEL_PURE=1 does without", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
