"""The answers of Slurm's commands, as they are understood."""

from __future__ import annotations

import pytest

from scheduler.cluster.slurm import features_in


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
