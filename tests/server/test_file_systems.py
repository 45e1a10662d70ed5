"""A spool on a file system that is known to break the promise: refused in one line, served if that is meant."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.server.admin.asking import Operator
from tests.support.process import STANIEL, Server, until
from tests.support.wire import Wire

ADMIN = "[admin]\nport = 0\n"
MOUNTS = {
    "tmpfs": "mount -t tmpfs none {0}",
    "volatile": "mount -t tmpfs none {0} && mkdir {0}/a {0}/b {0}/c {0}/spool && "
    "mount -t overlay -o lowerdir={0}/a,upperdir={0}/b,workdir={0}/c,volatile none {0}/spool",
}
IN_A_NAMESPACE = pytest.mark.programs("unshare", "mount", "user:root")


def mounted(name: str, folder: Path) -> tuple[str, ...]:
    """A command line that runs another where `folder` is such a file system."""
    folder.mkdir()
    return ("unshare", "--mount", "sh", "-c", f'{MOUNTS[name].format(folder)} && exec "$@"', "sh")


def refusal(tmp_path: Path, *options: str, wrapper: tuple[str, ...] = (), preload: str = "") -> str:
    """The one line of a start that is refused; "" if it serves."""
    command = [*wrapper, *STANIEL, "serve", "--port", "0", "--spool", str(tmp_path / "disk" / "spool"), *options]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LD_PRELOAD": preload}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        serves = bool(process.stdout.readline())
        process.kill()
        said = [line for line in process.stderr if line.startswith("staniel: ")]
    assert len(said) == (0 if serves else 1)
    return "" if serves else said[0]


@IN_A_NAMESPACE
def test_an_overlay_that_is_mounted_volatile_is_refused_and_served_if_that_is_meant(tmp_path: Path) -> None:
    wrapper = mounted("volatile", tmp_path / "disk")
    said = refusal(tmp_path, wrapper=wrapper)
    assert f"the spool {tmp_path}/disk/spool cannot keep the durability that sync_journal promises: overlay at " in said
    assert "volatile, so a sync does not reach the disk" in said and said.endswith(
        "accept the risk with [server] trust_file_system = true or --trust-file-system\n"
    )
    assert refusal(tmp_path, "--trust-file-system", wrapper=wrapper) == ""
    assert refusal(tmp_path, "--sync", "os", wrapper=wrapper) == ""  # nothing is promised of a power cut


@IN_A_NAMESPACE
def test_a_command_log_outside_the_spool_is_looked_at_too(tmp_path: Path) -> None:
    wrapper = mounted("volatile", tmp_path / "disk")
    log = tmp_path / "disk" / "spool" / "log"
    with Server(tmp_path, "--cmdlog-path", str(log), "--workq-port", "0", "--trust-file-system", wrapper=wrapper) as it:
        assert f'folder="the command log {log}"' in it.stderr and "spool.file_system" in it.stderr


@IN_A_NAMESPACE
def test_a_spool_in_memory_is_served_with_a_warning_and_health_says_so(tmp_path: Path) -> None:
    spool = tmp_path / "disk" / "spool"
    wrapper = mounted("tmpfs", tmp_path / "disk")
    (tmp_path / "staniel.toml").write_text(ADMIN)
    with Server(tmp_path, "--spool", str(spool), wrapper=wrapper) as server:
        assert f'folder="the spool {spool}" why="tmpfs at {tmp_path}/disk is in memory' in server.stderr
        health = Operator(server.second_port).get("/health/ready")
        (reason,) = [each for each in health["reasons"] if each["name"] == "file_system"]
        assert health["ready"] and reason["severity"] == "warning" and "trust_file_system" in reason["mend"]
        with Wire(server.address) as wire:
            assert wire.put("q", b"1") == b"STORED"
        (tmp_path / "staniel.toml").write_text(f"[server]\ntrust_file_system = true\n{ADMIN}")
        Operator(server.second_port).post("/api/reload")
        names = [each["name"] for each in Operator(server.second_port).get("/health/ready")["reasons"]]
        assert "file_system" not in names


@IN_A_NAMESPACE
def test_a_reload_that_promises_more_than_the_file_system_keeps_is_refused(tmp_path: Path) -> None:
    spool = tmp_path / "disk" / "spool"
    config = tmp_path / "staniel.toml"
    lax = f'{ADMIN}[default]\nsync_journal = "os"\n'
    config.write_text(lax)
    with Server(tmp_path, "--spool", str(spool), wrapper=mounted("volatile", tmp_path / "disk")) as server:
        config.write_text(lax.replace('"os"', '"1s"'))
        refused = Operator(server.second_port).ask("POST", "/api/reload")
        assert refused.status == 409 and b"trust_file_system" in refused.body
        assert until(lambda: "config.refused" in server.stderr)
        with Wire(server.address) as wire:
            assert wire.put("q", b"1") == b"STORED"


def test_syncs_that_a_library_has_switched_off_are_refused(tmp_path: Path) -> None:
    said = refusal(tmp_path, preload="/usr/lib/libeatmydata.so")  # which the loader does not find, and goes on
    assert "libeatmydata is loaded" in said
    assert not (tmp_path / "disk").exists()
    assert refusal(tmp_path, "--trust-file-system", preload="/usr/lib/libeatmydata.so") == ""
