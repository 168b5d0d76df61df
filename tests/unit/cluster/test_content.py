"""The needs of tasks on a node, and the sentences of a node that lacks some."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scheduler.app.cluster.content import TaskNeeds, differences
from scheduler.core.tasks.fields import RowForm
from scheduler.runtime.python_envs import Programs, Python


@pytest.fixture
def needs(tmp_path: Path) -> TaskNeeds:
    """The needs of tasks: an own interpreter, two scripts, and a program of the PATH."""
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "b.py").write_text("2")
    (tmp_path / "python").symlink_to(sys.executable)
    made = TaskNeeds(str(tmp_path))
    form = RowForm(("Filename", "Executable"))
    for cells in (["a.py", "-1"], ["b.py", str(tmp_path / "python")], ["a.py", "sh"], ["gone.py", "/no/such"]):
        made.note(form.spec(cells, 1), Programs({"PATH": "/usr/bin:/bin"}, str(tmp_path), Python(sys.executable)))
    return made


def test_directories_interpreters_and_scripts_of_tasks_are_noted_once_and_only_if_they_are_here(
    needs: TaskNeeds, tmp_path: Path
) -> None:
    said = needs.to_dict()
    assert said["directories"] == [str(tmp_path)]
    assert said["programs"] == [sys.executable, str(tmp_path / "python")]
    assert [*said["scripts"]] == [str(tmp_path / "a.py"), str(tmp_path / "b.py")]
    assert not differences(said)


def test_a_node_names_what_it_lacks(needs: TaskNeeds, tmp_path: Path) -> None:
    said = needs.to_dict()
    (tmp_path / "a.py").write_text("other")
    (tmp_path / "b.py").unlink()
    (tmp_path / "python").unlink()
    assert differences({**said, "directories": [str(tmp_path / "no")]}) == [
        f"there is no directory {tmp_path / 'no'}",
        f"there is no program {tmp_path / 'python'}",
        f"{tmp_path / 'a.py'} has other content there",
        f"there is no file {tmp_path / 'b.py'}",
    ]
