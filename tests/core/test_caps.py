"""What one user may hold of a machine: decided with everything else, over all of the user's runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scheduler.core.brain import Brain
from scheduler.core.explain import waiting, why
from scheduler.core.house import Caps
from scheduler.core.model import HOST, Budget, Decision, Hold, Machine
from scheduler.core.reasons import of_run, of_task
from scheduler.units import GIB
from tests.builders import brain, event_of, gpu, host, machine, slots, tasks, tell

ME, BEN = 1000, 2000
FILE = "[caps] in /etc/machine.toml"


def caps(**said: int) -> Caps:
    return Caps(**said, source=FILE)


def scene(limits: Caps, *budgets: Budget, holds: tuple[Hold, ...] = ()) -> Machine:
    """Two GPUs of 24 GiB and much RAM."""
    here = budgets or (gpu(0), gpu(1), host(total="256GiB", cores=64))
    return replace(machine(*here, holds=holds), uid=ME, caps=limits)


def other_run(memory: int, uid: int = ME, device: str = "GPU-0") -> Hold:
    """A lease of another run; nothing of it is taken yet."""
    return Hold({device: memory * GIB, HOST: GIB}, {}, {HOST: 0.0}, uid=uid)


def packer(number: int = 6, memory: str | None = "4GiB", **said: Any) -> Brain:
    return brain(tasks(number, memory, **said), buffer="0GiB", max_gpu_load=64.0)


def placed(decision: Decision) -> list[int]:
    return [placement.task for placement in decision.placements]


def begin(b: Brain, decision: Decision) -> None:
    tell(b, [event_of(placement) for placement in decision.placements])


def words(decision: Decision) -> list[str]:
    return [why(refusal) for refusal in (*decision.refusals, *decision.impossible)]


class TestTasks:
    def test_no_more_run_than_that(self) -> None:
        decision = packer().decide(scene(caps(tasks=2)))
        assert placed(decision) == [1, 2]
        assert words(decision) == [f"may not start, and its user holds 2 tasks of the 2 that {FILE} allows"]

    def test_other_runs_of_the_user_count_and_other_users_do_not(self) -> None:
        holds = (other_run(1), other_run(1, BEN), other_run(1, BEN))
        assert placed(packer().decide(scene(caps(tasks=2), holds=holds))) == [1]

    def test_what_runs_already_counts(self) -> None:
        b = packer()
        here = scene(caps(tasks=3))
        begin(b, b.decide(scene(caps(tasks=2))))
        assert placed(b.decide(here)) == [3]

    def test_a_cap_that_is_raised_counts_at_once_though_nothing_else_has_changed(self) -> None:
        b = packer()
        assert placed(b.decide(scene(caps(tasks=1)))) == [1]
        assert placed(b.decide(scene(caps(tasks=2)))) == [1, 2]

    def test_one_that_was_lowered_lets_run_what_runs(self) -> None:
        b = packer()
        begin(b, b.decide(scene(caps(tasks=4))))
        assert placed(b.decide(scene(caps(tasks=2)))) == []


class TestMemory:
    def test_no_more_is_promised_than_that(self) -> None:
        decision = packer().decide(scene(caps(memory=10 * GIB)))
        assert placed(decision) == [1, 2]
        assert words(decision)[0] == (
            f"wants 4.0GiB of GPU memory, and its user holds 8.0GiB of GPU memory of the 10.0GiB that {FILE} allows"
        )

    def test_over_all_runs_and_gpus(self) -> None:
        holds = (other_run(4, device="GPU-1"),)
        assert placed(packer().decide(scene(caps(memory=10 * GIB), holds=holds))) == [1]

    def test_a_smaller_task_starts_beside_one_that_may_not(self) -> None:
        both = brain([*tasks(1, "8GiB"), *tasks(2, "2GiB")], buffer="0GiB", max_gpu_load=64.0)
        assert placed(both.decide(scene(caps(memory=10 * GIB), holds=(other_run(6),)))) == [2, 3]

    def test_ram_beside_gpus_has_a_cap_of_its_own(self) -> None:
        with_ram = brain(tasks(4, "1GiB", host_memory="8GiB"), buffer="0GiB", max_gpu_load=64.0)
        decision = with_ram.decide(scene(caps(host_memory=20 * GIB)))
        assert placed(decision) == [1, 2]
        assert "wants 8.0GiB of host RAM" in words(decision)[0]

    def test_on_the_host_too(self) -> None:
        on_host = brain(tasks(4, "4GiB"), buffer="0GiB")
        assert placed(on_host.decide(scene(caps(host_memory=9 * GIB), host(cores=64)))) == [1, 2]

    def test_an_unknown_one_is_promised_what_is_left(self) -> None:
        decision = packer(1, None).decide(scene(caps(memory=10 * GIB)))
        assert [dict(one.promise)["GPU-0"] for one in decision.placements] == [10 * GIB]

    def test_but_not_a_rest_beside_others_of_its_user(self) -> None:
        decision = packer(1, None).decide(scene(caps(memory=10 * GIB), holds=(other_run(4),)))
        assert placed(decision) == []

    def test_what_can_never_be_is_refused(self) -> None:
        decision = packer(1, "12GiB").decide(scene(caps(memory=10 * GIB)))
        assert [refusal.reason for refusal in decision.impossible] == ["never"]
        assert words(decision) == [
            f"wants 12.0GiB of GPU memory, and a user may never hold more than the 10.0GiB that {FILE} allows"
        ]


class TestGpus:
    def test_no_more_are_used_than_that(self) -> None:
        decision = packer(12).decide(scene(caps(gpus=1)))
        assert {key for one in decision.placements for key in one.gpus} == {"GPU-0"}
        assert placed(decision) == [1, 2, 3, 4, 5, 6]
        assert words(decision)[0] == f"wants 1 GPU, and its user holds 1 GPU of the 1 that {FILE} allows" or (
            "GPU-0 has room for" in words(decision)[0]
        )

    def test_those_that_the_user_has_anyway(self) -> None:
        decision = packer(1).decide(scene(caps(gpus=1), holds=(other_run(4, device="GPU-1"),)))
        assert [one.gpus for one in decision.placements] == [("GPU-1",)]

    def test_a_task_on_two_goes_where_the_user_is(self) -> None:
        three = (gpu(0), gpu(1), gpu(2), host(total="256GiB", cores=64))
        pair = brain(tasks(1, "2GiB", gpus=2), buffer="0GiB")
        decision = pair.decide(scene(caps(gpus=2), *three, holds=(other_run(4, device="GPU-2"),)))
        assert sorted(decision.placements[0].gpus) == ["GPU-0", "GPU-2"]

    def test_more_than_one_may_ever_have_is_refused(self) -> None:
        decision = brain(tasks(1, "2GiB", gpus=2)).decide(scene(caps(gpus=1)))
        assert words(decision) == [f"wants 2 GPUs, and a user may never hold more than the 1 that {FILE} allows"]


class TestSlots:
    def test_caps_hold_for_slots_as_well(self) -> None:
        here = (*slots("0", "1"), gpu(0), gpu(1), host(total="256GiB", cores=64))
        assert placed(brain(tasks(4)).decide(scene(caps(tasks=1), *here))) == [1]
        assert placed(brain(tasks(4, "4GiB")).decide(scene(caps(gpus=1), *here))) == [1]


class TestWaiting:
    """Whoever waits for his own cap is in nobody's way."""

    def test_it_leaves_no_ticket(self) -> None:
        assert packer().decide(scene(caps(tasks=1))).wait is None
        assert packer().decide(scene(caps(memory=5 * GIB))).wait is None

    def test_why_says_so(self) -> None:
        b = packer()
        found = of_task(b, scene(caps(tasks=1)), 3, {})
        assert found.refusal.reason == "cap"
        begin(b, b.decide(scene(caps(tasks=1))))
        assert waiting(of_run(b, scene(caps(tasks=1)))) == "5 for the user's other tasks to end, because of caps"

    def test_a_large_one_is_not_overtaken_for_ever_by_small_ones_of_its_run(self) -> None:
        both = brain([*tasks(1, "8GiB"), *tasks(6, "2GiB")], buffer="0GiB", overtakes=2, max_gpu_load=64.0)
        decision = both.decide(scene(caps(memory=10 * GIB), holds=(other_run(4),)))
        assert placed(decision) == [2, 3]
