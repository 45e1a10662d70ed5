"""Charts as SVG text, for the documents: lines over time, and ratios with their spread.

Knows coordinates and colours. Refuses to know what is drawn and where the figures come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from msgspec import Struct

WIDTH, LEFT, RIGHT = 860, 70, 20
PANEL_HEIGHT, PANEL_GAP, HEAD, FOOT = 190, 34, 58, 34
NAME_LETTER_WIDTH = 6.2  # of 11 pixels, about
BAR_HEIGHT, NAME_WIDTH, WIDE_NAME_WIDTH = 24, 190, 260
COLOURS = ("#1f6feb", "#bf4b00", "#2e8b57", "#8250df")
SHADES = ("#f3f5f8", "#ffffff")
INK, FAINT = "#24292f", "#d0d7de"
STYLE = "font-family:sans-serif;font-size:12px"


class Line(Struct, frozen=True):
    """`points` are (x, y) in the order of x."""

    name: str
    points: list[tuple[float, float]]


class Panel(Struct, frozen=True):
    """Lines that share an axis; `limit` is drawn across it and named."""

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
    """Panels one above the other over one x axis, whose spans are shaded in turns."""
    x_max = max([x for panel in panels for line in panel.lines for x, _ in line.points], default=1.0)
    height = HEAD + len(panels) * (PANEL_HEIGHT + PANEL_GAP) + FOOT - PANEL_GAP
    bottom = height - FOOT

    def across(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * x / (x_max or 1.0)

    parts = [text(LEFT, 20, title, "font-weight:bold;font-size:14px")]
    for number, span in enumerate(spans):
        x, width = across(span.start), across(span.end) - across(span.start)
        parts.append(box(x, HEAD, width, bottom - HEAD, SHADES[number % 2]))
    parts += names([(across(span.start) + 3, span.name) for span in spans])
    parts += [text(across(tick), bottom + 16, f"{tick:g}", "text-anchor:middle") for tick in ticks(x_max)]
    parts.append(text(WIDTH - RIGHT, bottom + 30, x_unit, "text-anchor:end"))
    for number, panel in enumerate(panels):
        parts += panel_parts(panel, HEAD + number * (PANEL_HEIGHT + PANEL_GAP), across)
    return document(height, parts)


def names(places: Sequence[tuple[float, str]]) -> list[str]:
    """Each where its span begins; one row up where the one before it would be in the way."""
    parts = []
    free_from = [0.0, 0.0]
    for x, name in places:
        row = int(x < free_from[0])
        free_from[row] = x + NAME_LETTER_WIDTH * len(name)
        parts.append(text(x, HEAD - 6 - 13 * row, name, "font-size:11px"))
    return parts


def panel_parts(panel: Panel, top: float, across: Callable[[float], float]) -> list[str]:
    values = [y for line in panel.lines for _, y in line.points] + ([panel.limit[1]] if panel.limit else [])
    y_max = 1.05 * max(values, default=1.0) or 1.0
    bottom = top + PANEL_HEIGHT

    def up(y: float) -> float:
        return bottom - PANEL_HEIGHT * y / y_max

    parts = []
    for tick in ticks(y_max):
        parts.append(rule(LEFT, up(tick), WIDTH - RIGHT, up(tick), FAINT))
        parts.append(text(LEFT - 6, up(tick) + 4, f"{tick:g}", "text-anchor:end"))
    parts.append(text(8, top + 12, panel.unit, ""))
    if panel.limit:
        name, value = panel.limit
        parts.append(rule(LEFT, up(value), WIDTH - RIGHT, up(value), INK, "stroke-dasharray:5 4"))
        parts.append(text(WIDTH - RIGHT - 4, up(value) - 4, name, "text-anchor:end;font-size:11px"))
    for line, colour in zip(panel.lines, COLOURS, strict=False):
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline points="{points}" style="fill:none;stroke:{colour};stroke-width:1.6"/>')
    if len(panel.lines) > 1 or panel.limit:
        for number, (line, colour) in enumerate(zip(panel.lines, COLOURS, strict=False)):
            parts.append(text(LEFT + 8, top + 14 + 15 * number, line.name, f"fill:{colour}"))
    return parts


def ratios(title: str, bars: Sequence[Bar], one: str) -> str:
    """A bar for each ratio, with a whisker from its least to its greatest, and a line at 1.0 that `one` explains."""
    x_max = 1.08 * max([1.0, *(bar.high for bar in bars)])
    height = HEAD + BAR_HEIGHT * len(bars) + FOOT

    def across(x: float) -> float:
        return NAME_WIDTH + (WIDTH - NAME_WIDTH - RIGHT) * x / x_max

    parts = [text(8, 20, title, "font-weight:bold;font-size:14px")]
    bottom = HEAD + BAR_HEIGHT * len(bars)
    for tick in ticks(x_max):
        parts.append(rule(across(tick), HEAD, across(tick), bottom, FAINT))
        parts.append(text(across(tick), bottom + 16, f"{tick:g}", "text-anchor:middle"))
    for number, bar in enumerate(bars):
        y = HEAD + BAR_HEIGHT * number
        colour = COLOURS[0] if bar.median >= 1.0 else COLOURS[1]
        middle = y + BAR_HEIGHT / 2
        parts.append(text(NAME_WIDTH - 8, middle + 4, bar.name, "text-anchor:end"))
        parts.append(box(across(0), y + 4, across(bar.median) - across(0), BAR_HEIGHT - 8, colour))
        parts.append(rule(across(bar.low), middle, across(bar.high), middle, INK))
        parts.append(text(across(bar.high) + 5, middle + 4, f"{bar.median:.2f}", "font-size:11px"))
    parts.append(rule(across(1.0), HEAD - 4, across(1.0), bottom, INK, "stroke-dasharray:5 4"))
    parts.append(text(across(1.0), HEAD - 8, one, "text-anchor:middle;font-size:11px"))
    return document(height, parts)


def amounts(title: str, rows: Sequence[tuple[str, float]], unit: str) -> str:
    """A bar for each amount."""
    x_max = 1.15 * max([value for _, value in rows], default=1.0)
    top = HEAD - 20
    bottom = top + BAR_HEIGHT * len(rows)

    def across(x: float) -> float:
        return WIDE_NAME_WIDTH + (WIDTH - WIDE_NAME_WIDTH - RIGHT) * x / x_max

    parts = [text(8, 20, title, "font-weight:bold;font-size:14px")]
    for tick in ticks(x_max):
        parts.append(rule(across(tick), top, across(tick), bottom, FAINT))
        parts.append(text(across(tick), bottom + 16, f"{tick:,g}", "text-anchor:middle"))
    for number, (name, value) in enumerate(rows):
        y = top + BAR_HEIGHT * number
        parts.append(text(WIDE_NAME_WIDTH - 8, y + 16, name, "text-anchor:end"))
        parts.append(box(across(0), y + 4, across(value) - across(0), BAR_HEIGHT - 8, COLOURS[0]))
        parts.append(text(across(value) + 5, y + 16, f"{value:,g}", "font-size:11px"))
    parts.append(text(WIDTH - RIGHT, bottom + 30, unit, "text-anchor:end"))
    return document(bottom + FOOT, parts)


def ticks(highest: float) -> list[float]:
    """Four to eight round values from 0 up to `highest`."""
    step = 10.0 ** math.floor(math.log10(highest)) if highest > 0 else 1.0
    for finer in (1.0, 0.5, 0.2, 0.1):
        if highest / (step * finer) >= 4:
            step *= finer
            break
    return [round(number * step, 10) for number in range(int(highest / step) + 1)]


def document(height: float, parts: Sequence[str]) -> str:
    size = f'width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}"'
    body = "\n".join(parts)
    white = box(0, 0, WIDTH, height, "#ffffff")
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{STYLE}">\n{white}\n{body}\n</svg>\n'


def text(x: float, y: float, words: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" style="fill:{INK};{style}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}" fill="{colour}"/>'


def rule(x: float, y: float, x_end: float, y_end: float, colour: str, style: str = "") -> str:
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{x_end:.1f}" y2="{y_end:.1f}"'
    return f'<line {ends} style="stroke:{colour};{style}"/>'
