"""Small C files built into libraries that a server is started with. Needs a C compiler, `cc`."""

from __future__ import annotations

import subprocess
from pathlib import Path


def build(source: str, folder: Path) -> dict[str, str]:
    """Build `source`, a file of this folder; the environment that makes a process load it."""
    path = Path(__file__).with_name(source)
    library = folder / path.with_suffix(".so").name
    command = ["cc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(path), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return {"LD_PRELOAD": str(library)}
