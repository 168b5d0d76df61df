"""The procedure of the older tool: each task of a batch is profiled alone, then the batch is packed by its peaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduler.core.brain import Brain
from scheduler.core.control import why
from scheduler.core.model import HOST, DeviceBudget, EstimateSource, Outcome, Placement, Purpose
from scheduler.core.placement.refusal import Reason
from tests.e2e.older_tools.contracts import contract
from tests.support.builders import (
    asked,
    brain,
    decide,
    exited,
    gpu,
    hold,
    host,
    jobs,
    machine,
    place,
    reasons,
    simulate,
    size,
    started,
    tasks,
    tell,
    terms,
)


def sequential(*batches: Sequence[object], **said: object) -> Brain:
    """Make a Brain that goes by the older tool's procedure."""
    return brain(*batches, policy="batches", **said)  # type: ignore[arg-type]


def profile(b: Brain, task: int, peak: str, *there: DeviceBudget, key: str = HOST) -> None:
    """Have a task placed for its profile run, which shows this peak."""
    (one,) = decide(b, *there).placements
    assert (one.task, one.purpose, one.alone) == (task, Purpose.PROBE, True)
    tell(b, one, started(task), replace(exited(task), peak={key: size(peak)}))


class TestProfileRuns:
    def test_tasks_are_profiled_one_after_another_by_priority(self) -> None:
        b = sequential([terms(priority=priority, epochs=9) for priority in (3, 1, 2)])
        for task in (2, 3, 1):
            profile(b, task, "1GiB")
        assert place(b) == [2, 3, 1]

    @contract("S3-20")
    def test_equal_tasks_are_each_profiled(self) -> None:
        b = sequential(tasks(2, epochs=9))
        profile(b, 1, "1GiB")
        profile(b, 2, "2GiB")
        assert [p.reservation[HOST] for p in decide(b).placements] == [size("1GiB"), size("2GiB")]

    @contract("S3-20")
    def test_other_tasks_of_the_batch_wait_for_the_profile_run(self) -> None:
        b = sequential(tasks(3, epochs=9))
        assert place(b) == [1]
        assert reasons(b) == {2: Reason.PROFILING}
        assert why.of_run(b, machine()) == {Reason.PROFILING: 2}

    def test_a_task_whose_profile_run_fails_is_not_run(self) -> None:
        b = sequential(tasks(2, epochs=9))
        tell(b, *decide(b).placements, started(1), exited(1, "failed"))
        profile(b, 2, "1GiB")
        assert place(b) == [2]

    def test_a_task_is_profiled_again_after_it_ran_out_of_memory_there(self) -> None:
        b = sequential(tasks(1, epochs=9))
        tell(b, *decide(b).placements, started(1), exited(1, str(Outcome.OOM), peak="1GiB"))
        (one,) = decide(b).placements
        assert one.purpose is Purpose.PROBE
        assert one.reservation[HOST] > size("1GiB")

    def test_profile_runs_of_a_task_that_runs_again_are_not_repeated(self) -> None:
        b = sequential(tasks(1, epochs=9, retries=1))
        profile(b, 1, "1GiB")
        tell(b, *decide(b).placements, started(1, 2), exited(1, "failed", 2))
        assert decide(b).placements[0].purpose is Purpose.RUN


class TestPacking:
    def profiled(self, *peaks: str, there: Sequence[DeviceBudget] = (), **said: object) -> Brain:
        """Make a batch whose tasks were profiled on the host, or on the first GPU."""
        b = sequential(tasks(len(peaks), epochs=9, **said))
        key = there[0].device.key if there else HOST
        for task, peak in enumerate(peaks, 1):
            profile(b, task, peak, *there, key=key)
        return b

    def test_tasks_start_while_peak_plus_buffer_is_free(self) -> None:
        b = self.profiled("8GiB", "8GiB", "7GiB")
        assert [p.task for p in decide(b, host("24GiB")).placements] == [1, 2, 3]
        assert [p.task for p in decide(b, host("23519MiB")).placements] == [1, 2], "the buffer is 512 MiB per device"

    @contract("S3-22")
    def test_a_task_that_does_not_fit_holds_up_smaller_ones_behind_it(self) -> None:
        b = self.profiled("10GiB", "14GiB", "1GiB")
        assert place(b) == [1]
        assert reasons(b) == {2: Reason.MEMORY}

    @contract("S3-22")
    def test_peaks_get_no_margin(self) -> None:
        b = self.profiled("10GiB", "1GiB")
        first, second = decide(b).placements
        assert (first.reservation[HOST], second.reservation[HOST]) == (size("10GiB"), size("1GiB"))
        assert first.source is EstimateSource.PROBE

    def test_neither_load_nor_cores_limit_how_many_run(self) -> None:
        b = self.profiled(*["1GiB"] * 12)
        assert len(decide(b, host("24GiB", cores=2)).placements) == 12

    def test_declared_memory_counts_instead_of_the_peak(self) -> None:
        b = self.profiled("1GiB", memory="3GiB")
        assert decide(b).placements[0].reservation[HOST] == size("3GiB")

    @contract("S3-22")
    def test_only_the_first_gpu_is_used(self) -> None:
        there = (gpu(0), gpu(1), host())
        b = self.profiled("20GiB", "20GiB", there=there)
        assert [p.gpus for p in decide(b, *there).placements] == [("GPU-0",)]

    def test_the_gpu_that_a_row_names_is_the_first_for_it(self) -> None:
        there = (gpu(0), gpu(1), host())
        b = sequential([terms(epochs=9, device="GPU-1")])
        assert [p.gpus for p in decide(b, *there).placements] == [("GPU-1",)]

    def test_a_gpu_that_a_task_never_used_is_not_reserved(self) -> None:
        there = (gpu(0), host())
        b = self.profiled("0MiB", "0MiB", there=there)
        assert [p.reservation["GPU-0"] for p in decide(b, *there).placements] == [0, 0]

    def test_j_limits_how_many_run(self) -> None:
        b = sequential(tasks(3, epochs=9), jobs=2)
        for task in (1, 2, 3):
            profile(b, task, "1GiB")
        assert place(b) == [1, 2]
        assert reasons(b) == {3: Reason.JOBS}

    def test_another_scheduler_s_reservation_leaves_less(self) -> None:
        b = self.profiled("10GiB")
        assert decide(b, leases=[hold("10GiB")]).placements
        assert not decide(b, leases=[hold("14GiB")]).placements


class TestRefused:
    def test_a_task_that_fits_nowhere_is_returned_as_impossible(self) -> None:
        b = sequential([*tasks(1, "99GiB"), *tasks(1, "1GiB")])
        decision = decide(b)
        assert [(one.task, one.reason.is_final) for one in decision.impossible] == [(1, True)]

    def test_a_preferred_gpu_comes_first(self) -> None:
        b = sequential(tasks(1, "1GiB", gpus=1, prefer="GPU-1"))
        (one,) = decide(b, gpu(0), gpu(1), host()).placements
        assert one.gpus == ("GPU-1",)


class TestBatches:
    @contract("S3-16")
    def test_a_batch_waits_until_all_of_the_batch_before_has_ended(self) -> None:
        b = sequential(tasks(2, epochs=9), tasks(1, epochs=9, priority=-5))
        for task in (1, 2):
            profile(b, task, "1GiB")
        assert place(b) == [1, 2]
        assert reasons(b) == {3: Reason.LATER_BATCH}
        tell(b, exited(1, attempt=2))
        assert place(b) == []
        tell(b, exited(2, attempt=2))
        assert place(b) == [3]

    def test_a_held_task_keeps_no_batch_waiting(self) -> None:
        b = sequential(tasks(1, epochs=9), tasks(1, epochs=9))
        tell(b, asked("hold", 1))
        assert place(b) == [2]


class TestWholeRuns:
    @pytest.mark.parametrize("num", [2, 20])
    def test_every_attempt_keeps_to_the_procedure(self, num: int) -> None:
        given = [job for peak in ("3GiB", "9GiB", "1GiB", "11GiB", "2GiB") for job in jobs(1, 60, peak, epochs=6)]
        run = simulate(given, policy="batches", num=num)
        assert run.states == {"succeeded": 5}
        order = [(e.task, e.purpose) for e in run.events if isinstance(e, Placement)]
        expected: list[tuple[int, Purpose]] = []
        for first in range(1, 6, num):
            batch = range(first, min(first + num, 6))
            expected += [(task, Purpose.PROBE) for task in batch] + [(task, Purpose.RUN) for task in batch]
        assert order == expected

    def test_a_run_that_grows_beyond_its_profile_run_is_tried_again(self) -> None:
        late = jobs(1, 60, "20GiB", late=True, epochs=10) + jobs(1, 60, "10GiB", epochs=10)
        run = simulate(late, policy="batches")
        assert run.states == {"succeeded": 2}
