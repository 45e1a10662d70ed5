"""Kills a process at a step of a drain or of the sink, in whatever process of Spark's that step is done.

Python loads this by its name in every process that has this folder on its path. The file that `STANIEL_KILL` names says
`STEP VICTIM`; who does that step first takes the file away and kills. Without it nothing happens.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any


def victim(who: str) -> int:
    if who == "driver":
        return int(os.environ["STANIEL_DRIVER"])
    if who == "server":
        return int(Path(os.environ["STANIEL_SERVER"]).read_text())
    process = os.getpid()
    while who == "java" and "java" not in Path(f"/proc/{process}/comm").read_text():
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process


def at(step: str) -> None:
    control = Path(os.environ["STANIEL_KILL"])
    try:
        wanted, who = control.read_text().split()
    except (FileNotFoundError, ValueError):
        return
    if wanted == step:
        with contextlib.suppress(FileNotFoundError):
            control.unlink()
            control.with_suffix(".done").write_text(step)
            os.kill(victim(who), signal.SIGKILL)


def around(kind: Any, name: str, before: str, after: str = "") -> None:
    whole = getattr(kind, name)

    def watched(*args: Any, **options: Any) -> Any:
        at(before)
        found = whole(*args, **options)
        if after:
            at(after)
        return found

    setattr(kind, name, watched)


def observe(drain: Any) -> None:
    make = drain.__init__

    def made(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self.after = lambda step: at(f"drain.{step.value}")

    drain.__init__ = made


def watch() -> None:
    from staniel.pipeline.sources import drain, job_drain, sink
    from staniel.pipeline.sources import live as live_source

    for kind in (drain.Drain, job_drain.JobDrain):
        observe(kind)
    around(live_source.LiveStream, "partitions", "drain.plan")
    around(live_source.LiveStream, "read", "drain.read")
    around(live_source.LiveStream, "commit", "drain.forget", "drain.forgotten")
    around(sink.WindowWriter, "_try", "sink.put")
    around(sink.RepeatGuard, "note_stored", "sink.stored", "sink.noted")
    around(sink.StreamSink, "commit", "sink.commit", "sink.committed")
    around(sink.BatchSink, "commit", "sink.commit", "sink.committed")


if "STANIEL_KILL" in os.environ:
    watch()
