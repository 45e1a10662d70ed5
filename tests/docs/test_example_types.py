"""The examples of the clients and workers are right for a type checker, too, but for functions without annotations."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import test_client_page

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/start/client.md", "docs/start/cluster.md", "docs/worker-tutorial.md")
FENCED = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.slow
@pytest.mark.programs("python:opentelemetry")
def test_the_examples_of_clients_are_right_for_a_type_checker(tmp_path: Path) -> None:
    texts = [text for page in PAGES for text in FENCED.findall((ROOT / page).read_text("utf-8"))]
    examples = [*texts, *test_client_page.examples()]
    assert len(examples) >= 16
    for number, text in enumerate(examples):
        (tmp_path / f"example_{number}.py").write_text(text, "utf-8")
    unannotated = ("--allow-untyped-defs", "--allow-incomplete-defs", "--allow-untyped-calls")
    command = [sys.executable, "-m", "mypy", "--strict", *unannotated, "--cache-dir", str(tmp_path / "cache"), "."]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
