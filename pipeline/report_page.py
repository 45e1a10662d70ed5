"""A report as one HTML file that needs nothing else, and its plots as PNG files.

Knows matplotlib and a page's layout. Refuses to know Spark.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.report import Report, Row

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
)


def write(report: Report, folder: Path) -> list[Path]:
    """`report.html` and the plots as PNG, in a folder that is made if need be; their paths."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    plots: dict[str, Callable[[Report, Any], None]] = {
        "rates": _rates,
        "depth": _depth,
        "sizes": _sizes,
        "ages": _ages,
        "deliveries": _deliveries,
    }
    made, images = [], []
    for name, draw in plots.items():
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


def _page(report: Report, plots: str) -> str:
    span = "The journals hold no item." if report.begin is None else f"Items from {report.begin} to {report.end} UTC."
    rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells(row))}</tr>" for row in report.rows)
    heads = "".join(f"<th>{head}</th>" for head in HEADS)
    unknown = "".join(f"<li>{html.escape(each)}</li>" for each in report.unknown)
    path = html.escape(report.path)
    return PAGE.format(
        path=path, span=span, table=f"<table><tr>{heads}</tr>{rows}</table>", plots=plots, unknown=unknown
    )


def cells(row: Row) -> list[str]:
    """A row as people read it."""
    numbers = [f"{number:,}" for number in (row.added, row.removed, row.depth, row.opens, row.redelivered)]
    sizes = [_bytes(size) for size in (row.size_median, row.size_99, row.size_max)]
    return [row.queue, _bytes(row.bytes), *numbers, *sizes, _seconds(row.age_median_s), _seconds(row.age_max_s)]


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _seconds(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _rates(report: Report, axes: Any) -> None:
    for queue, series in report.series.items():
        (line,) = axes.plot([each[0] for each in series], [each[1] for each in series], label=queue, linewidth=1)
        axes.plot([each[0] for each in series], [-each[2] for each in series], color=line.get_color(), linewidth=1)
    axes.axhline(0, color="#888", linewidth=0.5)
    _label(axes, "arrivals (up) and removals (down) a second", "", bool(report.series))


def _depth(report: Report, axes: Any) -> None:
    for queue, series in report.series.items():
        axes.step([each[0] for each in series], [each[3] for each in series], label=queue, linewidth=1, where="post")
    _label(axes, "items in the queue, open reads included", "", bool(report.series))


def _sizes(report: Report, axes: Any) -> None:
    axes.bar([str(1 << power) for power in report.sizes], list(report.sizes.values()), color="#4878a8")
    _label(axes, "items by size", "bytes, from")


def _ages(report: Report, axes: Any) -> None:
    axes.bar([_seconds((1 << power) - 1) for power in report.ages], list(report.ages.values()), color="#a86a48")
    _label(axes, "items still there, by age", "from")


def _deliveries(report: Report, axes: Any) -> None:
    axes.bar([str(count) for count in report.deliveries], list(report.deliveries.values()), color="#6a8f4e")
    axes.set_yscale("symlog")
    _label(axes, "items by how often they were reserved", "times")


def _label(axes: Any, title: str, below: str, legend: bool = False) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(below)
    axes.tick_params(labelsize=8)
    if legend:
        axes.legend(fontsize=8, ncols=4)
