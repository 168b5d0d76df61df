"""The table of moves between states, and the state of a task after its attempt."""

from __future__ import annotations

import pytest

from scheduler.core.events import decode
from scheduler.core.lifecycle import MOVES, TaskState
from scheduler.core.model import LIVING, UNFINISHED, Purpose, State
from scheduler.errors import ForbiddenEvent
from tests.support.builders import (
    asked,
    brain,
    exited,
    placed,
    refused,
    run,
    started,
    states,
    tasks,
    tell,
)

ALLOWED = [(before, to) for before, tos in MOVES.items() for to in sorted(tos)]
FORBIDDEN = [(before, to) for before in State for to in State if to not in MOVES[before]]


class TestMoves:
    def test_every_state_has_its_row(self) -> None:
        assert set(MOVES) == set(State)

    @pytest.mark.parametrize(("before", "to"), ALLOWED)
    def test_an_allowed_move_changes_the_state(self, before: State, to: State) -> None:
        task = TaskState(7, 0, before)
        task.move(to, "so it is")
        assert (task.state, task.history) == (to, [f"{before} -> {to}: so it is"])

    @pytest.mark.parametrize(("before", "to"), FORBIDDEN)
    def test_a_forbidden_move_raises_with_the_whole_history(self, before: State, to: State) -> None:
        task = TaskState(7, 0, before, history=["waiting -> running: attempt 1", "started pid 5"])
        with pytest.raises(ForbiddenEvent) as caught:
            task.move(to, "so it is not")
        assert str(caught.value) == (
            f"task 7 cannot go from {before} to {to} (so it is not); "
            "history: waiting -> running: attempt 1; started pid 5"
        )
        assert task.state is before

    def test_no_state_may_follow_itself(self) -> None:
        assert all(state not in tos for state, tos in MOVES.items())

    def test_only_living_tasks_can_reach_an_ended_state(self) -> None:
        ends = {State.SUCCEEDED, State.FAILED, State.OOM, State.TIMEOUT, State.INTERRUPTED}
        assert {before for before, tos in MOVES.items() if tos & ends} == LIVING

    def test_no_state_follows_success(self) -> None:
        assert [state for state, tos in MOVES.items() if not tos] == [State.SUCCEEDED]

    def test_every_ended_task_except_a_succeeded_one_may_wait_again(self) -> None:
        assert all(
            MOVES[state] - {State.BLOCKED} == {State.WAITING} for state in set(State) - UNFINISHED - {State.SUCCEEDED}
        )


class TestEnding:
    @pytest.mark.parametrize("outcome", ["succeeded", "failed", "timeout", "interrupted"])
    def test_an_outcome_leads_to_the_state_of_that_name(self, outcome: str) -> None:
        b = tell(brain(tasks(1)), run(1, outcome))
        assert states(b) == {1: outcome}

    @pytest.mark.parametrize("outcome", ["oom", "lost"])
    def test_a_task_that_was_not_at_fault_waits_again(self, outcome: str) -> None:
        b = tell(brain(tasks(1)), run(1, outcome))
        assert states(b) == {1: "waiting"}

    @pytest.mark.parametrize(
        ("outcome", "retry_on"),
        [("failed", "failed"), ("failed", "failed,timeout"), ("timeout", "timeout"), ("timeout", "failed,timeout")],
    )
    def test_retries_apply_to_the_outcomes_that_the_row_names(self, outcome: str, retry_on: str) -> None:
        b = brain(tasks(1, retries=2, retry_on=retry_on))
        seen = [states(tell(b, run(1, outcome, attempt=attempt)))[1] for attempt in (1, 2, 3)]
        assert seen == ["waiting", "waiting", outcome]

    def test_a_timeout_is_not_retried_unless_requested(self) -> None:
        assert states(tell(brain(tasks(1, retries=2)), run(1, "timeout"))) == {1: "timeout"}
        assert states(tell(brain(tasks(1, retries=2, retry_on="timeout")), run(1, "failed"))) == {1: "failed"}

    def test_another_turn_uses_up_no_retry(self) -> None:
        b = brain(tasks(1, retries=1))
        turns = [run(1, "again", attempt=attempt, seconds=600.0) for attempt in range(1, 6)]
        assert states(tell(b, *turns)) == {1: "waiting"}
        assert states(tell(b, run(1, "failed", attempt=6))) == {1: "waiting"}
        assert states(tell(b, run(1, "failed", attempt=7))) == {1: "failed"}

    def test_three_short_turns_in_a_row_fail_a_task(self) -> None:
        b = brain(tasks(1, retries=9))
        seen = [states(tell(b, run(1, "again", attempt=attempt, seconds=59.0)))[1] for attempt in (1, 2, 3)]
        assert seen == ["waiting", "waiting", "failed"]

    def test_a_longer_turn_restarts_the_count_of_short_turns(self) -> None:
        b = brain(tasks(1))
        for attempt, seconds in enumerate([1.0, 1.0, 61.0, 1.0, 1.0], 1):
            tell(b, run(1, "again", attempt=attempt, seconds=seconds))
        assert states(b) == {1: "waiting"}

    def test_an_out_of_memory_has_three_retries_of_its_own(self) -> None:
        b = brain(tasks(1, retries=0))
        seen = [states(tell(b, run(1, "oom", attempt=attempt)))[1] for attempt in (1, 2, 3, 4)]
        assert seen == ["waiting", "waiting", "waiting", "oom"]

    @pytest.mark.parametrize(("outcome", "state"), [("oom", "oom"), ("lost", "failed"), ("unstarted", "waiting")])
    def test_a_lease_is_not_taken_again_once_its_process_had_it(self, outcome: str, state: str) -> None:
        b = brain(tasks(1, guest="12:4026531836.5:ab"))
        assert states(tell(b, run(1, outcome))) == {1: state}

    def test_three_losses_in_a_row_fail_a_task(self) -> None:
        b = brain(tasks(1, retries=9))
        seen = [states(tell(b, run(1, "lost", attempt=attempt)))[1] for attempt in (1, 2, 3)]
        assert seen == ["waiting", "waiting", "failed"]

    def test_two_losses_and_a_failure_are_no_three_losses(self) -> None:
        b = brain(tasks(1, retries=9))
        for attempt, outcome in enumerate(["lost", "lost", "failed", "lost", "lost"], 1):
            tell(b, run(1, outcome, attempt=attempt))
        assert states(b) == {1: "waiting"}

    def test_losses_use_up_no_retry(self) -> None:
        b = tell(brain(tasks(1, retries=1)), run(1, "lost"), run(1, "lost", attempt=2), run(1, "failed", attempt=3))
        assert states(b) == {1: "waiting"}
        assert states(tell(b, run(1, "failed", attempt=4))) == {1: "failed"}

    @pytest.mark.parametrize("outcome", ["interrupted", "failed", "oom", "lost"])
    def test_a_cancelled_task_is_cancelled_however_it_ends(self, outcome: str) -> None:
        b = tell(brain(tasks(1, retries=5)), placed(1), asked("cancel", 1), exited(1, outcome))
        assert states(b) == {1: "cancelled"}

    def test_a_stopped_task_that_succeeded_before_has_succeeded(self) -> None:
        b = tell(brain(tasks(1)), placed(1), asked("stop", 1), exited(1))
        assert states(b) == {1: "succeeded"}

    def test_a_probe_leads_back_to_the_queue(self) -> None:
        b = tell(brain(tasks(1)), placed(1, purpose=Purpose.PROBE))
        assert states(b) == {1: "probing"}
        assert states(tell(b, started(1), exited(1))) == {1: "waiting"}

    def test_a_failed_probe_fails_its_task(self) -> None:
        b = tell(brain(tasks(1)), placed(1, purpose=Purpose.PROBE), exited(1, "failed"))
        assert states(b) == {1: "failed"}

    def test_a_refused_task_never_ran(self) -> None:
        assert states(tell(brain(tasks(1)), refused(1))) == {1: "refused"}


class TestForbidden:
    """Events that cannot happen in a state are refused, and leave the Brain as it was."""

    def test_starting_before_a_placement_is_forbidden(self) -> None:
        with pytest.raises(
            ForbiddenEvent, match="task 1, attempt 1: started, but it does not live; history: now waiting"
        ):
            tell(brain(tasks(1)), started(1))

    def test_placing_twice_is_forbidden(self) -> None:
        with pytest.raises(ForbiddenEvent, match="task 1 cannot go from running to running"):
            tell(brain(tasks(1)), placed(1), placed(1, attempt=2))

    def test_placing_an_ended_task_is_forbidden(self) -> None:
        b = tell(brain(tasks(1)), run(1))
        with pytest.raises(ForbiddenEvent, match="from succeeded to running"):
            tell(b, placed(1))

    def test_leaving_out_an_attempt_is_forbidden(self) -> None:
        with pytest.raises(ForbiddenEvent, match="task 1: attempt 2 follows attempt 0"):
            tell(brain(tasks(1)), placed(1, attempt=2))

    def test_using_an_attempt_again_is_forbidden(self) -> None:
        b = tell(brain(tasks(1)), run(1, "lost"))
        with pytest.raises(ForbiddenEvent, match="task 1: attempt 1 follows attempt 1"):
            tell(b, placed(1))

    def test_ending_twice_is_forbidden_and_shows_the_history(self) -> None:
        b = tell(brain(tasks(1, retries=1)), run(1, "failed"))
        history = "waiting -> running: attempt 1 placed on host; started pid 1001; running -> waiting: attempt 1 failed"
        with pytest.raises(ForbiddenEvent, match=f"exited failed, but it does not live; history: {history}"):
            tell(b, exited(1, "failed"))

    def test_the_end_of_an_older_attempt_is_forbidden(self) -> None:
        b = tell(brain(tasks(1, retries=1)), run(1, "failed"), placed(1, attempt=2))
        with pytest.raises(ForbiddenEvent, match="task 1, attempt 1: exited succeeded"):
            tell(b, exited(1))

    def test_stopping_a_task_that_does_not_run_is_forbidden(self) -> None:
        with pytest.raises(ForbiddenEvent, match="task 1, attempt 0: stop, but it does not live; history: now waiting"):
            tell(brain(tasks(1)), asked("stop", 1))

    @pytest.mark.parametrize("what", ["cancel", "hold", "release", "retry"])
    def test_a_request_to_a_succeeded_task_is_forbidden(self, what: str) -> None:
        with pytest.raises(ForbiddenEvent, match="task 1 cannot go from succeeded to"):
            tell(brain(tasks(1)), run(1), asked(what, 1))

    def test_refusing_a_running_task_is_forbidden(self) -> None:
        with pytest.raises(ForbiddenEvent, match="from running to refused"):
            tell(brain(tasks(1)), placed(1), refused(1))

    def test_an_unknown_request_is_forbidden(self) -> None:
        with pytest.raises(ValueError, match="'dance' is not a valid Action"):
            decode("asked", {"what": "dance", "tasks": [1]})
