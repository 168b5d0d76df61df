"""The addresses of runs at Weights & Biases and MLflow, in output and in variables."""

from __future__ import annotations

import pytest

from scheduler.core.reporting import trackers

RUN = "0a" * 16


@pytest.mark.parametrize(("text", "found"), [
    ("View run at \x1b[34mhttps://wandb.ai/me/p-1/runs/ab12\x1b[0m\n", ["https://wandb.ai/me/p-1/runs/ab12"]),
    ("🏃 View run at: http://host:5000/#/experiments/1/runs/" + "0a" * 16, [
        "http://host:5000/#/experiments/1/runs/" + "0a" * 16]),
    ("https://wandb.ai/me/p/runs/a https://wandb.ai/me/p/runs/a", ["https://wandb.ai/me/p/runs/a"]),
    ("javascript://wandb.ai/me/p/runs/a and https://example.org/runs and file:///a/b/runs/c", []),
    ('https://a.b/me/p/runs/x"onclick=alert(1)', ["https://a.b/me/p/runs/x"]),
])  # fmt: skip
def test_addresses_of_trackers_are_found_in_output(text: str, found: list[str]) -> None:
    assert trackers.printed(text) == found


def test_few_addresses_are_kept() -> None:
    text = " ".join(f"https://wandb.ai/me/p/runs/{number}" for number in range(99))
    assert trackers.printed(text)[-1].endswith("/98")
    assert len(trackers.printed(text)) == trackers.MOST_LINKS


@pytest.mark.parametrize(("environ", "found"), [
    ({"WANDB_ENTITY": "me", "WANDB_PROJECT": "my p", "WANDB_RUN_ID": "a1"}, ["https://wandb.ai/me/my%20p/runs/a1"]),
    ({"WANDB_ENTITY": "me", "WANDB_PROJECT": "p", "WANDB_RUN_ID": "a1", "WANDB_BASE_URL": "https://api.wandb.ai"}, [
        "https://wandb.ai/me/p/runs/a1"]),
    ({"WANDB_ENTITY": "me", "WANDB_PROJECT": "p", "WANDB_RUN_ID": "a1", "WANDB_BASE_URL": "http://u:pw@gpu:8080/"}, [
        "http://gpu:8080/me/p/runs/a1"]),
    ({"WANDB_ENTITY": "me", "WANDB_PROJECT": "p", "WANDB_RUN_ID": "a1", "WANDB_MODE": "offline"}, []),
    ({"WANDB_ENTITY": "me", "WANDB_RUN_ID": "a1"}, []),
    ({"WANDB_ENTITY": "me", "WANDB_PROJECT": "p", "WANDB_RUN_ID": "a/b c"}, []),
    ({"MLFLOW_TRACKING_URI": "http://u:pw@host:5000/", "MLFLOW_EXPERIMENT_ID": "7", "MLFLOW_RUN_ID": RUN}, [
        f"http://host:5000/#/experiments/7/runs/{RUN}"]),
    ({"MLFLOW_TRACKING_URI": "sqlite:///a.db", "MLFLOW_EXPERIMENT_ID": "7", "MLFLOW_RUN_ID": RUN}, []),
    ({"MLFLOW_TRACKING_URI": "http://[broken", "MLFLOW_EXPERIMENT_ID": "7", "MLFLOW_RUN_ID": RUN}, []),
    ({}, []),
])  # fmt: skip
def test_variables_name_runs_without_passwords(environ: dict[str, str], found: list[str]) -> None:
    assert trackers.identified(environ) == found


def test_run_that_was_printed_is_not_named_again() -> None:
    said = "View run at https://other.host/team/p/runs/a1"
    named = ["https://wandb.ai/me/p/runs/a1", f"http://host/#/experiments/7/runs/{RUN}"]
    assert trackers.addresses(said, named) == ["https://other.host/team/p/runs/a1", named[1]]
