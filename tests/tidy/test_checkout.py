"""Tests of one checkout never run the program of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import check_origin
from tests.tidy.findings import ROOT

LINKED = ("broker", "queues")


def checkout(folder: Path) -> Path:
    """A worktree whose packages are linked as ours are."""
    package = folder / "src" / "staniel"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for name in LINKED:
        (folder / name).mkdir()
        (package / name).symlink_to(f"../../{name}")
    return folder


def test_this_checkout_runs_its_own_program() -> None:
    check_origin(ROOT)


def test_the_tests_of_a_second_worktree_refuse_the_program_of_the_first(tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError) as refused:
        check_origin(checkout(tmp_path / "second"))
    said = str(refused.value)
    assert f"{tmp_path / 'second'}, but staniel would be loaded from {ROOT}/src/staniel/__init__.py" in said
    assert f"make {tmp_path / 'second'}/.venv" not in said and "run `make .venv/.dev-installed`" in said


def test_a_link_to_the_packages_of_another_checkout_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = checkout(tmp_path / "second")
    link = second / "src" / "staniel" / "queues"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: Spec(second, name))
    for name in LINKED:
        (second / name / "__init__.py").touch()
    check_origin(second)
    link.unlink()
    link.symlink_to(ROOT / "queues")
    with pytest.raises(pytest.UsageError, match=r"but staniel\.queues would be loaded from"):
        check_origin(second)


class Spec:
    """What importlib finds for a module of a checkout."""

    def __init__(self, root: Path, name: str) -> None:
        self.origin = str(root / "src" / Path(*name.split(".")) / "__init__.py")


def test_a_folder_that_is_no_checkout_is_not_checked(tmp_path: Path) -> None:
    check_origin(tmp_path)
