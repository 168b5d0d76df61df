"""Starts that fail without a fault of their task: the task is not charged, and launching pauses."""

from __future__ import annotations

import pytest

from scheduler.core.attempts.backoff import (
    MACHINE,
    Backoff,
    Pause,
    goes_on,
    stopped,
)
from scheduler.core.brain import Brain
from scheduler.core.causes import Action
from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Asked, Exited
from scheduler.core.model import HOST, Device, EstimateSource, Outcome, Placement, Purpose
from scheduler.core.placement.refusal import Reason
from scheduler.core.ports import Launch, Request
from scheduler.simulation.machine import SimulatedMachine
from tests.support.builders import (
    Simulation,
    asked,
    brain,
    host,
    jobs,
    machine,
    picture,
    replay,
    size,
    slots,
    started,
    states,
    tasks,
    tell,
)
from tests.support.faults import fault

EAGAIN = "it could not be started: [Errno 11] Resource temporarily unavailable"
RULES = SchedulingConfig()


def unstarted(task: int, attempt: int = 1, away: str = "") -> Exited:
    reason = f"{away}: No such file or directory" if away else EAGAIN
    return Exited(task, attempt, Outcome.UNSTARTED, reason=reason, away=away)


def place(b: Brain, now: float) -> list[tuple[int, int]]:
    """Decide at a time and have it come true: the attempts."""
    placements = b.decide(machine(host(cores=64), now=now)).placements
    for placement in placements:
        b.apply(placement, now)
    return [(placement.task, placement.attempt) for placement in placements]


def fail_all(b: Brain, now: float, away: str = "") -> list[tuple[int, int]]:
    """Place what is placed at a time, none of which can be started."""
    keys = place(b, now)
    for key in keys:
        b.apply(unstarted(*key, away=away), now)
    return keys


def fail_by_itself(b: Brain, attempt: int, now: float, task: int = 1) -> None:
    """Have a task fail to start while the starts of others work, so that no pause lasts."""
    b.apply(Placement(task, attempt, *_how()), now)
    b.apply(unstarted(task, attempt), now)
    b.backoff._pauses.clear()


def list_of(number: int) -> Brain:
    return brain(tasks(number, "1MiB", cpus=0.1))


class TestMachine:
    def test_an_unstarted_attempt_is_neither_a_failure_nor_a_loss(self) -> None:
        b = list_of(1)
        for attempt in range(1, 30):
            assert fail_all(b, attempt * 100.0) == [(1, attempt)]
        assert states(b) == {1: "waiting"}
        task = b.task(1)
        assert task is not None
        assert (task.failures, task.faults) == (0, 0)

    def test_an_unstarted_attempt_does_not_change_the_count_of_losses(self) -> None:
        b = list_of(1)
        for attempt, outcome in enumerate([Outcome.LOST, Outcome.UNSTARTED, Outcome.LOST], 1):
            tell(b, Placement(1, attempt, *_how()), started(1, attempt), Exited(1, attempt, outcome))
        task = b.task(1)
        assert task is not None
        assert task.faults == 2

    def test_after_a_failed_round_one_trial_starts_half_a_second_later(self) -> None:
        b = list_of(50)
        assert len(fail_all(b, 0.0)) == 50
        assert place(b, 0.4) == []
        assert len(place(b, 0.5)) == 1
        assert place(b, 0.6) == []

    def test_the_pause_doubles_with_each_failed_round_up_to_half_a_minute(self) -> None:
        b, now, pauses = list_of(50), 0.0, []
        fail_all(b, now)
        for _ in range(8):
            due = next(now + step / 10 for step in range(1, 400) if _starts(b, now + step / 10))
            pauses.append(round(due - now, 1))
            now = due
            assert len(fail_all(b, now)) == 1
        assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]

    def test_the_waiting_tasks_say_why_while_launching_pauses(self) -> None:
        b = list_of(3)
        fail_all(b, 0.0)
        (refusal,) = b.decide(machine(now=0.1)).refusals
        assert (refusal.reason, refusal.text) == (Reason.SUSPENDED, EAGAIN)

    def test_each_trial_that_lives_for_a_second_lets_twice_as_many_start(self) -> None:
        b, now, widths = list_of(200), 1.0, []
        fail_all(b, 0.0)
        for _ in range(7):
            keys = place(b, now)
            for key in keys:
                b.apply(started(*key), now)
            assert place(b, now + 0.9) == []
            widths.append(len(keys))
            now += 1.0
        assert widths[:3] == [1, 2, 8]
        assert sum(widths) == 200

    def test_a_trial_that_ends_by_itself_counts_as_a_success_at_once(self) -> None:
        b = list_of(50)
        fail_all(b, 0.0)
        ((task, attempt),) = place(b, 0.5)
        b.apply(started(task, attempt), 0.5)
        b.apply(Exited(task, attempt, Outcome.FAILED), 0.6)
        assert len(place(b, 0.6)) == 2

    def test_a_trial_whose_process_starts_but_not_its_program_has_failed(self) -> None:
        b = list_of(50)
        fail_all(b, 0.0)
        ((task, attempt),) = place(b, 0.5)
        b.apply(started(task, attempt), 0.5)
        b.apply(unstarted(task, attempt), 0.6)
        assert not _starts(b, 1.5)
        assert _starts(b, 1.6)

    def test_the_end_of_a_running_attempt_makes_the_next_trial_due(self) -> None:
        b = list_of(20)
        keys = place(b, 0.0)
        b.apply(started(*keys[0]), 0.0)
        for key in keys[1:]:
            b.apply(unstarted(*key), 0.1)
        assert not _starts(b, 0.2)
        b.apply(Exited(*keys[0], Outcome.SUCCEEDED), 0.2)
        assert _starts(b, 0.2)

    @fault(94)
    def test_a_scheduler_that_takes_the_run_over_tries_at_once(self) -> None:
        b = list_of(5)
        fail_all(b, 0.0)
        b.apply(Asked(Action.RESUME), 0.1)
        assert len(place(b, 0.1)) == 5

    def test_waiting_tasks_can_be_cancelled_and_held_while_launching_pauses(self) -> None:
        b = list_of(3)
        fail_all(b, 0.0)
        tell(b, asked("cancel", 1), asked("hold", 2))
        assert states(b) == {1: "cancelled", 2: "held", 3: "waiting"}


class TestDirectory:
    def test_a_directory_that_is_away_delays_only_its_own_tasks(self) -> None:
        b = list_of(20)
        for task in range(1, 11):
            b.apply(Placement(task, 1, *_how()), 0.0)
        for task in range(1, 11):
            b.apply(unstarted(task, away="/data/a"), 0.0)
        assert [task for task, _ in place(b, 0.1)] == list(range(11, 21))

    def test_one_task_of_a_directory_is_the_trial_and_the_others_follow_its_success(self) -> None:
        b = list_of(20)
        fail_all(b, 0.0, away="/data/a")
        assert [task for task, _ in place(b, 0.1)] == []
        ((task, attempt),) = place(b, 0.5)
        assert place(b, 0.6) == []
        b.apply(started(task, attempt), 0.5)
        assert len(place(b, 1.5)) == 2

    def test_tasks_of_a_directory_that_is_away_are_not_tried(self) -> None:
        b = list_of(20)
        b.apply(Placement(1, 1, *_how()), 0.0)
        b.apply(unstarted(1, away="/data/a"), 0.0)
        for task in range(2, 15):
            b.locate(task, "/data/a")
        assert [task for task, _ in place(b, 0.1)] == list(range(15, 21))
        assert b.decide(machine(host(cores=64), now=0.1)).refusals[0].reason is Reason.AWAY

    def test_tasks_of_a_directory_are_remembered_when_it_goes_away_again(self) -> None:
        b = list_of(20)
        fail_all(b, 0.0, away="/data/a")
        b.apply(Asked(Action.RESUME), 1.0)
        assert len(place(b, 1.0)) == 20
        for task in range(1, 21):
            b.apply(unstarted(task, 2, away="/data/a"), 1.0)
        b.apply(Asked(Action.RESUME), 2.0)
        b.apply(Placement(1, 3, *_how()), 2.0)
        b.apply(unstarted(1, 3, away="/data/a"), 2.0)
        assert place(b, 2.1) == []

    def test_two_directories_pause_apart(self) -> None:
        b = list_of(4)
        for task in range(1, 5):
            b.apply(Placement(task, 1, *_how()), 0.0)
        for task in range(1, 5):
            b.apply(unstarted(task, away=f"/data/{task % 2}"), task / 10)
        assert [task for task, _ in place(b, 0.61)] == [1]
        assert [task for task, _ in place(b, 0.71)] == [2]

    def test_slots_skip_tasks_of_a_directory_that_is_away(self) -> None:
        b = brain(tasks(6), slots=4)
        for task in (1, 2, 3):
            b.apply(Placement(task, 1, *_how()), 0.0)
            b.apply(unstarted(task, away="/data/a"), 0.0)
        decision = b.decide(machine(host(cores=64), now=0.1))
        assert [placement.task for placement in decision.placements] == [4, 5, 6]


class TestTaskWhoseStartsFail:
    def test_a_task_is_tried_after_all_others_once_two_of_its_starts_failed(self) -> None:
        b = list_of(4)
        fail_all(b, 0.0)
        assert fail_all(b, 0.5) == [(1, 2)]
        assert fail_all(b, 1.5) == [(2, 2)]
        assert place(b, 3.5) == [(3, 2)]

    def test_the_task_with_the_fewest_failed_starts_is_tried_first(self) -> None:
        b, now, tried = list_of(2), 0.0, []
        fail_all(b, now)
        for _ in range(6):
            now += 100.0
            ((task, _),) = fail_all(b, now)
            tried.append(task)
        assert tried == [1, 2, 1, 2, 1, 2]

    def test_a_task_that_begins_pauses_repeatedly_is_left_alone_for_longer_each_time(self) -> None:
        b, now, rests = list_of(1), 0.0, []
        for attempt in range(1, 10):
            fail_by_itself(b, attempt, now)
            due = next(now + seconds for seconds in (0, 2, 8, 32, 128, 512, 600) if _starts(b, now + seconds))
            rests.append(due - now)
            now = due
        assert rests == [0, 0, 2, 8, 32, 128, 512, 600, 600]

    def test_a_task_whose_starts_failed_starts_by_itself_after_earlier_ones_have_begun(self) -> None:
        b = list_of(4)
        for attempt in (1, 2):
            fail_by_itself(b, attempt, 0.0, task=2)
        assert place(b, 10.0) == [(1, 1)]
        assert place(b, 10.0) == []
        b.apply(started(1), 10.0)
        assert place(b, 10.0) == [(2, 3)]
        assert place(b, 10.0) == [(3, 1), (4, 1)]

    def test_equal_tasks_start_while_one_is_left_alone(self) -> None:
        b = list_of(3)
        for attempt in (1, 2, 3):
            fail_by_itself(b, attempt, 0.0)
        decision = b.decide(machine(host(cores=64), now=1.0))
        assert [placement.task for placement in decision.placements] == [2, 3]
        assert [(one.task, one.reason, one.text) for one in decision.refusals] == [(1, Reason.SUSPENDED, EAGAIN)]

    def test_a_start_that_succeeds_ends_the_postponement_of_a_task(self) -> None:
        b = list_of(2)
        for now in (0.0, 100.0):
            fail_all(b, now)
        b.apply(Placement(1, 3, *_how()), 200.0)
        tell(b, started(1, 3), Exited(1, 3, Outcome.FAILED))
        starts = b.backoff.starts(200.0, RULES)
        assert starts is not None
        assert not starts.postpones(1)

    def test_the_policy_batches_tries_a_task_whose_starts_failed_after_others(self) -> None:
        b = brain(tasks(3, "1MiB", cpus=0.1), policy="batches")
        assert [fail_all(b, now)[0][0] for now in (0.0, 100.0, 200.0, 300.0)] == [1, 1, 2, 2]

    def test_slots_try_it_after_others(self) -> None:
        b, named = list_of(3), slots("a")
        tried = []
        for now in (0.0, 100.0, 200.0, 300.0):
            (placement,) = b.decide(machine(*named, host(cores=64), now=now)).placements
            b.apply(placement, now)
            b.apply(unstarted(placement.task, placement.attempt), now)
            tried.append(placement.task)
        assert tried == [1, 1, 2, 2]


class TestReports:
    def test_three_failed_rounds_in_a_row_are_reported(self) -> None:
        pause, at = Pause(), 0.0
        for rounds in (1, 2, 3):
            pause.fail((1, rounds), EAGAIN, at, RULES)
            assert pause.stopped(at, RULES) is (rounds == 3)
            at = pause.until
        said = stopped(MACHINE, pause, RULES)
        assert EAGAIN in said
        assert "no task is charged" in said

    def test_the_sentence_of_a_directory_names_it(self) -> None:
        assert "/data/a" in stopped("/data/a", Pause(), RULES)
        assert "/data/a" in goes_on("/data/a")

    def test_all_failures_of_one_round_count_once(self) -> None:
        backoff = Backoff()
        for task in range(30):
            backoff.exited(unstarted(task), 0.0, began=False, rules=RULES)
        assert backoff.pauses()[MACHINE].rounds == 1


# Whole runs on a simulated machine


def short(until: float, away: str = "") -> SimulatedMachine:
    """Return a machine on which nothing can be started for so many seconds, or nothing in a directory."""
    made = SimulatedMachine([Device(HOST, HOST, size("24GiB"), 64.0)], now=1e9)

    def hindered(order: Launch, now: float) -> tuple[str, str] | None:
        if now >= 1e9 + until or (away and order.directory != away):
            return None
        return (f"{away}: Stale file handle" if away else EAGAIN), away

    made.hindered = hindered
    return made


@pytest.mark.parametrize("until", [0.3, 3.0, 100.0])
def test_a_shortage_fails_no_task_and_is_reported_once(until: float) -> None:
    given = jobs(300, seconds=5.0, memory="1MiB", peak="1MiB", cpus=1.0)
    simulation = Simulation(given, machine_=short(until)).run()
    assert simulation.states == {"succeeded": 300}
    said = [sentence for sentence in simulation.view.sentences if "start" in sentence]
    assert len(said) == (0 if until < 1 else 2)
    late = 31.0 if until > 60 else until
    assert simulation.makespan < until + late + 60


def test_a_replay_of_a_shortage_gives_the_same_state() -> None:
    given = jobs(60, seconds=5.0, memory="1MiB", peak="1MiB", cpus=1.0)
    simulation = Simulation(given, machine_=short(3.0)).run()
    again = replay(simulation.brain, simulation.submitted, simulation.book.recorded)
    assert picture(again) == picture(simulation.brain)
    assert again.backoff.look(1e9 + 60, RULES) == simulation.brain.backoff.look(1e9 + 60, RULES)


def test_a_directory_that_is_away_costs_few_attempts_and_delays_no_other_task() -> None:
    away = jobs(500, seconds=1.0, memory="1MiB", peak="1MiB", cpus=1.0, directory="/away")
    here = jobs(50, seconds=1.0, memory="1MiB", peak="1MiB", cpus=1.0)
    machine_ = short(20.0, away="/away")
    simulation = Simulation([*away, *here], machine_=machine_, num=1000).run()
    assert simulation.states == {"succeeded": 550}
    ended = [event for event in simulation.events if isinstance(event, Exited)]
    assert sum(event.outcome is Outcome.UNSTARTED for event in ended) < 64 + 10
    first = [event.task for event in ended if event.outcome is Outcome.SUCCEEDED][:50]
    assert first == list(range(501, 551))


@fault(132)
@pytest.mark.parametrize("with_others", [False, True])
def test_a_task_whose_own_order_makes_starts_fail_holds_no_other_up(*, with_others: bool) -> None:
    """With others: all that is started in the same moment fails as well, as where it kills the fork server."""
    machine_ = short(0.0)
    cured, killed_at = 1e9 + 150.0, [0.0]

    def hindered(order: Launch, now: float) -> tuple[str, str] | None:
        if order.task == 1 and now < cured:
            killed_at[0] = now
        fails = killed_at[0] == now and (order.task == 1 or with_others)
        return (EAGAIN, "") if fails else None

    machine_.hindered = hindered
    given = jobs(300, seconds=5.0, memory="1MiB", peak="1MiB", cpus=1.0)
    simulation = Simulation(given, machine_=machine_).run()
    assert simulation.states == {"succeeded": 300}
    ended = [(event, at) for event, at in simulation.book.recorded if isinstance(event, Exited)]
    good = {event.task: at for event, at in ended if event.outcome is Outcome.SUCCEEDED}
    assert cured < good.pop(1) < cured + 250.0
    assert max(good.values()) < 1e9 + 120.0
    assert sum(event.outcome is Outcome.UNSTARTED for event, _ in ended) < 300


def test_stop_ends_a_run_whose_launching_pauses() -> None:
    given = jobs(10, seconds=5.0, memory="1MiB", peak="1MiB", cpus=1.0)
    simulation = Simulation(given, machine_=short(1e6), requests=[(1e9 + 40.0, Request("stop"))]).run()
    assert simulation.states == {"waiting": 10}
    assert simulation.brain.draining


def _starts(b: Brain, now: float) -> bool:
    return bool(b.decide(machine(host(cores=64), now=now)).placements)


def _how() -> tuple[object, ...]:
    return Purpose.RUN, {HOST: 1 << 20}, 0.1, EstimateSource.DECLARED
