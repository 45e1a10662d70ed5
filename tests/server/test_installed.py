"""The wheel, installed where a program's own modules have the names of our folders: nothing of it hides the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.transcripts import Document, free_port, play

ROOT = Path(__file__).resolve().parents[2]
DEPENDENCIES = (
    "msgspec",
    "click",
    "trio",
    "outcome",
    "sniffio",
    "attr",
    "attrs",
    "sortedcontainers",
    "idna",
    "h11",
    "pymemcache",
)
OWN_MODULES = {
    "server.py": "NAME = 'server'",
    "queues.py": "NAME = 'queues'",
    "client.py": "NAME = 'client'",
    "broker.py": "NAME = 'broker'",
    "protocol/__init__.py": "NAME = 'protocol'",
    "journal/__init__.py": "NAME = 'journal'",
    "journal/disk.py": "NAME = 'journal.disk'",
}
PROGRAM = """
import sys
import broker, client, journal.disk, protocol, queues, server
import staniel.client

print(server.NAME, queues.NAME, client.NAME, broker.NAME, protocol.NAME, journal.disk.NAME)
with staniel.client.Client("127.0.0.1", int(sys.argv[1])) as own:
    own.put("jobs", b"resize 17.png")
    with own.reserve("jobs") as item:
        print(item.data.decode())
"""
AT_THE_TOP = {"pyspark_staniel.py", "pyspark_staniel_journal.py"}
ROOMS = {"broker", "client", "cluster", "journal", "pipeline", "protocol", "queues", "server", "worker"}
SECONDS_MAX = 60

pytestmark = [pytest.mark.slow, pytest.mark.programs("python:hatchling")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--wheel-dir", str(out), str(ROOT)]
    env = {**os.environ, "STANIEL_PURE": "1"}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=2 * SECONDS_MAX)
    assert ran.returncode == 0, ran.stderr
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The programs' folder of an environment with the wheel, and what its programs need to find our dependencies."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place / "venv", with_pip=False)
    programs = place / "venv" / "bin"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(programs / "python")]
    command += ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS_MAX)
    assert ran.returncode == 0, ran.stderr
    site = next(path for path in map(Path, sys.path) if (path / "msgspec").is_dir())
    packages = place / "packages"
    packages.mkdir()
    found = [site / name for name in DEPENDENCIES if (site / name).exists()]
    for path in (*found, *site.glob("google_crc32c*"), *site.glob("_cffi_backend*")):
        (packages / path.name).symlink_to(path)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    return programs, {**env, "PYTHONPATH": str(packages)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a program with modules that are called like ours."""
    for name, text in {**OWN_MODULES, "program.py": PROGRAM}.items():
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "work"


@pytest.fixture(params=["command", "module"])
def port(
    request: pytest.FixtureRequest, installed: tuple[Path, dict[str, str]], folder: Path, tmp_path: Path
) -> Iterator[int]:
    """Of a server that was started in the program's folder. `python -m` looks for modules there first."""
    programs, env = installed
    command = [str(programs / "staniel")] if request.param == "command" else [str(programs / "python"), "-m", "staniel"]
    command += ["serve", "--port", "0", "--spool", str(tmp_path / "spool")]
    with (
        (tmp_path / "stderr").open("wb") as stderr,
        subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True) as child,
    ):
        try:
            assert child.stdout is not None
            greeting = child.stdout.readline()
            told = re.search(r" listens on 127\.0\.0\.1:(\d+),", greeting)
            assert told, greeting + (tmp_path / "stderr").read_text()
            yield int(told[1])
        finally:
            child.terminate()
        assert child.wait(SECONDS_MAX) == 0


def test_a_program_with_modules_of_our_names_is_served(
    installed: tuple[Path, dict[str, str]], folder: Path, port: int
) -> None:
    programs, env = installed
    command = [str(programs / "python"), "program.py", str(port)]
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert ran.stdout == "server queues client broker protocol journal.disk\nresize 17.png\n", ran.stderr


def test_what_the_first_tutorial_shows_works_with_the_wheel(
    installed: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    programs, env = installed
    document = Document(ROOT / "docs" / "start" / "pymemcache.md")
    heard = play(document, tmp_path, free_port(), {**env, "PATH": f"{programs}:{env['PATH']}"})
    assert document.missing_in(heard) == [], heard


def test_the_wheel_has_one_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name) for name in archive.namelist()]
    names = [name for name in names if not name.parts[0].endswith(".dist-info")]
    manuals = {path.name for path in (ROOT / "docs" / "man").iterdir()}
    assert manuals == {name.name for name in names if name.parts[1:-1] == ("data", "share", "man", "man1")}
    names = [name for name in names if not name.parts[0].endswith(".data")]
    assert {name.parts[0] for name in names} == {"staniel", *AT_THE_TOP}
    assert {name.parts[1] for name in names if len(name.parts) > 2} == ROOMS
    assert {Path("staniel/py.typed"), Path("staniel/__init__.py"), Path("staniel/__main__.py")} <= set(names)
    page = {path.name for path in (ROOT / "broker/admin/page").iterdir() if path.is_file()}
    assert page == {name.name for name in names if name.parts[:4] == ("staniel", "broker", "admin", "page")}
    packed = {name.as_posix().removeprefix("staniel/") for name in names}
    kept = {path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert kept <= packed
    assert not [name for name in packed if name.endswith((".pyc", ".o", ".so")) or "__pycache__" in name]
