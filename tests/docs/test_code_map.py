"""The map of the code is in the docstrings of packages; ARCHITECTURE.md is a page that can be read in one go."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
PACKAGES = (
    *("protocol", "queues", "journal", "broker", "server", "client", "worker", "sim", "pipeline", "bench"),
    "cluster",
)
FOLDERS = sorted(str(init.parent.relative_to(ROOT)) for name in PACKAGES for init in (ROOT / name).rglob("__init__.py"))
KNOWN = {Path(each).name for each in FOLDERS} | {each.name for each in ROOT.iterdir() if each.is_dir()}
WORDS_MAX = 1500


NO_MODULES = {"os", "orders", "state", "top", "celery", "staniel"}  # quoted for what they are
MODULE = re.compile(r"`([a-z_0-9]+)(?:\.py)?`|(?<![\w/.])([a-z_0-9]+)\.py\b")


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_module_that_the_docstring_of_a_package_names_is_there(folder: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text("utf-8"))) or ""
    found = (*(ROOT / folder).rglob("*"), *(ROOT / folder).parent.glob("*"))
    gone = sorted(
        {first or second for first, second in MODULE.findall(text)} - {each.stem for each in found} - NO_MODULES
    )
    assert not gone, f"{folder}/__init__.py names {gone}, which are no modules of it: correct the name"


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_docstring_of_a_package_names_its_rooms(folder: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text("utf-8")))
    assert text, f"{folder}/__init__.py has no docstring: say what the folder is for and what may not enter"
    rooms = {init.parent.name for init in (ROOT / folder).glob("*/__init__.py")}
    named = set(re.findall(r"(?<![\w/])(\w+)/(?![\w*<])", text))
    missing, wrong = sorted(rooms - named), sorted(named - KNOWN)
    assert not missing, f"{folder}/__init__.py does not name its rooms {missing}: write `NAME/` and what each is for"
    assert not wrong, f"{folder}/__init__.py names {wrong}, which are no folders: correct the name"


def test_each_path_that_the_page_names_is_there() -> None:
    named = re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", TEXT)
    gone = [path for path in named if not (ROOT / path).exists() and path != "spool/"]
    assert not gone, f"ARCHITECTURE.md names {gone}, which are not there: correct the path"


def test_each_function_that_the_page_names_is_there() -> None:
    code = "\n".join(path.read_text("utf-8") for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
    named = re.findall(r"`([A-Z]\w+)\.(\w+)`", TEXT)
    gone = [f"{owner}.{name}" for owner, name in named if f"def {name}(" not in code]
    assert not gone, f"ARCHITECTURE.md names {gone}, which are not there: correct the name"


def test_the_page_can_be_read_in_one_go() -> None:
    count = len(TEXT.split())
    assert count <= WORDS_MAX, f"ARCHITECTURE.md has {count} words, {WORDS_MAX} at most: explain it in the module"
