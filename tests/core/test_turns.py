"""Turns among all who wait on the machine: whose it is, what is kept for them, and when devices close for one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.core.brain import Brain
from scheduler.core.model import HOST, Decision, Hold, Machine, Refusal, Ticket, Turn, Waiter
from scheduler.core.promises import Lease
from scheduler.core.rules import Rules
from scheduler.core.turns import CHANCE, STANDS_STILL, Standing, richer
from scheduler.units import GIB
from tests.builders import brain, gpu, host, machine, slots, tasks

ME, BEN, CARL = 1000, 2000, 3000


def waiter(memory: int | None, waited: float = 10.0, uid: int = BEN, run: str = "9-b", **said: object) -> Waiter:
    """Somebody who wants so many GiB on GPU 0."""
    closed, idle, alone = bool(said.get("closed")), float(str(said.get("idle", 0.0))), bool(said.get("alone"))
    bytes_ = None if memory is None else memory * GIB
    ticket = Ticket(1, ("GPU-0",), (bytes_,), 0, alone=alone, waited=waited, closed=closed)
    return Waiter(f"ticket.{uid}.{run}", uid, run, ticket, idle, bool(said.get("passed_up")))


def hold(memory: int, uid: int) -> Hold:
    """A lease on GPU 0 of which nothing is taken yet."""
    return Hold({"GPU-0": memory * GIB}, {}, {HOST: 0.0}, uid=uid)


def scene(*waiters: Waiter, holds: tuple[Hold, ...] = (), turn: Turn | None = None) -> Machine:
    """A GPU of 24 GiB and those who wait for it."""
    return replace(machine(gpu(), host(cores=64), holds=holds), uid=ME, waiters=waiters, turn=turn or Turn())


def placed(decision: Decision) -> list[int]:
    return [placement.task for placement in decision.placements]


def packer(number: int = 3, memory: str = "8GiB") -> Brain:
    return brain(tasks(number, memory), buffer="0GiB", max_gpu_load=64.0)


class TestWhoIsNext:
    def test_nobody_waits_and_nothing_is_kept(self) -> None:
        assert placed(packer().decide(scene())) == [1, 2, 3]

    def test_room_is_kept_for_who_came_before(self) -> None:
        decision = packer().decide(scene(waiter(12)))
        assert placed(decision) == [1]
        assert decision.fitting == ("ticket.2000.9-b",)

    def test_who_came_before_all_others_takes_what_it_needs_first(self) -> None:
        decision = packer().decide(scene(waiter(12, waited=5.0), turn=Turn(task=1, waited=9.0)))
        assert placed(decision) == [1], "8 of 24, then 12 for the other one, and then 8 do not fit any more"

    def test_a_user_who_holds_less_is_next_though_he_came_later(self) -> None:
        mine = scene(waiter(20, waited=1.0), holds=(hold(2, ME),), turn=Turn(task=1, waited=100.0))
        assert placed(packer().decide(mine)) == []

    def test_a_user_who_holds_more_is_not_next_though_he_came_before(self) -> None:
        theirs = scene(waiter(20, waited=100.0), holds=(hold(2, BEN),), turn=Turn(task=1, waited=1.0))
        assert placed(packer(1).decide(theirs)) == [1]

    def test_what_a_pass_places_counts_as_held_from_then_on(self) -> None:
        """The first of a user takes a turn, the second comes after everybody who holds nothing."""
        decision = packer().decide(scene(waiter(16, waited=5.0), turn=Turn(task=1, waited=9.0)))
        assert placed(decision) == [1]

    def test_between_waiters_of_one_user_who_came_first_is_next(self) -> None:
        before, after = waiter(20, 9.0, ME, "3-a"), waiter(20, 5.0, ME, "3-a")
        assert placed(packer(1).decide(scene(before, turn=Turn(task=1, waited=7.0)))) == []
        assert placed(packer(1).decide(scene(after, turn=Turn(task=1, waited=7.0)))) == [1]

    def test_of_two_who_hold_the_same_the_one_whose_last_start_is_longer_ago_is_next(self) -> None:
        """Of four runs of a user one has waited for long at all times."""
        for last, started in ((5.0, [1]), (15.0, [])):
            holds = (replace(hold(2, ME), since=3.0), replace(hold(2, BEN), since=10.0))
            seen = scene(waiter(16, waited=100.0), holds=holds, turn=Turn(task=1, waited=1.0, last=last))
            assert placed(packer(1, "16GiB").decide(seen)) == started

    def test_two_who_are_before_are_kept_room_for_in_their_order(self) -> None:
        decision = packer().decide(scene(waiter(20, 5.0, CARL, "8-c"), waiter(10, 9.0)))
        assert decision.fitting == ("ticket.2000.9-b",), "after Ben's 10 there are no 20 for Carl"
        assert placed(decision) == [1]

    def test_an_unknown_one_is_kept_all_of_the_device(self) -> None:
        assert placed(packer().decide(scene(waiter(None)))) == []

    def test_nothing_starts_beside_one_that_must_be_alone(self) -> None:
        assert placed(packer().decide(scene(waiter(1, alone=True)))) == []

    def test_one_that_waits_for_another_device_is_in_nobodys_way(self) -> None:
        elsewhere = replace(waiter(20), ticket=replace(waiter(20).ticket, devices=("GPU-7",)))
        assert placed(packer().decide(scene(elsewhere))) == [1, 2, 3]

    def test_slots_give_way_as_well(self) -> None:
        slots = brain(tasks(2), buffer="0GiB", slots=2)
        assert placed(slots.decide(scene(waiter(12)))) == []

    def test_what_was_kept_for_somebody_who_gave_up_is_taken(self) -> None:
        b = packer(1)
        before = scene(waiter(20))
        assert placed(b.decide(before)) == []
        assert placed(b.decide(replace(before, waiters=()))) == [1], "nothing else has changed"


class TestTooBig:
    def test_who_does_not_fit_is_passed_over(self) -> None:
        decision = packer().decide(scene(waiter(20), holds=(hold(8, CARL),)))
        assert (placed(decision), decision.fitting) == ([1, 2], ())

    def test_until_that_was_too_often_then_its_device_closes_to_who_came_later(self) -> None:
        decision = packer().decide(scene(waiter(20, closed=True), holds=(hold(8, CARL),)))
        assert placed(decision) == []
        assert {refusal.reason for refusal in decision.refusals} == {"closed"}

    def test_whatever_its_user_holds(self) -> None:
        decision = packer().decide(scene(waiter(20, closed=True), holds=(hold(8, BEN),)))
        assert placed(decision) == []

    def test_of_two_such_who_came_first_is_next(self) -> None:
        other = waiter(20, 700.0, closed=True)
        first = scene(other, turn=Turn(task=1, waited=900.0, closed=True))
        second = scene(other, turn=Turn(task=1, waited=650.0, closed=True))
        assert placed(packer(1).decide(first)) == [1]
        assert placed(packer(1).decide(second)) == []

    def test_nothing_of_its_own_run_passes_it_either(self) -> None:
        both = brain([*tasks(1, "20GiB"), *tasks(1, "2GiB")], buffer="0GiB")
        waiting = scene(waiter(1), holds=(hold(8, CARL),), turn=Turn(task=1, waited=700.0, closed=True))
        assert placed(both.decide(waiting)) == []


class TestWhoIsLeftOut:
    def test_one_that_stands_still(self) -> None:
        assert placed(packer().decide(scene(waiter(12, idle=STANDS_STILL + 1)))) == [1, 2, 3]

    def test_one_that_had_its_chance(self) -> None:
        decision = packer().decide(scene(waiter(12, passed_up=True)))
        assert placed(decision) == [1, 2, 3]
        assert decision.fitting == ("ticket.2000.9-b",), "it is still known to fit, so its chance does not begin anew"


class TestTickets:
    def test_what_finds_no_room_is_told(self) -> None:
        decision = packer(4).decide(scene())
        assert decision.wait == Ticket(4, ("GPU-0",), (8 * GIB,), None, busy=0.5)

    def test_what_waits_for_other_reasons_tells_nobody(self) -> None:
        assert brain(tasks(4, "8GiB"), jobs=1).decide(scene()).wait is None

    def test_on_the_host_too(self) -> None:
        decision = brain(tasks(4, "10GiB"), buffer="0GiB").decide(machine(host(cores=64)))
        assert decision.wait is not None
        assert (decision.wait.devices, decision.wait.gpus, decision.wait.host) == ((HOST,), (), 10 * GIB)


class TestSlots:
    """They look at no memory, so that their cards are kept for whoever is next there."""

    def test_a_card_is_kept_for_who_came_before(self) -> None:
        waits = replace(scene(waiter(None, alone=True)), budgets=(*slots("0", "1"), gpu(), gpu(1), host()))
        decision = brain(tasks(3)).decide(waits)
        assert [one.slot for one in decision.placements] == ["name:1:1"]
        assert decision.fitting == ("ticket.2000.9-b",)
        assert "closed" in {refusal.reason for refusal in decision.refusals}

    def test_who_would_not_fit_is_passed_over_until_its_ticket_closes(self) -> None:
        used = (*slots("0", "0"), gpu(), host())
        for closed, starts in ((False, [1, 2]), (True, [])):
            waits = replace(scene(waiter(20, closed=closed), holds=(hold(10, CARL),)), budgets=used)
            assert placed(brain(tasks(3)).decide(waits)) == starts

    def test_who_had_its_chance_keeps_nothing(self) -> None:
        waits = replace(scene(waiter(None, passed_up=True)), budgets=(*slots("0"), gpu(), host()))
        assert placed(brain(tasks(1)).decide(waits)) == [1]


def lease(name: str, run: str = "5-c", device: str = "GPU-0") -> Lease:
    return Lease(name, CARL, run, 1, 1, 0, {device: GIB}, {})


WAIT = Decision(wait=Ticket(7, ("GPU-0",), (GIB,), None))


class TestStanding:
    def test_it_waits_from_its_first_decision_without_room(self) -> None:
        standing = Standing(Rules())
        ticket = standing.after(100.0, WAIT, (), ())
        assert ticket is not None
        assert ticket.waited == 0.0
        assert standing.turn(103.0, ()) == Turn(7, 3.0)

    def test_the_first_task_of_all_waits_like_any_other(self) -> None:
        """Its number is 0: it never came to be before anybody, and its devices never closed."""
        standing, first = Standing(Rules(overtakes=1)), Decision(wait=Ticket(0, ("GPU-0",), (GIB,), None))
        standing.after(100.0, first, (), ())
        assert standing.turn(103.0, ()) == Turn(0, 3.0)
        ticket = standing.after(104.0, first, (), ())
        assert ticket is not None
        assert ticket.waited == 4.0
        assert standing.turn(105.0, (lease("one"),)).closed

    def test_nothing_waits_any_more(self) -> None:
        standing = Standing(Rules())
        standing.after(100.0, WAIT, (), ())
        assert standing.after(101.0, Decision(), (), ()) is None
        assert standing.turn(102.0, ()) == Turn()

    def test_what_is_kept_from_starting_by_something_else_for_a_moment_keeps_its_place(self) -> None:
        """A neighbour's memory is seen before it is known to be one's: the wait began anew each time."""
        standing, young = Standing(Rules()), Decision(refusals=(Refusal(7, "young", "GPU 0"),))
        standing.after(100.0, WAIT, (), ())
        ticket = standing.after(103.0, young, (), ())
        assert ticket is not None
        assert ticket.waited == 3.0
        assert standing.turn(104.0, ()) == Turn(7, 4.0)

    def test_but_for_a_moment_only(self) -> None:
        standing, foreign = Standing(Rules()), Decision(refusals=(Refusal(7, "foreign", "GPU 0"),))
        standing.after(100.0, WAIT, (), ())
        assert standing.after(100.0 + STANDS_STILL + 1, foreign, (), ()) is None
        assert standing.after(120.0, foreign, (), ()) is None

    def test_fifty_later_comers_close_its_device(self) -> None:
        standing = Standing(Rules(overtakes=2))
        standing.after(100.0, WAIT, (), (lease("old"),))
        assert not standing.turn(101.0, (lease("old"), lease("one"))).closed
        assert not standing.turn(102.0, (lease("one"), lease("elsewhere", device="GPU-3"))).closed
        assert standing.turn(103.0, (lease("one"), lease("two"))).closed

    def test_those_that_would_come_until_the_next_look_count(self) -> None:
        standing = Standing(Rules(overtakes=5))
        standing.after(100.0, WAIT, (), ())
        assert not standing.turn(101.0, tuple(lease(f"a{number}") for number in range(2))).closed
        assert standing.turn(102.0, tuple(lease(f"b{number}") for number in range(2))).closed

    @pytest.mark.parametrize(("beside", "passed"), [(4, 50), (22, 32), (100, 25)])
    def test_where_much_runs_devices_close_earlier_but_not_before_half_of_them_came(
        self, beside: int, passed: int
    ) -> None:
        """What runs when they close ends before it starts, so that it waits for sixty ends at most."""
        standing, leases = Standing(Rules()), [lease(f"a{number}") for number in range(200)]
        standing.after(100.0, WAIT, (), leases[:beside])
        looks = (standing.turn(100.0 + came, leases[came : came + beside]).closed for came in range(1, 60))
        assert [*looks].index(True) + 1 == passed

    def test_ten_minutes_do_so_too(self) -> None:
        standing = Standing(Rules())
        standing.after(100.0, WAIT, (), ())
        assert not standing.turn(699.0, ()).closed
        assert standing.turn(700.0, ()).closed

    def test_who_came_before_passes_nobody(self) -> None:
        standing = Standing(Rules(overtakes=1))
        standing.after(100.0, WAIT, (waiter(1, waited=50.0, run="5-c"),), ())
        assert not standing.turn(101.0, (lease("one", run="5-c"),)).closed
        assert standing.turn(102.0, (lease("two", run="6-d"),)).closed

    def test_but_who_holds_more_does_however_early_it_came(self) -> None:
        standing = Standing(Rules(overtakes=1))
        standing.after(100.0, WAIT, (waiter(1, waited=50.0, run="5-c", uid=CARL),), (), frozenset({CARL}))
        assert standing.turn(101.0, (lease("one", run="5-c"),)).closed

    def test_who_holds_more_of_those_who_wait(self) -> None:
        scene_ = scene(waiter(1), waiter(1, uid=CARL, run="5-c"), holds=(hold(2, BEN), hold(4, CARL), hold(1, ME)))
        mine = packer(1, "2GiB").decide(scene()).placements
        wait = Decision(wait=Ticket(7, ("GPU-0",), (GIB,), None))
        assert richer(scene_, mine, wait) == {CARL}

    def test_its_next_task_is_the_last_in_line_again(self) -> None:
        standing = Standing(Rules())
        standing.after(100.0, WAIT, (), ())
        started = packer(1).decide(scene()).placements[0]
        moved = Decision((replace(started, task=7),), wait=replace(WAIT.wait or Ticket(0, (), (), 0), task=8))
        ticket = standing.after(160.0, moved, (), ())
        assert ticket is not None
        assert (ticket.task, ticket.waited) == (8, 0.0)

    def test_who_looks_and_leaves_what_is_kept_for_it_had_its_chance(self) -> None:
        standing, fits = Standing(Rules()), Decision(fitting=("ticket.2000.9-b",))
        standing.after(100.0, fits, (), ())
        asleep, awake = waiter(1, idle=9.0), waiter(1, idle=0.1)
        later = 100.0 + CHANCE + 0.2
        assert [one.passed_up for one in standing.waiters(later, (asleep, awake))] == [False, True]

    def test_and_gets_another_once_it_did_not_fit(self) -> None:
        standing, fits = Standing(Rules()), Decision(fitting=("ticket.2000.9-b",))
        for at, decision in ((100.0, fits), (101.0, Decision()), (105.0, fits)):
            standing.after(at, decision, (), ())
        assert not standing.waiters(105.5, (waiter(1),))[0].passed_up


def test_an_alone_lease_of_somebody_elses_lets_nothing_start_beside_it() -> None:
    alone = replace(hold(1, BEN), alone=True)
    decision = packer().decide(scene(holds=(alone,)))
    assert [refusal.reason for refusal in decision.refusals] == ["alone"]


def test_the_ram_of_an_alone_lease_on_a_gpu_is_nobodys_lock() -> None:
    elsewhere = Hold({"GPU-5": GIB, HOST: GIB}, {}, {HOST: 0.0}, alone=True, uid=BEN)
    assert placed(packer().decide(scene(holds=(elsewhere,)))) == [1, 2, 3]
