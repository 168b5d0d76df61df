"""Other modules called `scheduler`: a project's own, PyPI's distribution; and the scripts that start this project."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpu_batch_scheduler
import scheduler
from tests.support.environments import installed, program
from tests.support.killing import ROOT, Home

pytestmark = pytest.mark.slow

THEIRS = 'MINE = "cosine"\n'
TASK = """\
import scheduler
open("told", "w").write(scheduler.MINE)
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command as pip installs it."""
    return installed(tmp_path_factory.mktemp("own") / "env")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


@pytest.fixture(params=["scheduler.py", "scheduler/__init__.py"])
def project(request: pytest.FixtureRequest, home: Home) -> Home:
    """Return a project with a `scheduler` of its own, which its script imports, and PYTHONPATH=."""
    file = home.root / request.param
    file.parent.mkdir(exist_ok=True)
    file.write_text(THEIRS)
    (home.root / "train.py").write_text(TASK)
    home.write("jobs.csv", "Directory,Executable,Filename,Epochs", ".,-1,train.py,1")
    home.env["PYTHONPATH"] = "."
    return home


class TestModuleOfAProject:
    def test_the_command_works_and_tasks_import_the_projects_module(self, project: Home, command: Path) -> None:
        project.command = [str(command)]
        project.call("run", "jobs.csv", code=0)
        assert (project.root / "told").read_text() == "cosine"
        assert project.states() == ["succeeded"]

    def test_python_m_gpu_batch_scheduler_works_beside_a_projects_scheduler(self, project: Home, command: Path) -> None:
        project.command = [str(command.parent / "python"), "-m", "gpu_batch_scheduler"]
        project.call("run", "jobs.csv", code=0)
        assert project.states() == ["succeeded"]

    def test_scheduler_py_works_beside_a_projects_scheduler(self, project: Home) -> None:
        project.command = [sys.executable, str(ROOT / "scheduler.py")]
        project.call("--csv", "jobs.csv", code=0)
        assert (project.root / "told").read_text() == "cosine"

    def test_the_api_can_be_imported_as_gpu_batch_scheduler(self, project: Home, command: Path) -> None:
        words = "from gpu_batch_scheduler import run; print(run('jobs.csv').counts)"
        said = python(project, command, words)
        assert said.stdout == "{'succeeded': 1}\n"

    def test_an_import_after_the_projects_module_fails_with_the_next_step(self, project: Home, command: Path) -> None:
        said = python(project, command, "import scheduler; from gpu_batch_scheduler import run")
        assert said.returncode == 1
        theirs = next(project.root.glob("scheduler*"))
        where = theirs if theirs.is_file() else theirs / "__init__.py"
        last = said.stderr.splitlines()[-1].partition(": ")[2]
        assert last == (
            f"gpu_batch_scheduler: another module named 'scheduler' ({where}) was imported before: "
            "import gpu_batch_scheduler first, or run the list with python -m gpu_batch_scheduler run FILE"
        )


def python(home: Home, command: Path, words: str) -> subprocess.CompletedProcess[str]:
    argv = [command.parent / "python", "-c", words]
    return subprocess.run(argv, cwd=home.root, env=home.env, capture_output=True, text=True, check=False)


class TestDistributionOfPyPI:
    @pytest.fixture
    def site(self, home: Home) -> Path:
        """Return a site directory with both distributions, this one intact."""
        site = home.root / "site"
        for name in ("scheduler", "gpu_batch_scheduler"):
            shutil.copytree(ROOT / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
        (site / "scheduler-0.8.8.dist-info").mkdir()
        (site / "scheduler-0.8.8.dist-info/METADATA").write_text("Name: scheduler\nVersion: 0.8.8\n")
        home.command = [str(installed(home.root / "env", before=str(site)))]
        del home.env["PYTHONPATH"]
        home.commands("true")
        return site

    def test_pypis_scheduler_installed_over_this_one_is_named_with_the_cure(self, home: Home, site: Path) -> None:
        (site / "scheduler/__init__.py").write_text('"""A simple in-process python scheduler library."""\n')
        pip = f"{home.root}/env/bin/python -m pip"
        for words in (("run", "jobs.csv"), ("list",), ("--help",)):
            assert home.call(*words, code=2).stderr == (
                f"scheduler: {site}/scheduler/__init__.py is not ours, as PyPI's unrelated distribution "
                f"'scheduler-0.8.8' is installed here too: {pip} uninstall scheduler && "
                f"{pip} install --force-reinstall --no-deps gpu-batch-scheduler\n"
            )

    def test_pypis_scheduler_removed_with_files_of_this_one_gives_the_cure(self, home: Home, site: Path) -> None:
        (site / "scheduler/__init__.py").unlink()
        shutil.rmtree(site / "scheduler-0.8.8.dist-info")
        pip = f"{home.root}/env/bin/python -m pip"
        refused = home.call("run", "jobs.csv", code=2).stderr
        again = f"{pip} install --force-reinstall --no-deps gpu-batch-scheduler"
        assert refused == f"scheduler: {site}/scheduler/__init__.py is missing: {again}\n"

    def test_pypis_scheduler_beneath_this_one_is_named_and_the_list_runs(self, home: Home, site: Path) -> None:
        said = home.call("run", "jobs.csv", code=0).stderr
        assert said.startswith(f"hint:   PyPI's unrelated distribution 'scheduler-0.8.8' is installed in {site} too")
        assert home.call("list", code=0).stderr == ""

    def test_pypis_scheduler_elsewhere_on_the_path_does_not_matter(self, home: Home, site: Path) -> None:
        other = home.root / "other"
        program(other / "scheduler/__init__.py", "raise SystemExit(9)\n")
        (site / "scheduler-0.8.8.dist-info").rename(other / "scheduler-0.8.8.dist-info")
        home.env["PYTHONPATH"] = str(other)
        assert home.call("run", "jobs.csv", code=0).stderr == ""


def test_both_package_names_export_equal_objects() -> None:
    assert gpu_batch_scheduler.__all__ == scheduler.__all__
    assert all(getattr(gpu_batch_scheduler, name) is getattr(scheduler, name) for name in scheduler.__all__)
    assert gpu_batch_scheduler.__version__ == scheduler.__version__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = gpu_batch_scheduler.nothing


class TestScriptsRun:
    """scripts/run with an existing environment whose python records how it was started."""

    TELL = '#!{python}\nimport json, os, sys\njson.dump([sys.argv[1:], dict(os.environ)], open("told", "w"))\n'
    STAMP = """\
source scripts/_venv.sh
wanted=$(cat "$root"/{pyproject.toml,requirements.txt,scripts/_venv.sh} | sha256sum)
printf '%s\\n' "$(place)" "$wanted" "" >"$venv/.stamp"
"""

    def test_scripts_run_passes_the_callers_variables_unchanged(self, tmp_path: Path) -> None:
        (tmp_path / "scripts").mkdir()
        for name in ("scripts/run", "scripts/_venv.sh", "pyproject.toml", "requirements.txt"):
            shutil.copy(ROOT / name, tmp_path / name)
        program(tmp_path / ".venv/bin/python", self.TELL.format(python=sys.executable))
        subprocess.run(["bash", "-c", self.STAMP], cwd=tmp_path, check=True)
        names = ("python", "root", "venv", "log", "here", "wanted", "kept", "PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
        mine = {**{name: f"my own {name}" for name in names}, "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        subprocess.run([tmp_path / "scripts/run", "jobs.csv", "-j", "1"], cwd=tmp_path, env=mine, check=True)
        argv, environ = json.loads((tmp_path / "told").read_text())
        assert argv == ["-P", "-m", "gpu_batch_scheduler", "run", "jobs.csv", "-j", "1"]
        assert {name: environ.get(name) for name in mine} == mine
        assert environ.keys() - mine.keys() <= {"_", "PWD", "OLDPWD", "SHLVL"}

    def test_scripts_run_ends_if_the_environment_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "scripts").mkdir()
        for name in ("scripts/run", "scripts/_venv.sh", "pyproject.toml", "requirements.txt"):
            shutil.copy(ROOT / name, tmp_path / name)
        (tmp_path / ".venv").mkdir()
        (tmp_path / ".venv/bin").mkdir()
        program(tmp_path / ".venv/bin/python", "#!/bin/sh\nexit 1\n")
        done = subprocess.run([tmp_path / "scripts/run", "jobs.csv"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert "pip could not install what is needed" in done.stderr
