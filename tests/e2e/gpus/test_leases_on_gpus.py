"""Leases on stand-in GPUs: what the process sees, what it uses, and what others are told of it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpu_home import GpuHome, holding
from tests.support.killing import Started
from tests.support.standin.box import NO_COMPILER, TRAIN
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

GIB = 1 << 30
PROGRAM = f"""\
import json, os, sys, time, scheduler
sys.path.insert(0, {str(TRAIN.parent)!r})
import client
fields, take = json.loads(os.environ["FIELDS"]), float(os.environ["TAKE"])
with scheduler.lease(**fields) as lease:
    cuda = client.Cuda()
    if os.environ.get("IN_A_FORK"):
        cuda = None
        if os.fork() == 0:
            client.Cuda().allocate(0, int(take * 2**30))
            time.sleep(600)
    for position in range(len(cuda.devices()) if cuda else 0):
        cuda.allocate(position, int(take * 2**30))
    with open("held.part", "w") as file:
        json.dump([lease.task_id, lease.gpus, cuda.devices() if cuda else []], file)
    os.rename("held.part", "held")
    while not os.path.exists("go"):
        time.sleep(0.02)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GpuHome]:
    made = GpuHome(tmp_path, gpus=2, total="24GiB")
    (tmp_path / "program.py").write_text(PROGRAM)
    yield made
    made.end()


def leased(home: GpuHome, take: float = 1.0, **fields: Any) -> Started:
    """Start the program, and wait until it has its lease and its memory."""
    (home.root / "held").unlink(missing_ok=True)
    ours, home.command = home.command, [sys.executable]
    env = {**home.env, "FIELDS": json.dumps(fields), "TAKE": str(take)}
    process = home.start("program.py", env=env)
    home.command = ours
    wait_until((home.root / "held").exists, 30)
    return process


def facts(home: GpuHome) -> list[Any]:
    found: list[Any] = json.loads((home.root / "held").read_text())
    return found


def ended(home: GpuHome, process: Started) -> None:
    home.go()
    assert process.wait(20) == 0
    (home.root / "go").unlink()


def test_the_process_sees_its_gpus_and_its_peak_on_each_is_learned(home: GpuHome) -> None:
    process = leased(home, 3.0, gpus=2, memory="4GiB")
    task, gpus, devices = facts(home)
    assert (task, gpus, devices) == (0, [0, 1], home.box.uuids)
    wait_until(lambda: home.tries()[0].seen.get("1", 0) == 3 * GIB, 20)
    ended(home, process)
    (row,) = wait_until(lambda: [one for one in home.tasks("queue") if one["state"] == "succeeded"], 10)
    assert row["peak_bytes"] == 3 * GIB
    again = leased(home, 3.0, gpus=2)
    assert wait_until(lambda: home.tries()[1:], 10)[0].source == "profile"
    ended(home, again)


@pytest.mark.parametrize("where", ["", "IN_A_FORK"])
def test_other_schedulers_count_the_use_of_the_guest_as_that_of_its_lease(home: GpuHome, where: str) -> None:
    """It is reserved and in use at once: counted twice, 18 GiB would not fit beside it."""
    if where:
        home.env[where] = "yes"
    process = leased(home, 3.0, memory="4GiB", device="0")
    home.jobs(holding("1GiB", Memory="18GiB", Device="0"))
    with home.going():
        wait_until(lambda: home.tries(2) and home.tries(2)[0].pid, 20)
        status = json.loads(home.call("status", "--json", code=0).stdout)
        leases = {lease["pid"]: lease for lease in status["leases"]}
        assert 3 * GIB in leases[process.pid]["used"].values(), leases
        assert "unmanaged" not in home.call("status", code=0).stdout
        home.go()
    assert process.wait(20) == 0


def test_a_process_that_used_the_gpu_before_does_not_wait_for_its_own_memory(home: GpuHome) -> None:
    early = "os.environ['CUDA_VISIBLE_DEVICES'] = '1'\nclient.Cuda().allocate(0, 2 * 2**30)\nwith scheduler.lease"
    (home.root / "program.py").write_text(PROGRAM.replace("with scheduler.lease", early))
    process = leased(home, 1.0, memory="4GiB")
    assert facts(home)[1] == [1], "it keeps the only GPU that it sees"
    wait_until(lambda: home.tries()[0].seen.get("1", 0) >= GIB, 20)
    ended(home, process)


def test_a_killed_process_frees_its_gpu_for_the_next_lease(home: GpuHome) -> None:
    first = leased(home, 1.0, memory="20GiB", device="0")
    script = "echo $SCHEDULER_GPU_INDICES >next"
    with home.start("lease", "--memory", "20GiB", "--device", "0", "--", "sh", "-c", script) as following:
        wait_until(lambda: len(home.tasks("queue")) == 2, 20)
        assert "waits for GPU memory" in home.call("why", "1").stdout
        first.kill()
        assert following.wait(20) == 0
    assert (home.root / "next").read_text() == "0\n"


def test_visible_gpus_are_those_of_the_shells_own_tasks_and_leases_and_limit_no_other_shell(home: GpuHome) -> None:
    gpus = ("sh", "-c", "echo $SCHEDULER_GPU_INDICES")
    home.env["CUDA_VISIBLE_DEVICES"] = "1"
    home.call("submit", "--memory", "1GiB", "--", *gpus, code=0)  # begins the queue
    home.env["CUDA_VISIBLE_DEVICES"] = "0,1"
    assert home.call("lease", "--memory", "1GiB", "--gpus", "2", "--", *gpus, code=0).stdout == "0,1\n"
    home.env["CUDA_VISIBLE_DEVICES"] = "5"
    said = home.call("submit", "--", "true", code=2).stderr
    assert "there is no device '5' in this run; there is: GPU 0, GPU 1" in said
    assert "(CUDA_VISIBLE_DEVICES=5 in the shell that submits)" in said
    del home.env["CUDA_VISIBLE_DEVICES"]
    home.call("submit", "--memory", "1GiB", "--device", "0", "--", *gpus, code=0)
    few = home.call("submit", "--device", "0", "--gpus", "2", "--", "true", code=2).stderr
    assert "needs 2 GPUs; '0' names 1 GPU of this run" in few
    wait_until(lambda: home.states("queue") == ["succeeded"] * 3, 20)
    rows = home.tasks("queue")
    assert [Path(rows[number]["log"]).read_text() for number in (0, 2)] == ["1\n", "0\n"]


def test_a_launcher_in_a_leased_command_gets_its_port(home: GpuHome) -> None:
    folder = home.root / "bin"
    folder.mkdir()
    (folder / "accelerate").write_text('#!/bin/sh\necho $MASTER_PORT "$@"\n')
    (folder / "accelerate").chmod(0o755)
    home.env["PATH"] = f"{folder}:{home.env['PATH']}"
    done = home.call("lease", "--memory", "1GiB", "--gpus", "2", "--", "accelerate", "launch", "a.py", code=0)
    port, *words = done.stdout.split()
    assert words[0] == "launch"
    assert words[-1] == "a.py"
    assert port in words
