"""The lower bound: its reasons one by one, and that it is never above the best of all schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations, product
from math import ceil

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.core.model import HOST, Device
from scheduler.simulation.interference import MODELS, Interference
from scheduler.simulation.lower_bound import LowerBound, TaskWork, lower_bound
from scheduler.units import GIB


def gpus(*sizes: int) -> list[Device]:
    """Return GPUs of these sizes in GiB."""
    return [Device(f"GPU-{n}", f"GPU {n}", total * GIB, 1.0, n) for n, total in enumerate(sizes)]


def work(
    seconds: float, memory: int = 1, gpus: int = 1, busy: float = 0.0, arrives: float = 0.0, loading: float = 0.0
) -> TaskWork:
    """Return a task of this many seconds and GiB."""
    return TaskWork(arrives, seconds, memory * GIB, gpus, busy, 0.0, 0, loading)


FREE, SHARED, FITTED = MODELS["none"], MODELS["prop"], MODELS["fit"]
TWICE = Interference("twice", lambda load: max(1.0, load / 2), 2.0, "two tasks do not slow each other down", (2.0,))


def bound(works: Sequence[TaskWork], devices: Sequence[Device], model: Interference = FREE) -> float:
    return lower_bound(works, devices, model).makespan


class TestReasons:
    def test_bound_is_at_least_the_longest_task(self) -> None:
        assert bound([work(100), work(7)], gpus(24)) == 100

    def test_longest_task_counts_from_its_arrival(self) -> None:
        assert bound([work(100), work(90, arrives=50)], gpus(24)) == 140

    def test_makespan_counts_from_the_first_arrival(self) -> None:
        assert bound([work(100, arrives=1000), work(90, arrives=1050)], gpus(24)) == 140

    def test_bound_counts_memory_over_time(self) -> None:
        assert bound([work(100, 6)] * 8, gpus(24)) == pytest.approx(200)

    def test_bound_counts_memory_of_all_devices(self) -> None:
        assert bound([work(100, 6)] * 8, gpus(24, 24)) == pytest.approx(100)

    def test_gang_takes_memory_on_each_of_its_gpus(self) -> None:
        assert bound([work(100, 12, gpus=2)] * 4, gpus(24, 24)) == pytest.approx(200)

    def test_task_above_half_of_a_device_takes_all_of_it(self) -> None:
        assert bound([work(100, 13)] * 4, gpus(24)) == pytest.approx(400)

    def test_task_that_leaves_less_than_the_others_need_takes_all_of_the_device(self) -> None:
        assert bound([work(100, 17), work(100, 8)] * 3, gpus(24)) == pytest.approx(400)

    def test_bound_counts_computing_where_sharing_gains_nothing(self) -> None:
        assert bound([work(100, busy=0.5)] * 4, gpus(24), SHARED) == pytest.approx(200)

    def test_bound_leaves_out_the_time_for_which_tasks_load_their_data(self) -> None:
        assert bound([work(100, busy=1.0, loading=25)] * 4, gpus(24), SHARED) == pytest.approx(300)

    def test_bound_counts_computing_where_sharing_gains_time(self) -> None:
        assert bound([work(100, busy=0.5)] * 4, gpus(24), TWICE) == pytest.approx(100)

    def test_task_that_fills_the_memory_leaves_computing_idle(self) -> None:
        works = [work(100, 16, busy=0.4)] * 4 + [work(100, 1, busy=1.0)] * 4
        parts = lower_bound(works, gpus(24), FITTED)
        mixed = [reason.seconds for reason in parts.reasons if "together" in reason.why]
        others = [reason.seconds for reason in parts.reasons if "together" not in reason.why]
        assert max(mixed) > max(others) * 1.05

    @pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
    @given(share=st.floats(0, 1), load=st.floats(0.01, 5))
    def test_no_load_earns_more_than_the_best_of_the_knees(
        self, model: Interference, share: float, load: float
    ) -> None:
        def earned(at: float) -> float:
            return (share + (1 - share) * at) / model.slowdown(at)

        if model.knees:
            assert earned(load) <= max(map(earned, model.knees)) + 1e-9

    def test_task_too_big_for_small_devices_counts_on_big_ones_only(self) -> None:
        assert bound([work(100, 40)] * 4, gpus(24, 24, 80)) == pytest.approx(200)

    def test_late_arrival_cannot_use_the_time_before(self) -> None:
        assert bound([work(100, 24, arrives=1000)] * 3, gpus(24)) == pytest.approx(300)
        assert bound([work(1, 24), *[work(100, 24, arrives=1000)] * 3], gpus(24)) == pytest.approx(1300)

    def test_bound_counts_cores_and_memory_of_the_host(self) -> None:
        host = Device(HOST, HOST, 8 * GIB, 2.0)
        alone = TaskWork(0.0, 100.0, GIB, 0, 0.0, 1.0, 0)
        assert bound([alone] * 6, [host]) == pytest.approx(300)
        assert bound([replace(alone, cores=0.0, bytes=4 * GIB)] * 6, [host]) == pytest.approx(300)

    def test_bound_counts_host_memory_of_gpu_tasks(self) -> None:
        host = Device(HOST, HOST, 8 * GIB, 2.0)
        assert bound([replace(work(100), beside=4 * GIB)] * 6, [*gpus(24), host]) == pytest.approx(300)

    def test_task_that_fits_nowhere_is_left_out(self) -> None:
        found = lower_bound([work(100), work(900, 25), work(900, gpus=2)], gpus(24), FREE)
        assert (found.makespan, found.tasks) == (100, 1)

    def test_bound_of_no_tasks_is_zero(self) -> None:
        assert lower_bound([], gpus(24), FREE).makespan == 0

    def test_the_strongest_reason_comes_first(self) -> None:
        found = lower_bound([work(100, 13)] * 4, gpus(24), FREE)
        assert [round(reason.seconds) for reason in found.reasons] == [400, 217, 100]
        assert "takes a whole one" in found.reasons[0].why

    def test_completions_have_lower_bounds(self) -> None:
        found = lower_bound([work(100, 24), work(10, 24)], gpus(24), FREE)
        assert (found.mean_completion, found.p95_completion) == (pytest.approx(60), pytest.approx(110))


# ---- beside the best of all schedules ----

Schedule = list[tuple[float, float]]
"""The (start, end) of each task."""


def schedules(works: Sequence[TaskWork], sizes: Sequence[int], model: Interference) -> Iterator[Schedule]:
    """Yield a schedule for every order and every choice of devices, with each task as early as it fits."""
    choices = [[c for c in combinations(range(len(sizes)), w.gpus) if _may(w, c, sizes)] for w in works]
    for places in product(*choices):
        for order in permutations(range(len(works))):
            yield run(works, sizes, model, places, order)


def _may(one: TaskWork, places: tuple[int, ...], sizes: Sequence[int]) -> bool:
    return all(one.bytes <= sizes[place] * GIB for place in places)


def run(
    works: Sequence[TaskWork],
    sizes: Sequence[int],
    model: Interference,
    places: Sequence[tuple[int, ...]],
    order: Sequence[int],
) -> Schedule:
    """Return the schedule where tasks start in this order, none before an earlier one."""
    left = [one.seconds for one in works]
    begun: dict[int, float] = {}
    ended: dict[int, float] = {}
    queue, now = list(order), 0.0
    while len(ended) < len(works):
        living = [task for task in begun if task not in ended]
        while queue and works[queue[0]].arrives <= now and _fits(queue[0], living, works, sizes, places):
            begun[queue[0]] = now
            living.append(queue.pop(0))
        pace = {task: _slower(task, living, works, model, places) for task in living}
        steps = [left[task] * pace[task] for task in living]
        steps += [works[queue[0]].arrives - now] if queue and works[queue[0]].arrives > now else []
        step = min(steps)
        for task in living:
            left[task] -= step / pace[task]
            if left[task] <= 1e-9:
                ended[task] = now + step
        now += step
    return [(begun[task], ended[task]) for task in range(len(works))]


def _fits(
    task: int, living: Sequence[int], works: Sequence[TaskWork], sizes: Sequence[int], places: Sequence[tuple[int, ...]]
) -> bool:
    return all(
        sum(works[other].bytes for other in living if place in places[other]) + works[task].bytes <= sizes[place] * GIB
        for place in places[task]
    )


def _slower(
    task: int, living: Sequence[int], works: Sequence[TaskWork], model: Interference, places: Sequence[tuple[int, ...]]
) -> float:
    paces = [1.0]
    for place in places[task]:
        here = [other for other in living if place in places[other]]
        paces.append(model.slowdown(sum(works[other].busy for other in here)) if len(here) > 1 else 1.0)
    return max(paces)


small = st.builds(
    work,
    seconds=st.integers(1, 9).map(float),
    memory=st.integers(1, 8),
    gpus=st.integers(1, 2),
    busy=st.integers(1, 10).map(lambda tenths: tenths / 10),
    arrives=st.integers(0, 6).map(float),
)
lists = st.lists(small, min_size=1, max_size=4)
machines = st.sampled_from([(8,), (8, 8), (4, 8), (8, 8, 8), (3, 5, 8)])


def fitting(works: Sequence[TaskWork], sizes: Sequence[int]) -> list[TaskWork]:
    """Return the tasks that the machine can hold at all."""
    return [w for w in works if sum(size * GIB >= w.bytes for size in sizes) >= w.gpus]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@settings(max_examples=120, deadline=None)
@given(works=lists, sizes=machines)
@example(works=[work(5, 5), work(5, 3), work(5, 5), work(5, 3)], sizes=(8,))
@example(works=[work(5, 7), work(5, 1), work(5, 6), work(5, 2)], sizes=(8, 8))
def test_bound_is_never_above_the_best_schedule(
    model: Interference, works: list[TaskWork], sizes: tuple[int, ...]
) -> None:
    works = fitting(works, sizes)
    if not works:
        return
    first = min(one.arrives for one in works)
    found: LowerBound = lower_bound(works, gpus(*sizes), model)
    place = ceil(0.95 * len(works)) - 1
    for schedule in schedules(works, sizes, model):
        flows = sorted(end - one.arrives for one, (_, end) in zip(works, schedule, strict=True))
        assert found.makespan <= max(end for _, end in schedule) - first + 1e-6
        assert found.mean_completion <= sum(flows) / len(flows) + 1e-6
        assert found.p95_completion <= flows[place] + 1e-6


@given(works=st.lists(st.builds(work, st.integers(1, 9).map(float), st.integers(1, 8)), min_size=1, max_size=4))
def test_bound_is_not_far_below_the_best_schedule(works: list[TaskWork]) -> None:
    """Lists of few tasks on one device leave holes that no bound sees; but never half of the time."""
    best = min(max(end for _, end in schedule) for schedule in schedules(works, (8,), MODELS["none"]))
    assert bound(works, gpus(8)) >= best / 2


def test_task_that_needs_more_gpus_than_any_node_has_is_left_out() -> None:
    nodes = [replace(device, key=f"{device.key}{node}", node=node) for node in "ab" for device in gpus(24, 24)]
    found = lower_bound([work(10.0, gpus=2), work(99.0, gpus=3)], nodes, FREE)
    assert (found.tasks, found.makespan) == (1, 10.0)


def test_hosts_of_all_nodes_count_together() -> None:
    nodes = [Device(f"host@{node}", f"{node} host", 8 * GIB, 4.0, node=node) for node in "ab"]
    found = lower_bound([work(10.0, 8, gpus=0) for _ in range(4)], nodes, FREE)
    assert found.makespan == 20.0
    assert found.reasons[0].why == "memory of 2 hosts (16.0GiB)"
