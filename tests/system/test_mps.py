"""Whole runs under MPS: a stand-in daemon that records what it is told, stand-in GPUs, real processes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standin.box import NO_COMPILER
from tests.system.gpu_home import GpuHome, holding, training
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

GIB = 1 << 30
Machine = Callable[..., GpuHome]


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Makes a machine with GPUs and MPS; its paths are short, as the sockets of MPS need it."""
    made: list[GpuHome] = []

    def make(mps: bool = True, **how: Any) -> GpuHome:
        made.append(GpuHome(tmp_path_factory.mktemp("m"), **how))
        if mps:
            made[-1].install_mps()
        return made[-1]

    yield make
    for home in made:
        home.end()


def small(seconds: float = 0.5, **said: Any) -> dict[str, object]:
    return training(peak="2GiB", Memory="3GiB", seconds=seconds, busy=0.1, epochs=2, **said)


def is_paired(home: GpuHome) -> bool:
    """Whether every daemon that was started has ended."""
    said = [line.split()[0] for line in home.mps_notes("start", "stop")]
    return said == ["start", "stop"] * (len(said) // 2) and not home.daemons()


class TestLife:
    def test_one_daemon_for_the_gpu_started_once_and_ended_with_the_run(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(*[small()] * 4)
        home.run("--mps")
        assert [task["state"] for task in home.tasks()] == ["succeeded"] * 4
        assert [task["mps"] for task in home.tasks()] == ["client"] * 4
        assert home.mps_notes("start") == [f"start {home.box.uuids[0]}"]
        assert is_paired(home)
