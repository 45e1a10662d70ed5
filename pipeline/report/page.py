"""A report as one self-contained HTML file, and its plots as PNG files, with matplotlib."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from staniel.pipeline.report.figures import ReportFigures, ReportRow

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Queues of {path}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ padding: .2em .6em; text-align: right; border-bottom: 1px solid #ddd }}
td:first-child, th:first-child {{ text-align: left }} img {{ max-width: 100%; margin: 1em 0 }} li {{ color: #555 }}
</style></head><body><h1>Queues of {path}</h1><p>{span}</p>{table}{plots}<h2>What cannot be known</h2><ul>{unknown}</ul>
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
    "size p50",
    "p99",
    "max",
    "age p50",
    "max",
    "waited p50",
    "p99",
)
UNTOLD = "–"


def write(report: ReportFigures, folder: Path) -> list[Path]:
    """Write `report.html` and the plots as PNG to a folder, which is made if needed. Return their paths.

    Unknown figures are not drawn, and their pictures of an earlier report are removed.
    """
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    made, images = [], []
    for name, (draw, known) in PLOTS.items():
        (folder / f"{name}.png").unlink(missing_ok=True)
        if not known(report):
            continue
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        draw(report, figure.subplots())
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=110)
        path = folder / f"{name}.png"
        path.write_bytes(data.getvalue())
        made.append(path)
        code = base64.b64encode(data.getvalue()).decode()
        images.append(f'<img alt="{name}" src="data:image/png;base64,{code}">')
    page = folder / "report.html"
    page.write_text(_page(report, "".join(images)), "utf-8")
    return [page, *made]


def _page(report: ReportFigures, plots: str) -> str:
    span = "The journals hold no item." if report.begin is None else f"Items from {report.begin} to {report.end} UTC."
    rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells(row))}</tr>" for row in report.rows)
    heads = "".join(f"<th>{head}</th>" for head in HEADS)
    unknown = "".join(f"<li>{html.escape(text)}</li>" for text in report.unknown)
    path = html.escape(report.path)
    return PAGE.format(
        path=path, span=span, table=f"<table><tr>{heads}</tr>{rows}</table>", plots=plots, unknown=unknown
    )


def cells(row: ReportRow) -> list[str]:
    """Return a row as people read it."""
    numbers = [f"{number:,}" for number in (row.added, row.removed, row.depth, row.opens, row.redelivered)]
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


def _rates(report: ReportFigures, axes: Any) -> None:
    for queue, series in report.series.items():
        times = [point.when for point in series]
        (line,) = axes.plot(times, [point.arrivals for point in series], label=queue, linewidth=1)
        if _has_depth(report):
            axes.plot(times, [-(point.removals or 0.0) for point in series], color=line.get_color(), linewidth=1)
    axes.axhline(0, color="#888", linewidth=0.5)
    down = " (up) and removals (down)" if _has_depth(report) else ""
    _label(axes, f"arrivals{down} a second", "", bool(report.series))


def _depth(report: ReportFigures, axes: Any) -> None:
    for queue, series in report.series.items():
        times, depths = [point.when for point in series], [point.depth for point in series]
        axes.step(times, depths, label=queue, linewidth=1, where="post")
    _label(axes, "items in the queue, open reads included", "", bool(report.series))


def _sizes(report: ReportFigures, axes: Any) -> None:
    axes.bar([_bytes((1 << power) - 1) for power in report.sizes], list(report.sizes.values()), color="#4878a8")
    _label(axes, "items by size", "from")


def _ages(report: ReportFigures, axes: Any) -> None:
    axes.bar([_seconds((1 << power) - 1) for power in report.ages], list(report.ages.values()), color="#a86a48")
    _label(axes, "items still there, by age", "from")


def _waits(report: ReportFigures, axes: Any) -> None:
    axes.bar(
        [_seconds(((1 << power) - 1) / 1000) for power in report.waits], list(report.waits.values()), color="#7a58a0"
    )
    _label(axes, "items by how long they waited until they were first handed out", "from")


def _deliveries(report: ReportFigures, axes: Any) -> None:
    axes.bar([str(count) for count in report.deliveries], list(report.deliveries.values()), color="#6a8f4e")
    axes.set_yscale("symlog")
    _label(axes, "items by how often they were handed out", "times")


def _has_depth(report: ReportFigures) -> bool:
    return all(point.depth is not None for series in report.series.values() for point in series)


def _label(axes: Any, title: str, below: str, legend: bool = False) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(below)
    axes.tick_params(labelsize=8)
    if legend:
        axes.legend(fontsize=8, ncols=4)


PLOTS: dict[str, tuple[Callable[[ReportFigures, Any], None], Callable[[ReportFigures], bool]]] = {
    "rates": (_rates, lambda report: True),
    "depth": (_depth, _has_depth),
    "sizes": (_sizes, lambda report: True),
    "ages": (_ages, lambda report: True),
    "waits": (_waits, lambda report: bool(report.waits)),
    "deliveries": (_deliveries, lambda report: bool(report.deliveries)),
}
