"""The key of a profile is that of the device on which its attempts ran, also where a run has several models."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.model import Device, host_of
from scheduler.core.profiling.hardware import Hardware
from scheduler.core.profiling.task_class import kind
from scheduler.units import GIB
from tests.support.builders import spec, terms


def gpu(key: str, model: str, gib: int = 24, node: str = "") -> Device:
    return Device(key, key, gib * GIB, 1.0, 0, model, node=node)


def host(gib: int, node: str = "") -> Device:
    return Device(host_of(node), host_of(node), gib * GIB, 8.0, node=node)


def hardware(devices: list[Device], drivers: dict[str, str]) -> Hardware:
    return Hardware(lambda: devices, lambda: drivers)


MIXED = [
    *(gpu(f"GPU-a{n}", "A", 80, "n1") for n in range(2)), host(512, "n1"),
    *(gpu(f"GPU-b{n}", "B", 24, "n2") for n in range(4)), host(64, "n2"),
]  # fmt: skip
NOTES = {"n1": " (driver 550)", "n2": " (driver 535)"}


def test_one_machine_with_one_model_has_one_hardware() -> None:
    here = hardware([gpu("GPU-0", "A"), gpu("GPU-1", "A"), host(64)], {"": " (driver 550)"})
    assert here.of(terms(gpus=2)) == ("2 x A 24GiB (driver 550)",)
    assert here.of(terms(gpus=0)) == ("host 64GiB",)
    assert here.of(terms()) == ("1 x A 24GiB (driver 550)",)


def test_machine_without_gpus_runs_all_tasks_on_its_host() -> None:
    assert hardware([host(64)], {}).of(terms()) == ("host 64GiB",)


def test_several_models_come_by_their_number_each_with_the_driver_of_its_node() -> None:
    there = hardware(MIXED, NOTES)
    assert there.of(terms(gpus=1)) == ("1 x B 24GiB (driver 535)", "1 x A 80GiB (driver 550)")
    assert there.of(terms(gpus=0)) == ("host 512GiB", "host 64GiB")
    assert there.ran_on(["GPU-a1"]) == "A 80GiB (driver 550)"
    assert there.ran_on(["host@n2"]) == "host 64GiB"
    assert there.ran_on(["GPU-unknown"]) == there.ran_on([]) == ""


def test_attempt_is_kept_under_the_key_that_a_run_on_its_node_alone_would_find() -> None:
    there = hardware(MIXED, NOTES)
    for row, keys, node in (
        (spec("train.py", gpus=2), ("GPU-a0", "GPU-a1"), "n1"),
        (spec("train.py", gpus=2), ("GPU-b0", "GPU-b3"), "n2"),
        (spec("prepare.py", gpus=0), ("host@n1",), "n1"),
        (spec("prepare.py", gpus=0), ("host@n2",), "n2"),
    ):
        device, *others = there.of(row.terms)
        found = kind(row, "both", "python", "digest", device, other_devices=others).on(there.ran_on(keys))
        own = [replace(one, node="", key=one.key_there) for one in MIXED if one.node == node]
        alone = hardware(own, {"": NOTES[node]})
        known = kind(row, "both", "python", "digest", *alone.of(row.terms))
        assert found is not None
        assert (found.key, found.family, found.device) == (known.key, known.family, known.device)


def test_attempt_on_hardware_that_joined_later_is_not_kept_under_another() -> None:
    made = kind(spec("train.py", gpus=1), "both", "python", "digest", "1 x A", other_devices=["1 x B"])
    assert made.on("") == made.on("A") == made
    assert made.on("C") is None
    there = made.on("B")
    assert there is not None
    assert (there.device, there.key != made.key) == ("1 x B", True)


def test_node_that_joins_brings_its_hardware() -> None:
    devices, drivers = [gpu("GPU-a0", "A", node="n1")], {"n1": ""}
    there = hardware(devices, drivers)
    assert there.of(terms(gpus=1)) == ("1 x A 24GiB",)
    devices.append(gpu("GPU-b0", "B", node="n2"))
    drivers["n2"] = " (driver 1)"
    assert there.of(terms(gpus=1)) == ("1 x A 24GiB", "1 x B 24GiB (driver 1)")
