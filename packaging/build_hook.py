"""Hatchling's build hook: `pip install .` compiles the modules with a .pxd if this machine can, and else installs them.

A wheel with extensions is a platform wheel: the same sources, and the extensions in staniel/_compiled. Otherwise it is
the wheel of plain Python; unless the user asked for that, a line of the build says why, and `staniel --version` too.

STANIEL_PURE=1 asks for plain Python. STANIEL_BUILD=compiled makes it an error if the wheel is not compiled: releases.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))
from extensions import KEYS, compile_all, missing_tool

NOTE = "not_compiled.txt"  # src/staniel/compiled.py reads it
MODULES = ("Cython", "setuptools")
REASON_CHARS_MAX = 300


class Wanted(Enum):
    """The build that the environment asks for."""

    PLAIN = "plain Python"
    COMPILED_IF_POSSIBLE = "compiled if possible"
    COMPILED = "compiled, or an error"


def wanted(environment: Mapping[str, str]) -> Wanted:
    if environment.get("STANIEL_PURE", "0") not in ("", "0"):
        return Wanted.PLAIN
    return Wanted.COMPILED if environment.get("STANIEL_BUILD") == "compiled" else Wanted.COMPILED_IF_POSSIBLE


def missing_module() -> str:
    """Return what must be installed to compile, and is not; empty if nothing is missing."""
    return next((module for module in MODULES if find_spec(module) is None), "")


def one_line(error: BaseException) -> str:
    """Return the first line of an error."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:REASON_CHARS_MAX]


class CompiledWheel(BuildHookInterface):
    """The hook that compiles, for the interpreter that builds the wheel."""

    def dependencies(self) -> list[str]:
        """Return what pip must install to compile: nothing if this build will not compile."""
        asked = wanted(os.environ)
        if asked is Wanted.PLAIN or (asked is Wanted.COMPILED_IF_POSSIBLE and missing_tool()):
            return []
        tools: list[str] = self.config["tools"]
        return tools

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        asked = wanted(os.environ)
        if version == "editable" or asked is Wanted.PLAIN:
            return  # `make compiled` is for checkouts
        self.folder = tempfile.TemporaryDirectory()
        why = self._compile(Path(self.folder.name, "_compiled"), build_data)
        if not why:
            return
        if asked is Wanted.COMPILED:
            self.app.abort(f"not compiled, and STANIEL_BUILD=compiled asks for it: {why}")
        self.app.display_warning(f"staniel: not compiled, plain Python is installed: {why}")
        note = Path(self.folder.name, NOTE)
        note.write_text(f"{why}\n", "utf-8")
        build_data["force_include"][str(note)] = f"staniel/{NOTE}"

    def _compile(self, extensions: Path, build_data: dict[str, Any]) -> str:
        """Compile, and put the extensions into the wheel. Return why that was impossible; empty if it was not."""
        if lacking := missing_tool() or missing_module():
            return f"this machine lacks {lacking}"
        try:
            names = compile_all(extensions)
        except (Exception, SystemExit) as error:  # whatever a broken compiler or linker does
            return f"compiling failed: {one_line(error)}"
        self.app.display_info(f"{len(names)} modules compiled")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in sorted(extensions.iterdir()):
            if path.name != KEYS:
                build_data["force_include"][str(path)] = f"staniel/_compiled/{path.name}"
        return ""

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()
