"""submitit's executor: the calls of its documentation, its own tests, and what one machine cannot hold.

The programs are written here with the calls of submitit's README and docs/examples.md; its own tests are run from the
installed package.
"""

from __future__ import annotations

import os
import re
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from plugins.tests.plugin_home import PluginHome
from tests.support.waiting import wait_until

pytest.importorskip("submitit")
pytestmark = pytest.mark.slow

ADD = """\
import sys, time
import submitit

def add(a, b=0):
    print("adding", a, b)
    return a + b

executor = submitit.AutoExecutor(folder="logs/%j")
executor.update_parameters(timeout_min=4, slurm_partition="dev")
"""
"""The beginning of most examples of submitit: nothing in it names the scheduler."""


def test_first_example_runs_without_a_change(home: PluginHome) -> None:
    said = home.program(
        f"""{ADD}
job = executor.submit(add, 5, 7)
assert job.result() == 12
assert job.exception() is None and job.done() and job.state == "COMPLETED"
print(type(job).__name__, "adding 5 7" in job.stdout(), repr(job.stderr()))
"""
    )
    assert said.splitlines()[-1] == "GschedJob True ''"


def test_array_and_batch_are_one_submission_each(home: PluginHome) -> None:
    said = home.program(
        f"""{ADD}
jobs = executor.map_array(add, [1, 2, 3], [10, 20, 30])
print(*(job.result() for job in jobs))
with executor.batch():
    more = [executor.submit(add, k, b=1) for k in range(2)]
print(*(job.result() for job in more))
print(*(job.job_id for job in [*jobs, *more]))
"""
    )
    results, more, ids = [line.split() for line in said.splitlines()]
    assert (results, more) == (["11", "22", "33"], ["1", "2"])
    by_id = {task["id"]: task for task in home.tasks("1")}
    batches = [by_id[int(one)]["batch"] for one in ids]
    assert batches == [batches[0]] * 3 + [batches[0] + 1] * 2  # a submission is a batch of the queue


def test_commands_name_the_function_and_its_arguments(home: PluginHome) -> None:
    job = home.program(f"{ADD}\nprint(executor.submit(add, 5, b=7).job_id)").strip()
    command = home.tasks("1")[int(job)]["command"]
    assert command.endswith(f"{home.root}/program.py add --a=5 --b=7"), command


def test_error_of_a_job_is_raised_with_its_traceback(home: PluginHome) -> None:
    said = home.program(
        """
from operator import truediv
import submitit
executor = submitit.AutoExecutor(folder="logs")
executor.update_parameters(timeout_min=1, slurm_partition="dev")
job = executor.submit(truediv, 1, 0)
try:
    job.result()
except submitit.core.utils.FailedJobError as exc:
    print("ZeroDivisionError: division by zero" in str(exc), "ZeroDivisionError" in job.stderr(), job.state)
"""
    )
    assert said == "True True FAILED\n"


def test_command_function_and_coroutines_run_without_a_change(home: PluginHome) -> None:
    said = home.program(
        """
import asyncio, sys, time
import submitit

def slow_multiplication(x, y):
    time.sleep(x * y / 100)
    return x * y

async def main(executor):
    print(await executor.submit(slow_multiplication, 10, 2).awaitable().result(0.1))
    jobs = [executor.submit(slow_multiplication, k, 2) for k in range(1, 4)]
    for one in asyncio.as_completed([job.awaitable().result(0.1) for job in jobs]):
        print(await one)

executor = submitit.AutoExecutor(folder="logs")
executor.update_parameters(timeout_min=1, slurm_partition="dev")
function = submitit.helpers.CommandFunction(["which", "python"], verbose=False)
assert executor.submit(function).result() == function()
asyncio.run(main(executor))
jobs = [executor.submit(time.sleep, 0.01 * k) for k in range(3)]
print(len(list(submitit.helpers.as_completed(jobs, poll_frequency=0.1))))
"""
    )
    first, *others, completed = said.split()
    assert (first, sorted(others), completed) == ("20", ["2", "4", "6"], "3")


def test_job_of_several_tasks_has_a_rank_and_a_log_for_each(home: PluginHome) -> None:
    said = home.program(
        f"""{ADD}
def rank(value):
    environment = submitit.JobEnvironment()
    print("rank", environment.global_rank, "of", environment.num_tasks)
    if environment.global_rank == value:
        sys.exit("torch.OutOfMemoryError: CUDA out of memory." if value == 9 else "broken")
    return value * environment.local_rank

executor.update_parameters(tasks_per_node=3, cpus_per_task=1)
job = executor.submit(rank, 7)
print(job.results(), "rank 2 of 3" in job.task(2).stdout())
bad = executor.submit(rank, 1)
print(type(bad.exception()).__name__, bad.state)
print("broken" in bad.task(1).stderr(), "broken" in bad.task(0).stderr())
"""
    )
    assert said.splitlines() == ["[0, 7, 14] True", "UncompletedJobError FAILED", "True True"]


SAVED = """
import time, submitit
from pathlib import Path

class Training(submitit.helpers.Checkpointable):
    def __init__(self):
        self.saved = 0

    def __call__(self, target):
        Path("turn").touch()
        while self.saved < 1 and not Path("enough").exists():
            time.sleep(0.05)
        return f"{target} after {self.saved}"

    def checkpoint(self, target):
        self.saved += 1
        Path("saved").touch()
        return submitit.helpers.DelayedSubmission(self, target)

executor = submitit.AutoExecutor(folder="logs")
"""


def test_job_that_reaches_its_time_limit_saves_and_gets_another_turn(home: PluginHome) -> None:
    said = home.program(
        f"""{SAVED}
executor.update_parameters(gsched_timeout_min=12 / 60, gsched_signal_delay_s=9)
job = executor.submit(Training(), "weights")
print(job.result(), job.job_id)
"""
    )
    *result, task = said.split()
    assert " ".join(result) == "weights after 1"
    assert home.tasks("1")[int(task)]["attempts"] == 2


def test_job_that_makes_room_saves_and_uses_up_no_time_out(home: PluginHome) -> None:
    for name in ("turn", "saved"):
        (home.root / name).unlink(missing_ok=True)
    text = f"""{SAVED}
executor = submitit.AutoExecutor(folder="logs", gsched_max_num_timeout=0)
executor.update_parameters(timeout_min=1)
print(executor.submit(Training(), "weights").job_id)
"""
    task = int(home.program(text))
    wait_until((home.root / "turn").exists, 30)
    home.call("stop", "queue", "--now", code=0)
    wait_until((home.root / "saved").exists, 30)
    home.call("resume", "r1", "-d", code=0)
    home.call("wait", str(task), code=0)
    assert home.tasks("1")[task]["attempts"] == 2
    said = "".join(path.read_text() for path in (home.state / f"runs/1/tasks/{task}").glob("1.*"))
    assert f"Requeued job {task} (0 remaining timeouts)" in said, said


def test_cancelled_job_ends_at_once_and_has_no_result(home: PluginHome) -> None:
    said = home.program(
        f"""{ADD}
from gpu_batch_scheduler_plugins import submitit_executor
job = executor.submit(time.sleep, 100)
while job.state != "RUNNING":
    time.sleep(0.05)
usual, submitit_executor.PAUSES = submitit_executor.PAUSES, (600.0, 600.0)  # no other look is due now
job.cancel()
state, submitit_executor.PAUSES = job.state, usual
print(state, type(job.exception()).__name__, job.done())
"""
    )
    assert said == "CANCELLED UncompletedJobError True\n"


def test_jobs_can_be_found_again_by_their_ids_in_another_process(home: PluginHome) -> None:
    task = home.program(f"{ADD}\nprint(executor.submit(add, 1, 2).job_id)").strip()
    said = home.program(
        "from gpu_batch_scheduler_plugins.submitit_executor import GschedJob\n"
        f"print(GschedJob('logs/%j', '{task}').result())"
    )
    assert said == "3\n"


def test_parameters_become_fields_of_the_task(home: PluginHome) -> None:
    task = home.program(
        f"""{ADD}
executor.update_parameters(name="mine", mem_gb=0.25, cpus_per_task=1, gpus_per_node=0, gsched_priority=3,
                           gsched_setup=["export GREETING=hello"], gsched_env={{"LATER": "1"}}, stderr_to_stdout=True)
import os
job = executor.submit(lambda: os.environ["GREETING"] + os.environ["LATER"])
assert job.result() == "hello1"
print(job.job_id)
"""
    )
    found = home.tasks("1")[int(task)]
    assert (found["name"], found["priority"], found["host_reserved_bytes"]) == ("mine", 3, 256 << 20)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ("nodes=2", r"nodes=2: gsched has one machine; leave nodes out, or use cluster='slurm'"),
        ("gsched_signal_delay_s=60", r"signal_delay_s=60 needs a time limit: set timeout_min too"),
        ("timeout_min=1, gsched_signal_delay_s=60", r"signal_delay_s=60 is not below the time limit of 60 s"),
        ("mem_gb=1, gsched_host_memory='2GiB'", r"mem_gb=1 and host_memory='2GiB' both say how much RAM"),
        ("gsched_setup='module load cuda'", r"setup='module load cuda': write a list of shell commands"),
        ("gsched_color='red'", r"Unknown argument 'color' for executor 'gsched'"),
    ],
)
def test_parameters_that_one_machine_cannot_hold_are_refused(
    parameters: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from submitit.core import plugins

    executor = pytest.importorskip("gpu_batch_scheduler_plugins.submitit_executor").GschedExecutor
    monkeypatch.setattr(plugins, "get_executors", lambda: {"gsched": executor})
    import submitit

    with pytest.raises((ValueError, NameError), match=re.escape(sentence)):
        eval(
            f"submitit.AutoExecutor({str(tmp_path)!r}, 'gsched').update_parameters({parameters})",
            {"submitit": submitit},
        )


def test_job_without_room_for_its_pickles_is_refused_and_leaves_none(home: PluginHome) -> None:
    said = home.program(
        """
import submitit
executor = submitit.AutoExecutor(folder="large", gsched_max_pickle_size_gb=0.001)
try:
    executor.map_array(len, ["x" * 600_000, "y" * 600_000])
except RuntimeError as exc:
    print(exc)
"""
    )
    assert said.startswith("2 of 2 calls take 1.1 MiB as pickles in")
    assert list((home.root / "large").iterdir()) == []


@pytest.mark.long
def test_own_tests_of_submitits_local_executor_pass_with_this_executor(home: PluginHome) -> None:
    """Leave out those that look at the local executor's processes, that choose `local` by its name, or whose limits of
    two seconds are over before a busy machine has started a process.
    """
    (home.root / "as_local.py").write_text(
        "import submitit.local.local as local\n"
        "from gpu_batch_scheduler_plugins.submitit_executor import GschedExecutor\n"
        "local.LocalExecutor = GschedExecutor\n"
    )
    spec = find_spec("submitit")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    left_out = ("local_job", "killed", "cancel", "setup", "long_running", "requeuing", "custom")
    chosen = " and ".join(f"not {one}" for one in left_out)
    done = home.python(
        "-m", "pytest", "-c", os.devnull, "--rootdir", str(package), "-p", "no:cacheprovider", "-p", "as_local", "-q",
        "-k", chosen, str(package / "local/test_local.py"), str(package / "test_pickle.py"),
        env={"PYTHONPATH": f"{home.env['PYTHONPATH']}{os.pathsep}{home.root}"},
    )  # fmt: skip
    assert re.search(r"16 passed, .*3 xfailed", done.stdout), done.stdout


def test_kill_of_the_queue_loses_no_job(home: PluginHome) -> None:
    text = f"{ADD}\njob = executor.submit(time.sleep, 1)\nprint(job.job_id, flush=True)\nprint(job.result(), job.state)"
    (home.root / "waits.py").write_text(text)
    home.call("submit", "--", "true", code=0)
    os.kill(home.scheduler(), signal.SIGKILL)
    assert home.python("waits.py").stdout.splitlines()[1:] == ["None COMPLETED"]
