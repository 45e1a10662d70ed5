"""A real server of which chosen calls on chosen files fail while a test says so; which there are: `failing_calls.c`."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tests.support.process import Server


class Armed(Server):
    """`preload`: the environment of tests/faults/preloaded.py, for that file."""

    def __init__(
        self, folder: Path, preload: dict[str, str], *options: str, config: str = "", code: int = errno.EIO
    ) -> None:
        self.switch = folder / "switch"
        self.code = code
        chosen = {"SWITCH": str(self.switch), "ERRNO": str(code), "TIMES": "1000000000"}
        environment = {**preload, **{f"FAULT_{name}": value for name, value in chosen.items()}}
        wrapper = ("env", *(f"{name}={value}" for name, value in environment.items()))
        super().__init__(folder, *options, config=config, wrapper=wrapper)

    def fail(self, calls: str, path: str) -> None:
        """From now on such calls fail on paths that contain `path`."""
        fresh = self.switch.with_suffix(".new")
        fresh.write_text(f"{calls}\n{path}\n{self.code}\n")
        os.replace(fresh, self.switch)

    def mend(self) -> None:
        self.switch.unlink(missing_ok=True)
