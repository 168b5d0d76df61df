"""Limits on GPU memory without MPS: PyTorch's own, on stand-in GPUs; what is refused, and what is said about it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gpu_home import GpuHome, holding, training
from tests.support.standin.box import NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]
GIB = 1 << 30


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GpuHome]:
    made = GpuHome(tmp_path, gpus=1, total="20GiB")
    yield made
    made.end()


def install_torch(home: GpuHome, *, knows: bool = True) -> None:
    """Have the tasks' Python find the files of a PyTorch that reads the option, or of an older one."""
    folder = home.root / "packages" / "torch" / "lib"
    folder.mkdir(parents=True)
    text = b"max_split_size_mb\0per_process_memory_fraction\0" if knows else b"max_split_size_mb\0"
    (folder / "libc10_cuda.so").write_bytes(b"\x7fELF" + text)
    home.env["PYTHONPATH"] += f"{os.pathsep}{home.root / 'packages'}"


def environment(home: GpuHome, task: int) -> dict[str, str]:
    """Return the variables of a holding task."""
    _, said = json.loads((home.state / f"runs/1/tasks/{task}/told").read_text())
    return dict(said)


def test_task_that_hits_its_fence_runs_out_alone_and_starts_again_with_more(home: GpuHome) -> None:
    install_torch(home)
    home.jobs(holding("3GiB", Memory="4GiB"), training(peak="6GiB", Memory="4GiB", seconds=0.3))
    with home.going("--fence", "torch"):
        home.wait_for(1, "oom")
        home.wait_for(1, "succeeded")
        home.go()
    first, neighbour = ([one for one in home.tries() if one.task == task] for task in (1, 0))
    assert [one.outcome for one in first] == ["oom", "succeeded"]
    assert first[1].first["0"] > 6 * GIB
    assert [one.outcome for one in neighbour] == ["succeeded"], "the neighbour ran on"
    assert home.box.ooms(0) == 0, "the GPU itself was never full"
    assert "fence   a task cannot use more GPU memory than was reserved for it at its start" in home.log()


def test_limit_is_added_to_the_options_of_the_user_and_a_lower_one_stays(home: GpuHome) -> None:
    install_torch(home)
    home.env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    low = "per_process_memory_fraction:0.05,max_split_size_mb:64"
    home.jobs(
        holding("1GiB", Memory="4GiB"),
        {**holding("1GiB", Memory="4GiB"), "Env": f"PYTORCH_CUDA_ALLOC_CONF={low}"},
    )
    with home.going("--fence", "torch"):
        home.wait_for(2)
        wait_until(lambda: home.box.used(0) == 2 * GIB)
        home.go()
    assert (
        environment(home, 0)["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True,per_process_memory_fraction:0.2000"
    )
    said = environment(home, 1)["PYTORCH_CUDA_ALLOC_CONF"]
    assert said == "max_split_size_mb:64,per_process_memory_fraction:0.0500"
    assert "PYTORCH_ALLOC_CONF" not in environment(home, 0)


def test_task_whose_pytorch_would_not_read_the_limit_gets_none_and_the_log_says_so(home: GpuHome) -> None:
    install_torch(home, knows=False)
    home.jobs(holding("1GiB", Memory="4GiB"), holding("1GiB", Memory="4GiB"))
    with home.going("--fence", "torch"):
        home.wait_for(2)
        wait_until(lambda: home.box.used(0) == 2 * GIB)
        home.go()
    assert "PYTORCH_ALLOC_CONF" not in environment(home, 0)
    assert home.log().count("has no PyTorch for GPUs of 2.10 or newer, so its tasks have no limit") == 1


def test_fence_of_a_resumed_run_stays(home: GpuHome) -> None:
    install_torch(home)
    home.jobs(holding("1GiB", Memory="4GiB"))
    process = home.start("run", "jobs.csv", "--fence", "torch")
    home.wait_for(1)
    home.kill_all()
    process.wait()
    with home.going(verb="resume"):
        home.wait_for(2)
        wait_until(lambda: home.box.used(0))
        home.go()
    assert environment(home, 0)["PYTORCH_ALLOC_CONF"] == "per_process_memory_fraction:0.2000"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--fence", "10m"], "--fence 10m: write torch or dmem"),
        (["--fence", "torch", "--mps"], "--fence torch is for tasks outside of MPS"),
        (["--fence", "torch", "--devices", "host"], "--fence torch: this run has no GPU of its own to limit"),
        (["--fence", "dmem"], "--fence dmem: "),
    ],
    ids=["another word", "under MPS", "no GPU", "kernel"],
)
def test_fence_that_is_impossible_is_refused_before_anything_starts(
    home: GpuHome, flags: list[str], words: str
) -> None:
    home.jobs(training(peak="1GiB"))
    refused = home.call("run", "jobs.csv", *flags, code=2).stderr
    assert words in refused
    assert not home.tries()
