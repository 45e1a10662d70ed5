"""packaging/requirements/ against pyproject.toml, constraints.txt and what is installed here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.packaging.scripts import REQUIREMENTS, ROOT, script

lock, supply = script("lock"), script("supply")
WANTED: dict[str, list[str]] = lock.wanted()
FILES = sorted(REQUIREMENTS.glob("*.txt"))
CONSTRAINTS = {
    str(canonicalize_name(name)): version
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
}
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def named(path: Path) -> dict[str, str]:
    return {pin.name: pin.version for pin in supply.read(path)}


def closure(wanted: Iterable[str], environment: dict[str, str]) -> set[str]:
    """All that must be installed for these, by what the packages themselves say."""
    found: set[tuple[str, str]] = set()
    left = [(Requirement(text), "") for text in wanted]
    while left:
        requirement, extra = left.pop()
        if requirement.marker and not requirement.marker.evaluate({**environment, "extra": extra}):
            continue
        name = str(canonicalize_name(requirement.name))
        for wish in ("", *requirement.extras):
            if (name, wish) not in found:
                found.add((name, wish))
                left += [(Requirement(text), wish) for text in requires(name) or []]
    return {name for name, _ in found}


def test_there_is_a_file_for_the_base_the_build_and_each_extra() -> None:
    assert {path.stem for path in FILES} == set(WANTED)
    assert {"base", "build", "thrift", "top", "s3", "spark", "spark-jre"} <= set(WANTED)


@each_file
def test_it_names_what_was_tested_and_each_file_has_its_hash(path: Path) -> None:
    pins = list(supply.read(path))
    assert {pin.name: pin.version for pin in pins} == {pin.name: CONSTRAINTS.get(pin.name) for pin in pins}
    assert all(pin.hashes and len(set(pin.hashes)) == len(pin.hashes) for pin in pins)


@each_file
def test_it_satisfies_what_is_asked_for(path: Path) -> None:
    pins = named(path)
    for text in WANTED[path.stem]:
        requirement = Requirement(text)
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier


@each_file
def test_nothing_is_missing_and_nothing_is_too_much(path: Path) -> None:
    wanted = WANTED[path.stem]
    assert closure(wanted, supply.LINUX) == set(named(path))
    assert closure(wanted, {}) <= set(named(path)), "on this Python, too"


@each_file
def test_no_registry_is_named(path: Path) -> None:
    text = path.read_text("utf-8")
    assert "://" not in text and "--index" not in text and "--find-links" not in text and "pypi" not in text


@pytest.mark.parametrize("line", ["trio>=0.30 \\", "trio==0.35.0", "    --hash=md5:00 \\", "-r other.txt"])
def test_what_is_not_exact_is_not_understood(tmp_path: Path, line: str) -> None:
    path = tmp_path / "base.txt"
    path.write_text(f"{line}\n")
    with pytest.raises(ValueError, match=r"base\.txt"):
        list(supply.read(path))


ADVISORIES = {
    # h11 below 0.16 takes wrong bytes for the end of a chunk: requests can be smuggled past a proxy (CVE-2025-43859).
    "h11": "0.16",
    # No advisory is known of these below their floors: trio, msgspec, click, google-crc32c, thriftpy2, rich, boto3.
    # pyarrow 14.0.1 ends a code execution by IPC and Parquet files (CVE-2023-47248).
    "pyarrow": "14.0.1",
    # pyspark 3.3.2 and below run commands of others (CVE-2022-33891, CVE-2023-22946).
    "pyspark": "3.4.0",
    # numpy 1.22 ends a buffer overflow (CVE-2021-33430).
    "numpy": "1.22",
    # hatchling, which builds the wheels, has none; setuptools below 70.0 and below 78.1.1 take a path from a URL
    # (CVE-2024-6345, CVE-2025-47273), in code that a build here does not call.
    "setuptools": "75",
    # cryptography 43.0.1 has an OpenSSL without CVE-2024-6119; it makes the certificates of the tests.
    "cryptography": "43.0.1",
}
"""The oldest version of each library that has no advisory known to us, as of November 2026."""


def test_no_floor_admits_a_version_with_a_known_advisory() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = [Requirement(text) for group in groups for text in group]
    for name, least in ADVISORIES.items():
        floors = [
            Version(each.version)
            for requirement in wanted
            if canonicalize_name(requirement.name) == name
            for each in requirement.specifier
            if each.operator == ">="
        ]
        assert floors, f"{name} has no floor"
        assert min(floors) >= Version(least), name
        assert name not in CONSTRAINTS or Version(CONSTRAINTS[name]) >= min(floors)
