"""memcached-tool, the Perl script that comes with memcached; a distribution puts it beside the PATH."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.support.process import Server
from tests.support.wire import Wire

DEBIAN = "/usr/share/memcached/scripts/memcached-tool"
TOOL = DEBIAN if shutil.which(DEBIAN) else "memcached-tool"

pytestmark = pytest.mark.programs(TOOL)


def run(server: Server, topic: str) -> str:
    command = [TOOL, f"127.0.0.1:{server.port}", topic]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_stats_lists_every_number(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.put("jobs", b"a")
    rows = [line.split() for line in run(server, "stats").splitlines()]
    assert ["queue_jobs_items", "1"] in rows


@pytest.mark.parametrize("topic", ["display", "settings", "sizes"])
def test_what_only_a_cache_has_is_an_empty_list(server: Server, topic: str) -> None:
    assert len(run(server, topic).splitlines()) <= 1
