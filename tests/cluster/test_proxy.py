"""packaging/cluster: clients reach the leader at one address."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.cluster.servers import Servers, Wire, cluster
from tests.support.process import die_with_the_tests, until
from tests.support.transcripts import free_port

FOLDER = Path(__file__).resolve().parents[2] / "packaging" / "cluster"
HAPROXY = (FOLDER / "haproxy.cfg").read_text("utf-8")
SECONDS_MAX = 120


@contextmanager
def proxied(folder: Path, servers: Servers) -> Iterator[int]:
    """Run HAProxy in front of the members. Yield its port."""
    text, count = re.subn(r"^    server .*\n", "", HAPROXY, flags=re.MULTILINE)
    assert count == 3
    lines = [f"    server {it.name} 127.0.0.1:{it.port} port {it.admin_port}\n" for it in servers.members]
    port, config = free_port(), folder / "haproxy.cfg"
    config.write_text(text.replace("bind :22133", f"bind 127.0.0.1:{port}") + "".join(lines), "utf-8")
    with (folder / "haproxy.log").open("wb") as log:
        command = ["haproxy", "-db", "-f", str(config)]
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_the_tests)
        try:
            yield port
        finally:
            process.kill()
            process.wait()


def connected(port: int, data: str) -> Wire:
    """Connect until an item is stored: a proxy that has just started takes each member for the leader."""
    wires: list[Wire] = []

    def is_stored() -> bool:
        with suppress(OSError):
            wires.append(Wire(port))
            return wires[-1].put("jobs", data) == "STORED"
        return False

    assert until(is_stored, SECONDS_MAX)
    for wire in wires[:-1]:
        wire.close()
    return wires[-1]


@pytest.mark.slow
@pytest.mark.programs("etcd", "haproxy")
def test_a_proxy_leads_clients_to_whichever_member_leads(tmp_path: Path) -> None:
    with cluster(tmp_path, min_in_sync=1) as servers:
        old = servers.form()
        with proxied(tmp_path, servers) as port:
            with closing(connected(port, "before")) as wire:
                old.kill()
                assert wire.last_line() == ""  # the proxy has closed it
            with closing(connected(port, "after")) as wire:
                items = wire.drain("jobs")
    assert items[0] == "before" and set(items[1:]) == {"after"}  # a put without a reply may have been stored


def test_both_ways_ask_the_same_of_a_member() -> None:
    keepalived = (FOLDER / "keepalived.conf").read_text("utf-8")
    path = re.search(r"http-check send meth GET uri (\S+)", HAPROXY)
    ports = set(re.findall(r" port (\d+)", HAPROXY))
    assert path is not None and len(ports) == 1
    assert f"127.0.0.1:{ports.pop()}{path[1]}" in keepalived
