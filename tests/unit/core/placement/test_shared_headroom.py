"""Tasks of known memory on one GPU share the headroom for their growth, since they do not all grow at once."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.app.run.options import RunOptions
from scheduler.app.run.options import rules as rules_of
from scheduler.core.brain import Brain
from scheduler.core.model import HOST, DeviceBudget, EstimateSource
from scheduler.core.profiling import estimator
from scheduler.core.profiling.profile_index import Peaks, Profile, ProfileIndex
from scheduler.core.profiling.task_class import TaskClass
from scheduler.runtime.settings import Settings
from scheduler.units import GIB, MIB
from tests.support.builders import brain, decide, exited, gpu, host, place, placed, resized, rules, started, tasks, tell

RAM = host("64GiB", cores=64)
SMALL = gpu(0, total="4000MiB")
PEAK = 1500 * MIB
OWN = estimator.with_margin(PEAK, rules())
"""The reservation with a margin of its own."""


def known(number: int, peak: int = PEAK, **said: Any) -> Brain:
    """Return a run of tasks of one class whose peak is known."""
    profile = Profile(parts={"0": Peaks([peak]), HOST: Peaks([GIB])}, earlier=True)
    made = brain(tasks(number, cpus=0.1), knowledge=ProfileIndex({"k": profile}), profile="auto", **said)
    for task in range(1, number + 1):
        made.assign(task, TaskClass("k", "train.py", probes=False))
    return made


def on_gpu(of: Brain, *machine: DeviceBudget) -> list[int]:
    """Place what fits, and return the bytes that are reserved on the GPU."""
    place(of, *machine)
    return [one.reservation["GPU-0"] for one in of.placements()]


class TestKnownTasks:
    def test_two_of_three_tasks_of_1500_mib_run_at_once_on_4000_mib(self) -> None:
        first, second = on_gpu(known(3), SMALL, RAM)
        assert first == OWN
        assert PEAK * 1.03 <= second < OWN

    def test_each_task_has_a_margin_of_its_own_if_the_user_chose_one(self) -> None:
        assert on_gpu(known(3, share_margins=False), SMALL, RAM) == [OWN]

    def test_headroom_on_a_gpu_grows_with_the_root_of_the_number_of_tasks(self) -> None:
        reserved = on_gpu(known(12, max_gpu_load=20.0), gpu(0), RAM)
        assert len(reserved) == 12
        above = sum(reserved) - len(reserved) * PEAK
        root = len(reserved) ** 0.5
        assert above == pytest.approx(256 * MIB + 0.1 * PEAK * root, abs=len(reserved) * 0.03 * PEAK)

    def test_a_task_that_starts_after_an_end_restores_the_headroom(self) -> None:
        made = known(3)
        place(made, SMALL, RAM)
        tell(made, started(1), started(2), exited(1))
        decision = decide(made, SMALL, RAM)
        (third,) = decision.placements
        here = {**made.placements()[0].reservation}["GPU-0"] + third.reservation["GPU-0"]
        assert here == pytest.approx(2 * PEAK + 256 * MIB + 0.1 * PEAK * 2**0.5, abs=2)

    def test_a_declared_need_has_no_margin_to_share(self) -> None:
        made = brain(tasks(1, "1500MiB", cpus=0.1))
        place(made, SMALL, RAM)
        assert made.known_peaks(made.placements()[0]) == {}

    def test_use_above_the_known_peak_is_not_counted_as_spare(self) -> None:
        made = known(3)
        place(made, SMALL, RAM)
        tell(made, started(1), started(2))
        in_use = {(1, 1): {"GPU-0": OWN, HOST: GIB}, (2, 1): {"GPU-0": PEAK, HOST: GIB}}
        decide(made, gpu(0, total="24GiB"), RAM, used=in_use)
        assert made.capacity.rooms["GPU-0"].spare == made.placements()[1].reservation["GPU-0"] - PEAK


class TestSettledTasks:
    def test_a_second_task_that_settles_keeps_less_above_its_peak(self) -> None:
        made = brain(tasks(2, cpus=0.1), profile="live")
        for task, key in ((1, "a"), (2, "b")):
            made.assign(task, TaskClass(key, f"{key}.py", probes=False))
            tell(made, placed(task, 8 * GIB, device="GPU-0", source=EstimateSource.MEASURED), started(task))
            made.task(task).peak = {"GPU-0": PEAK}  # type: ignore[union-attr]
            (placement,) = [one for one in made.placements() if one.task == task]
            beside = made.capacity.margins_beside(placement)
            cut = estimator.cut(placement, {"GPU-0": PEAK}, made.rules, beside)
            assert cut is not None
            assert (cut["GPU-0"] == OWN) is (task == 1)
            tell(made, resized(task, cut["GPU-0"], "settled", device="GPU-0"))


class TestSettings:
    def test_margins_are_shared_unless_the_user_names_one(self) -> None:
        assert rules_of(RunOptions(), Settings()).share_margins
        assert not rules_of(RunOptions(), Settings(source={"margin": "flag"})).share_margins

    def test_tasks_whose_limits_mps_enforces_keep_their_own_margins(self) -> None:
        assert not rules_of(RunOptions(), Settings(), mps=True).share_margins
