"""The write of a batch to the redo log as a request to the kernel (Linux AIO), for a Sync that consists of nothing
else.

A thread must get the interpreter back from a busy hub after its sync; with a hundred clients that took a dozen switches
for each sync. The kernel's own worker needs none, and signals the end through the same eventfd. io_uring would work
too, but containers often forbid it; they allow AIO.
"""

from __future__ import annotations

import ctypes
import errno
import os
from time import perf_counter_ns

from staniel.journal.disk.os_fs import LIBC, OsRegion
from staniel.journal.group_commit import Sync
from staniel.server.sync_thread import WorkerThread

IOCB_CMD_PWRITE = 1  # linux/aio_abi.h, from here on
IOCB_FLAG_RESFD = 1
EVENT_BYTES = 32
EVENT_RESULT_AT = 16
CALLS = {  # by machine: io_setup, io_destroy, io_getevents, io_submit
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
    "riscv64": (0, 1, 4, 2),
}


class Iocb(ctypes.Structure):
    """The struct iocb of a little-endian machine."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("result_fd", ctypes.c_uint32),
    )


class KernelSync:
    """A writer with at most one request at a time; the eventfd `flag` is raised when it has ended. Raises OSError if
    this kernel or machine cannot do that.
    """

    def __init__(self, flag: int) -> None:
        machine = os.uname().machine
        if machine not in CALLS:
            raise OSError(f"no AIO on {machine}")
        self._setup, self._destroy, self._get_events, self._submit = CALLS[machine]
        self._context = ctypes.c_ulong(0)
        self._request = Iocb(opcode=IOCB_CMD_PWRITE, flags=IOCB_FLAG_RESFD, result_fd=flag)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._event = ctypes.create_string_buffer(EVENT_BYTES)
        self._call(self._setup, 1, ctypes.byref(self._context))

    def start(self, region: OsRegion) -> None:
        """Start to write the staged bytes to `region`, durably. Raises OSError: then nothing has been started."""
        request = self._request
        request.fd, request.offset, request.bytes = region.direct_fd, region.staged_at, region.staged_bytes
        request.buffer = ctypes.addressof(ctypes.c_char.from_buffer(region.staged))
        self._call(self._submit, self._context, 1, self._requests)

    def result(self) -> int | None:
        """Wait for the end. Return 0, an errno, or None if the caller must write another way: some bytes are not
        written, or the device does not support it.
        """
        self._call(self._get_events, self._context, 1, 1, self._event, None)
        result = int.from_bytes(self._event.raw[EVENT_RESULT_AT : EVENT_RESULT_AT + 8], "little", signed=True)
        if result == self._request.bytes:
            return 0
        return None if result >= 0 or result == -errno.EINVAL else -result

    def close(self) -> None:
        self._call(self._destroy, self._context)

    @staticmethod
    def _call(number: int, *arguments: object) -> None:
        while LIBC.syscall(ctypes.c_long(number), *arguments) < 0:
            error = ctypes.get_errno()
            if error != errno.EINTR:
                raise OSError(error, os.strerror(error))


class SyncWorker(WorkerThread[Sync]):
    """A runner of syncs: the kernel runs one of the redo log alone, the thread all others."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.is_cheap = True
        self._region: OsRegion | None = None  # the one that the kernel is writing to
        self._task: Sync | None = None
        self._error: BaseException | None = None
        self._began_ns = 0
        self._kernel: KernelSync | None = None
        try:
            self._kernel = KernelSync(self.fd)
        except OSError:
            self.is_cheap = False

    def start(self, task: Sync) -> None:
        redo, region = task.redo, None
        if redo is not None and not (task.unstaged or task.pieces or task.folder or task.files):
            region = redo.region_to_sync()  # there is nothing else to do
        if self._kernel is None or not isinstance(region, OsRegion) or region.direct_fd < 0:
            super().start(task)
            return
        try:
            self._kernel.start(region)
        except OSError:  # the kernel cannot do it, or has too many requests
            self._kernel = None
            self.is_cheap = False
            super().start(task)
            return
        self._region, self._task, self._began_ns = region, task, perf_counter_ns()

    def finished(self) -> Sync | None:
        if self._task is None:
            return super().finished()
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return None
        self._end()
        task, error = self._task, self._error
        self._task = self._error = None
        if error is not None:
            raise error
        return task

    def join(self) -> None:
        super().join()
        if self._task is not None:
            self._end()

    def wait_for_task(self) -> None:
        if self._task is not None:
            self.join()
        else:
            super().wait_for_task()

    def _end(self) -> None:
        """Finish the task after the kernel has written the batch."""
        if self._region is None:
            return
        assert self._kernel is not None and self._task is not None
        self._region.flushed = self._kernel.result()
        self._region = None
        self.took_ns = perf_counter_ns() - self._began_ns
        try:
            self._task.run()
        except BaseException as wrong:  # as in the thread: `finished` raises it
            self._error = wrong

    def close(self) -> None:
        super().close()
        if self._kernel is not None:
            self._kernel.close()
