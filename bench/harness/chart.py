"""Charts for the documents, as SVG text: lines over time, ratios with their spread, amounts.

matplotlib draws them; it is needed for `--chart` alone. The same figures give the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1f6feb", "#bf4b00", "#2e8b57", "#8250df")
SHADES = ("#f3f5f8", "#ffffff")
INK, FAINT = "#24292f", "#d0d7de"
WIDTH_INCHES, PANEL_INCHES, BAR_INCHES, FRAME_INCHES = 9.0, 2.3, 0.25, 1.0
LETTER_SHARE = 0.009  # of the width of a chart, about
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "staniel",
    "font.size": 9,
    "axes.edgecolor": FAINT,
    "axes.titleweight": "bold",
    "text.color": INK,
}


class Line(Struct, frozen=True):
    """A line of a chart. `points` are (x, y) in the order of x."""

    name: str
    points: list[tuple[float, float]]


class Panel(Struct, frozen=True):
    """A panel of lines that share an axis; `limit` is drawn across it and named."""

    unit: str
    lines: list[Line]
    limit: tuple[str, float] | None = None


class Span(Struct, frozen=True):
    """A part of the x axis with a name."""

    name: str
    start: float
    end: float


class Bar(Struct, frozen=True):
    """A ratio: the median, the least and the greatest."""

    name: str
    median: float
    low: float
    high: float


def over_time(title: str, panels: Sequence[Panel], spans: Sequence[Span], x_unit: str = "s") -> str:
    """Draw panels one above the other over one x axis, whose spans are shaded alternately."""
    figure, axes = _figure(len(panels) * PANEL_INCHES, title, rows=len(panels))
    for panel, ax in zip(panels, axes, strict=True):
        for number, span in enumerate(spans):
            ax.axvspan(span.start, span.end, color=SHADES[number % 2], zorder=0)
        _draw_panel(panel, ax)
    x_max = max([x for panel in panels for line in panel.lines for x, _ in line.points], default=1.0)
    for span, row in zip(spans, rows_of(spans, x_max), strict=True):
        above = axes[0].get_xaxis_transform()
        axes[0].annotate(span.name, (span.start, 1.0), (2, 3 + 11 * row), above, textcoords="offset points", fontsize=8)
    axes[-1].set_xlabel(x_unit, loc="right")
    return _svg(figure)


def _draw_panel(panel: Panel, ax: Axes) -> None:
    for line, colour in zip(panel.lines, COLOURS, strict=False):
        ax.plot(*zip(*line.points, strict=True), color=colour, linewidth=1.4, label=line.name)
    if panel.limit:
        name, value = panel.limit
        ax.axhline(value, color=INK, linewidth=1, linestyle="--")
        ax.annotate(name, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
    if len(panel.lines) > 1 or panel.limit:
        ax.legend(loc="upper left", frameon=False)
    ax.set_ylabel(panel.unit)
    ax.margins(x=0, y=0.15)
    ax.set_ylim(bottom=0)
    ax.grid(axis="y", color=FAINT)


def rows_of(spans: Sequence[Span], x_max: float) -> list[int]:
    """Return the row of each span's name, 0 or 1: one up if the name before it is in the way."""
    rows, free_from = [], [0.0, 0.0]
    for span in spans:
        row = int(span.start < free_from[0])
        free_from[row] = span.start + LETTER_SHARE * x_max * len(span.name)
        rows.append(row)
    return rows


def ratios(title: str, bars: Sequence[Bar], one: str) -> str:
    """Draw a bar for each ratio, with a whisker from its least to its greatest, and a line at 1.0 that `one`
    explains.
    """
    figure, (ax,) = _figure(len(bars) * BAR_INCHES, title)
    for at, bar in enumerate(bars):
        ax.barh(at, bar.median, color=COLOURS[0] if bar.median >= 1.0 else COLOURS[1], height=0.65)
        ax.plot((bar.low, bar.high), (at, at), color=INK, linewidth=1)
        ax.annotate(f"{bar.median:.2f}", (bar.high, at), xytext=(4, 0), textcoords="offset points", va="center")
    ax.axvline(1.0, color=INK, linewidth=1, linestyle="--")
    ax.annotate(one, (1.0, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=8)
    _name_bars(ax, [bar.name for bar in bars])
    return _svg(figure)


def amounts(title: str, rows: Sequence[tuple[str, float]], unit: str) -> str:
    """Draw a bar for each amount."""
    figure, (ax,) = _figure(len(rows) * BAR_INCHES, title)
    for at, (_, value) in enumerate(rows):
        ax.barh(at, value, color=COLOURS[0], height=0.65)
        ax.annotate(f"{value:,g}", (value, at), xytext=(4, 0), textcoords="offset points", va="center")
    ax.set_xlabel(unit, loc="right")
    ax.xaxis.set_major_formatter("{x:,g}")
    _name_bars(ax, [name for name, _ in rows])
    return _svg(figure)


def _name_bars(ax: Axes, names: Sequence[str]) -> None:
    """Name the bars, the first on top, with a grid behind them, and room for the figure behind the longest."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.margins(x=0.1)
    ax.set_xlim(left=0)
    ax.grid(axis="x", color=FAINT)
    ax.set_axisbelow(True)


def _figure(inner_inches: float, title: str, rows: int = 1) -> tuple[Figure, list[Axes]]:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, inner_inches + FRAME_INCHES), layout="constrained")
        axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
        figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=11)
    return figure, list(axes)


def _svg(figure: Figure) -> str:
    import matplotlib

    with matplotlib.rc_context(STYLE):
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()
