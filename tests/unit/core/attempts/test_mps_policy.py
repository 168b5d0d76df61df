"""The decisions about MPS: thread shares, memory limits, tasks outside of it, and the words of its failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.attempts.mps_policy import CLIENT, FAULT, REFUSED, judged, what_failed
from scheduler.core.brain import Brain
from scheduler.core.control.messages import why
from scheduler.core.model import HOST, SHARED_OUT, Device, EstimateSource, Outcome, Placement, Purpose
from scheduler.core.reporting.run_history import RunHistory
from scheduler.units import GIB, MIB
from tests.support.builders import (
    brain,
    decide,
    exited,
    gpu,
    hold,
    host,
    place,
    resized,
    started,
    tasks,
    tell,
)

RAM = host("64GiB", cores=8)


def mps(*batches: Any, **said: Any) -> Brain:
    return brain(*batches, mps=True, **said)


def shares(on: Brain, *gpus: Any, **said: Any) -> list[int]:
    return [one.percentage for one in decide(on, *(gpus or (gpu(),)), RAM, **said).placements]


class TestShares:
    def test_a_task_gets_no_thread_share_without_mps(self) -> None:
        (one,) = decide(brain(tasks(1, "1GiB", thread_percentage=25)), gpu(), RAM).placements
        assert (one.percentage, one.fence) == (0, 0)

    def test_a_task_gets_all_threads_unless_its_row_says_less(self) -> None:
        assert shares(mps(tasks(1, "1GiB") + tasks(1, "1GiB", thread_percentage=25))) == [100, 25]

    def test_shared_threads_are_divided_by_all_tasks_and_unmanaged_processes_on_the_gpu(self) -> None:
        on = mps(tasks(3, "1GiB", thread_percentage=SHARED_OUT, cpus=0.1))
        assert shares(on) == [100, 50, 33]
        assert shares(on, leases=[hold("1GiB", key="GPU-0")]) == [50, 33, 25]

    def test_a_task_on_several_gpus_or_none_runs_outside_of_mps(self) -> None:
        assert shares(mps(tasks(1, "1GiB", gpus=2) + tasks(1, "1GiB", gpus=0)), gpu(0), gpu(1)) == [0, 0]


class TestFence:
    def test_the_memory_limit_is_the_reservation_in_whole_mib(self) -> None:
        (one,) = decide(mps(tasks(1, 3 * GIB + 1)), gpu(), RAM).placements
        assert (one.reservation["GPU-0"], one.fence) == (3 * GIB + 1, 3 * GIB)

    def test_memory_is_not_limited_without_a_fence(self) -> None:
        assert [one.fence for one in decide(mps(tasks(1, "1GiB"), fence=False), gpu(), RAM).placements] == [0]
        assert [one.fence for one in decide(mps(tasks(1), slots=2), gpu(), RAM).placements] == [0]

    @pytest.mark.parametrize(("fence", "now", "said"), [("3GiB", "3GiB", True), ("3GiB", "2GiB", False), (0, 1, False)])
    def test_an_attempt_is_fenced_while_its_reservation_is_its_memory_limit(
        self, fence: Any, now: Any, said: bool
    ) -> None:
        bytes_ = 3 * GIB if fence else 0
        history = RunHistory()
        reservation = {"GPU-0": 3 * GIB, HOST: 0}
        history.take(
            Placement(1, 1, Purpose.RUN, reservation, 1.0, EstimateSource.MEASURED, percentage=100, fence=bytes_), 1.0
        )
        history.take(resized(1, now, "settled", device="GPU-0"), 2.0)
        (attempt,) = history.tasks[1].attempts
        assert attempt.fenced is said


class TestClients:
    def test_a_gpu_takes_48_clients_of_all_runs_together(self) -> None:
        on = mps(tasks(50, "100MiB", host_memory="100MiB", cpus=0.01), max_gpu_load=1000.0)
        mine = decide(on, gpu(), RAM, leases=[hold("100MiB", key="GPU-0", cores=0)] * 8)
        assert len(mine.placements) == 40
        assert why(mine.refusals[0]) == "needs a place under MPS; GPU-0 has 48 tasks of at most 48"
        assert (
            len(
                decide(
                    mps(tasks(50, "100MiB", host_memory=0, cpus=0.01), max_gpu_load=1e3, max_clients=60), gpu(), RAM
                ).placements
            )
            == 50
        )

    def test_a_gpu_in_exclusive_mode_takes_several_tasks_only_under_mps(self) -> None:
        single = replace(gpu(), device=replace(gpu().device, single=True))
        assert isinstance(single.device, Device)
        assert len(decide(mps(tasks(3, "1GiB", cpus=0.1)), single, RAM).placements) == 3
        assert len(decide(brain(tasks(3, "1GiB", cpus=0.1)), single, RAM).placements) == 1


def placement(percentage: int) -> Placement:
    return Placement(
        1, 1, Purpose.RUN, {"GPU-0": GIB}, 1.0, EstimateSource.DECLARED, percentage=percentage, fence=1024 * MIB
    )


class TestBlame:
    @pytest.mark.parametrize("words", [REFUSED, FAULT])
    def test_a_failure_by_mps_is_a_loss_and_no_failure_of_the_task(self, words: str) -> None:
        ended = judged(exited(1, "failed", code=1, mps=words), placement(50), CLIENT)
        assert (ended.outcome, ended.mps) == (Outcome.LOST, words)
        assert "it starts again" in ended.reason

    def test_a_fault_outside_of_mps_is_a_failure_of_the_task(self) -> None:
        ended = judged(exited(1, "failed", code=1, mps=FAULT), placement(0), "")
        assert (ended.outcome, ended.mps) == (Outcome.FAILED, "")

    def test_an_attempt_that_ended_by_itself_records_whether_it_was_a_client(self) -> None:
        assert judged(exited(1), placement(50), CLIENT).mps == CLIENT
        assert judged(exited(1, "failed", code=1), placement(50), CLIENT).outcome is Outcome.FAILED

    def test_after_a_fault_a_task_runs_outside_of_mps_where_its_faults_reach_no_other_task(self) -> None:
        on = mps(tasks(2, "1GiB"))
        assert place(on, gpu(), RAM) == [1, 2]
        tell(on, exited(1, "lost", mps=FAULT), exited(2, "lost", mps=REFUSED))
        assert shares(on) == [0, 100]
        assert [task.faults for task in on.tasks.values()] == [1, 1]

    def test_after_a_fault_a_task_runs_alone_under_mps_where_gpus_take_mps_clients_only(self) -> None:
        on = mps(tasks(2, "1GiB", cpus=0.1), mps_alone=True)
        place(on, gpu(), RAM)
        tell(on, exited(1, "lost", mps=FAULT), exited(2, "lost", mps=FAULT))
        (one,) = decide(on, gpu(), RAM).placements
        assert (one.percentage, one.alone) == (100, True)

    def test_a_task_with_an_mps_fault_runs_outside_of_mps_in_all_later_attempts(self) -> None:
        on = mps(tasks(1, "1GiB", retries=1))
        place(on, gpu(), RAM)
        tell(on, exited(1, "lost", mps=FAULT))
        (again,) = decide(on, gpu(), RAM).placements
        tell(on, Placement(1, 2, again.purpose, again.reservation, 1.0, again.source), started(1, 2))
        tell(on, exited(1, "failed", 2, code=1))
        assert shares(on) == [0]


@pytest.mark.parametrize(
    ("words", "failed"),
    [
        ("RuntimeError: CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server", REFUSED),
        ("torch.AcceleratorError: CUDA error: MPS server is not ready to accept new MPS client requests", REFUSED),
        ("CUDA error: the hardware resources required to create MPS client have been exhausted", REFUSED),
        ("cudaErrorMpsRpcFailure", REFUSED),
        ("failed call to cuInit: CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED: unknown", REFUSED),
        ("cuda error 810", REFUSED),
        ("CUDA driver error: 808", REFUSED),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", FAULT),
        ("CUDA error: unspecified launch failure", FAULT),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", FAULT),
        ("CUDA error: device-side assert triggered", FAULT),
        ("ValueError: 810 samples, 805 labels", ""),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", ""),
        ("epoch 805/810", ""),
        ("", ""),
    ],
)
def test_failures_of_mps_are_recognised_by_their_messages(words: str, failed: str) -> None:
    assert what_failed(f"Traceback\n{words}\n") == failed
