"""Converting the queues of many spools to another journal format, one task for each spool.

Each task takes the lock of its spool. journal/tools/convert.py does the work and keeps the old files.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Struct

from staniel.journal.disk.fs import AlreadyLocked, JournalFailure
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.disk.refusals import failure_line
from staniel.journal.disk.watched_fs import RefusedCalls
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.journal.libkestrel import files as libkestrel_files
from staniel.journal.spool import Spool, SpoolError
from staniel.journal.tools.convert import Conversion, ConversionRefused, ConversionUnfinished
from staniel.pipeline.lake.folders import absolute, below, folder, folder_missing
from staniel.pipeline.sources.options import Options, QueuePatterns, as_option
from staniel.pipeline.tasks.summarise import run
from staniel.queues.config import Format
from staniel.queues.names import family_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Converted(Struct, frozen=True):
    """The result for one queue. `items` were moved, -1: it was in that format already. `refusal` says why it was not
    converted. `left` says what could not be read, and where it is kept. `is_whole`: nothing was lost except records
    that were being written when a server died.
    """

    spool: str
    queue: str
    items: int = 0
    refusal: str = ""
    left: list[str] = []
    is_whole: bool = True


def convert(spark: SparkSession, spools: list[str], queues: list[str], wanted: Format) -> list[Converted]:
    """Convert the selected queues, and return the results in order. Every executor must see the folders."""
    tasks = [(absolute(spool), as_option(queues), wanted, round(time.time() * 1000)) for spool in spools]
    return [found for converted in run(spark, tasks, convert_spool) for found in converted]


def convert_spool(task: tuple[str, str, Format, int]) -> list[Converted]:
    """Convert one spool. A refused queue stays unchanged."""
    path, queues, wanted, now_ms = task
    chosen = QueuePatterns(
        Options({"queues": queues} if queues else {}, {"queue", "queues", "queuePattern"}, "convert")
    )
    try:
        if not (place := folder(path)).exists():
            return [Converted(path, "", 0, str(folder_missing(path)))]
        if not place.list() and not folder(below(path, OWN_FOLDER)).exists():
            return [Converted(path, "", 0, str(folder_missing(path, "are no journals in")))]
    except OSError as error:
        return [Converted(path, "", 0, failure_line(error, path))]
    disk, watch = OsFs(), RefusedCalls()
    try:
        spool = Spool(watch.on(disk), path)
        spool.finish_log()
    except AlreadyLocked as locked:
        disk.close()
        return [Converted(path, "", 0, f"{locked.holder} has it open; stop it first")]
    except (OSError, JournalFailure) as error:
        disk.close()
        return [Converted(path, "", 0, failure_line(error, path))]
    except SpoolError as error:
        disk.close()
        return [Converted(path, "", 0, str(error))]
    try:
        listing = spool.listing()
        names = {family_of(name) for name in [*listing.kestrel, *listing.streams]}
        missing = [Converted(path, pattern, 0, "there is no such queue") for pattern in chosen.unmet(names)]
        return [*missing, *(_one(spool, name, wanted, now_ms, watch) for name in sorted(names) if name in chosen)]
    except OSError as error:
        return [Converted(path, "", 0, failure_line(error, path))]
    finally:
        disk.close()


def _one(spool: Spool, queue: str, wanted: Format, now_ms: int, watch: RefusedCalls) -> Converted:
    if wanted is Format.LIBKESTREL and (why := libkestrel_files.name_error(queue)):
        return Converted(spool.folder, queue, 0, why)
    conversion = Conversion(spool, queue, now_ms, lambda *_: None, watch)
    try:
        items = conversion.run(wanted)
        left = [left_file.describe() for left_file in conversion.left]
        is_whole = all(left_file.is_torn for left_file in conversion.left)
        return Converted(spool.folder, queue, items, "", left, is_whole)
    except (OSError, JournalFailure) as error:
        return Converted(spool.folder, queue, 0, f"nothing has been replaced: {failure_line(error, spool.folder)}")
    except (ConversionRefused, ConversionUnfinished) as error:
        return Converted(spool.folder, queue, 0, str(error))
