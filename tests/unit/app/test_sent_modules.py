"""The modules of a program, as they are sent to machines that make its calls."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.api import sent_modules
from scheduler.api.sent_modules import SentModules
from scheduler.runtime import task_launcher


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make and load a module and a package; return their folder."""
    folder = tmp_path / "program"
    (folder / "sent_package" / "__pycache__").mkdir(parents=True)
    for name in ("sent_alone.py", "sent_package/__init__.py", "sent_package/later.py", "sent_package/data.csv"):
        (folder / name).write_text("X = 1\n")
    monkeypatch.syspath_prepend(folder)
    for name in ("sent_alone", "sent_package"):
        importlib.import_module(name)
    yield folder
    for name in ("sent_alone", "sent_package"):
        del sys.modules[name]


def names(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as packed:
        return {name for name in packed.namelist() if name.startswith("sent_")}


def test_loaded_modules_are_sent_with_their_packages_and_again_once_one_was_edited(
    program: Path, tmp_path: Path
) -> None:
    sent = SentModules()
    first = sent.archive(tmp_path)
    assert names(tmp_path / first) == {"sent_alone.py", "sent_package/__init__.py", "sent_package/later.py"}
    assert sent.archive(tmp_path) == first
    (program / "sent_alone.py").write_text("X = 22\n")
    assert sent.archive(tmp_path) != first


def test_installed_modules_are_not_sent_and_no_more_than_the_limits(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [path for _, path, _, _ in sent_modules._files()]
    assert str(program / "sent_alone.py") in paths
    assert not [path for path in paths if path in (pytest.__file__, importlib.__file__, sent_modules.__file__)]
    monkeypatch.setattr(sent_modules, "MOST_FILES", 1)
    assert len([*sent_modules._files()]) == 1


def test_modules_come_from_the_archive_unless_all_are_there_with_the_same_content(
    program: Path, tmp_path: Path
) -> None:
    def path_of_call() -> list[str]:
        return task_launcher.module_path(str(tmp_path / SentModules().archive(tmp_path)), ["usual"])

    assert path_of_call() == ["usual"]
    archive = str(tmp_path / "modules-1.zip")
    Path(f"{archive}.here").unlink()
    (program / "sent_alone.py").write_text("X = 22\n")
    assert task_launcher.module_path(archive, ["usual"]) == [archive, "usual"]
