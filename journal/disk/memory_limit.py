"""The kernel's limits of this process's memory: those of its control groups, if they are below the machine's memory.
memory.high (systemd's MemoryHigh) counts like memory.max, because the kernel throttles a process above it. The
functions are pure. Sources: cgroups(7), the kernel's cgroup-v2 and cgroup-v1/memory documents.
"""

from __future__ import annotations

ROOT = "/sys/fs/cgroup"


def limit_files(cgroup: str) -> list[str]:
    """Return the files that may have a limit, for the groups in the text of /proc/self/cgroup and for all of their
    parents. In a container the names may be those of the host, and the root that it sees is the container's own group.
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
    """Parse a limit, in bytes. Return None if there is no limit, or the text is not that of such a file. Kernels and
    runtimes without the accounting show 0.
    """
    word = text.strip()
    return int(word) or None if word.isdecimal() else None
