"""Jobs of submitit on stand-in GPUs: out of memory, and memory that is learned by the arguments of the function."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugins.tests.plugin_home import without_slurm, write_metadata
from tests.support.gpu_home import GpuHome
from tests.support.killing import ROOT
from tests.support.standin.box import NO_COMPILER, TRAIN, build

pytest.importorskip("submitit")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(build() is None, reason=NO_COMPILER)]

BEGIN = """\
import os
import submitit, train

def full(value):
    if os.environ["SCHEDULER_ATTEMPT"] == "1":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB "
                           "of which 1.00 GiB is free.")
    return value

def learn(lr, width):
    assert train.main(["--peak", f"{width}GiB", "--seconds", "1"]) == 0
    return lr

executor = submitit.AutoExecutor(folder="logs")
executor.update_parameters(gpus_per_node=1)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GpuHome]:
    made = GpuHome(tmp_path, gpus=2)
    paths = [ROOT, ROOT / "plugins/src", write_metadata(tmp_path / "site"), TRAIN.parent]
    made.env |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), "SCHEDULER_QUEUE_IDLE": "1h"}
    made.env["PATH"] = without_slurm(made.env["PATH"], tmp_path)
    yield made
    made.end()


def program(home: GpuHome, text: str) -> str:
    (home.root / "program.py").write_text(BEGIN + text)
    words = [sys.executable, "program.py"]
    done = subprocess.run(words, cwd=home.root, env=home.env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_job_that_runs_out_of_memory_is_done_only_after_its_last_attempt(home: GpuHome) -> None:
    said = program(
        home,
        """
executor.update_parameters(gsched_memory="2GiB")
job = executor.submit(full, 5)
print(job.result(), job.state, job.stderr().count("CUDA out of memory"))
""",
    )
    assert said.split()[:2] == ["5", "COMPLETED"]
    assert int(said.split()[2]) >= 1  # the errors of the first attempt are kept
    (task,) = home.tasks("1")
    assert (task["attempts"], task["ooms"]) == (2, 1)


@pytest.mark.long
def test_memory_of_a_function_is_learned_by_its_arguments_from_array_to_array(home: GpuHome) -> None:
    text = "[job.result() for job in executor.map_array(learn, [0.1, 0.2, 0.3, 0.4], [2, 3, 2, 3])]"
    program(home, text)
    program(home, text)
    assert [task["source"] for task in home.tasks("1")] == ["measured"] * 4 + ["profile"] * 4
