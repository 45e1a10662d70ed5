"""Writes packaging/requirements/: all that a release is installed with, with exact versions and hashes.

`make lock` runs it. One file is for the base installation, one for it with each extra, one for the build of the wheel.
The versions are those of constraints.txt, so that the tested versions are installed; uv looks up the hashes of all
files of each version, for every Python that the wheel supports, on Linux.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "packaging" / "requirements"
LINUX = "sys_platform == 'linux'"
HEAD = """\
# {about}, exact and with hashes: pip install --require-hashes -r packaging/requirements/{name}.txt
# Made by `make lock` from pyproject.toml and constraints.txt.
"""
PROJECT = """\
[project]
name = "wanted"
version = "0"
requires-python = "{python}"
dependencies = {dependencies}
[tool.uv]
environments = ["{linux}"]
"""


def wanted() -> dict[str, list[str]]:
    """Return the requirements of pyproject.toml by the name of their file."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    base: list[str] = about["project"]["dependencies"]
    hook = about["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["tools"]
    extras: dict[str, list[str]] = about["project"]["optional-dependencies"]
    found = {"base": base, "build": [*about["build-system"]["requires"], *hook]}
    return found | {name: [*base, *more] for name, more in extras.items() if name not in ("dev", "docs")}


def about(name: str) -> str:
    if name == "base":
        return "What the server needs"
    return "What builds the wheel" if name == "build" else f"What the server and the extra {name} need"


def lock(name: str, requirements: list[str], uv: str) -> str:
    """Return the text of one file."""
    python = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["requires-python"]
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "pyproject.toml")
        project.write_text(PROJECT.format(python=python, dependencies=requirements, linux=LINUX), "utf-8")
        command = [uv, "pip", "compile", str(project), "--constraint", str(ROOT / "constraints.txt"), "--quiet"]
        command += ["--generate-hashes", "--universal", "--python-version", python.removeprefix(">=")]
        command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if made.returncode != 0:
        raise SystemExit(f"{name}: {made.stderr.strip()}")
    lines = made.stdout.replace(f" ; {LINUX} \\", " \\")
    return HEAD.format(about=about(name), name=name) + lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--uv", default=str(Path(sys.executable).with_name("uv")), help="the program")
    uv = parser.parse_args().uv
    FOLDER.mkdir(exist_ok=True)
    texts = {name: lock(name, requirements, uv) for name, requirements in wanted().items()}
    for path in FOLDER.glob("*.txt"):
        path.unlink()
    for name, text in texts.items():
        (FOLDER / f"{name}.txt").write_text(text, "utf-8")
    print(f"{len(texts)} files in {FOLDER.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
