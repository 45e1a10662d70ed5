"""The frame of `top` as lines of styled text, none wider than the terminal. Names come from clients: unprintable
characters become escapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from staniel.broker.admin.reasons import Severity
from staniel.broker.figures import QueueRow
from staniel.broker.operations.holds import HoldFigure, is_active
from staniel.server.cli.top.model import COLUMNS, Column, LinkState, TopModel, rate_text
from staniel.server.text import counted, human_duration, human_size, printable

NAME_MIN = 12
HEADER_LINES, FOOTER_LINES = 4, 1
KEYS = "q quit  ←→ sort  r reverse  / filter  p pause  ↑↓ scroll  ? help"
HELP = (
    ("← → or < >", "sort by the column to the left or right"),
    ("r", "reverse the order"),
    ("/", "filter by a part of the name; Enter keeps it, Esc clears it"),
    ("p, space", "hold still, and go on"),
    ("↑ ↓ PgUp PgDn Home End", "scroll"),
    ("q, Ctrl-C", "quit"),
)


def fitting_columns(width: int) -> list[Column]:
    """Return the columns that fit, the name first."""
    shown = list(COLUMNS)
    while len(shown) > 1 and NAME_MIN + sum([column.width + 1 for column in shown[1:]]) > width:
        shown.remove(max(shown, key=lambda column: column.rank))
    return shown


def frame(
    model: TopModel, where: str, size: tuple[int, int], ours_ms: int, first: int, prompt: str | None
) -> list[Text]:
    """Return a frame no larger than `size`, in columns and lines, with `first` rows scrolled past. `prompt` is the
    typed part of a filter.
    """
    width, height = size
    now_ms = model.now_ms(ours_ms)
    lines = [*_header(model, where, now_ms, width), *_table(model, width, now_ms, first, rows_on(height))]
    lines = lines[: max(0, height - FOOTER_LINES)]
    lines += [Text()] * (height - FOOTER_LINES - len(lines))
    lines.append(_footer(model, prompt))
    for line in lines:
        line.truncate(width)
    return lines[:height]


def whole(model: TopModel, where: str, width: int, ours_ms: int) -> list[Text]:
    """Return all rows, without the keys, for `--once`."""
    now_ms = model.now_ms(ours_ms)
    lines = [*_header(model, where, now_ms, width), *_table(model, width, now_ms, 0, len(model.rows))]
    for line in lines:
        line.truncate(width)
        line.rstrip()
    return lines


def whole_width(model: TopModel) -> int:
    """Return the width of all columns with the longest name."""
    names = [cell_len(printable(row.name)) for row in model.shown()]
    return max([NAME_MIN, *names]) + sum([column.width + 1 for column in COLUMNS])


def help_frame(size: tuple[int, int]) -> list[Text]:
    width, height = size
    lines = [Text("Keys", style="bold"), *[Text(f"  {keys:<24}{what}") for keys, what in HELP], Text()]
    lines.append(Text("Columns", style="bold"))
    lines += [Text(f"  {column.title:<24}{column.help}") for column in COLUMNS]
    lines = lines[: max(0, height - 1)]
    lines += [Text()] * (height - 1 - len(lines))
    lines.append(Text("any key: back", style="dim"))
    for line in lines:
        line.truncate(width)
    return lines[:height]


def rows_on(height: int) -> int:
    """Return how many queues a terminal of that height shows."""
    return max(0, height - HEADER_LINES - FOOTER_LINES)


def _header(model: TopModel, where: str, now_ms: int, width: int) -> list[Text]:
    totals, load, disk = model.totals, model.load, model.disk
    uptime = f", up {human_duration(max(0, now_ms - model.server.started_at_ms))}" if model.server else ""
    title = Text.assemble(("staniel  ", "bold"), *_health(model), f"  {printable(where)}{uptime}")
    counts = f"{counted(totals.queues, 'queue')}  {counted(totals.items, 'item')}, {human_size(totals.bytes)}"
    rates = f"in {rate_text(totals.put_rate)}/s  out {rate_text(totals.get_rate)}/s"
    people = [f"{totals.open_reads:,} open", f"{totals.waiters:,} waiting"]
    if load is not None:
        people.append(counted(load.connections, "connection"))
    lines = [_fitted([counts, rates, *people], width)]
    parts = [f"journals {human_size(totals.journal_bytes)}", f"unsynced {human_size(totals.unsynced_bytes)}"]
    if load is not None:
        if load.synced_at_ms:
            parts.append(f"last sync {human_duration(max(0, now_ms - load.synced_at_ms))} ago")
        parts.append(f"memory {human_size(load.memory_bytes)} of {human_size(load.memory_bytes_max)}")
    if disk is not None:
        parts.append(f"disk {human_size(disk.free_bytes)} free of {human_size(disk.bytes)}")
        parts += [_hold(hold, now_ms) for hold in disk.holds]
    lines.append(_fitted(parts, width))
    return [title, *lines]


def _hold(hold: HoldFigure, now_ms: int) -> str:
    if not is_active(hold):
        return f"hold {printable(hold.name)} DROPPED"
    return f"hold {printable(hold.name)} {human_size(hold.bytes)}, {human_duration(max(0, now_ms - hold.moved_ms))}"


def _fitted(parts: list[str], width: int) -> Text:
    """Return the figures that fit whole: a truncated one would be another figure."""
    line = parts[0]
    for part in parts[1:]:
        if cell_len(line) + 2 + cell_len(part) > width:
            break
        line += f"  {part}"
    return Text(line)


def _health(model: TopModel) -> list[tuple[str, str]]:
    if model.link is LinkState.CONNECTING:
        return [("connecting", "yellow")]
    if model.link is LinkState.LOST:
        return [(f"NOT CONNECTED: {printable(model.why_lost)}", "bold red")]
    health = model.health
    if health is None:
        return []
    shown = [("ready", "green") if health.ready_for_puts else ("NOT READY", "bold red")]
    if health.ready and not health.ready_for_puts:
        shown = [("REFUSES", "bold red")]
    if health.reasons:
        reason = health.reasons[0]
        style = "yellow" if reason.severity is Severity.WARNING else "red"
        more = f" (and {len(health.reasons) - 1} more: staniel health)" if len(health.reasons) > 1 else ""
        shown.append((f"  {printable(reason.text)}{more}", style))
    return shown


def _table(model: TopModel, width: int, now_ms: int, first: int, count: int) -> list[Text]:
    columns = fitting_columns(width)
    name_width = max(NAME_MIN, width - sum([column.width + 1 for column in columns[1:]]))
    sorted_by = COLUMNS[model.sort]
    head = Text(style="reverse")
    for column in columns:
        is_sorted = column is sorted_by
        title = column.title + ("▲" if model.is_reversed else "▼") * is_sorted
        text = set_cell_size(title, name_width) if column.width == 0 else " " + title.rjust(column.width)
        head.append(text, style="bold" if is_sorted else "")
    if sorted_by not in columns:
        head.append(f" by {sorted_by.title}", style="bold")
    rows = model.shown()
    lines = [head, *[_row(row, columns, name_width, now_ms) for row in rows[first : first + count]]]
    if not rows and model.is_whole:
        lines.append(Text("no queue has that in its name" if model.filter else "there are no queues", style="dim"))
    return lines


def _row(row: QueueRow, columns: Sequence[Column], name_width: int, now_ms: int) -> Text:
    name = printable(row.name)
    if cell_len(name) > name_width:
        name = set_cell_size(name, name_width - 1) + "…"
    cells = [set_cell_size(name, name_width)]
    cells += [" " + column.text(row, now_ms).rjust(column.width) for column in columns[1:]]
    return Text("".join(cells), style="red" if row.unreadable else "yellow" if row.paused != "none" else "")


def _footer(model: TopModel, prompt: str | None) -> Text:
    if prompt is not None:
        return Text.assemble(("filter: ", "bold"), printable(prompt), ("▏", "blink"), "  Enter keeps it, Esc clears it")
    moment = datetime.now().strftime("%H:%M:%S")
    state = " PAUSED " if model.is_paused else ""
    wanted = f"  filter: {printable(model.filter)}" if model.filter else ""
    return Text.assemble((moment, "dim"), (state, "bold yellow"), wanted, f"  {KEYS}")
