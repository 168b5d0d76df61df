"""The first lines of a run: how many tasks have a known need, and how the others will be measured."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.brain import Brain
from scheduler.core.model import Job
from scheduler.core.profiling.task_class import TaskClass
from scheduler.runtime.settings import Settings
from scheduler.ui.terminal.opening import _device_lines, _memory, plan_lines
from scheduler.units import GIB
from tests.support.builders import brain, decide, exited, gpu, host, node, place, spec, started, tasks, tell

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


def test_each_node_has_a_line_with_its_name_its_gpus_its_ram_and_its_cores() -> None:
    away = [replace(one, away="it has not answered for 4 s") for one in node("gpu-box-3", gpu(0), host())]
    budgets = [*node("n1", gpu(0), gpu(1), host(cores=2)), *node("n2", host(cores=1)), *away]
    assert _device_lines(budgets, {}, Settings(), brain()) == [
        "n1        GPUs 0-1 (2 x 24.0GiB), 24.0GiB RAM, 2 cores",
        "n2        no GPU, 24.0GiB RAM, 1 core",
        "gpu-box-3 GPUs 0 (1 x 24.0GiB), 24.0GiB RAM, 4 cores; nothing starts there: it has not answered for 4 s",
    ]


def test_many_nodes_have_one_line_together() -> None:
    budgets = [one for number in range(12) for one in node(f"n{number}", gpu(0), gpu(1), host(cores=8))]
    said = _device_lines(budgets, {}, Settings(), brain())
    assert said == ["nodes   12 (n0, n1, n2, …): 24 GPUs (24 x 24.0GiB), 288.0GiB RAM, 96 cores"]
    budgets[3:6] = [replace(one, away="silent") for one in budgets[3:6]]
    assert _device_lines(budgets, {}, Settings(), brain())[1:] == ["away    1 of them (n1): nothing starts there"]
