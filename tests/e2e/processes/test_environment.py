"""The Python and the environment of tasks, also after a resume from another shell."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.environments import conda_environment, installed, virtual_environment
from tests.support.faults import fault
from tests.support.killing import Home
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

CANARY = "canary-4711-of-no-one"
SHOW = """\
import json, os, resource, sys, time
if "--wait" in sys.argv:
    open("here", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)
shown = ("FAKE_PYTHON", "PATH", "LD_LIBRARY_PATH", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "TEAM")
told = {name: os.environ[name] for name in shown if name in os.environ}
told["coerced"] = "LC_CTYPE=" in open("/proc/self/environ").read()
told["key"] = len(os.environ.get("WANDB_API_KEY", ""))
told["umask"] = os.umask(0)
told["files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
told["cwd"] = os.getcwd()
with open("told." + os.environ["SCHEDULER_NAME"] + ".part", "w") as file:
    json.dump(told, file)
os.rename(file.name, file.name[:-5])
"""
FIVE = "Name,Directory,Executable,Filename,Epochs"


class Place(Home):
    """A home whose scheduler is installed in its own environment and uses the default state and lease directories."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        (root / "work").mkdir()
        (root / "work/show.py").write_text(SHOW)
        (root / "tmp").mkdir()
        settings = root / ".config/gpu-batch-scheduler/config.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text(f'state = "{self.state}"\nleases = "{self.leases}"\n')
        self.command = [str(installed(root / "own"))]
        name, _, value = self.mark.partition("=")
        self.env = {**self.bare(), name: value, "PATH": os.environ["PATH"]}
        self.env["TMPDIR"] = str(root / "tmp")

    def bare(self) -> dict[str, str]:
        """Return the environment of cron, and of `env -i`."""
        return {"HOME": str(self.root), "PATH": "/usr/bin:/bin"}

    def activate(self, prefix: Path, name: str = "CONDA_PREFIX") -> None:
        self.env.update({name: str(prefix), "PATH": f"{prefix}/bin:{self.env['PATH']}"})

    def told(self, name: str) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.root / f"work/told.{name}").read_text())
        return told

    def rows(self, *rows: str) -> None:
        self.write("jobs.csv", FIVE, *rows)

    def python_line(self, *arguments: str, **how: Any) -> str:
        """Return the line about Python among the first lines of a run; the run has to succeed."""
        said = self.call("run", "jobs.csv", *arguments, code=0, **how).stdout
        return next(line for line in said.splitlines() if line.startswith("python  ")).removeprefix("python  ")

    def files_with(self, text: str) -> list[str]:
        """Return all files that were written anywhere with a text in them."""
        files = (Path(folder) / name for folder, _, names in os.walk(self.root) for name in names)
        return sorted(str(f.relative_to(self.root)) for f in files if f.is_file() and text.encode() in f.read_bytes())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.end()


class TestPython:
    def test_active_conda_environment_is_used_and_not_the_schedulers_own(self, place: Place) -> None:
        other = conda_environment(place.root / "miniconda3/envs/exp")
        place.activate(other)
        place.rows("a,work,-1,show.py,1", "b,work,,show.py,1", "c,work,python,show.py,1")
        assert place.python_line() == "~/miniconda3/envs/exp/bin/python (active conda environment)"
        assert {place.told(name)["FAKE_PYTHON"] for name in "abc"} == {f"{other}/bin/python"}

    def test_virtual_environment_activated_after_conda_is_used(self, place: Place) -> None:
        place.activate(conda_environment(place.root / "miniconda3"))
        place.activate(virtual_environment(place.root / "project/.venv"), "VIRTUAL_ENV")
        place.rows("a,work,-1,show.py,1")
        assert place.python_line() == "~/project/.venv/bin/python (active virtual environment)"
        assert place.told("a")["FAKE_PYTHON"].endswith("/project/.venv/bin/python")

    def test_conda_environment_activated_after_a_virtual_one_is_used(self, place: Place) -> None:
        place.activate(virtual_environment(place.root / "project/.venv"), "VIRTUAL_ENV")
        place.activate(conda_environment(place.root / "miniconda3"))
        place.rows("a,work,-1,show.py,1")
        assert place.python_line() == "~/miniconda3/bin/python (active conda environment)"

    def test_own_python_is_used_where_no_other_environment_is_active(self, place: Place) -> None:
        place.rows("a,work,-1,show.py,1")
        assert place.python_line() == "~/own/bin/python (the scheduler's own)"
        place.activate(place.root / "own", "VIRTUAL_ENV")
        assert place.python_line() == "~/own/bin/python (active virtual environment and the scheduler's own)"

    def test_active_environment_without_a_python_is_reported(self, place: Place) -> None:
        place.activate(conda_environment(place.root / "tools", python=False))
        place.rows("a,work,-1,show.py,1")
        gone = f"~/own/bin/python (the scheduler's own, as CONDA_PREFIX={place.root}/tools has no bin/python)"
        assert place.python_line() == gone

    @pytest.mark.parametrize("said", ["conda:exp", "miniconda3/envs/exp", "miniconda3/envs/exp/bin/python"])
    def test_flag_overrides_the_active_environment(self, place: Place, said: str) -> None:
        exp = conda_environment(place.root / "miniconda3/envs/exp")
        place.activate(virtual_environment(place.root / "active"), "VIRTUAL_ENV")
        place.rows("a,work,-1,show.py,1")
        assert place.python_line("--python", said).startswith("~/miniconda3/envs/exp/bin/python (")
        assert place.told("a")["FAKE_PYTHON"] == f"{exp}/bin/python"
        assert (place.told("a").get("CONDA_PREFIX") == str(exp)) == (not said.endswith("python"))

    @pytest.mark.parametrize(
        ("said", "sentence"),
        [
            (
                "conda:nope",
                "--python conda:nope: there is base ({root}/miniconda3), exp ({root}/miniconda3/envs/exp)",
            ),
            ("no-such-python", "--python no-such-python: it is not on PATH; write its whole path"),
            ("work", "--python work: it is not on PATH; write its whole path"),
            (
                "./work",
                "--python ./work: {root}/work is neither a program nor an environment; write the path of a python",
            ),
        ],
    )
    def test_flag_that_names_no_python_is_refused(self, place: Place, said: str, sentence: str) -> None:
        conda_environment(place.root / "miniconda3/envs/exp")
        conda_environment(place.root / "miniconda3")
        (place.root / "miniconda3/condabin").mkdir()
        place.rows("a,work,-1,show.py,1")
        refused = place.call("run", "jobs.csv", "--python", said, code=2)
        assert refused.stderr.startswith(f"scheduler: {sentence.format(root=place.root)}")


class TestEnvironmentsInRows:
    def test_environment_of_a_row_runs_with_its_python_and_variables(self, place: Place) -> None:
        conda = conda_environment(place.root / "miniforge3/envs/exp")
        venv = virtual_environment(place.root / "work/.venv")
        place.activate(virtual_environment(place.root / "active"), "VIRTUAL_ENV")
        place.rows("a,work,conda:exp,show.py,1", f"b,work,{conda},show.py,1", "c,work,.venv,show.py,1")
        place.call("run", "jobs.csv", code=0)
        for name in "ab":
            told = place.told(name)
            assert (told["FAKE_PYTHON"], told["CONDA_PREFIX"], told["CONDA_DEFAULT_ENV"]) == (
                f"{conda}/bin/python",
                str(conda),
                "exp",
            )
            assert told["PATH"].startswith(f"{conda}/bin:")
            assert str(place.root / "active") not in told["PATH"]
            assert "VIRTUAL_ENV" not in told
        told = place.told("c")
        assert (told["FAKE_PYTHON"], told["VIRTUAL_ENV"]) == (f"{venv}/bin/python", str(venv))
        assert told["PATH"].startswith(f"{venv}/bin:")

    def test_environment_of_a_row_is_one_task_class_however_it_is_written(self, place: Place) -> None:
        conda = conda_environment(place.root / "miniforge3/envs/exp")
        other = conda_environment(place.root / "miniforge3/envs/other")
        place.activate(conda)
        words = ["conda:exp", conda, f"{conda}/bin/python", "python", "-1"]
        place.rows(*(f"{number},work,{word},show.py,1" for number, word in enumerate(words)))
        place.call("run", "jobs.csv", code=0)
        assert len(json.loads(place.call("profiles", "--json", code=0).stdout)["profiles"]) == 1
        place.rows(f"a,work,{other},show.py,1")
        place.call("run", "jobs.csv", code=0)
        assert len(json.loads(place.call("profiles", "--json", code=0).stdout)["profiles"]) == 2

    def test_missing_environment_of_a_row_is_refused_with_the_existing_ones(self, place: Place) -> None:
        conda_environment(place.root / "miniforge3/envs/exp")
        place.rows("a,work,-1,show.py,1", "b,work,conda:nope,show.py,1")
        where = f"there is exp ({place.root}/miniforge3/envs/exp)"
        refused = place.call("run", "jobs.csv", code=2).stderr
        assert refused.startswith(
            f"scheduler: jobs.csv, row 3, column Executable: 'conda:nope' does not exist: {where}"
        )
        assert refused.endswith("; or write its folder\n")
        assert not list(place.state.glob("runs/*"))

    def test_environment_of_a_row_without_a_python_is_refused(self, place: Place) -> None:
        tools = conda_environment(place.root / "miniforge3/envs/tools", python=False)
        place.rows("a,work,conda:tools,show.py,1")
        refused = place.call("run", "jobs.csv", code=2)
        cure = f"the conda environment {tools} has no bin/python: conda install -p {tools} python"
        assert refused.stderr == f"scheduler: jobs.csv, row 2, column Executable: 'conda:tools': {cure}\n"


def strict(place: Place) -> list[str]:
    """Return the command under a umask and a limit that are unusual."""
    return ["sh", "-c", 'umask 027; ulimit -S -n 333; exec "$@"', "sh", *place.command]


def killed(place: Place, *rows: str) -> None:
    """Start a run and kill its scheduler while its first task runs, which then ends; the rest waits."""
    usual = place.command
    place.command = strict(place)
    place.rows("first,work,-1,show.py --wait,1", *rows)
    with place.start("run", "jobs.csv", "-j", "1") as scheduler:
        wait_until((place.root / "work/here").exists, 30)
        scheduler.kill()
    place.command = usual
    (place.root / "work/go").touch()
    wait_until(lambda: not place.living(), 30)


class TestResume:
    @pytest.fixture
    def dead(self, place: Place) -> Place:
        """Start a run of two tasks and kill it, in a shell with an active environment, a library path and a secret."""
        place.activate(conda_environment(place.root / "miniconda3/envs/exp"))
        place.env.update(LD_LIBRARY_PATH="/opt/first/lib", WANDB_API_KEY=CANARY, TEAM="first")
        killed(place, "second,work,-1,show.py,1", "third,work,python,show.py,1")
        return place

    def test_resumed_tasks_see_the_first_shells_environment_and_the_secret_is_requested(self, dead: Place) -> None:
        said = dead.call("resume", code=0, env=dead.bare(), cwd="/").stdout
        first, second, third = (dead.told(name) for name in ("first", "second", "third"))
        assert (second["LD_LIBRARY_PATH"], second["PATH"], second["TEAM"]) == (
            "/opt/first/lib",
            dead.env["PATH"],
            "first",
        )
        assert (first["key"], second["key"]) == (len(CANARY), 0)
        assert {**first, "key": 0} == second == third
        assert (second["umask"], second["files"], second["cwd"]) == (0o027, 333, str(dead.root / "work"))
        assert not first["coerced"]
        hint = "hint:   WANDB_API_KEY was set when the run was started, is not stored and not set in this shell: tasks"
        assert hint in said
        assert said.index(hint) < said.index("start ")

    @pytest.mark.parametrize("how", ["--detach", "--all"])
    def test_resume_without_a_terminal_requests_the_secret_too(self, dead: Place, how: str) -> None:
        said = dead.call("resume", how, code=0, env=dead.bare())
        wait_until(lambda: dead.states() == ["succeeded"] * 3, 30)
        assert "WANDB_API_KEY was set when the run was started, is not stored" in said.stderr
        assert dead.told("second")["LD_LIBRARY_PATH"] == "/opt/first/lib"

    @fault(61)
    def test_secret_is_never_written_to_disk(self, dead: Place) -> None:
        dead.call("resume", code=0, env={**dead.bare(), "WANDB_API_KEY": CANARY})
        assert dead.told("second")["key"] == len(CANARY)
        assert dead.files_with("/opt/first/lib") == ["state/runs/1/env", *(f"work/told.{n}" for n in ORDINALS)]
        assert dead.files_with(CANARY) == []

    def test_kept_environment_is_readable_by_its_owner_alone(self, dead: Place) -> None:
        file = dead.state / "runs/1/env"
        assert file.stat().st_mode & 0o777 == 0o600
        kept = json.loads(file.read_text())
        assert (kept["format"], kept["withheld"]) == (1, ["WANDB_API_KEY"])

    def test_resume_takes_only_secrets_from_its_shell(self, dead: Place) -> None:
        now = {**dead.bare(), "WANDB_API_KEY": "another", "TEAM": "second"}
        assert "hint: " not in dead.call("resume", code=0, env=now).stdout
        assert (dead.told("second")["key"], dead.told("second")["TEAM"]) == (len("another"), "first")

    def test_resume_can_take_the_whole_environment_of_its_shell(self, dead: Place) -> None:
        now = {**dead.bare(), "TEAM": "second"}
        said = dead.call("resume", "--env-from", "now", code=0, env=now).stdout
        second = dead.told("second")
        assert (second["TEAM"], second["PATH"], "LD_LIBRARY_PATH" in second) == ("second", "/usr/bin:/bin", False)
        assert "FAKE_PYTHON" not in second
        assert "python  ~/own/bin/python (the scheduler's own)" in said
        assert second["files"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert second["cwd"] == str(dead.root / "work")

    def test_resume_names_a_limit_that_cannot_be_set_any_more(self, dead: Place) -> None:
        low = ["sh", "-c", 'ulimit -n 300; exec "$@"', "sh", *dead.command]
        dead.command = low
        said = dead.call("resume", code=0, env=dead.bare()).stdout
        assert "hint:   the run was started with nofile limited to 333; this shell allows at most 300" in said
        assert dead.told("second")["files"] == 300

    def test_resume_names_an_unreadable_environment_with_the_cure(self, dead: Place) -> None:
        (dead.state / "runs/1/env").write_text("{")
        refused = dead.call("resume", code=1, env=dead.bare())
        assert refused.stderr.startswith(
            f"scheduler: {dead.state}/runs/1/env, the environment that the run was started"
        )
        assert "scheduler resume --env-from now uses the environment of this shell" in refused.stderr
        dead.call("resume", "--env-from", "now", code=0, env=dead.bare())

    def test_resume_without_a_kept_environment_takes_its_shells(self, dead: Place) -> None:
        (dead.state / "runs/1/env").unlink()
        dead.call("resume", code=0, env={**dead.bare(), "TEAM": "second"})
        assert dead.told("second")["TEAM"] == "second"


ORDINALS = ("first", "second", "third")


def test_rows_appended_after_a_resume_use_the_first_shells_path(place: Place) -> None:
    place.activate(conda_environment(place.root / "miniconda3/envs/exp"))
    (place.root / "miniconda3/envs/exp/bin/mytool").symlink_to("python")
    killed(place)
    with (place.root / "jobs.csv").open("a") as file:
        file.write("late,work,mytool,show.py,1\n")
    place.call("resume", code=0, env=place.bare())
    assert place.told("late")["FAKE_PYTHON"].endswith("envs/exp/bin/mytool")
