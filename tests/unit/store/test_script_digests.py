"""The digests of scripts: their text, and the modules beside them that they import."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduler.store.script_digests import ScriptDigests

MODULES = {
    "train.py": "import os\nfrom sizes import BATCH\nimport model.net as net\n",
    "sizes.py": "from helper import (\n    one,\n    two,\n)\n",
    "helper.py": "one = two = 1\n",
    "model/__init__.py": "",
    "model/net.py": "from . import layers\nfrom .blocks import Block\n",
    "model/layers.py": "",
    "model/blocks.py": "from ..sizes import BATCH\n",
    "unused.py": "",
    "os.py.txt": "",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def digest(project: Path) -> str:
    return ScriptDigests().digest(str(project / "train.py"))


@pytest.mark.parametrize(
    "name",
    [name for name in MODULES if name not in ("unused.py", "os.py.txt")],
)
def test_a_change_of_an_imported_module_changes_the_digest(project: Path, name: str) -> None:
    before = digest(project)
    (project / name).write_text(MODULES[name] + "# more\n")
    assert digest(project) != before


def test_a_module_that_is_not_imported_changes_nothing(project: Path) -> None:
    before = digest(project)
    (project / "unused.py").write_text("x = 1\n")
    assert digest(project) == before


def test_a_copy_of_the_project_has_the_same_digest(project: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name, text in MODULES.items():
        (copy / name).parent.mkdir(exist_ok=True, parents=True)
        (copy / name).write_text(text)
    assert digest(copy) == digest(project)


def test_modules_of_a_script_that_runs_with_m_are_found_from_the_directory_of_the_task(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/train.py").write_text("from pkg import sizes\n")
    (tmp_path / "pkg/sizes.py").write_text("BATCH = 1\n")

    def now() -> str:
        return ScriptDigests().digest(str(tmp_path / "pkg/train.py"), str(tmp_path))

    before = now()
    (tmp_path / "pkg/sizes.py").write_text("BATCH = 2\n")
    assert now() != before


def test_nothing_is_executed_and_modules_that_import_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import other\nopen({str(tmp_path / 'ran')!r}, 'w')\n")
    (tmp_path / "other.py").write_text("import train\nimport other\n")
    assert digest(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_package_above_the_script_is_not_read(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("from ...secret import key\nfrom ..secret import key\n")
    (tmp_path / "secret.py").write_text("key = 1\n")
    before = digest(project)
    (tmp_path / "secret.py").write_text("key = 2\n")
    assert digest(project) == before


def test_an_edited_module_is_seen_again_after_a_second(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr("scheduler.store.script_digests.time.monotonic", lambda: now[0])
    digests, script = ScriptDigests(), str(project / "train.py")
    before = digests.digest(script)
    (project / "sizes.py").write_text("BATCH = 2\n")
    os.utime(project / "sizes.py", ns=(1, 1))
    assert digests.digest(script) == before
    now[0] += 1.0
    assert digests.digest(script) != before


def test_a_folder_and_a_missing_file_have_no_digest(tmp_path: Path) -> None:
    assert ScriptDigests().digest(str(tmp_path)) == ScriptDigests().digest(str(tmp_path / "none.py")) == ""
