"""The command that starts an agent on a node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.cluster import link


@pytest.mark.parametrize(
    ("head", "on_path", "said"),
    [
        (sys.executable, False, "an agent"),
        ("/nowhere/python", True, "an agent"),
        ("/nowhere/python", False, "no /nowhere/python there, and no scheduler on PATH"),
    ],
)
def test_an_agent_starts_with_the_python_of_the_head_or_with_that_of_the_scheduler_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, on_path: bool, said: str
) -> None:
    (tmp_path / "agent_of_test.py").write_text("print('an agent')")
    if on_path:
        command = tmp_path / "scheduler"
        command.write_text(f"#!{sys.executable}\n")
        command.chmod(0o755)
    monkeypatch.setattr(link, "MODULE", "agent_of_test")
    monkeypatch.setattr(link.sys, "executable", head)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(["sh", "-c", link._remote()], env=env, capture_output=True, text=True, check=False)
    assert said in done.stdout + done.stderr
    assert done.returncode == (127 if "no /nowhere" in said else 0)
