"""Generated input at every door of the program: each case is accepted, or refused in one sentence."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support import doors
from tests.support.doors import BY_NAME, DOORS, Case, Door, Fault, Place
from tests.support.faults import fault
from tests.support.share import cases

CASES = cases(2000, 400)
"""The number of generated cases in all."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("doors"))


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_generated_input_is_accepted_or_refused_in_one_sentence(door: Door, place: Place) -> None:
    @settings(
        max_examples=CASES * door.share // 100,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(door.cases)
    def try_one(case: Case) -> None:
        door.give(place, case)

    try_one()


@fault(27)
@pytest.mark.parametrize(("name", "case"), doors.corpus())
def test_input_that_found_a_fault_once_is_accepted_or_refused_in_one_sentence(
    name: str, case: Case, place: Place
) -> None:
    BY_NAME[name].give(place, case)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("embedded null byte"), "ValueError: embedded null byte"),
        (RecursionError("too deep"), "RecursionError: too deep"),
    ],
)
def test_error_that_is_no_sentence_is_a_fault(error: Exception, said: str) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(Fault, match=said):
        doors.judged(fail)


def test_refusal_of_two_lines_is_a_fault(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def two(argv: list[str]) -> int:
        doors.sys.stderr.write("scheduler: one sentence that is long\nscheduler: and another one\n")
        return 2

    monkeypatch.setattr(doors, "main", two)
    with pytest.raises(Fault, match="without its one sentence"):
        place.run("list")


def test_call_that_never_returns_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "HANG", 0.05)

    def spin() -> None:
        while True:
            pass

    with pytest.raises(Fault, match="no answer"):
        doors.judged(spin)


def test_shares_of_the_doors_are_a_hundred() -> None:
    assert sum(door.share for door in DOORS) == 100
    assert isinstance(DOORS[0].cases, st.SearchStrategy)
