"""A report as one self-contained HTML file, drawn in the browser by plotly.js, and its tables as Parquet.

Data and library are in the page as compressed text, so that no name is ever read as HTML; page.js puts names in as text
only. Nothing is loaded from the network, which the page's policy also forbids.
"""

from __future__ import annotations

import base64
import gzip
import html
from collections.abc import Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from staniel.pipeline.report.figures import Count, ReportFigures, ReportRow, SeriesLine, series_of

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Queues of {path}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; \
style-src 'unsafe-inline'; img-src data: blob:; font-src data:">
<meta name="referrer" content="no-referrer">
<style>{style}</style></head>
<body><h1>Queues of {path}</h1>
<noscript><p>This page needs JavaScript to draw. <code>staniel pipeline report --tables DIR</code> writes its tables as
Parquet.</p></noscript>
<main id="page"></main>
<script type="application/octet-stream" id="data">{data}</script>
<script type="application/octet-stream" id="library">{library}</script>
<script>{script}</script>
</body></html>
"""
HEADS = (
    "queue",
    "journal",
    "added",
    "removed",
    "depth",
    "open",
    "redelivered",
    "dead",
    "size p50",
    "p99",
    "max",
    "age p50",
    "max",
    "waited p50",
    "p99",
)
UNTOLD = "–"
LICENSE = b"/* plotly.js, Copyright Plotly, Inc., MIT License */\n"


def write(report: ReportFigures, folder: Path) -> Path:
    """Write `report.html` to a folder, which is made if needed. Return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "report.html"
    page.write_text(page_of(report), "utf-8")
    return page


def page_of(report: ReportFigures) -> str:
    """Return the page."""
    own = files("staniel.pipeline.report")
    library = files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    return PAGE.format(
        path=html.escape(report.path),
        style=own.joinpath("page.css").read_text("utf-8"),
        script=own.joinpath("page.js").read_text("utf-8"),
        data=_packed(msgspec.json.encode(content(report))),
        library=_packed(LICENSE + library),
    )


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def content(report: ReportFigures) -> dict[str, Any]:
    """Return what page.js draws. Times are in epoch ms, spans in seconds."""
    fields = ReportRow.__struct_fields__
    return {
        "path": report.path,
        "format": report.form,
        "beginMs": None if report.begin is None else report.begin.timestamp() * 1000,
        "endMs": None if report.end is None else report.end.timestamp() * 1000,
        "stepMs": report.step_s * 1000,
        "firstMs": report.first_step * report.step_s * 1000,
        "steps": report.steps,
        "rows": {field: [getattr(row, field) for row in report.rows] for field in fields},
        "hosts": [row.host for row in report.rows],
        "series": {
            kind: {name: _series(line) for name, line in lines.items()} for kind, lines in report.series.items()
        },
        "sizes": _histogram(report.sizes),
        "ages": _histogram(report.ages),
        "waits": _histogram(report.waits),
        "deliveries": [[str(count), items] for count, items in report.deliveries.items()],
        "unknown": report.unknown,
    }


def _series(line: SeriesLine) -> list[Any]:
    return [line.at, line.added, line.removed, line.depth]


def _histogram(powers: dict[int, int]) -> list[list[int]]:
    return [[(1 << power) - 1, items] for power, items in powers.items()]


def write_tables(report: ReportFigures, folder: Path) -> list[Path]:
    """Write the tables as Parquet to a folder, which is made if needed: `queues`, `series`, `histograms`. Return their
    paths.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Sequence[Any]] = {"host": [row.host for row in report.rows]}
    columns["queue"] = [row.queue.rpartition("/")[2] for row in report.rows]
    for field in ReportRow.__struct_fields__[1:]:
        columns[field] = [getattr(row, field) for row in report.rows]
    kinds = {name: pa.float64() if name.endswith("_s") else pa.int64() for name in columns}
    kinds |= {"host": pa.string(), "queue": pa.string()}
    histograms = [
        (what, float(low), items)
        for what, powers in (("size_bytes", report.sizes), ("age_s", report.ages), ("wait_ms", report.waits))
        for low, items in _histogram(powers)
    ] + [("deliveries", float(count), items) for count, items in report.deliveries.items()]
    tables = {
        "queues": pa.table(columns, schema=pa.schema(list(kinds.items()))),
        "series": _series_table(report.counts, report.step_s),
        "histograms": pa.Table.from_pylist(
            [{"of": what, "from": low, "items": items} for what, low, items in histograms],
            schema=pa.schema([("of", pa.string()), ("from", pa.float64()), ("items", pa.int64())]),
        ),
    }
    paths = [folder / f"{name}.parquet" for name in tables]
    for path, table in zip(paths, tables.values(), strict=True):
        pq.write_table(table, path)
    return paths


def _series_table(counts: dict[str, list[Count]], step_s: float) -> Any:
    """Return a row for each queue and step in which something happened, and for the empty step after it."""
    import pyarrow as pa

    hosts: list[str] = []
    queues: list[str] = []
    steps: list[tuple[datetime, float, float | None, int | None]] = []
    for name, queue in counts.items():
        host, _, bare = name.rpartition("/")
        series = series_of(queue, step_s)
        hosts += [host] * len(series)
        queues += [bare] * len(series)
        steps += [(step.when, step.arrivals, step.removals, step.depth) for step in series]
    whens, arrivals, removals, depths = zip(*steps, strict=True) if steps else ((), (), (), ())
    columns = [
        ("host", pa.array(hosts, pa.string())),
        ("queue", pa.array(queues, pa.string())),
        ("time", pa.array(whens, pa.timestamp("us", "UTC"))),
        ("arrivals_per_s", pa.array(arrivals, pa.float64())),
        ("removals_per_s", pa.array(removals, pa.float64())),
        ("depth", pa.array(depths, pa.int64())),
    ]
    return pa.table(dict(columns))


def cells(row: ReportRow) -> list[str]:
    """Return a row as people read it."""
    numbers = [f"{number:,}" for number in (row.added, row.removed, row.depth, row.opens, row.redelivered)]
    numbers.append(UNTOLD if row.dead is None else f"{row.dead:,}")
    sizes = [_bytes(size) for size in (row.size_median, row.size_99, row.size_max)]
    spans = [_seconds(span_s) for span_s in (row.age_median_s, row.age_max_s, row.wait_median_s, row.wait_99_s)]
    return [row.queue, _bytes(row.bytes), *numbers, *sizes, *spans]


def _bytes(count: int | None) -> str:
    if count is None:
        return UNTOLD
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return UNTOLD
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 or not seconds else f"{1000 * seconds:.0f} ms"
