"""The judgement of arguments: which of them distinguish classes of different peaks."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.profiling.family.argument_table import Role
from scheduler.core.profiling.family.factor_test import ENOUGH, judge, spans
from scheduler.core.profiling.family.scatter import differ
from scheduler.units import GIB

VALUES = range(ENOUGH + 1)
GRID = list(itertools.product(VALUES, VALUES, VALUES))


def test_only_the_arguments_that_change_the_peak_distinguish_classes() -> None:
    for matter in itertools.chain.from_iterable(itertools.combinations(range(3), number) for number in range(4)):
        seen = [(key, (GIB * (1 + sum(key[place] * 5**place for place in matter)),)) for key in GRID]
        found = judge(seen, [Role.LEARNED] * 3, [len(VALUES)] * 3)
        assert found.splits == matter
        assert not found.contradicted


def test_an_argument_that_the_user_needs_distinguishes_whatever_the_peaks_are() -> None:
    seen = [(key, (GIB,)) for key in GRID]
    assert judge(seen, [Role.LEARNED, Role.NEEDED, Role.LEARNED], [len(VALUES)] * 3).splits == (1,)


def test_a_label_that_alone_explains_a_difference_is_no_longer_left_out() -> None:
    seen = [((place, other), (GIB * (1 + 9 * (place > 1)),)) for place in range(4) for other in range(4)]
    found = judge(seen, [Role.LABEL, Role.LEARNED], [4, 4])
    assert (found.splits, found.withdrawn, found.contradicted) == ((0,), {0}, True)


def test_several_labels_that_explain_a_difference_only_together_are_used_together() -> None:
    seen = [((a, b, 0), (GIB * (1 + 9 * (a ^ b)),)) for a in (0, 1) for b in (0, 1)]
    found = judge(seen, [Role.LABEL, Role.LABEL, Role.LEARNED], [2, 2, 1])
    assert found.withdrawn == {0, 1}
    assert set(found.splits) >= {0, 1}


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.tuples(*[st.integers(0, 2)] * 3), st.tuples(st.sampled_from([GIB, 2 * GIB, 5 * GIB]))),
        min_size=1,
        max_size=24,
    ),
    st.lists(st.sampled_from([Role.LEARNED, Role.NEEDED]), min_size=3, max_size=3),
)
def test_classes_that_a_verdict_does_not_distinguish_had_like_peaks(
    seen: list[tuple[tuple[int, int, int], tuple[int]]], roles: list[Role]
) -> None:
    found = judge(seen, roles, [3, 3, 3])
    explicable = {key: high for key, (_, high) in spans(seen, (0, 1, 2)).items()}
    cells = spans(explicable.items(), found.splits)
    assert all(not differ(low[0], high[0]) for low, high in cells.values())
    assert {place for place, role in enumerate(roles) if role is Role.NEEDED} <= set(found.splits)
    assert not found.withdrawn
