"""Why a task waits: the exact paragraph for each kind of refusal, from the decision that makes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core import reasons
from scheduler.core.brain import Brain
from scheduler.core.events import Limited
from scheduler.core.explain import waits
from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Knowledge, Peaks, Profile
from scheduler.core.model import Budget, Foreign, KnownBy, Refusal
from scheduler.core.ports import Request
from scheduler.units import GIB
from tests.builders import Simulation, asked, brain, gpu, hold, host, jobs, machine, place, slots, tasks, tell

LAST = "0 tasks behind it were started before it, at most 50 may be"
UNSEEN = "nobody knows when there will be room: how long those take that run there was never seen"
SOON = "next room in about 1m00s, when task 1 ends"
FULL = "GPU-0 has 3.5GiB free of 24.0GiB because of task 1 20.0GiB, the buffer 512MiB"
GPU = (gpu(), host())
UNLEASED, OTHERS, KEPT = "what runs without the scheduler", "other runs", "the buffer 512MiB"


def paragraph(b: Brain, *budgets: Budget, task: int = 2, lasts: float | None = None, **said: Any) -> list[str]:
    """Why a task waits once everything has started that could; the first task still takes so long."""
    place(b, *budgets, **said)
    known = {} if lasts is None else {(1, 1): lasts}
    return waits(reasons.of_task(b, machine(*budgets, **said), task, known)).split("; ")


def of_kind(number: int, profile: Profile, **said: Any) -> Brain:
    b = brain(tasks(number, **said), knowledge=Knowledge({"k": profile}), profile="auto")
    for task in range(1, number + 1):
        b.assign(task, Kind("k", "train.py", probes=False))
    return b


PEAK = Profile({"0": Peaks([20 * GIB])})
SURE = Profile({"0": Peaks([20 * GIB] * 5)})


def stranger(calm: float = 1000.0) -> Budget:
    return replace(gpu(free="14GiB"), foreign=(Foreign(10 * GIB, "ben", 77, calm),))


def closed() -> Brain:
    """A task behind one that was overtaken too often."""
    return brain(tasks(1, "20GiB") + tasks(1, "19GiB", priority=1) + tasks(1, "1GiB", priority=2), overtakes=0)


def test_memory_and_when_there_will_be_room() -> None:
    assert paragraph(brain(tasks(2, "20GiB")), *GPU, lasts=720) == [
        "waits for GPU memory",
        "needs 20.0GiB (as its row says)",
        FULL,
        "next room in about 12m00s, when task 1 ends",
        LAST,
    ]


def test_a_known_peak() -> None:
    assert paragraph(of_kind(2, PEAK), *GPU) == [
        "waits for GPU memory",
        "needs 22.2GiB (peak 20.0GiB + 10% + 256MiB, known by earlier runs of its kind)",
        "GPU-0 has 1.2GiB free of 24.0GiB because of task 1 22.2GiB, the buffer 512MiB",
        UNSEEN,
        LAST,
    ]


def test_a_known_peak_that_was_seen_often() -> None:
    assert paragraph(of_kind(2, SURE), *GPU) == [
        "waits for GPU memory",
        "needs 20.7GiB (peak 20.0GiB + 3% + 128MiB, known by earlier runs of its kind)",
        "GPU-0 has 2.8GiB free of 24.0GiB because of task 1 20.7GiB, the buffer 512MiB",
        UNSEEN,
        LAST,
    ]


def test_one_of_which_nothing_is_known() -> None:
    assert paragraph(brain(tasks(2)), *GPU) == [
        "waits for a GPU to learn on: nobody knows what it needs, so it starts where 12.0GiB are free",
        "GPU-0 has 0MiB free of 24.0GiB because of task 1 23.5GiB, the buffer 512MiB",
        UNSEEN,
        LAST,
    ]


def test_somebody_who_takes_longer_than_expected() -> None:
    assert paragraph(brain(tasks(2, "20GiB")), *GPU, lasts=0) == [
        "waits for GPU memory",
        "needs 20.0GiB (as its row says)",
        FULL,
        "room at any moment: task 1 has taken as long as it was expected to",
        LAST,
    ]


def test_several_gpus() -> None:
    assert paragraph(brain(tasks(1, "20GiB") + tasks(1, "20GiB", gpus=2)), gpu(0), gpu(1), host(), lasts=60) == [
        "waits for GPU memory",
        "needs 20.0GiB on each of its GPUs (as its row says)",
        FULL,
        "GPU-1 has 23.5GiB free of 24.0GiB because of the buffer 512MiB",
        SOON,
        LAST,
    ]


def test_memory_of_the_host_beside_others() -> None:
    assert paragraph(brain(tasks(2, "10GiB")), host(free="18GiB"), holds=[hold("2GiB")]) == [
        "waits for host RAM",
        "needs 10.0GiB (as its row says)",
        f"host RAM has 5.5GiB free of 24.0GiB because of task 1 10.0GiB, {UNLEASED} 6.0GiB, {OTHERS} 2.0GiB, {KEPT}",
        UNSEEN,
        LAST,
    ]


def test_a_task_that_runs_alone() -> None:
    assert paragraph(brain(tasks(1, "1GiB") + tasks(1, "1GiB", exclusive=True)), host(), lasts=60) == [
        "must run alone on host, or what runs there must (1 task there now)",
        "needs 1.0GiB (as its row says)",
        "host RAM has 22.5GiB free of 24.0GiB because of task 1 1.0GiB, the buffer 512MiB",
        SOON,
        LAST,
    ]


def test_cores() -> None:
    assert paragraph(brain(tasks(2, "1GiB", cpus=3)), host(), lasts=60) == [
        "wants 3 cores, host has 1 not promised",
        "needs 1.0GiB (as its row says)",
        "host RAM has 22.5GiB free of 24.0GiB because of task 1 1.0GiB, the buffer 512MiB",
        SOON,
        LAST,
    ]


def test_a_gpu_that_is_busy_enough() -> None:
    assert paragraph(brain(tasks(2, "1GiB"), max_gpu_load=0.6), *GPU, lasts=60) == [
        "keeps a GPU 50% busy, GPU-0 has 10% not promised",
        "needs 1.0GiB (as its row says)",
        "GPU-0 has 22.5GiB free of 24.0GiB because of task 1 1.0GiB, the buffer 512MiB",
        SOON,
        LAST,
    ]


def test_slots_that_are_taken() -> None:
    assert paragraph(brain(tasks(2), slots=1), host(), lasts=60) == [
        "finds all 1 slot on host taken",
        SOON,
        LAST,
    ]


def test_slots_by_their_names() -> None:
    assert paragraph(brain(tasks(2), slots=1), *slots("a"), host(), lasts=60) == [
        "finds all 1 slot on slot a taken",
        SOON,
        LAST,
    ]


def test_as_many_as_the_run_may_have() -> None:
    assert paragraph(brain(tasks(2, "1GiB"), jobs=1), host()) == [
        "may not start beside the 1 task of this run that run",
        LAST,
    ]


def test_a_paused_run() -> None:
    assert paragraph(brain(tasks(2, "1GiB"), jobs=0), host()) == [
        "may not start: the run is paused (-j 0), and scheduler set with a larger -j lets it go on",
        LAST,
    ]


def test_a_device_that_is_disabled() -> None:
    assert paragraph(tell(brain(tasks(2, "1GiB")), Limited(closed=("GPU-0",))), *GPU) == [
        "finds GPU-0 disabled for this run: scheduler devices enable opens it",
        LAST,
    ]


def test_a_device_that_takes_nobody() -> None:
    assert paragraph(brain(tasks(2, "1GiB")), replace(gpu(), closed="it does not answer"), host()) == [
        "finds GPU-0 closed: it does not answer",
        "needs 1.0GiB (as its row says)",
        LAST,
    ]


def test_strangers_who_have_just_come() -> None:
    assert paragraph(brain(tasks(2, "1GiB")), stranger(calm=30), host()) == [
        "waits 1m31s: 10.0GiB of ben came to GPU-0 or grew there just now",
        "needs 1.0GiB (as its row says)",
        LAST,
    ]


def test_a_run_that_ends() -> None:
    assert paragraph(tell(brain(tasks(2, "1GiB")), asked("drain")), host()) == [
        "is not started, because nothing more of this run is: scheduler resume goes on once it is over",
        LAST,
    ]


def test_behind_one_that_waits_too_long() -> None:
    assert paragraph(closed(), *GPU, task=3) == [
        "stands behind a task that was overtaken too often, and GPU-0 is kept for that one",
        "needs 1.0GiB (as its row says)",
        FULL,
        UNSEEN,
    ]


def test_far_behind() -> None:
    assert paragraph(brain(tasks(2), profile="auto"), *GPU) == [
        "stands far behind: nobody has looked at it yet",
        LAST,
    ]


def test_one_that_starts_with_the_next_look() -> None:
    found = reasons.of_task(brain(tasks(2, "1GiB")), machine(host()), 2, {})
    assert waits(found).startswith("has room and is among those that start with the next look; needs 1.0GiB")


def test_a_full_disk_keeps_everybody_waiting() -> None:
    (one,) = reasons.answers(brain(tasks(2, "1GiB")), machine(host()), [2], {}, "the disk of /runs is full")
    assert one.says.startswith("is not started: the disk of /runs is full")


def test_whoever_does_not_wait_is_not_told_of() -> None:
    b = brain(tasks(2, "20GiB"))
    place(b, *GPU)
    assert [one.tasks for one in reasons.answers(b, machine(*GPU), [1, 2, 7], {})] == [(2,)]


def test_a_run_says_how_many_wait_for_what() -> None:
    b = brain(tasks(3, "20GiB") + tasks(4, "1GiB", gpus=0, cpus=3) + tasks(2, "30GiB", gpus=0, cpus=0.1))
    place(b, gpu(), host("64GiB", free="40GiB"))
    (one,) = reasons.answers(b, machine(gpu(), host("64GiB", free="40GiB")), [], {})
    assert one.says == "3 for cores, 2 for GPU memory, 1 for host RAM"
    assert one.facts == {"reasons": {"memory": 2, "load@host": 3, "memory@host": 1}}


def test_a_scheduler_answers_and_nothing_of_its_run_changes() -> None:
    """Asked of a whole simulated run while it goes on: the same tasks end as if nobody had asked."""
    told: list[str] = []
    run = Simulation(
        jobs(6, peak="10GiB", memory="10GiB"), host(), requests=[(1e9 + 1, Request("why", (6,), name="q"))]
    )
    run.loop.ports = replace(run.loop.ports, answer=lambda _, answers: told.extend(one.says for one in answers))
    run.run()
    assert run.states == {"succeeded": 6}
    assert not run.brain.draining
    assert told[0].startswith("waits for host RAM; needs 10.0GiB (as its row says); host RAM has 3.5GiB free")


WANTS = reasons.Wants(GIB, GIB, 1, KnownBy.DECLARED)
OTHERS_KINDS = [
    (Refusal(2, "probing", wanted=1), ["waits until task 1, of the same kind, has been probed"]),
    (Refusal(2, "watched", wanted=1), ["waits until task 1, which is like it, has shown what it needs"]),
    (Refusal(2, "gpus", wanted=4, total=2), ["wants 4 GPUs, it may use 2 of this run's"]),
    (Refusal(2, "device", "GPU 7"), ["wants GPU 7, which is none of this run's devices"]),
    (
        Refusal(2, "foreign", "GPU 0", room=2 * GIB, text="ben"),
        ["leaves GPU 0 alone: 2.0GiB of ben are in use there without a lease"],
    ),
    (Refusal(2, "never", "GPU 0", 30 * GIB, 0, 24 * GIB), ["wants 30.0GiB, the largest device (GPU 0) has 24.0GiB"]),
]


@pytest.mark.parametrize(("refusal", "head"), OTHERS_KINDS, ids=[refusal.reason for refusal, _ in OTHERS_KINDS])
def test_kinds_that_are_about_no_room(refusal: Refusal, head: list[str]) -> None:
    said = waits(reasons.Waits(refusal, WANTS, at_most=50)).split("; ")
    assert said == [*head, "needs 1.0GiB (as its row says)", LAST]


def test_a_run_that_only_learns() -> None:
    said = waits(reasons.Waits(Refusal(2, "learned"), WANTS, at_most=50)).split("; ")
    assert said == ["is not started, because only profiles are learned", LAST]


def test_host_ram_beside_gpus_that_is_spent() -> None:
    stand = reasons.Stand("host", 0, 64 * GIB, (reasons.Held("other runs", 60 * GIB),))
    found = reasons.Waits(Refusal(2, "spent", "host", total=64 * GIB), WANTS, (stand,), at_most=50)
    assert waits(found).split("; ") == [
        "needs host RAM beside its GPUs, and none is left above the buffer (64.0GiB in all)",
        "needs 1.0GiB (as its row says)",
        "host RAM has 0MiB free of 64.0GiB because of other runs 60.0GiB",
        UNSEEN,
        LAST,
    ]


def test_a_gpu_that_is_full_of_mps_clients() -> None:
    found = reasons.Waits(Refusal(2, "clients", "GPU 0", 1, 48, 48), WANTS, at_most=50, room_in=60.0, after=1)
    assert waits(found).split("; ") == [
        "finds GPU 0 full: MPS takes 48 tasks on a GPU, 48 are there now",
        "needs 1.0GiB (as its row says)",
        SOON,
        LAST,
    ]
