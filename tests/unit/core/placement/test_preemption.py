"""Making room for what is urgent: which tasks ask, which are asked, and when none is."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.brain import Brain
from scheduler.core.causes import Action
from scheduler.core.events import Changed, Exited, Preempted
from scheduler.core.leases import Lease, RoomCall, RoomOffer
from scheduler.core.model import Machine, Outcome, Placement, State, Terms, WaitTicket
from scheduler.core.placement.preemption import EVERY, PATIENCE, Preemption, RoomHolder
from scheduler.units import GIB
from tests.support.builders import (
    asked,
    brain,
    decide,
    exited,
    gpu,
    host,
    lease_of,
    machine,
    place,
    started,
    submit,
    tasks,
    tell,
)

NOW = 10_000.0
HOUR = 3600.0


def long(number: int = 1, priority: int = 5, **said: Any) -> list[Terms]:
    return tasks(number, **{"memory": "20GiB", "host_memory": "1GiB", "resumable": True, **said}, priority=priority)


def urgent(number: int = 1, priority: int = -1, **said: Any) -> list[Terms]:
    return tasks(number, **{"memory": "20GiB", "host_memory": "1GiB", "preempt": True, **said}, priority=priority)


def there(gpus: int = 1, now: float = NOW, **said: Any) -> Machine:
    return machine(*(gpu(number) for number in range(gpus)), host("64GiB"), now=now, **said)


def running(*batches: list[Terms], gpus: int = 1, **said: Any) -> Brain:
    """Return a Brain whose first tasks run, and to which an urgent one was then submitted at time 0."""
    *first, last = batches
    made = brain(*first, **said)
    for task in sorted(place(made, *(gpu(number) for number in range(gpus)), host("64GiB"))):
        made.apply(started(task), 100.0 + task)
    return submit(made, last)


def asks(made: Brain, now: Machine | None = None) -> Preempted | None:
    return Preemption(made).wanted(now or there())


class TestWhoAsks:
    def test_a_task_that_has_waited_for_long_asks_a_less_urgent_one(self) -> None:
        assert asks(running(long(), urgent())) == Preempted(2, (1,))

    def test_a_task_that_does_not_say_so_asks_no_other(self) -> None:
        assert asks(running(long(), urgent(preempt=False))) is None
        assert asks(running(long(), [*urgent(preempt=False), *urgent(priority=7)])) is None

    def test_the_setting_lets_every_task_ask(self) -> None:
        assert asks(running(long(), urgent(preempt=False), preempt=True)) == Preempted(2, (1,))

    def test_a_task_asks_only_once_it_has_waited_for_the_time_of_the_setting(self) -> None:
        search = Preemption(running(long(), urgent(), preempt_after=NOW))
        assert search.wanted(there(now=NOW - 1)) is None
        assert search.due == NOW
        assert search.wanted(there(now=NOW)) == Preempted(2, (1,))

    def test_a_task_asks_after_its_own_time_where_its_row_has_one(self) -> None:
        search = Preemption(running(long(), urgent(preempt_after=90.0), preempt_after=HOUR))
        assert search.wanted(there(now=89.0)) is None
        assert search.due == 90.0
        assert search.wanted(there(now=90.0)) == Preempted(2, (1,))

    def test_an_equally_urgent_task_is_not_asked(self) -> None:
        assert asks(running(long(priority=0), urgent(priority=0))) is None

    def test_a_task_that_fits_anyway_asks_no_other(self) -> None:
        assert asks(running(long(), urgent()), there(gpus=2)) is None

    def test_a_task_for_which_all_of_them_are_too_little_asks_none(self) -> None:
        assert asks(running(long(), tasks(1, "20GiB", priority=5), urgent(gpus=2), gpus=2), there(gpus=2)) is None

    def test_the_most_urgent_task_asks_first(self) -> None:
        made = submit(running(long(), urgent(priority=-1)), urgent(priority=-9))
        assert asks(made) == Preempted(3, (1,))


class TestWhoIsAsked:
    def test_the_latest_started_is_asked_first(self) -> None:
        assert asks(running(long(4), urgent(), gpus=4), there(gpus=4)) == Preempted(5, (4,))

    def test_as_many_are_asked_as_it_takes(self) -> None:
        assert asks(running(long(4), urgent(gpus=2), gpus=4), there(gpus=4)) == Preempted(5, (3, 4))

    def test_a_task_on_another_gpu_than_the_needed_one_goes_on(self) -> None:
        made = running(long(2, memory="10GiB"), long(2, memory="10GiB"), urgent(), gpus=2)
        preempted = asks(made, there(gpus=2))
        assert preempted is not None
        where = {key for task in preempted.tasks for key in made.tasks[task].placement.gpus}  # type: ignore[union-attr]
        assert (len(preempted.tasks), len(where)) == (2, 1)

    @pytest.mark.parametrize("said", [{"resumable": False}, {"priority": -1}])
    def test_a_task_that_cannot_continue_or_is_as_urgent_goes_on(self, said: dict[str, Any]) -> None:
        assert asks(running(long(**said), urgent())) is None

    def test_a_task_that_is_being_stopped_is_not_asked_as_well(self) -> None:
        made = running(long(), urgent())
        made.tasks[1].asked = Action.CANCEL
        assert asks(made) is None

    def test_a_changed_priority_counts_while_a_task_runs(self) -> None:
        made = running(long(priority=-1), urgent(priority=-1))
        made.terms.append(long(priority=7)[0])
        made.apply(Changed(len(made.terms) - 1, (1,)))
        assert asks(made) == Preempted(2, (1,))

    def test_other_users_leases_are_no_room_to_be_asked_for(self) -> None:
        made = running(long(memory="1GiB"), urgent(memory="23GiB"))
        full = machine(gpu(free="2GiB"), host("64GiB"), now=NOW, used={(1, 1): {"GPU-0": GIB}})
        assert asks(made, full) is None


class TestAfterwards:
    def test_a_task_that_made_room_waits_again_and_the_urgent_task_is_next(self) -> None:
        made = running(long(), long(), urgent())  # another one of its batch would rank before the urgent one
        made.apply(Preempted(3, (1,)), NOW)
        assert made.tasks[1].asked is Action.SAVE
        made.apply(exited(1, "again"), NOW + 20)
        assert made.state(1) is State.WAITING
        assert made.tasks[1].failures == 0
        decision = decide(made, gpu(), host("64GiB"))
        assert [placement.task for placement in decision.placements] == [3]

    def test_nothing_else_takes_the_room_before_all_of_it_is_free(self) -> None:
        made = running(long(2), long(2, memory="2GiB"), urgent(gpus=2), gpus=2)
        made.apply(Preempted(5, (1, 2)), NOW)
        made.apply(exited(1, "again"), NOW + 20)
        assert decide(made, gpu(0), gpu(1), host("64GiB")).placements == ()

    def test_one_request_at_a_time_is_on_its_way(self) -> None:
        made = submit(running(long(2), urgent(), gpus=2), urgent())
        search = Preemption(made)
        first = search.wanted(there(gpus=2))
        assert first == Preempted(3, (2,))
        made.apply(first, NOW)
        assert search.wanted(there(gpus=2, now=NOW + EVERY)) is None

    def test_a_task_makes_room_three_times_in_a_row_and_no_more(self) -> None:
        made = running(long(), urgent())
        for attempt in range(1, 4):
            wanted = asks(made)
            assert wanted == Preempted(attempt + 1, (1,))
            tell(made, wanted, exited(1, "again", attempt=attempt), asked("cancel", attempt + 1))
            restart(made, attempt + 1)
            submit(made, urgent())
        assert asks(made) is None

    def test_an_attempt_that_ends_otherwise_begins_the_count_anew(self) -> None:
        made = running(long(retries=9), urgent())
        made.apply(Preempted(2, (1,)), NOW)
        made.apply(exited(1, "again"), NOW)
        restart(made, 2)
        assert made.tasks[1].preemptions == 1
        made.apply(exited(1, "failed", attempt=2), NOW)
        assert made.tasks[1].preemptions == 0

    def test_a_short_turn_that_made_room_does_not_count_as_one(self) -> None:
        made = running(long(), urgent())
        made.apply(Preempted(2, (1,)), NOW)
        made.apply(Exited(1, 1, Outcome.AGAIN, code=75, seconds=1.0), NOW)
        assert made.tasks[1].short_turns == 0


def theirs(task: int = 40, priority: int | None = 5, asked_by: int | None = None, **said: Any) -> Lease:
    """Make the lease of an attempt of this user's run 9 that fills the GPU."""
    offer = RoomOffer(priority, asked_by)
    held = {"GPU-0": 20 * GIB, "host": GIB}
    return lease_of(held, held, name=f"l{task}", task=task, attempt=2, offer=offer, since=50.0 + task, **said)


def full(*leases: Lease, now: float = NOW) -> Machine:
    return machine(gpu(free="3GiB"), host("64GiB"), now=now, leases=leases)


class TestOtherRuns:
    """Tasks of the user's other runs, which are known by their leases and asked through the wait ticket."""

    TICKET = WaitTicket(1, ("GPU-0",), (20 * GIB,), GIB)

    def test_an_urgent_task_calls_the_attempt_of_another_run(self) -> None:
        search = Preemption(made := brain(urgent()))
        wanted = search.wanted(full(theirs()))
        assert wanted == Preempted(1, (40,))
        made.apply(wanted, NOW)
        ticket = search.ticket(self.TICKET)
        assert ticket is not None
        assert (ticket.urgent, ticket.call) == (True, RoomCall(1, -1, (("9", 40, 2),)))

    def test_the_ticket_of_a_task_that_is_not_urgent_stays_as_it_is(self) -> None:
        search = Preemption(brain(urgent()))
        assert search.ticket(None) is None
        assert search.ticket(self.TICKET) is self.TICKET

    @pytest.mark.parametrize("said", [{"priority": None}, {"priority": -1}, {"uid": 7}])
    def test_attempts_that_do_not_offer_it_or_are_of_others_are_not_called(self, said: dict[str, Any]) -> None:
        assert Preemption(brain(urgent())).wanted(full(theirs(**said))) is None

    def test_an_attempt_with_the_number_of_an_own_task_is_not_called(self) -> None:
        assert Preemption(brain(urgent())).wanted(full(theirs(1))) is None

    def test_the_latest_started_of_two_runs_is_called(self) -> None:
        search = Preemption(brain(urgent()))
        two = machine(
            gpu(0, free="3GiB"),
            gpu(1, free="3GiB"),
            host("64GiB"),
            now=NOW,
            leases=(
                theirs(40),
                lease_of({"GPU-1": 20 * GIB}, {"GPU-1": 20 * GIB}, name="l41", task=41, offer=RoomOffer(5), since=60.0),
            ),
        )
        assert search.wanted(two) == Preempted(1, (40,))

    def test_a_call_without_an_answer_is_waited_for_and_then_not_repeated(self) -> None:
        search = Preemption(made := brain(urgent()))
        wanted = search.wanted(full(theirs()))
        assert wanted is not None
        made.apply(wanted, NOW)
        assert search.wanted(full(theirs(), now=NOW + PATIENCE - 1)) is None
        ticket = search.ticket(self.TICKET)
        assert ticket is not None
        assert ticket.call is not None, "it still asks"
        assert search.wanted(full(theirs(), now=NOW + PATIENCE + EVERY)) is None
        ticket = search.ticket(self.TICKET)
        assert ticket is not None
        assert ticket.call is None

    def test_an_attempt_that_answered_is_waited_for(self) -> None:
        search = Preemption(made := brain(urgent()))
        made.apply(search.wanted(full(theirs())), NOW)  # type: ignore[arg-type]  # it is wanted, as shown above
        late = NOW + PATIENCE + EVERY
        assert search.wanted(full(theirs(asked_by=1), now=late)) is None
        ticket = search.ticket(self.TICKET)
        assert ticket is not None
        assert ticket.call is None, "it was answered"

    def test_a_look_comes_once_in_a_second(self) -> None:
        search = Preemption(brain(urgent()))
        small = lease_of({"GPU-0": GIB}, {"GPU-0": GIB}, name="l41", task=41, offer=RoomOffer(5))
        assert search.wanted(full(small)) is None, "that is too little"
        assert search.wanted(full(theirs(), now=NOW + EVERY / 2)) is None
        assert search.due == NOW + EVERY
        assert search.wanted(full(theirs(), now=NOW + EVERY)) == Preempted(1, (40,))


class TestCalledByOtherRuns:
    """Tasks of this run that an urgent task of another run asks to save."""

    def test_the_called_attempts_save_and_no_others(self) -> None:
        made = running(long(3), urgent(preempt=False), gpus=3)
        calls = [RoomCall(70, 1, (("5", 1, 1), ("8", 2, 1), ("5", 3, 1)))]
        assert Preemption(made).answered(calls, "5") == [Preempted(70, (1, 3))]

    def test_a_task_that_two_call_saves_for_the_first(self) -> None:
        made = running(long(), urgent(preempt=False))
        calls = [RoomCall(70, 1, (("5", 1, 1),)), RoomCall(71, 1, (("5", 1, 1),))]
        assert Preemption(made).answered(calls, "5") == [Preempted(70, (1,))]

    @pytest.mark.parametrize(
        ("call", "why"),
        [
            (RoomCall(2, 1, (("5", 1, 1),)), "a task of this run calls in another directory"),
            (RoomCall(70, 1, (("6", 1, 1),)), "another run"),
            (RoomCall(70, 1, (("5", 1, 2),)), "another attempt"),
            (RoomCall(70, 1, (("5", 9, 1),)), "no such task"),
            (RoomCall(70, 1, (("5", 2, 0),)), "it waits itself"),
            (RoomCall(70, 5, (("5", 1, 1),)), "as urgent"),
        ],
    )
    def test_a_call_that_is_not_for_a_living_less_urgent_attempt_is_left(self, call: RoomCall, why: str) -> None:
        assert Preemption(running(long(), urgent(preempt=False))).answered([call], "5") == [], why

    def test_a_run_listens_once_in_a_second_while_it_has_something_to_give(self) -> None:
        search = Preemption(running(long(), urgent(preempt=False)))
        assert [search.is_to_listen(now) for now in (NOW, NOW + EVERY / 2, NOW + EVERY)] == [True, False, True]
        assert search.is_to_listen(NOW - 5), "the clock was set back"
        assert not Preemption(brain(long())).is_to_listen(NOW), "nothing runs"
        assert not Preemption(running(long(resumable=False), urgent())).is_to_listen(NOW)
        ends = running(long(), urgent(preempt=False))
        ends.draining = True
        assert not Preemption(ends).is_to_listen(NOW)


def restart(made: Brain, attempt: int) -> None:
    old = decide(made, gpu(0), gpu(1), gpu(2), host("64GiB")).placements
    mine: Placement = next(one for one in old if one.task == 1)
    tell(made, mine, started(1, attempt))


@given(
    st.lists(st.tuples(st.integers(-3, 9), st.sampled_from([2, 5, 10, 20]), st.booleans()), min_size=1, max_size=12),
    st.integers(-3, 9),
    st.sampled_from([5, 10, 20]),
    st.integers(1, 2),
)
def test_the_tasks_that_are_asked_are_less_urgent_resumable_and_all_needed(
    there_: list[tuple[int, int, bool]], priority: int, gib: int, number: int
) -> None:
    batches = [long(priority=rank, memory=f"{size}GiB", resumable=resumes) for rank, size, resumes in there_]
    made = running(*batches, urgent(priority=priority, memory=f"{gib}GiB", gpus=number), gpus=3)
    wanted = asks(made, there(gpus=3))
    living = [task.id for task in made.living()]
    last = len(there_) + 1
    if wanted is None:
        return
    assert wanted.by not in living
    for task in wanted.tasks:
        assert made.terms_of(task).resumable
        assert made.terms_of(task).priority > made.terms_of(wanted.by).priority
    assert wanted.by == last  # the only one that may ask

    def starts(gone: tuple[int, ...]) -> bool:
        state = made.without([made.tasks[task] for task in gone])
        beside = [task.id for task in state.living()]
        assert not {*gone} & {*beside}
        search = Preemption(made)
        return search._starts(last, [RoomHolder(task, 0, 0.0, made.tasks[task]) for task in gone], there(gpus=3))

    assert starts(wanted.tasks)
    assert not any(starts(tuple(one for one in wanted.tasks if one != task)) for task in wanted.tasks)


def test_without_urgent_tasks_no_time_is_due() -> None:
    search = Preemption(running(long(), long()))
    assert search.wanted(there()) is None
    assert search.due == inf
