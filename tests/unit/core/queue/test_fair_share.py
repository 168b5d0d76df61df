"""Turns among the waiting users of a machine: who is next, what is kept for them, when devices drain for one."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from scheduler.core.brain import Brain
from scheduler.core.config import SchedulingConfig
from scheduler.core.leases import Lease
from scheduler.core.model import HOST, Decision, Machine, Turn, Waiter, WaitTicket
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.queue.fair_share import CHANCE, STANDS_STILL, TurnTracker, users_with_more
from scheduler.units import GIB
from tests.support.builders import brain, gpu, host, lease_of, machine, slots, tasks
from tests.support.faults import fault

ME, BEN, CARL = 1000, 2000, 3000


def waiter(memory: int | None, waited: float = 10.0, uid: int = BEN, run: str = "9-b", **said: object) -> Waiter:
    """Return a waiter that wants so many GiB on GPU 0."""
    closed, idle, alone = bool(said.get("closed")), float(str(said.get("idle", 0.0))), bool(said.get("alone"))
    bytes_ = None if memory is None else memory * GIB
    last = float(str(said.get("last", 0.0)))
    ticket = WaitTicket(1, ("GPU-0",), (bytes_,), 0, alone=alone, waited=waited, closed=closed, last=last)
    return Waiter(f"ticket.{uid}.{run}", uid, run, ticket, idle, bool(said.get("passed_up")))


def hold(memory: int, uid: int) -> Lease:
    """Return a lease on GPU 0 of which nothing is used yet."""
    return lease_of({"GPU-0": memory * GIB}, {}, {HOST: 0.0}, uid=uid)


def scene(*waiters: Waiter, leases: tuple[...] = (), turn: Turn | None = None) -> Machine:
    """Return a machine with a GPU of 24 GiB and the waiters for it."""
    return replace(machine(gpu(), host(cores=64), leases=leases), uid=ME, waiters=waiters, turn=turn or Turn())


def placed(decision: Decision) -> list[int]:
    return [placement.task for placement in decision.placements]


def packer(number: int = 3, memory: str = "8GiB") -> Brain:
    return brain(tasks(number, memory), buffer="0GiB", max_gpu_load=64.0)


class TestNextUser:
    def test_no_capacity_is_kept_without_waiters(self) -> None:
        assert placed(packer().decide(scene())) == [1, 2, 3]

    def test_capacity_is_kept_for_a_waiter_that_came_before(self) -> None:
        decision = packer().decide(scene(waiter(12)))
        assert placed(decision) == [1]
        assert decision.fitting == ("ticket.2000.9-b",)
        assert "of run 9 of" in decision.refusals[0].text

    @pytest.mark.parametrize(("uid", "urgent", "starts"), [(ME, True, []), (ME, False, [1]), (BEN, True, [1])])
    def test_an_urgent_task_of_this_user_comes_before_a_task_that_waited_longer(
        self, uid: int, urgent: bool, starts: list[int]
    ) -> None:
        its = waiter(16, waited=5.0, uid=uid)
        its = replace(its, ticket=replace(its.ticket, urgent=urgent))
        mine = Turn(task=1, waited=100.0)
        assert placed(packer(1, "16GiB").decide(scene(its, turn=mine))) == starts

    def test_among_users_who_hold_nothing_the_one_who_started_something_last_is_last(self) -> None:
        for theirs, fits in ((10.0, ("ticket.2000.9-b",)), (70.0, ())):
            seen = scene(waiter(16, waited=1.0, last=theirs), turn=Turn(1, 9.0, last=40.0))
            assert packer(1, "16GiB").decide(replace(seen, now=100.0)).fitting == fits

    def test_a_user_is_last_if_any_run_of_that_user_started_something_last(self) -> None:
        waiters = waiter(16, waited=1.0, last=10.0), waiter(16, waited=1.0, last=70.0, run="8-a")
        seen = scene(*waiters, turn=Turn(1, 9.0, last=40.0))
        assert packer(1, "16GiB").decide(replace(seen, now=100.0)).fitting == ()

    def test_a_start_in_the_future_is_not_believed(self) -> None:
        seen = scene(waiter(16, waited=20.0, last=1e9), turn=Turn(1, 9.0, last=100.0))
        assert packer(1, "16GiB").decide(replace(seen, now=100.0)).fitting == ("ticket.2000.9-b",), "it came first"

    def test_a_task_that_waited_longest_takes_its_capacity_first(self) -> None:
        decision = packer().decide(scene(waiter(12, waited=5.0), turn=Turn(task=1, waited=9.0)))
        assert placed(decision) == [1], "8 of 24, then 12 for the other one, and then 8 do not fit any more"

    def test_a_user_who_holds_less_is_next_even_if_waiting_for_less_time(self) -> None:
        mine = scene(waiter(20, waited=1.0), leases=(hold(2, ME),), turn=Turn(task=1, waited=100.0))
        assert placed(packer().decide(mine)) == []

    def test_a_user_who_holds_more_is_not_next_even_if_waiting_for_longer(self) -> None:
        theirs = scene(waiter(20, waited=100.0), leases=(hold(2, BEN),), turn=Turn(task=1, waited=1.0))
        assert placed(packer(1).decide(theirs)) == [1]

    def test_placements_of_a_pass_count_as_held_in_the_same_pass(self) -> None:
        """The first task takes the user's turn; the second comes after all users who hold nothing."""
        decision = packer().decide(scene(waiter(16, waited=5.0), turn=Turn(task=1, waited=9.0)))
        assert placed(decision) == [1]

    def test_among_waiters_of_one_user_the_first_is_next(self) -> None:
        before, after = waiter(20, 9.0, ME, "3-a"), waiter(20, 5.0, ME, "3-a")
        assert placed(packer(1).decide(scene(before, turn=Turn(task=1, waited=7.0)))) == []
        assert placed(packer(1).decide(scene(after, turn=Turn(task=1, waited=7.0)))) == [1]

    def test_among_users_who_hold_equal_amounts_the_longest_since_a_start_is_next(self) -> None:
        """One of four runs of a user has always waited for long."""
        for last, started in ((5.0, [1]), (15.0, [])):
            leases = (replace(hold(2, ME), since=3.0), replace(hold(2, BEN), since=10.0))
            seen = scene(waiter(16, waited=100.0), leases=leases, turn=Turn(task=1, waited=1.0, last=last))
            assert placed(packer(1, "16GiB").decide(seen)) == started

    def test_capacity_is_kept_for_two_earlier_waiters_in_their_order(self) -> None:
        decision = packer().decide(scene(waiter(20, 5.0, CARL, "8-c"), waiter(10, 9.0)))
        assert decision.fitting == ("ticket.2000.9-b",), "after Ben's 10 there are no 20 for Carl"
        assert placed(decision) == [1]

    def test_a_waiter_of_unknown_need_is_kept_the_whole_device(self) -> None:
        assert placed(packer().decide(scene(waiter(None)))) == []

    def test_no_task_starts_beside_capacity_kept_for_an_exclusive_waiter(self) -> None:
        assert placed(packer().decide(scene(waiter(1, alone=True)))) == []

    def test_a_waiter_for_another_device_delays_no_task(self) -> None:
        elsewhere = replace(waiter(20), ticket=replace(waiter(20).ticket, devices=("GPU-7",)))
        assert placed(packer().decide(scene(elsewhere))) == [1, 2, 3]

    def test_slots_are_kept_for_an_earlier_waiter(self) -> None:
        slots = brain(tasks(2), buffer="0GiB", slots=2)
        assert placed(slots.decide(scene(waiter(12)))) == []

    def test_capacity_kept_for_a_waiter_that_left_is_used(self) -> None:
        b = packer(1)
        before = scene(waiter(20))
        assert placed(b.decide(before)) == []
        assert placed(b.decide(replace(before, waiters=()))) == [1], "nothing else has changed"


class TestLargeWaiter:
    def test_a_waiter_that_does_not_fit_is_bypassed(self) -> None:
        decision = packer().decide(scene(waiter(20), leases=(hold(8, CARL),)))
        assert (placed(decision), decision.fitting) == ([1, 2], ())

    def test_devices_drain_for_a_waiter_that_was_bypassed_too_often(self) -> None:
        decision = packer().decide(scene(waiter(20, closed=True), leases=(hold(8, CARL),)))
        assert placed(decision) == []
        assert {refusal.reason for refusal in decision.refusals} == {"kept"}

    def test_devices_do_not_drain_for_a_waiter_that_unmanaged_memory_keeps_out(self) -> None:
        """A notebook held 1.5 of 24 GiB: the request of one user could never fit, and stopped all other users."""
        waits = replace(scene(waiter(23, closed=True)), budgets=(gpu(free="22.5GiB"), host(cores=64)))
        assert placed(packer().decide(waits)) == [1, 2]

    @fault(96)
    def test_devices_do_not_drain_for_a_request_that_no_device_could_hold(self) -> None:
        """A forged ticket of 2^59 bytes stopped every other user for as long as it was renewed."""
        ticket = replace(waiter(1, waited=1e9, closed=True).ticket, gpus=(1 << 59,))
        assert placed(packer().decide(scene(replace(waiter(1), ticket=ticket)))) == [1, 2, 3]
        on_host = WaitTicket(1, (HOST,), (), 1 << 59, waited=1e9, closed=True)
        waits = replace(scene(replace(waiter(1), ticket=on_host)), budgets=(host(cores=64),))
        assert placed(packer().decide(waits)) == [1, 2, 3]

    def test_the_reason_names_the_user_and_process_for_which_devices_drain(self) -> None:
        waits = replace(waiter(20, closed=True), who="ben (process 4711)")
        decision = packer().decide(scene(waits, leases=(hold(8, CARL),)))
        assert {refusal.text for refusal in decision.refusals} == {"task 1 of run 9 of ben (process 4711)"}

    def test_devices_drain_again_once_unmanaged_memory_has_left(self) -> None:
        b, carl = packer(), replace(hold(8, CARL), used={"GPU-0": 8 * GIB})
        waits = scene(waiter(23, closed=True), leases=(carl,))
        assert placed(b.decide(replace(waits, budgets=(gpu(free="14.5GiB"), host(cores=64))))) == [1]
        assert placed(b.decide(replace(waits, budgets=(gpu(free="16GiB"), host(cores=64))))) == []

    def test_devices_drain_for_a_waiter_that_fits_without_its_margin(self) -> None:
        """An empty device needs no margin, so the task starts there with less than it asks for beside others."""
        ticket = replace(waiter(23, closed=True).ticket, bare=(21 * GIB,))
        waits = scene(replace(waiter(23), ticket=ticket), leases=(hold(8, CARL),))
        assert placed(packer().decide(replace(waits, budgets=(gpu(free="22.5GiB"), host(cores=64))))) == []

    def test_devices_drain_for_a_bypassed_waiter_whatever_its_user_holds(self) -> None:
        decision = packer().decide(scene(waiter(20, closed=True), leases=(hold(8, BEN),)))
        assert placed(decision) == []

    @fault(131)
    def test_once_it_let_capacity_pass_leases_of_its_own_user_keep_it_from_draining_a_device(self) -> None:
        """A user with a small task that never ended kept the device drained without end."""
        waits = replace(waiter(20, closed=True), lets_capacity_pass=True)
        assert placed(packer().decide(scene(waits, leases=(hold(8, BEN),)))) == [1, 2]
        assert placed(packer().decide(scene(waits, leases=(hold(8, CARL),)))) == []
        assert packer().decide(scene(waits, leases=(hold(8, CARL),))).draining == (waits.name,)

    def test_among_two_bypassed_waiters_the_first_is_next(self) -> None:
        other = waiter(20, 700.0, closed=True)
        first = scene(other, turn=Turn(task=1, waited=900.0, closed=True))
        second = scene(other, turn=Turn(task=1, waited=650.0, closed=True))
        assert placed(packer(1).decide(first)) == [1]
        assert placed(packer(1).decide(second)) == []

    def test_tasks_of_the_same_run_do_not_bypass_a_task_for_which_devices_drain(self) -> None:
        both = brain([*tasks(1, "20GiB"), *tasks(1, "2GiB")], buffer="0GiB")
        waiting = scene(waiter(1), leases=(hold(8, CARL),), turn=Turn(task=1, waited=700.0, closed=True))
        assert placed(both.decide(waiting)) == []


class TestIgnoredWaiters:
    def test_a_waiter_whose_scheduler_is_stopped_is_ignored(self) -> None:
        assert placed(packer().decide(scene(waiter(12, idle=STANDS_STILL + 1)))) == [1, 2, 3]

    def test_a_waiter_that_let_its_turn_pass_is_ignored(self) -> None:
        decision = packer().decide(scene(waiter(12, passed_up=True)))
        assert placed(decision) == [1, 2, 3]
        assert decision.fitting == ("ticket.2000.9-b",), "it is still known to fit, so its chance does not begin anew"


class TestTickets:
    def test_a_task_that_finds_no_capacity_gets_a_wait_ticket(self) -> None:
        decision = packer(4).decide(scene())
        assert decision.wait == WaitTicket(4, ("GPU-0",), (8 * GIB,), None, busy=0.5)

    def test_a_task_that_waits_for_other_reasons_shows_no_ticket(self) -> None:
        assert brain(tasks(4, "8GiB"), jobs=1).decide(scene()).wait is None

    def test_a_task_that_finds_no_host_ram_gets_a_wait_ticket(self) -> None:
        decision = brain(tasks(4, "10GiB"), buffer="0GiB").decide(machine(host(cores=64)))
        assert decision.wait is not None
        assert (decision.wait.devices, decision.wait.gpus, decision.wait.host) == ((HOST,), (), 10 * GIB)


class TestSlots:
    """Slots ignore memory, so their GPUs are kept for the next waiter there."""

    def test_the_gpu_of_a_slot_is_kept_for_an_earlier_waiter(self) -> None:
        waits = replace(scene(waiter(None, alone=True)), budgets=(*slots("0", "1"), gpu(), gpu(1), host()))
        decision = brain(tasks(3)).decide(waits)
        assert [one.slot for one in decision.placements] == ["name:1:1"]
        assert decision.fitting == ("ticket.2000.9-b",)
        assert "kept" in {refusal.reason for refusal in decision.refusals}

    def test_slots_bypass_a_waiter_that_does_not_fit_until_its_ticket_drains_them(self) -> None:
        used = (*slots("0", "0"), gpu(), host())
        for closed, starts in ((False, [1, 2]), (True, [])):
            waits = replace(scene(waiter(20, closed=closed), leases=(hold(10, CARL),)), budgets=used)
            assert placed(brain(tasks(3)).decide(waits)) == starts

    def test_slots_are_not_kept_for_a_waiter_that_let_its_turn_pass(self) -> None:
        waits = replace(scene(waiter(None, passed_up=True)), budgets=(*slots("0"), gpu(), host()))
        assert placed(brain(tasks(1)).decide(waits)) == [1]


def lease(name: str, run: str = "5-c", device: str = "GPU-0") -> Lease:
    return Lease(name, CARL, run, 1, 1, 0, {device: GIB}, {})


WAIT = Decision(wait=WaitTicket(7, ("GPU-0",), (GIB,), None))


class TestTurnTracker:
    def test_a_task_waits_from_its_first_decision_without_capacity(self) -> None:
        standing = TurnTracker(SchedulingConfig())
        ticket = standing.after(100.0, WAIT, (), ())
        assert ticket is not None
        assert ticket.waited == 0.0
        assert standing.turn(100.0, ()) == Turn(7, 0.0)
        assert standing.turn(103.0, ()) == Turn(7, 3.0)

    def test_task_zero_waits_like_any_other_task(self) -> None:
        """Task 0 never came before another waiter, and its devices never drained."""
        standing, first = (
            TurnTracker(SchedulingConfig(bypass_limit=1)),
            Decision(wait=WaitTicket(0, ("GPU-0",), (GIB,), None)),
        )
        standing.after(100.0, first, (), ())
        assert standing.turn(103.0, ()) == Turn(0, 3.0)
        ticket = standing.after(104.0, first, (), ())
        assert ticket is not None
        assert ticket.waited == 4.0
        assert standing.turn(105.0, (lease("one"),)).closed

    def test_no_ticket_is_shown_when_no_task_waits_any_more(self) -> None:
        standing = TurnTracker(SchedulingConfig())
        standing.after(100.0, WAIT, (), ())
        assert standing.after(101.0, Decision(), (), ()) is None
        assert standing.turn(102.0, ()) == Turn()

    def test_a_short_delay_for_another_reason_keeps_the_waiting_time(self) -> None:
        """Memory of a neighbour is measured before it is attributed to its task; the wait began anew each time."""
        standing, young = TurnTracker(SchedulingConfig()), Decision(refusals=(Refusal(7, Reason.YOUNG, "GPU 0"),))
        standing.after(100.0, WAIT, (), ())
        ticket = standing.after(103.0, young, (), ())
        assert ticket is not None
        assert ticket.waited == 3.0
        assert standing.turn(104.0, ()) == Turn(7, 4.0)

    def test_a_long_delay_for_another_reason_ends_the_waiting_time(self) -> None:
        standing, unmanaged = TurnTracker(SchedulingConfig()), Decision(refusals=(Refusal(7, Reason.AVOIDED, "GPU 0"),))
        standing.after(100.0, WAIT, (), ())
        assert standing.after(100.0 + STANDS_STILL + 1, unmanaged, (), ()) is None
        assert standing.after(120.0, unmanaged, (), ()) is None

    def test_later_starts_up_to_the_bypass_limit_drain_the_devices_of_a_waiter(self) -> None:
        standing = TurnTracker(SchedulingConfig(bypass_limit=2))
        standing.after(100.0, WAIT, (), (lease("old"),))
        assert not standing.turn(101.0, (lease("old"), lease("one"))).closed
        assert not standing.turn(102.0, (lease("one"), lease("elsewhere", device="GPU-3"))).closed
        assert standing.turn(103.0, (lease("one"), lease("two"))).closed

    def test_starts_expected_before_the_next_look_count_as_bypasses(self) -> None:
        standing = TurnTracker(SchedulingConfig(bypass_limit=5))
        standing.after(100.0, WAIT, (), ())
        assert not standing.turn(101.0, tuple(lease(f"a{number}") for number in range(2))).closed
        assert standing.turn(102.0, tuple(lease(f"b{number}") for number in range(2))).closed

    @pytest.mark.parametrize(("beside", "passed"), [(4, 50), (22, 32), (100, 25)])
    def test_devices_with_many_tasks_drain_earlier_but_not_before_half_the_limit(
        self, beside: int, passed: int
    ) -> None:
        """Tasks that run when devices begin to drain end before the waiter starts; it waits for sixty ends at most."""
        standing, leases = TurnTracker(SchedulingConfig()), [lease(f"a{number}") for number in range(200)]
        standing.after(100.0, WAIT, (), leases[:beside])
        looks = (standing.turn(100.0 + came, leases[came : came + beside]).closed for came in range(1, 60))
        assert [*looks].index(True) + 1 == passed

    def test_ten_minutes_of_waiting_drain_the_devices_of_a_waiter(self) -> None:
        standing = TurnTracker(SchedulingConfig())
        standing.after(100.0, WAIT, (), ())
        assert not standing.turn(699.0, ()).closed
        assert standing.turn(700.0, ()).closed

    def test_starts_of_a_run_that_came_before_do_not_count_as_bypassing(self) -> None:
        standing = TurnTracker(SchedulingConfig(bypass_limit=1))
        standing.after(100.0, WAIT, (waiter(1, waited=50.0, run="5-c"),), ())
        assert not standing.turn(101.0, (lease("one", run="5-c"),)).closed
        assert standing.turn(102.0, (lease("two", run="6-d"),)).closed

    def test_starts_of_a_run_whose_user_holds_more_count_as_bypassing(self) -> None:
        standing = TurnTracker(SchedulingConfig(bypass_limit=1))
        standing.after(100.0, WAIT, (waiter(1, waited=50.0, run="5-c", uid=CARL),), (), frozenset({CARL}))
        assert standing.turn(101.0, (lease("one", run="5-c"),)).closed

    def test_the_waiting_users_who_hold_more_are_found(self) -> None:
        scene_ = scene(waiter(1), waiter(1, uid=CARL, run="5-c"), leases=(hold(2, BEN), hold(4, CARL), hold(1, ME)))
        mine = packer(1, "2GiB").decide(scene()).placements
        wait = Decision(wait=WaitTicket(7, ("GPU-0",), (GIB,), None))
        assert users_with_more(scene_, mine, wait) == {CARL}

    def test_the_next_task_of_a_run_waits_from_its_own_first_decision(self) -> None:
        standing = TurnTracker(SchedulingConfig())
        standing.after(100.0, WAIT, (), ())
        started = packer(1).decide(scene()).placements[0]
        moved = Decision((replace(started, task=7),), wait=replace(WAIT.wait or WaitTicket(0, (), (), 0), task=8))
        ticket = standing.after(160.0, moved, (), ())
        assert ticket is not None
        assert (ticket.task, ticket.waited) == (8, 0.0)

    def test_a_waiter_that_looks_and_leaves_its_capacity_loses_its_turn(self) -> None:
        standing, fits = TurnTracker(SchedulingConfig()), Decision(fitting=("ticket.2000.9-b",))
        standing.after(100.0, fits, (), ())
        asleep, awake = waiter(1, idle=9.0), waiter(1, idle=0.1)
        later = 100.0 + CHANCE + 0.2
        assert [one.passed_up for one in standing.waiters(later, (asleep, awake))] == [False, True]

    def test_a_user_who_lets_capacity_pass_under_new_names_loses_turns_for_longer_each_time(self) -> None:
        """Each name had a second of its own, so a new one each 0.8 s kept the device from all other users."""
        standing, kept = TurnTracker(SchedulingConfig()), 0
        for tick in range(600):  # two minutes
            now, fresh = 100.0 + tick / 5, waiter(20, run=f"9-{tick // 4}")
            (seen,) = standing.waiters(now, (fresh,))
            kept += not seen.passed_up
            fitting = Decision(fitting=() if seen.passed_up else (fresh.name,))
            standing.after(now, fitting, (seen,), ())
        assert kept / 5 < 15.0

    @pytest.mark.parametrize(("memory", "has_lost"), [(20, False), (0, True)])
    def test_a_user_who_takes_kept_capacity_gets_its_turns_back_but_not_by_an_empty_lease(
        self, memory: int, has_lost: bool
    ) -> None:
        standing, fits, large = TurnTracker(SchedulingConfig()), Decision(fitting=("ticket.2000.9-b",)), waiter(20)
        for tick in range(20):
            standing.after(100.0 + tick / 5, fits, (large,), ())
        assert standing.waiters(104.5, (replace(large, ticket=replace(large.ticket, closed=True)),))[0].passed_up
        taken = Lease("new", BEN, "9-b", 1, 1, 0, {"GPU-0": memory * GIB}, {})
        standing.after(105.0, Decision(), (), (taken,))
        assert standing.waiters(105.5, (large,))[0].passed_up is has_lost

    @fault(131)
    @pytest.mark.parametrize(
        "withdrawn", [False, True], ids=["renewed all the time", "withdrawn now and then, under a new name"]
    )
    def test_ticket_that_drains_devices_in_vain_drains_them_for_a_shrinking_share_of_the_time(
        self, withdrawn: bool
    ) -> None:
        """The ticket drained devices for as long as it was renewed."""
        turns, drained, ticks = TurnTracker(SchedulingConfig()), 0, 48 * 720  # two days
        for tick in range(ticks):
            now = 100.0 + 5 * tick
            forged = () if withdrawn and tick % 120 == 0 else (waiter(20, closed=True, run=f"9-{tick // 120}"),)
            seen = turns.waiters(now, forged)
            closed = tuple(one.name for one in seen if one.ticket.closed)
            drained += len(closed)
            turns.after(now, Decision(draining=closed), seen, ())
        assert drained / ticks < 0.25

    @fault(131)
    def test_devices_are_drained_for_half_an_hour_at_first_and_four_times_as_long_the_second_time(self) -> None:
        turns, large, at = TurnTracker(SchedulingConfig()), waiter(20, closed=True), []
        for tick in range(4 * 720):
            now = 5.0 * tick
            seen = turns.waiters(now, (large,))
            at += [now] if seen[0].ticket.closed else []
            turns.after(now, Decision(draining=(large.name,) if seen[0].ticket.closed else ()), seen, ())
        stops = [before for before, after in pairwise(at) if after > before + 5.0]
        assert (stops, at[-1]) == ([pytest.approx(1800, abs=10)], pytest.approx(3600 + 7200, abs=20))

    @fault(131)
    def test_user_who_takes_what_devices_were_drained_for_loses_nothing(self) -> None:
        turns, large = TurnTracker(SchedulingConfig()), waiter(20, closed=True)
        for tick in range(100):
            turns.after(100.0 + 5 * tick, Decision(draining=(large.name,)), (large,), ())
        turns.after(605.0, Decision(), (), (Lease("new", BEN, "9-b", 1, 1, 0, {"GPU-0": 20 * GIB}, {}),))
        (seen,) = turns.waiters(606.0, (large,))
        assert (seen.ticket.closed, seen.passed_up, seen.lets_capacity_pass) == (True, False, False)

    def test_a_waiter_that_did_not_fit_meanwhile_gets_its_turn_again(self) -> None:
        standing, fits = TurnTracker(SchedulingConfig()), Decision(fitting=("ticket.2000.9-b",))
        for at, decision in ((100.0, fits), (101.0, Decision()), (105.0, fits)):
            standing.after(at, decision, (), ())
        assert not standing.waiters(105.5, (waiter(1),))[0].passed_up


def test_no_task_starts_beside_an_exclusive_lease_of_another_user() -> None:
    alone = replace(hold(1, BEN), alone=True)
    decision = packer().decide(scene(leases=(alone,)))
    assert [refusal.reason for refusal in decision.refusals] == ["alone"]


def test_an_exclusive_lease_on_a_gpu_does_not_lock_the_host_ram() -> None:
    elsewhere = lease_of({"GPU-5": GIB, HOST: GIB}, {}, {HOST: 0.0}, alone=True, uid=BEN)
    assert placed(packer().decide(scene(leases=(elsewhere,)))) == [1, 2, 3]
