"""The paragraph of `why` for each reason of a refusal, from the decision that makes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.brain import Brain
from scheduler.core.control import why
from scheduler.core.control.messages import waits
from scheduler.core.events import Limited
from scheduler.core.model import NO_TASK, DeviceBudget, EstimateSource, UnmanagedUse
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.ports import Request
from scheduler.core.profiling.class_profile import Peaks, Profile
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.profiling.task_class import TaskClass
from scheduler.core.queue.start_gate import StartGate
from scheduler.units import GIB, MIB
from tests.support.builders import (
    Simulation,
    asked,
    brain,
    exited,
    gpu,
    hold,
    host,
    jobs,
    machine,
    node,
    place,
    slots,
    started,
    tasks,
    tell,
)

LAST = "bypassed 0 times, at most 50"
UNSEEN = "no ETA: it is not known how long the tasks there take"
SOON = "expected in about 1m00s, when task 1 ends"
FULL = "GPU-0 has 3.5GiB of 24.0GiB free (task 1 20.0GiB, buffer 512MiB)"
GPU = (gpu(), host())
UNLEASED, OTHERS, KEPT = "unmanaged memory", "other runs", "buffer 512MiB"


def paragraph(b: Brain, *budgets: DeviceBudget, task: int = 2, lasts: float | None = None, **said: Any) -> list[str]:
    """Return the parts of the answer once all tasks have started that can; `lasts` is the rest of the first, in s."""
    place(b, *budgets, **said)
    known = {} if lasts is None else {(1, 1): lasts}
    return waits(why.of_task(b, machine(*budgets, **said), task, known)).split("; ")


def of_kind(number: int, profile: Profile, **said: Any) -> Brain:
    b = brain(tasks(number, **said), knowledge=ProfileIndex({"k": profile}), profile="auto")
    for task in range(1, number + 1):
        b.assign(task, TaskClass("k", "train.py", probes=False))
    return b


PEAK = Profile({"0": Peaks([20 * GIB])})
SURE = Profile({"0": Peaks([20 * GIB] * 5)})


def unmanaged_process(calm: float = 1000.0) -> DeviceBudget:
    return replace(gpu(free="14GiB"), unmanaged=(UnmanagedUse(10 * GIB, "ben", 77, calm),))


def closed() -> Brain:
    """Return a run with a task behind one that was bypassed too often."""
    return brain(tasks(1, "20GiB") + tasks(1, "19GiB", priority=1) + tasks(1, "1GiB", priority=2), bypass_limit=0)


def test_why_gives_memory_and_when_it_is_expected_to_be_free() -> None:
    assert paragraph(brain(tasks(2, "20GiB")), *GPU, lasts=720) == [
        "waits for GPU memory",
        "needs 20.0GiB (declared)",
        FULL,
        "expected in about 12m00s, when task 1 ends",
        LAST,
    ]


def test_why_gives_a_known_peak_with_its_margin() -> None:
    assert paragraph(of_kind(2, PEAK), *GPU) == [
        "waits for GPU memory",
        "needs 22.2GiB (profile: peak 20.0GiB + 10% + 256MiB, or 20.6GiB if others on its GPU share this margin)",
        "GPU-0 has 1.2GiB of 24.0GiB free (task 1 22.2GiB, buffer 512MiB)",
        UNSEEN,
        LAST,
    ]


def test_why_says_that_a_task_needs_no_gpu() -> None:
    b = of_kind(2, Profile({"0": Peaks([0]), "host": Peaks([20 * GIB])}))
    assert paragraph(b, *GPU)[:3] == [
        "waits for host RAM",
        "needs no GPU, and 22.2GiB of host RAM (profile: peak 20.0GiB + 10% + 256MiB)",
        "host RAM has 1.2GiB of 24.0GiB free (task 1 22.2GiB, buffer 512MiB)",
    ]


def test_why_gives_the_smaller_margin_of_a_peak_that_was_measured_often() -> None:
    assert paragraph(of_kind(2, SURE), *GPU) == [
        "waits for GPU memory",
        "needs 20.7GiB (profile: peak 20.0GiB + 3% + 128MiB, or 20.6GiB if others on its GPU share this margin)",
        "GPU-0 has 2.8GiB of 24.0GiB free (task 1 20.7GiB, buffer 512MiB)",
        UNSEEN,
        LAST,
    ]


def test_why_of_an_expected_need_gives_no_more_than_a_device_has() -> None:
    b = brain(tasks(4), profile="auto")
    for task in range(1, 5):
        b.assign(task, TaskClass(f"class {task}", "train.py", probes=False))
    for task, peak in ((1, 5), (2, 22)):
        place(b, *GPU)
        tell(b, started(task), replace(exited(task), peak={"GPU-0": peak * GIB}))
    said = paragraph(b, *GPU, task=4)
    assert said[1] == (
        "its memory is not known yet: 23.5GiB are reserved for it until it has settled (2 known task classes show "
        "that 85% of such tasks need no more). It starts with 22.7GiB (enough for 60%) where every other such task "
        "has used more than a CUDA context. If it then needs more, it runs out of memory in its first seconds, and "
        "starts again"
    )


def test_why_separates_unmanaged_memory_from_what_is_kept_for_its_growth() -> None:
    said = paragraph(brain(tasks(2, "10GiB")), unmanaged_process(), host())
    used = "task 1 10.0GiB, unmanaged processes 10.0GiB, kept for the growth of unmanaged memory 2.5GiB, buffer 512MiB"
    assert said[2] == f"GPU-0 has 1.0GiB of 24.0GiB free ({used})"


def test_why_of_a_task_with_unknown_memory_gives_the_free_memory_it_starts_with() -> None:
    assert paragraph(brain(tasks(2)), *GPU) == [
        "waits for a GPU with at least 12.0GiB free, because its memory is not known yet",
        "GPU-0 has 0MiB of 24.0GiB free (task 1 23.5GiB, buffer 512MiB)",
        UNSEEN,
        LAST,
    ]


def test_why_expects_memory_at_any_moment_from_a_task_that_runs_longer_than_expected() -> None:
    assert paragraph(brain(tasks(2, "20GiB")), *GPU, lasts=0) == [
        "waits for GPU memory",
        "needs 20.0GiB (declared)",
        FULL,
        "expected at any moment: task 1 has run as long as expected",
        LAST,
    ]


def test_why_of_a_task_on_several_gpus_gives_the_memory_of_each() -> None:
    assert paragraph(brain(tasks(1, "20GiB") + tasks(1, "20GiB", gpus=2)), gpu(0), gpu(1), host(), lasts=60) == [
        "waits for GPU memory",
        "needs 20.0GiB on each of its GPUs (declared)",
        FULL,
        "GPU-1 has 23.5GiB of 24.0GiB free (buffer 512MiB)",
        SOON,
        LAST,
    ]


def test_why_gives_host_ram_beside_other_tasks() -> None:
    assert paragraph(brain(tasks(2, "10GiB")), host(free="18GiB"), leases=[hold("2GiB")]) == [
        "waits for host RAM",
        "needs 10.0GiB (declared)",
        f"host RAM has 5.5GiB of 24.0GiB free (task 1 10.0GiB, {UNLEASED} 6.0GiB, {OTHERS} 2.0GiB, {KEPT})",
        UNSEEN,
        LAST,
    ]


def test_why_of_an_exclusive_task_counts_the_running_tasks() -> None:
    assert paragraph(brain(tasks(1, "1GiB") + tasks(1, "1GiB", exclusive=True)), host(), lasts=60) == [
        "must have host RAM alone, or a task there must",
        "1 task there now",
        "needs 1.0GiB (declared)",
        "host RAM has 22.5GiB of 24.0GiB free (task 1 1.0GiB, buffer 512MiB)",
        SOON,
        LAST,
    ]


def test_why_gives_needed_and_free_cores() -> None:
    assert paragraph(brain(tasks(2, "1GiB", cpus=3)), host(), lasts=60) == [
        "needs 3 cores",
        "host has 1 free",
        "needs 1.0GiB (declared)",
        "host RAM has 22.5GiB of 24.0GiB free (task 1 1.0GiB, buffer 512MiB)",
        SOON,
        LAST,
    ]


def test_why_gives_the_load_of_a_gpu() -> None:
    assert paragraph(brain(tasks(2, "1GiB"), max_gpu_load=0.6), *GPU, lasts=60) == [
        "needs 50% of the load of a GPU",
        "GPU-0 has 10% free",
        "needs 1.0GiB (declared)",
        "GPU-0 has 22.5GiB of 24.0GiB free (task 1 1.0GiB, buffer 512MiB)",
        SOON,
        LAST,
    ]


def test_why_names_counted_slots_that_are_taken() -> None:
    assert paragraph(brain(tasks(2), slots=1), host(), lasts=60) == [
        "needs a slot",
        "host is taken",
        SOON,
        LAST,
    ]


def test_why_names_a_named_slot_that_is_taken() -> None:
    assert paragraph(brain(tasks(2), slots=1), *slots("a"), host(), lasts=60) == [
        "needs a slot",
        "slot a is taken",
        SOON,
        LAST,
    ]


def test_why_names_the_limit_of_tasks_of_the_run() -> None:
    assert paragraph(brain(tasks(2, "1GiB"), jobs=1), host()) == [
        "may not start: 1 task of this run may run at once (-j 1)",
        LAST,
    ]


def test_why_names_the_pause_of_a_run() -> None:
    b = brain(tasks(2, "1GiB"), jobs=0)
    shut = StartGate().look(b.rules, 0.0).refusal
    (answer,) = why.answers(b, machine(host()), [2], {}, shut)
    assert answer.says.startswith("may not start: the run is paused (-j 0); scheduler set -j N continues it")


def test_why_names_a_device_that_is_disabled() -> None:
    assert paragraph(tell(brain(tasks(2, "1GiB")), Limited(closed=("GPU-0",))), *GPU) == [
        "may not start on GPU-0: disabled for this run (scheduler devices enable)",
        LAST,
    ]


def test_why_gives_the_reason_of_a_closed_device() -> None:
    assert paragraph(brain(tasks(2, "1GiB")), replace(gpu(), closed="it does not answer"), host()) == [
        "may not start on GPU-0: it does not answer",
        "needs 1.0GiB (declared)",
        LAST,
    ]


def test_why_names_new_unmanaged_memory_and_its_owner() -> None:
    assert paragraph(brain(tasks(2, "1GiB")), unmanaged_process(calm=30), host()) == [
        "may not start on GPU-0 for another 1m31s: 10.0GiB of unmanaged memory of ben there is new or has grown",
        "needs 1.0GiB (declared)",
        LAST,
    ]


def test_why_says_that_a_run_starts_no_more_tasks() -> None:
    assert paragraph(tell(brain(tasks(2, "1GiB")), asked("drain")), host()) == [
        "does not start: the run starts no more tasks",
        "scheduler resume continues it once it has ended",
        LAST,
    ]


def test_why_names_the_task_that_was_bypassed_too_often() -> None:
    assert paragraph(closed(), *GPU, task=3) == [
        "waits behind task 2 of this run, which was bypassed too often: GPU-0 is kept for it",
        "needs 1.0GiB (declared)",
        FULL,
        UNSEEN,
    ]


def test_why_of_a_task_far_back_in_the_queue_says_so() -> None:
    assert paragraph(brain(tasks(2), profile="auto"), *GPU) == [
        "is far back in the queue and was not examined yet",
        LAST,
    ]


def test_why_of_a_task_that_fits_says_that_it_starts_in_the_next_pass() -> None:
    found = why.of_task(brain(tasks(2, "1GiB")), machine(host()), 2, {})
    assert waits(found).startswith("fits and starts in the next pass; needs 1.0GiB")


def test_why_names_a_full_disk_as_the_reason_of_all_tasks() -> None:
    (one,) = why.answers(
        brain(tasks(2, "1GiB")),
        machine(host()),
        [2],
        {},
        Refusal(NO_TASK, Reason.FULL_DISK, text="the disk of /runs is full"),
    )
    assert one.says.startswith("does not start: the disk of /runs is full")


def test_why_answers_only_for_tasks_that_wait() -> None:
    b = brain(tasks(2, "20GiB"))
    place(b, *GPU)
    assert [one.tasks for one in why.answers(b, machine(*GPU), [1, 2, 7], {})] == [(2,)]


def test_why_of_a_run_counts_waiting_tasks_by_reason() -> None:
    b = brain(tasks(3, "20GiB", host_memory=0) + tasks(4, "1GiB", gpus=0, cpus=3) + tasks(2, "30GiB", gpus=0, cpus=0.1))
    place(b, gpu(), host("64GiB", free="40GiB"))
    (one,) = why.answers(b, machine(gpu(), host("64GiB", free="40GiB")), [], {})
    assert one.says == "3 for cores, 2 for GPU memory, 1 for host RAM"
    assert one.facts == {"reasons": {"memory": 2, "load@host": 3, "memory@host": 1}}


def test_a_question_to_a_scheduler_changes_nothing_of_its_run() -> None:
    """The run goes on while it is asked, and its tasks end as they would without the question."""
    told: list[str] = []
    run = Simulation(
        jobs(6, peak="10GiB", memory="10GiB"), host(), requests=[(1e9 + 1, Request("why", (6,), name="q"))]
    )
    run.loop.ports = replace(run.loop.ports, answer=lambda _, answers: told.extend(one.says for one in answers))
    run.run()
    assert run.states == {"succeeded": 6}
    assert not run.brain.draining
    assert told[0].startswith("waits for host RAM; needs 10.0GiB (declared); host RAM has 3.5GiB of 24.0GiB free")


WANTS = why.RequestedResources(GIB, GIB, 1, EstimateSource.DECLARED)
OTHERS_KINDS = [
    (Refusal(2, Reason.PROBING, wanted=1), ["waits for the probe of task 1, which is of the same class"]),
    (Refusal(2, Reason.WATCHED, wanted=1), ["waits until the memory of task 1, which is similar, was measured"]),
    (Refusal(2, Reason.GPUS, wanted=4, total=2), ["needs 4 GPUs", "2 of this run's can be used"]),
    (Refusal(2, Reason.DEVICE, "GPU 7"), ["needs GPU 7, which is not a device of this run"]),
    (
        Refusal(2, Reason.AVOIDED, "GPU 0", room=2 * GIB, text="ben"),
        ["may not start on GPU 0: unmanaged processes of ben use 2.0GiB there"],
    ),
    (
        Refusal(2, Reason.NEVER, "GPU 0", 30 * GIB, 0, 24 * GIB),
        ["needs 30.0GiB", "the largest device (GPU 0) has 24.0GiB"],
    ),
]


@pytest.mark.parametrize(("refusal", "head"), OTHERS_KINDS, ids=[refusal.reason for refusal, _ in OTHERS_KINDS])
def test_reasons_without_a_device_have_their_own_paragraph(refusal: Refusal, head: list[str]) -> None:
    said = waits(why.WaitReason(refusal, WANTS, at_most=50)).split("; ")
    assert said == [*head, "needs 1.0GiB (declared)", LAST]


def test_why_of_a_run_that_only_probes_says_so() -> None:
    said = waits(why.WaitReason(Refusal(2, Reason.LEARNED), WANTS, at_most=50)).split("; ")
    assert said == ["does not start: this run only learns profiles", LAST]


def test_why_names_host_ram_as_the_limit_beside_free_gpus() -> None:
    stand = why.DeviceState("host", 0, 64 * GIB, (why.HolderUse("other runs", 60 * GIB),))
    found = why.WaitReason(Refusal(2, Reason.SPENT, "host", 512 * MIB, total=64 * GIB), WANTS, (stand,), at_most=50)
    assert waits(found).split("; ") == [
        "needs an unknown amount of host RAM and starts with at least 512MiB free",
        "host RAM has 0MiB of 64.0GiB free",
        "needs 1.0GiB (declared)",
        "host RAM has 0MiB of 64.0GiB free (other runs 60.0GiB)",
        UNSEEN,
        LAST,
    ]


def test_why_names_a_gpu_with_all_its_mps_clients() -> None:
    found = why.WaitReason(Refusal(2, Reason.CLIENTS, "GPU 0", 1, 48, 48), WANTS, at_most=50, room_in=60.0, after=1)
    assert waits(found).split("; ") == [
        "needs a place under MPS",
        "GPU 0 has 48 tasks of at most 48",
        "needs 1.0GiB (declared)",
        SOON,
        LAST,
    ]


def test_a_task_without_gpus_names_the_hosts_of_its_nodes_and_what_holds_them() -> None:
    nodes = (*node("a", host("24GiB")), *node("b", host("24GiB")))
    theirs = replace(hold("4GiB"), node="b")
    b = brain(tasks(2, "18GiB", gpus=0, node="b") + tasks(1, "4GiB", gpus=0))
    said = paragraph(b, *nodes, leases=(theirs,))
    assert said[0].endswith("waits for host RAM")
    assert said[2] == "b host RAM has 1.5GiB of 24.0GiB free (task 1 18.0GiB, other runs 4.0GiB, buffer 512MiB)"
    assert why.of_run(b, machine(*nodes, leases=(theirs,))) == {"memory@host": 1}
    soon = paragraph(b, *nodes, leases=(theirs,), lasts=60.0)
    assert "expected in about 1m00s, when task 1 ends" in soon
