"""The record of one attempt's metrics: its curves, its epochs, and how far its files were read.

Reading continues at the positions in the record. So a restarted sampler loses nothing, and a view can read what was
written after the last sample.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scheduler.core.metrics.curve import Curve
from scheduler.core.metrics.goal import loose, ranked
from scheduler.core.metrics.readings import Progress, Reading, left

FORMAT = 1
MOST_METRICS = 32
"""The most metrics that are kept for one attempt: those that were read first. Watched metrics are kept even above this
number."""
MOST_SHOWN, SHOWN_VALUES = 4, 24
"""The number of metrics that live views get, and the number of values of each."""
MOST_NEWS = 500
"""The most new values of watched metrics that are kept until they are passed on; older ones are dropped."""
LARGEST = 4 << 20
"""The size in bytes above which a record is not read, because it must be damaged."""


class MetricRecord:
    """The metrics of one attempt."""

    watched: frozenset[str] = frozenset()
    """The metrics whose new values are passed on one by one, in the form that `loose` returns."""

    def __init__(self) -> None:
        self.news: list[tuple[str, float, float]] = []
        """New values of watched metrics, each with its step."""
        self.curves: dict[str, Curve] = {}
        self.reported: set[str] = set()
        """The metrics that come from the result file. Numbers with such a name in the output do not count."""
        self.progress: Progress | None = None
        self.log_at = 0
        """The position up to which the output was read."""
        self.result_at = 0
        """The position up to which JSON lines of the result file were read."""
        self.result_state: list[int] = []
        """The inode, size and modification time (in nanoseconds) of the result file when it was last read."""
        self.final = False
        """True if everything that the attempt wrote has been read."""

    def take(self, readings: Iterable[Reading], *, reported: bool = False) -> None:
        """Add readings, either from the output or from the result file."""
        for name, value, step in readings:
            if not reported and name in self.reported:
                continue
            if reported and name in self.curves and name not in self.reported:
                self.curves[name] = Curve()  # what the task reports itself replaces what was found in its output
            curve = self.curves.get(name)
            watched = bool(self.watched) and loose(name) in self.watched
            if curve is None:
                if len(self.curves) >= MOST_METRICS and not watched:
                    continue
                curve = self.curves[name] = Curve()
            if reported:
                self.reported.add(name)
            curve.add(value, step)
            if watched:
                self.news.append((name, value, curve.last_step))
        del self.news[:-MOST_NEWS]

    def complete(self, result: Mapping[str, Any]) -> None:
        """Add the numbers that the task wrote as its result, if its sampler did not read them before the end.

        A curve from the output stays as it is, because the result may be a summary of it.
        """
        missed = []
        for name, value, step in left(result):
            curve = self.curves.get(name)
            if curve is None or (name in self.reported and curve.last != value):
                missed.append((name, value, step))
        self.take(missed, reported=True)

    def watch(self, names: Iterable[str]) -> None:
        """Pass on all values of these metrics: first those that are known already, then each new one."""
        self.watched = frozenset(map(loose, names)) - {""}
        for name, curve in self.curves.items():
            if loose(name) in self.watched:
                self.news += [(name, value, step) for step, value in curve.steps()]
                if not math.isfinite(curve.last):
                    self.news.append((name, curve.last, curve.last_step))

    def last_values(self, first: Sequence[str] = ()) -> dict[str, list[float | None]]:
        """Return the last finite values of the most important metrics; if the very last value is not finite, None
        follows.
        """
        return {
            name: [*self.curves[name].values(SHOWN_VALUES), *([] if math.isfinite(self.curves[name].last) else [None])]
            for name in ranked(self.curves, first)[:MOST_SHOWN]
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {
            "format": FORMAT,
            "final": self.final,
            "progress": self.progress,
            "log_at": self.log_at,
            "result_at": self.result_at,
            "result_state": self.result_state,
            "reported": sorted(self.reported),
            "metrics": {name: curve.to_dict() for name, curve in self.curves.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MetricRecord:
        """Return the record that `to_dict` described; raise KeyError, TypeError or ValueError for anything else."""
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']} of metrics is unknown here")
        made = cls()
        made.final = bool(data["final"])
        if data["progress"] is not None:
            done, of = data["progress"]
            made.progress = float(done), None if of is None else float(of)
        made.log_at, made.result_at = int(data["log_at"]), int(data["result_at"])
        made.result_state = [int(number) for number in data["result_state"]]
        made.curves = {str(name): Curve.from_dict(one) for name, one in [*data["metrics"].items()][:MOST_METRICS]}
        made.reported = {str(name) for name in data["reported"]} & made.curves.keys()
        return made

    def dump(self) -> bytes:
        """Return the record as text for a file."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def load(cls, text: bytes) -> MetricRecord | None:
        """Return the record that `dump` wrote; None if it is damaged or of a newer version."""
        try:
            return cls.from_dict(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return None
