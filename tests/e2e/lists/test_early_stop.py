"""Tasks that their metrics stop early, as real processes: --stop-when and --keep-best."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import scheduler
from scheduler.core.events import Pruned
from tests.support.journals import append_event
from tests.support.killing import Home
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

TRAIN = """\
import signal, sys, time
metric, values, *code = sys.argv[1:]
def leave(*_):
    print("saved", flush=True)
    sys.exit(int(*code))
signal.signal(signal.SIGTERM, leave)
for epoch, value in enumerate(values.split("_"), 1):
    time.sleep(60 if value == "stay" else 0.2)
    print(f"epoch {epoch} {metric} {value}", flush=True)
"""
ON_HOST = ("--devices", "host", "--slots", "4")
WORDS = ("--", sys.executable, "train.py", "{metric}", "{values}")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    (made.root / "train.py").write_text(TRAIN)
    yield made
    made.end()


def sweep(home: Home, metric: str, *values: str) -> None:
    """Write a list of trainings with the values of their epochs; `stay` lasts longer than any test."""
    home.write("sweep.csv", "metric,values", *((metric, text) for text in values))


def kinds(home: Home) -> list[str]:
    """Return the kinds of the events in the journal of the first run."""
    with sqlite3.connect(home.state / "runs/1/journal.db") as journal:
        return [kind for (kind,) in journal.execute("SELECT kind FROM events")]


def test_tasks_whose_metric_meets_a_condition_are_pruned_and_the_run_succeeds(home: Home) -> None:
    sweep(home, "val_loss", "1_1_1", "1_3_stay", "nan_stay", "3_0.5")
    rules = ("--stop-when", "val_loss > 2 after 2", "--stop-when", "val_loss is nan")
    ran = home.call("run", "sweep.csv", *ON_HOST, *rules, *WORDS, code=0)
    assert home.states("r1") == ["succeeded", "pruned", "pruned", "succeeded"]
    assert "run 1: 4 tasks: 2 pruned, 2 succeeded" in ran.stdout
    assert "val_loss 3 > 2 at step 2, after" in ran.stdout
    assert [task["reason"] for task in home.tasks("r1")][1:3] == [
        "val_loss 3 > 2 at step 2", "val_loss is nan at step 1",
    ]  # fmt: skip
    assert "saved" in home.call("logs", "1").stdout


def test_a_pruned_task_says_why_and_runs_to_its_end_when_it_is_retried(home: Home) -> None:
    sweep(home, "val_loss", "3_1_1_1_1")
    home.call("run", "sweep.csv", *ON_HOST, "--stop-when", "val_loss > 2", *WORDS, code=0)
    assert "was stopped early after" in (why := home.call("why", "0").stdout)
    assert "val_loss 3 > 2 at step 1 (--stop-when, --keep-best), which is no failure; scheduler retry 0" in why
    assert "pruned" in home.call("list", "r1").stdout
    assert "no task of the run failed" in (nothing := home.call("retry", "--run", "r1")).stdout + nothing.stderr
    home.call("wait", "0", code=0)
    retried = home.call("retry", "0", code=0)
    assert "queued again (was pruned), and is not stopped early again" in retried.stdout
    home.call("resume", "r1", code=0)
    assert home.states("r1") == ["succeeded"]


def test_a_task_that_fails_on_its_stop_signal_is_pruned_and_counts_as_no_failure(home: Home) -> None:
    sweep(home, "val_loss", *["9_stay"] * 8)
    end = (*ON_HOST, "--stop-when", "val_loss > 2", "--max-failures", "1")
    home.call("run", "sweep.csv", *end, *WORDS, "7", code=0)
    assert home.states("r1") == ["pruned"] * 8
    assert {task["exit_code"] for task in home.tasks("r1")} == {7}


def test_a_task_that_needs_a_pruned_one_is_skipped_and_one_that_needs_its_end_runs(home: Home) -> None:
    train = f"{sys.executable} train.py val_loss 9_stay"
    home.write(
        "jobs.csv", "Name,Command,After", ("train", train, ""), ("export", "true", "train"),
        ("evaluate", "true", "ended:train"),
    )  # fmt: skip
    ran = home.call("run", "jobs.csv", *ON_HOST, "--stop-when", "val_loss > 2", code=0)
    assert home.states("r1") == ["pruned", "skipped", "succeeded"]
    assert "skipped: 1 task that depends on task 0 (pruned)" in ran.stdout


def test_only_the_best_tasks_go_on(home: Home) -> None:
    sweep(home, "val_acc", "0.9_0.9_0_0_0_0_0_0", "0.1_0.1_stay", "0.2_0.2_stay", "0.1_0.1_stay", "0.1_0.95_0.95")
    keep = ("--keep-best", "1/3", "--by", "val_acc", "--at", "2")
    home.call("run", "sweep.csv", "--devices", "host", "-j", "1", "--memory", "1MiB", *keep, *WORDS, code=0)
    assert home.states("r1") == ["succeeded", "pruned", "pruned", "pruned", "succeeded"]
    assert home.tasks("r1")[1]["reason"] == ("val_acc 0.1 at step 2 is place 2 of 2 so far, and the best one goes on")


def test_a_scheduler_that_is_killed_after_the_decision_lets_the_next_one_end_the_task(home: Home) -> None:
    """The task ignores its signal, so that it lives on when its scheduler is killed."""
    (home.root / "stay.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for epoch in range(600):\n    print(f'epoch {epoch} val_loss {epoch}', flush=True)\n    time.sleep(0.2)\n"
    )
    home.write("jobs.csv", "Command", [f"{sys.executable} stay.py"])
    rule = ("--stop-when", "val_loss >= 2", "--grace", "3s")
    started = home.start("run", "jobs.csv", *ON_HOST, *rule)
    wait_until(lambda: home.log() and "pruned" in kinds(home))
    os.kill(home.scheduler(), signal.SIGKILL)
    started.wait(30)
    home.call("resume", "r1", code=0)
    assert home.states("r1") == ["pruned"]
    assert kinds(home).count("pruned") == 1


def test_a_task_whose_scheduler_died_before_it_could_stop_it_is_stopped_by_the_next_one(home: Home) -> None:
    home.write("jobs.csv", "Command", ["sleep 600"])
    started = home.start("run", "jobs.csv", *ON_HOST)
    wait_until(lambda: home.log() and "started" in kinds(home))
    os.kill(home.scheduler(), signal.SIGKILL)
    started.wait(30)
    append_event(home.state / "runs/1/journal.db", Pruned(0, 1, "val_loss is nan at step 1"), time.time())
    home.call("resume", "r1", code=0)
    assert [(task["state"], task["reason"]) for task in home.tasks("r1")] == [("pruned", "val_loss is nan at step 1")]


def test_a_rule_that_cannot_be_read_is_refused_in_one_sentence_before_anything_is_accepted(home: Home) -> None:
    sweep(home, "val_loss", "1_0")
    refused = home.call("run", "sweep.csv", "--stop-when", "val_loss > two", *WORDS, code=2)
    assert refused.stderr.startswith("scheduler: --stop-when: 'val_loss > two': column 12: 'two' instead of a number:")
    assert refused.stderr.count("\n") == 1
    refused = home.call("run", "sweep.csv", "--by", "val_loss", *WORDS, code=2)
    assert refused.stderr == "scheduler: --by val_loss has an effect only with --keep-best: add --keep-best 1/3\n"


def test_rules_in_the_settings_file_and_of_a_grid_stop_tasks(home: Home) -> None:
    folder = home.root / "config" / "gpu-batch-scheduler"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('stop_when = "val_loss > 2"\n')
    command = f"{sys.executable} train.py val_loss {{x}}"
    home.call(
        "grid", command, "-p", "x", "3_stay", "1_0", "--sampling-mode", "grid", "--run", *ON_HOST, code=0,
        env={**home.env, "XDG_CONFIG_HOME": str(home.root / "config")},
    )  # fmt: skip
    assert home.states("r1") == ["pruned", "succeeded"]


def test_run_of_the_python_api_stops_tasks_early(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in home.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home.root)
    tasks = [
        scheduler.Task(command=f"{sys.executable} train.py val_acc {text}")
        for text in ("0.9_0_0_0_0_0_0_0", "0.1_stay")
    ]
    done = scheduler.run(tasks, devices="host", slots=1, keep_best="1/2 by val_acc at 1", stop_when="loss is nan")
    assert done.counts == {"succeeded": 1, "pruned": 1}
    assert done.succeeded
