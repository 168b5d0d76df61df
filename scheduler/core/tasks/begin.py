"""The time before which a task must not start: `22:00`, `+2h`, `2026-12-01T08:00`."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, tzinfo

from scheduler.core.local_time import clock_time, instant, local
from scheduler.patterns import lazy_pattern
from scheduler.units import duration, parse_duration

FORMS = "write it like 22:00, +2h or 2026-12-01T08:00"
FARTHEST = 10 * 366 * 86400.0
"""The longest time, in seconds, from now to a begin time. A later time is assumed to be a typing error."""
_TIME = lazy_pattern(r"(\d{1,2}):(\d\d)(?::(\d\d))?\Z", re.ASCII)
_DATE = lazy_pattern(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?(Z|[+-]\d\d:?\d\d)?\Z", re.ASCII)


def read(text: str, now: float | None = None, zone: tzinfo | None = None) -> float:
    """Return the instant that a text names, in seconds since the epoch; raise ValueError for any other text.

    A time of day means the next such time after `now`. Without `now`, only a date with an offset from UTC is accepted,
    in the format that `absolute` returns.
    """
    bare = text.strip()
    if now is None:
        at = _date(bare)
        if at.tzinfo is None:
            raise ValueError(f"{bare!r} depends on when it is read")
        return at.timestamp()
    found = _found(bare, now, zone)
    if found > now + FARTHEST:
        raise ValueError(f"{bare!r} is more than {duration(FARTHEST)} ahead")
    return found


def _found(bare: str, now: float, zone: tzinfo | None) -> float:
    if bare.startswith("+"):
        return now + _seconds(bare)
    if match := _TIME.match(bare):
        return _next(bare, int(match[1]), int(match[2]), int(match[3] or 0), now, zone)
    date = _date(bare)
    at = instant(date, zone) if date.tzinfo is None else date.timestamp()
    if at <= now:
        raise ValueError(f"{bare!r} is past: it is {clock_time(now, now, zone)}, {duration(now - at)} later")
    return at


def _seconds(bare: str) -> float:
    try:
        seconds = parse_duration(bare[1:])
    except ValueError:
        raise ValueError(f"{bare!r} is not a time from now: write it like +90s, +2h or +1d12h") from None
    if seconds <= 0:
        raise ValueError(f"{bare!r} is no time at all: leave it out to begin at once")
    return seconds


def _next(bare: str, hour: int, minute: int, second: int, now: float, zone: tzinfo | None) -> float:
    """Return the next instant after `now` at which a local clock shows this time of day."""
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{bare!r} is not a time of day: it goes from 00:00 to 23:59")
    today = local(now, zone).replace(hour=hour, minute=minute, second=second, microsecond=0)
    candidates = (instant(today + timedelta(days), zone) for days in range(3))
    return next(at for at in candidates if at > now)


def _date(bare: str) -> datetime:
    if not _DATE.match(bare):
        raise ValueError(f"{bare!r} is not a time: {FORMS}")
    try:
        return datetime.fromisoformat(bare)
    except ValueError as exc:
        raise ValueError(f"{bare!r} is not a time: {str(exc).lower()}") from exc


def absolute(text: str, now: float, zone: tzinfo | None = None) -> str:
    """Return the instant that a text names, rounded up to a second, as a date with its offset from UTC."""
    at = math.ceil(read(text, now, zone))
    then = datetime.fromtimestamp(at, zone) if zone is not None else datetime.fromtimestamp(at).astimezone()
    return then.isoformat()
