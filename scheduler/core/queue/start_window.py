"""The window in which a run may start tasks: `20:00-07:00`, `mon-fri 20:00-07:00, sat-sun 00:00-24:00`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta, tzinfo
from math import inf

from scheduler.core.local_time import DAY, local, on_day
from scheduler.patterns import lazy_pattern
from scheduler.values import dataclass

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
AHEAD = 8
"""A number of days within which every window opens and closes at least once."""
_PART = lazy_pattern(r"(?:([a-z]{3}(?:-[a-z]{3})?) +)?(\d{1,2}):(\d\d) *- *(\d{1,2}):(\d\d)\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class DailySpan:
    """A span of time on some days of the week in which tasks may start."""

    days: frozenset[int]
    """The days on which the span opens; 0 is Monday."""
    opens: int
    """The minute of the day at which the span opens."""
    closes: int
    """The minute at which the span closes, counted from the beginning of the day on which it opens; above 1440: on the
    next day."""


@dataclass(frozen=True, slots=True)
class StartWindow:
    """All spans of time in which a run may start tasks."""

    spans: tuple[DailySpan, ...]

    def now(self, at: float, zone: tzinfo | None = None) -> tuple[bool, float]:
        """Return whether the window is open at a time, and the time at which that changes; inf: never."""
        first = local(at, zone).date() - timedelta(1)
        last = on_day(first, AHEAD * DAY, zone)
        for opens, closes in self._openings(at, zone):
            if at < opens:
                return False, opens
            if at < closes:
                return True, closes if closes < last else inf
        return False, inf

    def _openings(self, at: float, zone: tzinfo | None) -> Iterator[tuple[float, float]]:
        """Yield the times at which the window is open, from yesterday on, as pairs of a start and an end, in order and
        without overlap.
        """
        yesterday = local(at, zone).date() - timedelta(1)
        days = [yesterday + timedelta(number) for number in range(AHEAD + 2)]
        times = sorted(
            (on_day(day, span.opens, zone), on_day(day, span.closes, zone))
            for day in days
            for span in self.spans
            if day.weekday() in span.days
        )
        begun, ended = times[0]
        for opens, closes in times[1:]:
            if opens > ended:
                yield begun, ended
                begun, ended = opens, closes
            ended = max(ended, closes)
        yield begun, ended


def parse(text: str) -> StartWindow:
    """Return the window that a text describes; raise ValueError for any other text."""
    return StartWindow(tuple(_span(part.strip()) for part in text.split(",")))


def _span(part: str) -> DailySpan:
    match = _PART.match(part.lower())
    if match is None:
        raise ValueError(
            f"{part!r} is not a window: write it like 20:00-07:00 or mon-fri 20:00-07:00; without one ('') tasks start "
            "at any time"
        )
    opens, closes = _minute(match[2], match[3], DAY - 1), _minute(match[4], match[5], DAY)
    if opens == closes:
        raise ValueError(f"{part!r} has no length: all day is 00:00-24:00")
    return DailySpan(_days(match[1]), opens, closes if closes > opens else closes + DAY)


def _minute(hours: str, minutes: str, most: int) -> int:
    minute = int(hours) * 60 + int(minutes)
    if minute > most or int(minutes) > 59:
        raise ValueError(f"{hours}:{minutes} is not a time of day: it goes from 00:00 to 23:59")
    return minute


def _days(text: str | None) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    first, _, last = text.partition("-")
    for name in filter(None, (first, last)):
        if name not in DAYS:
            raise ValueError(f"{name!r} is not a day: write mon, tue, wed, thu, fri, sat or sun")
    begin, end = DAYS.index(first), DAYS.index(last or first)
    return frozenset(day % 7 for day in range(begin, end + 1 if end >= begin else end + 8))
