"""Which modules run: a whole set of extensions made from these sources, or plain Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("staniel.broker.counters", "staniel.queues.counters")
WHICH = "import staniel.queues.counters as it; print(it.__file__.rpartition('.')[2])"


def run(*command: str, folder: Path | str = "", pure: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "STANIEL_COMPILED": str(folder), "STANIEL_PURE": pure}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60, env=env)


def version(folder: Path, pure: str = "") -> tuple[str, str]:
    """What the command says on both of its streams."""
    ran = run("-m", "staniel", "--version", folder=folder, pure=pure)
    assert ran.returncode == 0
    return ran.stdout, ran.stderr


@pytest.fixture(scope="module")
def small_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The extensions of two small modules."""
    folder = tmp_path_factory.mktemp("compiled") / "set"
    build = "import sys; sys.path.insert(0, sys.argv[1]); import extensions, pathlib; "
    build += "extensions.compile_all(pathlib.Path(sys.argv[2]), sys.argv[3:])"
    ran = subprocess.run(
        [sys.executable, "-c", build, str(ROOT / "packaging"), str(folder), *MODULES],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture
def copied(small_set: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_set, tmp_path / "set"))


def test_a_whole_set_is_used(small_set: Path) -> None:
    assert version(small_set)[0].endswith(" (compiled)\n")
    assert run("-c", WHICH, folder=small_set).stdout == "so\n"


def test_plain_python_can_be_asked_for(small_set: Path) -> None:
    told, complaint = version(small_set, pure="1")
    assert told.endswith(" (pure Python)\n")
    assert not complaint
    assert run("-c", WHICH, folder=small_set, pure="1").stdout == "py\n"


def damage_missing(folder: Path) -> str:
    next(folder.glob("staniel.queues.counters.*.so")).unlink()
    return "staniel.queues.counters is missing"


def damage_stale(folder: Path) -> str:
    manifest = folder / "manifest.txt"
    lines = manifest.read_text().split("\n")
    module, known, size = lines[1].split()
    manifest.write_text("\n".join([lines[0], f"{module} {known[::-1]} {size}", *lines[2:]]))
    return "the source of staniel.broker.counters has changed"


def damage_empty(folder: Path) -> str:
    """As the power may have left it."""
    next(folder.glob("staniel.queues.counters.*.so")).write_bytes(b"")
    return "staniel.queues.counters is not whole"


def damage_unloadable(folder: Path) -> str:
    """As one that needs a newer C library, or a disk that forbids execution."""
    file = next(folder.glob("staniel.broker.counters.*.so"))
    file.write_bytes(b"\x7fELF" + bytes(file.stat().st_size - 4))
    return "cannot be loaded"


def damage_loop(folder: Path) -> str:
    file = next(folder.glob("staniel.queues.counters.*.so"))
    file.unlink()
    file.symlink_to(file.name)
    return "staniel.queues.counters cannot be read"


def damage_other_interpreter(folder: Path) -> str:
    manifest = folder / "manifest.txt"
    manifest.write_text(manifest.read_text().replace(".so", ".cpython-39.so", 1))
    return "another interpreter"


def damage_cut_off(folder: Path) -> str:
    manifest = folder / "manifest.txt"
    manifest.write_text(manifest.read_text().removesuffix("\nend"))
    return "cut off"


def damage_no_text(folder: Path) -> str:
    (folder / "manifest.txt").write_bytes(b"\xff\xfe\x00\x01")
    return "cannot be read"


def damage_no_manifest(folder: Path) -> str:
    (folder / "manifest.txt").unlink()
    return "cannot be read"


def damage_all(folder: Path) -> str:
    shutil.rmtree(folder)
    return "cannot be read"


@pytest.mark.parametrize(
    "damage",
    [
        damage_missing,
        damage_stale,
        damage_empty,
        damage_unloadable,
        damage_loop,
        damage_other_interpreter,
        damage_cut_off,
        damage_no_text,
        damage_no_manifest,
        damage_all,
    ],
)
def test_another_set_is_refused_in_one_line(copied: Path, damage: Callable[[Path], str]) -> None:
    why = damage(copied)
    told, complaint = version(copied)
    assert told.endswith(" (pure Python)\n")
    assert why in complaint
    assert complaint.count("\n") == 1
    assert "make compiled" in complaint
    assert run("-c", WHICH, folder=copied).stdout == "py\n"


def test_what_has_not_changed_is_not_compiled_again(copied: Path) -> None:
    before = {path.name: path.stat().st_size for path in copied.iterdir()}
    build = "import sys; sys.path.insert(0, sys.argv[1]); import extensions, pathlib; "
    build += "extensions.build_one = None; extensions.compile_all(pathlib.Path(sys.argv[2]), sys.argv[3:])"
    ran = run("-c", build, str(ROOT / "packaging"), str(copied), *MODULES)
    assert ran.returncode == 0, ran.stderr
    assert {path.name: path.stat().st_size for path in copied.iterdir()} == before


COMPILE = "import sys; sys.path.insert(0, sys.argv[1]); import extensions as it; from pathlib import Path; "


@pytest.mark.parametrize("damage", [damage_empty, damage_unloadable])
def test_what_was_damaged_is_compiled_again(copied: Path, damage: Callable[[Path], str]) -> None:
    damage(copied)
    code = COMPILE + "it.compile_all(Path(sys.argv[2]), sys.argv[3:])"
    ran = run("-c", code, str(ROOT / "packaging"), str(copied), *MODULES)
    assert ran.returncode == 0, ran.stderr
    told, complaint = version(copied)
    assert (told.rpartition(" ")[2], complaint) == ("(compiled)\n", "")


CHANGING = """
it.ROOT, it.PACKAGES, whole = Path(sys.argv[3]), ("queues",), it.build_all
def change(*given, **options):
    with open(it.ROOT / "queues" / "counters.py", "a") as source:
        source.write("TRACE = 1\\n")
    whole(*given, **options)
it.build_all = change
it.compile_all(Path(sys.argv[2]), sys.argv[4:])
"""


def test_a_source_that_changes_while_it_is_compiled_is_not_taken_for_what_was_compiled(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "queues", tmp_path / "checkout" / "queues")
    folder = tmp_path / "set"
    code = COMPILE + "\n" + CHANGING
    ran = run("-c", code, str(ROOT / "packaging"), str(folder), str(tmp_path / "checkout"), MODULES[1])
    assert ran.returncode == 0, ran.stderr
    assert "TRACE" in (tmp_path / "checkout" / "queues" / "counters.py").read_text()
    said = run("-c", WHICH + "; print(hasattr(it, 'TRACE'))", folder=folder)
    assert (said.stdout, said.stderr) == ("so\nFalse\n", ""), "the set is that of the sources before"


def test_the_checkout_has_no_extensions() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {ROOT / Path(line).parent for line in listed.splitlines()}
    found = [path for folder in folders for path in folder.glob("*") if path.suffix in (".so", ".c", ".pyd")]
    assert not [path for path in found if str(path.relative_to(ROOT)) not in listed.splitlines()]


def test_a_missing_compiler_is_told_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "packaging" / "extensions.py"), str(tmp_path / "set")]
    env = {**os.environ, "PATH": str(tmp_path)}
    env.pop("CC", None)
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert ran.returncode == 1
    assert ran.stderr.startswith("cannot compile without the C compiler")
    assert ran.stderr.count("\n") == 1
    assert not (tmp_path / "set").exists()
