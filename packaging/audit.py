"""Asks a vulnerability service about every package of a release: `make audit`.

Exit code 0: the service knows all packages and no vulnerability; 1: it knows some, and they are listed; 3: it could not
be asked, or not about all packages. pip-audit itself reports a package unknown to the service as sound.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import supply

COULD_NOT = 3
SECONDS_MAX = 120
LINES_MAX = 3


def could_not(why: str) -> int:
    print(f"audit: COULD NOT RUN, nothing is known about vulnerabilities: {why}", file=sys.stderr)
    return COULD_NOT


def verdict(wanted: set[str], found: list[dict[str, Any]]) -> int:
    """Print what pip-audit found, and return the exit code. `found` is `dependencies` of its JSON."""
    bad = {package["name"]: package["vulns"] for package in found if package.get("vulns")}
    for name, vulnerabilities in bad.items():
        for vulnerability in vulnerabilities:
            mended = ", ".join(vulnerability.get("fix_versions", [])) or "no version"
            print(f"audit: {name}: {vulnerability['id']}, mended in {mended}", file=sys.stderr)
    if bad:
        return 1
    asked = {package["name"] for package in found if "skip_reason" not in package}
    if missing := sorted(wanted - asked):
        return could_not(
            f"no answer about {len(missing)} of {len(wanted)} packages, {', '.join(missing[:5])} among them"
        )
    print(f"audit: {len(asked)} packages, no known vulnerability")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--service", choices=["pypi", "osv"], default="pypi", help="which one is asked")
    service = parser.parse_args().service
    pins = supply.pins()
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "all.txt")
        listed.write_text("".join(f"{pin.name}=={pin.version}\n" for pin in pins.values()), "utf-8")
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--requirement", str(listed)]
        command += ["--format", "json", "--progress-spinner", "off", "--vulnerability-service", service]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return could_not(f"no answer within {SECONDS_MAX} s")
    try:
        found = json.loads(ran.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = " ".join(ran.stderr.strip().splitlines()[-LINES_MAX:]) or "no output"
        return could_not(last[-500:])
    return verdict(set(pins), found)


if __name__ == "__main__":
    sys.exit(main())
