"""The pages of the client: each of their examples runs against a real server, and their tables have every call."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from staniel.client import Client, ClusterPool, Jobs, MultiClient
from tests.support.process import running
from tests.support.wire import Wire

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("client.md", "client-servers.md", "client-jobs.md")
TEXT = "\n".join((ROOT / "docs" / name).read_text("utf-8") for name in PAGES)
BLOCK = re.compile(r"(?:^    .*\n|^\n(?=    ))+", re.MULTILINE)
PRELUDE = 'import staniel.client\nclient = staniel.client.Client("127.0.0.1", 22133)\n'
TRIO = "staniel.client.aio import Client"
JOBS = "[workq]\nport = 0\n"
SHOWN = {"resize 17.png": "b'resize 17.png' 0 ", "monitor(": "b'a'\nb'b'\n", '"reports"]': "reports b'of May'"}


def examples() -> list[str]:
    """The indented blocks, those without an import behind one that makes a client."""
    blocks = ["\n".join(line[4:] for line in found.strip("\n").splitlines()) + "\n" for found in BLOCK.findall(TEXT)]
    return [block if "import " in block else PRELUDE + block for block in blocks]


def test_there_are_examples_of_each_kind_of_client() -> None:
    assert len(examples()) >= 8
    for what in (
        "staniel.client import Client",
        "asyncio.run",
        "MultiClient(",
        "Jobs(",
        "Pool(",
        "monitor(",
        "confirm(",
    ):
        assert any(what in example for example in examples()), what


def runnable() -> list[Any]:
    """The numbers of the examples, those that need an extra with its mark."""
    needs = pytest.mark.programs("python:opentelemetry")
    return [
        pytest.param(number, marks=[needs] if "client.otel" in example else [])
        for number, example in enumerate(examples())
    ]


@pytest.mark.parametrize("number", runnable())
def test_an_example_runs_as_it_stands(number: int, tmp_path: Path) -> None:
    example = examples()[number]
    with running(tmp_path, config=JOBS) as server:
        with Wire(server.address) as wire:
            wire.put("reports", b"of May")  # an example waits for it
        program = example.replace("22133", str(server.port)).replace("9922", str(server.second_port))
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), f"{example}\n{done.stderr}"
    for word, shown in SHOWN.items():
        if word in example and "print(item" in example:
            assert shown in done.stdout, example


@pytest.mark.parametrize("names", [TRIO, "staniel.client import connect", "staniel.client import TrioClient"])
def test_the_asyncio_example_runs_on_trio_under_each_name(names: str, tmp_path: Path) -> None:
    (example,) = [each for each in examples() if "asyncio.run" in each]
    assert "`trio.run(main)`" in TEXT and (names == TRIO or f"`staniel.client.{names.split()[-1]}`" in TEXT)
    example = example.replace(f"from {TRIO}", f"from {names} as Client")
    with running(tmp_path) as server:
        program = (
            example.replace("22133", str(server.port))
            .replace("asyncio", "trio")
            .replace("trio.run(main())", "trio.run(main)")
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout[:19], done.stderr) == ("b'resize 17.png' 0 ", "")


def test_the_lists_have_every_call() -> None:
    lists = TEXT.split("Each call, what it gives, ")[1:]
    for told, kind in zip(lists, (Client, ClusterPool, Jobs), strict=True):
        named = set(re.findall(r"`(\w+)\(", told.split("\n\n")[1]))
        public = {name for name in dir(kind) if not name.startswith("_")} - {"is_reusable", "is_lost", "is_usable"}
        assert named - {kind.__name__} == public - ({"connect", "close"} - named)


def test_the_list_of_several_servers_has_every_call() -> None:
    told = TEXT.partition("- `MultiClient(")[2].partition("\n\n")[0]
    calls = re.findall(r"^- ([^:]+):", told, re.MULTILINE)
    named = {name for each in calls for name in re.findall(r"`(\w+)`", each)}
    public = {name for name in dir(MultiClient) if not name.startswith("_")}
    assert named - {"MultiClient"} == public - {"close", "is_reusable"}
