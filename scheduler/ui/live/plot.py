"""Curves of dots for a terminal: each character holds two by four dots."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.values import dataclass

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_EMPTY = 0x2800
Point = tuple[float, float]


MARK = "×"
"""The character at the point where a curve became NaN or infinite."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of a curve, and the position of its mark."""

    ends: tuple[str, str] = ("", "")
    """The labels at the left and the right end of the x axis."""
    unit: str = ""
    """The unit of the y axis."""
    low: float | None = None
    high: float | None = None
    """The highest value of the y axis; None: the axis has the range of the points."""
    span: tuple[float, float] | None = None
    """The range of the x axis; None: the range of the points."""
    mark: float | None = None
    """The x of MARK, which is drawn at the height of the last point; None: no mark."""


def plot(points: Sequence[Point], width: int, height: int, axes: Axes = Axes()) -> list[str]:  # noqa: B008 - frozen
    """Return a curve as lines of characters; the points are sorted by x."""
    if width < 1 or height < 1 or (not points and axes.mark is None):
        return [" " * width] * height
    wide, tall = 2 * width, 4 * height
    bottom, top = _range(points, axes)
    first, last = axes.span or (points[0][0], points[-1][0])
    cells = [[0] * width for _ in range(height)]
    before: tuple[int, int] | None = None
    for x, y in points:
        place = _place(x, first, last, wide, 0), tall - 1 - _place(y, bottom, top, tall, tall // 2)
        for column, row in _between(before or place, place):
            if 0 <= column < wide and 0 <= row < tall:
                cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
        before = place
    lines = ["".join(chr(_EMPTY + cell) if cell else " " for cell in line) for line in cells]
    if axes.mark is not None:
        at = min(width - 1, max(0, _place(axes.mark, first, last, wide, 0) // 2))
        down = height - 1 - _place(points[-1][1] if points else bottom, bottom, top, tall, tall // 2) // 4
        lines[down] = lines[down][:at] + MARK + lines[down][at + 1 :]
    return lines


def _place(value: float, low: float, high: float, cells: int, middle: int) -> int:
    """Return the index of the dot for a value on an axis from `low` to `high`; `middle` if these two are equal."""
    return round((value - low) / (high - low) * (cells - 1)) if high > low else middle


def _range(points: Sequence[Point], axes: Axes) -> tuple[float, float]:
    bottom = min((y for _, y in points), default=0.0) if axes.low is None else axes.low
    return bottom, max((y for _, y in points), default=0.0) if axes.high is None else axes.high


def _between(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots of a straight line between two dots."""
    (x, y), (to_x, to_y) = start, end
    steps = max(abs(to_x - x), abs(to_y - y), 1)
    return [(x + round((to_x - x) * n / steps), y + round((to_y - y) * n / steps)) for n in range(steps + 1)]


def labelled(points: Sequence[Point], width: int, height: int, axes: Axes = Axes()) -> list[str]:  # noqa: B008 - frozen
    """Return the lines of a curve, with its largest and smallest value to its left and the labels of x below it."""
    labels = [f"{end:.3g}{axes.unit}" if points else "" for end in _range(points, axes)]
    labels = [labels[1], *[""] * (height - 2), labels[0]][:height]
    wide = max(map(len, labels))
    lines = plot(points, width - wide - 3, height, axes)
    first, last = axes.ends
    below = f"{'':>{wide}} └ {first}{last:>{max(0, width - wide - 3 - len(first))}}"
    return [
        *(
            f"{label:>{wide}} ┤ {line}" if label else f"{'':>{wide}} │ {line}"
            for label, line in zip(labels, lines, strict=True)
        ),
        below,
    ]
