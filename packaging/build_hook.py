"""Hatchling's build hook for a platform wheel, enabled by HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip wheel .

The wheel holds the same sources as the pure one, and the extensions in staniel/_compiled.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))
from extensions import compile_all


class CompiledWheel(BuildHookInterface):
    """The hook that compiles the modules with a .pxd, for the interpreter that builds the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # `make compiled` is for checkouts
        self.folder = tempfile.TemporaryDirectory()
        extensions = Path(self.folder.name, "_compiled")
        names = compile_all(extensions)
        self.app.display_info(f"{len(names)} modules compiled")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in sorted(extensions.iterdir()):
            if path.name != "keys.txt":
                build_data["force_include"][str(path)] = f"staniel/_compiled/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()
