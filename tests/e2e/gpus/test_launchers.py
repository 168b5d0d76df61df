"""Launchers in whole runs: the command that they get, where it is shown, and what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpu_home import PATIENCE, GpuHome, Row, training
from tests.support.standin.box import NO_COMPILER, TRAIN
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

Machine = Callable[..., GpuHome]
LAUNCHER = f"""#!{sys.executable} -S
import json, os, sys
with open(os.path.join(os.environ["SCHEDULER_TASK_DIR"], "called"), "w") as file:
    json.dump([sys.argv[1:], dict(os.environ)], file)
"""
"""A program in place of a launcher, which notes its words and its environment."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Yield a function that makes a machine with GPUs, and with launchers on PATH."""
    made: list[GpuHome] = []

    def make(**how: Any) -> GpuHome:
        home = GpuHome(tmp_path, **how)
        made.append(home)
        folder = tmp_path / "bin"
        folder.mkdir()
        for name in ("accelerate", "deepspeed", "torchrun"):
            (folder / name).write_text(LAUNCHER)
            (folder / name).chmod(0o755)
        home.env["PATH"] = f"{folder}:{home.env['PATH']}"
        return home

    yield make
    for home in made:
        home.end()


def called(home: GpuHome, task: int, run: int = 1) -> tuple[list[str], dict[str, str]]:
    """Return the words and the environment of a launcher."""
    words, environ = json.loads((home.state / f"runs/{run}/tasks/{task}/called").read_text())
    return words, environ


def row(line: str, **columns: object) -> Row:
    return {"Command": line, "Memory": "1GiB", "HostMemory": "100MiB", **columns}


TWO = ("accelerate launch train.py --lr 1", "deepspeed --num_gpus 2 train.py")


def test_launchers_get_their_port_and_their_gpus_and_views_show_it(machine: Machine) -> None:
    home = machine(gpus=2)
    home.jobs(*[row(line, GPUs=2) for line in TWO], row("torchrun train.py", GPUs=1))
    tasks = sorted({one.task for one in home.run()})
    (first, accelerates), (second, deepspeeds), (_, runs) = (called(home, task) for task in tasks)
    ports = [environ["MASTER_PORT"] for environ in (accelerates, deepspeeds, runs)]
    assert first == ["launch", "--main_process_port", ports[0], "train.py", "--lr", "1"]
    assert second == ["--master_port", ports[1], "train.py"]
    assert deepspeeds["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert accelerates["CUDA_VISIBLE_DEVICES"] == ",".join(home.box.uuids)
    assert runs["PET_MASTER_PORT"] == ports[2]
    assert f"launcher gets --main_process_port {ports[0]}" in home.log()
    assert f"launcher gets --master_port {ports[1]}, without --num_gpus 2" in home.log()
    rows = json.loads(home.call("list", "r1", "--json").stdout)["tasks"]
    assert [one["command"] for one in rows][:2] == [
        f"accelerate launch --main_process_port {ports[0]} train.py --lr 1",
        f"deepspeed --master_port {ports[1]} train.py",
    ]


def test_no_launcher_args_leaves_commands_as_they_are_with_the_same_keys(machine: Machine) -> None:
    home = machine(gpus=2)
    home.jobs(*[row(line, GPUs=2) for line in TWO])
    home.run()
    before = json.loads(home.call("results", "r1", "--json").stdout)["tasks"]
    home.call("run", "jobs.csv", "--no-launcher-args")
    after = json.loads(home.call("results", "r2", "--json").stdout)["tasks"]
    assert [one["command"] for one in after] == list(TWO)
    assert [called(home, one["id"], 2)[0] for one in after] == [line.split()[1:] for line in TWO]
    assert [one["key"] for one in after] == [one["key"] for one in before]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("deepspeed --num_gpus 2 train.py", "deepspeed --num_gpus 2 takes the first 2 GPUs of the machine"),
        ("deepspeed --include localhost:1 train.py", "deepspeed --include localhost:1 chooses GPUs by itself"),
        ("accelerate launch --gpu_ids 1 train.py", "accelerate launch --gpu_ids 1 chooses GPUs by itself"),
    ],
)
def test_a_launcher_that_chooses_gpus_by_itself_is_refused_with_row_and_column(
    machine: Machine, line: str, said: str
) -> None:
    home = machine(gpus=2)
    home.jobs(row("torchrun train.py"), row(line))
    refused = home.call("run", "jobs.csv", code=2).stderr
    assert "jobs.csv, row 3, column Command: " + said in refused
    assert refused.count("\n") == 1
    assert home.call("run", "jobs.csv", "--dry-run", code=2).stderr == refused
    home.call("run", "jobs.csv", "--no-launcher-args")


def test_a_submitted_launcher_gets_its_port_unless_it_is_left_alone(machine: Machine) -> None:
    home = machine(gpus=2)
    for flags in ((), ("--no-launcher-args",)):
        home.call("exec", *flags, "--memory", "1GiB", "--", "accelerate", "launch", "train.py")
    (first, environ), (second, _) = (called(home, task) for task in (0, 1))
    assert first == ["launch", "--main_process_port", environ["MASTER_PORT"], "train.py"]
    assert second == ["launch", "train.py"]
    refused = home.call("submit", "--", "deepspeed", "--num_gpus", "2", "train.py", code=2).stderr
    assert "deepspeed --num_gpus 2 takes the first 2 GPUs of the machine, and the task has 1" in refused


ASTRAY = f"""
import os, sys, time
sys.path.insert(0, {str(TRAIN.parent)!r})
import client
given = os.environ["CUDA_VISIBLE_DEVICES"]
client.Cuda().allocate(0, 1 << 30)
(other,) = {{*os.environ["ALL_GPUS"].split(",")}} - {{given}}
os.environ["CUDA_VISIBLE_DEVICES"] = other
client.Cuda().allocate(0, 3 << 30)
while not os.path.exists("go"):
    time.sleep(0.01)
"""
"""A script that takes 3 GiB of a GPU that it was not given, beside 1 GiB of its own."""


def test_memory_on_a_gpu_that_a_task_was_not_given_is_named_everywhere_and_counts_there(machine: Machine) -> None:
    home = machine(gpus=2)
    (home.root / "astray.py").write_text(ASTRAY)
    home.env["ALL_GPUS"] = ",".join(home.box.uuids)
    home.jobs(training("astray.py", Memory="2GiB", Device=0, GPUs=1))
    words = "used 3.0GiB of GPU 1, which it was not given"
    with home.going():
        home.wait_for_words("holds 3.0GiB on GPU 1, a GPU that it was not given")
        task = home.tries()[0].task
        wait_until(lambda: words in home.call("why", str(task)).stdout, PATIENCE)
        row = next(one for one in json.loads(home.call("list", "r1", "--json").stdout)["tasks"] if one["id"] == task)
        assert row["reason"] == words
        home.go()
    assert words in home.call("why", str(task)).stdout
    home.call("report", "r1", "-o", "report.html")
    assert words in (home.root / "report.html").read_text()


def test_memory_of_a_task_on_a_gpu_that_it_was_not_given_is_left_out_of_a_budget(machine: Machine) -> None:
    home = machine(gpus=2)
    (home.root / "astray.py").write_text(ASTRAY)
    home.env["ALL_GPUS"] = ",".join(home.box.uuids)
    home.jobs(
        training("astray.py", Memory="2GiB", Device=0, GPUs=1, Priority=0),
        training(peak="1GiB", seconds=0.1, Memory="8GiB", Device=1, GPUs=1, Priority=1, Begin="+6s"),
    )
    with home.going("--devices", "0:10GiB,1:10GiB"):
        home.wait_for_words("a GPU that it was not given")
        first = home.tries()[0].task
        said = wait_until(lambda: _waits(home, first + 1), PATIENCE)
        assert f"task {first} (not given this GPU)" in said
        home.go()
    assert {one.outcome for one in home.tries()} == {"succeeded"}


def _waits(home: GpuHome, task: int) -> str:
    """Return why a task waits for memory; empty if it does not."""
    said = home.call("why", str(task)).stdout
    return said if "not given" in said else ""


def test_a_script_that_takes_a_uuid_for_a_number_fails_with_the_flag_that_cures_it(machine: Machine) -> None:
    home = machine(gpus=1)
    (home.root / "number.py").write_text('import os\nprint(int(os.environ["CUDA_VISIBLE_DEVICES"]))\n')
    home.jobs({"Command": f"{sys.executable} number.py", "GPUs": 1, "Memory": "1GiB"})
    said = home.call("run", "jobs.csv", code=1)
    hint = "exit 1: it takes a GPU's UUID for a number: give it numbers with --visible index"
    assert hint in home.log()
    (row,) = json.loads(home.call("list", "r1", "--json").stdout)["tasks"]
    assert (row["reason"], row["exit_code"]) == (hint, 1), said
    home.call("run", "jobs.csv", "--new", "--visible", "index", code=0)
