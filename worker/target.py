"""The name of a function, `package.module:function`, and the function."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any


def find(name: str) -> Callable[[bytes], Any]:
    """Import a function; modules of the current folder are found, too. Raises ValueError, or what the module raises."""
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise ValueError(f"a function is named as package.module:function, not {name!r}")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        if not hasattr(found, part):
            raise ValueError(f"module {module} has no {path}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{name} is no function")
    return found  # type: ignore[no-any-return]
