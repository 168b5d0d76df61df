"""Hydra's launcher: sweeps of programs that nothing was changed in, Hydra's own tests of launchers, and packing.

The programs are written here as Hydra's tutorials write theirs; its own tests are run from the installed package.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plugins.tests.plugin_home import PluginHome
from tests.support.waiting import wait_until

pytest.importorskip("hydra")
pytestmark = pytest.mark.slow

SUM = """\
import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

@hydra.main(version_base=None, config_path="conf", config_name="config")
def my_app(cfg: DictConfig) -> float:
    job = HydraConfig.get()
    print("job", job.job.num, job.mode.name, job.job.override_dirname, job.sweep.subdir, job.runtime.output_dir)
    if cfg.get("fails"):
        raise ValueError(f"no luck with {cfg.x}")
    return (cfg.x - 2) ** 2 + cfg.db.port

if __name__ == "__main__":
    my_app()
"""
SWEEPER = """
hydra:
  mode: MULTIRUN
  launcher:
    priority: 2
  sweep:
    dir: out
    subdir: ${hydra.job.override_dirname}
"""
GSCHED = ("hydra/launcher=gsched",)


@pytest.fixture(scope="module")
def app(home: PluginHome) -> PluginHome:
    """Return the home with a program and its configuration."""
    (home.root / "conf/db").mkdir(parents=True)
    (home.root / "conf/config.yaml").write_text("defaults:\n  - db: mysql\nx: 1\n")
    (home.root / "conf/swept.yaml").write_text(
        "defaults:\n  - db: mysql\n  - override hydra/launcher: gsched\nx: 1\n" + SWEEPER
    )
    (home.root / "conf/db/mysql.yaml").write_text("port: 100\n")
    (home.root / "conf/db/postgresql.yaml").write_text("port: 200\n")
    (home.root / "my_app.py").write_text(SUM)
    return home


def last_tasks(home: PluginHome, number: int) -> list[dict[str, object]]:
    return home.tasks("1")[-number:]


def test_sweep_starts_the_command_line_of_the_program_for_each_job(app: PluginHome) -> None:
    app.python("my_app.py", "--multirun", *GSCHED, "x=1,2", "db=mysql,postgresql", "hydra.sweep.dir=first")
    tasks = last_tasks(app, 4)
    assert [task["result.return_value"] for task in tasks] == [101.0, 201.0, 100.0, 200.0]
    assert [task["name"] for task in tasks][1] == "my_app x=1 db=postgresql"
    command = str(tasks[1]["command"])
    assert command.startswith(f"{sys.executable} my_app.py x=1 db=postgresql hydra.mode=RUN '+hydra.callbacks.gsched=")
    assert (tasks[1]["x"], tasks[1]["db"]) == ("1", "postgresql")
    assert "hydra.callbacks.gsched" not in tasks[1]


def test_job_of_a_sweep_has_its_number_directory_and_mode(app: PluginHome) -> None:
    app.python(
        "my_app.py", "-m", *GSCHED, "x=3,4", "hydra.sweep.dir=second", "hydra.job.chdir=true", "+y={a: 1, b: '{id}'}"
    )
    tasks = last_tasks(app, 2)
    log = Path(str(tasks[1]["log"])).read_text()
    folder = app.root / "second/1"
    assert f"job 1 MULTIRUN +y={{a:1,b:'{{id}}'}},x=4 1 {folder}" in log
    saved = (folder / ".hydra/hydra.yaml").read_text()
    assert "gsched" not in saved.replace("hydra/launcher=gsched", "")
    assert (folder / ".hydra/overrides.yaml").read_text() == "- x=4\n- +y={a:1,b:'{id}'}\n"


def test_sweep_that_the_configuration_describes_needs_no_flag(app: PluginHome) -> None:
    app.python("my_app.py", "--config-name", "swept", "x=5,6")
    tasks = last_tasks(app, 2)
    assert [(task["state"], task["priority"]) for task in tasks] == [("succeeded", 2)] * 2
    assert (app.root / "out/x=6/.hydra/config.yaml").exists()


def test_failed_job_raises_its_error_in_the_sweep_after_all_have_ended(app: PluginHome) -> None:
    done = app.python("my_app.py", "-m", *GSCHED, "x=1,2", "+fails=true,false", code=1)
    assert "ValueError: no luck with 1" in done.stderr
    assert [task["state"] for task in last_tasks(app, 4)] == ["failed", "succeeded"] * 2
    assert "#0 : failed (scheduler logs" in done.stdout


def test_job_that_is_killed_is_an_error_that_names_its_log(app: PluginHome) -> None:
    app.write("killed.py", SUM.replace("job = HydraConfig.get()", "import os; os.kill(os.getpid(), 9)"))
    done = app.python("killed.py", "-m", *GSCHED, "x=1", code=1)
    assert re.search(r"StateError: task \d+ ended as failed.*; its output: scheduler logs \d+", done.stderr), (
        done.stderr
    )


def test_ctrl_c_cancels_the_jobs_of_the_sweep(app: PluginHome) -> None:
    app.write("slow.py", SUM.replace("job = HydraConfig.get()", "import time; open('slow', 'w'); time.sleep(60)"))
    words = [sys.executable, "slow.py", "-m", *GSCHED, "x=1,2"]
    with subprocess.Popen(
        words, cwd=app.root, env=app.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as sweep:
        wait_until((app.root / "slow").exists, 60)
        sweep.send_signal(signal.SIGINT)
        assert sweep.wait(60) != 0
    wait_until(lambda: [task["state"] for task in last_tasks(app, 2)] == ["cancelled"] * 2, 60)


def test_sweep_without_a_command_line_of_its_own_is_refused(app: PluginHome) -> None:
    (app.root / "odd.py").write_text(
        "from hydra import initialize, compose\n"
        "from gpu_batch_scheduler_plugins.hydra_job import command_of_program\n"
        "with initialize(version_base=None, config_path='conf'):\n"
        "    config = compose('config', overrides=['x=1'], return_hydra_config=True)\n"
        "try:\n    command_of_program(config)\nexcept Exception as exc:\n    print(exc)\n"
    )
    assert "this sweep does not come from a command line" in app.python("odd.py").stdout


def test_numbers_that_a_program_writes_itself_stay_beside_its_return_value(app: PluginHome) -> None:
    own = "import json, os; json.dump({'loss': 0.25}, open(os.environ['SCHEDULER_RESULT'], 'w'))"
    app.write("writes.py", SUM.replace("job = HydraConfig.get()", f"{own}; job = HydraConfig.get()"))
    app.python("writes.py", "-m", *GSCHED, "x=2")
    (task,) = last_tasks(app, 1)
    assert (task["result.loss"], task["result.return_value"]) == (0.25, 100.0)


@pytest.mark.long
def test_own_integration_tests_of_hydras_launchers_pass(app: PluginHome) -> None:
    (app.root / "test_launcher.py").write_text(
        "import pytest\n"
        "from hydra.test_utils.launcher_common_tests import IntegrationTestSuite\n"
        "@pytest.mark.parametrize('task_launcher_cfg, extra_flags', [({}, ['-m', 'hydra/launcher=gsched'])])\n"
        "class TestGsched(IntegrationTestSuite):\n    pass\n"
    )
    done = app.python("-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", "-q", "test_launcher.py", timeout=600)
    assert re.search(r"^11 passed", done.stdout, re.MULTILINE), done.stdout


def test_submitit_launcher_runs_the_same_program_on_this_machine(app: PluginHome) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    app.python("my_app.py", "-m", "hydra/launcher=submitit_gsched", "x=7,8", "hydra.sweep.dir=third")
    tasks = last_tasks(app, 2)
    assert [task["state"] for task in tasks] == ["succeeded"] * 2
    assert " x=8" in str(tasks[1]["command"])


SPHERE = """\
defaults:
  - override hydra/sweeper: optuna
hydra:
  sweeper:
    sampler:
      seed: 123
    direction: minimize
    storage: null
    n_trials: 4
    n_jobs: 2
    params:
      x: range(-5.5, 5.5, step=0.5)
      y: choice(-5, 0, 5)
x: 1
y: 1
"""
"""The configuration of the first example of Hydra's sweeper for Optuna, with fewer trials."""


@pytest.mark.long
def test_optunas_sweeper_gets_what_the_jobs_return(app: PluginHome) -> None:
    sweeper = Path(sys.prefix) / "sweeper"
    if not (sweeper / "hydra_plugins/hydra_optuna_sweeper").exists():
        pytest.skip("Hydra's sweeper for Optuna is not installed: ./scripts/test --all does so")
    (app.root / "conf/sphere.yaml").write_text(SPHERE)
    text = SUM.replace("return (cfg.x - 2) ** 2 + cfg.db.port", "return cfg.x**2 + cfg.y**2")
    app.write("sphere.py", text.replace('config_name="config"', 'config_name="sphere"'))
    env = {"PYTHONPATH": os.pathsep.join([str(sweeper), app.env["PYTHONPATH"]])}
    app.python("sphere.py", "--multirun", *GSCHED, "hydra.sweep.dir=sphere", env=env)
    found = dict(
        line.strip().split(": ")
        for line in (app.root / "sphere/optimization_results.yaml").read_text().splitlines()
        if line[-1] != ":"
    )
    values = [float(str(task["result.return_value"])) for task in last_tasks(app, 4)]
    assert float(found["best_value"]) == min(values)
