"""The judgement of chaos.py on the order of tasks that wait for others: it finds what it is there to find."""

from __future__ import annotations

import random

import pytest

from scripts.bench.chaos_links import Links, Ordered, make_links

TASKS = {1: Links("prep"), 2: Links("train", after=("prep",)), 3: Links("tidy", ended=("train",))}
RIGHT = [(1, "begin"), (1, "end"), (2, "begin"), (2, "end"), (3, "begin"), (3, "end")]


def faults(states: list[str], lines: list[tuple[int, str]]) -> list[str]:
    return [what for what, _ in Ordered(TASKS, dict(zip(TASKS, states, strict=True)), lines).faults()]


def test_the_right_order_and_a_skipped_child_of_a_failed_parent_are_no_faults() -> None:
    assert faults(["succeeded"] * 3, RIGHT) == []
    assert faults(["failed", "skipped", "succeeded"], [line for line in RIGHT if line[0] != 2]) == []


@pytest.mark.parametrize(
    ("states", "lines", "found"),
    [
        (["succeeded"] * 3, [RIGHT[0], RIGHT[2], RIGHT[1], *RIGHT[3:]], ["disagreements"]),
        (["succeeded"] * 3, [*RIGHT[:4], RIGHT[4], RIGHT[5], (2, "begin")], ["disagreements"]),
        (["failed", "succeeded", "succeeded"], RIGHT, ["lost", "duplicated"]),
        (["succeeded", "skipped", "succeeded"], [*RIGHT[:2], *RIGHT[4:]], ["lost"]),
    ],
    ids=["before its parent ended", "before its parent was tried again", "not skipped", "skipped without a cause"],
)
def test_faults_are_found(states: list[str], lines: list[tuple[int, str]], found: list[str]) -> None:
    assert faults(states, lines) == found


def test_links_name_no_task_that_comes_later_in_the_order_in_which_they_were_made() -> None:
    for seed in range(20):
        made = make_links(random.Random(seed), 30)
        order = {one.name: place for place, one in reversed([*enumerate(made)])}
        assert all(order[name] < order[one.name] for one in made for name in (*one.after, *one.ended))
