"""docs/performance.md and its charts, made from docs/performance.json alone."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log10
from pathlib import Path
from typing import Any

from measuring import machine

from scheduler.experiment.charts import ChartBar, bars
from scheduler.experiment.readings import Spread
from scheduler.ui.charts.svg import FAINT, GREY, LARGE, SMALL, Drawing, SvgRect, SvgText, svg

HEAD = """# Performance

The cost of `scheduler`, compared with the least possible cost (the *limit*) and with other tools, all measured in the
same run. Times from two machines or two days cannot be compared; **ratios within one run** can. So the programs take
turns. A figure is the median, with the lowest and the highest turn in brackets, and "times the limit" refers to the
limit of the same turn.

`./scripts/bench/all` measures everything and writes this page (`--quick`: fewer turns; `--only dispatch`: one part).
All figures are in [performance.json](performance.json).
"""
GPU = """## Not shown here

This machine has no GPU. Only a GPU can show what calls of NVML cost with one and with several boards, how much sooner a
real training list ends when it is packed (the traces above are simulated with published slowdowns, and the tasks on the
stand-in GPUs only sleep), what MPS adds, how long a CUDA context takes at start-up, and how soon a real driver frees
the memory of an ended task.
"""
QUIET = 1.0
BUSY = """ The machine had
other work at the time (each part gives the load of the minute before). So times are longer than on a quiet machine, and
99th percentiles much longer. Ratios are distorted, too: a program that starts and syncs more often waits more often,
and a program whose processes lead sessions of their own, as those of `scheduler` do, may get more of the cores."""
OURS, LIMIT, OTHER = "#3b6fb6", "#9aa3ad", "#d99a2b"


@dataclass(frozen=True)
class Bound:
    """The bound of a figure, and its measured value."""

    what: str
    most: float
    measured: float
    unit: str = ""

    @property
    def kept(self) -> bool:
        """True if the measured value is within the bound."""
        return self.measured <= self.most

    def row(self) -> list[str]:
        """Return the row of the table at the top."""
        shown = f"{number(self.measured)} {self.unit}".strip()
        return [self.what, f"{number(self.most)} {self.unit}".strip(), shown, "yes" if self.kept else "**no**"]


@dataclass
class Section:
    """One part of the page."""

    title: str
    text: list[str] = field(default_factory=list)
    """Paragraphs and tables, in their order."""
    charts: dict[str, Drawing] = field(default_factory=dict)
    bounds: list[Bound] = field(default_factory=list)

    def show(self, name: str, said: str, drawing: Drawing) -> None:
        """A chart, where the text is now."""
        self.charts[name] = drawing
        self.text.append(f"![{said}](performance/{name}.svg)")


def number(value: float) -> str:
    """With as many digits as say something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(values: Sequence[float]) -> str:
    """The median, and between what it lies."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown; numbers to the right."""
    all_ = list(rows)
    right = [all(_numeric(row[column]) for row in all_) for column in range(len(header))]
    lines = [header, [("---:" if one else "---") for one in right], *all_]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _numeric(cell: str) -> bool:
    return not cell or cell[0] in "0123456789-–+<" or cell.startswith("**")


def not_measured(missing: Mapping[str, str]) -> list[str]:
    """Return a sentence for each tool that is missing, with the reason."""
    return [f"Not measured: {name} ({why})." for name, why in missing.items()]


def colour(name: str) -> str:
    """Ours, the limits, the others."""
    return LIMIT if name.startswith("C ") else OURS if name.startswith("scheduler") else OTHER


def bar_chart(title: str, better: str, measured: Mapping[str, Sequence[float]], unit: str = "") -> Drawing:
    """A bar for each, as long as its median, with whiskers from the least to the most."""
    lines = [
        ChartBar(name, Spread(statistics.median(values), min(values), max(values)), colour(name))
        for name, values in measured.items()
    ]
    return bars(title, better, lines, lambda value: f"{number(value)} {unit}".strip())


@dataclass(frozen=True)
class Axis:
    """One of a chart whose axes are both logarithmic: from 10**least to 10**most."""

    least: int
    most: int
    names: Sequence[str]
    """The names of its powers of ten."""

    def at(self, value: float, length: float) -> float:
        """Where a value lies on it."""
        return length * (log10(value) - self.least) / (self.most - self.least)


def dots(title: str, along: Axis, up: Axis, series: Mapping[str, Sequence[tuple[float, float]]]) -> Drawing:
    """Points in the colours of what they are, on logarithmic axes."""
    left, top, width, height = 90.0, 34.0, 700.0, 220.0
    drawn = Drawing(left + width + 30, top + height + 60)
    drawn.words.append(SvgText(0, 18, title, size=LARGE))
    for place, name in enumerate(up.names):
        y = top + height - height * place / (len(up.names) - 1)
        drawn.rects.append(SvgRect(left, y, width, 1, FAINT))
        drawn.words.append(SvgText(left - 8, y + 4, name, "end", SMALL, GREY))
    for place, name in enumerate(along.names):
        x = left + width * place / (len(along.names) - 1)
        drawn.words.append(SvgText(x, top + height + 18, name, "middle", SMALL, GREY))
    for place, (name, points) in enumerate(series.items()):
        hue = (OURS, "#c0392b", OTHER, "#58a55c")[place % 4]
        drawn.rects.append(SvgRect(left + place * 230, top + height + 36, 10, 10, hue))
        drawn.words.append(SvgText(left + place * 230 + 16, top + height + 46, name))
        for x, y in points:
            drawn.rects.append(SvgRect(left + along.at(x, width) - 4, top + height - up.at(y, height) - 4, 8, 8, hue))
    return drawn


def written(stored: Mapping[str, Any], sections: Sequence[Section], into: Path) -> str:
    """The page; its charts are written into the folder."""
    into.mkdir(exist_ok=True)
    charts = {f"{name}.svg": svg(drawing) + "\n" for one in sections for name, drawing in one.charts.items()}
    for old in set(into.glob("*.svg")) - {into / name for name in charts}:
        old.unlink()
    for name, text in charts.items():
        (into / name).write_text(text, encoding="utf-8")
    return page(stored, sections)


def page(stored: Mapping[str, Any], sections: Sequence[Section]) -> str:
    """All of its text."""
    here, bounds = stored["machine"], [bound for one in sections for bound in one.bounds]
    on = (
        f"Measured on a machine of {here['cores']} cores ({here['processor']}), {here['memory']}, "
        f"{here['system']}, Python {here['python']}."
    )
    if max((part["load"] for part in stored["parts"].values()), default=0) > QUIET:
        on += BUSY
    said = [
        HEAD,
        on,
        "\n## Targets\n",
        table(("figure", "at most", "measured", "kept"), map(Bound.row, bounds)),
    ]
    for one in sections:
        said += [f"\n## {one.title}\n", "\n\n".join(one.text)]
    return "\n".join([*said, "", GPU])


def load(path: Path) -> dict[str, Any]:
    """Return the measurements so far; no parts where there are none."""
    found: dict[str, Any] = (
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"machine": machine(), "parts": {}}
    )
    return found
