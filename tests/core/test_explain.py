"""Every refusal is a sentence with its numbers."""

from __future__ import annotations

import pytest

from scheduler.core import explain
from scheduler.core.explain import why
from scheduler.core.model import HOST, Refusal
from scheduler.units import GIB, MIB
from tests.builders import brain, decide, gpu, hold, host, tasks

SENTENCES = [
    (
        Refusal(3, "memory", HOST, 16 * GIB, int(7.5 * GIB), 24 * GIB),
        "wants 16.0GiB, host RAM has room for 7.5GiB of 24.0GiB now",
    ),
    (
        Refusal(3, "memory", "GPU-1", 700 * MIB, 0, 24 * GIB),
        "wants 700MiB, GPU-1 has room for 0MiB of 24.0GiB now",
    ),
    (
        Refusal(3, "never", "GPU-1", 30 * GIB, 0, 24 * GIB),
        "wants 30.0GiB, the largest device (GPU-1) has 24.0GiB",
    ),
    (Refusal(3, "slots", "GPU-1", 1, 0, 3), "finds all 3 slots on GPU-1 taken"),
    (Refusal(3, "slots", "GPU-1", 1, 0, 1), "finds all 1 slot on GPU-1 taken"),
    (
        Refusal(3, "alone", HOST, 1, 2),
        "must run alone on host, or what runs there must (2 tasks there now)",
    ),
    (Refusal(3, "load", HOST, 150, 25), "wants 1.5 cores, host has 0.25 not promised"),
    (Refusal(3, "load", HOST, 100, 0), "wants 1 core, host has 0 not promised"),
    (Refusal(3, "jobs", total=2), "may not start beside the 2 tasks of this run that run"),
    (Refusal(3, "probing", wanted=7), "waits until task 7, of the same kind, has been probed"),
    (Refusal(3, "unlooked"), "stands far behind: nobody has looked at it yet"),
    (Refusal(3, "learned"), "is not started, because only profiles are learned"),
    (
        Refusal(3, "unknown", "GPU 1", 12 * GIB, 4 * GIB, 24 * GIB),
        (
            "starts, since nobody knows what it needs, where at least 12.0GiB are free; "
            "GPU 1 has room for 4.0GiB of 24.0GiB now"
        ),
    ),
    (
        Refusal(3, "spent", HOST, 0, 0, 64 * GIB),
        "needs host RAM beside its GPUs, and none is left above the buffer (64.0GiB in all)",
    ),
    (Refusal(3, "clients", "GPU 1", 1, 48, 48), "finds GPU 1 full: MPS takes 48 tasks on a GPU, 48 are there now"),
    (Refusal(3, "busy", "GPU 1", 60, 25), "keeps a GPU 60% busy, GPU 1 has 25% not promised"),
    (
        Refusal(3, "jobs"),
        "may not start: the run is paused (-j 0), and scheduler set with a larger -j lets it go on",
    ),
    (
        Refusal(3, "disabled", "GPU 1"),
        "finds GPU 1 disabled for this run: scheduler devices enable opens it",
    ),
    (
        Refusal(3, "cap", "GPUs", wanted=2, room=1, total=2, text="[caps] in /etc/machine.toml"),
        "wants 2 GPUs, and its user holds 1 GPU of the 2 that [caps] in /etc/machine.toml allows",
    ),
    (
        Refusal(3, "unreadable", "GPU 1", text="ben"),
        (
            "finds GPU 1 closed: a running task of ben has a promise there that cannot be read, it is damaged or of a "
            "newer version; it opens when that task ends, or is read once this scheduler is as new"
        ),
    ),
    (Refusal(3, "watched", wanted=7), "waits until task 7, which is like it, has shown what it needs"),
    (Refusal(3, "closed-device", "GPU 1", text="fell off the bus"), "finds GPU 1 closed: fell off the bus"),
    (
        Refusal(3, "foreign", "GPU 1", room=2 * GIB, text="ben"),
        "leaves GPU 1 alone: 2.0GiB of ben are in use there without a lease",
    ),
    (
        Refusal(3, "young", "GPU 1", 90, 2 * GIB, text="ben"),
        "waits 1m30s: 2.0GiB of ben came to GPU 1 or grew there just now",
    ),
    (Refusal(3, "gpus", wanted=4, total=2), "wants 4 GPUs, it may use 2 of this run's"),
    (Refusal(3, "device", "GPU 7"), "wants GPU 7, which is none of this run's devices"),
    (
        Refusal(3, "draining"),
        "is not started, because nothing more of this run is: scheduler resume goes on once it is over",
    ),
    (Refusal(3, "full", text="/data has 200MiB left"), "is not started: /data has 200MiB left"),
    (Refusal(3, "next"), "has room and is among those that start with the next look"),
    (
        Refusal(3, "closed", HOST),
        "stands behind a task that was overtaken too often, and host is kept for that one",
    ),
]


@pytest.mark.parametrize(("refusal", "sentence"), SENTENCES, ids=[refusal.reason for refusal, _ in SENTENCES])
def test_sentence(refusal: Refusal, sentence: str) -> None:
    assert why(refusal) == sentence


def test_each_kind_of_refusal_has_its_sentence_here() -> None:
    assert {refusal.reason for refusal, _ in SENTENCES} == set(explain._SENTENCES)


@pytest.mark.parametrize("reason", sorted(explain._SENTENCES))
def test_a_run_says_for_what_its_tasks_wait_in_words(reason: str) -> None:
    said = explain.waiting({reason: 3})
    assert said.startswith("3 ")
    assert f"({reason})" not in said


def test_every_refusal_of_a_decision_has_one() -> None:
    """Whatever makes tasks wait together on one machine."""
    b = brain(
        tasks(1, "20GiB") + tasks(1, "25GiB") + tasks(2, "1GiB", exclusive=True) + tasks(60, "1MiB", cpus=0.01),
        overtakes=3,
    )
    decision = decide(b, host(free="8GiB"), holds=[hold("1GiB")])
    reasons = {refusal.reason for refusal in (*decision.refusals, *decision.impossible)}
    assert reasons == {"memory", "alone", "closed", "never"}
    assert all(why(refusal) for refusal in (*decision.refusals, *decision.impossible))


@pytest.mark.parametrize("said", [{"jobs": 0}, {"slots": 0}, {"max_load": 0.1}])
def test_a_machine_without_room_says_so_about_the_first(said: dict[str, float]) -> None:
    decision = decide(brain(tasks(3, "1GiB", cpus=2), **said), gpu(0, free="100MiB"))
    assert [refusal.task for refusal in decision.refusals] == [1]
