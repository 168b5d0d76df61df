"""The time before which a task must not start: what its texts mean, and which are refused."""

from __future__ import annotations

import re
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from scheduler.core.local_time import clock_time, instant, moment
from scheduler.core.tasks.begin import absolute, read

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> float:
    return instant(datetime.fromisoformat(text), BERLIN)


NOW = at("2026-11-20 18:48")


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("22:00", "2026-11-20 22:00"),
        ("22:00:30", "2026-11-20 22:00:30"),
        ("8:00", "2026-11-21 08:00"),
        ("18:48", "2026-11-21 18:48"),
        ("+2h", "2026-11-20 20:48"),
        ("+1d12h", "2026-11-22 06:48"),
        ("2026-12-01T08:00", "2026-12-01 08:00"),
        ("2026-12-01 08:00", "2026-12-01 08:00"),
        ("2026-12-01", "2026-12-01 00:00"),
        ("2026-12-01T08:00:00+00:00", "2026-12-01 09:00"),
        ("2026-12-01T08:00Z", "2026-12-01 09:00"),
    ],
)
def test_a_text_means_an_instant(text: str, means: str) -> None:
    assert read(text, NOW, BERLIN) == at(means)
    assert read(absolute(text, NOW, BERLIN)) == at(means)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("25:00", "'25:00' is not a time of day: it goes from 00:00 to 23:59"),
        ("22:60", "'22:60' is not a time of day: it goes from 00:00 to 23:59"),
        ("2026-11-20T18:00", "'2026-11-20T18:00' is past: it is 18:48, 48m00s later"),
        ("2026-02-30", "'2026-02-30' is not a time: day is out of range for month"),
        ("+0s", "'+0s' is no time at all: leave it out to begin at once"),
        ("+soon", "'+soon' is not a time from now: write it like +90s, +2h or +1d12h"),
        ("tonight", "'tonight' is not a time: write it like 22:00, +2h or 2026-12-01T08:00"),
        ("2h", "'2h' is not a time: write it like 22:00, +2h or 2026-12-01T08:00"),
        ("2126-01-01", "'2126-01-01' is more than 3660d00h ahead"),
    ],
)
def test_a_text_without_sense_is_refused_in_a_sentence(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says) + r"\Z"):
        read(text, NOW, BERLIN)


def test_a_time_that_the_clock_skips_is_the_moment_of_the_change() -> None:
    assert read("02:30", at("2026-03-28 23:00"), BERLIN) == at("2026-03-29 03:00")


def test_a_time_that_comes_twice_means_the_first_one() -> None:
    before = at("2026-10-25 01:00")
    assert read("02:30", before, BERLIN) == before + 90 * 60
    assert read("02:30", before + 100 * 60, BERLIN) == at("2026-10-26 02:30")


def test_a_relative_time_is_refused_where_the_time_of_reading_is_unknown() -> None:
    with pytest.raises(ValueError, match="is not a time"):
        read("22:00")


@pytest.mark.parametrize(
    ("then", "shown"),
    [
        ("2026-11-20 22:00", "22:00 (in 3h12m)"),
        ("2026-11-20 22:00:30", "22:00:30 (in 3h12m)"),
        ("2026-11-21 07:00", "Sat 07:00 (in 12h12m)"),
        ("2026-12-01 08:00", "2026-12-01 08:00 (in 10d13h)"),
    ],
)
def test_a_moment_is_shown_with_its_day_and_the_time_until_then(then: str, shown: str) -> None:
    assert moment(at(then), NOW, BERLIN) == shown
    assert clock_time(at(then), NOW, BERLIN) == shown.partition(" (")[0]


def test_a_time_from_now_never_begins_early() -> None:
    assert read(absolute("+2s", NOW + 0.3, BERLIN)) == NOW + 3
