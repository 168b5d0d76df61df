"""A run whose only node, or one of them, is the machine of its scheduler."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.standin.nodes import MISSING, Lab, can_be_made

pytestmark = pytest.mark.skipif(not can_be_made(), reason=MISSING)


def test_this_machine_is_a_node_beside_others(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "n1")
    try:
        lab.write("jobs.csv", "Command,Node,GPUs", ["hostname", "local", "0"], ["hostname", "n1", "1"])
        lab.call("run", "jobs.csv", "--on", "local", *lab.on, "--plain", code=0)
        assert [(row["node"], Path(row["log"]).read_text().strip()) for row in lab.tasks()] == [
            ("local", os.uname().nodename), ("n1", "n1"),
        ]  # fmt: skip
    finally:
        lab.end()
