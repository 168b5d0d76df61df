"""Optuna: a runner whose trials are tasks, and its own first steps as tasks that share a study.

The programs are written here with the calls of Optuna's first steps and of its page about parallel trials.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from plugins.tests.plugin_home import PluginHome
from tests.support.waiting import wait_until

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.slow

TRAIN = """\
import sys, time
x, wait = float(sys.argv[1]), float(sys.argv[2])
for epoch in range(1, 6):
    print(f"epoch {epoch}/5 val_loss {(x - 2) ** 2 + 1 / epoch:.4f}", flush=True)
    time.sleep(wait)
"""
RUNNER = """\
import logging, sys
import optuna
from gpu_batch_scheduler_plugins.optuna_runner import OptunaRunner

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)

def space(trial):
    return {"x": trial.suggest_float("x", -10, 10), "wait": 0}

study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=7))
"""
QUICKSTART = """\
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

def objective(trial):
    x = trial.suggest_float("x", -10, 10)
    return (x - 2) ** 2

study = optuna.create_study(
    study_name="shared", storage=JournalStorage(JournalFileBackend("journal.log")), load_if_exists=True
)
study.optimize(objective, n_trials=5)
print(study.best_params)
"""


@pytest.fixture(scope="module")
def trained(home: PluginHome) -> PluginHome:
    """Return the home with a program to be tuned, which knows nothing of Optuna."""
    (home.root / "train.py").write_text(TRAIN)
    return home


def test_trials_of_a_study_are_tasks_and_their_values_are_told(trained: PluginHome) -> None:
    said = trained.program(
        f"""{RUNNER}
runner = OptunaRunner(study, ["python", "train.py", "{{x}}", "{{wait}}"], space, metric="val_loss", at_once=3, gpus=0)
runner.optimize(n_trials=5)
for trial in study.trials:
    assert trial.state == optuna.trial.TrialState.COMPLETE
    assert abs(trial.value - (trial.params["x"] - 2) ** 2 - 0.2) < 1e-3
    assert list(trial.intermediate_values) == [1, 2, 3, 4, 5]
print("best", study.best_trial.number)
"""
    )
    best = int(said.split()[-1])
    tasks = trained.tasks("1")
    assert [task["state"] for task in tasks] == ["succeeded"] * 5
    assert min(tasks, key=lambda task: task["result.val_loss"])["trial"] == str(best)


def test_trial_that_the_pruner_gives_up_is_cancelled_while_it_runs(trained: PluginHome) -> None:
    said = trained.program(
        f"""{RUNNER}
study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=50))
study.enqueue_trial({{"x": 2}})
study.enqueue_trial({{"x": 30}})
space = lambda trial: {{"x": trial.suggest_float("x", -100, 100), "wait": 0 if trial.number == 0 else 20}}
OptunaRunner(study, "python train.py {{x}} {{wait}}", space, metric="val_loss", gpus=0).optimize(n_trials=2)
print(*(trial.state.name for trial in study.trials), study.trials[1].intermediate_values)
"""
    )
    assert said.splitlines()[-1] == "COMPLETE PRUNED {1: 785.0}"
    wait_until(lambda: [task["state"] for task in trained.tasks("1")[-2:]] == ["succeeded", "cancelled"], 30)


def test_trial_that_fails_or_reports_nothing_is_told_as_failed(trained: PluginHome) -> None:
    said = trained.program(
        f"""{RUNNER}
space = lambda trial: {{"code": trial.number}}
OptunaRunner(study, "sh -c 'exit {{code}}'", space, metric="val_loss").optimize(n_trials=2)
print(*(trial.state.name for trial in study.trials))
"""
    )
    assert "trial 0 failed: it reported no val_loss (scheduler logs" in said
    assert "trial 1 failed: failed (scheduler logs" in said
    assert said.splitlines()[-1] == "FAIL FAIL"


def test_ctrl_c_cancels_the_trials_of_the_runner(trained: PluginHome) -> None:
    (trained.root / "endless.py").write_text(
        f"{RUNNER}\nspace = lambda trial: {{'x': 0, 'wait': 60}}\n"
        "OptunaRunner(study, 'python train.py {x} {wait}', space, metric='val_loss', at_once=2, gpus=0).optimize(9)\n"
    )
    before = len(trained.tasks("1"))
    words = [sys.executable, "endless.py"]
    with subprocess.Popen(words, cwd=trained.root, env=trained.env, stderr=subprocess.DEVNULL) as runner:
        wait_until(lambda: [task["state"] for task in trained.tasks("1")[before:]] == ["running"] * 2, 60)
        runner.send_signal(signal.SIGINT)
        assert runner.wait(60) != 0
    wait_until(lambda: [task["state"] for task in trained.tasks("1")[before:]] == ["cancelled"] * 2, 60)


def test_runner_needs_a_metric_for_each_objective() -> None:
    runner = pytest.importorskip("gpu_batch_scheduler_plugins.optuna_runner").OptunaRunner
    study = optuna.create_study(directions=["minimize", "maximize"])
    with pytest.raises(Exception, match="the study has 2 objectives and metric names 1"):
        runner(study, "true", dict, metric="loss")


def test_workers_that_share_a_study_in_a_journal_are_equal_rows(trained: PluginHome) -> None:
    (trained.root / "quickstart.py").write_text(QUICKSTART)
    trained.write("workers.csv", "Command,Name", *(["python quickstart.py", f"worker {n}"] for n in range(3)))
    trained.call("run", "workers.csv", code=0)
    said = trained.program(
        QUICKSTART.replace(
            "study.optimize(objective, n_trials=5)",
            "print(len(study.trials), len({t.params['x'] for t in study.trials}))",
        ),
        name="look.py",
    )
    assert said.splitlines()[0] == "15 15"
