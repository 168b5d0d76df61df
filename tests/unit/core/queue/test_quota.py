"""Quotas, which hold over all runs of a user and limit how much leases of other users count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.brain import Brain
from scheduler.core.control.messages import waiting, why
from scheduler.core.control.why import of_run, of_task
from scheduler.core.leases import Lease
from scheduler.core.model import HOST, Decision, DeviceBudget, Machine
from scheduler.core.placement.refusal import Reason
from scheduler.core.queue.quota import bounded, capped
from scheduler.core.site_policy import NO_CAPS, Caps, UserQuotas
from scheduler.units import GIB
from tests.support.builders import brain, checked, gpu, host, lease_of, machine, node, slots, tasks, tell
from tests.support.faults import fault

ME, BEN = 1000, 2000
FILE = "[quotas] in /etc/machine.toml"


def caps(**said: int) -> Caps:
    return Caps(**said, source=FILE)


def scene(limits: Caps, *budgets: DeviceBudget, leases: tuple[...] = ()) -> Machine:
    """Return a machine with two GPUs of 24 GiB and much RAM."""
    here = budgets or (gpu(0), gpu(1), host(total="256GiB", cores=64))
    return replace(machine(*here, leases=leases), uid=ME, caps=limits)


def other_run(memory: int, uid: int = ME, device: str = "GPU-0") -> Lease:
    """Return a lease of another run of which nothing is used yet."""
    return lease_of({device: memory * GIB, HOST: GIB}, {}, {HOST: 0.0}, uid=uid)


def packer(number: int = 6, memory: str | None = "4GiB", **said: Any) -> Brain:
    return brain(tasks(number, memory, **said), buffer="0GiB", max_gpu_load=64.0)


def placed(decision: Decision) -> list[int]:
    return [placement.task for placement in checked(decision).placements]


def begin(b: Brain, decision: Decision) -> None:
    tell(b, decision.placements)


def words(decision: Decision) -> list[str]:
    return [why(refusal) for refusal in (*checked(decision).refusals, *decision.impossible)]


class TestTasks:
    def test_a_quota_of_tasks_limits_the_tasks_of_a_pass(self) -> None:
        decision = packer().decide(scene(caps(tasks=2)))
        assert placed(decision) == [1, 2]
        assert [refusal.task for refusal in decision.refusals] == [3]
        assert words(decision) == [f"may not start; its user holds 2 tasks, the quota is 2 ({FILE})"]

    def test_a_quota_of_tasks_is_refused_with_its_numbers(self) -> None:
        (refusal,) = packer().decide(scene(caps(tasks=2))).refusals
        assert (refusal.wanted, refusal.room, refusal.total) == (1, 2, 2)

    def test_a_quota_of_tasks_counts_all_runs_of_its_user_only(self) -> None:
        leases = (other_run(1), other_run(1, BEN), other_run(1, BEN))
        assert placed(packer().decide(scene(caps(tasks=2), leases=leases))) == [1]

    def test_a_quota_of_tasks_counts_running_tasks(self) -> None:
        b = packer()
        here = scene(caps(tasks=3))
        begin(b, b.decide(scene(caps(tasks=2))))
        assert placed(b.decide(here)) == [3]

    def test_a_raised_quota_applies_at_once(self) -> None:
        b = packer()
        assert placed(b.decide(scene(caps(tasks=1)))) == [1]
        assert placed(b.decide(scene(caps(tasks=2)))) == [1, 2]

    def test_a_lowered_quota_leaves_running_tasks(self) -> None:
        b = packer()
        begin(b, b.decide(scene(caps(tasks=4))))
        assert placed(b.decide(scene(caps(tasks=2)))) == []


class TestMemory:
    def test_a_quota_of_memory_limits_the_reservations_of_a_pass(self) -> None:
        decision = packer().decide(scene(caps(memory=10 * GIB)))
        assert placed(decision) == [1, 2]
        assert words(decision)[0] == (
            f"needs 4.0GiB of GPU memory; its user holds 8.0GiB of GPU memory, the quota is 10.0GiB ({FILE})"
        )

    def test_a_quota_of_memory_counts_all_runs_and_gpus(self) -> None:
        leases = (other_run(4, device="GPU-1"),)
        assert placed(packer().decide(scene(caps(memory=10 * GIB), leases=leases))) == [1]

    def test_a_smaller_task_starts_while_a_quota_delays_a_larger_one(self) -> None:
        both = brain([*tasks(1, "8GiB"), *tasks(2, "2GiB")], buffer="0GiB", max_gpu_load=64.0)
        assert placed(both.decide(scene(caps(memory=10 * GIB), leases=(other_run(6),)))) == [2, 3]

    def test_host_ram_beside_gpus_has_a_quota_of_its_own(self) -> None:
        with_ram = brain(tasks(4, "1GiB", host_memory="8GiB"), buffer="0GiB", max_gpu_load=64.0)
        decision = with_ram.decide(scene(caps(host_memory=20 * GIB)))
        assert placed(decision) == [1, 2]
        assert "needs 8.0GiB of host RAM" in words(decision)[0]

    def test_a_quota_limits_host_ram_without_gpus(self) -> None:
        on_host = brain(tasks(4, "4GiB"), buffer="0GiB")
        assert placed(on_host.decide(scene(caps(host_memory=9 * GIB), host(cores=64)))) == [1, 2]

    def test_a_task_of_unknown_need_is_reserved_the_rest_of_the_quota(self) -> None:
        decision = packer(1, None).decide(scene(caps(memory=10 * GIB)))
        assert [dict(one.reservation)["GPU-0"] for one in decision.placements] == [10 * GIB]

    def test_a_task_of_unknown_need_waits_while_its_user_has_other_tasks(self) -> None:
        decision = packer(1, None).decide(scene(caps(memory=10 * GIB), leases=(other_run(4),)))
        assert placed(decision) == []

    def test_a_task_that_needs_more_memory_than_the_quota_is_refused(self) -> None:
        decision = packer(1, "12GiB").decide(scene(caps(memory=10 * GIB)))
        assert [refusal.reason for refusal in decision.impossible] == ["above-quota"]
        assert words(decision) == [f"needs 12.0GiB of GPU memory; the quota of its user is 10.0GiB ({FILE})"]


class TestGpus:
    def test_a_quota_of_gpus_limits_the_gpus_of_a_pass(self) -> None:
        decision = packer(12).decide(scene(caps(gpus=1)))
        assert {key for one in decision.placements for key in one.gpus} == {"GPU-0"}
        assert placed(decision) == [1, 2, 3, 4, 5, 6]
        assert words(decision)[0] == f"needs 1 GPU; its user holds 1 GPU, the quota is 1 ({FILE})" or (
            "GPU-0 has " in words(decision)[0]
        )

    def test_a_quota_of_gpus_allows_gpus_that_the_user_has_already(self) -> None:
        decision = packer(1).decide(scene(caps(gpus=1), leases=(other_run(4, device="GPU-1"),)))
        assert [one.gpus for one in decision.placements] == [("GPU-1",)]

    def test_a_task_on_two_gpus_includes_the_gpu_that_its_user_has_already(self) -> None:
        three = (gpu(0), gpu(1), gpu(2), host(total="256GiB", cores=64))
        pair = brain(tasks(1, "2GiB", gpus=2), buffer="0GiB")
        decision = pair.decide(scene(caps(gpus=2), *three, leases=(other_run(4, device="GPU-2"),)))
        assert sorted(decision.placements[0].gpus) == ["GPU-0", "GPU-2"]

    def test_a_task_too_large_for_the_gpus_that_its_user_has_already_waits_for_the_quota(self) -> None:
        two = (gpu(0, "16GiB"), gpu(1), host(total="256GiB", cores=64))
        decision = packer(1, "20GiB").decide(scene(caps(gpus=1), *two, leases=(other_run(4),)))
        assert decision.impossible == ()
        assert words(decision) == [f"needs 1 GPU; its user holds 1 GPU, the quota is 1 ({FILE})"]

    def test_a_task_that_needs_more_gpus_than_the_quota_is_refused(self) -> None:
        decision = brain(tasks(1, "2GiB", gpus=2)).decide(scene(caps(gpus=1)))
        assert words(decision) == [f"needs 2 GPUs; the quota of its user is 1 ({FILE})"]


class TestSlots:
    def test_quotas_hold_for_slots(self) -> None:
        here = (*slots("0", "1"), gpu(0), gpu(1), host(total="256GiB", cores=64))
        assert placed(brain(tasks(4)).decide(scene(caps(tasks=1), *here))) == [1]
        assert placed(brain(tasks(4, "4GiB")).decide(scene(caps(gpus=1), *here))) == [1]


class TestWaiting:
    """A task that waits for its own user's quota keeps nothing from other users."""

    def test_a_task_that_waits_for_a_quota_shows_no_ticket(self) -> None:
        assert packer().decide(scene(caps(tasks=1))).wait is None
        assert packer().decide(scene(caps(memory=5 * GIB))).wait is None

    def test_why_names_the_quota_as_the_reason(self) -> None:
        b = packer()
        found = of_task(b, scene(caps(tasks=1)), 3, {})
        assert found.refusal.reason is Reason.QUOTA
        begin(b, b.decide(scene(caps(tasks=1))))
        assert waiting(of_run(b, scene(caps(tasks=1)))) == "5 for the user's other tasks to end, because of the quota"

    def test_a_large_task_under_a_quota_is_bypassed_by_its_run_up_to_the_limit(self) -> None:
        both = brain([*tasks(1, "8GiB"), *tasks(6, "2GiB")], buffer="0GiB", bypass_limit=2, max_gpu_load=64.0)
        decision = both.decide(scene(caps(memory=10 * GIB), leases=(other_run(4),)))
        assert placed(decision) == [2, 3]


EVERYTHING = 1 << 59
"""More bytes than any machine has."""


def forged(**said: Any) -> Lease:
    """Return a lease file of Ben's that claims all of GPU 0 and of the RAM, with any load."""
    lease = lease_of({"GPU-0": EVERYTHING, HOST: EVERYTHING}, {}, {"GPU-0": 1e9, HOST: 1e9}, alone=True, uid=BEN)
    return replace(lease, **said)


def counted(quota: Caps, *leases: Lease) -> tuple[...]:
    """Return Ben's leases as they count for another user."""
    devices = [budget.device for budget in scene(NO_CAPS).budgets]
    return bounded(leases, ME, UserQuotas(users={BEN: quota}), devices)


def sums(leases: tuple[...]) -> dict[str, float]:
    """Return the GiB that count on each device."""
    keys = {key for lease in leases for key in lease.reserved}
    return {key: sum(lease.reserved.get(key, 0) for lease in leases) / GIB for key in sorted(keys)}


@fault(129)
class TestLeasesOfOtherUsers:
    def test_forged_lease_counts_up_to_the_device(self) -> None:
        (lease,) = counted(NO_CAPS, forged())
        assert (sums((lease,)), dict(lease.load)) == ({"GPU-0": 24.0, HOST: 256.0}, {"GPU-0": 1.0, HOST: 64.0})

    def test_lease_on_a_device_that_this_machine_does_not_have_counts_as_it_says(self) -> None:
        assert sums(counted(NO_CAPS, forged(reserved={"GPU-9": GIB}))) == {"GPU-9": 1.0}

    def test_forged_leases_count_up_to_the_quota_of_their_user_together(self) -> None:
        found = counted(caps(memory=4 * GIB, host_memory=8 * GIB), forged(), forged())
        assert sums(found) == {"GPU-0": 4.0, HOST: 8.0}
        assert [(lease.alone, dict(lease.load)) for lease in found[1:]] == [(False, {})]

    def test_leases_beyond_the_quota_of_tasks_count_for_nothing(self) -> None:
        found = counted(caps(tasks=2), *[forged(reserved={"GPU-0": GIB}) for _ in range(5)])
        assert sums(found) == {"GPU-0": 2.0}
        assert [lease.alone for lease in found] == [True, True, False, False, False]

    def test_leases_count_on_as_many_gpus_as_the_quota_says(self) -> None:
        found = counted(caps(gpus=1), forged(), forged(reserved={"GPU-1": EVERYTHING}, load={"GPU-1": 1.0}))
        assert sums(found) == {"GPU-0": 24.0, HOST: 256.0}
        assert dict(found[1].load) == {}

    def test_lease_within_the_quota_counts_as_it_is(self) -> None:
        lease = replace(other_run(4, BEN), used={"GPU-0": GIB}, since=5.0)
        assert counted(caps(gpus=1, memory=4 * GIB, host_memory=GIB, tasks=1), lease) == (lease,)

    def test_leases_of_this_user_count_as_they_are(self) -> None:
        lease = forged(uid=ME)
        assert bounded([lease], ME, UserQuotas(caps(memory=GIB)), []) == (lease,)

    def test_leases_on_two_nodes_count_by_themselves(self) -> None:
        devices = [one.device for name in ("a", "b") for one in node(name, gpu(0), host(cores=8))]
        theirs = [
            replace(lease_of({f"GPU-{name}-0": 2 * GIB, HOST: GIB}, load={HOST: 4.0}, uid=BEN), node=name)
            for name in ("a", "b")
        ]
        found = bounded(theirs, ME, UserQuotas(users={BEN: caps(memory=2 * GIB, tasks=1)}), devices)
        assert [(dict(one.reserved), dict(one.load)) for one in found] == [
            ({f"GPU-{name}-0": 2 * GIB, HOST: GIB}, {HOST: 4.0}) for name in ("a", "b")
        ]

    def test_memory_in_use_beyond_a_quota_stays_known(self) -> None:
        used = {"GPU-0": 3 * GIB}
        assert [dict(lease.used) for lease in counted(caps(tasks=0), forged(used=used))] == [used]

    @pytest.mark.parametrize(
        ("quota", "starts"),
        [
            (NO_CAPS, []),
            (Caps(memory=2 * GIB), [1, 2, 3, 4, 5, 6]),
            (Caps(host_memory=2 * GIB), []),
            (Caps(memory=2 * GIB, host_memory=4 * GIB), [1, 2, 3, 4, 5, 6]),
            (Caps(memory=22 * GIB, host_memory=4 * GIB), []),
            (Caps(tasks=0), [1, 2, 3, 4, 5, 6]),
        ],
        ids=["none", "of GPUs", "of RAM", "of both", "nearly a GPU", "no task"],
    )
    def test_unreadable_lease_keeps_only_what_the_quota_of_its_user_allows(
        self, quota: Caps, starts: list[int]
    ) -> None:
        """The quota may be on any GPU. What no quota limits is closed; tasks on GPUs start beside closed RAM."""
        nonsense = forged(reserved={}, load={}, alone=False, unreadable="ben (process 7)")
        seen = replace(scene(NO_CAPS), leases=counted(quota, nonsense))
        assert placed(packer().decide(seen)) == starts

    def test_unreadable_lease_gets_what_readable_ones_leave_of_the_quota(self) -> None:
        nonsense = forged(reserved={}, load={}, alone=False, unreadable="ben (process 7)")
        found = counted(caps(memory=6 * GIB, host_memory=GIB), nonsense, other_run(4, BEN))
        assert sums(found) == {"GPU-0": 6.0, "GPU-1": 2.0, HOST: 1.0}


class TestCappedDevices:
    def test_a_device_has_at_most_the_quota_beside_what_others_hold(self) -> None:
        leases = (other_run(3), other_run(5, uid=BEN))
        found = capped((gpu(0), gpu(1), host(total="256GiB")), caps(memory=8 * GIB), ME, leases)
        assert [budget.cap for budget in found] == [13 * GIB, 8 * GIB, None]

    def test_a_quota_above_the_device_or_its_budget_changes_nothing(self) -> None:
        small = replace(gpu(1), cap=4 * GIB)
        found = capped((gpu(0), small), caps(memory=20 * GIB), ME, (other_run(5, uid=BEN),))
        assert [budget.cap for budget in found] == [None, 4 * GIB]

    def test_a_quota_of_ram_bounds_the_host_alone(self) -> None:
        found = capped((gpu(0), host(total="256GiB")), caps(host_memory=32 * GIB), ME)
        assert [budget.cap for budget in found] == [None, 32 * GIB]
