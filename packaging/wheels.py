"""Builds, repairs and tests the compiled wheels of a release with the CPythons of this machine: `make wheels`.

The steps are those of cibuildwheel, without its containers: the versions, the environment and the commands are what
pyproject.toml tells it, and the wheels are made of the sdist. The C library of this machine decides on which others the
wheels run, and auditwheel writes that into their names; cibuildwheel's containers have an older one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PIP = ("-m", "pip", "--disable-pip-version-check")
WHICH = "import sys; print(*sys.version_info[:2], sys.implementation.name, sep='.')"


class StepFailed(Exception):
    """The error when a step fails; the text has its command and its last lines."""


class Plan(NamedTuple):
    """The settings of cibuildwheel in pyproject.toml. `versions`: '3.11' and so on."""

    versions: tuple[str, ...]
    environment: dict[str, str]
    repair: str
    test: str


def plan() -> Plan:
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["cibuildwheel"]
    versions = [f"{major}.{minor}" for major, minor in re.findall(r"cp(\d)(\d+)-", about["build"])]
    return Plan(tuple(versions), about["environment"], about["repair-wheel-command"], about["test-command"])


def version_of(python: str) -> str:
    """Return '3.12' for a CPython 3.12; empty if it is none, or cannot be run."""
    try:
        ran = subprocess.run([python, "-c", WHICH], capture_output=True, text=True, timeout=60)
    except OSError:
        return ""
    version, _, name = ran.stdout.strip().rpartition(".")
    return version if ran.returncode == 0 and name == "cpython" else ""


def interpreters(versions: Sequence[str], named: Sequence[str]) -> dict[str, str]:
    """Return the interpreters of these versions: those that were named, else the first of each on the PATH."""
    found: dict[str, str] = {}
    for python in [*named, *(f"python{version}" for version in versions)]:
        version = version_of(python)
        if version in versions:
            found.setdefault(version, python)
    return found


def run(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> str:
    """Return what a command prints. Raises StepFailed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("STANIEL_", "PYTHON"))}
    ran = subprocess.run(command, cwd=cwd, env={**env, **environment}, capture_output=True, text=True)
    if ran.returncode:
        last = "\n  ".join((ran.stdout + ran.stderr).strip().splitlines()[-12:])
        raise StepFailed(f"{shlex.join(command)} ended with status {ran.returncode}:\n  {last}")
    return ran.stdout


def make_sdist(folder: Path) -> tuple[Path, Path]:
    """Make the sdist. Return it, and what is in it. Raises StepFailed."""
    run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)], ROOT, {})
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        tar.extractall(folder, filter="data")
    return sdist, folder / sdist.name.removesuffix(".tar.gz")


def only_wheel(folder: Path) -> Path:
    (wheel,) = folder.glob("*.whl")
    return wheel


def build(python: str, sdist: Path, folder: Path, wanted: Plan) -> Path:
    """Build the wheel of the sdist, and repair it. Return its path. Raises StepFailed."""
    run([python, "-m", "venv", str(folder / "build")], folder, {})
    inside = str(folder / "build" / "bin" / "python")
    run([inside, *PIP, "wheel", "--no-deps", "-w", str(folder / "built"), str(sdist)], folder, wanted.environment)
    tools = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    repair = wanted.repair.format(dest_dir=folder / "repaired", wheel=only_wheel(folder / "built"))
    run(shlex.split(repair), folder, tools)
    return only_wheel(folder / "repaired")


def test(python: str, wheel: Path, package: Path, folder: Path, wanted: Plan) -> str:
    """Install the wheel into a fresh environment, and test it. Return what the test says. Raises StepFailed."""
    run([python, "-m", "venv", str(folder / "test")], folder, {})
    programs = folder / "test" / "bin"
    run([str(programs / "python"), *PIP, "install", "--quiet", str(wheel)], folder, {})
    path = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    return run(shlex.split(wanted.test.format(package=package)), folder, path).strip()


def keep(wheel: Path, target: Path) -> None:
    """Copy the wheel into a release's folder, and its hash into the list there, if there is one."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(wheel, target)
    sums = target / "SHA256SUMS"
    if sums.exists():
        others = [line for line in sums.read_text("utf-8").splitlines() if not line.endswith(f"  {wheel.name}")]
        mine = f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}"
        sums.write_text("".join(f"{line}\n" for line in [*others, mine]), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", action="append", default=[], help="an interpreter that is not on the PATH")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="the folder")
    chosen = parser.parse_args()
    wanted, failed = plan(), 0
    here = interpreters(wanted.versions, chosen.python)
    with tempfile.TemporaryDirectory() as place:
        sdist, package = make_sdist(Path(place))
        for version in wanted.versions:
            if version not in here:
                print(f"{version}: left out, no CPython {version} is here", file=sys.stderr)
                continue
            folder = Path(place, version)
            folder.mkdir()
            try:
                wheel = build(here[version], sdist, folder, wanted)
                said = test(here[version], wheel, package, folder, wanted)
            except StepFailed as error:
                print(f"{version}: {error}", file=sys.stderr)
                failed += 1
                continue
            keep(wheel, chosen.to)
            print(f"{version}: {wheel.name}: {said}", flush=True)
    return 1 if failed or not here else 0


if __name__ == "__main__":
    sys.exit(main())
