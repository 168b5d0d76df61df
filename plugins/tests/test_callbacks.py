"""Reports of trainings: a function for any script, and callbacks of Lightning and of Transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpu_batch_scheduler_plugins.reporting import report

from plugins.tests.plugin_home import PluginHome
from scheduler import SubmittedTasks, runs

LIGHTNING = """\
import logging, torch, lightning
from lightning.pytorch.demos.boring_classes import BoringModel
from gpu_batch_scheduler_plugins.lightning_callback import SchedulerCallback

class Model(BoringModel):
    def validation_step(self, batch, number):
        self.log("val_loss", 0.5 + self.current_epoch)

trainer = lightning.Trainer(
    max_epochs=3, limit_train_batches=2, limit_val_batches=1, accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, callbacks=[SchedulerCallback()],
)
trainer.fit(Model())
"""
TRANSFORMERS = """\
import torch
from transformers import Trainer, TrainingArguments
from gpu_batch_scheduler_plugins.transformers_callback import SchedulerCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x, labels):
        return {"loss": ((self.weight * x - labels) ** 2).mean()}

data = [{"x": torch.ones(1), "labels": torch.zeros(1)} for _ in range(8)]
said = TrainingArguments("out", max_steps=4, logging_steps=2, report_to=[], use_cpu=True, save_strategy="no")
Trainer(Model(), said, train_dataset=data, callbacks=[SchedulerCallback()]).train()
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a task's files, in its environment."""
    for name in ("RESULT", "PROGRESS"):
        monkeypatch.setenv(f"SCHEDULER_{name}", str(tmp_path / name.lower()))
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_report_appends_points_and_writes_progress(task: Path) -> None:
    report({"val_loss": 0.5, "name": "x", "best": True}, step=1, done=1, total=3)
    report({"val_loss": 0.25}, step=2, done=2, total=3)
    lines = [json.loads(line) for line in (task / "result").read_text().splitlines()]
    assert lines == [{"step": 1, "val_loss": 0.5}, {"step": 2, "val_loss": 0.25}]
    assert (task / "progress").read_text() == "2/3"


def test_report_without_a_scheduler_or_in_another_rank_writes_nothing(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    report({"loss": 1.0}, done=1, total=2)
    monkeypatch.delenv("LOCAL_RANK")
    monkeypatch.delenv("SCHEDULER_RESULT")
    monkeypatch.delenv("SCHEDULER_PROGRESS")
    report({"loss": 1.0}, done=1, total=2)
    assert list(task.iterdir()) == []


def trained(home: PluginHome, name: str, text: str) -> dict[str, list[tuple[float, float]]]:
    """Run a training as a task; return its curves by metric."""
    (home.root / f"{name}.py").write_text(text)
    home.call("run", "-", "--name", name, "--devices", "host", code=0, stdin=_file(home, f"python {name}.py"))
    (task,) = home.tasks(name)
    run = runs(str(home.state))[0].number
    return SubmittedTasks(run, [task["id"]], state=str(home.state)).curves()[task["id"]]


def _file(home: PluginHome, line: str) -> object:
    path = home.root / "line"
    path.write_text(line + "\n")
    return path.open()


@pytest.mark.long
def test_callback_of_lightning_reports_each_epoch(home: PluginHome) -> None:
    pytest.importorskip("lightning")
    curves = trained(home, "boring", LIGHTNING)
    assert curves["val_loss"] == [(1.0, 0.5), (2.0, 1.5), (3.0, 2.5)]


@pytest.mark.long
def test_callback_of_transformers_reports_each_log(home: PluginHome) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    curves = trained(home, "small", TRANSFORMERS)
    assert [step for step, _ in curves["loss"]] == [2.0, 4.0]
