"""Makes the pictures of the operator's page in docs/pictures: python -m tests.server.page.pictures [MINUTES] [NAME …]

A server is kept busy for MINUTES (11), so that its histories say something, then its page is opened and photographed;
with NAMEs, those pictures alone. `page-thousand` is taken last, once there are a thousand queues.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.server.admin.asking import Operator
from tests.support.process import Server, running
from tests.support.wire import Wire

PICTURES = Path(__file__).resolve().parents[3] / "docs" / "pictures"
CONFIG = """
[admin]
port = 0
[default]
sync_journal = "20s"
[queues.orders]
sync_journal = "always"
[queues.emails]
max_deliveries = 5
dead_letter_queue = "emails_dead"
[queues.events]
max_items = 20000
[queues.crawl]
default_journal_size = "200KB"
max_memory_size = "100MB"
max_journal_size = "100MB"
[queues.recent]
keep_journal = false
"""
FULL = {
    "invoices": 4800, "emails_dead": 317, "imports-csv": 3300, "crawl": 9000, "audit": 826, "thumbnails": 87,
    "recent": 2000, "orders": 900, "telemetry": 300, "push": 260, "emails": 400, "search-index": 160, "events": 1200,
}  # fmt: skip
FLOWS = (  # queue, items in a second, items out, how much that swings, over how many seconds
    ("orders", 31, 31, 18, 61),
    ("telemetry", 42, 42, 25, 47),
    ("push", 16, 16, 9, 83),
    ("emails", 6, 6, 2, 70),
    ("search-index", 11, 11, 5, 40),
    ("events", 27, 21, 6, 90),
    ("crawl", 3, 8, 2, 50),
    ("webhooks-out", 3, 2, 1, 60),
    ("recent", 5, 5, 2, 45),
    ("imports-csv", 0, 4, 0, 1),
    ("audit", 2, 2, 1, 30),
    ("thumbnails", 4, 4, 3, 20),
)
STEP_SECONDS = 0.1
ARCHIVED, ARCHIVED_AT_ONCE = 200_000, 500
COLOURS = 128  # a third of the bytes
SHOTS = (  # name, route, width, height, dark, what is clicked
    ("page-overview", "", 1440, 900, False, ""),
    ("page-queue", "#/queues/orders", 1440, 1000, False, ""),
    ("page-dark", "#/queues/crawl/journal", 1440, 1000, True, ""),
    ("page-purge", "#/queues/invoices", 1440, 900, False, "#purge"),
    ("page-phone", "", 390, 844, False, ""),
    ("page-clients", "#/clients", 1440, 700, False, ""),
    ("page-operations", "#/operations", 1440, 600, False, ""),
    ("page-audit", "#/audit", 1440, 600, True, ""),
    ("page-thousand", "", 1440, 900, False, ""),
)


def order(number: int) -> bytes:
    customer = {"id": 7_647_252 + number, "name": "Jürgen", "tier": None}
    lines = [{"sku": f"SK-{number * 77 % 65536:04X}", "count": number % 5 + 1, "cents": 11_430 + number}]
    return json.dumps({"order": 88_410_000 + number, "customer": customer, "lines": lines}, ensure_ascii=False).encode()


def keep_busy(wire: Wire, is_over: threading.Event) -> None:
    rng = Random(4)
    began = time.monotonic()
    for step in count():
        if is_over.is_set():
            return
        at = step * STEP_SECONDS
        for queue, puts, gets, swing, period in FLOWS:
            now = math.sin(at / period * 6.283) * swing
            then = math.sin((at - 6) / period * 6.283) * swing
            for _ in range(int(max(0.0, puts + now) * STEP_SECONDS + rng.random())):
                wire.put(queue, order(step % 1000))
            for _ in range(int(max(0.0, gets + then) * STEP_SECONDS + rng.random()) if gets else 0):
                wire.get(queue)
        time.sleep(max(0.0, began + at - time.monotonic()))


def operate(server: Server, wire: Wire) -> None:
    """Give the lists of operations and of the audit log something to show."""
    operator = Operator(server.second_port)
    operator.post("/api/queues/crawl/move", {"to": "crawl-again", "count": 4000})
    operator.post("/api/queues/recent/purge", {})
    operator.post("/api/queues/imports-csv/pause", {"gets": True, "puts": False})
    operator.post("/api/queues/thumbnails/pause", {"gets": True, "puts": False})
    for number in range(ARCHIVED // ARCHIVED_AT_ONCE):
        many = [order(number * ARCHIVED_AT_ONCE + each) for each in range(ARCHIVED_AT_ONCE)]
        wire.say(b"".join(b"set archive 0 0 %d\r\n%b\r\n" % (len(each), each) for each in many))
        wire.hear(len(b"STORED\r\n") * ARCHIVED_AT_ONCE)
    cancelled = begun(operator, "/api/queues/archive/move", {"to": "archive-2025"})
    until(operator, cancelled, lambda view: view["done"] > ARCHIVED // 4)
    operator.post(f"/api/operations/{cancelled}/cancel", {})
    until(operator, cancelled, lambda view: view["ended_at_ms"] > 0)
    until(operator, begun(operator, f"/api/undo/{cancelled}", {}), lambda view: view["ended_at_ms"] > 0)
    begun(operator, "/api/queues/archive/move", {"to": "archive-2025"})  # it runs while the picture is taken


def begun(operator: Operator, path: str, body: object) -> int:
    """Begin an operation, and return its id."""
    return int(operator.ask("POST", path, body, prefer="respond-async").json["id"])


def until(operator: Operator, number: int, is_so: Callable[[dict[str, int]], bool]) -> None:
    while not is_so(operator.ask("GET", f"/api/operations/{number}").json):
        time.sleep(0.02)


def photograph(browser: Any, server: Server, wire: Wire, wanted: list[str]) -> None:
    for name, route, width, height, is_dark, click in SHOTS:
        if wanted and name not in wanted:
            continue
        if name == "page-operations":
            operate(server, wire)
        if name == "page-thousand":
            for number in range(1000):
                wire.put(f"tenant-{number:04}", order(number))
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if is_dark else "light",
            device_scale_factor=2 if width < 640 else 1,
        )
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{server.second_port}/{route}")
        page.wait_for_selector("#live:not(.wait)")
        page.wait_for_selector(".foot span")
        page.wait_for_timeout(2500)
        if click:
            page.click(click)
            page.wait_for_timeout(500)
        path = PICTURES / f"{name}.png"
        page.screenshot(path=path)
        context.close()
        Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 11
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), config=CONFIG) as server,
        Wire(server.address) as wire,
        Wire(server.address) as worker,
        Wire(server.address) as slow,
    ):
        for queue, items in FULL.items():
            for number in range(items):
                wire.put(queue, order(number))
        for number in range(14):
            (worker if number % 3 else slow).get("orders/open" if number < 9 else "emails/open")
        is_over = threading.Event()
        load = threading.Thread(target=keep_busy, args=(wire, is_over))
        load.start()
        try:
            is_over.wait(minutes * 60)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                photograph(browser, server, slow, sys.argv[2:])
                browser.close()
        finally:
            is_over.set()
            load.join()


if __name__ == "__main__":
    main()
