"""The sentences on refusals, each with its numbers."""

from __future__ import annotations

import pytest

from scheduler.core.control import messages
from scheduler.core.control.messages import why
from scheduler.core.model import HOST
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.units import GIB, MIB
from tests.support.builders import brain, decide, gpu, hold, host, tasks

SENTENCES = [
    (
        Refusal(3, Reason.MEMORY, HOST, 16 * GIB, int(7.5 * GIB), 24 * GIB),
        "needs 16.0GiB; host RAM has 7.5GiB of 24.0GiB free",
    ),
    (
        Refusal(3, Reason.MEMORY, "GPU-1", 700 * MIB, 0, 24 * GIB),
        "needs 700MiB; GPU-1 has 0MiB of 24.0GiB free",
    ),
    (
        Refusal(3, Reason.NEVER, "GPU-1", 30 * GIB, 0, 24 * GIB),
        "needs 30.0GiB; the largest device (GPU-1) has 24.0GiB",
    ),
    (Refusal(3, Reason.SLOTS, "GPU-1", 1, 0, 3), "needs a slot; all 3 slots of GPU-1 are taken"),
    (Refusal(3, Reason.SLOTS, "GPU-1", 1, 0, 1), "needs a slot; GPU-1 is taken"),
    (
        Refusal(3, Reason.ALONE, HOST, 1, 2),
        "must have host RAM alone, or a task there must; 2 tasks there now",
    ),
    (Refusal(3, Reason.LOAD, HOST, 150, 25), "needs 1.5 cores; host has 0.25 free"),
    (Refusal(3, Reason.LOAD, HOST, 100, 0), "needs 1 core; host has 0 free"),
    (Refusal(3, Reason.JOBS, total=2), "may not start: 2 tasks of this run may run at once (-j 2)"),
    (Refusal(3, Reason.PROBING, wanted=7), "waits for the probe of task 7, which is of the same class"),
    (Refusal(3, Reason.UNLOOKED), "is far back in the queue and was not examined yet"),
    (Refusal(3, Reason.LEARNED), "does not start: this run only learns profiles"),
    (
        Refusal(3, Reason.UNKNOWN, "GPU 1", 12 * GIB, 4 * GIB, 24 * GIB),
        (
            "needs an unknown amount of memory and starts on a GPU with at least 12.0GiB free; "
            "GPU 1 has 4.0GiB of 24.0GiB free"
        ),
    ),
    (
        Refusal(3, Reason.SPENT, HOST, 512 * MIB, 256 * MIB, 64 * GIB),
        (
            "needs an unknown amount of host RAM and starts with at least 512MiB free; "
            "host RAM has 256MiB of 64.0GiB free"
        ),
    ),
    (Refusal(3, Reason.CLIENTS, "GPU 1", 1, 48, 48), "needs a place under MPS; GPU 1 has 48 tasks of at most 48"),
    (Refusal(3, Reason.BUSY, "GPU 1", 60, 25), "needs 60% of the load of a GPU; GPU 1 has 25% free"),
    (
        Refusal(3, Reason.PAUSED),
        "may not start: the run is paused (-j 0); scheduler set -j N continues it",
    ),
    (
        Refusal(3, Reason.ON_PAUSE, text=" until 22:00 (in 3h12m)"),
        "may not start: the run is paused until 22:00 (in 3h12m); scheduler unpause continues it",
    ),
    (
        Refusal(3, Reason.OUTSIDE, "20:00-07:00", text="20:00 (in 3h12m)"),
        "may start at 20:00 (in 3h12m): the run starts tasks only within 20:00-07:00 (--window)",
    ),
    (
        Refusal(3, Reason.DISABLED, "GPU 1"),
        "may not start on GPU 1: disabled for this run (scheduler devices enable)",
    ),
    (
        Refusal(3, Reason.ABOVE_QUOTA, "GPUs", wanted=3, total=2, text="[quotas] in /etc/machine.toml"),
        "needs 3 GPUs; the quota of its user is 2 ([quotas] in /etc/machine.toml)",
    ),
    (
        Refusal(3, Reason.QUOTA, "GPUs", wanted=2, room=1, total=2, text="[quotas] in /etc/machine.toml"),
        "needs 2 GPUs; its user holds 1 GPU, the quota is 2 ([quotas] in /etc/machine.toml)",
    ),
    (
        Refusal(3, Reason.UNREADABLE, "GPU 1", text="ben"),
        (
            "may not start on GPU 1: the lease of a running task of ben cannot be read (damaged, or of a newer "
            "version); the device is available again when that task ends, or after an update of this scheduler"
        ),
    ),
    (
        Refusal(3, Reason.PROFILING, wanted=7),
        (
            "waits for task 7 to end: with --profile sequential the tasks of a batch are profiled one after the other, "
            "before the batch is packed"
        ),
    ),
    (
        Refusal(3, Reason.LATER_BATCH, wanted=2),
        "waits for batch 2 to end: with --profile sequential one batch runs after the other",
    ),
    (Refusal(3, Reason.WATCHED, wanted=7), "waits until the memory of task 7, which is similar, was measured"),
    (
        Refusal(3, Reason.BEGINNING, "GPU 1", wanted=7),
        "waits until task 7, whose memory is unknown, has grown on GPU 1",
    ),
    (
        Refusal(3, Reason.LARGER, "GPU 1", wanted=7),
        (
            "needs an unknown amount of memory, and waits until that of task 7 was measured on GPU 1: "
            "the free GPUs are smaller than most"
        ),
    ),
    (Refusal(3, Reason.CLOSED_DEVICE, "GPU 1", text="fell off the bus"), "may not start on GPU 1: fell off the bus"),
    (
        Refusal(3, Reason.SILENT_NODE, "n1 GPU 0", text="node n1 has not answered for 4 s"),
        "may not start on n1 GPU 0: node n1 has not answered for 4 s",
    ),
    (
        Refusal(3, Reason.AVOIDED, "GPU 1", room=2 * GIB, text="ben"),
        "may not start on GPU 1: unmanaged processes of ben use 2.0GiB there",
    ),
    (
        Refusal(3, Reason.YOUNG, "GPU 1", 90, 2 * GIB, text="ben"),
        "may not start on GPU 1 for another 1m30s: 2.0GiB of unmanaged memory of ben there is new or has grown",
    ),
    (Refusal(3, Reason.GPUS, wanted=4, total=2), "needs 4 GPUs; 2 of this run's can be used"),
    (Refusal(3, Reason.DEVICE, "GPU 7"), "needs GPU 7, which is not a device of this run"),
    (
        Refusal(3, Reason.TOO_LONG, wanted=7200, room=600, text="takes about 2h00m"),
        (
            "waits for a longer allocation: it takes about 2h00m, and the nodes of this one end in 10m00s; scheduler "
            "resume continues the run in the next one"
        ),
    ),
    (
        Refusal(3, Reason.DRAINING),
        "does not start: the run starts no more tasks; scheduler resume continues it once it has ended",
    ),
    (Refusal(3, Reason.FULL_DISK, text="/data has 200MiB left"), "does not start: /data has 200MiB left"),
    (
        Refusal(3, Reason.SUSPENDED, text="[Errno 11] Resource temporarily unavailable"),
        (
            "does not start for now, because starts fail: [Errno 11] Resource temporarily unavailable; "
            "the scheduler tries again"
        ),
    ),
    (
        Refusal(3, Reason.AWAY, "/data", text="/data: Stale file handle"),
        (
            "does not start for now, because its directory is not available: /data: Stale file handle; "
            "the scheduler tries again"
        ),
    ),
    (Refusal(3, Reason.NEXT), "fits and starts in the next pass"),
    (
        Refusal(3, Reason.KEPT, HOST),
        "waits behind a task, which was bypassed too often: host RAM is kept for it",
    ),
    (
        Refusal(3, Reason.KEPT, "GPU 1", text="task 7 of this run"),
        "waits behind task 7 of this run, which was bypassed too often: GPU 1 is kept for it",
    ),
    (
        Refusal(3, Reason.UNMANAGED, "GPU 0", 23 * GIB, 20 * GIB, 24 * GIB, "1.5GiB of process 4711 of ben"),
        (
            "needs 23.0GiB; if all tasks there ended, GPU 0 would have 20.0GiB of 24.0GiB free beside unmanaged "
            "memory (1.5GiB of process 4711 of ben), its headroom and the buffer; it starts once enough of that is "
            "free, and keeps no device from other tasks until then"
        ),
    ),
]


@pytest.mark.parametrize(("refusal", "sentence"), SENTENCES, ids=[refusal.reason for refusal, _ in SENTENCES])
def test_a_refusal_is_a_sentence_with_its_numbers(refusal: Refusal, sentence: str) -> None:
    assert why(refusal) == sentence


def test_a_line_about_a_waiting_task_says_once_that_it_waits() -> None:
    assert messages.line(Refusal(3, Reason.PROBING, wanted=7)).startswith("task 3 waits for the probe of task 7")
    assert messages.line(Refusal(3, Reason.DISABLED, "GPU 1")).startswith("task 3 waits: it may not start on GPU 1")


def test_every_reason_of_a_refusal_has_a_sentence_in_this_test() -> None:
    assert {refusal.reason for refusal, _ in SENTENCES} == set(Reason)


@pytest.mark.parametrize("reason", sorted(Reason))
def test_a_run_counts_its_waiting_tasks_by_reason_in_words(reason: str) -> None:
    said = messages.waiting({reason: 3})
    assert said.startswith("3 ")
    assert f"({reason})" not in said


def test_every_refusal_of_a_decision_has_a_sentence() -> None:
    """The decision refuses tasks for four reasons at once."""
    b = brain(
        tasks(1, "20GiB") + tasks(1, "25GiB") + tasks(2, "1GiB", exclusive=True) + tasks(60, "1MiB", cpus=0.01),
        bypass_limit=3,
    )
    decision = decide(b, host(free="8GiB"), leases=[hold("16GiB", "16GiB")])
    reasons = {refusal.reason for refusal in (*decision.refusals, *decision.impossible)}
    assert reasons == {"memory", "alone", "kept", "never"}
    assert all(why(refusal) for refusal in (*decision.refusals, *decision.impossible))


@pytest.mark.parametrize("said", [{"jobs": 0}, {"slots": 0}, {"max_load": 0.1}])
def test_a_machine_that_takes_no_task_refuses_only_the_first(said: dict[str, float]) -> None:
    decision = decide(brain(tasks(3, "1GiB", cpus=2), **said), gpu(0, free="100MiB"))
    assert [refusal.task for refusal in decision.refusals] == [1]
