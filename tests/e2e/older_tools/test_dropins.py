"""The distribution of the older names: what it installs, and that it contains nothing but names."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.e2e.older_tools.project import DROPINS, Project
from tests.support.killing import ROOT

PROJECT = tomllib.loads((ROOT / "dropins/pyproject.toml").read_text())["project"]
MODULES = sorted(DROPINS.rglob("*.py"))


def python(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the older names beside ours."""
    env = {"PYTHONPATH": f"{ROOT}:{DROPINS}", "PATH": "/usr/bin:/bin", "HOME": str(cwd)}
    env |= {"SCHEDULER_STATE": str(cwd / "state"), "SCHEDULER_LEASES": str(cwd / "leases")}
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False, input=""
    )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(DROPINS)))
def test_the_distribution_contains_no_logic(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.For | ast.While | ast.Try | ast.ClassDef | ast.Lambda | ast.comprehension)
        if isinstance(node, ast.FunctionDef):
            assert len(node.body) <= 2


@pytest.mark.parametrize("command", PROJECT["scripts"])
def test_each_command_names_an_existing_function(command: str, tmp_path: Path) -> None:
    module, _, name = PROJECT["scripts"][command].partition(":")
    assert python("-c", f"from {module} import {name}; assert callable({name})", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    "statement",
    [
        "from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler as it",
        "from gpu_task_scheduler.gpu_task import GPUTask as it",
        "from gpu_task_scheduler.config_manager import ConfigManager as it",
    ],
)
def test_each_older_import_gives_this_projects_object(statement: str, tmp_path: Path) -> None:
    said = python("-c", f"{statement}; import scheduler; print(it is getattr(scheduler, it.__name__))", cwd=tmp_path)
    assert said.stdout == "True\n", said.stderr


@pytest.mark.parametrize("module", ["scheduler", "command_line"])
def test_simple_gpu_scheduler_runs_by_both_of_its_modules(module: str, tmp_path: Path) -> None:
    said = python("-m", f"simple_gpu_scheduler.{module}", cwd=tmp_path)
    assert said.returncode == 2
    assert "the following arguments are required: --gpus" in said.stderr


def test_hypersearch_runs_by_its_module(tmp_path: Path) -> None:
    said = python("-m", "simple_gpu_scheduler.hypersearch", "p {a}", "-p", "a", "1", "--seed", "1", cwd=tmp_path)
    assert said.stdout == "p 1\n"


def test_a_task_starts_from_the_file_that_its_run_wrote(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.config()
    try:
        project.script()
    finally:
        project.end()
    calls = project.state / "runs/1/given/calls"
    head = calls.read_bytes().partition(b"\n")[0]
    given = f"{calls}@{len(head) + 1 + json.loads(head)['shared']}"
    said = python("-m", "gpu_task_scheduler.start_gpu_task", given, cwd=tmp_path)
    assert said.stdout.endswith("results/a-1, holds its results already\n")
    refused = python("-m", "gpu_task_scheduler.start_gpu_task", cwd=tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_both_distributions_have_one_version() -> None:
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert PROJECT["version"] == ours["version"]
    assert PROJECT["dependencies"] == [f"{ours['name']}=={ours['version']}"]


@pytest.mark.slow
def test_the_distribution_can_be_installed_by_pip(tmp_path: Path) -> None:
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(ROOT / "dropins")]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=300, check=False)
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("pip finds nothing to build it with here")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (target / "bin").iterdir()} == set(PROJECT["scripts"])
