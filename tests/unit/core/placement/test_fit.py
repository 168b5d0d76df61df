"""Free capacity of each device, and which tasks fit: placements and refusals with their numbers."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from unittest.mock import ANY

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.control.messages import why
from scheduler.core.leases import Lease
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
from scheduler.core.placement import fit
from scheduler.core.placement.capacity import FreeIndex
from scheduler.core.placement.device_capacity import capacities, is_called, unknown_name
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.placement.request import MemoryRequest, ResourceRequest
from scheduler.core.profiling.estimator import with_margin
from scheduler.units import GIB, MIB
from tests.e2e.older_tools.contracts import contract
from tests.support.builders import (
    brain,
    decide,
    exited,
    gpu,
    hold,
    host,
    lease_of,
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

BUFFER = 512 * MIB
UUID = "GPU-11112222-aaaa"


@pytest.mark.parametrize(
    ("word", "means"),
    [
        ("GPU-1111", True), ("GPU-111", False), ("GPU-", False), ("", False), ("3", True), ("33", False),
        ("1,3", True), ("1, GPU-1111", True), ("1,33", False),
    ],
)  # fmt: skip
def test_a_gpu_is_called_by_its_number_or_by_enough_of_its_uuid(word: str, means: bool) -> None:
    assert is_called(Device(UUID, "GPU 3", 24 * GIB, 1.0, 3), word) is means


def test_the_first_name_that_no_device_has_is_told_and_a_slot_may_have_commas_in_its_name() -> None:
    gpus = [Device(f"GPU-{number}", f"GPU {number}", 24 * GIB, 1.0, number) for number in (0, 1)]
    assert [unknown_name(text, gpus) for text in ("0,1", "0, 7", "1")] == ["", "7", ""]
    slot = Device("slot0", "slot 0,1", 0, 1.0, cards=())
    assert [unknown_name(text, [slot]) for text in ("0,1", "0")] == ["", "0"]


@pytest.mark.parametrize(("unreclaimed", "coming"), [(0, False), (64 * MIB - 1, False), (64 * MIB, True)])
def test_unreclaimed_memory_is_coming_back(unreclaimed: int, coming: bool) -> None:
    here = replace(gpu(0), unreclaimed=unreclaimed)
    assert capacities(machine(here), (), rules())["GPU-0"].coming is coming


def room(*leases: Lease, free: str = "24GiB", cap: str | None = None, buffer: int = BUFFER) -> int:
    """Return the capacity of a host with 24 GiB."""
    here = machine(host("24GiB", free=free, cap=cap), leases=leases)
    return capacities(here, (), rules(buffer=buffer))[HOST].bytes


class TestCapacity:
    def test_an_idle_device_is_free_except_for_the_buffer(self) -> None:
        assert room() == size("23.5GiB")

    def test_bytes_that_are_reserved_and_not_used_yet_are_not_free(self) -> None:
        assert room(hold("8GiB", used="3GiB"), free="21GiB") == size("15.5GiB")

    def test_used_bytes_of_a_reservation_count_once(self) -> None:
        assert room(hold("8GiB", used="8GiB"), free="16GiB") == size("15.5GiB")

    def test_use_above_a_reservation_counts(self) -> None:
        assert room(hold("8GiB", used="10GiB"), free="14GiB") == size("13.5GiB")

    def test_unmanaged_processes_count_by_their_use(self) -> None:
        assert room(free="4GiB") == size("3.5GiB")

    def test_unmeasured_use_wastes_memory_but_never_overcommits(self) -> None:
        seen, unseen = hold("8GiB", used="8GiB"), hold("8GiB", used=0)
        assert room(unseen, free="16GiB") == room(seen, free="16GiB") - size("8GiB")

    def test_an_overcommitted_device_has_negative_capacity(self) -> None:
        assert room(hold("30GiB")) == -size("6.5GiB")

    def test_reservations_on_other_devices_do_not_count(self) -> None:
        assert room(hold("8GiB", key="GPU-0")) == size("23.5GiB")

    @pytest.mark.parametrize("buffer", [0, 100 * MIB, 4 * GIB])
    def test_the_buffer_follows_the_settings(self, buffer: int) -> None:
        assert room(buffer=buffer) == size("24GiB") - buffer


class TestBudget:
    """`--devices host:4GiB`: all live leases together stay below it."""

    def test_a_smaller_budget_is_the_limit(self) -> None:
        assert room(cap="4GiB") == size("3.5GiB")

    def test_a_budget_does_not_free_what_is_in_use(self) -> None:
        assert room(free="2GiB", cap="4GiB") == size("1.5GiB")

    def test_reservations_and_use_above_them_reduce_a_budget(self) -> None:
        assert room(hold("1GiB", used="2GiB"), hold("1GiB"), cap="4GiB") == size("512MiB")

    def test_unmanaged_processes_do_not_reduce_a_budget(self) -> None:
        assert room(free="20GiB", cap="4GiB") == size("3.5GiB")

    def test_a_request_above_a_budget_never_fits(self) -> None:
        b = brain(tasks(1, "5GiB") + tasks(1, "3GiB"))
        decision = decide(b, host(cap="4GiB"))
        assert [p.task for p in decision.placements] == [2]
        assert decision.impossible == (Refusal(1, Reason.NEVER, HOST, 5 * GIB, size("3.5GiB"), 4 * GIB),)


class TestKnown:
    """Tasks whose memory was declared."""

    def test_as_many_known_tasks_start_as_fit(self) -> None:
        assert starts(brain(tasks(5, "8GiB", cpus=0.1))) == [1, 2]

    def test_a_declared_need_is_reserved_as_declared(self) -> None:
        (placement,) = decide(brain(tasks(1, "8GiB"))).placements
        assert (placement.reservation, placement.source) == ({HOST: 8 * GIB}, EstimateSource.DECLARED)

    def test_a_later_task_that_fits_starts(self) -> None:
        assert starts(brain(tasks(2, "16GiB") + tasks(1, "4GiB"))) == [1, 3]

    def test_a_refusal_names_its_numbers(self) -> None:
        decision = decide(brain(tasks(2, "16GiB")))
        assert decision.refusals == (Refusal(2, Reason.MEMORY, HOST, 16 * GIB, size("7.5GiB"), 24 * GIB),)

    def test_the_largest_request_that_leaves_the_buffer_starts_beside_others(self) -> None:
        assert starts(brain(tasks(1, "8GiB") + tasks(1, "15.5GiB"))) == [1, 2]
        assert starts(brain(tasks(1, "8GiB") + tasks(1, "15872.1MiB"))) == [1]

    def test_a_request_between_device_less_buffer_and_device_runs_alone(self) -> None:
        b = brain(tasks(1, "23.8GiB") + tasks(1, "1MiB"))
        assert place(b) == [1]
        assert reasons(b, host(free="22GiB"), used={(1, 1): {HOST: "2GiB"}}) == {2: "memory"}

    def test_a_request_that_needs_the_buffer_does_not_start_beside_another(self) -> None:
        b = brain(tasks(1, "1GiB") + tasks(1, "23.8GiB"))
        assert place(b) == [1]
        assert reasons(b) == {2: "memory"}
        assert starts(tell(b, exited(1))) == [2]

    def test_a_request_of_exactly_the_device_starts(self) -> None:
        assert starts(brain(tasks(1, "24GiB"))) == [1]

    def test_a_request_above_the_device_never_fits(self) -> None:
        decision = decide(brain(tasks(1, "24.1GiB")))
        assert decision.impossible == (Refusal(1, Reason.NEVER, HOST, size("24.1GiB"), size("23.5GiB"), 24 * GIB),)

    def test_inputs_refuse_a_request_above_every_device(self) -> None:
        (t,) = tasks(1, "30GiB")
        budgets = (gpu(0, "16GiB"), gpu(1, "24GiB"))
        assert fit.never_fits(t, budgets) == Refusal(0, Reason.NEVER, "GPU-1", 30 * GIB, 0, 24 * GIB)
        assert fit.never_fits(t, [host("24GiB", cap="4GiB")]) == Refusal(0, Reason.NEVER, HOST, 30 * GIB, 0, 4 * GIB)

    @pytest.mark.parametrize("memory", [None, "24GiB"])
    def test_inputs_accept_a_request_that_may_fit(self, memory: str | None) -> None:
        (t,) = tasks(1, memory)
        assert fit.never_fits(t, [host("24GiB", free="1GiB")]) is None

    def test_a_request_above_one_device_may_fit_on_another(self) -> None:
        b = brain(tasks(1, "20GiB"))
        decision = decide(b, gpu(0, "24GiB", free="10GiB"), gpu(1, "16GiB"))
        assert decision.impossible == ()
        assert decision.refusals == (Refusal(1, Reason.UNMANAGED, "GPU-0", 20 * GIB, size("9.5GiB"), 24 * GIB),)

    @pytest.mark.parametrize(
        "busy",
        [
            replace(gpu(1, free="4GiB"), unmanaged=(UnmanagedUse(20 * GIB, "ben", calm=1.0),)),
            replace(gpu(1), closed="it does not answer"),
            gpu(1, free="1GiB"),
        ],
        ids=["new unmanaged memory", "closed", "full"],
    )
    def test_a_need_above_all_devices_is_refused_at_once_whatever_is_on_one_of_them(self, busy: DeviceBudget) -> None:
        decision = decide(brain(tasks(1, "30GiB")), gpu(0, "16GiB"), busy)
        assert decision.impossible == (Refusal(1, Reason.NEVER, "GPU-1", 30 * GIB, ANY, 24 * GIB),)
        assert decision.refusals == ()

    def test_a_need_above_all_devices_is_refused_at_once_whatever_runs_there(self) -> None:
        alone = lease_of({"GPU-0": GIB}, {"GPU-0": GIB}, alone=True)
        many = {"max_per_device": 1, "mps": False}
        for leases, said in (((alone,), {}), ((replace(alone, alone=False),), many)):
            decision = decide(brain(tasks(1, "30GiB"), **said), gpu(0, free="23GiB"), leases=leases)
            assert [refusal.reason for refusal in decision.impossible] == [Reason.NEVER]

    def test_ram_beside_a_gpu_above_the_hosts_is_refused_at_once_also_while_all_cores_are_busy(self) -> None:
        b = brain(tasks(1, "1GiB", host_memory="30GiB", cpus=4))
        decision = decide(b, gpu(), host(), leases=(lease_of({HOST: GIB}, {HOST: GIB}, {HOST: 4.0}),))
        assert decision.impossible == (Refusal(1, Reason.NEVER, HOST, 30 * GIB, ANY, 24 * GIB),)

    def test_a_task_on_two_gpus_is_refused_at_once_if_only_one_is_large_enough_though_that_is_full(self) -> None:
        decision = decide(brain(tasks(1, "30GiB", gpus=2)), gpu(0, "48GiB", free="1GiB"), gpu(1))
        assert decision.impossible == (Refusal(1, Reason.NEVER, "GPU-1", 30 * GIB, ANY, 24 * GIB),)
        fits = decide(brain(tasks(1, "30GiB", gpus=2)), gpu(0, "48GiB", free="1GiB"), gpu(1, "32GiB"), gpu(2))
        assert fits.impossible == ()

    def test_a_task_that_ran_out_on_nearly_a_whole_gpu_is_refused_at_once_beside_new_unmanaged_memory(self) -> None:
        b = brain(tasks(1))
        assert place(b, gpu()) == [1]
        tell(b, replace(exited(1, "oom", code=1, part="gpu", asked=10 * GIB), peak={"GPU-0": 20 * GIB}))
        here = replace(gpu(free="20GiB"), unmanaged=(UnmanagedUse(4 * GIB, "ben", calm=1.0),))
        decision = decide(b, here)
        assert [refusal.reason for refusal in decision.impossible] == [Reason.NEVER]

    def test_a_request_above_all_devices_names_the_largest(self) -> None:
        decision = decide(brain(tasks(1, "30GiB")), gpu(0, "24GiB", free="1GiB"), gpu(1, "16GiB"))
        assert [refusal.device for refusal in decision.impossible] == ["GPU-0"]


def need(reservation: int | str, bare: int | str, alone: bool = False) -> ResourceRequest:
    """Return the request for a known peak with its margin."""
    return ResourceRequest(MemoryRequest(size(reservation), size(bare)), 1.0, EstimateSource.PROFILE, alone=alone)


def reserved(asked: ResourceRequest, *leases: Lease, free: str = "24GiB") -> int | str:
    """Return the reservation on a host with 24 GiB, or the refusal."""
    rooms = capacities(machine(host(free=free, cores=99), leases=leases), (), rules())
    fitted = fit.fit(1, 1, asked, (), rooms[HOST], rules())
    return fitted.reservation[HOST] if isinstance(fitted, Placement) else fitted.reason


class TestMargin:
    """Margin is cut where the device ends: 10 % + 256 MiB on top of 22 GiB is no reason never to run it."""

    def test_a_margin_is_reserved_whole_where_it_fits(self) -> None:
        assert reserved(need("11.25GiB", bare="10GiB")) == size("11.25GiB")

    @contract("S3-22")
    def test_a_margin_is_cut_at_the_buffer(self) -> None:
        assert reserved(need("24.5GiB", bare="22GiB")) == size("23.5GiB")

    def test_a_margin_is_cut_at_the_free_bytes_where_no_task_could_end(self) -> None:
        """A desktop uses half a GiB for good, so a wait for it would never end."""
        assert reserved(need("24.5GiB", bare="22GiB"), free="23.4GiB") == size("22.9GiB")

    def test_a_bare_need_above_the_buffer_runs_alone_without_it(self) -> None:
        assert reserved(need("26GiB", bare="23.7GiB")) == size("24GiB")

    def test_a_need_of_the_whole_device_gets_what_the_driver_leaves(self) -> None:
        """`Memory` is 24GiB on a GPU of 24GiB, of which the driver keeps some for good."""
        assert reserved(need("24GiB", bare="24GiB"), free="23.7GiB") == size("23.7GiB")
        assert reserved(need("24GiB", bare="24GiB"), free="21GiB") == "memory"

    def test_a_need_of_nearly_the_whole_device_uses_the_buffer_instead_of_waiting(self) -> None:
        assert reserved(need("23.4GiB", bare="23.4GiB"), free="23.7GiB") == size("23.4GiB")
        assert reserved(need("22GiB", bare="22GiB"), free="21.9GiB") == "memory"

    @contract("S3-22")
    def test_a_need_fits_beside_a_reservation_up_to_the_buffer(self) -> None:
        beside = size("24GiB") - size("12GiB") - BUFFER
        assert reserved(need(beside, bare=beside), hold("12GiB")) == beside
        assert reserved(need(beside + 1, bare=beside + 1), hold("12GiB")) == "memory"

    def test_a_margin_is_not_cut_beside_others(self) -> None:
        assert reserved(need("26GiB", bare="23.7GiB"), hold("1MiB", used="1MiB")) == "memory"
        assert reserved(need("24.5GiB", bare="22GiB"), hold("1GiB")) == "memory"

    def test_a_margin_stays_whole_beside_others(self) -> None:
        """The whole margin is free once the other tasks have ended."""
        assert reserved(need("11.25GiB", bare="10GiB"), hold("13GiB")) == "memory"

    def test_a_bare_need_above_the_device_never_fits(self) -> None:
        assert reserved(need("27GiB", bare="24.1GiB")) == "never"

    @contract("S3-22")
    def test_a_bare_need_above_the_free_bytes_waits(self) -> None:
        assert reserved(need("13GiB", bare="12GiB"), free="12GiB") == "memory"


class TestUnknown:
    def test_an_unknown_task_on_the_host_gets_half_of_what_is_free(self) -> None:
        (placement,) = decide(brain(tasks(1))).placements
        assert placement.reservation == {HOST: size("11.75GiB")}
        assert placement.source is EstimateSource.MEASURED

    def test_the_next_unknown_task_gets_half_of_the_rest(self) -> None:
        b = brain(tasks(3, cpus=0.1))
        assert [p.reservation[HOST] for p in decide(b).placements] == [
            size("11.75GiB"),
            size("5.875GiB"),
            size("2.9375GiB"),
        ]

    def test_an_unknown_task_does_not_start_with_less_than_its_least(self) -> None:
        assert starts(brain(tasks(1)), host(free="640MiB")) == [1]
        decision = decide(brain(tasks(1)), host(free="639MiB"))
        assert decision.refusals == (Refusal(1, Reason.UNMANAGED, HOST, 128 * MIB, 127 * MIB, 24 * GIB),)

    def test_a_negative_capacity_is_shown_as_zero(self) -> None:
        decision = decide(brain(tasks(1)), host(free="1MiB"))
        assert decision.refusals[0].room == 0

    def test_unknown_tasks_leave_part_of_a_device_free(self) -> None:
        started = starts(brain(tasks(40, cpus=0.01)), host(cores=100))
        assert 5 < len(started) < 10


class TestCounts:
    def test_slots_count_tasks_and_no_bytes(self) -> None:
        b = brain(tasks(5, "20GiB", cpus=9.0), slots=3)
        decision = decide(b)
        assert [p.task for p in decision.placements] == [1, 2, 3]
        assert decision.refusals == (Refusal(4, Reason.SLOTS, HOST, 1, 0, 3),)

    def test_slots_count_by_device(self) -> None:
        b = brain(tasks(5), slots=2)
        assert [p.devices for p in decide(b, gpu(0), gpu(1)).placements].count(("GPU-0",)) == 2

    def test_an_unknown_need_on_slots_is_expected_to_be_an_equal_share(self) -> None:
        placements = decide(brain(tasks(3), slots=3), host("24GiB", free="20GiB")).placements
        share = (24 * GIB - 512 * MIB) // 3
        assert [one.reservation[HOST] for one in placements] == [share, share, 20 * GIB - 512 * MIB - 2 * share]

    def test_unknown_ram_of_tasks_on_slots_of_gpus_stays_within_the_budget(self) -> None:
        budgets = gpu(0), gpu(1), host("64GiB", cap="2GiB")
        placements = decide(brain(tasks(12, "1500MiB"), slots=6), *budgets).placements
        ram = [one.reservation[HOST] for one in placements]
        assert (len(ram), ram[:3]) == (12, [768 * MIB, 512 * MIB, 256 * MIB])
        assert sum(ram) == 2 * GIB - 512 * MIB

    def test_expected_ram_of_a_task_on_a_slot_is_corrected_after_it_was_measured(self) -> None:
        b = brain(tasks(1, "1500MiB"), slots=6)
        assert place(b, gpu(0), host("64GiB", cores=8)) == [1]
        for now in (1.0, 62.0):
            for event in b.watch(1, 1, {HOST: GIB, "GPU-0": GIB}, now=now):
                b.apply(event, now)
        (placement,) = b.placements()
        assert (placement.reservation[HOST], placement.ram_expected) == (with_margin(GIB, b.rules), False)

    def test_an_ended_task_frees_its_slot(self) -> None:
        b = brain(tasks(3), slots=1)
        assert place(b) == [1]
        assert starts(b) == []
        assert starts(tell(b, exited(1))) == [2]

    def test_max_per_device_applies_on_top_of_memory(self) -> None:
        assert starts(brain(tasks(5, "1GiB", cpus=0.1), max_per_device=2)) == [1, 2]
        assert starts(brain(tasks(5, "20GiB"), max_per_device=2)) == [1]

    @pytest.mark.parametrize(("jobs", "started"), [(None, 5), (2, 2), (0, 0)])
    def test_jobs_limit_the_tasks_of_this_run(self, jobs: int | None, started: int) -> None:
        b = brain(tasks(5, "1GiB", cpus=0.1), jobs=jobs)
        assert len(place(b)) == started

    def test_living_tasks_count_towards_the_limit(self) -> None:
        b = brain(tasks(5, "1GiB"), jobs=2)
        assert place(b) == [1, 2]
        assert reasons(b) == {3: "jobs"}
        assert starts(tell(b, exited(1))) == [3]


class TestLoad:
    def test_as_many_tasks_start_as_there_are_cores(self) -> None:
        assert starts(brain(tasks(9, "1GiB")), host(cores=4)) == [1, 2, 3, 4]

    def test_a_refusal_for_load_names_its_numbers(self) -> None:
        b = brain(tasks(3, "1GiB", cpus=1.5))
        assert decide(b, host(cores=4)).refusals == (Refusal(3, Reason.LOAD, HOST, 150, 100),)

    def test_a_smaller_task_starts_before_one_that_lacks_cores(self) -> None:
        b = brain(tasks(2, "1GiB", cpus=3) + tasks(1, "1GiB", cpus=0.5))
        assert starts(b, host(cores=4)) == [1, 3]

    def test_a_task_that_wants_more_cores_than_exist_runs_by_itself(self) -> None:
        b = brain(tasks(2, "1GiB", cpus=64))
        assert starts(b, host(cores=4)) == [1]

    def test_fractions_of_cores_add_up_without_rounding_errors(self) -> None:
        assert len(starts(brain(tasks(12, "1GiB", cpus=0.1)), host(cores=1))) == 10
        assert len(starts(brain(tasks(4, "1GiB", cpus=0.1)), host(cores=0.3))) == 3

    def test_max_load_above_one_reserves_more_cores_than_exist(self) -> None:
        assert len(starts(brain(tasks(9, "1GiB"), max_load=1.5), host(cores=4))) == 6

    def test_leases_of_other_schedulers_count_as_load(self) -> None:
        assert starts(brain(tasks(9, "1GiB")), host(cores=4), leases=[hold("1GiB", cores=2.5)]) == [1]


class TestExclusive:
    def test_an_exclusive_task_waits_for_an_empty_device(self) -> None:
        b = brain(tasks(1, "1GiB") + tasks(1, "1GiB", exclusive=True) + tasks(1, "1GiB"))
        decision = decide(b)
        assert [p.task for p in decision.placements] == [1, 3]
        assert decision.refusals == (Refusal(2, Reason.ALONE, HOST, 1, 1),)

    def test_no_task_starts_beside_an_exclusive_one(self) -> None:
        b = brain(tasks(1, "1GiB", exclusive=True) + tasks(1, "1GiB"))
        assert place(b) == [1]
        assert reasons(b) == {2: "alone"}

    def test_an_exclusive_task_respects_other_schedulers(self) -> None:
        assert reasons(brain(tasks(1, "1GiB", exclusive=True)), leases=[hold("1GiB")]) == {1: "alone"}

    def test_an_unreadable_lease_closes_everything_and_names_its_owner(self) -> None:
        b = brain(tasks(2, "1GiB"))
        unreadable = lease_of({}, unreadable="ben")
        assert reasons(b, leases=[unreadable]) == {1: "unreadable"}
        decision = decide(b, gpu(0), gpu(1), leases=[unreadable])
        assert decision.placements == ()
        assert "the lease of a running task of ben cannot be read" in why(decision.refusals[0])

    def test_a_lease_of_a_newer_version_closes_its_devices(self) -> None:
        newer = lease_of({"GPU-1": GIB, HOST: 2 * GIB}, unreadable="ben")
        here = (gpu(0), gpu(1), host())
        decision = decide(brain(tasks(2, "1GiB")), *here, leases=[newer])
        assert {p.devices for p in decision.placements} == {("GPU-0",)}
        only = decide(brain(tasks(1, "1GiB", device="1")), *here, leases=[newer])
        assert [refusal.reason for refusal in only.refusals] == ["unreadable"]


class TestChoiceOfDevice:
    def test_a_task_goes_where_most_is_free(self) -> None:
        (placement,) = decide(brain(tasks(1, "1GiB")), gpu(0, free="8GiB"), gpu(1, free="9GiB")).placements
        assert placement.devices == ("GPU-1",)

    def test_tasks_are_spread_over_devices(self) -> None:
        placements = decide(brain(tasks(4, "1GiB", cpus=0.2)), gpu(0), gpu(1)).placements
        assert [p.devices[0] for p in placements] == ["GPU-0", "GPU-1"] * 2

    def test_a_task_goes_to_the_device_that_its_row_names(self) -> None:
        b = brain(tasks(2, "20GiB", device="GPU-1"))
        assert [p.devices for p in decide(b, gpu(0), gpu(1)).placements] == [("GPU-1",)]


class TestOutOfMemory:
    """Retries after the device was full."""

    def test_after_an_out_of_memory_more_is_reserved(self) -> None:
        b = tell(brain(tasks(1, "4GiB")), placed(1, "4GiB"), peaked(1, "4GiB"), exited(1, "oom"))
        (placement,) = decide(b).placements
        assert placement.reservation == {HOST: size("6GiB")}
        assert placement.attempt == 2

    def test_after_an_out_of_memory_no_more_than_the_device_is_reserved(self) -> None:
        b = tell(brain(tasks(1, "20GiB")), run(1, "oom", "20GiB", peak="21GiB"))
        assert [p.reservation for p in decide(b).placements] == [{HOST: size("23.5GiB")}]

    def test_the_last_attempt_after_out_of_memories_is_alone(self) -> None:
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
    """The real state of a machine, and the part of it that is measured."""

    total: int
    unmanaged: int
    leases: tuple[tuple[int, int, int], ...]
    """(reserved, really used, measured as used)."""

    @property
    def free(self) -> int:
        return self.total - self.unmanaged - sum(held for _, held, _ in self.leases)

    @property
    def committed(self) -> int:
        return self.unmanaged + sum(max(reserved, held) for reserved, held, _ in self.leases)

    @property
    def machine(self) -> Machine:
        leases = [hold(reserved, seen, cores=0) for reserved, _, seen in self.leases]
        return machine(host(self.total, free=self.free, cores=99), leases=leases)

    def room(self) -> int:
        return capacities(self.machine, (), rules(buffer=0))[HOST].bytes


@st.composite
def worlds(draw: st.DrawFn) -> World:
    total = draw(st.integers(1, 100)) * GIB
    left = total - draw(st.integers(0, total))
    unmanaged, leases = total - left, []
    for _ in range(draw(st.integers(0, 6))):
        reserved, held = draw(st.integers(0, left)), draw(st.integers(0, left))
        leases.append((reserved, held, draw(st.sampled_from([0, held, held // 2]))))
        left -= max(reserved, held)
    return World(total, unmanaged, tuple(leases))


@settings(max_examples=100)
@given(worlds(), st.lists(st.integers(1, 100 * GIB), max_size=5))
def test_reservations_and_use_together_never_exceed_the_device(world: World, asked: list[int]) -> None:
    assert world.committed <= world.total
    b = brain([one for bytes_ in asked for one in tasks(1, bytes_, cpus=0)], buffer=0)
    given_ = sum(p.reservation[HOST] for p in b.decide(world.machine).placements)
    assert given_ == 0 or world.committed + given_ <= world.total


@given(worlds())
def test_nothing_is_wasted_where_all_use_is_seen(world: World) -> None:
    seen = World(world.total, world.unmanaged, tuple((reserved, held, held) for reserved, held, _ in world.leases))
    assert seen.room() == seen.total - seen.committed


def test_reservations_alone_and_the_minimum_of_reservations_and_free_overcommit() -> None:
    """The three ways to compute free bytes are compared on equal random states."""
    dice, states = random.Random(7), [a_state(random.Random(seed)) for seed in range(400)]
    overcommitted = {"reservations": 0, "less of both": 0, "room": 0}
    for world in states:
        reservations = world.total - sum(reserved for reserved, _, _ in world.leases)
        ways = {"reservations": reservations, "less of both": min(reservations, world.free), "room": world.room()}
        share = dice.random()
        for way, bytes_ in ways.items():
            overcommitted[way] += bytes_ > 0 and world.committed + int(bytes_ * share) > world.total
    assert overcommitted["room"] == 0
    assert overcommitted["reservations"] > overcommitted["less of both"] > 40


def a_state(dice: random.Random) -> World:
    total = 24 * GIB
    unmanaged, leases = dice.randrange(0, 8) * GIB, []
    left = total - unmanaged
    for _ in range(dice.randrange(1, 5)):
        reserved = dice.randrange(0, max(1, left // 2))
        held = min(left, int(reserved * dice.choice([0.0, 0.1, 0.5, 1.0, 1.2])))
        leases.append((reserved, held, held))
        left -= max(reserved, held)
    return World(total, unmanaged, tuple(leases))


def test_a_gpu_with_exactly_the_load_that_is_asked_for_may_be_used() -> None:
    free = FreeIndex([(10.0, 0), (20.0, 1)], [(0.1, 1), (0.5, 0)])
    assert free.with_both(5.0, 0.5) == [0]


class TestNumbers:
    """The numbers of refusals, which users see."""

    def test_a_task_on_more_gpus_than_there_are_names_both_numbers(self) -> None:
        decision = decide(brain(tasks(1, "1GiB", gpus=3)), gpu(0), gpu(1))
        assert decision.refusals == (Refusal(1, Reason.GPUS, wanted=3, total=2),)

    def test_cores_beside_a_gpu_are_named_in_percent(self) -> None:
        b = brain(tasks(1, "1GiB", host_memory="1GiB", cpus=3))
        decision = decide(b, gpu(), host(), leases=(lease_of({HOST: GIB}, {HOST: GIB}, {HOST: 2.5}),))
        assert decision.refusals == (Refusal(1, Reason.LOAD, HOST, 300, 150),)

    def test_cores_of_a_task_on_the_host_are_named_in_percent(self) -> None:
        b = brain(tasks(1, "1GiB", cpus=3))
        decision = decide(b, host(), leases=(lease_of({HOST: GIB}, {HOST: GIB}, {HOST: 2.5}),))
        assert decision.refusals == (Refusal(1, Reason.LOAD, HOST, 300, 150),)

    def test_a_place_on_a_device_that_has_enough_tasks_is_counted(self) -> None:
        b = brain(tasks(3, "1GiB"), max_per_device=1)
        assert place(b, gpu(0)) == [1]
        assert decide(b, gpu(0)).refusals == (Refusal(2, Reason.SLOTS, "GPU-0", 1, 0, 1),)

    @pytest.mark.parametrize(
        ("manners", "refusal"),
        [
            (UnmanagedPolicy.AVOID, Refusal(1, Reason.AVOIDED, "GPU-0", room=5 * GIB, text="amy, ben")),
            (UnmanagedPolicy.HEADROOM, Refusal(1, Reason.YOUNG, "GPU-0", 111, 5 * GIB, text="amy, ben")),
        ],
    )
    def test_unmanaged_memory_is_named_with_its_users(self, manners: UnmanagedPolicy, refusal: Refusal) -> None:
        who = (UnmanagedUse(4 * GIB, "ben", calm=10.0), UnmanagedUse(GIB, "amy", calm=60.0))
        decision = decide(brain(tasks(1, "1GiB"), manners=manners), replace(gpu(0), unmanaged=who))
        assert decision.refusals == (refusal,)

    def test_ram_beside_a_gpu_waits_for_a_task_that_has_the_host_alone(self) -> None:
        b = brain(tasks(1, "1GiB", host_memory="1GiB"))
        decision = decide(b, gpu(), host(), leases=(lease_of({HOST: GIB}, {HOST: GIB}, alone=True),))
        assert decision.refusals == (Refusal(1, Reason.ALONE, HOST, room=1),)
