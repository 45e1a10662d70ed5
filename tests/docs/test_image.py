"""The Dockerfile and .dockerignore against pyproject.toml: what the wheel is built from gets into the image's build."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def wanted() -> set[str]:
    """Everything that building the wheel reads, at the top of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    about = project["project"]
    files = {"pyproject.toml", about["readme"], *about["license-files"]}
    hook = Path(wheel["hooks"]["custom"]["path"]).parts[0]
    return {*wheel["only-include"], *wheel["force-include"], *wheel["shared-data"], hook, *files}


def copied() -> dict[str, str]:
    """What the Dockerfile copies from the project, and where to."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copies = [line.split()[1:] for line in lines if line.startswith("COPY ") and "--from" not in line]
    return {source: words[-1] for words in copies for source in words[:-1]}


def test_the_dockerfile_copies_what_the_wheel_is_built_from() -> None:
    assert set(copied()) == wanted()


def test_each_folder_keeps_its_name() -> None:
    """COPY puts what is in a folder into its target, not the folder itself."""
    folders = {source: target for source, target in copied().items() if (ROOT / source).is_dir()}
    assert folders == {name: f"./{name}" for name in folders}


def test_dockerignore_lets_the_same_in_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == wanted()


def test_everything_that_is_packed_is_there() -> None:
    assert [name for name in sorted(wanted()) if not (ROOT / name).exists()] == []
