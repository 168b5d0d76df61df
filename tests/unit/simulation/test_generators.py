from __future__ import annotations

import pytest

from scheduler.simulation.generators import WORKLOADS, distinct, opaque, search, unlike
from scheduler.simulation.workload import kind_of


@pytest.mark.parametrize("name", ["distinct", "search", "small"])
def test_no_two_rows_of_a_first_contact_workload_are_of_one_class(name: str) -> None:
    make, tasks = WORKLOADS[name]
    assert len({kind_of(row.spec).key for row in make(tasks, 1)}) == tasks


def test_distinct_jobs_have_no_family_in_common() -> None:
    assert len({kind_of(row.spec).family for row in distinct(40, 1)}) == 40


def test_unlike_jobs_last_as_long_as_asked() -> None:
    assert all(60 <= row.seconds <= 180 for row in unlike(30, 2, (60, 180)))


def test_trials_of_a_search_are_one_family() -> None:
    assert len({kind_of(row.spec).family for row in search(60, 1)}) == 1


def test_opaque_names_keep_what_a_task_needs() -> None:
    rows = list(search(60, 3))
    hidden = list(opaque(rows))
    assert [(row.peak, row.seconds, row.busy) for row in hidden] == [(row.peak, row.seconds, row.busy) for row in rows]
    assert len({kind_of(row.spec).family for row in hidden}) == 60


def test_another_seed_makes_other_trials() -> None:
    assert [row.spec.command for row in search(5, 1)] != [row.spec.command for row in search(5, 2)]
