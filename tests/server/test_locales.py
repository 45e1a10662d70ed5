"""The locale does not decide what bytes on the disk mean: names of queues are UTF-8 there, under every locale."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import STANIEL, running
from tests.support.wire import Wire

NAME = "Ñandú"
WIRE = NAME.encode("latin-1")  # as requests have it
NO_UTF8 = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
OPEN = """
from staniel.journal.disk.os_fs import OsFs
import sys
fs, folder = OsFs(), sys.argv[1]
file = fs.append(f"{folder}/\\u00d1and\\u00fa")
file.write(b"x")
file.close()
fs.append(f"{folder}/\\udcff").close()
fs.rename(f"{folder}/\\u00d1and\\u00fa", f"{folder}/\\u00d1")
fs.make_folder(f"{folder}/\\u00e9/\\u00f1")
print([ascii(name) for name, _ in fs.list(folder)], fs.size(f"{folder}/\\u00d1"), sys.getfilesystemencoding())
"""


@pytest.fixture(params=["ascii", pytest.param("iso8859-1", marks=pytest.mark.programs("localedef"))])
def locale(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose locale has that encoding."""
    if request.param == "ascii":
        return {"LC_ALL": "POSIX", **NO_UTF8}
    folder = tmp_path_factory.mktemp("locales")
    made = ["localedef", "--no-archive", "-i", "en_US", "-f", "ISO-8859-1", str(folder / "en_US.ISO-8859-1")]
    subprocess.run(made, check=True, capture_output=True)
    return {"LOCPATH": str(folder), "LC_ALL": "en_US.ISO-8859-1", **NO_UTF8}


def run(locale: dict[str, str], *command: str) -> str:
    done = subprocess.run(command, env={**os.environ, **locale}, capture_output=True, timeout=60)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout.decode()


def test_a_queue_has_the_same_files_under_every_locale(tmp_path: Path, locale: dict[str, str]) -> None:
    words = ("env", *[f"{name}={value}" for name, value in locale.items()])
    config = f'[queues."{NAME}"]\nmax_items = 1\n'
    with running(tmp_path, wrapper=words, config=config) as server:
        with Wire(server.address) as wire:
            assert wire.ask(b"set %b 0 0 3\r\nabc" % WIRE) == b"STORED"
            assert wire.ask(b"set %b 0 0 3\r\ndef" % WIRE) == b"NOT_STORED"  # the configuration means this queue
        assert (tmp_path / "spool" / NAME).exists()
        spool = str(server.spool)
        assert NAME in run(locale, *STANIEL, "queues", "--spool", spool)
        assert "abc" in run(locale, *STANIEL, "peek", NAME, "--spool", spool)
        run(locale, *STANIEL, "put", f"{NAME}2", "def", "--spool", spool)
        run(locale, *STANIEL, "backup", str(tmp_path / "copies"), "--spool", spool)
        server.wrapper = ()
        server.restart()
        with Wire(server.address) as wire:
            assert wire.ask(b"get " + WIRE) == b"VALUE %b 0 3" % WIRE
            wire.hear(len(b"abc\r\nEND\r\n"))
            assert wire.ask(b"get %b2" % WIRE) == b"VALUE %b2 0 3" % WIRE
    run(locale, *STANIEL, "restore", str(tmp_path / "copies"), str(tmp_path / "again"))
    assert (tmp_path / "again" / NAME).exists()
    assert "2 files" in run(locale, *STANIEL, "journal", "verify", str(tmp_path / "again"))


def test_a_library_use_of_the_disk_takes_no_encoding_from_the_locale(tmp_path: Path, locale: dict[str, str]) -> None:
    said = run(locale, sys.executable, "-c", OPEN, str(tmp_path))
    assert sorted(os.listdir(os.fsencode(tmp_path))) == sorted((NAME[0].encode(), b"\xff", "é".encode()))
    assert os.listdir(os.fsencode(tmp_path) + "/é".encode()) == ["ñ".encode()]
    assert said.split("] ")[1].split()[0] == "1" and "utf" not in said
    assert said.split("] ")[0] == str([ascii(name) for name in sorted(("Ñ", "é", "\udcff"))]).rstrip("]")
