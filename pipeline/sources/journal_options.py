"""The options of `staniel-journal`, parsed and validated."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from staniel.pipeline.formats.adapters import FORMATS
from staniel.pipeline.formats.base import OnCorrupt, Reading
from staniel.pipeline.lake.folders import absolute
from staniel.pipeline.sources.options import Options, QueuePatterns

EVERYWHERE = {
    "path",
    "format",
    "view",
    "queue",
    "queues",
    "queuePattern",
    "op",
    "includeValue",
    "onCorrupt",
    "quarantinePath",
    "startingOffsets",
    "startingTimestamp",
    "timeZone",
}
OF_BATCHES = {"useSummaries", "endingOffsets", "endingTimestamp", "minPartitions"}
OF_STREAMS = {"failOnDataLoss", "maxBytesPerTrigger", "maxOffsetsPerTrigger", "maxFilesPerTrigger"}
VIEWS = ("ops", "items", "state", "summaries", "readers", "jobs")


class Begin(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"


class JournalOptions:
    """The validated options. Raises ValueError."""

    def __init__(self, given: Mapping[str, str]) -> None:
        options = Options(given, EVERYWHERE | OF_BATCHES | OF_STREAMS, "staniel-journal")
        self._options = options
        self.path = absolute(
            options.demand("path", 'the spool folder, as in .load("spool") or .load("s3://bucket/spool")')
        )
        self.view = options.text("view", "ops").lower()
        if self.view not in VIEWS:
            raise ValueError(f"option view is one of {', '.join(VIEWS)}, not {self.view!r}")
        self.format = options.text("format", "auto").lower()
        if self.format not in ("auto", *FORMATS):
            raise ValueError(f"option format is one of auto, {', '.join(FORMATS)}, not {self.format!r}")
        _check_use(options, self.view)
        self.queues = QueuePatterns(options)
        self.min_partitions = options.number("minPartitions", 0)
        self.fail_on_data_loss = options.switch("failOnDataLoss", True)
        self.bytes_a_trigger = options.bytes("maxBytesPerTrigger", 0)
        self.records_a_trigger = options.number("maxOffsetsPerTrigger", 0)
        self.files_a_trigger = options.number("maxFilesPerTrigger", 0)
        self.starting = _offsets(options, "startingOffsets", Begin.EARLIEST)
        self.starting_ms = time_ms(options, "startingTimestamp")
        self.ending = _offsets(options, "endingOffsets", Begin.LATEST)
        self.ending_ms = time_ms(options, "endingTimestamp")
        self.reading = Reading(
            options.switch("includeValue", True),
            options.choice("onCorrupt", OnCorrupt.FAIL),
            options.text("quarantinePath"),
            ops=frozenset(options.names("op")) if options.has("op") else None,
            use_summaries=options.switch("useSummaries", True),
        )

    def check_batch(self) -> None:
        """Raises ValueError for options that a query does not look at."""
        self._refuse(OF_STREAMS, "streams")

    def check_stream(self) -> None:
        """Raises ValueError for what a stream does not look at."""
        if self.view != "ops":
            raise ValueError(f"only the view ops can be streamed, not {self.view}")
        self._refuse(OF_BATCHES, "batch queries; a stream has no end, and is cut by its limits")

    def _refuse(self, names: set[str], where: str) -> None:
        for name in sorted(names):
            if self._options.has(name):
                raise ValueError(f"option {name} of staniel-journal is for {where}: leave it out here")


def _check_use(options: Options, view: str) -> None:
    """Raises ValueError for options that have no effect beside the others."""
    if options.has("op") and view != "ops":
        raise ValueError(f"option op is for the view ops, not for {view}")
    if options.has("useSummaries") and view != "state":
        raise ValueError(f"option useSummaries is for the view state, not for {view}")
    if options.has("quarantinePath") and options.text("onCorrupt").lower() != OnCorrupt.QUARANTINE.value:
        raise ValueError("option quarantinePath says where onCorrupt=quarantine copies to: give that too")


def time_ms(options: Options, name: str) -> int | None:
    """Epoch milliseconds, given as such or as an ISO time (UTC unless it says otherwise); None if not given."""
    if not options.has(name):
        return None
    return moment_ms(options.text(name), f"option {name}")


def moment_ms(text: str, what: str) -> int:
    """The same of one text; `what` it is, for the ValueError."""
    text = text.strip()
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{what} is epoch milliseconds or an ISO time, not {text!r}") from None
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def _offsets(options: Options, name: str, default: Begin) -> Begin | dict[str, Any]:
    text = options.text(name, default.value)
    if text.lower() in (Begin.EARLIEST.value, Begin.LATEST.value):
        return Begin(text.lower())
    offsets = options.object(name)
    for queue, place in offsets.items():
        if (
            not isinstance(place, dict)
            or not isinstance(place.get("file"), str)
            or not isinstance(place.get("at"), int)
        ):
            raise ValueError(
                f'option {name} wants {{"queue": {{"file": "...", "at": 0}}}}, not {{{queue!r}: {place!r}}}'
            )
    return offsets
