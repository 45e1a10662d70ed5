"""The options of `staniel-journal`, parsed and validated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from datetime import datetime, timedelta, timezone, tzinfo
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from staniel.journal.holds import HOLD_NAME
from staniel.pipeline.formats.adapters import FORMATS
from staniel.pipeline.formats.base import OnCorrupt, Reading
from staniel.pipeline.lake.folders import absolute
from staniel.pipeline.lake.globs import is_pattern
from staniel.pipeline.lake.stores import NONE, with_settings
from staniel.pipeline.sources.offsets import from_json
from staniel.pipeline.sources.options import Options, QueuePatterns, trigger_wait
from staniel.pipeline.sources.spools import SpoolRef, list_spools

EVERYWHERE = {
    "path",
    "paths",
    "hostsFile",
    "hostColumn",
    "ignoreUnreachable",
    "format",
    "view",
    "queue",
    "queues",
    "queuePattern",
    "op",
    "includeValue",
    "maxValueBytes",
    "onCorrupt",
    "quarantinePath",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "timeZone",
    "minPartitions",
}
OF_BATCHES = {"useSummaries", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "id", "archivePath"}
OF_STREAMS = {
    "hold",
    "failOnDataLoss",
    "maxBytesPerTrigger",
    "maxOffsetsPerTrigger",
    "maxFilesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
}
KAFKAS_NAMES = {"subscribe": "queues", "subscribePattern": "queuePattern"}
OF_OFFSETS = {
    "file",
    "at",
    "batch",
    "mark",
    "id",
    "asOf",
    "lastId",
}  # of a stream's checkpoint too; a batch: of archives
OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d\d))?|Z")
VIEWS = ("ops", "items", "state", "history", "summaries", "readers", "jobs", "spools")


class Begin(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"


class JournalOptions:
    """The validated options. `stores` are settings of object stores, see lake/stores.py. Raises ValueError."""

    def __init__(self, given: Mapping[str, str], stores: Mapping[str, str] = NONE) -> None:
        options = Options(given, EVERYWHERE | OF_BATCHES | OF_STREAMS, "staniel-journal", aliases=KAFKAS_NAMES)
        self._options = options
        self._stores = stores
        self.hosts_file = self._path_of(options.text("hostsFile"))
        self.paths = [self._path_of(path) for path in _paths(options)]
        self.path = self.paths[0] if self.paths else ""
        self.view = options.text("view", "ops").lower()
        if self.view not in VIEWS:
            raise ValueError(f"option view is one of {', '.join(VIEWS)}, not {self.view!r}")
        self.format = options.text("format", "auto").lower()
        if self.format not in ("auto", *FORMATS):
            raise ValueError(f"option format is one of auto, {', '.join(FORMATS)}, not {self.format!r}")
        _check_use(options, self.view)
        names_several = bool(self.hosts_file) or len(self.paths) > 1 or is_pattern(self.path)
        self.has_host = options.switch("hostColumn", names_several)
        self.ignores_unreachable = options.switch("ignoreUnreachable", False)
        self.is_several = names_several or self.has_host or self.ignores_unreachable or self.view == "spools"
        self.queues = QueuePatterns(options)
        self.min_partitions = options.number("minPartitions", 0)
        self.hold = options.text("hold")
        if self.hold and HOLD_NAME.fullmatch(self.hold) is None:
            raise ValueError(f"option hold: {self.hold!r} is not the name of a retention hold")
        self.fail_on_data_loss = options.switch("failOnDataLoss", True)
        self.bytes_a_trigger = options.bytes("maxBytesPerTrigger", 0)
        self.records_a_trigger = options.number("maxOffsetsPerTrigger", 0)
        self.files_a_trigger = options.number("maxFilesPerTrigger", 0)
        self.records_before_trigger, self.delay_ms = trigger_wait(options, "minOffsetsPerTrigger")
        self.starting = _offsets(options, "startingOffsets", Begin.EARLIEST)
        self.starting_ms = time_ms(options, "startingTimestamp")
        self.ending = _offsets(options, "endingOffsets", Begin.LATEST)
        self.ending_ms = time_ms(options, "endingTimestamp")
        self.starting_times = _times_of_queues(options, "startingOffsetsByTimestamp")
        self.ending_times = _times_of_queues(options, "endingOffsetsByTimestamp")
        self.reading = Reading(
            options.switch("includeValue", True),
            options.choice("onCorrupt", OnCorrupt.FAIL),
            self._path_of(options.text("quarantinePath")),
            ops=frozenset(options.names("op")) if options.has("op") else None,
            queues=self.queues if self.queues.named else None,
            ids=frozenset(options.names("id")) if options.has("id") else None,
            value_bytes_max=options.bytes("maxValueBytes", 0),
            use_summaries=options.switch("useSummaries", True),
        )
        self.archive = self._path_of(options.text("archivePath"))
        if self.is_several and self.archive:
            raise ValueError("option archivePath is for one spool: load that one alone")
        as_json = isinstance(self.starting, dict) or isinstance(self.ending, dict)
        if self.is_several and (as_json or self.starting_times or self.ending_times):
            raise ValueError("offsets as JSON are of one spool's queues: load that one alone")

    def spools(self) -> list[SpoolRef]:
        """Return the spools there are now. Raises ValueError, see `list_spools`."""
        return list_spools(self.paths, self.hosts_file, self._stores)

    def _path_of(self, path: str) -> str:
        return with_settings(absolute(path), self._stores) if path else ""

    def starts_ms(self, queue: str) -> int | None:
        """Return the time from which a queue is read; None: from its first record on."""
        return self.starting_times.get(queue) if self.starting_ms is None else self.starting_ms

    def ends_ms(self, queue: str) -> int | None:
        """Return the time up to which a queue is read; None: up to its last record."""
        return self.ending_times.get(queue) if self.ending_ms is None else self.ending_ms

    def alone(self, path: str, form: str) -> JournalOptions:
        """Return these options for one spool, and for its format."""
        options = copy(self)
        options.paths, options.path, options.hosts_file, options.format = [path], path, "", form
        options.is_several = False
        return options

    def check_batch(self) -> None:
        """Refuse options that a batch query ignores. Raises ValueError."""
        self.refuse(OF_STREAMS, "streams")

    def check_stream(self) -> None:
        """Refuse options that a stream ignores. Raises ValueError."""
        if self.view != "ops":
            raise ValueError(f"only the view ops can be streamed, not {self.view}")
        self.refuse(OF_BATCHES, "batch queries; a stream has no end, and is cut by its limits")

    def refuse(self, names: set[str], where: str) -> None:
        """Refuse these options, which are for `where`. Raises ValueError."""
        for name in sorted(names):
            if self._options.has(name):
                raise ValueError(f"option {name} of staniel-journal is for {where}: leave it out here")


def _check_use(options: Options, view: str) -> None:
    """Refuse options that have no effect together with the others. Raises ValueError."""
    if options.has("op") and view != "ops":
        raise ValueError(f"option op is for the view ops, not for {view}")
    if view == "history":
        for name in ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"):
            if options.has(name):
                raise ValueError(
                    f"option {name} is not for history, which begins with the first record: filter by asOf"
                )
    for name in ("id", "archivePath"):
        if options.has(name) and view != "history":
            raise ValueError(f"option {name} is for the view history, not for {view}")
    ends = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    if options.has("archivePath") and any(map(options.has, ends)):
        raise ValueError("option archivePath reads all records: leave the options of the end out, and filter by asOf")
    if options.has("useSummaries") and view != "state":
        raise ValueError(f"option useSummaries is for the view state, not for {view}")
    if options.has("quarantinePath") and options.text("onCorrupt").lower() != OnCorrupt.QUARANTINE.value:
        raise ValueError("option quarantinePath says where onCorrupt=quarantine copies to: give that too")


def _paths(options: Options) -> list[str]:
    """Return the paths. Spark gives several as JSON. Raises ValueError."""
    if not options.has("path") and (several := options.names("paths")):
        return several
    if options.has("hostsFile") and not options.has("path"):
        return []
    return [options.demand("path", 'the spool folder, as in .load("spool") or .load("s3://bucket/spool")')]


def _times_of_queues(options: Options, name: str) -> dict[str, int]:
    """Return the epoch ms of each queue: `{"queue": 5}`, or `{"queue": {"0": 5}}` as of a Kafka topic. Raises
    ValueError.
    """
    times = {}
    for queue, given in (options.object(name) if options.has(name) else {}).items():
        of_partitions = list(given.values()) if isinstance(given, dict) else [given]
        if len(of_partitions) != 1 or type(of_partitions[0]) is not int:
            raise ValueError(f'option {name} wants {{"queue": epoch ms}}, not {{{queue!r}: {given!r}}}')
        times[queue] = of_partitions[0]
    return times


def time_ms(options: Options, name: str) -> int | None:
    """Return an option's time, given in epoch milliseconds or as an ISO time, in epoch milliseconds; None if
    not given.
    """
    if not options.has(name):
        return None
    zone = zone_of(options.text("timeZone")) if options.has("timeZone") else None
    return moment_ms(options.text(name), f"option {name}", zone)


def moment_ms(text: str, what: str, zone: tzinfo | None) -> int:
    """Parse one time; `what` names the option in the ValueError.

    `zone` is for times without one; with None those are refused. An hour that a clock change skips or repeats has the
    offset before the change, as in Java, and so in SQL.
    """
    text = text.strip()
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{what} is epoch milliseconds or an ISO time, not {text!r}") from None
    if when.tzinfo is None and zone is None:
        raise ValueError(
            f"{what}: {text!r} has no zone, and Spark does not tell a source that of the session: write one behind it,"
            " like Z or -05:00; or give option timeZone, as pipeline.read does with spark.sql.session.timeZone"
        )
    return round((when if when.tzinfo else when.replace(tzinfo=zone)).timestamp() * 1000)


def zone_of(name: str) -> tzinfo:
    """Return the zone of a name that Spark accepts: a region, or an offset. Raises ValueError."""
    if match := OFFSET.fullmatch(name):
        sign = -1 if match[1] == "-" else 1
        return timezone(sign * timedelta(hours=int(match[2] or 0), minutes=int(match[3] or 0)))
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, ZoneInfoNotFoundError):
        raise ValueError(
            f"option timeZone is a region like Europe/Berlin, or an offset like +02:00, not {name!r}"
        ) from None


def _offsets(options: Options, name: str, default: Begin) -> Begin | dict[str, Any]:
    text = options.text(name, default.value)
    if text.lower() in (Begin.EARLIEST.value, Begin.LATEST.value):
        return Begin(text.lower())
    offsets = {
        queue: msgspec.to_builtins(from_json(place)) if isinstance(place, str) else place
        for queue, place in options.object(name).items()
    }
    for queue, place in offsets.items():
        if (
            not isinstance(place, dict)
            or not isinstance(place.get("file"), str)
            or not isinstance(place.get("at"), int)
            or place.keys() - OF_OFFSETS
        ):
            raise ValueError(
                f'option {name} wants {{"queue": {{"file": "...", "at": 0}}}}, not {{{queue!r}: {place!r}}}'
            )
    return offsets
