"""The judgement of chaos.py on submissions: what was answered is compared with what is there."""

from __future__ import annotations

import pytest

from scripts.bench.chaos_queue import ACCEPTED, REFUSED, UNKNOWN, Sent, faults

A = {"id": 7, "name": "a"}


@pytest.mark.parametrize(
    ("sent", "tasks", "found"),
    [
        (Sent("a", None, ACCEPTED, 7), [A], []),
        (Sent("a", None, UNKNOWN), [A], []),
        (Sent("a", None, UNKNOWN), [], []),
        (Sent("a", None, ACCEPTED, 7), [], ["lost"]),
        (Sent("a", None, ACCEPTED, 8), [A], ["lost"]),
        (Sent("a", None, ACCEPTED, 7), [A, {**A, "id": 8}], ["duplicated"]),
        (Sent("a", None, REFUSED, said="no task has the name 'b'"), [A], ["duplicated"]),
        (Sent("a", None, REFUSED, said="something else"), [], ["disagreements"]),
        (Sent("b", None, UNKNOWN), [A], ["lost"]),
    ],
)
def test_only_what_is_there_once_as_answered_is_right(
    sent: Sent, tasks: list[dict[str, object]], found: list[str]
) -> None:
    assert [what for what, _ in faults([sent], tasks, lambda _, __: False)] == found


def test_a_refusal_counts_for_nothing_only_where_the_disk_was_full_at_its_time() -> None:
    sent = Sent("a", None, REFUSED, said="the disk is full", began=5.0, ended=6.0)
    full = [(4.0, 5.5)]
    was_full = lambda since, until: any(begin <= until and since <= end for begin, end in full)  # noqa: E731
    assert not faults([sent], [], was_full)
    full[:] = [(1.0, 4.9), (6.1, 8.0)]
    assert [what for what, _ in faults([sent], [], was_full)] == ["disagreements"]
