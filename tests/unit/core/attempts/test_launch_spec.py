"""Launch specifications: the whole description of an attempt, its environment, and where it is sampled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from signal import Signals
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.core.attempts.launch_spec import APART, LaunchBuilder, TaskEnvironment
from scheduler.core.leases import HeldLease
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import HOST, Device, EstimateSource, Job, Placement, Purpose, TaskShell, Warn
from scheduler.core.ports import Launch, MpsLaunch, Watched
from scheduler.core.tasks import command
from scheduler.units import GIB
from tests.support.builders import spec

LEASE = HeldLease("/leases/7.2", 9)
PLACEMENT = Placement(7, 2, Purpose.RUN, {"GPU-b": 2 * GIB, "GPU-a": 3 * GIB, HOST: GIB}, 1.5, EstimateSource.PROFILE)


class Paths:
    """Paths that say what they are for."""

    def task(self, task: int) -> str:
        return f"/tasks/{task}"

    def result(self, task: int, attempt: int) -> str:
        return f"/tasks/{task}/{attempt}.result"

    def progress(self, task: int, attempt: int) -> str:
        return f"/tasks/{task}/{attempt}.progress"

    def metrics(self, task: int, attempt: int) -> str:
        return f"/tasks/{task}/{attempt}.metrics"

    def task_log(self, task: int, attempt: int) -> PurePosixPath:
        return PurePosixPath(f"/tasks/{task}/{attempt}.log")

    def task_errors(self, task: int, attempt: int) -> PurePosixPath:
        return PurePosixPath(f"/tasks/{task}/{attempt}.err")


class Gpus:
    """Two GPUs whose numbers are not those of their order."""

    looks = 0

    def discover(self) -> list[Device]:
        self.looks += 1
        return [Device("GPU-a", "GPU 4", 24 * GIB, 1.0, 4), Device("GPU-b", "GPU 1", 24 * GIB, 1.0, 1)]

    def environment_for(self, placement: Placement, *, numbers: bool = False) -> dict[str, str]:
        named = [str(number) for number in self.cuda_numbers(placement)] if numbers else placement.sees
        return {"CUDA_VISIBLE_DEVICES": ",".join(named), "ORDER": "devices"}

    def cuda_numbers(self, placement: Placement) -> list[int]:
        return [{"GPU-a": 0, "GPU-b": 1}[key] for key in placement.sees]


def builder(
    sharing: Any = None, gpus: Gpus | None = None, metrics: str = "", watched: str = "", **environ: str
) -> LaunchBuilder:
    around = TaskEnvironment("r3", "/python", "/home/ben", Paths(), environ, metrics, watched)
    return LaunchBuilder(around, gpus or Gpus(), 2, sharing)  # type: ignore[arg-type]  # of its ports what is used


def job(append: str = "both", environ: tuple[Any, ...] = (), shell: TaskShell | None = None, **row: Any) -> Job:
    texts = {"filename": "", "command": "train --lr 1", "epochs": 5, **row}
    files = {name: texts.pop(name) for name in ("stdout", "stderr") if name in texts}
    return Job(replace(spec(**texts), **files), "train", "abc123", append, environ, shell)


def test_a_task_is_told_all_that_the_reference_lists() -> None:
    assert builder().launch(PLACEMENT, job(), LEASE).env == {
        "SCHEDULER_TASK_ID": "7",
        "SCHEDULER_ATTEMPT": "2",
        "SCHEDULER_KEY": "abc123",
        "SCHEDULER_NAME": "train",
        "SCHEDULER_RUN": "r3",
        "SCHEDULER_PURPOSE": "run",
        "SCHEDULER_EPOCHS": "5",
        "SCHEDULER_MEMORY_BYTES": str(3 * GIB),
        "SCHEDULER_HOST_MEMORY_BYTES": str(GIB),
        "SCHEDULER_GPU_INDICES": "1,4",
        "SCHEDULER_TASK_DIR": "/tasks/7",
        "SCHEDULER_RESULT": "/tasks/7/2.result",
        "SCHEDULER_PROGRESS": "/tasks/7/2.progress",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a",
        "ORDER": "devices",
    }


def ports(
    env: tuple[tuple[str, str], ...] = (), shell: TaskShell | None = None, port: int = 20008, **environ: str
) -> dict[str, str | None]:
    """Return what an attempt with a port is told about ports."""
    row = replace(spec(filename="", command="train"), env=env)
    told = builder(**environ).launch(replace(PLACEMENT, port=port), Job(row, "t", "k", shell=shell), LEASE).env
    return {name: value for name, value in told.items() if name.endswith("MASTER_PORT")}


class TestPort:
    def test_a_task_is_told_its_port_by_each_name_that_programs_read(self) -> None:
        assert ports() == {"MASTER_PORT": "20008", "PET_MASTER_PORT": "20008"}

    def test_a_port_that_the_shell_exports_for_all_tasks_is_replaced(self) -> None:
        told = ports(MASTER_PORT="29500", PET_MASTER_PORT="29500", MASTER_ADDR="localhost")
        assert told == {"MASTER_PORT": "20008", "PET_MASTER_PORT": "20008"}

    def test_a_port_that_the_row_names_stays(self) -> None:
        assert ports((("MASTER_PORT", "4000"),)) == {"MASTER_PORT": "4000", "PET_MASTER_PORT": "20008"}

    def test_a_task_that_meets_others_at_another_machine_keeps_its_port(self) -> None:
        shell = TaskShell({"MASTER_ADDR": "node1"}, "python", {})
        assert ports(MASTER_ADDR="node1") == ports(shell=shell) == {}
        assert ports((("MASTER_ADDR", "node1"),), MASTER_ADDR="localhost") == {}

    def test_a_task_without_a_port_is_told_none(self) -> None:
        assert ports(port=0) == {}


def test_a_task_without_gpus_and_epochs_is_told_so() -> None:
    here = replace(PLACEMENT, reservation={HOST: 0})
    env = builder().launch(here, job(epochs=None), LEASE).env
    told = {name: env[f"SCHEDULER_{name}"] for name in ("EPOCHS", "MEMORY_BYTES", "HOST_MEMORY_BYTES", "GPU_INDICES")}
    assert told == {"EPOCHS": "", "MEMORY_BYTES": "0", "HOST_MEMORY_BYTES": "0", "GPU_INDICES": ""}


def test_the_reserved_ram_of_a_task_without_any_is_0() -> None:
    here = replace(PLACEMENT, reservation={"GPU-a": GIB})
    assert builder().launch(here, job(), LEASE).env["SCHEDULER_HOST_MEMORY_BYTES"] == "0"


def test_a_task_that_is_told_another_id_gets_its_folder_too() -> None:
    env = builder().launch(replace(PLACEMENT, told=12), job(), LEASE).env
    assert (env["SCHEDULER_TASK_ID"], env["SCHEDULER_TASK_DIR"]) == ("12", "/tasks/12")


def test_a_gpu_that_is_gone_has_no_number() -> None:
    here = replace(PLACEMENT, reservation={"GPU-gone": GIB, "GPU-a": GIB})
    assert builder().launch(here, job(), LEASE).env["SCHEDULER_GPU_INDICES"] == ",4"


def test_the_numbers_of_gpus_are_read_once() -> None:
    gpus = Gpus()
    orders = builder(gpus=gpus)
    for _ in range(3):
        orders.launch(PLACEMENT, job(), LEASE)
    assert gpus.looks == 1


def test_later_sources_of_variables_win() -> None:
    shell = TaskShell({"ORDER": "shell", "PYTHONUNBUFFERED": "", "OWN": "shell"}, "/shell/python", {"umask": 7})
    sharing = SimpleNamespace(attend=lambda _: MpsLaunch({"ORDER": "mps", "PIPE": "mps"}, ("end",), 5))
    said = job(environ=(("ORDER", "python"), ("PIPE", None)), shell=shell, env=(("ORDER", "row"),))
    found = builder(sharing).launch(replace(PLACEMENT, percentage=50), said, LEASE)
    values = {name: found.env[name] for name in ("ORDER", "PIPE", "OWN", "PYTHONUNBUFFERED")}
    assert values == {"ORDER": "row", "PIPE": None, "OWN": "shell", "PYTHONUNBUFFERED": "1"}
    assert (found.ending, found.kept_fd, found.bounds) == (("end",), 5, {"umask": 7})


@pytest.mark.parametrize(("percentage", "shared"), [(0, True), (50, False)])
def test_only_a_client_of_mps_is_attended(percentage: int, shared: bool) -> None:
    sharing = SimpleNamespace(attend=lambda _: MpsLaunch({"PIPE": "mps"}, ("end",), 5)) if shared else None
    found = builder(sharing).launch(replace(PLACEMENT, percentage=percentage), job(), LEASE)
    assert ("PIPE" in found.env, found.ending, found.kept_fd) == (False, (), -1)


@pytest.mark.parametrize(
    ("purpose", "environ", "mode"),
    [(Purpose.PROBE, {}, "disabled"), (Purpose.PROBE, {"WANDB_MODE": "online"}, None), (Purpose.RUN, {}, None)],
)
def test_a_probe_reports_nothing_to_wandb_unless_the_user_has_decided(
    purpose: Purpose, environ: dict[str, str], mode: str | None
) -> None:
    env = builder(**environ).launch(replace(PLACEMENT, purpose=purpose), job(), LEASE).env
    assert env.get("WANDB_MODE") == mode


@pytest.mark.parametrize(("epochs", "told"), [(5, "2"), (1, "1"), (None, "")])
def test_a_probe_runs_for_the_epochs_of_profiling_at_most(epochs: int | None, told: str) -> None:
    env = builder().launch(replace(PLACEMENT, purpose=Purpose.PROBE), job(epochs=epochs), LEASE).env
    assert env["SCHEDULER_EPOCHS"] == told


def test_a_launch_has_everything_that_its_row_says() -> None:
    said = job(directory="sub", stdout="out.txt", stderr=APART, timeout=60.0, grace=4.0, stop_signal=10)
    found = builder().launch(PLACEMENT, said, LEASE)
    assert found == Launch(
        7,
        2,
        Purpose.RUN,
        ("train", "--lr", "1"),
        "/home/ben/sub",
        found.env,
        60.0,
        4.0,
        10,
        "/leases/7.2",
        9,
        None,
        "out.txt",
        "/tasks/7/2.err",
        (),
        -1,
        None,
        True,
    )


@pytest.mark.parametrize("resumable", [False, True])
def test_only_a_resumable_task_is_asked_to_stop_before_mps_ends_its_work(resumable: bool) -> None:
    assert builder().launch(PLACEMENT, job(resumable=resumable), LEASE).saves == resumable


def test_standard_error_goes_where_the_row_says_and_else_to_the_log() -> None:
    assert builder().launch(PLACEMENT, job(stderr="e.txt"), LEASE).stderr == "e.txt"
    assert builder().launch(PLACEMENT, job(), LEASE).stderr == ""


def test_a_warning_comes_before_the_end_of_a_run_and_not_of_a_probe() -> None:
    said = job(timeout=60.0, stop_signal=Warn(12, 30.0))
    run = builder().launch(PLACEMENT, said, LEASE)
    assert (run.warn, run.stop_signal, run.timeout) == (Warn(12, 30.0), Signals.SIGTERM, 60.0)
    probe = builder().launch(replace(PLACEMENT, purpose=Purpose.PROBE), said, LEASE)
    assert (probe.warn, probe.stop_signal, probe.timeout) == (None, Signals.SIGTERM, None)


def test_a_task_runs_in_the_directory_of_its_row_below_the_runs() -> None:
    orders = builder()
    told = [orders.directory(job(directory=name)) for name in ("", "a", "a", "/b", "", "../c")]
    assert told == ["/home/ben", "/home/ben/a", "/home/ben/a", "/b", "/home/ben", "/home/ben/../c"]


def test_a_task_of_a_shell_starts_with_the_python_of_that_shell() -> None:
    shell = TaskShell({}, "/shell/python", {})
    row = {"command": "", "filename": "train.py", "executable": "-1"}
    assert builder().launch(PLACEMENT, job(**row), LEASE).argv[0] == "/python"
    assert builder().launch(PLACEMENT, job(shell=shell, **row), LEASE).argv[0] == "/shell/python"


def test_a_task_that_uses_no_gpu_may_share_its_shim() -> None:
    assert builder().launch(replace(PLACEMENT, reservation={HOST: GIB}), job(), LEASE).once is False


def test_the_one_shot_tool_names_gpus_as_cuda_numbers_them() -> None:
    env = builder().launch(PLACEMENT, job(append=command.ONE_SHOT), LEASE).env
    assert env["GPU"] == "cuda1,cuda0"
    assert "GPU" not in builder().launch(replace(PLACEMENT, reservation={HOST: 1}), job(command.ONE_SHOT), LEASE).env
    assert "GPU" not in builder().launch(PLACEMENT, job(), LEASE).env


def test_the_one_shot_tool_has_a_port_for_each_gpu() -> None:
    found = builder().launch(PLACEMENT, job(append=command.ONE_SHOT, command="train --port __num__"), LEASE)
    assert found.argv == ("train", "--port", "3700")


def living(settled: bool = False, without: bool = False, **said: Any) -> TaskState:
    return TaskState(7, 0, attempts=2, placement=replace(PLACEMENT, **said), settled=settled, without=without)


def test_an_attempt_is_sampled_at_its_files_and_devices() -> None:
    files = ("/tasks/7/2.log", "/tasks/7/2.progress", "/tasks/7/2.result", "/tasks/7/2.metrics", "loss,acc", "ppl")
    found = builder(metrics="loss,acc", watched="ppl").watched(living(ram_expected=True, percentage=30), 4711)
    assert found == Watched(4711, files, PLACEMENT.reservation, True, True, True, False)


def test_an_attempt_of_unknown_memory_is_sampled_with_its_activity_until_it_has_settled() -> None:
    unknown = {"source": EstimateSource.MEASURED}
    early, late = builder().watched(living(**unknown), 1), builder().watched(living(settled=True, **unknown), 1)
    assert [(one.settled, one.activity, one.mps, one.ram_expected) for one in (early, late)] == [
        (False, True, False, False),
        (True, False, False, False),
    ]


def test_an_attempt_that_may_use_gpus_is_sampled_there_too() -> None:
    here = {"reservation": {HOST: GIB}, "visible": ("GPU-a",)}
    found = builder().watched(living(settled=True, **here), 1)
    assert (found.reservation, found.activity) == ({"GPU-a": 0, HOST: GIB}, True)
    assert builder().watched(living(without=True, **here), 1).activity is False
