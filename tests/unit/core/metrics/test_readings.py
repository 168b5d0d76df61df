"""Which numbers of output lines and reported objects are metrics."""

from __future__ import annotations

import math

import pytest

from scheduler.core.metrics import readings
from scheduler.core.metrics.goal import Goal, goal_of, ranked
from scheduler.core.metrics.readings import LONGEST_NAME, LineReader, reported

LINES = {
    "epoch 3/10 loss 0.5000 val_loss 0.4.": ((3, 10), {"loss": 0.5, "val_loss": 0.4}, 3),
    "Epoch [4/6], Loss: 0.3, Val Acc: 93.1%": ((4, 6), {"Loss": 0.3, "Val_Acc": 93.1}, 4),
    "{'loss': 0.5, 'learning_rate': 1e-05, 'epoch': 1.5}": ((1.5, None), {"loss": 0.5, "learning_rate": 1e-5}, 1.5),
    "100/100 - 2s 5ms/step - accuracy: 0.9 - val_loss: .25": (None, {"accuracy": 0.9, "val_loss": 0.25}, None),
    "INFO train/loss=1e-3 step=300 lr=2E-4": (None, {"train/loss": 0.001, "lr": 0.0002}, 300),
    "| epoch   1 | 200/ 2983 | lr 20.00 | ms/batch 11.1 | loss  7.12 | ppl 1236.21": (
        (1, None), {"lr": 20.0, "loss": 7.12, "ppl": 1236.21}, 1,
    ),
    "step 10: train loss 1.2, val loss 1.3": (None, {"train_loss": 1.2, "val_loss": 1.3}, 10),
    "\x1b[32mtest_error\x1b[0m=0.3 score=4": (None, {"test_error": 0.3}, None),
    "Epoch 4 of 6": ((4, 6), {}, None),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_usual_epoch_line_is_understood(line: str) -> None:
    progress, values, step = LINES[line]
    ((found_progress, found),) = LineReader().lines(line)
    assert found_progress == progress
    assert {name: value for name, value, _ in found} == values
    assert {at for _, _, at in found} == ({step} if values else set())


@pytest.mark.parametrize("line", [
    "error: 5 files missing", "lossless 3", "loss of 3 packets", "it takes 3 minutes", "loss 3/10", "loss=12:30:01",
    "precision 16", "version loss-0.5", "2024-01-01 12:00:00 INFO lr", "", "\0" * 50,
    "RuntimeError: 1 device wanted", "urllib3.exceptions.HTTPError: 503", "KeyError: 7", "LossWarning: 3 steps",
])  # fmt: skip
def test_prose_has_no_metrics(line: str) -> None:
    assert [found for _, found in LineReader().lines(line) if found] == []


@pytest.mark.parametrize("name", ["ValError", "TestError", "testError", "train_error", "Error_rate"])
def test_error_of_a_set_is_a_metric(name: str) -> None:
    assert [found for _, found in LineReader().lines(f"{name}: 0.25")] == [[(name, 0.25, None)]]


def test_every_usual_metric_is_found_in_a_line_of_its_own() -> None:
    for name in readings._WORDS:
        assert [found for _, found in LineReader().lines(f"{name}=1")] == [[(name, 1.0, None)]], name


def test_loss_that_is_no_number_is_read() -> None:
    ((_, found),) = LineReader().lines("loss: nan acc: inf")
    assert math.isnan(found[0][1])
    assert found[1][1] == math.inf


def test_named_metrics_alone_are_read() -> None:
    ((_, found),) = LineReader("Tokens/s, val-loss").lines("loss=1 tokens_s=512 val_loss=2")
    assert {name: value for name, value, _ in found} == {"tokens_s": 512.0, "val_loss": 2.0}
    assert list(LineReader("off").lines("loss=1 val_loss=2")) == []


def test_progress_bar_that_returns_to_the_start_of_its_line_is_read() -> None:
    found = [values for _, (*values,) in LineReader().lines("loss=3\rloss=2\rloss=1\n")]
    assert [value for ((_, value, _),) in found] == [3.0, 2.0, 1.0]


def test_reported_object_has_its_numbers_and_its_step() -> None:
    said = reported('{"loss": 1, "id": 7, "ok": true, "note": "x", "more": {"a": 1}, "epoch": 3, "none": null}')
    assert said == [("loss", 1.0, 3.0), ("id", 7.0, 3.0)]


@pytest.mark.parametrize("text", ["", "[1]", "3", '{"loss": 1', '{"loss": 1}\n{"loss": 2}', "[" * 50_000, "\ud800"])
def test_text_that_is_not_one_object_is_no_report(text: str) -> None:
    assert reported(text) is None


def test_reported_number_beyond_floats_is_infinite() -> None:
    assert reported('{"loss": 1' + "0" * 400 + "}") == [("loss", math.inf, None)]


def test_reported_name_is_one_short_line_of_printable_characters() -> None:
    ((name, _, _),) = reported('{"\\u001b[31ml\\no\\u0000' + "s" * 500 + '": 1}') or []
    assert name.startswith("?[31ml?o?s")
    assert len(name) == LONGEST_NAME


@pytest.mark.parametrize(("name", "goal"), [
    ("loss", "min"), ("val_loss", "min"), ("eval/ppl", "min"), ("top1_err", "min"), ("testError", "min"),
    ("acc", "max"), ("val_acc", "max"), ("bleu", "max"), ("f1", "max"), ("lossless_psnr", "max"),
])  # fmt: skip
def test_direction_follows_from_the_name(name: str, goal: str) -> None:
    assert goal_of(name) is Goal(goal)


def test_most_important_metrics_come_first() -> None:
    assert ranked(["lr", "loss", "val_acc", "epochs"]) == ["val_acc", "loss", "lr", "epochs"]
    assert ranked(["lr", "loss", "val_acc"], ["LR"]) == ["lr", "val_acc", "loss"]
