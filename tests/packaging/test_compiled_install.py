"""An installation from the sources: compiled where that is possible, plain Python and one line that says why where not.

The sources are those of the sdist, with two of the modules that can be compiled left: all of them take minutes.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.packaging.scripts import ROOT, script

pytestmark = [pytest.mark.programs("python:hatchling", "python:Cython"), pytest.mark.slow]
wheels = script("wheels")
LEFT = ("broker/counters.pxd", "queues/counters.pxd")
SECONDS_MAX = 300
REQUIRES = "from hatchling.build import get_requires_for_build_wheel as it; print(*it())"
NO_COMPILER = {"CC": "no-such-compiler"}
ONE_LINE = "staniel: not compiled, plain Python is installed: "
LACKS = "this machine lacks the C compiler 'no-such-compiler'"


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("STANIEL", "COV"))}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**env, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sdist")
    ran = run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", place, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    (sdist,) = place.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        tar.extractall(place, filter="data")
    tree = place / sdist.name.removesuffix(".tar.gz")
    can_be_compiled = {path.relative_to(tree).as_posix() for path in tree.rglob("*.p[xy][dx]")}
    assert {path for path in can_be_compiled if path.endswith(".pxd")} > set(LEFT), "the sdist has what compiles"
    for path in can_be_compiled - set(LEFT):
        (tree / path).unlink()
    return tree


def build(sources: Path, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=sources, **environment)


def only_wheel(out: Path) -> Path:
    (wheel,) = out.glob("*.whl")
    return wheel


def note_in(wheel: Path) -> str | None:
    with zipfile.ZipFile(wheel) as archive:
        name = "staniel/not_compiled.txt"
        return archive.read(name).decode().strip() if name in archive.namelist() else None


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The Python of a fresh environment that finds the libraries of this one, and no Staniel."""
    site = next(path for path in map(Path, sys.path) if (path / "msgspec").is_dir())
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in site.iterdir():
        if "staniel" not in path.name and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    venv.create(tmp_path / "venv", with_pip=False)
    (inside,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (inside / "libraries.pth").write_text(f"{packages}\n")
    return tmp_path / "venv" / "bin" / "python"


def pip(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, *arguments]
    return run(*command, cwd=python.parent, PYTHONPATH="", **NO_COMPILER)


def test_without_a_compiler_plain_python_is_installed_and_one_line_says_why(sources: Path, environment: Path) -> None:
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--verbose")
    ran = pip(environment, "install", *options, sources)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = [line.strip() for line in (ran.stdout + ran.stderr).splitlines() if "not compiled" in line]
    assert told == [ONE_LINE + LACKS]
    said = run(environment, "-m", "staniel", "--version", cwd=environment.parent, PYTHONPATH="")
    assert said.stdout.endswith(" (pure Python)\n")
    assert said.stderr == f"staniel: not compiled when it was installed: {LACKS}\n"
    wanted = run(environment, "-m", "staniel", "--version", cwd=environment.parent, PYTHONPATH="", STANIEL_PURE="1")
    assert wanted.stdout == said.stdout and not wanted.stderr, "who asks for plain Python is told nothing"


def test_a_compiler_that_fails_is_as_good_as_none(sources: Path, tmp_path: Path) -> None:
    ran = build(sources, tmp_path, CC="false")
    assert ran.returncode == 0, ran.stderr
    assert only_wheel(tmp_path).name.endswith("-py3-none-any.whl")
    why = note_in(only_wheel(tmp_path))
    assert why is not None and why.startswith("compiling failed: ") and "\n" not in why
    assert f"{ONE_LINE}{why}" in ran.stderr + ran.stdout


def test_a_release_is_not_made_of_a_wheel_that_is_not_compiled(sources: Path, tmp_path: Path) -> None:
    ran = build(sources, tmp_path, STANIEL_BUILD="compiled", **NO_COMPILER)
    assert ran.returncode != 0
    assert f"not compiled, and STANIEL_BUILD=compiled asks for it: {LACKS}" in ran.stdout + ran.stderr
    assert not list(tmp_path.iterdir())


def test_plain_python_can_be_asked_for_and_nothing_is_told(sources: Path, tmp_path: Path) -> None:
    ran = build(sources, tmp_path, STANIEL_PURE="1")
    assert ran.returncode == 0, ran.stderr
    assert only_wheel(tmp_path).name.endswith("-py3-none-any.whl")
    assert note_in(only_wheel(tmp_path)) is None
    assert "not compiled" not in ran.stdout + ran.stderr


@pytest.mark.programs("cc")
def test_with_a_compiler_the_wheel_is_compiled_and_passes_the_check_of_a_release(
    sources: Path, environment: Path, tmp_path: Path
) -> None:
    ran = build(sources, tmp_path / "out")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    wheel = only_wheel(tmp_path / "out")
    assert "py3-none-any" not in wheel.name and note_in(wheel) is None
    assert pip(environment, "install", "--no-deps", "--no-index", wheel).returncode == 0
    checked = run(environment, ROOT / "packaging" / "check_wheel.py", cwd=tmp_path, PYTHONPATH="")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.endswith("(compiled): 2 extensions are loaded, a server keeps an item\n")
    plain = run(environment, ROOT / "packaging" / "check_wheel.py", cwd=tmp_path, PYTHONPATH="", STANIEL_PURE="1")
    assert plain.returncode == 1 and plain.stderr.startswith("check_wheel: staniel --version says"), plain.stderr


@pytest.mark.programs("cc")
def test_what_compiles_is_fetched_only_if_it_is_used(sources: Path) -> None:
    tools = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"])
    found = {}
    for name, environment in {
        "with a compiler": {},
        "without": NO_COMPILER,
        "plain": {"STANIEL_PURE": "1"},
        "a release": {"STANIEL_BUILD": "compiled", **NO_COMPILER},
    }.items():
        ran = run(sys.executable, "-c", REQUIRES, cwd=sources, **environment)
        assert ran.returncode == 0, ran.stderr
        found[name] = {word.partition(">")[0] for word in ran.stdout.split()} - tools
    both = {"cython", "setuptools"}
    assert found == {"with a compiler": both, "without": set(), "plain": set(), "a release": both}


def test_the_wheels_of_a_release_are_for_each_python_that_is_promised() -> None:
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = [line.rpartition(":: ")[2] for line in about["classifiers"] if ":: Python :: 3." in line]
    plan = wheels.plan()
    assert list(plan.versions) == promised
    assert plan.environment == {"STANIEL_BUILD": "compiled"}
    assert plan.test.format(package=ROOT) == f"python {ROOT}/packaging/check_wheel.py"
    assert (ROOT / "packaging" / "check_wheel.py").exists()


def test_an_interpreter_counts_by_what_it_says_it_is(tmp_path: Path) -> None:
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}"
    other = tmp_path / "python3.99"
    other.write_text("#!/bin/sh\nexit 127\n")  # as a shim of a version that is not installed
    other.chmod(0o755)
    named = [str(other), "no-such-python", sys.executable]
    assert wheels.interpreters([mine, "3.99"], named) == {mine: sys.executable}


def test_a_wheel_joins_the_hashes_of_the_release_that_it_is_added_to(tmp_path: Path) -> None:
    made, dist = tmp_path / "staniel-1-cp311-cp311-linux_x86_64.whl", tmp_path / "dist"
    made.write_bytes(b"1")
    wheels.keep(made, dist)
    assert [path.name for path in dist.iterdir()] == [made.name], "a folder without a release gets no list"
    (dist / "SHA256SUMS").write_text("00  LICENSES.md\n")
    for content in (b"2", b"3"):
        made.write_bytes(content)
        wheels.keep(made, dist)
    known = hashlib.sha256(b"3").hexdigest()
    assert (dist / "SHA256SUMS").read_text() == f"00  LICENSES.md\n{known}  {made.name}\n"


def test_a_step_that_fails_says_what_it_ran_and_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(wheels.StepFailed, match=r"ended with status 3:\n  cannot link$"):
        wheels.run([sys.executable, "-c", "import sys; print('cannot link'); sys.exit(3)"], tmp_path, {})
