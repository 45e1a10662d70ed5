"""The Makefile and the script of CI where something does not work: no half-made environment, nothing left out silently.

Both run in folders of their own; small scripts stand in for what they call, and write down each call. A test that fails
shows what make or .ci/run printed and called; mend the rule of the Makefile, or the lines of .ci/run, that did so.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Makes an environment as venv does: pyvenv.cfg and the interpreter first, pip last.
PYTHON = """#!/bin/sh
[ "$1" = -c ] && exit 0
[ "$1" = -m ] && [ "$2" = venv ] || exit 9
shift 2
echo "venv $*" >> "$CALLS"
[ "$1" = --clear ] && { shift; rm -rf "$1"; }
[ -e "$1" ] && [ -e "$1/pyvenv.cfg" ] && exit 8
mkdir -p "$1/bin" && touch "$1/pyvenv.cfg"
[ -n "$BREAK_EARLY" ] && exit 1
printf '#!/bin/sh\\necho "inside $*" >> "$CALLS"\\n[ -e "$0.pip" ] || [ "$2" != pip ] || exit 7\\n\
[ "$1" != packaging/compile_beside.py ] || exit 5\\n' > "$1/bin/python"
chmod +x "$1/bin/python"
[ -n "$BREAK_LATE" ] && exit 1
touch "$1/bin/python.pip" "$1/bin/pip"
printf '#!/bin/sh\\necho served${PYTHONDONTWRITEBYTECODE:+ without bytecode} >> "$CALLS"\\n' > "$1/bin/staniel"
chmod +x "$1/bin/staniel"
"""


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def make(folder: Path, **environment: str) -> int:
    """Exit status of `make serve`. What it printed is shown with a test that fails."""
    env = {"PATH": os.environ["PATH"], "CALLS": str(folder / "calls"), **environment}
    command = ["make", "-s", "serve", f"PYTHON={folder / 'python'}"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    print(f"Makefile, {shlex.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.returncode


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    found = path.read_text().splitlines() if path.exists() else []
    print("called:", *found, sep="\n  ")
    path.unlink(missing_ok=True)
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    script(tmp_path / "python", PYTHON)
    return tmp_path


@pytest.mark.parametrize("when", ["BREAK_EARLY", "BREAK_LATE"])
def test_a_failed_environment_is_made_anew_by_the_next_make(project: Path, when: str) -> None:
    assert make(project, **{when: "1"}) != 0
    calls(project)
    assert make(project) == 0
    made = calls(project)
    assert made[0] == "venv --clear .venv"
    assert made[-1] == "served"


def test_an_environment_whose_interpreter_has_gone_is_made_anew(project: Path) -> None:
    assert make(project) == 0
    python = project / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(project / "no-such-python")
    calls(project)
    assert make(project) == 0
    made = calls(project)
    assert made[0] == "venv --clear .venv"
    assert "install" in made[1]
    assert made[-1] == "served"


def test_a_sound_environment_is_made_once(project: Path) -> None:
    assert make(project) == make(project) == 0
    assert [call for call in calls(project) if call.startswith("venv")] == ["venv .venv"]


def test_a_server_finds_bytecode_even_where_the_environment_forbids_it(project: Path) -> None:
    assert make(project, PYTHONDONTWRITEBYTECODE="1") == 0
    made = calls(project)
    assert any(call.startswith("inside -m compileall") and " server " in call for call in made)
    assert made[-1] == "served"


def test_a_server_starts_even_if_nothing_can_be_compiled_beside_it(project: Path) -> None:
    assert make(project) == 0
    assert calls(project)[-2:] == ["inside packaging/compile_beside.py", "served"]


def test_a_folder_that_is_no_environment_is_not_emptied(project: Path) -> None:
    (project / ".venv").mkdir()
    (project / ".venv" / "mine").touch()
    make(project)
    assert (project / ".venv" / "mine").exists()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A project of which .ci/run is real; pylibmc cannot be had, and the image can be broken by a file."""
    script(tmp_path / ".ci" / "run", (ROOT / ".ci" / "run").read_text())
    script(tmp_path / ".ci" / "image", '#!/bin/sh\necho image >> "$CALLS"\n[ ! -e broken ]\n')
    script(tmp_path / ".venv" / "bin" / "python", "#!/bin/sh\nexit 1\n")
    script(tmp_path / ".foreign" / "python" / "bin" / "python", "#!/bin/sh\nexit 0\n")
    (tmp_path / ".foreign" / "node" / "node_modules" / "memcached").mkdir(parents=True)
    script(tmp_path / "bin" / "make", '#!/bin/sh\necho "make $* $STANIEL_REQUIRE_PROGRAMS" >> "$CALLS"\n')
    script(tmp_path / "bin" / "apt-get", '#!/bin/sh\necho "apt-get $1" >> "$CALLS"\n')
    for name in ("memcping", "nc", "perl", "node", "npm", "ruby", "java"):
        script(tmp_path / "bin" / name, "#!/bin/sh\nexit 0\n")
    # As the real one does it, it goes on writing after the first line that somebody looks for.
    script(tmp_path / "bin" / "php", "#!/bin/sh\necho memcached\nsleep 0.1\necho memcache\n")
    return tmp_path


def run_ci(folder: Path, user: int) -> subprocess.CompletedProcess[str]:
    script(folder / "bin" / "id", f"#!/bin/sh\necho {user}\n")
    env = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "CALLS": str(folder / "calls")}
    done = subprocess.run(["bash", ".ci/run"], cwd=folder, env=env, capture_output=True, text=True)
    print(f".ci/run as user {user}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


RELEASE = "make release ARGS=--pure --to .venv/release"
ROWS = ("hub: put", "hub: get", "hub: reliable get", "hub: put, 20 in flight", "hub: get, 20 in flight")
COUNTED = " ".join(f"--only {row}" for row in ROWS)  # what a test of bench/own/baseline.json looks for, too
NO_AUDIT = "the audit of dependencies (no service could be asked)"


def test_without_root_ci_goes_on_and_names_what_it_leaves_out(checkout: Path) -> None:
    said = run_ci(checkout, 1000)
    assert said.returncode == 0, said.stderr
    assert [call.strip() for call in calls(checkout)] == ["make check", RELEASE, "make test"]
    left_out = [line.rpartition(": ")[2] for line in said.stderr.splitlines() if "left out" in line]
    packages = ["gcc libc6-dev libmemcached-dev zlib1g-dev python3-dev", "pylibmc", "gcc libc6-dev python3-dev"]
    assert left_out[:4] == [*packages, "the compiled build"] and sorted(left_out[4:]) == sorted(["the image", NO_AUDIT])


def test_as_root_ci_builds_the_image_and_requires_everything(checkout: Path) -> None:
    assert run_ci(checkout, 0).returncode == 0
    made = [call.strip() for call in calls(checkout)]
    assert made == ["make check", *["apt-get update", "apt-get install"] * 2, "image", RELEASE, "make test 1"]


def test_where_there_is_a_compiler_both_builds_are_tested(checkout: Path) -> None:
    script(checkout / ".venv" / "bin" / "python", "#!/bin/sh\nexit 0\n")
    script(checkout / "bin" / "cc", "#!/bin/sh\nexit 0\n")
    echo = '#!/bin/sh\necho "make $* ${STANIEL_BUILD:-either} ${STANIEL_PURE:-0}" >> "$CALLS"\n'
    script(checkout / "bin" / "make", echo)
    assert run_ci(checkout, 0).returncode == 0
    made = [call for call in calls(checkout) if call.startswith("make")]
    assert made[0] == "make check either 0"
    assert sorted(made[1:3]) == ["make compiled either 0", f"{RELEASE} either 0"], "in any order: one beside the other"
    assert made[3].startswith("make test ARGS=--ignore=tests/pipeline")
    assert made[3].endswith(" compiled 0")
    assert made[4:] == ["make test pure Python 1"]


@pytest.mark.parametrize(("code", "goes_on", "is_told"), [(0, True, False), (1, False, False), (3, True, True)])
def test_ci_compares_the_instructions_of_both_builds(checkout: Path, code: int, goes_on: bool, is_told: bool) -> None:
    count = 'case "$*" in *bench.own.core*) echo "count ${STANIEL_PURE:-0}: $*" >> "$CALLS"; exit CODE;; esac\n'
    script(checkout / ".venv" / "bin" / "python", "#!/bin/sh\n" + count.replace("CODE", str(code)))
    for name in ("cc", "valgrind"):
        script(checkout / "bin" / name, "#!/bin/sh\nexit 0\n")
    said = run_ci(checkout, 0)
    made = calls(checkout)
    counts = [call for call in made if call.startswith("count")]
    assert (said.returncode == 0) == goes_on
    assert [call.partition(":")[0] for call in counts] == (["count 0", "count 1"] if goes_on else ["count 0"])
    assert {call.partition(": ")[2] for call in counts} == {f"-m staniel.bench.own.core --check {COUNTED}"}
    left_out = [line for line in said.stderr.splitlines() if "instructions of the build" in line]
    assert [line.split("'")[1] for line in left_out] == ["compiled", "pure Python"] * is_told


@pytest.mark.parametrize(("code", "goes_on", "is_told"), [(0, True, False), (1, False, False), (3, True, True)])
def test_a_known_vulnerability_fails_ci_and_a_service_out_of_reach_is_told(
    checkout: Path, code: int, goes_on: bool, is_told: bool
) -> None:
    script(checkout / ".venv" / "bin" / "python", f'#!/bin/sh\n[ "$1" != packaging/audit.py ] || exit {code}\n')
    script(checkout / "bin" / "cc", "#!/bin/sh\nexit 0\n")
    said = run_ci(checkout, 0)
    assert ((said.returncode == 0), NO_AUDIT in said.stderr) == (goes_on, is_told)
    assert ("make test 1" in [call.strip() for call in calls(checkout)]) == goes_on


def test_an_image_that_cannot_be_built_fails_ci(checkout: Path) -> None:
    (checkout / "broken").touch()
    assert run_ci(checkout, 0).returncode != 0
    assert "make test 1" not in calls(checkout)
