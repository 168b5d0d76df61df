"""Requests to a run: which are granted, what the answer says, and what a replay makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from scheduler.core.brain import Brain
from scheduler.core.control.requests import grant, named, onward, sentence
from scheduler.core.events import Asked, Changed, Limited, Submitted
from scheduler.core.model import DeviceBudget
from scheduler.core.ports import Request
from scheduler.core.tasks.begin import absolute
from tests.support.builders import (
    Simulation,
    asked,
    brain,
    decide,
    exited,
    gpu,
    host,
    jobs,
    ordered,
    picture,
    place,
    placed,
    reasons,
    refused,
    run,
    slots,
    starts,
    states,
    tasks,
    tell,
    terms,
)


def number_in(b: Brain) -> Any:
    """Return a function that numbers terms as a run store does."""

    def number(new: Any) -> int:
        if new not in b.terms:
            b.terms.append(new)
        return b.terms.index(new)

    return number


def ask(
    b: Brain, what: str, *numbers: int, said: Mapping[str, str] | None = None, on: tuple[DeviceBudget, ...] = ()
) -> list[str]:
    """Ask it of a Brain, have what is granted come true; the answers."""
    granted = grant(b, Request(what, numbers, said or {}), on or (host(),), number_in(b))
    tell(b, *granted.events)
    return [("" if answer.done else "not: ") + sentence(answer) for answer in granted.answers]


class TestCancel:
    def test_a_cancelled_waiting_task_never_starts(self) -> None:
        b = brain(tasks(3, "1GiB"))
        assert ask(b, "cancel", 2) == ["task 2: cancelled"]
        assert states(b) == {1: "waiting", 2: "cancelled", 3: "waiting"}
        assert starts(b) == [1, 3]

    def test_a_cancelled_running_task_is_cancelled_however_its_attempt_ends(self) -> None:
        b = tell(brain(tasks(2)), placed(1))
        assert ask(b, "cancel", 1) == ["task 1: is being stopped, then cancelled"]
        assert states(tell(b, exited(1, "interrupted")))[1] == "cancelled"

    def test_a_task_that_succeeds_before_its_cancel_stays_succeeded(self) -> None:
        b = tell(brain(tasks(2)), placed(1), asked("cancel", 1), exited(1))
        assert states(b)[1] == "succeeded"

    def test_cancel_leaves_ended_tasks_as_they_are(self) -> None:
        b = tell(brain(tasks(3)), run(1), run(2, "failed"))
        assert ask(b, "cancel", 1, 2, 3) == [
            "task 3: cancelled",
            "not: task 1: already ended: succeeded",
            "not: task 2: already ended: failed",
        ]

    def test_cancel_takes_held_and_interrupted_tasks(self) -> None:
        b = tell(brain(tasks(2)), asked("hold", 1), run(2, "interrupted"))
        assert ask(b, "cancel", 1, 2) == ["tasks 1-2: cancelled"]
        assert states(b) == {1: "cancelled", 2: "cancelled"}

    def test_cancel_refuses_a_task_that_is_not_in_the_run(self) -> None:
        assert ask(brain(tasks(1)), "cancel", 9) == ["not: task 9: is not a task of this run"]


class TestHoldAndRelease:
    def test_a_held_task_does_not_start_before_its_release(self) -> None:
        b = brain(tasks(3, "1GiB"))
        assert ask(b, "hold", 1, 2) == ["tasks 1-2: held"]
        assert starts(b) == [3]
        assert ask(b, "release", 1) == ["task 1: released"]
        assert starts(b) == [1, 3]

    def test_hold_and_release_of_a_run_apply_to_the_tasks_that_they_fit(self) -> None:
        b = tell(brain(tasks(4)), placed(1), run(2, "failed"))
        assert ask(b, "hold") == ["tasks 3-4: held"]
        assert ask(b, "hold") == ["not: no task of the run waits"]
        assert ask(b, "release") == ["tasks 3-4: released"]

    def test_hold_and_release_give_the_reason_for_each_task_that_is_unchanged(self) -> None:
        b = tell(brain(tasks(3)), placed(1), asked("hold", 2))
        assert ask(b, "hold", 1, 2) == [
            "not: task 1: runs already and is not changed",
            "not: task 2: is held already",
        ]
        assert ask(b, "release", 3) == ["not: task 3: is not held: waiting"]

    def test_a_held_task_keeps_a_run_from_its_end_until_the_run_drains(self) -> None:
        b = tell(brain(tasks(1)), asked("hold", 1))
        assert not b.over
        assert tell(b, asked("drain")).over

    def test_a_held_task_that_ran_out_of_memory_asks_for_more_after_its_release(self) -> None:
        b = tell(brain(tasks(1, "1GiB")), run(1, "oom"), asked("hold", 1), asked("release", 1))
        [placement] = decide(b).placements
        assert placement.attempt == 2
        assert placement.reservation["host"] > 1 << 30


class TestRetry:
    @pytest.mark.parametrize("outcome", ["failed", "timeout"])
    def test_attempts_after_a_retry_continue_the_numbering(self, outcome: str) -> None:
        b = tell(brain(tasks(1)), run(1, outcome))
        assert ask(b, "retry", 1) == [f"task 1: queued again (was {outcome})"]
        assert [p.attempt for p in decide(b).placements] == [2]
        tell(b, run(1, outcome, attempt=2))
        ask(b, "retry", 1)
        assert [p.attempt for p in decide(b).placements] == [3]

    def test_a_retry_resets_the_count_of_retries(self) -> None:
        b = tell(brain(tasks(1, retries=1)), run(1, "failed"), run(1, "failed", attempt=2), asked("retry", 1))
        assert states(tell(b, run(1, "failed", attempt=3))) == {1: "waiting"}

    def test_retry_of_a_run_repeats_failed_and_cancelled_tasks_only(self) -> None:
        b = tell(brain(tasks(5)), run(1), run(2, "failed"), asked("cancel", 3), refused(4))
        assert ask(b, "retry") == ["task 2: queued again (was failed)", "task 3: queued again (was cancelled)"]
        assert ask(b, "retry", 4) == ["task 4: queued again (was refused)"]
        assert ask(b, "retry", 1, 5)[0] == "not: task 1: already ended: succeeded"

    def test_retry_warns_where_the_run_starts_no_more_tasks(self) -> None:
        b = tell(brain(tasks(2)), run(1, "failed"), asked("drain"))
        assert ask(b, "retry", 1) == [
            "task 1: queued again (was failed), but the run starts no more tasks before scheduler resume"
        ]


class TestSet:
    def test_a_begin_is_answered_as_a_local_time(self) -> None:
        begin = absolute("2100-01-02T08:00:30", 4_102_444_800.0)
        assert ask(brain(tasks(1)), "set", 1, said={"Begin": begin}) == ["task 1: begin unset → 2100-01-02 08:00:30"]

    def test_priority_moves_a_task_in_its_batch(self) -> None:
        b = brain(tasks(3))
        assert ask(b, "set", 3, said={"Priority": "-5"}) == ["task 3: priority 0 → -5"]
        assert ordered(b) == [3, 1, 2]
        assert ask(b, "set", 3, said={"Priority": ""}) == ["task 3: priority -5 → 0"]
        assert ordered(b) == [1, 2, 3]

    def test_set_prints_memory_and_times_with_units(self) -> None:
        b = brain([terms("1GiB"), *tasks(1)])
        said = {"Memory": "12GiB", "Timeout": "90m"}
        assert ask(b, "set", 1, 2, said=said) == [
            "task 1: memory 1.0GiB → 12.0GiB, timeout unset → 1h30m",
            "task 2: memory unset → 12.0GiB, timeout unset → 1h30m",
        ]
        assert {p.task: p.reservation["host"] >> 30 for p in decide(b).placements}[1] == 12

    def test_set_of_a_value_that_is_set_already_says_so(self) -> None:
        assert ask(brain(tasks(1)), "set", 1, said={"Retries": "0"}) == ["task 1: retries is 0 already"]

    def test_set_does_not_change_running_tasks_and_applies_to_the_next_attempt_of_failed_ones(self) -> None:
        b = tell(brain(tasks(3)), placed(1), run(2, "oom"), run(2, "oom", attempt=2))
        tell(b, run(2, "oom", attempt=3), run(2, "oom", attempt=4), run(3))
        assert ask(b, "set", 1, 2, 3, said={"Memory": "8GiB"}) == [
            "task 2: memory unset → 8.0GiB for its next attempt (scheduler retry)",
            "not: task 1: runs already and is not changed",
            "not: task 3: already ended: succeeded",
        ]
        ask(b, "retry", 2)
        assert decide(b).placements[0].reservation["host"] >= 8 << 30

    def test_set_refuses_memory_and_devices_that_the_run_does_not_have(self) -> None:
        b = brain(tasks(1))
        [said] = ask(b, "set", 1, said={"Memory": "30GiB"})
        assert said == "not: task 1: unchanged: it needs 30.0GiB; the largest device (host) has 24.0GiB"
        [said] = ask(b, "set", 1, said={"Device": "7"})
        assert said == "not: task 1: unchanged: it names the device '7'; there is: host"

    def test_set_refuses_a_stop_warning_without_a_time_limit(self) -> None:
        [said] = ask(brain(tasks(1)), "set", 1, said={"StopSignal": "USR1@120"})
        assert said.startswith("not: task 1: unchanged, StopSignal: the warning is sent 120 s before the time limit")

    def test_set_keeps_the_count_of_bypasses(self) -> None:
        b = brain([terms("20GiB"), *tasks(5, "5GiB")])
        tell(b, placed(2, "5GiB"), placed(3, "5GiB"))
        assert b.wait_queue.bypassed(1) == 2
        ask(b, "set", 1, said={"Memory": "21GiB"})
        assert b.wait_queue.bypassed(1) == 2

    def test_set_of_a_held_task_applies_after_its_release(self) -> None:
        b = tell(brain(tasks(2)), asked("hold", 1))
        ask(b, "set", 1, said={"Priority": "9"})
        assert ordered(tell(b, asked("release", 1))) == [2, 1]


class TestLimits:
    def test_a_limit_of_0_tasks_pauses_the_run(self) -> None:
        b = brain(tasks(3, "1GiB"))
        [said] = ask(b, "limit", said={"-j": "0"})
        assert said == "-j unlimited → 0 (paused: running tasks finish, no more tasks start)"
        assert starts(b) == []
        assert not b.over
        assert ask(b, "limit", said={"-j": "2"}) == ["-j 0 → 2"]
        assert starts(b) == [1, 2]
        assert ask(b, "limit", said={"-j": ""}) == ["-j 2 → unlimited"]

    def test_disabled_devices_affect_new_starts_only(self) -> None:
        gpus = (gpu(0), gpu(1), gpu(2), host())
        b = brain(tasks(6, "20GiB"))
        assert place(b, *gpus) == [1, 2, 3]
        assert ask(b, "limit", said={"--devices": "0-1"}, on=gpus) == [
            "new tasks start on GPU-0, GPU-1, host, none on GPU-2 (running tasks there continue)"
        ]
        assert len(b.living()) == 3
        tell(b, exited(1), exited(2), exited(3))
        assert sorted(p.gpus[0] for p in decide(b, *gpus).placements) == ["GPU-0", "GPU-1"]
        ask(b, "limit", said={"--devices": "all"}, on=gpus)
        assert len(decide(b, *gpus).placements) == 3

    def test_devices_are_disabled_and_enabled_one_by_one(self) -> None:
        gpus = (gpu(0), gpu(1), host())
        b = brain(tasks(2, "20GiB"))
        ask(b, "limit", said={"disable": "0"}, on=gpus)
        ask(b, "limit", said={"disable": "1"}, on=gpus)
        assert set(reasons(b, *gpus).values()) == {"disabled"}
        assert ask(b, "limit", said={"enable": "1"}, on=gpus) == [
            "new tasks start on GPU-1, host, none on GPU-0 (running tasks there continue)"
        ]
        assert [p.gpus for p in decide(b, *gpus).placements] == [("GPU-1",)]

    def test_a_task_for_a_disabled_device_delays_no_other_task(self) -> None:
        gpus = (gpu(0), gpu(1), host())
        b = brain([terms("1GiB", device="0"), *tasks(60, "20GiB")])
        ask(b, "limit", said={"disable": "0"}, on=gpus)
        for _ in range(55):
            [task] = place(b, *gpus)
            tell(b, exited(task))
        assert place(b, *gpus) == [57]

    @pytest.mark.parametrize(
        ("said", "words"),
        [
            ({"--devices": "7"}, "not: unchanged: '7' is not one of this run's devices (GPU-0, host)"),
            ({"--devices": "0:10GiB"}, "not: unchanged: '0:10GiB': budgets are given when a run starts"),
            ({"disable": "x"}, "not: unchanged: 'x' is not one of this run's devices"),
        ],
    )
    def test_limits_on_devices_that_the_run_does_not_have_are_refused(self, said: dict[str, str], words: str) -> None:
        b = brain(tasks(1))
        assert ask(b, "limit", said=said, on=(gpu(0), host()))[0].startswith(words)
        assert b.rules.closed == frozenset()

    def test_max_per_device_is_refused_in_a_run_with_counted_slots(self) -> None:
        [said] = ask(brain(tasks(1), slots=2), "limit", said={"--max-per-device": "1"})
        assert said.startswith("not: unchanged: each device has 2 slots")

    def test_slots_are_disabled_by_their_names_and_by_their_gpus(self) -> None:
        here = (*slots("0", "0", "1", "0,1"), gpu(0), gpu(1), host())
        for said, left in (
            ({"disable": "0"}, "slot 1"),
            ({"disable": "1"}, "slot 0, slot 0"),
            ({"disable": "0,1"}, "slot 0, slot 0, slot 1"),
            ({"--devices": "1"}, "slot 1"),
            ({"--devices": "0-1"}, "slot 0, slot 0, slot 1, slot 0,1"),
        ):
            b = brain(tasks(9))
            ask(b, "limit", said=said, on=here)
            started = {one.slot.partition(":")[2].partition(":")[2] for one in decide(b, *here).placements}
            assert started == {name.removeprefix("slot ") for name in left.split(", ")}, said

    def test_a_disabled_slot_is_named_and_can_be_enabled_again(self) -> None:
        here = (*slots("a", "b"), host())
        b = brain(tasks(2))
        assert ask(b, "limit", said={"disable": "a"}, on=here) == [
            "new tasks start on slot b, none on slot a (running tasks there continue)"
        ]
        ask(b, "limit", said={"disable": "b"}, on=here)
        assert set(reasons(b, *here).values()) == {"disabled"}
        assert ask(b, "limit", said={"enable": "all"}, on=here) == ["new tasks start on slot a, slot b"]
        assert place(b, *here) == [1, 2]

    def test_max_per_device_is_refused_in_a_run_with_named_slots(self) -> None:
        [said] = ask(brain(tasks(1)), "limit", said={"--max-per-device": "2"}, on=(*slots("a"), host()))
        assert said == "not: unchanged: a slot takes one task; --max-per-device has no effect"

    def test_devices_can_be_named_by_ranges_and_by_all(self) -> None:
        devices = [budget.device for budget in (gpu(0), gpu(1), gpu(2), host())]
        assert [d.label for d in named("0-1,host", devices)] == ["GPU-0", "GPU-1", "host"]
        assert [d.label for d in named("all", devices)] == ["GPU-0", "GPU-1", "GPU-2"]


@pytest.mark.parametrize(
    ("what", "one", "more"),
    [
        ("leave", "the scheduler leaves: 1 running task goes on without it, 1 waits;", "leaves: 2 running tasks go on"),
        ("drain", "nothing more is started; 1 running task ends by itself (", "2 running tasks end by themselves ("),
        ("stop", "stopping 1 running task: ", "stopping 2 running tasks: "),
        ("kill", "killing 1 running task now; once it is gone, resume starts it again", "once they are gone"),
    ],
)
def test_answers_use_singular_and_plural(what: str, one: str, more: str) -> None:
    assert onward(what, "3", 1, 1).startswith(one)
    assert more in onward(what, "3", 2, 2)


def test_a_stop_while_no_task_runs_names_no_signals() -> None:
    assert onward("stop", "3", 0, 1) == "stopping: no task runs"


def test_a_task_with_a_better_priority_comes_before_the_others_of_its_batch() -> None:
    b = brain(tasks(3, "1GiB"))
    ask(b, "set", 3, said={"Priority": "-3"})
    assert ordered(b) == [3, 1, 2]


def test_a_replay_of_requests_gives_the_same_state() -> None:
    b = brain(tasks(6, "1GiB"), tasks(2))
    told: list[Any] = [placed(1), exited(1, "failed"), asked("hold", 3, 4), asked("cancel", 2), asked("retry", 1)]
    tell(b, *told)
    ask(b, "set", 5, 3, said={"Priority": "-3"})
    ask(b, "limit", said={"-j": "1", "disable": "host"})
    changes = [Changed(b.task_table.terms(5), (3, 5)), Limited(1, None, ("host",)), Asked("release", (3,))]
    tell(b, changes[-1])
    again = Brain(type(b.rules)(), b.terms)
    again.apply(Submitted(1, 1, [0] * 6))
    again.apply(Submitted(2, 7, [1] * 2))
    tell(again, *told, *changes)
    assert picture(again) == picture(b)
    assert again.rules == b.rules


class TestWholeRun:
    """Requests to a whole simulated run."""

    def run(self, *requests: tuple[float, Request], **said: Any) -> Simulation:
        at = [(1e9 + seconds, request) for seconds, request in requests]
        return Simulation(jobs(4, seconds=100, memory="10GiB", **said), host("24GiB", cores=8), requests=at).run()

    def test_a_held_task_starts_once_it_is_released(self) -> None:
        done = self.run((1, Request("hold", (3,))), (500, Request("release", (3,))))
        assert done.states == {"succeeded": 4}
        assert done.makespan == pytest.approx(600)
        assert "nothing runs and 1 task of this run is held" in " ".join(done.view.sentences)

    def test_a_paused_run_continues_when_the_limit_is_raised(self) -> None:
        done = self.run((50, Request("limit", said={"-j": "0"})), (300, Request("limit", said={"-j": "4"})))
        assert done.makespan == pytest.approx(400)
        assert any("the run is paused (-j 0)" in why for why in done.view.whys)

    def test_a_cancelled_task_is_stopped_and_the_next_one_starts(self) -> None:
        done = self.run((50, Request("cancel", (1,))))
        assert done.states == {"succeeded": 3, "cancelled": 1}
        assert done.makespan == pytest.approx(200)

    def test_memory_that_was_set_is_reserved_at_the_next_start(self) -> None:
        done = self.run((1, Request("set", (3, 4), {"Memory": "5GiB"})))
        tasks = [one for _, one in sorted(done.history.tasks.items())]
        reserved = [one.attempts[0].reserved["host"] >> 30 for one in tasks]
        assert reserved == [10, 10, 5, 5]

    def test_the_log_of_a_run_records_its_requests(self) -> None:
        done = self.run((1, Request("set", (3,), {"Priority": "-1"})))
        assert done.view.sentences == ["asked to set: task 3: priority 0 → -1"]
