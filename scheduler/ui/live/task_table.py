"""The table of tasks of the live view, with as many columns as the width has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from scheduler.core.metrics.goal import ranked
from scheduler.core.model import State
from scheduler.ui.live.task_list import METRIC, PARAMETER, TaskRow, exit_of, memory_of, reason_of, seconds_of
from scheduler.ui.terminal.panels import Line, Piece, epochs_of, short_size, sparkline
from scheduler.ui.text import clock, columns, fit, fit_middle
from scheduler.units import duration
from scheduler.values import dataclass

MOST_METRICS = 4
LEAST_REASON, WIDEST_REASON = 18, 48
LEAST_NAME, WIDEST_NAME, WIDEST_PARAMETER, WIDEST_DEVICE = 24, 60, 16, 14
SHORTEST_SPARK, LONGEST_SPARK = 6, 24
GAP = 2
OPTIONAL = 13
"""The rank from which on columns are left out before names are truncated."""
SELECTED, SELECTED_SHAPE = "reverse", "reverse on bright_black"
"""The styles of the selected row. Its curves are grey on the row's colour, because without a background they would look
like holes in it.
"""
SHAPE = "shape "
"""The prefix of the names of columns with the curve of a metric."""
STATE_STYLES = {
    State.RUNNING: "green", State.PROBING: "cyan", State.HELD: "yellow", State.SUCCEEDED: "dim",
    State.FAILED: "bold red", State.OOM: "bold red", State.TIMEOUT: "bold red", State.REFUSED: "bold red",
    State.CANCELLED: "dim", State.SKIPPED: "dim",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table."""

    name: str
    """The name by which the column is selected for sorting."""
    title: str
    cell: Callable[[TaskRow], Piece]
    rank: int
    """The rank of the column; if there is too little room, columns with the highest ranks are left out first."""
    right: bool = False
    most: int = 40
    least: int = 0
    shrinks: int = 0
    """The width to which the column may shrink before another column is left out; 0: it does not shrink."""
    stretch: int = 0
    """The width to which the column may grow if there is room; 0: it does not grow."""
    sparse: bool = False
    """True if the column is left out as long as no row has had a value in it."""


def make(
    rows: Sequence[TaskRow],
    varies: Sequence[str],
    width: int,
    sort: str,
    *,
    down: bool,
    no_metrics: Sequence[str] = (),
    filled: set[str] | None = None,
) -> Table:
    """Return a table of these rows that fits into `width`; `no_metrics` has names of printed values that do not count
    as metrics.

    Sparse columns without a value are left out. `filled` has the names of columns that have had a value; these stay,
    and the names of columns that now have one are added to it.
    """
    metrics = _metrics(rows, (*varies, *no_metrics))
    found = [*_fixed(rows, varies), *_parameters(rows, varies), *_measured(rows), *metrics]
    cells = {column.name: [column.cell(row) for row in rows] for column in found}
    filled = set() if filled is None else filled
    filled.update(column.name for column in found if any(text for text, _ in cells[column.name]))
    found = [column for column in found if not column.sparse or column.name in filled]
    needed = {column.name: _width(column, (text for text, _ in cells[column.name])) for column in found}
    wide = {column.name: min(needed[column.name], column.shrinks or width) for column in found}
    shown = _chosen(_chosen(found, needed, width, OPTIONAL), wide, width)
    _grow(shown, wide, {column.name: column.stretch or needed[column.name] for column in shown}, width)
    return Table(shown, wide, cells, sort, down)


class Table:
    """The columns that are shown, and the texts of their cells."""

    def __init__(
        self, shown: Sequence[Column], wide: dict[str, int], cells: dict[str, list[Piece]], sort: str, down: bool
    ) -> None:
        self._shown, self._wide, self._cells = shown, wide, cells
        self._sort, self._down = sort, down

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in their order."""
        return [column.name for column in self._shown]

    @property
    def width(self) -> int:
        """The width of all columns, with the gaps between them."""
        return sum(self._wide[column.name] + GAP for column in self._shown) - GAP

    def header(self, width: int) -> Line:
        """Return the line of titles; an arrow marks the column by which the list is sorted."""
        line: list[Piece] = []
        for column in self._shown:
            title, style = column.title, "bold"
            if column.name == self._sort:
                title = fit(title, self._wide[column.name] - 1) + ("▾" if self._down else "▴")
                style = "bold cyan"
            line.append((self._placed(title, column), style))
        return _filled(line, width)

    def line(self, at: int, width: int, *, selected: bool) -> Line:
        """Return the line of the row at index `at`."""
        line: list[Piece] = []
        for column in self._shown:
            text, style = self._cells[column.name][at]
            line.append((self._placed(text, column), style))
        filled = _filled(line, width)
        if not selected:
            return filled
        shapes = {at for at, column in enumerate(self._shown) if column.name.startswith(SHAPE)}
        return tuple((text, SELECTED_SHAPE if at in shapes else SELECTED) for at, (text, _) in enumerate(filled))

    def _placed(self, text: str, column: Column) -> str:
        """Return the text of a cell, padded to its column's width and followed by a gap; the last column has no gap."""
        wide, gap = self._wide[column.name], "" if column is self._shown[-1] else " " * GAP
        if column.name == "name":
            return fit_middle(text, wide) + gap
        short = _thinned(text, wide) if column.name.startswith(SHAPE) else fit(text, wide)
        blanks = " " * (wide - columns(short))
        return (blanks + short if column.right else short + blanks) + gap


def _thinned(shape: str, width: int) -> str:
    """Return a curve of blocks in at most this width; a longer curve is divided into equal parts, each of which is
    shown by its last block.
    """
    if len(shape) <= width:
        return shape
    return "".join(shape[(place + 1) * len(shape) // width - 1] for place in range(width))


def _filled(line: Sequence[Piece], width: int) -> Line:
    """Return a line of exactly this width, cut or padded with blanks."""
    kept: list[Piece] = []
    left = width
    for text, style in line:
        kept.append((fit(text, left) if columns(text) > left else text, style))
        left -= columns(kept[-1][0])
    return (*kept, (" " * left, "")) if left > 0 else tuple(kept)


def _width(column: Column, texts: Iterable[str]) -> int:
    widest = max((columns(text) for text in texts), default=0)
    return max(column.least, min(column.most, max(widest, columns(column.title))))


def _chosen(found: Sequence[Column], wide: dict[str, int], width: int, least: int = 1) -> list[Column]:
    """Return the columns that fit into the width. The columns with the highest ranks are left out first, but none whose
    rank is below `least`.
    """
    shown = list(found)
    while sum(wide[column.name] + GAP for column in shown) - GAP > width:
        last = max(shown, key=lambda column: column.rank)
        if last.rank < least:
            break
        shown.remove(last)
    left = width - sum(wide[column.name] + GAP for column in shown) + GAP
    for column in sorted((one for one in found if one not in shown), key=lambda one: one.rank):
        if wide[column.name] + GAP <= left and not column.name.startswith(SHAPE):  # a narrower one may still fit
            shown.append(column)
            left -= wide[column.name] + GAP
    return [column for column in found if column in shown]


def _grow(shown: Sequence[Column], wide: dict[str, int], up_to: dict[str, int], width: int) -> None:
    """Distribute the remaining width to columns that can use it."""
    left = width - sum(wide[column.name] + GAP for column in shown) + GAP
    for column in sorted(shown, key=lambda one: one.name != "reason"):  # why a task failed is read first
        more = max(0, min(left, up_to[column.name] - wide[column.name]))
        wide[column.name] += more
        left -= more


# ---- the columns ----


def _fixed(rows: Sequence[TaskRow], varies: Sequence[str]) -> list[Column]:
    """Return the columns for id, state and name; leave the name out if all rows differ only in parameters that are
    shown.
    """
    found = [
        Column("task", "task", lambda row: (str(row.task), _row_style(row)), 0, right=True, least=4),
        Column("state", "state", _state, 1, least=7),
    ]
    scripts = {row.words.script for row in rows}
    named = any(row.words.name != row.words.script and not row.words.parameters for row in rows)
    if len(scripts) > 1 or named or not varies:
        found.append(
            Column("name", "name", lambda row: (_title(row), _row_style(row)), 2, most=WIDEST_NAME, shrinks=LEAST_NAME)
        )
    return found


def _parameters(rows: Sequence[TaskRow], varies: Sequence[str]) -> list[Column]:
    def column(at: int, name: str) -> Column:
        cell = lambda row: (row.words.parameters.get(name, ""), "bold" if row.live else "")  # noqa: E731 - a cell
        right = all(_is_number(row.words.parameters.get(name, "")) for row in rows)
        return Column(PARAMETER + name, name, cell, 3 + 2 * at, right=right, most=WIDEST_PARAMETER)

    return [column(at, name) for at, name in enumerate(varies)]


def _measured(rows: Sequence[TaskRow]) -> list[Column]:
    found = [
        Column("exit", "exit", _exit, 7, right=True, sparse=True),
        Column("device", "device", _device, 12, most=WIDEST_DEVICE, sparse=True),
        Column("time", "time", _time, 4, right=True, least=6),
        Column("epochs", "epochs", _epochs, 8, right=True, sparse=True),
        Column("memory", "peak/reserved", _memory, 9, right=True),
        Column("left", "left", _left, 6, right=True, least=6, sparse=True),
        Column("ended", "ended", _ended, 17, right=True, sparse=True),
        Column("reason", "reason", _reason, 6, most=WIDEST_REASON, shrinks=LEAST_REASON, sparse=True),
    ]
    if any(row.priority for row in rows):
        found.append(Column("prio", "prio", lambda row: (str(row.priority), ""), 16, right=True))
    return found


def _metrics(rows: Sequence[TaskRow], varies: Sequence[str]) -> list[Column]:
    """Return a column for each of the most important metrics: the last value, and its curve if there is room.

    A parameter that a task also prints does not count as a metric.
    """
    names = ranked(dict.fromkeys(name for row in rows for name, values in row.metrics.items() if values))
    names = [name for name in names if name not in varies]
    found = []
    for at, name in enumerate(names[:MOST_METRICS]):
        first = at == 0
        cell = partial(_last, name)
        found.append(Column(METRIC + name, name, cell, 5 if first else 14 + 4 * at, right=True, most=12, least=6))
        found.append(
            Column(
                SHAPE + name, "", partial(_shape, name), 15 if first else 16 + 4 * at, most=SHORTEST_SPARK,
                least=SHORTEST_SPARK, stretch=_longest(rows, name),
            )
        )  # fmt: skip
    return found


def _longest(rows: Sequence[TaskRow], name: str) -> int:
    """Return the width that the complete curve of a metric needs; for a running task, the width at the end of
    the task.
    """
    coming = max((row.live.of_epochs or 0 for row in rows if row.live is not None and name in row.metrics), default=0)
    known = max((len(row.metrics.get(name, ())) for row in rows), default=0)
    return max(SHORTEST_SPARK, min(LONGEST_SPARK, max(coming, known)))


def _last(name: str, row: TaskRow) -> Piece:
    return last_value(row.metrics.get(name, ())), "green" if row.live else ""


def last_value(values: Sequence[float | None]) -> str:
    """Return the last value of a metric as a string."""
    return "" if not values else "nan" if values[-1] is None else f"{values[-1]:.4g}"


def _shape(name: str, row: TaskRow) -> Piece:
    return sparkline(row.metrics.get(name, ()), LONGEST_SPARK), "green" if row.live else "dim"


def _row_style(row: TaskRow) -> str:
    if row.live is not None and row.live.asked:
        return "bold yellow"
    return "bold" if row.live is not None else "dim" if row.state is State.SUCCEEDED else ""


def _title(row: TaskRow) -> str:
    again = f" (attempt {row.live.attempt})" if row.live is not None and row.live.attempt > 1 else ""
    return f"{row.words.script if row.words.parameters else row.words.name}{again}"


def _state(row: TaskRow) -> Piece:
    if row.live is not None and row.live.asked:
        return "ending", "bold yellow"
    return str(row.state), STATE_STYLES.get(row.state, "")


def _exit(row: TaskRow) -> Piece:
    found = exit_of(row)
    return (str(found) if found else ""), "red"


def _reason(row: TaskRow) -> Piece:
    return reason_of(row), "red"


def _ended(row: TaskRow) -> Piece:
    return (clock(row.attempt.ended) if row.attempt is not None and row.attempt.ended else ""), ""


def _device(row: TaskRow) -> Piece:
    return (", ".join(row.live.devices) if row.live is not None else ""), ""


def _time(row: TaskRow) -> Piece:
    seconds = seconds_of(row)
    return ("" if seconds is None else duration(seconds)), ""


def _epochs(row: TaskRow) -> Piece:
    return (epochs_of(row.live) if row.live is not None else ""), ""


def _memory(row: TaskRow) -> Piece:
    found = memory_of(row)
    if found is None:
        return "", ""
    peak, reserved = found
    tight = row.live is not None and reserved and peak > reserved
    return f"{short_size(peak)}/{short_size(reserved)}", "bold red" if tight else ""


def _left(row: TaskRow) -> Piece:
    left = row.live.left if row.live is not None else None
    return ("" if left is None else duration(left)), ""


def _is_number(text: str) -> bool:
    try:
        float(text or "0")
    except ValueError:
        return False
    return True
