"""`./scripts/mutate` on a project of a few lines: what it applies, restores, reports and leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scripts import mutate, mutations
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PRODUCT = """\
def double(number):
    return number * 2


def half(number):
    return number / 2
"""
TESTS = """\
import os, pathlib, subprocess, time
import pytest
import scheduler
from scheduler.sums import double, half


def test_double_of_two_is_four():
    assert double(2) == 4


def test_half_is_a_number():
    assert half(2) is not None


@pytest.mark.parametrize("number", [1, 2])
class TestNumbers:
    def test_half_of_a_number_is_smaller(self, number):
        assert half(number) < number


@pytest.mark.skip
def test_a_test_that_is_skipped():
    assert False


def test_a_test_that_fails_always():
    assert False


def test_the_copy_is_imported_everywhere():
    here = pathlib.Path(__file__).parents[1]
    assert pathlib.Path(scheduler.__file__).parent == here / "scheduler"


def test_a_process_is_left():
    subprocess.Popen(["sleep", "987"], start_new_session=True)
    assert double(2) == 4


def test_double_comes_to_an_end():
    pathlib.Path(os.environ["TMPDIR"], "begun").touch()
    while double(2) == 4 and os.path.exists(os.environ.get("WAIT", "/no/such/file")):
        time.sleep(0.01)
"""
DOUBLE = ("number * 2", "number * 3")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project of one module, one file of tests and no mutations; its copies are made below `temporary`."""
    root = tmp_path / "project"
    for name, text in {
        "scheduler/__init__.py": "",
        "scheduler/sums.py": PRODUCT,
        "tests/test_sums.py": TESTS,
        "scripts/outcomes.py": (ROOT / "scripts/outcomes.py").read_text(),
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / mutations.FOLDER).mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return root


def add(project: Path, row: str, test: str, old: str = DOUBLE[0], new: str = DOUBLE[1]) -> None:
    """Add a mutation of the module, by default one that makes `double` wrong."""
    table = f'[[{row}]]\nbreaks = "{row} is broken"\nfile = "scheduler/sums.py"\nold = "{old}"\nnew = "{new}"\n'
    with open(project / mutations.FOLDER / "sums.toml", "a") as file:
        file.write(f'{table}tests = ["test_sums.py::{test}"]\n')


def test_mutations_that_a_test_notices_are_killed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(project, "double", "test_double_of_two_is_four")
    add(project, "half", "TestNumbers", "number / 2", "number / 1")
    assert mutate.main([], project) == 0
    said = capsys.readouterr().out
    assert "killed    sums/double" in said
    assert "killed    sums/half" in said
    assert "mutate: 2 killed, in 0 min" in said


def test_a_survivor_is_named_with_its_place_and_its_test(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(project, "half", "test_half_is_a_number", "number / 2", "number / 3")
    assert mutate.main(["--workers", "1"], project) == 1
    said = capsys.readouterr().out
    assert "survived sums/half: half is broken" in said
    assert "scheduler/sums.py:6" in said
    assert "\n  test_sums.py::test_half_is_a_number\n" in said
    assert "mutate: 1 survived" in said


def test_fast_changes_of_equal_length_are_each_seen(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A compiled file is taken for the present one where its source has the size and the second of before."""
    for number in range(4):
        add(project, "double", "test_double_of_two_is_four", new=("number + 2", DOUBLE[1])[number % 2])
    assert mutate.main(["--workers", "1"], project) == 1
    verdicts = [line.split()[0] for line in capsys.readouterr().out.splitlines() if " sums/double" in line]
    assert sorted(verdicts) == ["killed"] * 2 + ["survived"] * 4, "each survivor is named twice"


@pytest.mark.parametrize(
    ("test", "new", "verdict", "code"),
    [
        ("test_a_test_that_is_skipped", "number * 3", "skipped", 0),
        ("test_a_test_that_fails_always", "number * 3", "unjudged", 1),
        ("test_double_of_two_is_four", "number * 2\\n\\nraise OSError", "broken", 1),
        ("test_a_process_is_left", "number * 3", "killed", 0),
    ],
)
def test_a_mutation_that_shows_nothing_is_told_from_one_that_is_killed(
    project: Path, capsys: pytest.CaptureFixture[str], test: str, new: str, verdict: str, code: int
) -> None:
    add(project, "double", test, new=new)
    assert mutate.main([], project) == code
    assert f"mutate: 1 {verdict}, in 0 min" in capsys.readouterr().out
    assert "987" not in [word for process in psutil.process_iter() for word in _words(process)]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_mutation_that_never_ends_is_killed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutate, "EXTRA", 2.0)
    add(project, "double", "test_double_of_two_is_four", new="double(number - number)")
    add(project, "double", "test_double_of_two_is_four", new="[0 for _ in iter(int, 1)]")
    assert mutate.main([], project) == 0


def test_tests_import_the_copy_and_the_project_is_not_touched(project: Path) -> None:
    add(project, "double", "test_the_copy_is_imported_everywhere")
    assert mutate.main([], project) == 1, "the mutation survives: the test asks only what is imported"
    assert (project / "scheduler/sums.py").read_text() == PRODUCT
    assert not (project / ".venv").exists()
    assert list((project.parent / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "test", "why"),
    [
        ("number", "x", "test_half_is_a_number", "its old text stands 4 times in scheduler/sums.py"),
        ("number * 4", "x", "test_half_is_a_number", "its old text stands 0 times in scheduler/sums.py"),
        ("number * 2", "number * 2", "test_half_is_a_number", "changes nothing"),
        ("number * 2", "number *", "test_half_is_a_number", "line 2 of scheduler/sums.py is no Python"),
        ("number * 2", "0", "test_no_such_thing", "there is no test test_sums.py::test_no_such_thing"),
    ],
)
def test_a_mutation_that_does_not_apply_is_refused_before_anything_runs(
    project: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, test: str, why: str
) -> None:
    add(project, "double", test, old, new)
    assert mutate.main([], project) == 2
    assert f"sums/double: {why}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[[double]]\nbreaks = 'it'\n", "double = 1\n", "[[double]\n"])
def test_a_file_without_mutations_is_refused_by_name(
    project: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (project / mutations.FOLDER / "sums.toml").write_text(text)
    assert mutate.main([], project) == 2
    assert "sums" in capsys.readouterr().err


def test_names_globs_themes_and_files_choose_mutations(project: Path) -> None:
    for row in ("double", "half"):
        add(project, row, "test_double_of_two_is_four")
    found = mutations.read(project)
    for name, number in {"sums/half": 1, "sums/*": 2, "sums": 2, "scheduler/*.py": 2}.items():
        assert len(mutate.chosen(found, [name], 0, "")) == number, name
    with pytest.raises(mutations.Unusable, match="no mutation is called other"):
        mutate.chosen(found, ["other"], 0, "")


def test_a_sample_is_the_same_for_one_commit_and_another_for_the_next() -> None:
    found = [mutations.Mutation(f"sums/{number}", "", "", "", "", ()) for number in range(100)]
    once, again, other = (mutate.chosen(found, [], 25, seed) for seed in ("a", "a", "b"))
    assert once == again != other
    assert len(once) == len({mutation.name for mutation in once}) == 25


def test_ctrl_c_leaves_no_copy_and_no_process(project: Path) -> None:
    add(project, "double", "test_double_comes_to_an_end")
    flag, temporary = project.parent / "wait", project.parent / "temporary"
    flag.touch()
    script = (
        "import sys; from pathlib import Path; from scripts import mutate; sys.exit(mutate.main([], Path(sys.argv[1])))"
    )
    env = {**os.environ, "TMPDIR": str(temporary), "WAIT": str(flag)}
    command = [sys.executable, "-c", script, str(project)]
    with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True) as run:
        wait_until(lambda: list(temporary.rglob("begun")), 30)
        children = psutil.Process(run.pid).children(recursive=True)
        os.killpg(run.pid, signal.SIGINT)
        assert "nothing is left" in run.communicate(timeout=30)[1]
    assert run.returncode == 130
    assert not any(child.is_running() for child in children)
    assert list(temporary.iterdir()) == []
