"""`scheduler.map`: a plain function on many values, with results in order and failures as data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import scheduler
from scheduler import ConfigError, Failure
from tests.e2e.older_tools.project import Project

WORK = """\
class Answer:
    def __init__(self, value):
        self.value = value

def work(config):
    import os
    if config["x"] == 2:
        raise ValueError("two is\\nbad")
    if config["x"] == 3:
        os._exit(9)
    if config["x"] == 4:
        return lambda: 1
    return Answer(config["x"] * 10)
"""
SHOW = """\
import scheduler
for found in scheduler.map(work, [{"x": number} for number in range(6)]):
    print(found.value if found or isinstance(found, Answer) else (found.state, found.error))
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    made.end()


def shown(project: Project) -> list[str]:
    return project.script().stdout.splitlines()


class TestResults:
    @pytest.mark.parametrize("where", ["module", "script"])
    def test_results_are_in_order_and_failures_are_data(self, project: Project, where: str) -> None:
        if where == "module":
            project.put(mine=WORK, main=f"from mine import Answer, work\n{SHOW}")
        else:
            project.put(main=WORK + SHOW)
        said = shown(project)
        assert said[:4] == ["0", "10", "('failed', 'ValueError: two is\\nbad')", "('failed', 'exit 9')"]
        assert "pickle" in said[4]
        assert said[5] == "50"

    def test_a_failure_names_its_log(self, project: Project) -> None:
        project.put(
            main=WORK + "import scheduler\n(one,) = scheduler.map(work, [{'x': 2}])\nprint(open(one.log).read())\n"
        )
        assert "ValueError: two is" in project.script().stdout

    def test_map_takes_values_of_any_type_and_an_empty_list(self, project: Project) -> None:
        call = "scheduler.map(double, [2, 'ab', [1]]), scheduler.map(double, [])"
        project.put(main=f"import scheduler\ndef double(x):\n    return x * 2\nprint({call})\n")
        assert shown(project) == ["[4, 'abab', [1, 1]] []"]

    def test_a_script_without_a_main_guard_does_not_start_again_in_its_tasks(self, project: Project) -> None:
        project.put(main=WORK + SHOW + "open('ran', 'a').write('x')\n")
        project.script()
        assert (project.root / "ran").read_text() == "x"

    def test_a_script_that_reads_its_arguments_gets_them_in_its_tasks(self, project: Project) -> None:
        ask = "import argparse, scheduler\nask = argparse.ArgumentParser()\nask.add_argument('--by', required=True)\n"
        work = "by = int(ask.parse_args().by)\ndef times(x):\n    return x * by\n"
        project.put(main=f"{ask}{work}print(scheduler.map(times, [2, 3]))\n")
        assert project.script("main.py", "--by", "7").stdout == "[14, 21]\n"

    def test_the_run_of_map_is_listed_like_any_other(self, project: Project) -> None:
        project.put(main=WORK + SHOW)
        project.script()
        assert project.states()[:3] == ["succeeded", "succeeded", "failed"]
        assert [row["config.x"] for row in project.tasks()] == ["0", "1", "2", "3", "4", "5"]


def method() -> None:
    """Return the argument; a function that other processes can import."""


class TestRefusals:
    @pytest.mark.parametrize(
        ("what", "words"),
        [
            (lambda x: x, "a lambda has no name by which another process can find it"),
            (os.getpid, "is not a plain function of a module: write one with def that calls it"),
            (partial(print, 1), "is not a plain function of a module"),
            (Path, "is not a plain function of a module"),
        ],
    )
    def test_a_function_that_no_other_process_can_import_is_refused_with_the_reason(
        self, what: object, words: str
    ) -> None:
        with pytest.raises(ConfigError, match=words):
            scheduler.map(what, [1])  # type: ignore[arg-type]

    def test_a_function_inside_a_function_is_refused(self) -> None:
        def inner() -> None: ...

        with pytest.raises(ConfigError, match="is defined inside TestRefusals"):
            scheduler.map(inner, [1])  # type: ignore[arg-type]

    def test_a_value_that_cannot_be_pickled_is_named(self) -> None:
        with pytest.raises(ConfigError, match="config 2 cannot be passed to another process: the value of 'loss': "):
            scheduler.map(method, [{"loss": 1}, {"loss": lambda: 1}])  # type: ignore[arg-type]

    def test_a_failure_is_false_as_a_truth_value(self) -> None:
        assert not Failure("failed", "exit 1", "1.log", 7)
