"""The workers that need no client library, and the lines of docs/http.md, run as they stand there."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.admin.asking import Operator
from tests.server.test_http_requests import free_ports
from tests.support.process import Server, running

ROOT = Path(__file__).resolve().parents[2]
ITEMS = ["resize 17.png", 'é \\ "two"', "last"]


@pytest.fixture
def port(tmp_path: Path) -> int:
    return free_ports(1)[0]


@pytest.fixture
def served(tmp_path: Path, port: int) -> Iterator[Server]:
    with running(tmp_path, config=f"[admin]\nport = {port}\n") as server:
        yield server


def put(port: int) -> Operator:
    operator = Operator(port)
    for item in ITEMS:
        assert operator.ask("POST", "/api/queues/jobs/put", {"data": item}).status == 200
    return operator


def left(operator: Operator) -> int:
    found = operator.ask("GET", "/api/queues/jobs").json
    return int(found["items"]) + int(found["open_reads"])


def run(command: list[str], **more: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env={**os.environ, **more})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.programs("curl")
def test_the_shell_worker_confirms_what_its_work_has_done(served: Server, port: int) -> None:
    operator = put(port)
    said = run(["examples/worker_http.sh", f"http://127.0.0.1:{port}", "jobs", "sh", "-c", "cat; echo"], COUNT="3")
    assert said.splitlines() == ITEMS and left(operator) == 0


@pytest.mark.programs("curl")
def test_the_shell_worker_hands_back_what_fails(served: Server, port: int) -> None:
    operator = put(port)
    run(["examples/worker_http.sh", f"http://127.0.0.1:{port}", "jobs", "false"], COUNT="2")
    assert left(operator) == 3
    (item,) = operator.ask("POST", "/api/queues/jobs/reserve", {}).json["items"]
    assert (item["data"], item["deliveries"]) == (ITEMS[0], 3)


@pytest.mark.programs("php")
def test_the_php_worker_confirms_what_it_has_printed(served: Server, port: int) -> None:
    operator = put(port)
    assert run(["php", "examples/worker_http.php", f"http://127.0.0.1:{port}", "jobs", "3"]).splitlines() == ITEMS
    assert left(operator) == 0


@pytest.mark.programs("go")
def test_the_go_worker_confirms_what_it_has_printed(served: Server, port: int, tmp_path: Path) -> None:
    operator = put(port)
    program = str(tmp_path / "worker_http")
    run(["go", "build", "-o", program, "examples/worker_http.go"], GOCACHE=str(tmp_path / "cache"), GOFLAGS="-mod=mod")
    assert run([program, f"http://127.0.0.1:{port}", "jobs", "3"]).splitlines() == ITEMS
    assert left(operator) == 0


@pytest.mark.programs("curl")
def test_the_lines_of_the_page_run(served: Server, port: int, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "http.md").read_text("utf-8")
    lines = textwrap.dedent(text[text.index("    URL=") : text.index('`{"stored":1}` leaves')])
    script = tmp_path / "lines.sh"
    script.write_text("set -eu\n" + lines.replace("2223", str(port)))
    done = subprocess.run(["sh", script.name], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ['{"stored":1}', 'resize 17.png{"done":1,"gone":[]}']
