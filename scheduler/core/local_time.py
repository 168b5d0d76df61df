"""Local times: the conversion to instants, even on days when the clock is put forward or back, and texts for users.

A zone of None is the time zone of this process.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, tzinfo

from scheduler.units import duration

DAY = 24 * 60
"""The number of minutes in a day."""
LATEST = 253_370_764_800.0
"""The beginning of the year 9999, in seconds since the epoch."""
NEAR = 6
"""The number of days ahead up to which a time is named by its day of the week."""


def local(at: float, zone: tzinfo | None = None) -> datetime:
    """Return an instant as local date and time, without a zone; limit it to the years 1970 to 9998."""
    at = min(max(0.0, at), LATEST)
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None, fold=0)


def instant(when: datetime, zone: tzinfo | None = None) -> float:
    """Return the instant of a local date and time, in seconds since the epoch.

    A time that the clock skips means the moment of the change; a time that occurs twice means its first occurrence.
    """
    at = when.replace(tzinfo=zone, fold=0).timestamp()
    skipped = (local(at, zone) - when).total_seconds()
    if skipped <= 0:
        return at
    early, late = int(at - skipped), int(at)
    while early < late:
        middle = (early + late) // 2
        early, late = (early, middle) if local(middle, zone) >= when else (middle + 1, late)
    return float(early)


def on_day(day: date, minute: int, zone: tzinfo | None = None) -> float:
    """Return the instant of a minute of a local day; minute 1440 is the beginning of the next day."""
    days, rest = divmod(minute, DAY)
    return instant(datetime.combine(day + timedelta(days), time(rest // 60, rest % 60)), zone)


def moment(at: float, now: float, zone: tzinfo | None = None) -> str:
    """Return a future time for users: `22:00`, `Sat 22:00`, `2026-12-01 08:00`, each as `… (in 3h12m)`."""
    return f"{clock_time(at, now, zone)} (in {duration(max(0.0, at - now))})"


def clock_time(at: float, now: float, zone: tzinfo | None = None) -> str:
    """Return a time for users, with the day unless that is today."""
    then, today = local(at, zone), local(now, zone).date()
    days, seconds = (then.date() - today).days, ":%S" if then.second else ""
    form = "%H:%M" if days == 0 else "%a %H:%M" if 0 < days <= NEAR else "%Y-%m-%d %H:%M"
    return then.strftime(form + seconds)
