"""Words that name a Python: conda environments by name, folders, programs on PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.runtime import python_envs
from scheduler.runtime.python_envs import Environment, Programs, environment_in
from scheduler.store.run.launch_command import launched
from tests.support.builders import spec
from tests.support.environments import conda_environment, program, virtual_environment


@pytest.fixture(autouse=True)
def no_shared_conda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_envs, "OPT", str(tmp_path / "opt"))


def programs(home: Path, **environ: str) -> Programs:
    return Programs({"HOME": str(home), "PATH": f"{home}/bin", **environ}, str(home))


@pytest.mark.parametrize(
    ("root", "environ"),
    [
        ("miniconda3", {}),
        (".local/share/mamba", {}),
        ("elsewhere", {"CONDA_EXE": "{home}/elsewhere/bin/conda"}),
        ("elsewhere", {"MAMBA_ROOT_PREFIX": "{home}/elsewhere"}),
        ("elsewhere", {"CONDA_PREFIX": "{home}/elsewhere"}),
        ("elsewhere", {"CONDA_PREFIX": "{home}/elsewhere/envs/other"}),
        ("elsewhere", {"CONDA_ENVS_PATH": "{home}/nowhere:{home}/elsewhere/envs"}),
    ],
)
def test_conda_environments_are_found_in_the_roots_of_conda(tmp_path: Path, root: str, environ: dict[str, str]) -> None:
    exp = conda_environment(tmp_path / root / "envs/exp")
    said = {name: text.format(home=tmp_path) for name, text in environ.items()}
    assert programs(tmp_path, **said).environment("conda:exp") == Environment(str(exp), conda=True)


def test_conda_on_path_shows_its_root(tmp_path: Path) -> None:
    exp = conda_environment(tmp_path / "far/envs/exp")
    program(tmp_path / "far/bin/conda", "#!/bin/sh\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/conda").symlink_to(tmp_path / "far/bin/conda")
    assert programs(tmp_path).environment("conda:exp") == Environment(str(exp), conda=True)


def test_an_environment_elsewhere_is_found_in_condas_own_list(tmp_path: Path) -> None:
    mine = conda_environment(tmp_path / "project/env")
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda/environments.txt").write_text(f"{tmp_path}/gone\n{mine}\n")
    found = programs(tmp_path).environment("conda:env")
    assert found == Environment(str(mine), conda=True)
    assert found.name == str(mine)


def test_the_base_environment_is_called_base(tmp_path: Path) -> None:
    (conda_environment(tmp_path / "miniconda3") / "condabin").mkdir()
    found = programs(tmp_path).environment("conda:base")
    assert found is not None
    assert found.variables({"PATH": "/bin"})["CONDA_DEFAULT_ENV"] == "base"


def test_variables_that_conda_keeps_for_an_environment_are_set(tmp_path: Path) -> None:
    exp = conda_environment(tmp_path / "exp")
    (exp / "conda-meta/state").write_text('{"env_vars": {"DATA": "/data", "PATH": "no"}}')
    found = environment_in(str(exp))
    assert found is not None
    told = found.variables({"PATH": "/bin", "VIRTUAL_ENV": "/venv"})
    assert (told["DATA"], told["PATH"], told["VIRTUAL_ENV"]) == ("/data", f"{exp}/bin:/bin", None)


def test_a_program_on_path_comes_before_a_folder_of_that_name(tmp_path: Path) -> None:
    virtual_environment(tmp_path / "work/env")
    assert programs(tmp_path).environment("env", "work") is not None
    program(tmp_path / "bin/env", "#!/bin/sh\n")
    assert programs(tmp_path).environment("env", "work") is None
    assert programs(tmp_path).environment("./env", "work") is not None


def test_a_folder_that_is_no_environment_gives_none(tmp_path: Path) -> None:
    (tmp_path / "plain/bin").mkdir(parents=True)
    assert programs(tmp_path).environment("./plain") is None


@pytest.mark.parametrize("has_python", [True, False])
def test_python_is_the_one_of_the_shell_or_else_the_one_of_the_run(tmp_path: Path, has_python: bool) -> None:
    if has_python:
        program(tmp_path / "bin/python", "#!/bin/sh\n")
    finder = programs(tmp_path)
    command, _ = launched(spec("", command="python train.py"), finder)
    row, _ = launched(spec("train.py", executable="python"), finder)
    assert command.command == ("python train.py" if has_python else f"{finder.python.path} train.py")
    assert row.executable == ("python" if has_python else "-1")


def test_the_list_of_environments_in_an_error_is_limited(tmp_path: Path) -> None:
    for number in range(12):
        conda_environment(tmp_path / f"miniconda3/envs/e{number:02}")
    said = programs(tmp_path).absent("conda:x")
    assert said.endswith(f"e07 ({tmp_path}/miniconda3/envs/e07) and 4 more; or write its folder")
    assert programs(tmp_path / "empty").absent("conda:x").startswith("no conda environment was found here")
