"""The number of forks between the first process and this one. Before each request a client checks whether it is still
in the process that has connected; `os.getpid` would be a system call.
"""

from __future__ import annotations

import os


class _Forks:
    """A number that differs between a process and the one that has forked it."""

    count = 0


def _count_fork() -> None:
    _Forks.count += 1


os.register_at_fork(after_in_child=_count_fork)
FORKS = _Forks
