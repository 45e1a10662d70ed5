"""What an installation brings with it: five packages, and the rest only with an extra."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASE = {"trio", "msgspec", "click", "google-crc32c", "h11"}
ADMIN_EXTRAS = {"top": {"rich"}, "s3": {"boto3"}}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s<>=!~;\[]", each, maxsplit=1)[0].lower() for each in requirements}


def test_the_admin_side_adds_h11_to_the_base_and_the_rest_is_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert names(project["dependencies"]) == BASE
    extras = {name: names(listed) for name, listed in project["optional-dependencies"].items()}
    assert {name: extras[name] for name in ADMIN_EXTRAS} == ADMIN_EXTRAS
