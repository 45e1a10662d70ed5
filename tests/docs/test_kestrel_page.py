"""docs/howto/kestrel.md: its commands, run on a spool that Kestrel could have left."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.process import running
from tests.support.transcripts import free_port
from tests.support.wire import Wire, drain

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "howto" / "kestrel.md").read_text("utf-8")


def test_coming_from_kestrel_serves_the_adopted_copy_and_leaves_kestrels_folder_alone(tmp_path: Path) -> None:
    commands = re.findall(r"^    staniel (.+?)(?:  +#.*)?$", PAGE, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["config", "config", "adopt", "serve"]
    old, new = tmp_path / "kestrel", tmp_path / "staniel"
    with running(tmp_path / "old", config="[default]\njournal_dialect = 'kestrel-2.4'\n") as kestrel:
        with Wire(kestrel.address) as wire:
            for number in range(20):
                assert wire.put("jobs", b"%d" % number) == b"STORED"
        kestrel.kill()
        shutil.copytree(kestrel.spool, old, ignore=shutil.ignore_patterns(".staniel"))
    port = free_port()
    (tmp_path / "production.scala").write_text(
        f'new KestrelConfig {{\n  listenAddress = "0.0.0.0"\n  memcacheListenPort = {port}\n'
        f'  queuePath = "{old}"\n  default.maxItems = 1000\n}}\n'
    )
    before = {path.name: path.read_bytes() for path in old.iterdir()}

    def prepared(command: str) -> list[str]:
        ours = command.replace("/var/spool/kestrel", str(old)).replace("/var/lib/staniel", str(new))
        return [str(Path(sys.executable).parent / "staniel"), *ours.partition(" > ")[0].split()]

    for command in commands[:3]:
        done = subprocess.run(prepared(command), cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == (1 if "import-kestrel" in command else 0), done
        if " > " in command:
            (tmp_path / command.rpartition(" > ")[2]).write_text(done.stdout)
    with subprocess.Popen(prepared(commands[3]), cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert f"spool {new}: 1 queue, 20 items recovered" in server.stdout.readline()
            assert drain(("127.0.0.1", port), "jobs") == [b"%d" % number for number in range(20)]
        finally:
            server.terminate()
    assert {path.name: path.read_bytes() for path in old.iterdir()} == before
