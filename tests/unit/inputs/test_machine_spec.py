"""Descriptions of simulated machines, as users write them."""

from __future__ import annotations

import pytest

from scheduler.core.model import HOST
from scheduler.errors import UsageError
from scheduler.simulation.machine_spec import parse_machine
from scheduler.units import GIB


def machine(said: str) -> list[tuple[str, int]]:
    return [(device.label, device.total) for device in parse_machine(said, 4.0)]


def test_number_and_size_give_gpus_of_one_size() -> None:
    assert machine("3x24GiB") == [("GPU 0", 24 * GIB), ("GPU 1", 24 * GIB), ("GPU 2", 24 * GIB)]


def test_a_list_gives_gpus_of_several_sizes_and_a_host() -> None:
    assert machine("24G, 2 x 80GiB, host:64GiB") == [
        ("GPU 0", 24 * GIB),
        ("GPU 1", 80 * GIB),
        ("GPU 2", 80 * GIB),
        (HOST, 64 * GIB),
    ]


def test_the_host_gets_the_cores() -> None:
    (host,) = parse_machine("host:64GiB", 6.0)
    assert (host.key, host.load_capacity, host.is_gpu) == (HOST, 6.0, False)


def test_brackets_give_nodes_with_devices_of_their_own() -> None:
    devices = parse_machine("2x(2x24GiB, host:64GiB), (80GiB)", 6.0)
    assert [(one.node, one.key, one.label, one.index) for one in devices] == [
        ("n1", "GPU-n1-0", "n1 GPU 0", 0),
        ("n1", "GPU-n1-1", "n1 GPU 1", 1),
        ("n1", "host@n1", "n1 host", -1),
        ("n2", "GPU-n2-0", "n2 GPU 0", 0),
        ("n2", "GPU-n2-1", "n2 GPU 1", 1),
        ("n2", "host@n2", "n2 host", -1),
        ("n3", "GPU-n3-0", "n3 GPU 0", 0),
    ]
    assert [one.load_capacity for one in devices if one.is_host] == [6.0, 6.0]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("", "it names no device"),
        ("big", "'big' is no device: write 8x24GiB for GPUs, host:64GiB for RAM, 3x(4x24GiB,host:64GiB) for nodes"),
        ("8x24", "'24' has no unit: write 24GiB or 24MiB"),
        ("0x24GiB", "0 GPUs are not between 1 and 10,000"),
        ("2x0GiB", "a device without memory holds nothing"),
        ("host", "'host' is no device"),
        ("host:8GiB,host:9GiB", "there is one host, 'host:9GiB' names another"),
        ("gpu:8GiB", "'gpu:8GiB' is no device"),
        ("2x(8GiB", "'2x(8GiB' belongs to no node"),
        ("2x(8GiB),8GiB", "'8GiB' belongs to no node"),
        ("2x()", "it names no device"),
        ("0x(8GiB)", "0 nodes are not between 1 and 10,000"),
        ("2x(big)", "'big' is no device"),
    ],
)
def test_text_that_is_no_machine_is_refused_with_the_reason(said: str, error: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_machine(said, 4.0)
    assert error in str(caught.value)
