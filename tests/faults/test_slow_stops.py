"""A stop of a real server whose syncs are slow: it begins two, however many queues are under load."""

from __future__ import annotations

import re
import signal
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from tests.faults.preloaded import build
from tests.support.process import Server, until
from tests.support.wire import Wire

CONFIG = """
server.redo_log = "{redo}"
workq.listen = ["127.0.0.1:0"]
[queues.s]
journal_format = "libkestrel"
[queues.later]
sync_journal = "1s"
"""
SYNC_MS = 300
IN_SERVICE = re.compile("((write ){0,2}(syncfs |fdatasync |fsync )){0,2}(write ){0,2}")
"""A sync that runs when the log is read, and the one that begins before the server is held."""
PUT = b"set %b%d 0 0 5\r\nhello\r\n"


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return build("slow_syncs.c", tmp_path_factory.mktemp("built"))


def stop_under_load(
    folder: Path, preload: dict[str, str], queues: int, redo: str, sync_ms: int = SYNC_MS
) -> tuple[float, list[str]]:
    """How many seconds a stop took, and the syncs that it began."""
    log = folder / "syncs"
    environment = {**preload, "SLOW_SYNC_MS": str(sync_ms), "SLOW_SYNC_LOG": str(log)}
    wrapper = ("env", *(f"{name}={value}" for name, value in environment.items()))
    with Server(folder, config=CONFIG.format(redo=redo), wrapper=wrapper) as server:
        each = b"".join(PUT % (b"q", number) for number in range(queues)) + PUT % (b"s", 0)
        with Wire(server.address) as wire:
            wire.say(each)
            for _ in range(queues + 1):
                assert wire.line() == b"STORED"
            assert wire.put("later", b"1") == b"STORED"  # which has the redo log of checksums made
            assert until(lambda: b"spool 2" in (server.spool / ".staniel" / "version").read_bytes(), 60)
            log.touch()
            load = threading.Thread(target=keep_putting, args=(wire, each))
            load.start()
            assert until(lambda: log.read_text().count("\n") > 2, 60)
            server.signal(signal.SIGSTOP)  # so that nothing begins between what is read here and the signal
            began_s, begun = monotonic(), log.read_text().splitlines()
            server.signal(signal.SIGTERM)
            server.signal(signal.SIGCONT)
            code = server.wait(600)
            took_s = monotonic() - began_s
            load.join()
        assert code == 0, server.stderr
        return took_s, log.read_text().splitlines()[len(begun) :]


def keep_putting(wire: Wire, requests: bytes) -> None:
    wire.sock.settimeout(600)
    with suppress(OSError):
        while wire.say(requests).line():
            for _ in range(requests.count(b"set") - 1):
                wire.line()


@pytest.mark.parametrize("redo", ["checksums", "1MB"])
@pytest.mark.parametrize("queues", [1, 5, 20])
def test_a_stop_under_load_begins_two_syncs(tmp_path: Path, preload: dict[str, str], queues: int, redo: str) -> None:
    took_s, begun = stop_under_load(tmp_path, preload, queues, redo)
    assert begun[-2:] == ["syncfs", "fsync"], begun
    in_service = "".join(f"{call} " for call in begun[:-2])
    assert IN_SERVICE.fullmatch(in_service), begun
    assert took_s >= 0.6
