"""Drawings that consist of rectangles and texts, written as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from scheduler.ui.text import clean
from scheduler.values import dataclass, field

INK, GREY, FAINT = "#222222", "#777777", "#e4e4e4"
SMALL, USUAL, LARGE = 11, 13, 16


@dataclass(frozen=True, slots=True)
class SvgRect:
    """A filled rectangle; a browser shows `title` while the pointer is on the rectangle."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class SvgText:
    """One line of text; `y` is its base line; `x` is its beginning, middle or end, as `anchor` says."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    size: int = USUAL
    fill: str = INK


@dataclass(slots=True)
class Drawing:
    """A drawing; later rectangles cover earlier ones."""

    width: float
    height: float
    rects: list[SvgRect] = field(default_factory=list)
    words: list[SvgText] = field(default_factory=list)
    """The texts, which are drawn above all rectangles."""

    def put(self, other: Drawing, x: float, y: float) -> None:
        """Insert another drawing with its upper left corner at (x, y)."""
        self.rects += [SvgRect(r.x + x, r.y + y, r.width, r.height, r.fill, r.title) for r in other.rects]
        self.words += [SvgText(w.x + x, w.y + y, w.text, w.anchor, w.size, w.fill) for w in other.words]


def column(drawings: list[Drawing], gap: float = 18.0, margin: float = 24.0) -> Drawing:
    """Return one drawing with the given drawings one below the other."""
    height = sum(one.height + gap for one in drawings) - gap
    whole = Drawing(max(one.width for one in drawings) + 2 * margin, height + 2 * margin)
    y = margin
    for one in drawings:
        whole.put(one, margin, y)
        y += one.height + gap
    return whole


def svg(drawing: Drawing) -> str:
    """Return a drawing as a complete SVG file."""
    return "\n".join(_lines(drawing))


def _lines(drawing: Drawing) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {drawing.width:.0f} {drawing.height:.0f}" '
        f'width="{drawing.width:.0f}" font-family="Helvetica, Arial, sans-serif">'
    )
    yield '<rect width="100%" height="100%" fill="white"/>'
    for r in drawing.rects:
        title = f"<title>{escape(clean(r.title))}</title>" if r.title else ""
        where = f'x="{r.x:.2f}" y="{r.y:.2f}" width="{max(r.width, 0):.2f}" height="{max(r.height, 0):.2f}"'
        yield f'<rect {where} fill="{r.fill}">{title}</rect>'
    for w in drawing.words:
        where = f'x="{w.x:.1f}" y="{w.y:.1f}" text-anchor="{w.anchor}" font-size="{w.size}" fill="{w.fill}"'
        yield f"<text {where}>{escape(clean(w.text))}</text>"
    yield "</svg>"
