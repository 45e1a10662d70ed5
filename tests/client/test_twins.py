"""client/blocking is made of client/aio, and is not changed by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.scripts import ROOT, script

twins = script("blocking_client")


def test_the_blocking_client_is_what_the_script_makes() -> None:
    assert twins.stale() == [], "run `make blocking`"


def test_each_substitution_is_of_use() -> None:
    assert twins.unused() == []


def test_a_file_that_was_changed_by_hand_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in twins.FILES:
        (tmp_path / name).write_text((twins.TARGET / name).read_text())
    (tmp_path / "client.py").write_text((tmp_path / "client.py").read_text().replace("class Client", "class Other"))
    monkeypatch.setattr(twins, "TARGET", tmp_path)
    assert "client.py" in twins.stale()


def test_no_word_of_an_event_loop_is_left() -> None:
    for name in twins.FILES:
        text = (twins.TARGET / name).read_text().replace("client/aio/", "")
        assert not [word for word in ("async", "await", "anyio", "task", "aio", "cancel") if word in text], name


def test_a_blocking_program_loads_neither_trio_nor_anyio() -> None:
    code = (
        "import sys, staniel.client; staniel.client.Client; print({'trio', 'anyio', 'asyncio'} & set(sys.modules))\n"
        "staniel.client.connect; staniel.client.TrioClient; staniel.client.Monitoring; print('anyio' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout.split("\n")[:2] == ["set()", "True"], done.stderr


def test_both_have_the_same_names() -> None:
    from staniel.client import Client, Jobs
    from staniel.client.aio import Client as AioClient
    from staniel.client.aio import Jobs as AioJobs

    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert (public(Client), public(Jobs)) == (public(AioClient), public(AioJobs))
    wanted = "put put_many get reserve confirm abort extend peek monitor flush delete stats version"
    assert set(wanted.split()) <= public(Client)
