"""MIG instances as devices: which ones a run uses, what tasks see, and what happens when they are removed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.faults import fault
from tests.support.gpu_home import GpuHome, holding, most_reserved, training
from tests.support.standin.box import GPU_IS_LOST, NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]
GIB = 1 << 30
A100 = "NVIDIA A100-SXM4-40GB"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[[int], GpuHome]]:
    homes: list[GpuHome] = []

    def make(gpus: int) -> GpuHome:
        homes.append(GpuHome(tmp_path, gpus=gpus, total="40GiB", name=A100))
        return homes[-1]

    yield make
    for home in homes:
        home.end()


def uses(home: GpuHome) -> dict[int, list[int]]:
    """Return the devices of each task."""
    return {one.task: [*one.gpus] for one in home.tries()}


def test_instances_and_a_whole_gpu_are_packed_by_their_memory(machine: Callable[[int], GpuHome]) -> None:
    home = machine(2)
    large, small = home.box.slice(0, "3g.20gb", "1g.5gb")
    home.jobs(*[training(peak=peak, seconds=0.5) for peak in ("2GiB", "3GiB") for _ in range(6)])
    home.run()
    assert {device for devices in uses(home).values() for device in devices} == {1, large, small}
    assert [home.box.ooms(device) for device in (0, 1, large, small)] == [0, 0, 0, 0]
    for device, total in ((1, 40), (large, 20), (small, 5)):
        assert home.box.peak_used(device) <= total * GIB
    assert home.box.used(0) == 0
    assert "GPUs    1, 0.0, 0.1 (" in home.log()
    rows = json.loads(home.call("list", "r1", "--json", code=0).stdout)["tasks"]
    assert {row["device"] for row in rows} == {"GPU 0.0", "GPU 0.1", "GPU 1"}


def test_task_sees_its_instance_by_uuid_also_where_numbers_are_wanted(machine: Callable[[int], GpuHome]) -> None:
    home = machine(1)
    first, second = home.box.slice(0, "2g.10gb", "2g.10gb")
    home.jobs(holding("1GiB", Device="0.1"), holding("1GiB", Device=home.box.instances[first]))
    with home.going("--visible", "index"):
        home.wait_for(2)
        wait_until(lambda: home.box.used(first) and home.box.used(second))
        home.go()
    told = [json.loads((home.state / f"runs/1/tasks/{task}/told").read_text()) for task in (0, 1)]
    assert [devices for devices, _ in told] == [[home.box.instances[second]], [home.box.instances[first]]]
    assert [said["CUDA_VISIBLE_DEVICES"] for _, said in told] == [
        home.box.instances[second],
        home.box.instances[first],
    ]
    assert [said["SCHEDULER_GPU_INDICES"] for _, said in told] == ["0", "0"]


def test_task_with_several_gpus_gets_whole_ones_or_is_refused(machine: Callable[[int], GpuHome]) -> None:
    home = machine(3)
    home.box.slice(0, "3g.20gb", "3g.20gb")
    home.jobs(training(peak="1GiB,1GiB", seconds=0.2, GPUs=2))
    home.run()
    assert uses(home) == {0: [1, 2]}
    home.jobs(training(peak="1GiB", seconds=0.2, GPUs=3))
    refused = home.call("run", "jobs.csv", code=2)
    assert "a process sees one MIG instance only, and this run has 2 whole GPUs" in refused.stderr
    assert "row 2" in refused.stderr


def test_compute_instances_with_one_memory_get_equal_parts_of_it(machine: Callable[[int], GpuHome]) -> None:
    home = machine(1)
    parts = home.box.slice(0, "1c.2g.10gb", "1c.2g.10gb")
    home.jobs(*[training(peak="4GiB", seconds=0.5, Memory="4GiB") for _ in range(4)])
    home.run()
    assert sum(home.box.ooms(part) for part in parts) == 0
    for part in parts:
        assert most_reserved(home.tries(), str(part)) <= 5 * GIB
    assert home.box.peak_used(parts[0]) > 4 * GIB, "both parts were used at once"


@fault(198)
def test_removed_instance_is_drained_and_the_rest_goes_on(machine: Callable[[int], GpuHome]) -> None:
    home = machine(1)
    first, second = home.box.slice(0, "2g.10gb", "2g.10gb")
    home.jobs(*[holding("1GiB", until="go", Memory="8GiB") for _ in range(2)], training(peak="1GiB", Memory="8GiB"))
    with home.going():
        home.wait_for(2)
        wait_until(lambda: home.box.used(first) and home.box.used(second))
        home.box.set(first, gone=1)
        home.box.slice(0, "1g.5gb")  # it comes to the place of the removed one
        home.wait_for_words("GPU 0.0 no longer exists")
        home.go()
    assert {one.outcome for one in home.tries()} == {"succeeded"}
    assert home.tries()[-1].gpus == (second,)


@fault(198)
class TestReconfiguration:
    def test_instance_made_during_a_run_takes_a_waiting_task(self, machine: Callable[[int], GpuHome]) -> None:
        home = machine(1)
        first, second = home.box.slice(0, "2g.10gb", "2g.10gb")
        home.jobs(*[holding("1GiB", Memory="8GiB") for _ in range(3)])
        with home.going():
            home.wait_for(2)
            (third,) = home.box.slice(0, "3g.20gb")
            home.wait_for_words(f"GPU 0.2 has joined: {A100} MIG 3g.20gb, 20.0GiB")
            home.wait_for(3)
            wait_until(lambda: "GPU 0.2" in home.call("list", "r1", code=0).stdout)
            home.go()
        home.boxes[0].instances[third] = home.box.instances[third]
        assert sorted(uses(home).values()) == [
            [first], [second], [third],
        ]  # fmt: skip
        rows = json.loads(home.call("list", "r1", "--json", code=0).stdout)["tasks"]
        assert {row["device"] for row in rows} == {"GPU 0.0", "GPU 0.1", "GPU 0.2"}

    def test_instance_made_during_a_run_of_other_instances_is_left_alone(
        self, machine: Callable[[int], GpuHome]
    ) -> None:
        home = machine(1)
        (first,) = home.box.slice(0, "2g.10gb")
        home.jobs(holding("1GiB", Memory="8GiB"), training(peak="1GiB", Memory="8GiB", seconds=0.1))
        with home.going("--devices", "0.0"):
            home.wait_for(1)
            home.box.slice(0, "2g.10gb")
            home.go("some")
            wait_until(lambda: '"instance": 1' in home.call("doctor", "--json").stdout)
            home.go()
        assert set(map(tuple, uses(home).values())) == {(first,)}

    def test_task_whose_instance_was_removed_starts_again_elsewhere(self, machine: Callable[[int], GpuHome]) -> None:
        home = machine(1)
        first, second = home.box.slice(0, "2g.10gb", "2g.10gb")
        home.jobs(*[holding("1GiB", Memory="8GiB", Retries=0) for _ in range(2)])
        with home.going():
            home.wait_for(2)
            wait_until(lambda: home.box.used(first) and home.box.used(second))
            home.box.set(first, gone=1)
            (home.root / "dead").write_text(home.box.instances[first])
            home.wait_for(1, "lost")
            (home.root / "dead").unlink()
            home.go()
        tries = home.tries()
        assert sorted(one.outcome for one in tries) == ["lost", "succeeded", "succeeded"]
        (lost,) = [one for one in tries if one.outcome == "lost"]
        assert lost.gpus == (first,)
        assert "GPU 0.0: no longer exists, because its GPU was divided in another way" in lost.exited.reason

    def test_whole_gpu_that_is_divided_gives_way_to_its_instances(self, machine: Callable[[int], GpuHome]) -> None:
        home = machine(2)
        home.jobs(holding("1GiB", Device="1"), *[holding("1GiB", until="later", Memory="8GiB") for _ in range(2)])
        with home.going("--max-per-device", "1"):
            home.wait_for(2)
            wait_until(lambda: home.box.used(0) and home.box.used(1))  # a task that starts on it later is lost
            home.box.slice(0, "2g.10gb")
            home.wait_for_words("GPU 0 was divided into MIG instances, which tasks use in its place")
            home.wait_for_words("GPU 0.0 has joined")
            home.go("later")
            home.go()
        assert {one.outcome for one in home.tries()} == {"succeeded"}

    def test_instances_that_are_made_one_give_way_to_their_gpu(self, machine: Callable[[int], GpuHome]) -> None:
        home = machine(1)
        (only,) = home.box.slice(0, "2g.10gb")
        home.jobs(holding("1GiB", Memory="8GiB"), training(peak="1GiB", Memory="8GiB", seconds=0.1))
        with home.going():
            home.wait_for(1)
            wait_until(lambda: home.box.used(only))
            home.box.set(only, gone=1)
            home.box.set(0, mig=0)
            home.wait_for_words("GPU 0 has joined")
            home.wait_for(2)
            home.go()
        assert uses(home) == {0: [only], 1: [0]}

    @fault(199)
    @pytest.mark.parametrize(
        ("where", "switches", "sentence"),
        [
            ("parent", {"error": GPU_IS_LOST}, "is lost (it has fallen off the bus)"),
            ("instance", {"no_memory": 1}, "has no memory of its own to schedule"),
            ("instance", {"mig_private": 1}, "cannot be read by this user"),
        ],
        ids=["lost parent", "NOT_SUPPORTED", "NO_PERMISSION"],
    )
    def test_instance_that_fails_during_a_run_is_drained_and_nothing_is_lost(
        self, machine: Callable[[int], GpuHome], where: str, switches: dict[str, int], sentence: str
    ) -> None:
        home = machine(2)
        (first,) = home.box.slice(0, "2g.10gb")
        home.jobs(holding("1GiB", Device="0.0"), *[holding("1GiB", until="later") for _ in range(3)])
        with home.going():
            home.wait_for(1)
            wait_until(lambda: home.box.used(first))
            home.box.set(0 if where == "parent" else first, **switches)
            home.wait_for_words(sentence)
            home.go()
            home.go("later")
        assert {one.outcome for one in home.tries()} == {"succeeded"}
        assert "GPU 0.0" in home.log().partition(sentence)[0].splitlines()[-1]


def test_container_that_may_read_only_its_instance_uses_it(machine: Callable[[int], GpuHome]) -> None:
    home = machine(1)
    (only,) = home.box.slice(0, "2g.10gb")
    home.box.set(0, mig_private=1)
    home.jobs(training(peak="1GiB", seconds=0.2), training(peak="1GiB", seconds=0.2))
    home.run("--devices", "all")
    assert uses(home) == {0: [only], 1: [only]}
    devices = home.call("devices", code=0).stdout
    assert "GPU 0.0" in devices
    assert f"{A100} MIG 2g.10gb" in devices


def test_need_shown_on_an_instance_is_an_earlier_version_on_instances_of_other_sizes(
    machine: Callable[[int], GpuHome],
) -> None:
    home = machine(2)
    small, large = home.box.slice(0, "2g.10gb", "3g.20gb")
    home.jobs(training(peak="3GiB", seconds=1.5))
    sources = []
    for run, devices in enumerate(("0.0", "0.1", "1", "0.0"), start=1):
        home.call("run", "jobs.csv", "--devices", devices, code=0)
        (one,) = home.tries(run)
        sources.append((one.gpus[0], one.source))
    assert sources == [(small, "measured"), (large, "earlier version"), (1, "earlier version"), (small, "profile")]


def test_fifty_six_instances_are_found(machine: Callable[[int], GpuHome]) -> None:
    home = machine(8)
    for gpu in range(8):
        home.box.slice(gpu, *["1g.5gb"] * 7)
    found = json.loads(home.call("doctor", "--json").stdout)["gpus"]
    assert [(one["index"], one["instance"]) for one in found] == [
        (gpu, part) for gpu in range(8) for part in (None, *range(7))
    ]
    assert all(one["usable"] is (one["instance"] is not None) for one in found)


def test_no_task_starts_on_an_instance_after_an_equal_one_ran_out_of_memory_there(
    machine: Callable[[int], GpuHome],
) -> None:
    home = machine(2)
    instances = home.box.slice(0, *["1g.5gb"] * 7)
    kinds = [training(peak=f"{peak}GiB", seconds=0.5) for peak in (1, 2, 3, 4, 5.5, 6.5, 7, 8)]
    home.jobs(*kinds * 5)
    ended = [one for one in home.run() if one.exited is not None and one.gpus[0] in instances]
    first: dict[int, float] = {}
    for one in sorted(ended, key=lambda one: one.ended):
        if one.outcome == "oom":
            first.setdefault(one.task % len(kinds), one.ended)
    again = [one.task for one in ended if one.placed > first.get(one.task % len(kinds), float("inf"))]
    assert len(first) > 0, "no task of unknown memory was tried on an instance"
    assert again == []


@pytest.mark.parametrize(
    ("switch", "sentence"),
    [
        ("no_memory", "GPU 0.0 has no memory of its own to schedule"),
        ("mig_private", "GPU 0.0 cannot be read by this user"),
    ],
    ids=["NOT_SUPPORTED", "NO_PERMISSION"],
)
def test_instance_whose_memory_cannot_be_read_leaves_the_others_of_its_gpu(
    machine: Callable[[int], GpuHome], switch: str, sentence: str
) -> None:
    home = machine(1)
    first, second = home.box.slice(0, "2g.10gb", "2g.10gb")
    home.box.set(first, **{switch: 1})
    home.jobs(training(peak="1GiB", seconds=0.1))
    home.run()
    assert uses(home) == {0: [second]}
    assert sentence in home.log()
    assert sentence.removeprefix("GPU 0.0 ") in home.call("doctor").stdout
    assert sentence in home.call("run", "jobs.csv", "--devices", "0.0", "--new").stderr


def test_instance_that_was_removed_is_refused_with_those_that_exist(machine: Callable[[int], GpuHome]) -> None:
    home = machine(1)
    first, _ = home.box.slice(0, "2g.10gb", "2g.10gb")
    home.box.set(first, gone=1)
    home.jobs(training(peak="1GiB"))
    for named in (home.box.instances[first], "0.7"):
        refused = home.call("run", "jobs.csv", "--devices", named, code=2).stderr
        assert f"there is no device '{named}' here; this machine has: 0 (" in refused
        assert "0.1 (NVIDIA A100-SXM4-40GB MIG 2g.10gb, MIG-" in refused
