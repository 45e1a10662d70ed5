"""Takes docs/pictures/flower-tasks.png: python -m tests.client.kombu.flower_picture

It runs a server, a Celery worker and Flower on it, and photographs Flower's list of tasks with chromium. Flower is not
among the development dependencies: `pip install flower` first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from tests.support.process import running, until
from tests.support.transcripts import free_port

PICTURE = Path(__file__).resolve().parents[3] / "docs" / "pictures" / "flower-tasks.png"
TASKS = """
import time
from celery import Celery
import staniel.kombu

app = Celery("tasks", broker="staniel://BROKER", backend="rpc://")
app.conf.update(task_acks_late=True, worker_send_task_events=True, task_send_sent_event=True)


@app.task
def resize(name):
    if name == "photo-3.png":
        raise ValueError("not a picture")
    time.sleep(600 if name == "photo-7.png" else 0.05)
    return f"small-{name}"
"""
SEND = "import tasks\nfor number in range(8): tasks.resize.delay(f'photo-{number}.png')"
CHROMIUM = ("chromium", "--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1280,640")


def take(folder: Path) -> None:
    """Take the picture."""
    flower = free_port()
    (folder / "server").mkdir()
    with running(folder / "server") as server, ExitStack() as stack, (folder / "log").open("wb") as log:
        (folder / "tasks.py").write_text(TASKS.replace("BROKER", f"127.0.0.1:{server.port}"))
        celery = [sys.executable, "-m", "celery", "-A", "tasks"]
        for command in (
            [*celery, "worker", "-P", "threads", "-c", "2", "-n", "photos@worker-1", "-E"],
            [*celery, "flower", f"--port={flower}", "--address=127.0.0.1"],
        ):
            child = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
            stack.callback(child.wait)
            stack.callback(child.kill)
        if not until(lambda: _has_heard_of(flower, "photos@worker-1"), 60):
            raise SystemExit(f"Flower does not show the worker: {(folder / 'log').read_text()}")
        subprocess.run([sys.executable, "-c", SEND], cwd=folder, check=True, env=dict(os.environ))
        time.sleep(3)  # the tasks run, and Flower hears of them
        options = ["--virtual-time-budget=6000", f"--screenshot={PICTURE}", f"http://127.0.0.1:{flower}/tasks"]
        subprocess.run([*CHROMIUM, *options], check=True, stdout=log, stderr=log, timeout=60)


def _has_heard_of(flower: int, worker: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{flower}/workers?json=1", timeout=5) as page:
            return worker.encode() in page.read()
    except OSError:
        return False


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as found:
        take(Path(found))
