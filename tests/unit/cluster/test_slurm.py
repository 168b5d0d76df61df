"""The answers of Slurm's commands, as they are understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.cluster.slurm import end_of_allocation, features_in, seconds_in
from scheduler.runtime import clock


@pytest.mark.parametrize(
    ("line", "features"),
    [
        ("NodeName=n1 Arch=x86_64 AvailableFeatures=a100,nvlink ActiveFeatures=a100 Gres=gpu:2", ("a100",)),
        ("NodeName=n1 AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:2", ()),
        ("NodeName=n1 Comment=a b", ()),
    ],
)
def test_the_active_features_of_a_node_are_those_that_slurm_says(line: str, features: tuple[str, ...]) -> None:
    assert features_in(line) == ("n1", features)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("0:58", 58.0), ("1:00:00", 3600.0), ("2-01:00:05", 2 * 86400 + 3605.0), ("UNLIMITED", None), ("INVALID", None)],
)
def test_the_time_that_is_left_is_read_as_squeue_prints_it(said: str, seconds: float | None) -> None:
    assert seconds_in(said) == seconds


def test_the_end_of_an_allocation_is_that_of_the_variable_or_else_of_squeue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\ncase $* in *--jobs=7\\ *) echo 1:40 ;; *) echo UNLIMITED ;; esac\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert end_of_allocation({"SLURM_JOB_ID": "7"}) == pytest.approx(clock.now() + 100, abs=5)
    assert end_of_allocation({"SLURM_JOB_ID": "8"}) == 0
    assert end_of_allocation({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1900000000"}) == 1_900_000_000
