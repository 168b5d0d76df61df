"""The standing queue on several machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import killing
from tests.support.standin.nodes import MISSING, Lab, can_be_made
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not can_be_made(), reason=MISSING)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Yield a head and two nodes."""
    made = Lab(tmp_path, "n1", "n2")
    yield made
    made.call("stop", "queue", "--now")
    made.end()


def test_tasks_are_submitted_to_a_queue_on_nodes_which_it_keeps_when_its_scheduler_is_killed(lab: Lab) -> None:
    lab.once(0)
    task = ("--", "sh", f"{lab.root}/once.sh", "1")
    assert lab.call("submit", *lab.on, "--node", "n2", *task, code=0).stdout == "0\n"
    assert lab.call("submit", *task, code=0).stdout == "1\n"
    wait_until(lambda: len(lab.told("begin")) == 2, 20)
    killing.kill(lab.scheduler())
    assert lab.call("submit", "--node", "n1", *task, code=0).stdout == "2\n"
    lab.nodes["n2"].put(lab.root / "once.sh", "echo other")
    refused = lab.call("submit", *task, code=2).stderr
    assert f"n2: {lab.root}/once.sh has other content there" in refused
    other = lab.call("submit", "--on", "ssh:n1", *task, code=2).stderr
    assert "the queue runs on ssh:n1,n2, and keeps its nodes until it has ended" in other
    lease = lab.call("lease", "--", "true", code=2).stderr
    assert "and this queue runs on nodes: use another --queue" in lease
    said = lab.call("exec", "--", "sh", "-c", "hostname; echo problem >&2; exit 3", code=3)
    assert said.stdout in ("n1\n", "n2\n")
    assert said.stderr == "problem\n"
    lab.call("wait", "0-2", code=0)
    assert [(row["state"], row["node"]) for row in lab.tasks("queue")[:3]] == [
        ("succeeded", "n2"), ("succeeded", lab.tasks("queue")[1]["node"]), ("succeeded", "n1"),
    ]  # fmt: skip
    assert len(lab.told("begin")) == len(lab.told("end")) == 3
