"""Drawings of rectangles and words, as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from html import escape

from scheduler.values import dataclass
from scheduler.view.words import clean

INK, GREY, FAINT = "#222222", "#777777", "#e4e4e4"
SMALL, USUAL, LARGE = 11, 13, 16


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled one; `said` is shown to whoever points at it."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    said: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """One line of them; `y` is its foot, and `x` its beginning, middle or end."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    size: int = USUAL
    fill: str = INK


@dataclass(slots=True)
class Drawing:
    """What lies later covers what lies before."""

    width: float
    height: float
    rects: list[Rect] = field(default_factory=list)
    words: list[Words] = field(default_factory=list)
    """Above all rectangles."""

    def put(self, other: Drawing, x: float, y: float) -> None:
        """Another drawing, with its corner there."""
        self.rects += [Rect(r.x + x, r.y + y, r.width, r.height, r.fill, r.said) for r in other.rects]
        self.words += [Words(w.x + x, w.y + y, w.text, w.anchor, w.size, w.fill) for w in other.words]


def column(drawings: list[Drawing], gap: float = 18.0, margin: float = 24.0) -> Drawing:
    """Drawings one below the other."""
    height = sum(one.height + gap for one in drawings) - gap
    whole = Drawing(max(one.width for one in drawings) + 2 * margin, height + 2 * margin)
    y = margin
    for one in drawings:
        whole.put(one, margin, y)
        y += one.height + gap
    return whole


def svg(drawing: Drawing) -> str:
    """As a picture that stands in a page by itself."""
    return "\n".join(_lines(drawing))


def _lines(drawing: Drawing) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {drawing.width:.0f} {drawing.height:.0f}" '
        f'width="{drawing.width:.0f}" font-family="Helvetica, Arial, sans-serif">'
    )
    yield '<rect width="100%" height="100%" fill="white"/>'
    for r in drawing.rects:
        said = f"<title>{escape(clean(r.said))}</title>" if r.said else ""
        where = f'x="{r.x:.2f}" y="{r.y:.2f}" width="{max(r.width, 0):.2f}" height="{max(r.height, 0):.2f}"'
        yield f'<rect {where} fill="{r.fill}">{said}</rect>'
    for w in drawing.words:
        where = f'x="{w.x:.1f}" y="{w.y:.1f}" text-anchor="{w.anchor}" font-size="{w.size}" fill="{w.fill}"'
        yield f"<text {where}>{escape(clean(w.text))}</text>"
    yield "</svg>"
