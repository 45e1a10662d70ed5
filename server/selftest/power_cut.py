"""The power-cut test, in two steps. The first puts numbers, and prints each when it is acknowledged, until the plug is
pulled; the second verifies the folder. Only this test shows whether a disk lies about its cache. diskchecker.pl works
the same way.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable

from staniel.server.selftest.child import Child
from staniel.server.selftest.crashes import item_for, number_of
from staniel.server.selftest.findings import CheckResult, fail, ok, warning

FOLDER = "staniel-power-cut"
QUEUE = "numbers"
PIPELINE = 8
PAUSE_S = 0.01  # 800 items of 200 bytes a second: ten minutes are 100 MB
CONFIG = """
[server]
spool = "spool"
trust_file_system = true

[admin]
socket = false

[memcache]
port = 0

[default]
sync_journal = "always"
"""
SEE = "compare it with the last number on the terminal of --write, or give that with --acknowledged"


def write(folder: str, on_acknowledged: Callable[[int], None], is_over: Callable[[], bool]) -> None:
    """Put numbers from 1 on until the machine loses power or `is_over`, and call `on_acknowledged` with the highest
    acknowledged one. Raises ChildFailed, OSError.
    """
    place = f"{folder}/{FOLDER}"
    shutil.rmtree(place, ignore_errors=True)
    child = Child(place, CONFIG)
    child.start()
    try:
        client, number = child.client(), 0
        while not is_over():
            items = [item_for(number + at) for at in range(1, PIPELINE + 1)]
            client.send(b"".join(b"set %b 0 0 %d\r\n%b\r\n" % (QUEUE.encode(), len(item), item) for item in items))
            for _ in items:
                if (answer := client.line()) != b"STORED":
                    raise OSError(f"the server answers {answer.decode(errors='replace')!r}: {child.said()[-300:]}")
                number += 1
            on_acknowledged(number)
            time.sleep(PAUSE_S)
        client.close()
    finally:
        child.stop()


def verify(folder: str, acknowledged: int | None) -> CheckResult:
    """Verify the numbers after the power cut. Nothing is removed, so the check can be repeated. Raises ChildFailed,
    OSError.
    """
    place = f"{folder}/{FOLDER}"
    if not os.path.isdir(f"{place}/spool"):
        raise OSError(f"{place} is not there: begin with --write")
    copy = f"{place}/copy"
    shutil.rmtree(copy, ignore_errors=True)
    child = Child(copy, CONFIG)
    shutil.copytree(f"{place}/spool", f"{copy}/spool", ignore=shutil.ignore_patterns("ballast"))
    child.start()
    try:
        client = child.client()
        numbers = [number_of(item) for item in client.drain(QUEUE)]
        client.close()
    finally:
        child.kill()
        shutil.rmtree(copy, ignore_errors=True)
    return judged(numbers, acknowledged)


def judged(numbers: list[int], acknowledged: int | None) -> CheckResult:
    """Judge the numbers found, in their order, with -1 for an item that was never put."""
    last = len(numbers)
    if not (last or acknowledged):
        return warning("power cut", "nothing is there: no number was acknowledged", "begin again with --write")
    if numbers != list(range(1, last + 1)):
        wrong = next(at for at, number in enumerate(numbers, 1) if number != at)
        text = f"{last:,} numbers are there, and in the place of {wrong:,} something else"
        return fail("power cut", text, "this disk or file system damages what it was told to keep: do not use it")
    if acknowledged is None:
        return ok("power cut", f"the numbers 1 to {last:,} are there, none is missing between them: {SEE}")
    if last < acknowledged:
        text = f"{acknowledged - last:,} numbers that were acknowledged are missing: {last + 1:,} to {acknowledged:,}"
        advice = (
            "the disk, its controller or the hypervisor lies about its cache: switch the cache off, or do not use it"
        )
        return fail("power cut", text, advice, breaks_syncs=True)
    return ok("power cut", f"every number up to {acknowledged:,} that was acknowledged is there")
