"""A real file system of some megabytes, created for one run and always removed with it.

It is mounted in a namespace that a sleeping process keeps alive; servers enter it, others reach it through /proc. A
tmpfs needs root, or a system that lets users create namespaces; ext4, in a file of its own, needs root and a loop
device.
"""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from staniel.bench.harness.process import child_setup

START_SECONDS_MAX = 30.0
WAYS = (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"])
TMPFS = 'mount -t tmpfs -o size="$1",mode=777 none "$2" && echo mounted && exec sleep infinity'
EXT4 = (
    'truncate -s "$1" "$2.image" && mkfs.ext4 -q -m 0 "$2.image" && mount -o loop "$2.image" "$2" && rm "$2.image" '
    "&& echo mounted && exec sleep infinity"
)
STEP_BYTES = 1 << 20


class CannotMount(Exception):
    """The error when no file system can be created here: this is not root, and users may not create namespaces."""


class SmallDisk:
    """A small file system. `folder` is its path for a server started with `wrapper`; `view` is the same folder
    for others.
    """

    def __init__(self, folder: Path, keeper: subprocess.Popen[bytes], way: list[str]) -> None:
        self.folder = folder
        self.view = Path(f"/proc/{keeper.pid}/root{folder}")
        user = ["--user", "--preserve-credentials"] if "--map-root-user" in way else []
        self.wrapper = ("nsenter", f"--target={keeper.pid}", "--mount", *user, "--")

    @property
    def filler(self) -> Path:
        return self.view / "filler"

    def free_bytes(self) -> int:
        numbers = os.statvfs(self.view)
        return numbers.f_bavail * numbers.f_frsize

    def fill(self, leave_bytes: int) -> None:
        """Take all space except `leave_bytes`.

        It takes steps, because a failed allocation occupies everything before it fails. It takes no more than was free
        at first, because a server may release its reserve meanwhile.
        """
        rest_bytes = self.free_bytes() - leave_bytes
        with self.filler.open("ab") as file:
            while rest_bytes > 0:
                step_bytes = max(1, min(STEP_BYTES, rest_bytes // 2))
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), step_bytes)
                except OSError:  # the server was quicker
                    return
                rest_bytes -= step_bytes

    def clear(self) -> None:
        """Give the taken space back."""
        self.filler.unlink()


@contextmanager
def small_disk(folder: Path, size_bytes: int, script: str = TMPFS) -> Iterator[SmallDisk]:
    """Yield an empty file system of that size at `folder`, which is made. Raises CannotMount."""
    folder.mkdir()
    why = []
    for way in WAYS:
        command = [*way, "sh", "-c", script, "sh", str(size_bytes), str(folder)]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=child_setup(None),
        ) as keeper:  # fmt: skip
            try:
                if _heard(keeper) == b"mounted\n":
                    yield SmallDisk(folder, keeper, way)
                    return
            finally:
                keeper.kill()
            assert keeper.stderr is not None
            why.append(keeper.stderr.read().decode().strip())
    raise CannotMount(f"no small file system can be made here, as root or in a namespace of one's own: {why}")


def _heard(keeper: subprocess.Popen[bytes]) -> bytes:
    assert keeper.stdout is not None
    poller = select.poll()
    poller.register(keeper.stdout, select.POLLIN)
    return keeper.stdout.readline() if poller.poll(START_SECONDS_MAX * 1000) else b""
