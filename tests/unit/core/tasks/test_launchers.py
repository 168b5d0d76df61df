"""Launchers in commands: the port that they get, and the device options that go or are refused."""

from __future__ import annotations

import shlex

import pytest

from scheduler.core.tasks.launchers import LauncherCalls

PORT = "20008"
A, D = f"--main_process_port {PORT}", f"--master_port {PORT}"


def adapted(line: str, gpus: int = 2) -> str:
    return shlex.join(LauncherCalls(shlex.split(line)).adapted(PORT, gpus))


@pytest.mark.parametrize(
    ("said", "started"),
    [
        ("accelerate launch train.py --lr 1", f"accelerate launch {A} train.py --lr 1"),
        ("/env/bin/accelerate launch --cpu train.py", f"/env/bin/accelerate launch {A} --cpu train.py"),
        ("accelerate-launch train.py", f"accelerate-launch {A} train.py"),
        ("accelerate launch train.py --main_process_port 5", f"accelerate launch {A} train.py --main_process_port 5"),
        ("python -m accelerate.commands.launch t.py", f"python -m accelerate.commands.launch {A} t.py"),
        (
            "python3.12 -u -m accelerate.commands.accelerate_cli launch t.py",
            f"python3.12 -u -m accelerate.commands.accelerate_cli launch {A} t.py",
        ),
        ("uv run --frozen accelerate launch t.py", f"uv run --frozen accelerate launch {A} t.py"),
        ("conda run -n deepspeed accelerate launch t.py", f"conda run -n deepspeed accelerate launch {A} t.py"),
        ("env A=1 B=2 deepspeed t.py", f"env A=1 B=2 deepspeed {D} t.py"),
        ("nice -n 5 timeout 1h deepspeed t.py", f"nice -n 5 timeout 1h deepspeed {D} t.py"),
        ("deepspeed --module train --master_port 5", f"deepspeed {D} --module train --master_port 5"),
        ("python -m deepspeed.launcher.runner t.py", f"python -m deepspeed.launcher.runner {D} t.py"),
        ("python /env/bin/deepspeed t.py", f"python /env/bin/deepspeed {D} t.py"),
        (
            "torchrun --rdzv-backend=c10d --nproc-per-node 2 t.py",
            f"torchrun --rdzv-endpoint localhost:{PORT} --rdzv-backend=c10d --nproc-per-node 2 t.py",
        ),
    ],
)
def test_a_launcher_that_names_no_port_gets_the_one_of_its_attempt(said: str, started: str) -> None:
    assert adapted(said) == started


@pytest.mark.parametrize(
    "said",
    [
        "accelerate launch --main_process_port 5 t.py",
        "accelerate launch --main-process-port=5 t.py",
        "accelerate launch --num_machines 2 --machine_rank 1 t.py",
        "accelerate config",
        "deepspeed --master_port 5 t.py",
        "deepspeed --hostfile hosts t.py",
        "torchrun --nproc-per-node 2 t.py",
        "torchrun --standalone --rdzv-backend c10d t.py",
        "torchrun --rdzv-backend c10d --rdzv-endpoint node1:29400 t.py",
        "conda run -n deepspeed python t.py",
        "uv run --with deepspeed t.py",
        "uv run tool deepspeed",
        "python t.py deepspeed",
        "python -m train deepspeed",
        "./train.sh accelerate launch",
        "train",
    ],
)
def test_all_other_commands_stay_as_they_are(said: str) -> None:
    assert adapted(said) == said


class TestDeepspeed:
    @pytest.mark.parametrize("option", ["--num_gpus 2", "--num_gpus=2", "--num_accelerators 2", "--num_nodes 1"])
    def test_an_option_that_says_what_the_task_has_goes_because_it_hides_which_gpus_these_are(
        self, option: str
    ) -> None:
        assert adapted(f"deepspeed {option} --no_python t.py --num_gpus 2") == (
            f"deepspeed {D} --no_python t.py --num_gpus 2"
        )

    def test_without_gpus_the_number_of_processes_stays(self) -> None:
        assert adapted("deepspeed --num_gpus 2 t.py", 0) == f"deepspeed {D} --num_gpus 2 t.py"

    @pytest.mark.parametrize(
        ("option", "said"),
        [
            (
                "--num_gpus 4",
                "takes the first 4 GPUs of the machine, and the task has 2: remove it, and give the task GPUs=4",
            ),
            ("--include localhost:0,1", "chooses GPUs by itself"),
            ("-e localhost:3", "chooses GPUs by itself"),
            ("--hostfile=hosts", "chooses GPUs by itself"),
            ("--num_nodes 2", "needs other machines"),
        ],
    )
    def test_an_option_that_chooses_other_gpus_is_a_fault(self, option: str, said: str) -> None:
        fault = LauncherCalls(["deepspeed", *option.split(), "t.py"]).fault(2)
        assert said in fault
        assert option.replace("=", " ").split()[0] in fault

    @pytest.mark.parametrize("option", ["", "--num_gpus 2", "--num_nodes 1", "--module"])
    def test_an_option_that_does_not_is_none(self, option: str) -> None:
        assert LauncherCalls(["deepspeed", *option.split(), "t.py", "--include", "all"]).fault(2) == ""

    def test_only_deepspeed_reads_numbers(self) -> None:
        lines = ("deepspeed t.py", "uv run deepspeed t.py", "accelerate launch t.py", "torchrun t.py", "python t.py")
        assert [LauncherCalls(line.split()).reads_numbers for line in lines] == [True, True, False, False, False]


def test_gpu_ids_of_accelerate_are_a_fault_unless_all() -> None:
    said = LauncherCalls(["accelerate", "launch", "--gpu_ids", "0,1", "t.py"]).fault(2)
    assert said.startswith("accelerate launch --gpu_ids 0,1 chooses GPUs by itself, and not the 2 of the task")
    assert LauncherCalls(["accelerate", "launch", "--gpu_ids", "all", "t.py", "--gpu_ids", "0"]).fault(2) == ""


@pytest.mark.parametrize(
    ("said", "started"),
    [
        ("accelerate launch t.py 'a  b' > log 2>&1", f"accelerate launch {A} t.py 'a  b' > log 2>&1"),
        ("A=1 deepspeed  --num_gpus 2  t.py", f"A=1 deepspeed {D}  t.py"),
        (
            "cd there && accelerate launch t.py; deepspeed t.py",
            f"cd there && accelerate launch {A} t.py; deepspeed {D} t.py",
        ),
        ("accelerate launch a.py & accelerate launch b.py", "accelerate launch a.py & accelerate launch b.py"),
        ("echo 'x && accelerate launch' y", "echo 'x && accelerate launch' y"),
    ],
)
def test_a_line_for_a_shell_keeps_its_text_around_what_changes(said: str, started: str) -> None:
    assert LauncherCalls(("/bin/sh", "-c", said)).adapted(PORT, 2) == ("/bin/sh", "-c", started)


def test_the_change_is_told_in_a_few_words() -> None:
    assert LauncherCalls(["deepspeed", "--num_gpus", "2", "t.py"]).changes(PORT, 2) == f"{D}, without --num_gpus 2"
    assert LauncherCalls(["python", "t.py"]).changes(PORT, 2) == ""


@pytest.mark.parametrize("said", ["torchrun --nnodes 2 t.py", "accelerate launch --main_process_ip node1 t.py"])
def test_processes_on_several_machines_are_told_apart(said: str) -> None:
    assert LauncherCalls(said.split()).crosses_machines
    assert not LauncherCalls(["torchrun", "--nnodes", "1:1", "t.py"]).crosses_machines
