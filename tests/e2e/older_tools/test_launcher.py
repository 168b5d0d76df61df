"""`scheduler.py` called by its path, and the entry points on a Python that lacks something."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.compat.csv_scheduler import is_one_shot
from tests.e2e.older_tools.contracts import contract
from tests.e2e.older_tools.project import MAIN, TASK
from tests.support.killing import ROOT, Home

LAUNCHER = ROOT / "scheduler.py"
DOORS = {
    "a list": [str(LAUNCHER), "--csv", "jobs.csv", "--mps", "off"],
    "a task": [str(LAUNCHER), "true x"],
    "who has which GPU": [str(LAUNCHER), "-s"],
    "lines": ["-m", "simple_gpu_scheduler.scheduler", "--gpus", "0"],
    "one job": ["-m", "gpu_batch_scheduler", "exec", "--", "true"],
    "the package": ["-m", "scheduler", "run", "jobs.csv"],
    "Python tasks": ["main.py"],
}

CONFIG = "config = {'scheduler_config': {'gpu': ['0']}, 'test_config': [{'a': [1]}]}\n"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path, [str(LAUNCHER)])
    made.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{made.env['PATH']}"
    yield made
    made.end()


@contract("S3-01")
@pytest.mark.slow
def test_scheduler_py_runs_by_its_path_and_by_a_link_from_any_folder(home: Home) -> None:
    home.call("--csv", home.commands("true"), "--mps", "off", code=0)
    link = home.root / "schedule"
    link.symlink_to(LAUNCHER)
    home.command = [str(link)]
    assert "no GPU here" in home.call("true x", "-fg", "0", code=2).stderr


@contract("S0-06")
@pytest.mark.slow
def test_a_script_is_a_task_without_blanks_in_it(home: Home) -> None:
    script = home.root / "train.sh"
    script.write_text("#!/bin/sh\necho trained $# >out\n")
    script.chmod(0o755)
    home.call("./train.sh", code=0)
    assert (home.root / "out").read_text() == "trained 0\n"
    script.chmod(0o644)
    said = home.call("./train.sh", code=2).stderr
    assert said.startswith(f"scheduler: './train.sh' is not an executable file ({script})")


class TestChoiceOfTool:
    @pytest.mark.parametrize("word", ["jobs.csv", "jobs", "./gone.sh", "gone", "-", "list.txt"])
    def test_a_word_that_is_no_program_is_a_list(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ("jobs.csv", "jobs", "list.txt"):
            (tmp_path / name).write_text("Command\n")
            (tmp_path / name).chmod(0o755)
        assert not is_one_shot([word])
        assert not is_one_shot(["-n", "5", word])

    def test_a_program_on_path_is_a_task_but_not_as_a_flags_value_or_after_a_table(self) -> None:
        assert is_one_shot(["true"])
        assert not is_one_shot(["--csv", "true"])
        assert not is_one_shot(["true", "--", "python", "train.py"])


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a Python that has nothing installed."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin/python"


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_a_missing_package_is_named_with_the_command_that_installs_it(bare: Path, tmp_path: Path, door: str) -> None:
    home = Home(tmp_path, [str(bare)])
    home.env["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'dropins/src'}"
    home.commands("true")
    for name, text in (("main", MAIN), ("my_gpu_task", TASK), ("config", CONFIG)):
        (home.root / f"{name}.py").write_text(text)
    said = home.call(*DOORS[door], code=1).stderr
    install = f"{bare} -m pip install -r {ROOT}/requirements.txt"
    assert said == f"scheduler: the Python package psutil is missing: {install}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "simple_gpu_scheduler.command_line", "--gpus", "0"],
        ["-m", "gpu_task_scheduler.start_gpu_task", "x.pkl"],
        ["-c", "from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler"],
        ["-c", "from gpu_task_scheduler.gpu_task import GPUTask"],
        ["-c", "from gpu_task_scheduler.config_manager import ConfigManager"],
    ],
    ids=lambda words: words[1],
)
def test_older_names_without_the_project_say_how_to_install_it(bare: Path, tmp_path: Path, words: list[str]) -> None:
    env = {"PYTHONPATH": str(ROOT / "dropins/src")}
    done = subprocess.run([bare, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    install = f"{bare} -m pip install gpu-batch-scheduler"
    assert done.stderr == f"the Python package gpu-batch-scheduler is missing: {install}\n"
    assert done.returncode == 1


def old_python(version: str) -> str:
    """Return a Python of that version, from PATH or from pyenv; skip the test where there is none."""
    from_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for python in [*map(str, from_pyenv), shutil.which(f"python{version}")]:
        if python and subprocess.run([python, "-c", "1"], check=False, capture_output=True).returncode == 0:
            return python
    pytest.skip(f"there is no Python {version} here")


@pytest.mark.slow
@pytest.mark.parametrize("words", [[str(LAUNCHER), "-s"], ["-m", "gpu_batch_scheduler", "status"]])
@pytest.mark.parametrize("version", ["3.7", "3.8", "3.10"])
def test_a_python_that_is_too_old_is_refused_in_one_sentence(version: str, words: list[str]) -> None:
    python = old_python(version)
    done = subprocess.run([python, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "is Python 3." in done.stderr
    assert "3.11 or newer is needed" in done.stderr
    assert (done.returncode != 0, done.stderr.count("\n")) == (True, 1)


def test_a_copy_without_the_project_is_refused_in_one_sentence(tmp_path: Path) -> None:
    shutil.copy(LAUNCHER, tmp_path)
    done = subprocess.run([tmp_path / "scheduler.py", "-s"], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("needs the folders beside it: make a link to the one in the project (ln -s)\n")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
