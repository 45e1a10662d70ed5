"""The kernel's limits of this process's memory: those of its control groups, if they are below the machine's.
memory.high (systemd's MemoryHigh) counts like memory.max: above it the kernel throttles the process. Pure; sources:
cgroups(7), the kernel's cgroup-v2 and cgroup-v1/memory documents.
"""

from __future__ import annotations

ROOT = "/sys/fs/cgroup"


def limit_files(cgroup: str) -> list[str]:
    """Return the files that may hold a limit, from the text of /proc/self/cgroup: of its groups and of all above them.
    In a container the names may be those of the host, and the container's own group is the root that it sees.
    """
    paths: list[str] = []
    names: tuple[str, ...]
    for line in cgroup.splitlines():
        number, _, controllers_and_path = line.partition(":")
        controllers, _, path = controllers_and_path.partition(":")
        if number == "0" and not controllers:
            folder, names = ROOT, ("memory.max", "memory.high")
        elif "memory" in controllers.split(","):
            folder, names = f"{ROOT}/memory", ("memory.limit_in_bytes",)
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        paths += ["/".join([folder, *parts[:count], name]) for count in range(len(parts), -1, -1) for name in names]
    return paths


def limit_in(text: str) -> int | None:
    """Parse a limit, in bytes; None: no limit, or no such file's text. 0 is what a kernel or runtime without the
    accounting shows.
    """
    word = text.strip()
    return int(word) or None if word.isdecimal() else None
