"""The first lines of a run: how many tasks have a known need, and how the others will be measured."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.brain import Brain
from scheduler.core.model import Job
from scheduler.core.profiling.task_class import TaskClass
from scheduler.ui.terminal.opening import _memory, plan_lines
from scheduler.units import GIB
from tests.support.builders import brain, decide, exited, gpu, host, place, spec, started, tasks, tell

GPUS = (gpu(), gpu(1), host())


def unlike(number: int) -> Brain:
    """Return a Brain with so many tasks that all differ."""
    b = brain(tasks(number), profile="auto")
    for task in range(1, number + 1):
        b.assign(task, TaskClass(f"class {task}", "train.py", probes=False))
    return b


def test_unknown_tasks_start_one_on_each_gpu_while_nothing_is_known() -> None:
    said = _memory(unlike(12), GPUS)
    assert (
        said == "12 unknown: measured as they start, one on each GPU until it uses more than 640MiB, then side by side"
    )


def test_unknown_tasks_reserve_what_known_classes_need() -> None:
    b = unlike(12)
    place(b, *GPUS)
    for task in (1, 2):
        tell(b, started(task), replace(exited(task), peak={f"GPU-{task - 1}": 4 * GIB}))
    each = "6.2GiB reserved for each, expected from 2 known task classes"
    assert f"10 unknown: measured as they start, 3-5 at a time on each GPU ({each})" in _memory(b, GPUS)


def test_unknown_tasks_on_the_host_reserve_half_of_its_ram() -> None:
    said = _memory(unlike(3), (host(),))
    assert said == "3 unknown: measured while they run (each reserves half of the free RAM until its use settles)"


def test_dry_run_says_how_memory_is_known_and_that_a_reservation_is_provisional() -> None:
    b = unlike(2)
    jobs = {task: Job(spec(row=task + 1), f"job {task}", f"k{task}") for task in (1, 2)}
    said = plan_lines("jobs.csv", b, decide(b, gpu(), host()), jobs, (gpu(), host()))
    assert said[1].startswith("memory           2 unknown: measured as they start, one on each GPU until it uses")
    assert said[2].endswith("reserved 23.5GiB (unknown, until its use has settled)")
