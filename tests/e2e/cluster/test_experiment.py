"""Experiments on several machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.standin.nodes import MISSING, Lab, can_be_made

pytestmark = [pytest.mark.long, pytest.mark.skipif(not can_be_made(), reason=MISSING)]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Yield a head without GPUs, and two nodes with one each."""
    made = Lab(tmp_path, "n1", "n2", gpus=1)
    yield made
    made.end()


def test_rankings_are_compared_on_the_nodes_of_on(lab: Lab) -> None:
    lab.once(4, 0.2)
    few = ("--num", "2", "--order", "batch,global", "--repeats", "1")
    made = lab.call("experiment", "priority", "jobs.csv", *few, *lab.on, "--json", code=0)
    found = json.loads(made.stdout)
    assert [device["label"] for device in found["machine"]["devices"]] == ["n1 GPU 0", "n1 host", "n2 GPU 0", "n2 host"]
    assert {line.split()[1] for line in lab.told("begin")} == {"n1", "n2"}
    for node in lab.nodes.values():
        assert not node.agents()


def test_experiments_that_do_not_go_with_nodes_are_refused(lab: Lab) -> None:
    lab.once(1)
    for words, said in (
        (("mps", "jobs.csv", *lab.on), "experiment mps needs MPS, whose daemons are not started on nodes yet"),
        (("priority", "jobs.csv", *lab.on, "--simulate", "2x24GiB"), "gives the devices: leave --on ssh:n1,n2 out"),
        (("priority", "jobs.csv", "--on", "ssh:nowhere"), "Could not resolve hostname nowhere"),
    ):
        assert said in lab.call("experiment", *words, code=2).stderr
