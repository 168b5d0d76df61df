"""Lists as users have them, through the real command line, and scripts that were not edited for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support.killing import Home
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PACKED = ("--devices", "host", "--slots", "4", "--max-load", "100")

TRANSFORMERS = """\
import argparse
p = argparse.ArgumentParser(allow_abbrev=False)
p.add_argument("--learning_rate", type=float, required=True)
p.add_argument("--num_train_epochs", type=float, required=True)
p.add_argument("--output_dir", required=True)
a = p.parse_args()
print("trained", a.num_train_epochs, "into", a.output_dir)
"""
HYDRA = """\
import sys
known = {"train.epochs", "model.lr"}
said = dict(word.split("=", 1) for word in sys.argv[1:])
if set(said) - known: sys.exit("Could not override " + repr(said))
print("trained", int(said["train.epochs"]), "at", float(said["model.lr"]))
"""
"""A script that refuses unknown arguments, above all --id and --epochs."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


def logs(home: Home, run: str = "1") -> list[str]:
    """Return the output of each task, by row."""
    return [Path(task["log"]).read_text() for task in sorted(home.tasks(run), key=lambda task: task["row"])]


class TestUneditedScripts:
    """Each script runs in an ordinary list, with a probe, and in a table whose command follows `--`."""

    LISTS: ClassVar = {
        "hf.py": "{python} hf.py --learning_rate {{lr}} --num_train_epochs {{epochs}} --output_dir out/{{lr}}",
        "hydra.py": "{python} hydra.py train.epochs={{epochs}} model.lr={{lr}}",
    }

    @pytest.fixture(autouse=True)
    def _scripts(self, home: Home) -> None:
        (home.root / "hf.py").write_text(TRANSFORMERS)
        (home.root / "hydra.py").write_text(HYDRA)

    @pytest.mark.parametrize(
        ("script", "said"), [("hf.py", "trained 9.0 into out/0.{}\n"), ("hydra.py", "trained 9 at 0.{}\n")]
    )
    def test_unedited_scripts_run_in_lists_and_tables(self, home: Home, script: str, said: str) -> None:
        command = self.LISTS[script].format(python=sys.executable)
        home.write("jobs.csv", "Command,Epochs,lr", [command, 9, "0.1"], [command, 9, "0.2"])
        home.write("table.csv", "Epochs,lr", [9, "0.1"], [9, "0.2"])
        home.call("run", "jobs.csv", *PACKED, "--profile", "probe", code=0)
        home.call("run", "table.csv", *PACKED, "--", *command.split(), code=0)
        assert logs(home, "1") == logs(home, "2") == [said.format(1), said.format(2)]
        assert "probe" in home.log(1)

    def test_append_none_runs_a_script_that_refuses_the_argument_id(self, home: Home) -> None:
        text = "hf.py --learning_rate 1 --num_train_epochs {epochs} --output_dir x"
        home.write("jobs.csv", "Directory,Executable,Filename,Epochs", [".", sys.executable, text, 9])
        assert "unrecognized arguments: --id=0" in Path(self.failed(home, "1")).read_text()
        home.call("run", "jobs.csv", *PACKED, "--append", "none", code=0)

    def failed(self, home: Home, run: str) -> str:
        home.call("run", "jobs.csv", *PACKED, code=1)
        [task] = home.tasks(run)
        return str(task["log"])


class TestTables:
    def test_a_table_of_three_hundred_rows_runs(self, home: Home) -> None:
        rows = [[f"{number / 1000}", 2 ** (number % 5), f"a '{number}' \"b\""] for number in range(300)]
        home.write("table.csv", "lr,bs,note", *rows)
        script = 'printf "%s|" "$@" >"$SCHEDULER_TASK_DIR/said"'
        home.call(
            "run", "table.csv", *PACKED, "--memory", "1MiB", "--cpus", "0.1", "--",
            "sh", "-c", script, "_", "--lr", "{lr}", "runs/{lr}_{bs}", "{note}", code=0,
        )  # fmt: skip
        tasks = sorted(home.tasks(), key=lambda task: task["row"])
        assert {task["state"] for task in tasks} == {"succeeded"}
        for task, (lr, bs, note) in zip(tasks, rows, strict=True):
            assert (task["lr"], task["bs"], task["note"]) == (lr, str(bs), note)
            assert (Path(task["log"]).parent / "said").read_text() == f"--lr|{lr}|runs/{lr}_{bs}|{note}|"

    def test_json_lines_with_task_fields_run(self, home: Home) -> None:
        objects = [{"lr": 1, "Name": "one {lr}", "Priority": 2}, {"lr": 2, "Name": "two", "Env": "A=b"}]
        (home.root / "t.jsonl").write_text("".join(json.dumps(one) + "\n\n" for one in objects))
        home.call("run", "t.jsonl", *PACKED, "--", "sh", "-c", 'echo "$1 $A"', "_", "{lr}", code=0)
        assert logs(home) == ["1 \n", "2 b\n"]
        assert {(task["row"], task["name"], task["priority"]) for task in home.tasks()} == {
            (1, "one 1", 2),
            (3, "two", 0),
        }

    def test_rows_appended_to_a_table_run_before_and_after_a_resume(self, home: Home) -> None:
        home.write("table.csv", "x", ["a b"], ["c"])
        wait = 'until [ -e go ]; do sleep 0.01; done; echo "$1"'
        command = ("run", "table.csv", "--devices", "host", "--slots", "1", "--", "sh", "-c", wait, "_", "{x}")
        with home.start(*command) as scheduler:
            wait_until(lambda: "start" in home.log(), 30)
            scheduler.kill()
        with open(home.root / "table.csv", "a") as table:
            table.write("'d'\n")
        (home.root / "go").touch()
        home.call("resume", code=0)
        assert logs(home) == ["a b\n", "c\n", "'d'\n"]

    @pytest.mark.parametrize(
        ("command", "said"),
        [
            (
                ("--", "sh", "{lrr}"),
                "table.csv, row 1: it has no column for {lrr} of the command; its columns are lr, bs;",
            ),
            (("--",), "there is no command after --"),
            (("--append", "id", "--", "sh", "{lr}"), "--append id: nothing is appended to a command after --"),
            (("--header", "None", "--", "sh", "{lr}"), "--header None: the placeholders of the command need a header"),
            (("--", "sh", "{"), "the command after --: '{' has a single {: write {{ for a literal brace"),
        ],
    )
    def test_a_table_with_a_bad_command_is_refused_in_one_sentence(
        self, home: Home, command: tuple[str, ...], said: str
    ) -> None:
        home.write("table.csv", "lr,bs", [1, 2])
        err = home.call("run", "table.csv", *command, code=2).stderr
        assert said in err
        assert len(err.splitlines()) == 1
        assert not (home.state / "runs").exists() or not list((home.state / "runs").iterdir())
