"""A member's files: a follower's spool, the copy that is being made of a leader's, the tail that is kept aside."""

from __future__ import annotations

from staniel.cluster.compare import BadPlan
from staniel.cluster.durable import Appended, Fitness, Kept, encode_entry
from staniel.cluster.follower_spool import (
    Applied,
    FollowerSpool,
    SpoolDiffers,
    forget_place,
    has_place,
    store_first_place,
)
from staniel.cluster.places import Place
from staniel.cluster.spool_changes import BadRecord
from staniel.cluster.spool_names import SpoolPaths
from staniel.cluster.stream import Record, RecordKind
from staniel.journal.disk.fs import Fs
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.disk.unsynced_names import UnsyncedNames
from staniel.journal.kept_files import end_holds
from staniel.server.cluster.copying import CopyTarget, SpoolSums, drop_cache
from staniel.server.cluster.member_file import is_ahead

APPLIED_BYTES_MAX = 8 << 20
"""Bytes of records after which a follower's files are synced, so that the records need not be kept."""

WITH_ITEMS = Place(0, 1)
"""The place of a spool with items, of which no record says anything."""

HOLDS_ENDED = "another member led the cluster meanwhile, and files were removed here that it had not passed"

UNFIT = (SpoolDiffers, BadRecord, BadPlan)
"""Errors that say that the spool is not what its leader says. It must be copied anew."""


class MemberSpool:
    """The files of a member that does not lead. Once they are open, a thread calls `apply` and what is between it and
    `keep_tail`. Methods raise OSError, JournalFailure, and those of UNFIT.
    """

    def __init__(self, fs: Fs, paths: SpoolPaths, kept: Kept) -> None:
        self._fs = fs
        self._paths = paths
        self._kept = kept
        self._followed: FollowerSpool | None = None
        self._copy: CopyTarget | None = None
        self._sums: SpoolSums | None = None
        self._is_own = False
        """True if the files are not a follower's: this member led, or had them before there was a cluster."""
        self._unsynced_bytes = 0
        self._has_ended_holds = False

    @property
    def has_items(self) -> bool:
        """True if the files have anything that a leader's would replace."""
        return bool(self._paths.replicated_files(self._fs))

    def open(self) -> None:
        """Open the files where the last run has left them, if they are a follower's."""
        kept = self._kept
        if kept.fitness is Fitness.HALF:
            return
        if has_led(self._fs, self._paths, kept) or (not kept.cluster_id and self.has_items):
            self._is_own = True
            return
        self._followed = followed = FollowerSpool(self._fs, self._paths, kept.stream.last.number)
        if followed.has_begun_names:  # a copy, which would make nothing of names that are not seen, must find them done
            self.apply(list(kept.stream.behind(followed.last.number))[:1])

    def apply(self, records: list[Record]) -> None:
        """Apply records, but for those that the files have."""
        spool = self._followed
        if spool is None:
            if self._copy is None or not self._copy.is_complete:
                raise SpoolDiffers(f"the files of {self._paths.folder} are not a follower's")
            spool = self._followed = FollowerSpool(self._fs, self._paths)
            self._copy = None
        for record in records:
            if record.place.number <= spool.last.number:
                continue
            if changes := changes_of(record):
                self._end_holds()
            if (result := spool.apply(record.place, changes)) is not Applied.APPLIED:
                raise SpoolDiffers(f"record {record.place.number} behind {spool.last.number}: {result.value}")
            self._unsynced_bytes += len(record.data)
        if self._unsynced_bytes > APPLIED_BYTES_MAX:
            self.sync()

    def sync(self) -> int:
        """Make what is applied durable in files. Return the number up to which that is so."""
        if self._followed is None:
            return 0
        self._unsynced_bytes = 0
        return self._followed.sync().number

    def begin_copy(self) -> None:
        """Begin to take the files of a leader: pieces follow."""
        if self._followed is not None:
            self._followed.close()
        self._followed = self._sums = None
        self._is_own = False
        self._end_holds()
        self._copy = CopyTarget(self._fs, self._paths, drop_cache)

    def _end_holds(self) -> None:
        """Drop the retention holds of a time when this member led: the files are those of another leader now."""
        if not self._has_ended_holds:
            end_holds(self._fs, self._paths.folder, self._paths.jobs_outside, HOLDS_ENDED)
            self._has_ended_holds = True

    def write_piece(self, data: bytes) -> None:
        """Take a piece of a copy."""
        if self._copy is None:
            self.begin_copy()
        assert self._copy is not None
        self._copy.write(data)

    def sum_files(self, *, is_first: bool) -> tuple[bytes, bool]:
        """Return the next piece of what a leader must know of the files, and whether it is the last."""
        if self._sums is None or is_first:
            self._sums = SpoolSums(self._fs, self._paths, drop_cache)
        return self._sums.next_piece()

    def keep_tail(self, behind: int) -> None:
        """Keep the records behind this number in `damaged/`, before the files lose their effect."""
        records = list(self._kept.stream.behind(behind))
        if not records:
            return
        folder, place = f"{self._paths.own}/damaged", records[0].place
        self._fs.make_folder(folder)
        entries = [Appended(record.place.epoch, record.place.number, record.kind, record.data) for record in records]
        data = b"".join([encode_entry(entry) for entry in entries])
        replace_file(self._fs, f"{folder}/tail.{place.epoch}.{place.number}", data)

    def become_leaders(self, records: list[Record]) -> None:
        """Apply the last records, and leave the files to a leader. Files with which the member has led have them."""
        if not self._is_own:
            self.apply(records)
        if self._followed is not None:
            self._followed.close()
            self._followed = None
        self.forget_place()

    def forget_place(self) -> None:
        """Forget the place of the files: from here on they change without it."""
        forget_place(self._fs, self._paths)

    def store_place(self, place: Place) -> None:
        """Store the place of files that a leader has left synced."""
        store_first_place(UnsyncedNames(self._fs), self._paths, place)

    def close(self) -> None:
        """Leave the files synced."""
        if self._followed is not None:
            self._followed.close()
            self._followed = None


def has_led(fs: Fs, paths: SpoolPaths, kept: Kept) -> bool:
    """Tell whether the files are those of a leader that did not end cleanly. Until it forgets their place, they are a
    follower's, and the records of its log are applied to them. A member that has made the cluster with its items, and
    ended before it noted that it leads, has no record.
    """
    has_begun = kept.stream.last == WITH_ITEMS
    return (is_ahead(kept) or has_begun) and not has_place(fs, paths)


def changes_of(record: Record) -> bytes:
    """Return the changes in a record; b"" if it has none."""
    return record.data if record.kind in (RecordKind.CHANGE, RecordKind.PUT) else b""
