"""Tasks that depend on others: preprocess, then trainings, then evaluate, in one list."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.killing import Home
from tests.support.pipeline import FORMS, run_failing
from tests.support.pipeline import run as run_pipeline
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ON_HOST = ("--devices", "host", "--slots", "4")
TRAININGS = 12


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


def pipeline(home: Home, *, works: bool) -> None:
    """Write the list, whose tasks append their words to a file; preprocess fails until the file `ready` is there."""
    (home.root / "step.sh").write_text("echo $1 >> done.txt\n")
    (home.root / "prep.sh").write_text("test -e ready || exit 3\nexec sh step.sh prep\n")
    if works:
        (home.root / "ready").touch()
    rows = ["evaluate,sh step.sh evaluate,train", *(f"train,sh step.sh train{n},prep" for n in range(TRAININGS))]
    (home.root / "jobs.csv").write_text("\n".join(["Name,Command,After", *rows, "prep,sh prep.sh,"]) + "\n")


def done(home: Home) -> list[str]:
    return (home.root / "done.txt").read_text().split()


def test_a_pipeline_runs_in_the_order_of_its_dependencies_whatever_the_order_of_its_rows(home: Home) -> None:
    pipeline(home, works=True)
    home.call("run", "jobs.csv", *ON_HOST)
    assert done(home)[0] == "prep"
    assert sorted(done(home)[1:-1]) == sorted(f"train{n}" for n in range(TRAININGS))
    assert done(home)[-1] == "evaluate"
    home.call("report", "r1", "-o", "report.json", code=0)
    arrows = json.loads((home.root / "report.json").read_text())["runs"][0]["arrows"]
    trainings = range(1, TRAININGS + 1)
    assert sorted(arrows) == [*([n, 0] for n in trainings), *([TRAININGS + 1, n] for n in trainings)]


def test_a_failed_preprocess_skips_everything_and_its_retry_runs_all_of_it(home: Home) -> None:
    pipeline(home, works=False)
    ran = home.call("run", "jobs.csv", *ON_HOST, code=1)
    assert (
        "skipped: 13 tasks that depend on task 13 (failed); scheduler retry 13 brings them back"
        in ran.stdout + ran.stderr
    )
    assert not (home.root / "done.txt").exists()
    listed = home.call("list", "r1").stdout
    assert listed.count("skipped") >= TRAININGS + 1
    prep = TRAININGS + 1
    assert listed.count(f"skipped (for {prep})") == TRAININGS + 1
    assert {task["skipped_for"] for task in home.tasks("r1")} == {None, str(prep)}
    assert f"was skipped: it depends on task {prep} (failed)" in home.call("why", "0").stdout
    (home.root / "ready").touch()
    home.call("retry", str(prep))
    home.call("resume", "r1")
    assert (done(home)[0], done(home)[-1], len(done(home))) == ("prep", "evaluate", TRAININGS + 2)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("a,true,b\nb,true,a", "row 2, column After: these rows depend on one another, so none can start: row 2 after"),
        ("a,true,\nb,true,perp", "row 3, column After: no task has the name 'perp'"),
        ("a,true,\nb,true,77", "row 3, column After: there is no task 77"),
    ],
)
def test_dependencies_that_can_never_be_are_refused_with_row_and_column(home: Home, rows: str, sentence: str) -> None:
    (home.root / "jobs.csv").write_text(f"Name,Command,After\n{rows}\n")
    refused = home.call("run", "jobs.csv", *ON_HOST, code=2)
    assert f"jobs.csv, {sentence}" in refused.stderr
    assert f"jobs.csv, {sentence}" in home.call("run", "jobs.csv", *ON_HOST, "--dry-run", code=2).stderr


def test_only_tasks_without_parents_start_in_a_dry_run(home: Home) -> None:
    pipeline(home, works=True)
    plan = json.loads(home.call("run", "jobs.csv", *ON_HOST, "--dry-run", "--json").stdout)
    assert [start["name"] for start in plan["starts"]] == ["prep"]


@pytest.mark.parametrize("form", FORMS)
def test_a_pipeline_killed_in_the_middle_and_resumed_runs_each_task_once(home: Home, form: str) -> None:
    assert run_pipeline(home, form, kills=4, seed=7) == []


@pytest.mark.parametrize("form", FORMS)
def test_a_failed_first_step_skips_the_thirteen_others_and_its_retry_runs_all(home: Home, form: str) -> None:
    assert run_failing(home, form) == []


class TestOtherRuns:
    """Tasks that depend on tasks of another run, or on all of it."""

    @pytest.fixture
    def first(self, home: Home) -> str:
        """Start a run of one task that waits for a file and then succeeds if another one is there."""
        (home.root / "wait.sh").write_text("until test -e go; do sleep 0.05; done\ntest -e ready\n")
        home.call("run", "-d", home.write("first.csv", "Name,Command", "prep,sh wait.sh"), *ON_HOST, code=0)
        wait_until(lambda: home.states("r1") == ["running"], 30)
        return "1"

    def follow(self, home: Home, *parents: str) -> None:
        """Start a run whose tasks have these parents, and wait until all of them are blocked."""
        home.write("second.csv", "Command,After", *([f"sh -c 'echo {word} >> done.txt'", word] for word in parents))
        home.call("run", "-d", "second.csv", *ON_HOST, code=0)
        wait_until(lambda: home.states("r2") == ["blocked"] * len(parents), 30)

    def test_tasks_start_after_the_task_row_or_run_that_they_name(self, home: Home, first: str) -> None:
        self.follow(home, "0", "r1", "r1.1")
        assert home.call("why", "r2.1", "r2.2").stdout.splitlines() == [
            "task 1 waits for the end of task 0 (running)",
            "task 2 waits for the end of run r1 (running)",
        ]
        for name in ("ready", "go"):
            (home.root / name).touch()
        wait_until(lambda: home.states("r2") == ["succeeded"] * 3, 30)

    def test_a_failed_run_skips_its_children_which_come_back_after_its_retry(self, home: Home, first: str) -> None:
        self.follow(home, "r1", "ended:0")
        (home.root / "go").touch()
        wait_until(lambda: home.states("r2") == ["skipped", "succeeded"], 30)
        said = "it depends on run r1 (failed); scheduler retry r1, then scheduler resume r2, bring both back"
        wait_until(lambda: said in home.call("why", "r2.1").stdout, 30)
        (home.root / "ready").touch()
        home.call("retry", "r1", code=0)
        home.call("resume", "r1", code=0)
        home.call("resume", "r2", code=0)
        assert home.states("r2") == ["succeeded", "succeeded"]

    def test_a_list_goes_on_when_its_scheduler_was_killed_while_the_parent_ended(self, home: Home, first: str) -> None:
        self.follow(home, "0")
        os.kill(home.scheduler(2), signal.SIGKILL)
        for name in ("ready", "go"):
            (home.root / name).touch()
        wait_until(lambda: home.states("r1") == ["succeeded"], 30)
        home.call("resume", "r2", code=0)
        assert home.states("r2") == ["succeeded"]

    @pytest.mark.parametrize(
        ("parent", "sentence"),
        [
            ("r1", "run r1 ended without success (failed): scheduler retry r1 first, or write ended:r1"),
            ("0", "task 0 ended without success (failed): scheduler retry 0 first, or write ended:0"),
            ("r7", "there is no run 7 in"),
            ("r1.5", "r1.5: run 1 has 1 task, r1.1 is the first"),
        ],
    )
    def test_parents_that_can_never_be_are_refused_with_row_and_column(
        self, home: Home, first: str, parent: str, sentence: str
    ) -> None:
        (home.root / "go").touch()
        wait_until(lambda: home.states("r1") == ["failed"], 30)
        wait_until(lambda: not home.living(), 30)
        home.write("second.csv", "Command,After", ["true", parent])
        for how in ((), ("--dry-run",)):
            refused = home.call("run", "second.csv", *ON_HOST, *how, code=2).stderr
            assert f"second.csv, row 2, column After: {sentence}" in refused


class TestResultsOfParents:
    """Placeholders in a command that the result of a parent fills when the task starts."""

    LEAVES = """sh -c 'echo "{\\"path\\": \\"a b\\", \\"best\\": {\\"lr\\": 0.5}}" > $SCHEDULER_RESULT'"""

    def run(self, home: Home, *rows: tuple[str, str, str], code: int) -> str:
        ran = home.call("run", home.write("jobs.csv", "Name,Command,After", *rows), *ON_HOST, code=code)
        return ran.stdout + ran.stderr

    def test_values_fill_one_argument_each_and_doubled_braces_stay(self, home: Home) -> None:
        told = "touch {prep.result.path} lr={result.best.lr} {{prep.result.path}}"
        self.run(home, ("prep", self.LEAVES, ""), ("eval", told, "prep"), code=0)
        assert {"a b", "lr=0.5", "{prep.result.path}"} <= {path.name for path in home.root.iterdir()}
        assert "{prep.result.path}" in home.tasks("r1")[1]["command"]

    def test_a_missing_key_fails_the_child_alone_with_a_sentence(self, home: Home) -> None:
        rows = (("prep", self.LEAVES, ""), ("eval", "touch {prep.result.pat}", "prep"), ("other", "true", "prep"))
        self.run(home, *rows, code=1)
        assert home.states("r1") == ["succeeded", "failed", "succeeded"]
        said = "{prep.result.pat}: the result of task 0 (prep) has no pat; it left: path, best.lr"
        assert said in home.call("why", "r1.2").stdout

    def test_a_result_of_a_task_in_another_run_is_found(self, home: Home) -> None:
        self.run(home, ("prep", self.LEAVES, ""), code=0)
        self.run(
            home, ("eval", "touch {0.result.best.lr}", "0"), ("again", "touch x{r1.1.result.path}", "r1.1"), code=0
        )
        assert (home.root / "0.5").exists()
        assert (home.root / "xa b").exists()

    @pytest.mark.parametrize(
        ("command", "after", "sentence"),
        [
            ("touch {train.result.path}", "train", "could mean the result of any of 2 tasks with the name train"),
            (
                "touch {result.path}",
                "train",
                "could mean the result of any of 2 tasks: name one of them by its id or Name",
            ),
            ("touch {prep.result.path}", "train", "{prep.result.path} names prep, which is not in After"),
            ("touch {result.path}", "", "{result.path} takes a value of a parent, and After is empty"),
        ],
    )
    def test_a_result_of_none_or_several_parents_is_refused_with_the_row(
        self, home: Home, command: str, after: str, sentence: str
    ) -> None:
        said = self.run(home, ("train", "true", ""), ("train", "false", ""), ("eval", command, after), code=2)
        assert "jobs.csv, row 4, column After: " in said
        assert sentence in said
