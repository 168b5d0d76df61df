"""The distribution of the plug-ins: its version, its contents, and what the scheduler itself does not load."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from plugins.tests.plugin_home import PROJECT
from tests.support.killing import ROOT


def test_plugins_and_scheduler_have_one_version() -> None:
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert PROJECT["version"] == ours["version"]
    assert PROJECT["dependencies"] == [f"{ours['name']}=={ours['version']}"]


def test_the_scheduler_names_no_plugin_in_its_code() -> None:
    texts = {path: path.read_text() for path in (ROOT / "scheduler").rglob("*.py")}
    assert [str(path) for path, text in texts.items() if "gpu_batch_scheduler_plugins" in text] == []


@pytest.mark.slow
def test_the_distribution_of_plugins_can_be_installed_by_pip(tmp_path: Path) -> None:
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(ROOT / "plugins")]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=300, check=False)
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("pip finds nothing to build it with here")
    assert done.returncode == 0, done.stderr
    assert (target / "gpu_batch_scheduler_plugins/submitit_executor.py").is_file()
    (said,) = target.glob("*.dist-info/entry_points.txt")
    assert "executor = gpu_batch_scheduler_plugins.submitit_executor:GschedExecutor" in said.read_text()
