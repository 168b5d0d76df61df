"""Reasons of refusals and their properties."""

from __future__ import annotations

import pytest

from scheduler.core.control import messages
from scheduler.core.placement.refusal import Reason, Refusal


@pytest.mark.parametrize("reason", Reason)
class TestReason:
    def test_a_value_finds_its_reason(self, reason: Reason) -> None:
        assert Reason(str(reason)) is reason

    def test_every_reason_has_a_sentence_and_a_summary(self, reason: Reason) -> None:
        assert messages.why(Refusal(1, reason, "GPU 0", 1, 1, 1, "text"))
        assert messages.waiting({reason: 1200}) == f"1,200 {reason.waits}"
        assert messages.waiting({f"{reason}@host": 3}) == f"3 {reason.waits_on_host}"


def test_reasons_that_take_turns_are_those_whose_capacity_other_tasks_can_free() -> None:
    turns = {Reason.MEMORY, Reason.UNKNOWN, Reason.SPENT, Reason.ALONE, Reason.LOAD, Reason.BUSY, Reason.KEPT}
    assert {reason for reason in Reason if reason.takes_turns} == turns


def test_reasons_that_no_end_of_a_task_changes_have_the_least_hope() -> None:
    ranked = [reason for reason in sorted(Reason, key=lambda reason: reason.hope) if reason.hope < 3]
    closed = [Reason.DISABLED, Reason.CLOSED_DEVICE, Reason.SILENT_NODE, Reason.UNREADABLE]
    assert ranked == [Reason.NEVER, Reason.ABOVE_QUOTA, *closed, Reason.AVOIDED]
    assert [reason for reason in Reason if reason.is_device_closed] == closed
