"""Tasks on GPUs: a placement is bytes on each of them, RAM, cores and load; it fits as a whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.brain import Brain
from scheduler.core.control.messages import why
from scheduler.core.events import Peaked, Resized
from scheduler.core.model import (
    HOST,
    Device,
    DeviceBudget,
    EstimateSource,
    Machine,
    Placement,
    UnmanagedPolicy,
    UnmanagedUse,
)
from scheduler.core.placement.device_capacity import kept_for_unmanaged
from scheduler.core.placement.refusal import Reason
from scheduler.core.placement.request import MemoryRequest
from scheduler.core.profiling.class_profile import Observation, Peaks, Profile
from scheduler.core.profiling.estimator import with_margin
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.profiling.task_class import TaskClass
from scheduler.units import GIB, MIB
from tests.e2e.older_tools.contracts import contract
from tests.support.builders import (
    brain,
    budget,
    decide,
    exited,
    gpu,
    host,
    lease_of,
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
from tests.support.faults import fault

FOUR = tuple(gpu(number) for number in range(4))
HOST_RAM = host("64GiB", cores=8)
HALF = (64 * GIB - GIB // 2) // 2
"""Half of the RAM that is free beside the buffer."""


def by_device(*placements: Placement) -> dict[int, tuple[str, ...]]:
    return {p.task: p.gpus for p in placements}


def used_by(unmanaged_process: str, *, calm: float = 1000.0, user: str = "ben", **said: str) -> DeviceBudget:
    """Return a GPU on which unmanaged processes use memory."""
    total = size("24GiB") - size(unmanaged_process)
    one = budget("GPU-0", "24GiB", total, 1.0, None, index=0)
    return DeviceBudget(
        one.device, one.free, unmanaged=(UnmanagedUse(size(unmanaged_process), user, 77, calm),), **said
    )  # type: ignore[arg-type]


class TestPlacement:
    @contract("S3-D6")
    def test_every_gpu_is_used_least_loaded_first(self) -> None:
        decision = decide(brain(tasks(4, "5GiB", cpus=0.1)), *FOUR, HOST_RAM)
        assert sorted(by_device(*decision.placements).values()) == [("GPU-0",), ("GPU-1",), ("GPU-2",), ("GPU-3",)]

    def test_a_task_gets_one_gpu_unless_its_row_says_how_many(self) -> None:
        (one,) = decide(brain(tasks(1, "5GiB")), *FOUR, HOST_RAM).placements
        assert one.reservation == {"GPU-0": 5 * GIB, HOST: HALF}

    def test_two_gpus_are_reserved_together_or_not_at_all(self) -> None:
        (two,) = decide(brain(tasks(1, "5GiB", gpus=2)), *FOUR, HOST_RAM).placements
        assert len(two.gpus) == 2
        assert reasons(brain(tasks(1, "5GiB", gpus=2)), gpu(0), gpu(1, free="4GiB"), HOST_RAM) == {1: "unmanaged"}

    def test_task_on_several_gpus_gets_no_mig_instance(self) -> None:
        parts = [replace(one, device=replace(one.device, part=0)) for one in (gpu(0), gpu(1))]
        decision = decide(brain(tasks(1, "5GiB", gpus=2)), *parts, gpu(2), HOST_RAM)
        assert not decision.placements
        (two,) = decide(brain(tasks(1, "5GiB", gpus=2)), *parts, gpu(2), gpu(3), HOST_RAM).placements
        assert two.gpus == ("GPU-2", "GPU-3")

    def test_a_request_of_more_gpus_than_exist_waits_with_the_numbers(self) -> None:
        assert reasons(brain(tasks(1, "5GiB", gpus=5)), *FOUR, HOST_RAM) == {1: "gpus"}

    def test_a_task_without_gpus_runs_on_the_host_beside_the_others(self) -> None:
        decision = decide(brain(tasks(1, "5GiB", gpus=0) + tasks(1, "5GiB")), gpu(0), HOST_RAM)
        assert [p.devices for p in decision.placements] == [(HOST,), ("GPU-0",)]

    def test_host_tasks_start_while_all_gpus_are_full(self) -> None:
        b = brain(tasks(2, "20GiB") + tasks(1, "1GiB", gpus=0))
        assert starts(b, gpu(0), HOST_RAM) == [1, 3]

    def test_a_task_runs_on_the_gpu_that_its_row_names(self) -> None:
        for name in ("2", "GPU-2"):
            (one,) = decide(brain(tasks(1, "5GiB", device=name)), *FOUR, HOST_RAM).placements
            assert one.gpus == ("GPU-2",)

    def test_a_device_that_the_run_does_not_have_is_named(self) -> None:
        refused = decide(brain(tasks(1, "5GiB", device="2")), gpu(0), gpu(1), HOST_RAM).refusals
        assert why(refused[0]) == "needs 2, which is not a device of this run"

    def test_a_preferred_device_is_used_while_it_has_capacity(self) -> None:
        b = brain(tasks(2, "20GiB", prefer="3"))
        assert by_device(*decide(b, *FOUR, HOST_RAM).placements) == {1: ("GPU-3",), 2: ("GPU-0",)}

    def test_load_is_limited_like_memory(self) -> None:
        b = brain(tasks(6, "1GiB", cpus=0.1), busy=0.5)
        assert starts(b, gpu(0), HOST_RAM) == [1, 2, 3, 4]
        assert reasons(b, gpu(0), HOST_RAM)[5] == "busy"

    def test_gpus_of_different_sizes_are_used_together(self) -> None:
        small, large = gpu(0, "16GiB"), gpu(1, "80GiB")
        assert by_device(*decide(brain(tasks(1, "30GiB")), small, large, HOST_RAM).placements) == {1: ("GPU-1",)}

    def test_an_exclusive_process_gpu_takes_one_task_at_a_time(self) -> None:
        single = budget("GPU-0", "24GiB", None, 1.0, None, index=0)
        one = DeviceBudget(Device("GPU-0", "GPU 0", 24 * GIB, 1.0, 0, single=True), single.free)
        assert starts(brain(tasks(3, "1GiB")), one, HOST_RAM) == [1]

    @contract("S3-D7")
    def test_each_gpu_of_a_task_is_reserved_by_its_own_peak(self) -> None:
        profile = Profile(parts={"0": Peaks([10 * GIB]), "1": Peaks([2 * GIB])})
        b = kinds(brain(tasks(1, gpus=2), knowledge=ProfileIndex({"k": profile}), profile="auto"), 1)
        (two,) = decide(b, gpu(0, free="8GiB"), gpu(1), HOST_RAM).placements
        assert two.reservation == {"GPU-1": size("11.25GiB"), "GPU-0": int(2.2 * GIB) + GIB // 4, HOST: HALF}


def test_a_waiting_task_of_a_known_class_shows_others_its_need_with_and_without_margin() -> None:
    profile = Profile(parts={"0": Peaks([10 * GIB])})
    b = kinds(brain(tasks(1), knowledge=ProfileIndex({"k": profile}), profile="auto"), 1)
    ticket = decide(b, gpu(0, free="8GiB"), HOST_RAM).wait
    assert ticket is not None
    assert (ticket.gpus, ticket.bare) == ((size("11.25GiB"),), (10 * GIB,))


def kinds(b: Brain, *numbers: int) -> Brain:
    """Assign the class `k` to every task."""
    for number in numbers:
        b.assign(number, TaskClass("k", "train.py", probes=False))
    return b


class TestUnknown:
    def test_an_unknown_task_is_reserved_all_that_is_free_on_one_gpu(self) -> None:
        (one,) = decide(brain(tasks(1)), gpu(0), HOST_RAM).placements
        assert one.reservation == {"GPU-0": size("23.5GiB"), HOST: HALF}
        assert one.source is EstimateSource.MEASURED

    def test_an_unknown_task_is_reserved_all_of_each_of_its_gpus(self) -> None:
        (one,) = decide(brain(tasks(1, gpus=2)), gpu(0), gpu(1, free="20GiB"), HOST_RAM).placements
        assert one.reservation == {"GPU-0": size("23.5GiB"), "GPU-1": size("19.5GiB"), HOST: HALF}

    def test_an_unknown_task_starts_where_at_least_half_is_free(self) -> None:
        assert starts(brain(tasks(1)), gpu(0, free="12.5GiB"), HOST_RAM) == [1]
        assert reasons(brain(tasks(1)), gpu(0, free="12.4GiB"), HOST_RAM) == {1: "unmanaged"}

    def test_an_unknown_task_starts_in_what_a_buffer_above_half_leaves(self) -> None:
        assert starts(brain(tasks(1), buffer="13GiB"), gpu(0, free="23.7GiB"), HOST_RAM) == [1]
        assert starts(brain(tasks(1)), gpu(0, cap="900MiB"), HOST_RAM) == [1]

    def test_another_task_of_an_unknown_class_starts_on_an_idle_gpu_only(self) -> None:
        b = kinds(brain(tasks(3, epochs=5), profile="live"), 1, 2, 3)
        assert place(b, gpu(0), HOST_RAM) == [1]
        assert reasons(b, gpu(0), HOST_RAM) == {2: "unknown"}
        assert starts(b, gpu(0), gpu(1), HOST_RAM) == [2]

    def test_an_idle_gpu_is_not_used_by_a_task_that_names_another(self) -> None:
        b = kinds(brain(tasks(2, epochs=5, device="0"), profile="live"), 1, 2)
        assert place(b, gpu(0), gpu(1), HOST_RAM) == [1]
        assert reasons(b, gpu(0), gpu(1), HOST_RAM) == {2: "watched"}

    def test_an_unknown_reservation_is_cut_when_its_class_is_known(self) -> None:
        b = kinds(brain(tasks(2, epochs=5), profile="live"), 1, 2)
        assert place(b, gpu(0), gpu(1), HOST_RAM) == [1, 2]
        tell(b, exited(1, seconds=60.0))
        b.profiles.profile(1).parts["0"] = Peaks([4 * GIB])
        (cut,) = [e for e in b.watch(2, 1, {"GPU-1": GIB}, now=1.0) if e.kind == "resized"]
        assert (cut.cause, cut.reservation["GPU-1"]) == ("known", int(4.4 * GIB) + GIB // 4)

    def test_a_task_on_gpus_settles_later_and_host_memory_does_not_delay_it(self) -> None:
        b = kinds(brain(tasks(1), profile="live"), 1)
        place(b, gpu(0), HOST_RAM)
        for at in (10, 30, 50):
            tell(b, *b.watch(1, 1, {HOST: at * GIB // 10}, now=float(at)))
        b.apply(b.watch(1, 1, {"GPU-0": 4 * GIB}, now=60.0)[0], 60.0)
        for at in (70, 80):
            for event in b.watch(1, 1, {HOST: at * GIB // 10}, now=float(at)):
                b.apply(event, float(at))
        assert {getattr(e, "cause", "") for e in b.watch(1, 1, {"GPU-0": 4 * GIB}, now=89.0)} <= {"ram_seen"}
        assert "settled" in [getattr(e, "cause", "") for e in b.watch(1, 1, {"GPU-0": 4 * GIB}, now=90.0)]


class TestHostBeside:
    def test_ram_limits_tasks_on_gpus(self) -> None:
        b = brain(tasks(4, "2GiB", host_memory="3GiB", cpus=0.1))
        twelve = host("64GiB", cores=8, cap="12GiB")
        assert starts(b, *FOUR, twelve) == [1, 2, 3]
        (refusal,) = decide(b, *FOUR, twelve).refusals
        assert (refusal.reason, refusal.device) == ("memory", HOST)

    def test_the_first_task_of_unknown_ram_starts_in_the_little_that_is_left(self) -> None:
        assert starts(brain(tasks(1, "2GiB")), gpu(0), host("64GiB", free="600MiB")) == [1]
        assert reasons(brain(tasks(1, "2GiB")), gpu(0), host("64GiB", free="500MiB")) == {1: "spent"}

    def test_a_first_pass_of_unknown_ram_reserves_no_more_than_the_budget(self) -> None:
        b = brain(tasks(12, "1500MiB", cpus=0.1), busy=0.1)
        decision = decide(b, gpu(0), gpu(1), host("64GiB", cap="2GiB"))
        assert [one.reservation[HOST] for one in decision.placements] == [768 * MIB, 512 * MIB]
        assert why(decision.refusals[0]) == (
            "needs an unknown amount of host RAM and starts with at least 512MiB free; "
            "host RAM has 256MiB of 2.0GiB free"
        )

    def test_declared_ram_is_reserved_as_declared_and_is_no_expectation(self) -> None:
        (one,) = decide(brain(tasks(1, "2GiB", host_memory=0)), gpu(0), HOST_RAM).placements
        assert (one.reservation[HOST], one.ram_expected) == (0, False)

    def test_declared_cores_limit_tasks_on_gpus(self) -> None:
        assert starts(brain(tasks(4, "2GiB", cpus=3)), *FOUR, HOST_RAM) == [1, 2]


def unknown_ram(number: int, **said: Any) -> Brain:
    """Return tasks that declare their GPU memory, and not their RAM."""
    b = brain(tasks(number, "2GiB", cpus=0.1), busy=0.1, **{"profile": "live", **said})
    return kinds(b, *range(1, number + 1))


def look(b: Brain, task: int, ram: str, at: float, on_gpu: str = "1GiB") -> list[str]:
    """Take a sample of a task in, and return why its reservation changed."""
    used = {HOST: size(ram), b.tasks[task].placement.gpus[0]: size(on_gpu)}  # type: ignore[union-attr]
    events = b.watch(task, 1, used, now=at)
    for event in events:
        b.apply(event, at)
    return [event.cause for event in events if isinstance(event, Resized)]


def ram_of(b: Brain, task: int) -> int:
    """Return the RAM that is reserved for a living task."""
    placement = b.tasks[task].placement
    assert placement is not None
    return placement.reservation[HOST]


class TestExpectedRam:
    def test_expected_ram_grows_at_once_when_use_exceeds_it(self) -> None:
        b = unknown_ram(1)
        place(b, gpu(0), host("64GiB", free="3GiB"))
        assert ram_of(b, 1) == size("1.25GiB")
        assert look(b, 1, "2GiB", at=1.0) == ["seen"]
        assert ram_of(b, 1) == with_margin(2 * GIB, b.rules)

    def test_the_margin_on_growth_takes_no_more_than_is_left(self) -> None:
        b = unknown_ram(2)
        assert place(b, gpu(0), host("64GiB", cap="2GiB")) == [1, 2]
        assert look(b, 2, "700MiB", at=1.0) == ["seen"]
        assert ram_of(b, 2) == 768 * MIB
        look(b, 2, "3GiB", at=2.0)
        assert ram_of(b, 2) >= 3 * GIB

    def test_four_times_the_used_ram_stays_reserved_when_a_task_uses_its_gpus_and_holds_still(self) -> None:
        b = unknown_ram(1)
        place(b, gpu(0), HOST_RAM)
        tell(b, started(1))
        assert look(b, 1, "1GiB", at=2.0, on_gpu="0MiB") == []
        assert look(b, 1, "1GiB", at=10.0, on_gpu="0MiB") == []
        assert look(b, 1, "1GiB", at=10.0) == ["ram_seen"]
        assert ram_of(b, 1) == with_margin(size("4.5GiB"), b.rules)
        assert look(b, 1, "1GiB", at=20.0) == []

    def test_a_small_expectation_of_ram_is_raised_so_that_no_more_tasks_start_beside_it(self) -> None:
        b = unknown_ram(40)
        ram = host("64GiB", free="5GiB")
        assert place(b, gpu(0), ram) == [1, 2, 3, 4]
        assert ram_of(b, 4) == 512 * MIB
        decide(b, gpu(0), host("64GiB", free="20GiB"))
        look(b, 4, "400MiB", at=1.0)
        assert look(b, 4, "400MiB", at=6.0) == ["ram_seen"]
        assert ram_of(b, 4) == with_margin(2112 * MIB, b.rules)

    def test_ram_is_known_after_it_held_still_for_the_settle_time_of_gpus(self) -> None:
        b = unknown_ram(2)
        assert place(b, gpu(0), HOST_RAM) == [1, 2]
        look(b, 1, "3GiB", at=2.0)
        assert "ram_settled" not in look(b, 1, "3GiB", at=61.0)
        assert look(b, 1, "3GiB", at=62.0) == ["ram_settled"]
        assert ram_of(b, 1) == b.need(2, 1).host.bytes == with_margin(3 * GIB, b.rules)
        assert look(b, 1, "3GiB", at=130.0) == []

    def test_expected_ram_is_corrected_when_another_task_of_the_class_has_shown_it(self) -> None:
        b = unknown_ram(2)
        place(b, gpu(0), HOST_RAM)
        b.apply(replace(exited(1), peak={HOST: 3 * GIB, "GPU-0": GIB}))
        assert look(b, 2, "1GiB", at=3.0) == ["ram_settled"]
        assert ram_of(b, 2) == with_margin(3 * GIB, b.rules)

    def test_ram_above_the_known_peak_of_the_class_raises_the_next_reservation(self) -> None:
        b = unknown_ram(3)
        assert place(b, gpu(0), HOST_RAM) == [1, 2, 3]
        b.apply(replace(exited(1), peak={HOST: GIB, "GPU-0": GIB}))
        look(b, 2, "1GiB", at=3.0)
        look(b, 2, "5GiB", at=4.0)
        assert b.need(3, 1).host.bytes == with_margin(5 * GIB, b.rules)

    def test_observed_ram_says_nothing_about_gpu_memory(self) -> None:
        b = kinds(brain(tasks(2), profile="live"), 1, 2)
        assert place(b, gpu(0), HOST_RAM) == [1]
        look(b, 1, "3GiB", at=2.0, on_gpu="0MiB")
        look(b, 1, "3GiB", at=70.0, on_gpu="0MiB")
        assert b.need(2, 1).host.bytes == with_margin(3 * GIB, b.rules)
        assert (b.need(2, 1).gpus[0].bytes, b.tasks[1].settled, b.profiles.profile(1).settlings) == (None, False, 0)

    def test_after_an_out_of_memory_of_ram_the_expectation_stays_above_it(self) -> None:
        b = unknown_ram(1)
        place(b, gpu(0), host("64GiB", free="3GiB"))
        tell(b, exited(1, "oom", signal=9, part=HOST))
        place(b, gpu(0), HOST_RAM)
        floor = ram_of(b, 1)
        assert floor >= size("1.8GiB")
        b.watch(1, 2, {HOST: GIB, "GPU-0": GIB}, now=2.0)
        assert [e for e in b.watch(1, 2, {HOST: GIB, "GPU-0": GIB}, now=100.0) if isinstance(e, Resized)] == []


class TestRamUnderThePolicyBatches:
    """It profiles every task first, and reserves for its real run what that has shown."""

    def profiled(self, *, peak: dict[str, int], **row: object) -> int:
        """Return the RAM that is reserved for the real run of a task."""
        b = brain(tasks(1, "2GiB", **row), policy="batches")
        assert place(b, gpu(0), HOST_RAM) == [1]
        b.apply(replace(exited(1), peak=peak))
        assert place(b, gpu(0), HOST_RAM) == [1]
        return ram_of(b, 1)

    def test_ram_of_the_profile_run_is_reserved(self) -> None:
        assert self.profiled(peak={HOST: 3 * GIB, "GPU-0": GIB}) == 3 * GIB

    def test_declared_ram_is_reserved(self) -> None:
        assert self.profiled(peak={HOST: 3 * GIB, "GPU-0": GIB}, host_memory=5 * GIB) == 5 * GIB

    def test_ram_that_was_not_measured_is_not_taken_for_nothing(self) -> None:
        assert self.profiled(peak={"GPU-0": GIB}) == HALF


def seen_ram(*of: tuple[str, str], ram: str = "3GiB") -> ProfileIndex:
    """Return classes on GPUs, by key and script, that were each seen to need so much RAM."""
    known = ProfileIndex()
    for key, script in of:
        number = known.number(TaskClass(key, "train.py", False, script, (), "1 x A100"))
        known.learn(number, Observation({HOST: size(ram), "0": GIB}, seconds=10.0))
    return known


class TestRamOfOthers:
    def need_of_new(self, knowledge: ProfileIndex, script: str = "mine") -> MemoryRequest:
        b = brain(tasks(1, "2GiB"), knowledge=knowledge, profile="live")
        b.assign(1, TaskClass("new", "train.py", False, script, (("--lr", "7"),), "1 x A100"))
        return b.need(1, 1).host

    def test_another_class_of_the_script_gives_the_expected_ram(self) -> None:
        ask = self.need_of_new(seen_ram(("a", "mine")))
        assert (ask.bytes, ask.is_expected) == (with_margin(3 * GIB, rules()), True)

    def test_an_earlier_run_of_the_script_gives_the_expected_ram(self) -> None:
        parts = {HOST: Peaks([3 * GIB]), "0": Peaks([GIB])}
        before = ProfileIndex({"a": Profile(parts, earlier=True, family="mine", slots=(("--lr", "1"),))})
        assert self.need_of_new(before).bytes == with_margin(3 * GIB, rules())

    def test_a_class_of_another_script_gives_no_expected_ram(self) -> None:
        assert self.need_of_new(seen_ram(("a", "other"))).bytes is None

    def test_five_classes_of_other_scripts_give_the_usual_ram(self) -> None:
        ask = self.need_of_new(seen_ram(*((f"k{number}", f"script {number}") for number in range(5))))
        assert (ask.bytes, ask.is_expected) == (with_margin(3 * GIB, rules()), True)


class TestOutOfMemory:
    def test_an_out_of_memory_of_a_gpu_raises_that_gpus_part_only(self) -> None:
        b = brain(tasks(1, "4GiB", host_memory="3GiB"))
        place(b, gpu(0), HOST_RAM)
        tell(b, exited(1, "oom", code=1, part="gpu", asked=2 * GIB))
        (again,) = decide(b, gpu(0), HOST_RAM).placements
        assert again.reservation == {"GPU-0": max(4 * GIB, int(2.2 * GIB) + GIB // 4), HOST: 3 * GIB}

    def test_a_retry_waits_for_what_it_asked_for_while_memory_is_unreclaimed(self) -> None:
        b = brain(tasks(1, "2GiB"))
        place(b, gpu(0), HOST_RAM)
        tell(b, exited(1, "oom", code=1, part="gpu", asked=8 * GIB))
        assert reasons(b, gpu(0, free="6GiB"), HOST_RAM) == {1: "memory"}
        (again,) = decide(b, gpu(0), HOST_RAM).placements
        assert again.reservation["GPU-0"] >= 8 * GIB

    def test_an_out_of_memory_of_the_host_raises_the_hosts_part_only(self) -> None:
        b = brain(tasks(1, "4GiB", host_memory="3GiB"))
        place(b, gpu(0), HOST_RAM)
        tell(b, exited(1, "oom", signal=9, part=HOST))
        (again,) = decide(b, gpu(0), HOST_RAM).placements
        assert again.reservation == {"GPU-0": 4 * GIB, HOST: int(4.5 * GIB)}

    def test_the_gpu_with_the_least_use_of_several_ran_out_of_memory(self) -> None:
        b = kinds(brain(tasks(2, gpus=2, epochs=5), profile="live"), 1, 2)
        assert place(b, gpu(0), gpu(1), HOST_RAM) == [1]
        held = {"GPU-0": 16 * GIB, "GPU-1": GIB}
        b.apply(replace(exited(1, "oom", code=1, part="gpu", asked=15 * GIB), peak=held))
        decision = decide(b, gpu(0), gpu(1), HOST_RAM)
        assert (decision.impossible, len(decision.placements)) == ((), 1)

    def test_a_retry_above_every_device_is_refused_with_its_request(self) -> None:
        b = brain(tasks(1))
        place(b, gpu(0), HOST_RAM)
        tell(b, exited(1, "oom", code=1, part="gpu", asked=20 * GIB))
        b.tasks[1].wanted["0"] = (size("23.5GiB"), 30 * GIB)
        (never,) = decide(b, gpu(0), HOST_RAM).impossible
        assert (never.wanted, never.total) == (30 * GIB, 24 * GIB)


@pytest.mark.parametrize("failed", ["22GiB", "23.7GiB", "60GiB"])
def test_a_failure_on_a_whole_device_in_an_earlier_run_does_not_prevent_a_start_there(failed: str) -> None:
    """A driver keeps some of its device, and the system some RAM; no end of a task would ever free it."""
    for part, gpus, machine in (("0", 1, (gpu(0, free="23.7GiB"), HOST_RAM)), (HOST, 0, (host(free="15GiB"),))):
        profile = Profile()
        profile.parts[part] = Peaks(above=size(failed))
        b = brain(tasks(1, gpus=gpus, epochs=5), knowledge=ProfileIndex({"k": profile}), profile="live")
        assert starts(kinds(b, 1), *machine) == [1]


class TestUnmanagedProcesses:
    @fault(36)
    def test_a_quarter_of_unmanaged_memory_is_kept_free_and_at_least_two_gib(self) -> None:
        assert kept_for_unmanaged(used_by("6GiB"), rules()) == 2 * GIB
        assert kept_for_unmanaged(used_by("16GiB"), rules()) == 4 * GIB

    def test_a_display_is_no_unmanaged_process(self) -> None:
        assert kept_for_unmanaged(used_by("200MiB"), rules()) == 0
        assert kept_for_unmanaged(gpu(0), rules()) == 0

    def test_nothing_starts_beside_an_unmanaged_process_that_has_just_come(self) -> None:
        b = brain(tasks(1, "1GiB"))
        assert reasons(b, used_by("6GiB", calm=100), HOST_RAM) == {1: "young"}
        assert starts(b, used_by("6GiB", calm=121), HOST_RAM) == [1]

    @pytest.mark.parametrize(
        ("manners", "memory", "started"),
        [("avoid", "1GiB", []), ("headroom", "1GiB", [1]), ("headroom", "17GiB", []), ("ignore", "17GiB", [1])],
    )
    def test_the_unmanaged_policy_of_the_user_applies(self, manners: str, memory: str, started: list[int]) -> None:
        assert starts(brain(tasks(1, memory), manners=UnmanagedPolicy(manners)), used_by("6GiB"), HOST_RAM) == started

    def test_gpus_without_unmanaged_processes_fill_first(self) -> None:
        decision = decide(brain(tasks(2, "10GiB", cpus=0.1)), used_by("6GiB"), gpu(1), HOST_RAM)
        assert by_device(*decision.placements) == {1: ("GPU-1",), 2: ("GPU-1",)}


class TestClosed:
    def test_nothing_starts_on_a_gpu_that_does_not_answer(self) -> None:
        shut = DeviceBudget(gpu(0).device, 24 * GIB, closed="it is lost")
        decision = decide(brain(tasks(1, "1GiB", device="0")), shut, gpu(1), HOST_RAM)
        assert [(r.reason, r.text) for r in decision.refusals] == [("closed-device", "it is lost")]

    def test_other_gpus_are_used_while_one_does_not_answer(self) -> None:
        shut = DeviceBudget(gpu(0).device, 24 * GIB, closed="it is lost")
        assert by_device(*decide(brain(tasks(1, "1GiB")), shut, gpu(1), HOST_RAM).placements) == {1: ("GPU-1",)}


def test_a_placement_equals_the_one_from_its_event() -> None:
    b = brain(tasks(1, "2GiB", gpus=2))
    (placement,) = decide(b, *FOUR, HOST_RAM).placements
    tell(b, placement, started(1))
    assert b.placements() == [placement]
    assert placement.load == {HOST: 0.0, "GPU-0": 0.5, "GPU-1": 0.5}


def test_small_tasks_do_not_starve_one_that_needs_two_gpus() -> None:
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


class TestMemoryComingBack:
    """Memory of an attempt that has just ended, which is not free in the last measurement yet."""

    def just_ended(self, age: float, free: str = "10GiB", ended: float = 100.0) -> Machine:
        seen = replace(gpu(0, free=free), age=age)
        return Machine(100.0, (seen, HOST_RAM), ended={"GPU-0": ended})

    def test_a_retry_after_out_of_memory_waits_for_all_memory_that_is_coming_back(self) -> None:
        b = brain(tasks(1, "8GiB"))
        place(b, gpu(0), HOST_RAM)
        tell(b, exited(1, "oom", code=1, part="gpu", asked=20 * GIB))
        assert b.decide(self.just_ended(age=0.2)).placements == ()
        assert [p.task for p in b.decide(self.just_ended(age=0.2, free="24GiB")).placements] == [1]

    def test_waiting_for_memory_that_is_coming_back_ends(self) -> None:
        b = kinds(brain(tasks(1, epochs=5), profile="live"), 1)
        place(b, gpu(0), HOST_RAM)
        tell(b, exited(1, "oom", code=1, part="gpu", asked=20 * GIB))
        assert [p.task for p in b.decide(self.just_ended(age=0.0, ended=99.0)).placements] == [1]


def test_a_task_does_not_wait_for_a_broken_gpu_while_others_are_well() -> None:
    shut = DeviceBudget(gpu(0).device, 24 * GIB, closed="it is lost")
    decision = decide(brain(tasks(1, "20GiB")), shut, gpu(1, free="10GiB"), HOST_RAM)
    assert [(r.reason, r.device) for r in decision.refusals] == [("unmanaged", "GPU-1")]


def test_an_attempt_never_seen_on_its_gpus_teaches_nothing_about_arguments() -> None:
    known = ProfileIndex()
    for number in range(1, 5):
        slots = (("--peak", str(number)),)
        kind = TaskClass(f"k{number}", "train.py", False, "family", slots, "1 x A100")
        known.learn(known.number(kind), Observation({HOST: 12 * 2**20}, seconds=0.01))
    assert known.news() == []


def test_news_about_an_argument_name_the_script_and_not_its_interpreter() -> None:
    known = ProfileIndex()
    for number in range(1, 4):
        slots = (("--lr", str(number)),)
        kind = TaskClass(f"k{number}", f"python -u train.py --lr {number}", False, "family", slots, "1 x A100")
        known.learn(known.number(kind), Observation({"0": GIB}, seconds=9.0))
    assert known.news() == [("train", "--lr", True)]


class TestLoad:
    def test_the_load_limit_is_met_to_the_nearest_whole_task(self) -> None:
        assert starts(brain(tasks(9, "1GiB", cpus=0.1), busy=0.7), gpu(0), HOST_RAM) == [1, 2, 3]
        assert starts(brain(tasks(9, "1GiB", cpus=0.1), busy=0.9), gpu(0), HOST_RAM) == [1, 2]

    def test_each_run_moves_the_known_load_half_the_way(self) -> None:
        profile = Profile()
        for busy in (0.8, 0.4, 0.0, 0.2):
            profile.learn(Observation({"0": GIB}, busy=busy))
        assert profile.busy == pytest.approx(0.4)

    def test_an_unseen_task_has_the_mean_load_of_its_script(self) -> None:
        known = ProfileIndex()
        numbers = [known.number(TaskClass(f"k{n}", "train.py", False, "family", (("--n", f"v{n}"),))) for n in range(3)]
        for number, busy in zip(numbers, (0.1, 0.3), strict=False):
            known.learn(number, Observation({"0": number * GIB}, busy=busy))
        assert known.usual_busy(numbers[2]) == pytest.approx(0.2)
        assert known.usual_busy(known.number(TaskClass("other", "other.py", False, "others"))) == 0.0

    def test_a_task_beside_others_settles_later_in_proportion_to_the_load(self) -> None:
        b = kinds(brain(tasks(2, epochs=5), profile="live", busy=1.0), 1)
        place(b, gpu(0), HOST_RAM)
        beside = replace(b.placements()[0], task=2)
        tell(b, beside, started(2))
        b.apply(b.watch(1, 1, {"GPU-0": 4 * GIB}, now=100.0)[0], 100.0)
        assert "settled" not in [getattr(e, "cause", "") for e in b.watch(1, 1, {"GPU-0": 4 * GIB}, now=199.0)]
        assert "settled" in [getattr(e, "cause", "") for e in b.watch(1, 1, {"GPU-0": 4 * GIB}, now=200.0)]


class TestSeenOnce:
    """One running attempt has settled, so the others of its class start one at a time."""

    def settled(self) -> Brain:
        b = kinds(brain(tasks(4, epochs=5), profile="live"), 1, 2, 3, 4)
        assert place(b, gpu(0), HOST_RAM) == [1]
        for at in (1.0, 61.0):
            for event in b.watch(1, 1, {"GPU-0": 2 * GIB}, now=at):
                b.apply(event, at)
        return b

    def test_one_more_task_starts_while_a_class_was_seen_once(self) -> None:
        b = self.settled()
        assert place(b, gpu(0), HOST_RAM) == [2]
        assert reasons(b, gpu(0), HOST_RAM)[3] == "watched"

    def test_all_tasks_of_a_class_start_after_its_first_attempt_ended(self) -> None:
        b = self.settled()
        tell(b, exited(1, peak=None, seconds=100.0))
        assert starts(b, gpu(0), HOST_RAM) == [2, 3, 4]

    def test_a_task_bypassed_too_often_waits_for_no_observation(self) -> None:
        b = self.settled()
        b.rules = rules(profile="live", bypass_limit=0)
        assert starts(b, gpu(0), HOST_RAM) == [2, 3, 4]


def test_an_unknown_task_starts_where_three_quarters_of_the_known_classes_would_fit() -> None:
    known = ProfileIndex()
    for number in range(8):
        known.learn(known.number(TaskClass(f"k{number}", "a.py", False)), Observation({"0": (number + 10) * GIB}))
    b = brain(tasks(1), knowledge=known, profile="live")
    b.assign(1, TaskClass("new", "b.py", probes=False))
    assert reasons(b, gpu(0, free="15GiB"), HOST_RAM) == {1: "unmanaged"}
    assert starts(b, gpu(0, free="15.6GiB"), HOST_RAM) == [1]


def test_an_unknown_task_on_two_gpus_starts_only_with_all_that_nine_of_ten_known_classes_need() -> None:
    known = ProfileIndex()
    for number in range(20):
        known.learn(known.number(TaskClass(f"k{number}", "a.py", False)), Observation({"0": (number + 1) * GIB // 2}))
    b = brain(tasks(1) + tasks(1, gpus=2), knowledge=known, profile="live")
    b.assign(1, TaskClass("one", "b.py", probes=False))
    b.assign(2, TaskClass("two", "c.py", probes=False))
    (one,), (two, _) = b.need(1, 1).gpus, b.need(2, 2).gpus
    assert (one.enough, one.bytes) == (int(6.5 * GIB * 1.03), int(9 * GIB * 1.03))
    assert two.enough == two.bytes == int(9.5 * GIB * 1.03)


class TestBeginning:
    """A task of unknown memory that has used no more than a context could still take what is reserved for others."""

    def begun(self, classes: int = 20, known_first: bool = False) -> Brain:
        """Return a run whose first task, of unknown memory, has started on GPU 0; the need of the second is known.

        `known_first`: that of the first is known, and that of the second is not.
        """
        known = ProfileIndex()
        for number in range(1, classes + 1):
            known.learn(known.number(TaskClass(f"k{number}", "a.py", False)), Observation({"0": number * GIB}))
        needs = ("8GiB", None) if known_first else (None, "2GiB")
        listed = [one for need in needs for one in tasks(1, need, epochs=5)]
        b = kinds(brain(listed, knowledge=known, profile="live"), 1, 2)
        assert place(b, gpu(0), HOST_RAM) == [1]
        tell(b, started(1))
        return b

    def test_a_task_of_known_memory_starts_beside_it_once_it_has_grown(self) -> None:
        b = self.begun()
        assert reasons(b, gpu(0), HOST_RAM) == {2: "beginning"}
        tell(b, Peaked(1, 1, {"GPU-0": GIB}))
        assert starts(b, gpu(0), HOST_RAM) == [2]

    def test_an_unknown_task_takes_no_risk_beside_one_of_known_memory_that_has_not_grown(self) -> None:
        b = self.begun(known_first=True)
        assert reasons(b, gpu(0), HOST_RAM) == {2: "memory"}
        tell(b, Peaked(1, 1, {"GPU-0": GIB}))
        assert starts(b, gpu(0), HOST_RAM) == [2]

    def test_a_task_of_known_memory_starts_on_another_gpu_meanwhile(self) -> None:
        assert by_device(*decide(self.begun(), gpu(0), gpu(1), HOST_RAM).placements) == {2: ("GPU-1",)}

    @pytest.mark.parametrize(("classes", "seconds"), [(20, 60.0), (1, 180.0)])
    def test_nothing_waits_long_for_a_task_that_does_not_use_its_gpu(self, classes: int, seconds: float) -> None:
        b = self.begun(classes)
        assert not b.watch(1, 1, {}, now=seconds - 1, busy=0.0)
        for event in b.watch(1, 1, {}, now=seconds, busy=0.0):
            b.apply(event, seconds)
        assert starts(b, gpu(0), HOST_RAM) == [2]


def test_a_task_is_not_refused_while_the_only_gpu_that_is_large_enough_is_awaited_by_another() -> None:
    known = ProfileIndex()
    for number in range(8):
        peak = (14 if number > 5 else 3) * GIB
        known.learn(known.number(TaskClass(f"k{number}", "a.py", False)), Observation({"0": peak}))
    b = brain(tasks(2) + tasks(1, "5GiB", priority=5), knowledge=known, profile="live")
    for number in (1, 2, 3):
        b.assign(number, TaskClass(f"new{number}", "b.py", probes=False))
    here, other = (gpu(0, "4GiB"), gpu(1), HOST_RAM), lease_of({"GPU-0": 3 * GIB})
    assert place(b, *here, leases=(other,)) == [1]
    decision = decide(b, *here, leases=(other,))
    assert [(refusal.task, refusal.reason) for refusal in decision.refusals] == [(2, Reason.MEMORY), (3, Reason.KEPT)]
    assert decision.impossible == ()


class TestGpusOfDifferentSizes:
    """A GPU that is too small for what was shown to be needed is left out while a larger one may take the task."""

    SMALL, LARGE = gpu(0, "5GiB"), gpu(1, "40GiB")

    def out_of_memory(self, tasks_: int = 2, **said: Any) -> Brain:
        """Return a run of tasks of one class; the first one ran out of memory on the small GPU."""
        b = kinds(brain(tasks(tasks_, epochs=5), profile="live"), *range(1, tasks_ + 1))
        assert starts(b, self.SMALL, HOST_RAM) == [1]
        place(b, self.SMALL, HOST_RAM)
        tell(b, started(1))
        b.apply(replace(exited(1, "oom", code=1, part="gpu", asked=7 * GIB), **said))
        return b

    def test_neither_a_task_that_ran_out_of_memory_nor_an_equal_one_starts_on_the_small_gpu_again(self) -> None:
        b = self.out_of_memory(peak={"GPU-0": GIB // 2})
        assert by_device(*decide(b, self.SMALL, self.LARGE, HOST_RAM).placements) == {1: ("GPU-1",), 2: ("GPU-1",)}
        taken = lease_of({"GPU-1": 38 * GIB})
        assert reasons(b, self.SMALL, self.LARGE, HOST_RAM, leases=(taken,)) == {1: "memory", 2: "memory"}

    def test_an_attempt_that_ended_before_it_was_sampled_teaches_what_it_asked_for(self) -> None:
        b = self.out_of_memory(peak={})
        assert b.need(2, 1).gpus[0].shown == with_margin(7 * GIB, b.rules)

    def test_an_equal_one_is_tried_on_the_small_gpu_where_that_is_all_there_is(self) -> None:
        b = self.out_of_memory(peak={})
        decision = decide(b, self.SMALL, HOST_RAM)
        assert ([one.task for one in decision.impossible], [one.task for one in decision.placements]) == ([1], [2])

    def test_similar_tasks_that_need_more_are_not_tried_on_the_small_gpu(self) -> None:
        known = ProfileIndex()
        for number in range(3):
            kind = TaskClass(f"k{number}", "a.py", False, "a", (("--seed", str(number)),))
            known.learn(known.number(kind), Observation({"0": 6 * GIB}))
        b = brain(tasks(1), knowledge=known, profile="live")
        b.assign(1, TaskClass("k", "a.py", False, "a", (("--seed", "9"),)))
        assert b.need(1, 1).source is EstimateSource.SIMILAR
        full = lease_of({"GPU-1": 38 * GIB})
        assert reasons(b, self.SMALL, self.LARGE, HOST_RAM, leases=(full,)) == {1: "memory"}

    def test_a_second_task_of_an_unknown_class_is_not_tried_on_the_small_gpu_beside_the_first(self) -> None:
        b = kinds(brain(tasks(2, epochs=5), profile="live"), 1, 2)
        assert by_device(*decide(b, self.SMALL, self.LARGE, HOST_RAM).placements) == {1: ("GPU-1",)}
        assert len(decide(b, gpu(0), gpu(1), HOST_RAM).placements) == 2

    @pytest.mark.parametrize(("sizes", "started_"), [(("5GiB", "40GiB"), [1, 3]), (("40GiB", "40GiB"), [1, 2, 3])])
    def test_a_second_task_of_an_unknown_class_waits_for_the_first_where_gpus_differ_in_size(
        self, sizes: tuple[str, str], started_: list[int]
    ) -> None:
        known = ProfileIndex()
        known.learn(known.number(TaskClass("k", "a.py", False)), Observation({"0": GIB}))
        b = brain(tasks(3), knowledge=known, profile="live")
        for number, key in ((1, "new"), (2, "new"), (3, "other")):
            b.assign(number, TaskClass(key, "b.py", probes=False))
        devices = [gpu(number, size) for number, size in enumerate(sizes)]
        assert b.need(1, 1).gpus[0].bytes is not None, "an expectation of one class is there"
        assert sorted(starts(b, *devices, HOST_RAM)) == started_


class TestSmallGpus:
    """Tasks of unknown memory beside a GPU that is smaller than most."""

    SIZES = ("40GiB", "10GiB", "10GiB", "5GiB")
    ROOMY = host("640GiB", cores=8)

    def unlike(self, number: int, **said: Any) -> Brain:
        """Return tasks of as many scripts, which are all unknown."""
        b = brain(tasks(number, epochs=5, cpus=0.1, host_memory="1GiB", **said), profile="live")
        for task in range(1, number + 1):
            b.assign(task, TaskClass(f"k{task}", f"{task}.py", probes=False))
        return b

    def machine(self, *sizes: str) -> list[DeviceBudget]:
        return [*(gpu(number, total) for number, total in enumerate(sizes or self.SIZES)), self.ROOMY]

    def shown(self, b: Brain, *bytes_: int) -> Brain:
        """Have the first tasks use so much until they have settled."""
        for task, used in enumerate(bytes_, start=1):
            (key,) = b.tasks[task].placement.gpus  # type: ignore[union-attr]
            for at in (1.0, 90.0):
                tell(b, *b.watch(task, 1, {key: used}, now=at, busy=0.1))
        return b

    def test_a_small_gpu_takes_no_unknown_task_while_others_are_measured_on_larger_ones(self) -> None:
        b = self.unlike(4)
        assert place(b, *self.machine()) == [1, 2, 3]
        (refusal,) = decide(b, *self.machine()).refusals
        assert refusal.reason == "larger"
        assert why(refusal) == (
            "needs an unknown amount of memory, and waits until that of task 1 was measured on GPU-0: "
            "the free GPUs are smaller than most"
        )

    @pytest.mark.parametrize(
        "sizes", [("5GiB",) * 4, ("5GiB", "5GiB", "5GiB", "40GiB"), ("40GiB", "40GiB", "5GiB", "5GiB")]
    )
    def test_all_gpus_are_used_where_none_is_smaller_than_most(self, sizes: tuple[str, ...]) -> None:
        assert place(self.unlike(4), *self.machine(*sizes)) == [1, 2, 3, 4]

    def test_an_unknown_task_starts_beside_measured_ones_in_place_of_a_small_gpu(self) -> None:
        b = self.unlike(4)
        place(b, *self.machine())
        self.shown(b, 6 * GIB, 6 * GIB, 6 * GIB)
        (one,) = decide(b, *self.machine()).placements
        assert one.gpus == ("GPU-0",)

    def test_a_small_gpu_is_used_once_most_tasks_are_known_to_need_less(self) -> None:
        b = self.unlike(4)
        place(b, *self.machine())
        self.shown(b, 2 * GIB, 2 * GIB, 2 * GIB)
        full = [gpu(number, total, free="100MiB") for number, total in enumerate(self.SIZES[:3])]
        (one,) = decide(b, *full, gpu(3, "5GiB"), self.ROOMY).placements
        assert one.gpus == ("GPU-3",)

    def test_a_small_gpu_is_used_where_larger_ones_are_full_and_nothing_is_measured(self) -> None:
        full = [gpu(number, total, free="100MiB") for number, total in enumerate(self.SIZES[:3])]
        (one,) = decide(self.unlike(1), *full, gpu(3, "5GiB"), self.ROOMY).placements
        assert one.gpus == ("GPU-3",)

    def test_a_row_that_names_a_small_gpu_starts_there_at_once(self) -> None:
        b = self.unlike(4, device="3")
        assert place(b, *self.machine()) == [1]
