"""The memory that a control group leaves a process."""

from __future__ import annotations

import os

from staniel.journal.disk.memory_limit import limit_files, limit_in
from staniel.journal.disk.os_fs import OsFs


def test_groups_of_the_second_kind_and_all_above_them_may_have_limits() -> None:
    assert limit_files("0::/system.slice/staniel.service\n") == [
        "/sys/fs/cgroup/system.slice/staniel.service/memory.max",
        "/sys/fs/cgroup/system.slice/staniel.service/memory.high",
        "/sys/fs/cgroup/system.slice/memory.max",
        "/sys/fs/cgroup/system.slice/memory.high",
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory.high",
    ]


def test_groups_of_the_first_kind_are_those_of_the_memory_controller() -> None:
    assert limit_files("5:cpu,cpuacct:/a\n4:memory:/docker/9f\n1:name=systemd:/a\n") == [
        "/sys/fs/cgroup/memory/docker/9f/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",  # all that a container sees
    ]


def test_both_kinds_at_once_and_names_of_other_namespaces() -> None:
    assert limit_files("4:memory:/\n0::/../other\n") == [
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/other/memory.max",
        "/sys/fs/cgroup/other/memory.high",
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory.high",
    ]
    assert limit_files("") == limit_files("nonsense\n") == []


def test_a_limit_is_a_number_of_bytes() -> None:
    assert limit_in("536870912\n") == 536_870_912
    assert limit_in("max\n") is limit_in("") is limit_in("-1\n") is None


def test_a_limit_of_0_is_that_of_a_kernel_without_the_accounting() -> None:
    assert limit_in("0\n") is None


def test_this_machine_has_no_more_than_its_pages() -> None:
    assert 0 < OsFs().memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
