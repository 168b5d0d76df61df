"""Tasks on GPUs: a placement is bytes on each of them, RAM, cores and load; it fits as a whole or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.core import packing
from scheduler.core.brain import Brain
from scheduler.core.explain import why
from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Evidence, Knowledge, Peaks, Profile
from scheduler.core.model import HOST, Budget, Foreign, KnownBy, Machine, Manners, Placement
from scheduler.units import GIB
from tests.builders import (
    brain,
    budget,
    decide,
    event_of,
    exited,
    gpu,
    host,
    place,
    placed,
    reasons,
    rules,
    size,
    started,
    starts,
    tasks,
    tell,
)
from tests.doors.contracts import contract

FOUR = tuple(gpu(number) for number in range(4))
HOST_RAM = host("64GiB", cores=8)


def by_device(*placements: Placement) -> dict[int, tuple[str, ...]]:
    return {p.task: p.gpus for p in placements}


def used_by(stranger: str, *, calm: float = 1000.0, user: str = "ben", **said: str) -> Budget:
    """A GPU on which somebody without a lease holds memory."""
    total = size("24GiB") - size(stranger)
    one = budget("GPU-0", "24GiB", total, 1.0, None, index=0)
    return Budget(one.device, one.free, foreign=(Foreign(size(stranger), user, 77, calm),), **said)  # type: ignore[arg-type]


class TestPlacement:
    @contract("S3-D6")
    def test_every_gpu_is_used_the_least_loaded_first(self) -> None:
        decision = decide(brain(tasks(4, "5GiB", cpus=0.1)), *FOUR, HOST_RAM)
        assert sorted(by_device(*decision.placements).values()) == [("GPU-0",), ("GPU-1",), ("GPU-2",), ("GPU-3",)]

    def test_a_task_gets_one_gpu_unless_it_says_how_many(self) -> None:
        (one,) = decide(brain(tasks(1, "5GiB")), *FOUR, HOST_RAM).placements
        assert one.promise == {"GPU-0": 5 * GIB, HOST: 0}

    def test_two_gpus_are_promised_both_or_none(self) -> None:
        (two,) = decide(brain(tasks(1, "5GiB", gpus=2)), *FOUR, HOST_RAM).placements
        assert len(two.gpus) == 2
        assert reasons(brain(tasks(1, "5GiB", gpus=2)), gpu(0), gpu(1, free="4GiB"), HOST_RAM) == {1: "memory"}

    def test_more_gpus_than_there_are_wait_with_the_numbers(self) -> None:
        assert reasons(brain(tasks(1, "5GiB", gpus=5)), *FOUR, HOST_RAM) == {1: "gpus"}

    def test_no_gpu_is_the_host_beside_the_others(self) -> None:
        decision = decide(brain(tasks(1, "5GiB", gpus=0) + tasks(1, "5GiB")), gpu(0), HOST_RAM)
        assert [p.devices for p in decision.placements] == [(HOST,), ("GPU-0",)]

    def test_host_tasks_start_while_all_gpus_are_full(self) -> None:
        b = brain(tasks(2, "20GiB") + tasks(1, "1GiB", gpus=0))
        assert starts(b, gpu(0), HOST_RAM) == [1, 3]

    def test_the_device_it_names(self) -> None:
        for name in ("2", "GPU-2"):
            (one,) = decide(brain(tasks(1, "5GiB", device=name)), *FOUR, HOST_RAM).placements
            assert one.gpus == ("GPU-2",)

    def test_a_device_that_has_gone_is_named(self) -> None:
        refused = decide(brain(tasks(1, "5GiB", device="2")), gpu(0), gpu(1), HOST_RAM).refusals
        assert why(refused[0]) == "wants 2, which is none of this run's devices"

    def test_the_device_it_prefers_while_that_has_room(self) -> None:
        b = brain(tasks(2, "20GiB", prefer="3"))
        assert by_device(*decide(b, *FOUR, HOST_RAM).placements) == {1: ("GPU-3",), 2: ("GPU-0",)}

    def test_load_is_limited_as_memory_is(self) -> None:
        b = brain(tasks(6, "1GiB", cpus=0.1), busy=0.5)
        assert starts(b, gpu(0), HOST_RAM) == [1, 2, 3, 4]
        assert reasons(b, gpu(0), HOST_RAM)[5] == "busy"

    def test_different_sizes_in_one_machine(self) -> None:
        small, large = gpu(0, "16GiB"), gpu(1, "80GiB")
        assert by_device(*decide(brain(tasks(1, "30GiB")), small, large, HOST_RAM).placements) == {1: ("GPU-1",)}

    def test_one_process_at_a_time_where_the_driver_says_so(self) -> None:
        single = budget("GPU-0", "24GiB", None, 1.0, None, index=0)
        one = Budget(packing.Device("GPU-0", "GPU 0", 24 * GIB, 1.0, 0, single=True), single.free)
        assert starts(brain(tasks(3, "1GiB")), one, HOST_RAM) == [1]

    @contract("S3-D7")
    def test_each_gpu_by_its_own_peak(self) -> None:
        profile = Profile(parts={"0": Peaks([10 * GIB]), "1": Peaks([2 * GIB])})
        b = kinds(brain(tasks(1, gpus=2), knowledge=Knowledge({"k": profile}), profile="auto"), 1)
        (two,) = decide(b, gpu(0, free="8GiB"), gpu(1), HOST_RAM).placements
        assert two.promise == {"GPU-1": size("11.25GiB"), "GPU-0": int(2.2 * GIB) + GIB // 4, HOST: 0}


def kinds(b: Brain, *numbers: int) -> Brain:
    """Every task of the kind `k`."""
    for number in numbers:
        b.assign(number, Kind("k", "train.py", probes=False))
    return b


class TestUnknown:
    def test_it_is_promised_all_that_is_free_on_one_gpu(self) -> None:
        (one,) = decide(brain(tasks(1)), gpu(0), HOST_RAM).placements
        assert one.promise == {"GPU-0": size("23.5GiB"), HOST: 0}
        assert one.known_by is KnownBy.LIVE

    def test_all_of_each_of_its_gpus(self) -> None:
        (one,) = decide(brain(tasks(1, gpus=2)), gpu(0), gpu(1, free="20GiB"), HOST_RAM).placements
        assert one.promise == {"GPU-0": size("23.5GiB"), "GPU-1": size("19.5GiB"), HOST: 0}

    def test_it_starts_where_at_least_half_is_free(self) -> None:
        assert starts(brain(tasks(1)), gpu(0, free="12.5GiB"), HOST_RAM) == [1]
        assert reasons(brain(tasks(1)), gpu(0, free="12.4GiB"), HOST_RAM) == {1: "unknown"}

    def test_where_the_buffer_is_more_than_half_it_starts_in_what_is_left(self) -> None:
        assert starts(brain(tasks(1), buffer="13GiB"), gpu(0, free="23.7GiB"), HOST_RAM) == [1]
        assert starts(brain(tasks(1)), gpu(0, cap="900MiB"), HOST_RAM) == [1]

    def test_another_of_its_kind_starts_on_an_idle_gpu_only(self) -> None:
        b = kinds(brain(tasks(3, epochs=5), profile="live"), 1, 2, 3)
        assert place(b, gpu(0), HOST_RAM) == [1]
        assert reasons(b, gpu(0), HOST_RAM) == {2: "unknown"}
        assert starts(b, gpu(0), gpu(1), HOST_RAM) == [2]

    def test_an_idle_gpu_is_none_for_one_that_names_another(self) -> None:
        b = kinds(brain(tasks(2, epochs=5, device="0"), profile="live"), 1, 2)
        assert place(b, gpu(0), gpu(1), HOST_RAM) == [1]
        assert reasons(b, gpu(0), gpu(1), HOST_RAM) == {2: "watched"}

    def test_it_is_cut_as_soon_as_another_of_its_kind_is_known(self) -> None:
        b = kinds(brain(tasks(2, epochs=5), profile="live"), 1, 2)
        assert place(b, gpu(0), gpu(1), HOST_RAM) == [1, 2]
        tell(b, exited(1, seconds=60.0))
        b.knowledge.profile(1).parts["0"] = Peaks([4 * GIB])
        (cut,) = [e for e in b.watch(2, 1, {"GPU-1": GIB}, now=1.0) if e.kind == "resized"]
        assert (cut.cause, cut.promise["GPU-1"]) == ("known", int(4.4 * GIB) + GIB // 4)

    def test_on_gpus_it_settles_later_and_host_memory_does_not_keep_it(self) -> None:
        b = kinds(brain(tasks(1), profile="live"), 1)
        place(b, gpu(0), HOST_RAM)
        for at in (10, 30, 50):
            tell(b, *b.watch(1, 1, {HOST: at * GIB // 10}, now=float(at)))
        b.apply(b.watch(1, 1, {"GPU-0": 4 * GIB}, now=60.0)[0], 60.0)
        for at in (80, 100):
            for event in b.watch(1, 1, {HOST: at * GIB // 10}, now=float(at)):
                b.apply(event, float(at))
        assert [e.kind for e in b.watch(1, 1, {"GPU-0": 4 * GIB}, now=119.0)] == []
        assert "settled" in [getattr(e, "cause", "") for e in b.watch(1, 1, {"GPU-0": 4 * GIB}, now=120.0)]


class TestHostBeside:
    def test_ram_is_limited_beside_gpus(self) -> None:
        b = brain(tasks(4, "2GiB", host_memory="3GiB", cpus=0.1))
        twelve = host("64GiB", cores=8, cap="12GiB")
        assert starts(b, *FOUR, twelve) == [1, 2, 3]
        (refusal,) = decide(b, *FOUR, twelve).refusals
        assert (refusal.reason, refusal.device) == ("memory", HOST)

    def test_unknown_ram_only_needs_some_to_be_left(self) -> None:
        assert starts(brain(tasks(1, "2GiB")), gpu(0), host("64GiB", free="600MiB")) == [1]
        assert reasons(brain(tasks(1, "2GiB")), gpu(0), host("64GiB", free="500MiB")) == {1: "spent"}

    def test_declared_cores_are_limited(self) -> None:
        assert starts(brain(tasks(4, "2GiB", cpus=3)), *FOUR, HOST_RAM) == [1, 2]


class TestOutOfMemory:
    def test_of_a_gpu_grows_the_gpus_part_only(self) -> None:
        b = brain(tasks(1, "4GiB", host_memory="3GiB"))
        place(b, gpu(0), HOST_RAM)
        tell(b, exited(1, "oom", code=1, part="gpu", asked=2 * GIB))
        (again,) = decide(b, gpu(0), HOST_RAM).placements
        assert again.promise == {"GPU-0": max(4 * GIB, int(2.2 * GIB) + GIB // 4), HOST: 3 * GIB}

    def test_what_it_asked_for_is_waited_for_while_the_dead_still_hold_memory(self) -> None:
        b = brain(tasks(1, "2GiB"))
        place(b, gpu(0), HOST_RAM)
        tell(b, exited(1, "oom", code=1, part="gpu", asked=8 * GIB))
        assert reasons(b, gpu(0, free="6GiB"), HOST_RAM) == {1: "memory"}
        (again,) = decide(b, gpu(0), HOST_RAM).placements
        assert again.promise["GPU-0"] >= 8 * GIB

    def test_of_the_host_grows_the_hosts_part_only(self) -> None:
        b = brain(tasks(1, "4GiB", host_memory="3GiB"))
        place(b, gpu(0), HOST_RAM)
        tell(b, exited(1, "oom", signal=9, part=HOST))
        (again,) = decide(b, gpu(0), HOST_RAM).placements
        assert again.promise == {"GPU-0": 4 * GIB, HOST: int(4.5 * GIB)}

    def test_of_several_gpus_it_is_the_one_that_held_least(self) -> None:
        b = kinds(brain(tasks(2, gpus=2, epochs=5), profile="live"), 1, 2)
        assert place(b, gpu(0), gpu(1), HOST_RAM) == [1]
        held = {"GPU-0": 16 * GIB, "GPU-1": GIB}
        b.apply(replace(exited(1, "oom", code=1, part="gpu", asked=15 * GIB), peak=held))
        decision = decide(b, gpu(0), gpu(1), HOST_RAM)
        assert (decision.impossible, len(decision.placements)) == ((), 1)

    def test_above_every_device_it_is_refused_with_what_it_wanted(self) -> None:
        b = brain(tasks(1))
        place(b, gpu(0), HOST_RAM)
        tell(b, exited(1, "oom", code=1, part="gpu", asked=20 * GIB))
        b.tasks[1].wanted["0"] = (size("23.5GiB"), 30 * GIB)
        (never,) = decide(b, gpu(0), HOST_RAM).impossible
        assert (never.wanted, never.total) == (30 * GIB, 24 * GIB)


@pytest.mark.parametrize("failed", ["22GiB", "23.7GiB", "60GiB"])
def test_what_failed_on_a_whole_device_in_an_earlier_run_starts_there_again(failed: str) -> None:
    """A driver keeps some of its device, and the system some RAM: nobody's end would ever give it more."""
    for part, gpus, machine in (("0", 1, (gpu(0, free="23.7GiB"), HOST_RAM)), (HOST, 0, (host(free="15GiB"),))):
        profile = Profile()
        profile.parts[part] = Peaks(above=size(failed))
        b = brain(tasks(1, gpus=gpus, epochs=5), knowledge=Knowledge({"k": profile}), profile="live")
        assert starts(kinds(b, 1), *machine) == [1]


class TestStrangers:
    def test_a_quarter_of_what_they_hold_is_kept_at_least_two_gib(self) -> None:
        assert packing.kept_for_strangers(used_by("6GiB"), rules()) == 2 * GIB
        assert packing.kept_for_strangers(used_by("16GiB"), rules()) == 4 * GIB

    def test_a_display_is_no_stranger(self) -> None:
        assert packing.kept_for_strangers(used_by("200MiB"), rules()) == 0

    def test_nothing_starts_beside_one_who_has_just_come(self) -> None:
        b = brain(tasks(1, "1GiB"))
        assert reasons(b, used_by("6GiB", calm=100), HOST_RAM) == {1: "young"}
        assert starts(b, used_by("6GiB", calm=121), HOST_RAM) == [1]

    @pytest.mark.parametrize(("manners", "started"), [("avoid", []), ("ignore", [1])])
    def test_as_the_user_wants(self, manners: str, started: list[int]) -> None:
        assert starts(brain(tasks(1, "17GiB"), manners=Manners(manners)), used_by("6GiB"), HOST_RAM) == started

    def test_gpus_without_them_fill_first(self) -> None:
        decision = decide(brain(tasks(2, "10GiB", cpus=0.1)), used_by("6GiB"), gpu(1), HOST_RAM)
        assert by_device(*decision.placements) == {1: ("GPU-1",), 2: ("GPU-1",)}


class TestClosed:
    def test_nothing_starts_on_a_gpu_that_does_not_answer(self) -> None:
        shut = Budget(gpu(0).device, 24 * GIB, closed="it is lost")
        decision = decide(brain(tasks(1, "1GiB", device="0")), shut, gpu(1), HOST_RAM)
        assert [(r.reason, r.text) for r in decision.refusals] == [("closed-device", "it is lost")]

    def test_the_others_go_on(self) -> None:
        shut = Budget(gpu(0).device, 24 * GIB, closed="it is lost")
        assert by_device(*decide(brain(tasks(1, "1GiB")), shut, gpu(1), HOST_RAM).placements) == {1: ("GPU-1",)}


def test_a_placement_comes_back_from_its_event() -> None:
    b = brain(tasks(1, "2GiB", gpus=2))
    (placement,) = decide(b, *FOUR, HOST_RAM).placements
    tell(b, event_of(placement), started(1))
    assert b.placements() == [placement]
    assert placement.load == {HOST: 0.0, "GPU-0": 0.5, "GPU-1": 0.5}


def test_small_ones_do_not_starve_one_that_needs_two_gpus() -> None:
    b = brain([*tasks(2, "13GiB", cpus=0.1), *tasks(1, "13GiB", gpus=2, cpus=0.1), *tasks(60, "10GiB", cpus=0.1)])
    gpus, over = (gpu(0), gpu(1)), 0
    place(b, *gpus, HOST_RAM)
    for _ in range(80):
        living = b.living()
        if any(task.id == 3 for task in living):
            return
        ended = living[-1] if living[-1].id > 3 else living[0]
        tell(b, exited(ended.id))
        over += 1
        place(b, *gpus, HOST_RAM)
    pytest.fail(f"{over} ended, and task 3 waits: {placed(3)}")


class TestComing:
    """What an attempt held that has just ended is not back in what was last seen."""

    def just_ended(self, age: float, free: str = "10GiB", ended: float = 100.0) -> Machine:
        seen = replace(gpu(0, free=free), age=age)
        return Machine(100.0, (seen, HOST_RAM), ended={"GPU-0": ended})

    def test_one_that_ran_out_of_memory_waits_for_all_of_it(self) -> None:
        b = brain(tasks(1, "8GiB"))
        place(b, gpu(0), HOST_RAM)
        tell(b, exited(1, "oom", code=1, part="gpu", asked=20 * GIB))
        assert b.decide(self.just_ended(age=0.2)).placements == ()
        assert [p.task for p in b.decide(self.just_ended(age=0.2, free="24GiB")).placements] == [1]

    def test_not_for_ever(self) -> None:
        b = kinds(brain(tasks(1, epochs=5), profile="live"), 1)
        place(b, gpu(0), HOST_RAM)
        tell(b, exited(1, "oom", code=1, part="gpu", asked=20 * GIB))
        assert [p.task for p in b.decide(self.just_ended(age=0.0, ended=99.0)).placements] == [1]


def test_a_broken_gpu_is_not_what_a_task_waits_for_while_others_are_well() -> None:
    shut = Budget(gpu(0).device, 24 * GIB, closed="it is lost")
    decision = decide(brain(tasks(1, "20GiB")), shut, gpu(1, free="10GiB"), HOST_RAM)
    assert [(r.reason, r.device) for r in decision.refusals] == [("memory", "GPU-1")]


def test_what_was_never_seen_on_its_gpus_teaches_nothing_about_arguments() -> None:
    known = Knowledge()
    for number in range(1, 5):
        slots = (("--peak", str(number)),)
        kind = Kind(f"k{number}", "train.py", False, "family", slots, "1 x A100")
        known.learn(known.number(kind), Evidence({HOST: 12 * 2**20}, seconds=0.01))
    assert known.news() == []


class TestLoad:
    def test_the_cap_is_met_to_the_nearest_whole_task(self) -> None:
        assert starts(brain(tasks(9, "1GiB", cpus=0.1), busy=0.7), gpu(0), HOST_RAM) == [1, 2, 3]
        assert starts(brain(tasks(9, "1GiB", cpus=0.1), busy=0.9), gpu(0), HOST_RAM) == [1, 2]

    def test_each_run_moves_what_is_known_half_the_way_up_or_down(self) -> None:
        profile = Profile()
        for busy in (0.8, 0.4, 0.0, 0.2):
            profile.learn(Evidence({"0": GIB}, busy=busy))
        assert profile.busy == pytest.approx(0.4)

    def test_one_nobody_has_seen_is_taken_for_the_mean_of_its_script(self) -> None:
        known = Knowledge()
        numbers = [known.number(Kind(f"k{n}", "train.py", False, "family", (("--n", f"v{n}"),))) for n in range(3)]
        for number, busy in zip(numbers, (0.1, 0.3), strict=False):
            known.learn(number, Evidence({"0": number * GIB}, busy=busy))
        assert known.usual_busy(numbers[2]) == pytest.approx(0.2)
        assert known.usual_busy(known.number(Kind("other", "other.py", False, "others"))) == 0.0

    def test_beside_others_a_task_settles_as_much_later_as_the_load_says(self) -> None:
        b = kinds(brain(tasks(2, epochs=5), profile="live", busy=1.0), 1)
        place(b, gpu(0), HOST_RAM)
        beside = replace(event_of(b.placements()[0]), task=2)
        tell(b, beside, started(2))
        b.apply(b.watch(1, 1, {"GPU-0": 4 * GIB}, now=100.0)[0], 100.0)
        assert b.watch(1, 1, {"GPU-0": 4 * GIB}, now=219.0) == []
        assert "settled" in [getattr(e, "cause", "") for e in b.watch(1, 1, {"GPU-0": 4 * GIB}, now=220.0)]


class TestSeenOnce:
    """One running attempt has settled: the others of its kind are started one at a time."""

    def settled(self) -> Brain:
        b = kinds(brain(tasks(4, epochs=5), profile="live"), 1, 2, 3, 4)
        assert place(b, gpu(0), HOST_RAM) == [1]
        for at in (1.0, 61.0):
            for event in b.watch(1, 1, {"GPU-0": 2 * GIB}, now=at):
                b.apply(event, at)
        return b

    def test_one_more_at_a_time(self) -> None:
        b = self.settled()
        assert place(b, gpu(0), HOST_RAM) == [2]
        assert reasons(b, gpu(0), HOST_RAM)[3] == "watched"

    def test_all_of_them_once_it_has_ended(self) -> None:
        b = self.settled()
        tell(b, exited(1, peak=None, seconds=100.0))
        assert starts(b, gpu(0), HOST_RAM) == [2, 3, 4]

    def test_who_was_overtaken_too_often_waits_for_no_lesson(self) -> None:
        b = self.settled()
        b.rules = rules(profile="live", overtakes=0)
        assert starts(b, gpu(0), HOST_RAM) == [2, 3, 4]


def test_an_unknown_one_starts_where_three_quarters_of_the_known_kinds_would_fit() -> None:
    known = Knowledge()
    for number in range(8):
        known.learn(known.number(Kind(f"k{number}", "a.py", False)), Evidence({"0": (number + 10) * GIB}))
    b = brain(tasks(1), knowledge=known, profile="live")
    b.assign(1, Kind("new", "b.py", probes=False))
    assert reasons(b, gpu(0, free="15GiB"), HOST_RAM) == {1: "unknown"}
    assert starts(b, gpu(0, free="15.6GiB"), HOST_RAM) == [1]
