"""Broken rules of the redo log."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from staniel.journal.group_commit import GroupCommit
from staniel.journal.redo import replay
from staniel.journal.redo.log import RedoLog, RetireSegment
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced, unlisted

__all__ = ["MUTANTS"]


@mutant("an answer does not wait for the sync of the redo log", "redo")
def log_is_not_synced() -> Any:
    def make(right: Any) -> Any:
        def sync(self: RedoLog) -> None:
            for segment in self._unsynced:
                region: Any = segment.region
                for at, data in region._staged:
                    region.write_at(at, data)
                region._staged.clear()
            self._unsynced.clear()

        return sync

    return replaced(RedoLog, "_sync", make)


@mutant("a name is used again while the redo log has bytes for it", "redo")
def name_is_not_freed() -> Any:
    def make(right: Any) -> Any:
        def free_name(self: RedoLog, path: str) -> None:
            self._release(path)

        return free_name

    return replaced(RedoLog, "free_name", make)


@mutant("a segment of the redo log counts as safe before the files are synced", "redo")
def segment_is_not_safe() -> Any:
    def make(right: Any) -> Any:
        def work(self: RetireSegment) -> None:
            self.sizes = [(binding, binding.written_bytes()) for binding in list(self.log.bindings.values())]

        return work

    return replaced(RetireSegment, "work", make)


@mutant("a file that is complete stays in the redo log as it was", "redo")
@unlisted
def complete_is_not_told() -> Any:
    def make(right: Any) -> Any:
        def complete(self: RedoLog, file: Any) -> None:
            """Do nothing."""

        return complete

    return replaced(RedoLog, "complete", make)


@mutant("a file counts as synced before the redo log has its checksums", "checksums")
def checksums_are_late() -> Any:
    def make(right: Any) -> Any:
        def pieces(self: GroupCommit, files: Any) -> Any:
            return []

        return pieces

    return replaced(GroupCommit, "_pieces", make)


@mutant("the redo log is not told what was synced before it knew the file", "checksums-faults")
def safe_bytes_are_not_noted() -> Any:
    def make(right: Any) -> Any:
        def log_safe_bytes(self: RedoLog, binding: Any) -> bool:
            binding.noted_bytes = max(binding.noted_bytes, binding.known_safe_bytes())
            return False

        return log_safe_bytes

    return replaced(RedoLog, "_log_safe_bytes", make)


@mutant("a start believes what the redo log has a wrong checksum of", "checksums")
def checksums_are_not_compared() -> Any:
    return replaced(replay, "_is_whole", lambda right: lambda fs, path, record: True)


def _numbers_of(bits: int) -> Any:
    """Let recovery read the numbers of batches as signed numbers of `bits` bits."""

    def make(right: Any) -> Any:
        def decode(data: Any) -> Any:
            head, half = right(data), 1 << (bits - 1)
            return head and structs.replace(head, number=(head.number + half) % (2 * half) - half)

        return decode

    return replaced(replay, "decode_head", make)


@mutant("a start reads the numbers of the redo log's batches as 32 bits with a sign", "redo-last-batches")
def numbers_of_32_bits() -> Any:
    return _numbers_of(32)


@mutant("a start reads the numbers of the redo log's batches as 64 bits with a sign", "redo-last-batches")
def numbers_of_64_bits() -> Any:
    return _numbers_of(64)


@mutant("what was synced in a close is not told to the redo log before the answer", "few-files")
def pending_is_late() -> Any:
    def make(right: Any) -> Any:
        def start_sync(self: GroupCommit, now_ms: int) -> Any:
            self.redo.has_pending = False
            return right(self, now_ms)

        return start_sync

    return replaced(GroupCommit, "start_sync", make)
