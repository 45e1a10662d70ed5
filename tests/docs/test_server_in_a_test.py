"""The example of a server in a test is true."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from staniel.sim.disk.durable import Crash
from tests.support.world import World

PAGE = Path(__file__).parents[2] / "docs/contributing/tests.md"


def test_the_example_runs() -> None:
    chapter = PAGE.read_text("utf-8").split("### A server in a test")[1]
    example = "".join(f"{line}\n" for line in chapter.split("\n") if line.startswith("    "))
    assert example.count("assert") == 3
    exec(dedent(example), {"World": World, "Crash": Crash})
