"""The room on each device, and who fits in it: placements and refusals with their numbers."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core import packing
from scheduler.core.explain import why
from scheduler.core.model import HOST, Device, Hold, KnownBy, Machine, Placement, Refusal
from scheduler.core.packing import Ask, Need
from scheduler.core.promises import Lease
from scheduler.units import GIB, MIB
from tests.builders import (
    brain,
    decide,
    exited,
    gpu,
    hold,
    host,
    machine,
    peaked,
    place,
    placed,
    reasons,
    rules,
    run,
    size,
    starts,
    tasks,
    tell,
)
from tests.doors.contracts import contract

BUFFER = 512 * MIB
UUID = "GPU-11112222-aaaa"


@pytest.mark.parametrize(
    ("word", "means"),
    [("GPU-1111", True), ("GPU-111", False), ("GPU-", False), ("", False), ("3", True), ("33", False)],
)
def test_a_gpu_is_called_by_its_number_or_by_enough_of_its_uuid(word: str, means: bool) -> None:
    assert packing.is_called(Device(UUID, "GPU 3", 24 * GIB, 1.0, 3), word) is means


@pytest.mark.parametrize(("ghosts", "coming"), [(0, False), (64 * MIB - 1, False), (64 * MIB, True)])
def test_memory_that_the_dead_still_hold_is_coming_back(ghosts: int, coming: bool) -> None:
    here = replace(gpu(0), ghosts=ghosts)
    assert packing.rooms(machine(here), (), rules())["GPU-0"].coming is coming


def room(*holds: Hold, free: str = "24GiB", cap: str | None = None, buffer: int = BUFFER) -> int:
    """The room on a host with 24 GiB."""
    taken = [(hold.promised.get(HOST, 0), hold.used.get(HOST, 0)) for hold in holds]
    return packing.room_on(host("24GiB", free=free, cap=cap), taken, buffer)


class TestRoom:
    def test_an_idle_device_is_free_but_for_the_buffer(self) -> None:
        assert room() == size("23.5GiB")

    def test_what_is_promised_and_not_taken_yet_is_gone(self) -> None:
        assert room(hold("8GiB", used="3GiB"), free="21GiB") == size("15.5GiB")

    def test_what_is_taken_counts_once(self) -> None:
        assert room(hold("8GiB", used="8GiB"), free="16GiB") == size("15.5GiB")

    def test_what_is_taken_above_a_promise_counts_as_taken(self) -> None:
        assert room(hold("8GiB", used="10GiB"), free="14GiB") == size("13.5GiB")

    def test_strangers_without_a_lease_count_by_what_they_hold(self) -> None:
        assert room(free="4GiB") == size("3.5GiB")

    def test_use_that_cannot_be_seen_wastes_but_never_overcommits(self) -> None:
        seen, unseen = hold("8GiB", used="8GiB"), hold("8GiB", used=0)
        assert room(unseen, free="16GiB") == room(seen, free="16GiB") - size("8GiB")

    def test_overcommitted_it_is_below_nothing(self) -> None:
        assert room(hold("30GiB")) == -size("6.5GiB")

    def test_promises_elsewhere_do_not_count(self) -> None:
        assert room(hold("8GiB", key="GPU-0")) == size("23.5GiB")

    @pytest.mark.parametrize("buffer", [0, 100 * MIB, 4 * GIB])
    def test_the_buffer_is_what_the_rules_say(self, buffer: int) -> None:
        assert room(buffer=buffer) == size("24GiB") - buffer


class TestBudget:
    """`--devices host:4GiB`: all live leases together stay below it."""

    def test_it_is_the_room_where_it_is_smaller(self) -> None:
        assert room(cap="4GiB") == size("3.5GiB")

    def test_it_gives_nothing_that_is_not_free(self) -> None:
        assert room(free="2GiB", cap="4GiB") == size("1.5GiB")

    def test_promises_and_what_is_held_above_them_come_off_it(self) -> None:
        assert room(hold("1GiB", used="2GiB"), hold("1GiB"), cap="4GiB") == size("512MiB")

    def test_strangers_without_a_lease_do_not(self) -> None:
        assert room(free="20GiB", cap="4GiB") == size("3.5GiB")

    def test_nobody_fits_that_asks_for_more(self) -> None:
        b = brain(tasks(1, "5GiB") + tasks(1, "3GiB"))
        decision = decide(b, host(cap="4GiB"))
        assert [p.task for p in decision.placements] == [2]
        assert decision.impossible == (Refusal(1, "never", HOST, 5 * GIB, size("3.5GiB"), 4 * GIB),)


class TestKnown:
    """Tasks whose memory was declared."""

    def test_as_many_as_fit(self) -> None:
        assert starts(brain(tasks(5, "8GiB", cpus=0.1))) == [1, 2]

    def test_the_promise_is_what_was_said(self) -> None:
        (placement,) = decide(brain(tasks(1, "8GiB"))).placements
        assert (placement.promise, placement.known_by) == ({HOST: 8 * GIB}, KnownBy.DECLARED)

    def test_the_next_one_that_fits_starts(self) -> None:
        assert starts(brain(tasks(2, "16GiB") + tasks(1, "4GiB"))) == [1, 3]

    def test_the_numbers_of_a_refusal(self) -> None:
        decision = decide(brain(tasks(2, "16GiB")))
        assert decision.refusals == (Refusal(2, "memory", HOST, 16 * GIB, size("7.5GiB"), 24 * GIB),)

    def test_the_most_that_leaves_the_buffer(self) -> None:
        assert starts(brain(tasks(1, "8GiB") + tasks(1, "15.5GiB"))) == [1, 2]
        assert starts(brain(tasks(1, "8GiB") + tasks(1, "15872.1MiB"))) == [1]

    def test_between_the_buffer_and_the_device_it_runs_alone(self) -> None:
        b = brain(tasks(1, "23.8GiB") + tasks(1, "1MiB"))
        assert place(b) == [1]
        assert reasons(b, host(free="22GiB"), used={(1, 1): {HOST: "2GiB"}}) == {2: "memory"}

    def test_it_does_not_come_in_beside_another(self) -> None:
        b = brain(tasks(1, "1GiB") + tasks(1, "23.8GiB"))
        assert place(b) == [1]
        assert reasons(b) == {2: "memory"}
        assert starts(tell(b, exited(1))) == [2]

    def test_exactly_the_device(self) -> None:
        assert starts(brain(tasks(1, "24GiB"))) == [1]

    def test_above_the_device_it_never_fits(self) -> None:
        decision = decide(brain(tasks(1, "24.1GiB")))
        assert decision.impossible == (Refusal(1, "never", HOST, size("24.1GiB"), size("23.5GiB"), 24 * GIB),)

    def test_the_door_knows_that_beforehand(self) -> None:
        (t,) = tasks(1, "30GiB")
        budgets = (gpu(0, "16GiB"), gpu(1, "24GiB"))
        assert packing.never_fits(t, budgets) == Refusal(0, "never", "GPU-1", 30 * GIB, 0, 24 * GIB)
        assert packing.never_fits(t, [host("24GiB", cap="4GiB")]) == Refusal(0, "never", HOST, 30 * GIB, 0, 4 * GIB)

    @pytest.mark.parametrize("memory", [None, "24GiB"])
    def test_the_door_takes_what_may_fit(self, memory: str | None) -> None:
        (t,) = tasks(1, memory)
        assert packing.never_fits(t, [host("24GiB", free="1GiB")]) is None

    def test_never_on_one_device_is_not_never(self) -> None:
        b = brain(tasks(1, "20GiB"))
        decision = decide(b, gpu(0, "24GiB", free="10GiB"), gpu(1, "16GiB"))
        assert decision.impossible == ()
        assert decision.refusals == (Refusal(1, "memory", "GPU-0", 20 * GIB, size("9.5GiB"), 24 * GIB),)

    def test_never_on_any_device_names_the_largest(self) -> None:
        decision = decide(brain(tasks(1, "30GiB")), gpu(0, "24GiB", free="1GiB"), gpu(1, "16GiB"))
        assert [refusal.device for refusal in decision.impossible] == ["GPU-0"]


def need(promise: str, bare: str, alone: bool = False) -> Need:
    """A known peak with its margin."""
    return Need(Ask(size(promise), size(bare)), 1.0, KnownBy.PROFILE, alone=alone)


def promised(asked: Need, *holds: Hold, free: str = "24GiB") -> int | str:
    """The promise it gets on a host with 24 GiB, or why it gets none."""
    rooms = packing.rooms(machine(host(free=free, cores=99), holds=holds), (), rules())
    fitted = packing.fit(1, 1, asked, (), rooms[HOST], rules())
    return fitted.promise[HOST] if isinstance(fitted, Placement) else fitted.reason


class TestMargin:
    """Margin is cut where the device ends: 10 % + 256 MiB on top of 22 GiB is no reason never to run it."""

    def test_whole_where_there_is_room(self) -> None:
        assert promised(need("11.25GiB", bare="10GiB")) == size("11.25GiB")

    @contract("S3-22")
    def test_cut_at_the_buffer(self) -> None:
        assert promised(need("24.5GiB", bare="22GiB")) == size("23.5GiB")

    def test_cut_at_what_is_there_where_nobody_could_leave(self) -> None:
        """A desktop holds half a GiB for ever: waiting for it would be waiting for ever."""
        assert promised(need("24.5GiB", bare="22GiB"), free="23.4GiB") == size("22.9GiB")

    def test_a_bare_need_above_the_buffer_runs_alone_without_it(self) -> None:
        assert promised(need("26GiB", bare="23.7GiB")) == size("24GiB")

    def test_as_much_as_the_whole_device_gets_what_a_driver_leaves_of_it(self) -> None:
        """`Memory` 24GiB on a card of 24GiB, of which its driver keeps some for ever."""
        assert promised(need("24GiB", bare="24GiB"), free="23.7GiB") == size("23.7GiB")
        assert promised(need("24GiB", bare="24GiB"), free="21GiB") == "memory"

    def test_nearly_as_much_gives_the_buffer_up_where_it_would_wait_for_ever(self) -> None:
        assert promised(need("23.4GiB", bare="23.4GiB"), free="23.7GiB") == size("23.4GiB")
        assert promised(need("22GiB", bare="22GiB"), free="21.9GiB") == "memory"

    def test_not_beside_others(self) -> None:
        assert promised(need("26GiB", bare="23.7GiB"), hold("1MiB", used="1MiB")) == "memory"
        assert promised(need("24.5GiB", bare="22GiB"), hold("1GiB")) == "memory"

    def test_whole_beside_others(self) -> None:
        """The others will leave: then there is room for all of it."""
        assert promised(need("11.25GiB", bare="10GiB"), hold("13GiB")) == "memory"

    def test_a_bare_need_above_the_device_never_fits(self) -> None:
        assert promised(need("27GiB", bare="24.1GiB")) == "never"

    @contract("S3-22")
    def test_a_bare_need_above_what_is_free_waits(self) -> None:
        assert promised(need("13GiB", bare="12GiB"), free="12GiB") == "memory"


class TestUnknown:
    def test_half_of_what_is_free_on_the_host(self) -> None:
        (placement,) = decide(brain(tasks(1))).placements
        assert placement.promise == {HOST: size("11.75GiB")}
        assert placement.known_by is KnownBy.LIVE

    def test_the_next_one_half_of_the_rest(self) -> None:
        b = brain(tasks(3, cpus=0.1))
        assert [p.promise[HOST] for p in decide(b).placements] == [
            size("11.75GiB"),
            size("5.875GiB"),
            size("2.9375GiB"),
        ]

    def test_not_for_less_than_its_least(self) -> None:
        assert starts(brain(tasks(1)), host(free="640MiB")) == [1]
        decision = decide(brain(tasks(1)), host(free="639MiB"))
        assert decision.refusals == (Refusal(1, "memory", HOST, 128 * MIB, 127 * MIB, 24 * GIB),)

    def test_below_nothing_is_told_as_nothing(self) -> None:
        decision = decide(brain(tasks(1)), host(free="1MiB"))
        assert decision.refusals[0].room == 0

    def test_unknown_ones_fill_no_device_to_the_brim(self) -> None:
        started = starts(brain(tasks(40, cpus=0.01)), host(cores=100))
        assert 5 < len(started) < 10


class TestCounts:
    def test_slots_count_tasks_and_no_bytes(self) -> None:
        b = brain(tasks(5, "20GiB", cpus=9.0), slots=3)
        decision = decide(b)
        assert [p.task for p in decision.placements] == [1, 2, 3]
        assert decision.refusals == (Refusal(4, "slots", HOST, 1, 0, 3),)

    def test_slots_by_device(self) -> None:
        b = brain(tasks(5), slots=2)
        assert [p.devices for p in decide(b, gpu(0), gpu(1)).placements].count(("GPU-0",)) == 2

    def test_a_slot_comes_free(self) -> None:
        b = brain(tasks(3), slots=1)
        assert place(b) == [1]
        assert starts(b) == []
        assert starts(tell(b, exited(1))) == [2]

    def test_most_per_device_is_on_top_of_what_memory_allows(self) -> None:
        assert starts(brain(tasks(5, "1GiB", cpus=0.1), max_per_device=2)) == [1, 2]
        assert starts(brain(tasks(5, "20GiB"), max_per_device=2)) == [1]

    @pytest.mark.parametrize(("jobs", "started"), [(None, 5), (2, 2), (0, 0)])
    def test_jobs_of_this_run_at_once(self, jobs: int | None, started: int) -> None:
        b = brain(tasks(5, "1GiB", cpus=0.1), jobs=jobs)
        assert len(place(b)) == started

    def test_those_that_live_count(self) -> None:
        b = brain(tasks(5, "1GiB"), jobs=2)
        assert place(b) == [1, 2]
        assert reasons(b) == {3: "jobs"}
        assert starts(tell(b, exited(1))) == [3]


class TestLoad:
    def test_as_many_as_there_are_cores(self) -> None:
        assert starts(brain(tasks(9, "1GiB")), host(cores=4)) == [1, 2, 3, 4]

    def test_the_numbers_of_a_refusal(self) -> None:
        b = brain(tasks(3, "1GiB", cpus=1.5))
        assert decide(b, host(cores=4)).refusals == (Refusal(3, "load", HOST, 150, 100),)

    def test_a_smaller_one_goes_past(self) -> None:
        b = brain(tasks(2, "1GiB", cpus=3) + tasks(1, "1GiB", cpus=0.5))
        assert starts(b, host(cores=4)) == [1, 3]

    def test_one_that_wants_more_than_there_is_runs_by_itself(self) -> None:
        b = brain(tasks(2, "1GiB", cpus=64))
        assert starts(b, host(cores=4)) == [1]

    def test_shares_add_up_without_dust(self) -> None:
        assert len(starts(brain(tasks(12, "1GiB", cpus=0.1)), host(cores=1))) == 10
        assert len(starts(brain(tasks(4, "1GiB", cpus=0.1)), host(cores=0.3))) == 3

    def test_more_may_be_promised_than_there_is(self) -> None:
        assert len(starts(brain(tasks(9, "1GiB"), max_load=1.5), host(cores=4))) == 6

    def test_other_schedulers_leases_count(self) -> None:
        assert starts(brain(tasks(9, "1GiB")), host(cores=4), holds=[hold("1GiB", cores=2.5)]) == [1]


class TestAlone:
    def test_an_exclusive_one_waits_for_an_empty_device(self) -> None:
        b = brain(tasks(1, "1GiB") + tasks(1, "1GiB", exclusive=True) + tasks(1, "1GiB"))
        decision = decide(b)
        assert [p.task for p in decision.placements] == [1, 3]
        assert decision.refusals == (Refusal(2, "alone", HOST, 1, 1),)

    def test_nothing_comes_in_beside_it(self) -> None:
        b = brain(tasks(1, "1GiB", exclusive=True) + tasks(1, "1GiB"))
        assert place(b) == [1]
        assert reasons(b) == {2: "alone"}

    def test_it_looks_at_other_schedulers_too(self) -> None:
        assert reasons(brain(tasks(1, "1GiB", exclusive=True)), holds=[hold("1GiB")]) == {1: "alone"}

    def test_a_lease_that_nobody_can_read_closes_everything_and_names_its_owner(self) -> None:
        b = brain(tasks(2, "1GiB"))
        unreadable = packing.others_hold(Lease("x", 0, "9", 1, 1, 0, {}, {}, unreadable="ben"), {})
        assert reasons(b, holds=[unreadable]) == {1: "unreadable"}
        decision = decide(b, gpu(0), gpu(1), holds=[unreadable])
        assert decision.placements == ()
        assert "a running task of ben has a promise there that cannot be read" in why(decision.refusals[0])

    def test_one_of_a_newer_version_closes_the_devices_that_it_is_on(self) -> None:
        newer = Lease("x", 0, "9", 1, 1, 0, {"GPU-1": GIB, HOST: 2 * GIB}, {}, unreadable="ben")
        here = (gpu(0), gpu(1), host())
        decision = decide(brain(tasks(2, "1GiB")), *here, holds=[packing.others_hold(newer, {})])
        assert {p.devices for p in decision.placements} == {("GPU-0",)}
        only = decide(brain(tasks(1, "1GiB", device="1")), *here, holds=[packing.others_hold(newer, {})])
        assert [refusal.reason for refusal in only.refusals] == ["unreadable"]


class TestWhere:
    def test_where_most_is_free(self) -> None:
        (placement,) = decide(brain(tasks(1, "1GiB")), gpu(0, free="8GiB"), gpu(1, free="9GiB")).placements
        assert placement.devices == ("GPU-1",)

    def test_spread(self) -> None:
        placements = decide(brain(tasks(4, "1GiB", cpus=0.2)), gpu(0), gpu(1)).placements
        assert [p.devices[0] for p in placements] == ["GPU-0", "GPU-1"] * 2

    def test_the_device_it_was_given(self) -> None:
        b = brain(tasks(2, "20GiB", device="GPU-1"))
        assert [p.devices for p in decide(b, gpu(0), gpu(1)).placements] == [("GPU-1",)]


class TestOutOfMemory:
    """What a task does after the device was full."""

    def test_it_is_promised_more(self) -> None:
        b = tell(brain(tasks(1, "4GiB")), placed(1, "4GiB"), peaked(1, "4GiB"), exited(1, "oom"))
        (placement,) = decide(b).placements
        assert placement.promise == {HOST: size("6GiB")}
        assert placement.attempt == 2

    def test_never_more_than_there_is(self) -> None:
        b = tell(brain(tasks(1, "20GiB")), run(1, "oom", "20GiB", peak="21GiB"))
        assert [p.promise for p in decide(b).placements] == [{HOST: size("23.5GiB")}]

    def test_the_last_try_is_alone(self) -> None:
        b = brain(tasks(2, "1GiB"))
        for attempt in (1, 2, 3):
            assert starts(b) == [1, 2]
            tell(b, run(1, "oom", attempt=attempt))
        (first, *_) = decide(b).placements
        assert (first.task, first.attempt, first.alone) == (1, 4, True)
        assert starts(b) == [1]
        assert reasons(tell(b, placed(2))) == {1: "alone"}


# ---- it never overcommits, and each half of the formula alone does ----


@dataclass(frozen=True)
class World:
    """What is really so, and how much of it is seen."""

    total: int
    foreign: int
    leases: tuple[tuple[int, int, int], ...]
    """(promised, really held, seen to be held)."""

    @property
    def free(self) -> int:
        return self.total - self.foreign - sum(held for _, held, _ in self.leases)

    @property
    def spoken_for(self) -> int:
        return self.foreign + sum(max(promised, held) for promised, held, _ in self.leases)

    @property
    def machine(self) -> Machine:
        holds = [hold(promised, seen, cores=0) for promised, _, seen in self.leases]
        return machine(host(self.total, free=self.free, cores=99), holds=holds)

    def room(self) -> int:
        return packing.rooms(self.machine, (), rules(buffer=0))[HOST].bytes


@st.composite
def worlds(draw: st.DrawFn) -> World:
    total = draw(st.integers(1, 100)) * GIB
    left = total - draw(st.integers(0, total))
    foreign, leases = total - left, []
    for _ in range(draw(st.integers(0, 6))):
        promised, held = draw(st.integers(0, left)), draw(st.integers(0, left))
        leases.append((promised, held, draw(st.sampled_from([0, held, held // 2]))))
        left -= max(promised, held)
    return World(total, foreign, tuple(leases))


@settings(max_examples=100)
@given(worlds(), st.lists(st.integers(1, 100 * GIB), max_size=5))
def test_promises_and_use_together_never_exceed_the_device(world: World, asked: list[int]) -> None:
    assert world.spoken_for <= world.total
    b = brain([one for bytes_ in asked for one in tasks(1, bytes_, cpus=0)], buffer=0)
    given_ = sum(p.promise[HOST] for p in b.decide(world.machine).placements)
    assert given_ == 0 or world.spoken_for + given_ <= world.total


@given(worlds())
def test_where_all_is_seen_nothing_is_wasted(world: World) -> None:
    seen = World(world.total, world.foreign, tuple((promised, held, held) for promised, held, _ in world.leases))
    assert seen.room() == seen.total - seen.spoken_for


def test_promises_alone_overcommit_and_so_does_the_less_of_promises_and_free() -> None:
    """The three ways to reckon on the same random states."""
    dice, states = random.Random(7), [a_state(random.Random(seed)) for seed in range(400)]
    overcommitted = {"promises": 0, "less of both": 0, "room": 0}
    for world in states:
        promises = world.total - sum(promised for promised, _, _ in world.leases)
        ways = {"promises": promises, "less of both": min(promises, world.free), "room": world.room()}
        share = dice.random()
        for way, bytes_ in ways.items():
            overcommitted[way] += bytes_ > 0 and world.spoken_for + int(bytes_ * share) > world.total
    assert overcommitted["room"] == 0
    assert overcommitted["promises"] > overcommitted["less of both"] > 40


def a_state(dice: random.Random) -> World:
    total = 24 * GIB
    foreign, leases = dice.randrange(0, 8) * GIB, []
    left = total - foreign
    for _ in range(dice.randrange(1, 5)):
        promised = dice.randrange(0, max(1, left // 2))
        held = min(left, int(promised * dice.choice([0.0, 0.1, 0.5, 1.0, 1.2])))
        leases.append((promised, held, held))
        left -= max(promised, held)
    return World(total, foreign, tuple(leases))
