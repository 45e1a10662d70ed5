"""The checks of the folder's file system, of its syncs and abilities, and of the machine's resources for a server."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median

from staniel.broker.config.load import defaults
from staniel.journal.disk.ballast import BALLAST_BYTES_MAX, ROOM_FACTOR, reserve_bytes
from staniel.journal.disk.fs import SyncFailed
from staniel.journal.disk.os_fs import ALIGNED_BYTES, OsFs
from staniel.server.file_systems import flaws
from staniel.server.selftest.findings import CheckResult, Verdict, fail, ok, warning
from staniel.server.text import human_size

# An SSD with capacitors needs 20 us and more for a flush that means something, others 0.1 ms to 1 ms.
SUSPICIOUS_SYNC_MS = 0.015
SLOW_SYNC_MS = 20.0
SYNC_FILE_BYTES_MAX = 8 << 20  # begun anew then, so that a long test does not fill the disk
CRASH_BYTES_MIN = 4 * BALLAST_BYTES_MAX  # for the servers of crashes.py: reserves, journals and a copy
CRASH_FILES_MIN = 200
FULL = (errno.ENOSPC, errno.EDQUOT)
ROOM = "make room on this disk (see df and df -i), then run it again"
FILES_MIN = 4096  # a quarter for journals, the rest for clients
CLOCK_SKEW_S_MAX = 2.0
EARLIEST_S = 1_767_225_600  # 2026-01-01
MEMORY_BYTES_MIN = 128 << 20
PLUG = "only a power cut can tell: staniel selftest DIR --write, pull the plug, then --verify"


def run_checks(folder: str, seconds: float, environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """Run every check of this file in `folder`, which the caller removes afterwards. On a full disk the checks that
    write are left out. Raises OSError: the disk was filled meanwhile, or fails.
    """
    fs = OsFs()
    try:
        yield _file_system(folder, fs, environment)
        yield (space := _space(folder, fs))
        if space.verdict is not Verdict.FAIL:
            yield from _syncs(folder, fs, seconds)
            yield _abilities(folder, fs)
        yield _descriptors()
        yield _memory(fs)
        yield _clock(folder)
    finally:
        fs.close()


def no_room(error: OSError) -> CheckResult:
    """Report that the disk, or the user's quota, is so full that no file can be made on it."""
    return fail("space", f"nothing more can be written: {error.strerror}", ROOM)


def has_room_for_crashes(folder: str) -> bool:
    """Return True if the servers of crashes.py have room. Raises OSError."""
    status = os.statvfs(folder)
    has_inodes = not status.f_files or status.f_favail >= CRASH_FILES_MIN  # some file systems do not count them
    return has_inodes and status.f_bavail * status.f_frsize >= CRASH_BYTES_MIN


def _file_system(folder: str, fs: OsFs, environment: Mapping[str, str]) -> CheckResult:
    mount = fs.mount_of(folder)
    named = f"{mount.kind} at {mount.place}" if mount is not None else "the system does not tell which"
    config = defaults(folder)
    for flaw in flaws(config.overridden(spool=folder), fs, environment).values():
        advice = "take a folder on a local disk, mounted as usual; docs/durability.md, File systems"
        if flaw.breaks:
            return fail("file system", f"{flaw.text}: it breaks the promise of a sync", advice, breaks_syncs=True)
        return warning("file system", flaw.text, advice, breaks_syncs=True)
    options = ",".join(sorted(mount.options)) if mount is not None else ""
    return ok("file system", f"{named} ({options}): nothing is known against it")


def _space(folder: str, fs: OsFs) -> CheckResult:
    free, total = fs.free_bytes(folder)
    text = f"{human_size(free)} of {human_size(total)} are free"
    reserve = reserve_bytes(total)
    if free < ROOM_FACTOR * reserve:
        held = f"a server keeps {human_size(reserve)} in reserve, needs as much again, and refuses puts until it has"
        return fail("space", f"{text}: {held}", ROOM)
    if free < total // 50:
        return warning("space", f"{text}: a server warns below 2 %", "make room before puts are refused")
    return ok("space", text)


def _time_calls(work: Callable[[], object], seconds: float) -> list[float]:
    """Return the duration of each of some calls, at least eight, sorted."""
    until_s, times_ms = time.monotonic() + seconds, list[float]()
    while len(times_ms) < 8 or time.monotonic() < until_s:
        began_ns = time.perf_counter_ns()
        work()
        times_ms.append((time.perf_counter_ns() - began_ns) / 1e6)
    return sorted(times_ms)


def _syncs(folder: str, fs: OsFs, seconds: float) -> Iterator[CheckResult]:
    path = f"{folder}/sync"
    block, file = bytes(ALIGNED_BYTES), fs.append(path)

    def write() -> None:
        if file.size >= SYNC_FILE_BYTES_MAX:
            fs.truncate(path, 0)
            file.size = 0
        file.write(block)

    def append() -> None:
        write()
        file.sync()

    def touch() -> None:
        write()
        fs.sync_all(folder)

    try:
        sync_ms = _time_calls(append, seconds / 10)
        sync_all_ms = _time_calls(touch, seconds / 20)
    except SyncFailed as error:
        advice = "look at the disk and at dmesg: nothing can be promised here"
        yield fail("sync", f"a sync fails: {error.strerror}", advice, breaks_syncs=True)
        return
    finally:
        file.close()
    yield _judge_sync(sync_ms)
    text = (
        f"syncfs takes {median(sync_all_ms):.3g} ms; it also writes what other programs have left to write on this disk"
    )
    yield ok("sync of all", text)
    fd = _open_through(path)
    if fd >= 0:
        page = mmap.mmap(-1, ALIGNED_BYTES)
        through = _time_calls(lambda: os.pwrite(fd, page, 0), seconds / 20)
        os.close(fd)
        yield ok("past the cache", f"a write past the page cache (O_DIRECT, O_DSYNC) takes {median(through):.3g} ms")


def _judge_sync(took_ms: list[float]) -> CheckResult:
    typical, worst = median(took_ms), took_ms[len(took_ms) * 99 // 100]
    text = f"fdatasync takes {typical:.3g} ms (one in a hundred {worst:.3g} ms)"
    if typical < SUSPICIOUS_SYNC_MS:
        return warning("sync", f"{text}: no disk is so fast. It is memory, or a cache that may lie", PLUG)
    if typical > SLOW_SYNC_MS:
        rate = f"{1000 / typical:.0f} durable answers a second for a client that waits for each"
        advice = 'let clients pipeline, or give queues that may lose a moment sync_journal = "50ms"'
        return warning("sync", f"{text}: {rate}", advice)
    return ok("sync", f"{text}: {1000 / typical:,.0f} durable answers a second for a client that waits for each")


def _open_through(path: str) -> int:
    """Open a file for writing past the page cache; return -1 if the file system does not support it."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT | os.O_DSYNC)
    except OSError:
        return -1


def _abilities(folder: str, fs: OsFs) -> CheckResult:
    """Check what packs, backups, the reserve and the redo log need of a file system."""
    path, missing, hard = f"{folder}/able", list[str](), list[str]()
    try:
        fs.allocate(path, 1 << 20)
    except OSError:
        missing.append("allocating space (the reserve for a full disk is weaker)")
        fs.append(path).close()
    steps: tuple[tuple[str, Callable[[], object], bool], ...] = (
        ("hard links (backups of a running server)", lambda: fs.link(path, f"{path}.link"), False),
        ("renaming", lambda: fs.rename(path, f"{path}.renamed"), True),
        ("syncing a folder", lambda: fs.sync_folder(folder), True),
        ("locks", lambda: fs.lock(f"{folder}/lock"), True),
        ("telling A from a", lambda: _tells_letters_apart(folder), True),
        ("room behind a file's end", lambda: fs.set_aside(f"{path}.aside", 4096), False),
    )
    for what, work, is_needed in steps:
        try:
            work()
        except (OSError, ctypes.ArgumentError):
            (hard if is_needed else missing).append(what)
    if _open_through(f"{path}.renamed") < 0:
        missing.append("writing past the page cache (the redo log takes longer)")
    if hard:
        advice = "take another file system: ext4 or xfs"
        return fail("abilities", f"this file system cannot do what a spool needs: {', '.join(hard)}", advice)
    if missing:
        return warning("abilities", f"this file system lacks {', '.join(missing)}", "ext4 and xfs have all of it")
    return ok("abilities", "links, renames, locks, allocation and writes past the page cache work")


def _tells_letters_apart(folder: str) -> None:
    open(f"{folder}/case", "wb").close()
    if os.path.exists(f"{folder}/CASE"):
        raise OSError("a and A are one name")


def _descriptors() -> CheckResult:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        text = f"a server may open {hard} files: a quarter for journals, 64 for itself, the rest for clients"
        return warning("open files", text, "raise the hard limit: ulimit -Hn, LimitNOFILE= of the unit")
    return ok("open files", f"a server may open {hard if hard != resource.RLIM_INFINITY else 'any number of'} files")


def _memory(fs: OsFs) -> CheckResult:
    has = fs.memory_bytes()
    text = f"{human_size(has)} of memory; queues may take half of it unless max_memory_size_total says otherwise"
    if has < MEMORY_BYTES_MIN:
        return warning("memory", text, "a server takes 35 MB without items; give it more")
    return ok("memory", text)


def _clock(folder: str) -> CheckResult:
    path = f"{folder}/clock"
    open(path, "wb").close()
    now_s = time.time()
    apart_s = abs(os.stat(path).st_mtime - now_s)
    if now_s < EARLIEST_S:
        return warning("clock", "it is years behind, so items expire at the wrong time", "set it: run an NTP client")
    if apart_s > CLOCK_SKEW_S_MAX:
        text = f"the file system's clock and the machine's are {apart_s:.0f} s apart: it belongs to another machine"
        return warning("clock", text, "take a folder on a local disk")
    return ok("clock", "the machine's clock is plausible, and the file system's is the same")
