"""Runs on the nodes of a Slurm allocation, with the real Slurm on stand-in machines."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import killing
from tests.support.standin import calls, nodes, slurm
from tests.support.standin.box import build
from tests.support.standin.nodes import Lab
from tests.support.standin.slurm import Slurm
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(not nodes.can_be_made(), reason=nodes.MISSING),
    pytest.mark.skipif(not slurm.is_here(), reason=slurm.MISSING),
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Yield a head in an allocation of three nodes with two GPUs each."""
    made = Lab(tmp_path, "n1", "n2", "n3", gpus=2)
    with contextlib.closing(Slurm(made)) as cluster:
        made.env = {**cluster.env, **cluster.allocate("--no-kill")}
        yield made
        made.env = {**made.env, "SLURM_JOB_ID": "", "SLURM_JOB_NODELIST": ""}
    made.end()


def kill_step(node: str) -> None:
    """Kill srun of a node together with its helper, which would cancel the step."""
    groups = {os.getpgid(pid) for pid in killing.processes() if f"--nodelist={node}" in killing.command_line(pid)}
    for group in groups:
        os.killpg(group, signal.SIGKILL)


def test_a_list_runs_on_all_nodes_of_an_allocation_once(lab: Lab) -> None:
    lab.once(12)
    lab.call("run", "jobs.csv", "--on", "slurm", "--plain", code=0)
    lab.check_once(12)
    assert {line.split()[1] for line in lab.told("begin")} == {"n1", "n2", "n3"}
    for node in lab.nodes.values():
        assert not node.agents()


def test_the_tasks_of_a_node_run_on_while_its_step_is_killed(lab: Lab) -> None:
    lab.once(12, 1.0)
    with lab.going("run", "jobs.csv", "--on", "slurm", "--plain"):
        wait_until(lambda: {"n1", "n2", "n3"} <= {line.split()[1] for line in lab.told("begin")}, 20)
        kill_step("n1")
    lab.check_once(12)


def test_a_killed_head_is_resumed_in_its_allocation_and_every_task_ends_once(lab: Lab) -> None:
    lab.once(12, 1.0)
    with lab.going("run", "jobs.csv", "--on", "slurm", "--plain", code=None):
        wait_until(lambda: len(lab.told("begin")) >= 4, 20)
        killing.kill(lab.scheduler())
    lab.call("resume", "--plain", code=0)
    lab.check_once(12)


def test_the_others_finish_the_list_when_a_node_of_the_allocation_is_powered_off(lab: Lab) -> None:
    lab.once(9, 2.0)
    with lab.going("run", "jobs.csv", "--on", "slurm", "--node-fence", "5s", "--grace", "1s", "--plain"):
        wait_until(lambda: "n3" in {line.split()[1] for line in lab.told("begin")}, 40)
        lab.nodes["n3"].power_off()
        wait_until(lambda: "start again on the other nodes" in lab.log(), 30)
    assert [row["state"] for row in lab.tasks()] == ["succeeded"] * 9
    assert not lab.told("twice")


def test_tasks_that_cannot_end_before_their_allocation_wait_for_a_longer_one(lab: Lab) -> None:
    lab.once(3)
    limit = ["scontrol", "update", f"JobId={lab.env['SLURM_JOB_ID']}", "TimeLimit=1"]
    subprocess.run(limit, env=lab.env, check=True)
    told = lab.call("run", "jobs.csv", "--on", "slurm", "--timeout", "2m", "--plain", code=1)
    assert "3 tasks wait for a longer allocation (task 0 may take 2m00s (Timeout), and the nodes end in " in told.stdout
    assert not lab.told("begin")
    limit[-1] = "TimeLimit=5"
    subprocess.run(limit, env=lab.env, check=True)
    lab.call("resume", "--plain", code=0)
    lab.check_once(3)


def test_on_slurm_is_refused_outside_an_allocation(lab: Lab) -> None:
    lab.once(1)
    lab.env = {**lab.env, "SLURM_JOB_ID": ""}
    told = lab.call("run", "jobs.csv", "--on", "slurm", "--plain", code=2)
    assert "this is no Slurm allocation: start it with salloc or in a batch script of sbatch" in told.stderr


@pytest.mark.long
def test_calls_of_an_executor_are_made_in_an_allocation(lab: Lab) -> None:
    build()
    lab.command = [sys.executable]
    (lab.root / "program.py").write_text(calls.PROGRAM)
    assert lab.call("program.py", "slurm", code=0).stdout == calls.SAID
