"""The window in which a run may start tasks: texts, nights, days of the week, and clocks that are put back."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from math import inf
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.local_time import instant, local
from scheduler.core.queue.start_window import DAYS, parse

BERLIN = ZoneInfo("Europe/Berlin")
UTC = ZoneInfo("UTC")


def at(text: str, zone: ZoneInfo = BERLIN) -> float:
    return instant(datetime.fromisoformat(text), zone)


def state(window: str, when: str) -> tuple[bool, str]:
    is_open, until = parse(window).now(at(when), BERLIN)
    return is_open, "never" if until == inf else local(until, BERLIN).isoformat(sep=" ", timespec="minutes")


class TestNow:
    def test_a_window_over_midnight_is_open_late_and_early(self) -> None:
        assert state("20:00-07:00", "2026-11-20 19:59") == (False, "2026-11-20 20:00")
        assert state("20:00-07:00", "2026-11-20 20:00") == (True, "2026-11-21 07:00")
        assert state("20:00-07:00", "2026-11-21 06:59") == (True, "2026-11-21 07:00")
        assert state("20:00-07:00", "2026-11-21 07:00") == (False, "2026-11-21 20:00")

    def test_days_name_the_day_on_which_a_window_opens(self) -> None:
        assert state("fri 20:00-07:00", "2026-11-21 03:00") == (True, "2026-11-21 07:00")  # Saturday night
        assert state("fri 20:00-07:00", "2026-11-20 03:00") == (False, "2026-11-20 20:00")
        assert state("fri-mon 20:00-21:00", "2026-11-17 12:00") == (False, "2026-11-20 20:00")  # from a Tuesday on

    def test_windows_that_touch_are_one(self) -> None:
        weekend = "mon-fri 20:00-07:00, sat-sun 00:00-24:00"
        assert state(weekend, "2026-11-20 21:00") == (True, "2026-11-23 00:00")  # from Friday to the end of Sunday
        assert state("00:00-24:00", "2026-11-20 21:00") == (True, "never")

    def test_a_night_in_which_the_clock_is_put_back_has_an_hour_more(self) -> None:
        opens, closes = at("2026-10-24 20:00"), at("2026-10-25 07:00")
        assert closes - opens == 12 * 3600
        assert parse("20:00-07:00").now(closes - 1, BERLIN) == (True, closes)

    def test_a_night_in_which_the_clock_is_put_forward_has_an_hour_less(self) -> None:
        opens, closes = at("2026-03-28 20:00"), at("2026-03-29 07:00")
        assert closes - opens == 10 * 3600
        assert parse("20:00-07:00").now(opens, BERLIN) == (True, closes)

    def test_a_window_that_opens_in_the_skipped_hour_opens_at_the_change(self) -> None:
        assert state("02:30-03:10", "2026-03-29 01:00") == (False, "2026-03-29 03:00")
        assert state("02:30-03:10", "2026-03-29 03:05") == (True, "2026-03-29 03:10")

    def test_a_window_of_the_repeated_hour_is_open_once(self) -> None:
        first = at("2026-10-25 02:15")
        assert parse("02:00-02:30").now(first, BERLIN)[0]
        assert not parse("02:00-02:30").now(first + 3600, BERLIN)[0]

    @given(
        st.integers(0, 1439),
        st.integers(1, 1439),
        st.sets(st.sampled_from(DAYS), min_size=1),
        st.integers(0, 400 * 24 * 60),
    )
    def test_the_state_is_that_of_the_minutes_of_the_day_and_changes_when_it_says(
        self, opens: int, length: int, days: set[str], minute: int
    ) -> None:
        closes = (opens + length) % 1440
        times = f"{opens // 60:02d}:{opens % 60:02d}-{closes // 60:02d}:{closes % 60:02d}"
        window = parse(",".join(f"{day} {times}" for day in sorted(days)))
        now = datetime.fromisoformat("2026-01-01") + timedelta(minutes=minute)
        is_open, until = window.now(at(now.isoformat(), UTC), UTC)

        def expected(when: datetime) -> bool:
            today, yesterday = (DAYS[(when - timedelta(back)).weekday()] in days for back in (0, 1))
            of_day = when.hour * 60 + when.minute
            return (today and opens <= of_day < opens + length) or (yesterday and of_day + 1440 < opens + length)

        assert is_open == expected(now)
        then = local(until, UTC)
        assert now < then <= now + timedelta(8)
        assert expected(then) != is_open
        assert expected(then - timedelta(minutes=1)) == is_open


CURE = "write it like 20:00-07:00 or mon-fri 20:00-07:00; without one ('') tasks start at any time"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("20:00-20:00", "'20:00-20:00' has no length: all day is 00:00-24:00"),
        ("25:00-07:00", "25:00 is not a time of day: it goes from 00:00 to 23:59"),
        ("20:00-07:61", "07:61 is not a time of day: it goes from 00:00 to 23:59"),
        ("24:00-07:00", "24:00 is not a time of day: it goes from 00:00 to 23:59"),
        ("noon-07:00", f"'noon-07:00' is not a window: {CURE}"),
        ("20:00", f"'20:00' is not a window: {CURE}"),
        ("20:00-07:00,", f"'' is not a window: {CURE}"),
        ("off", f"'off' is not a window: {CURE}"),
        ("abc 20:00-07:00", "'abc' is not a day: write mon, tue, wed, thu, fri, sat or sun"),
    ],
)
def test_a_window_without_sense_is_refused_in_a_sentence(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says) + r"\Z"):
        parse(text)
