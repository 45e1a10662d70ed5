"""Makes docs/pictures/terminal-failover.svg and page-failover.png: python -m tests.cluster.pictures

Three members on loopback; the leader is killed while a client puts items. The terminal is an operator's,
the page is the new leader's while the killed member is missing.
"""

from __future__ import annotations

import io
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

from tests.cluster.servers import MemberServer, Servers, Wire, cluster
from tests.server.cli.terminal_picture import FONT
from tests.server.page.pictures import COLOURS, PICTURES
from tests.support.process import run_staniel

COLUMNS = 120
MINUTES = 1


def keep_putting(servers: Servers, is_over: threading.Event) -> None:
    """Put an item each 20 ms at whichever member leads, and take it."""
    wire: Wire | None = None
    while not is_over.is_set():
        with suppress(OSError):
            leader = servers.leader if wire is None else None
            wire = Wire(leader.port, 5) if leader is not None else wire
            if wire is not None and wire.put("orders", "x" * 200) == "STORED" and wire.get("orders") is not None:
                time.sleep(0.02)
                continue
        if wire is not None:
            wire.close()
        wire = None
        time.sleep(0.1)


def show(console: Console, member: MemberServer, comment: str) -> None:
    """Ask a member with `staniel cluster`, and show what it prints."""
    ran = run_staniel("cluster", "--config", str(member.config))
    command = f"staniel cluster --config {member.name}.toml"
    console.print(Text.assemble(("$ ", "green"), (command, "bold"), (f"      # {comment}", "bright_black")))
    console.print(Text((ran.stdout + ran.stderr).rstrip()), "")


def photograph(member: MemberServer) -> None:
    path = PICTURES / "page-failover.png"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 760})
        page.goto(f"http://127.0.0.1:{member.admin_port}/")
        page.wait_for_selector("#live:not(.wait)")
        page.wait_for_timeout(2500)
        page.screenshot(path=path)
        browser.close()
    Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)


def main() -> None:
    is_over = threading.Event()
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder), min_in_sync=1) as servers:
        old = servers.form()
        client = threading.Thread(target=keep_putting, args=(servers, is_over))
        client.start()
        try:
            watched = next(member for member in servers.members if member is not old)
            is_over.wait(MINUTES * 60)
            show(console, watched, "a follower, before")
            old.kill()
            show(console, watched, f"at once after {old.name} was killed")
            servers.wait_for(lambda: servers.leader not in (None, old), "another member leads")
            leader = servers.leader
            assert leader is not None
            show(console, leader, "a second later, the new leader")
            servers.wait_for(lambda: len(leader.status.get("in_sync", ())) == 2, "it is out")
            photograph(leader)
            old.start()
            servers.wait_until_whole()
            show(console, leader, f"{old.name} was started again")
        finally:
            is_over.set()
            client.join()
    svg = console.export_svg(title="the leader is killed")
    (PICTURES / "terminal-failover.svg").write_text(FONT.sub("", svg))


if __name__ == "__main__":
    main()
