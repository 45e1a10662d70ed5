"""The removal of the beginning of a segment, which all readers have read, when the disk is full.

Normally a segment stays as it is until all of it has been read. The rest of a segment, from the first item that a
reader needs, is written in the background to a temporary file, which then takes the segment's name. A crash leaves one
of the two files, and both have everything that is needed. Recovery skips missing ids.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.journal.background import CallbackTask
from staniel.journal.disk.fs import Fs
from staniel.journal.disk.replace_file import create_empty, discard
from staniel.journal.libkestrel.records import SEGMENT_MAGIC
from staniel.journal.libkestrel.segments import SegmentCut

PIECE_BYTES = 1 << 20


class CutSegment(CallbackTask):
    """Write what `cut` leaves of its segment to `temp`, and sync that. After an error the file does not exist."""

    def __init__(
        self, fs: Fs, folder: str, temp: str, cut: SegmentCut, then: Callable[[OSError | None, int], None]
    ) -> None:
        super().__init__(then)
        self._fs = fs
        self.path, self.temp = f"{folder}/{cut.segment.name}", f"{folder}/{temp}"
        self.cut = cut
        self._end = cut.segment.size

    def work(self) -> None:
        at = self.cut.offset
        file = create_empty(self._fs, self.temp)
        try:
            file.write(SEGMENT_MAGIC)
            while at < self._end:
                piece = self._fs.read(self.path, at, min(PIECE_BYTES, self._end - at))
                if not piece:
                    raise OSError(0, "it is shorter than it was", self.path)
                file.write(piece)
                at += len(piece)
            file.sync()
        except OSError:
            discard(self._fs, self.temp, file)
            raise
        file.close()
