"""The distributions of a release: two builds are equal, and the wheel has what a user needs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("hatchling") is None, reason="hatchling is not installed"),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the files of a release are those that git knows"),
]


def build(folder: Path, *, umask: int, zone: str) -> dict[str, bytes]:
    """Build both distributions of the files as they are here; return their bytes by name."""
    source, made = folder / "source", folder / "dist"
    source.mkdir(parents=True)
    known = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-c", "--null", "-T", "-", "-f", folder / "tar"], cwd=ROOT, input=known, check=True)
    subprocess.run(["tar", "-x", "-m", "-f", folder / "tar"], cwd=source, check=True, umask=umask)
    env = {**os.environ, "TZ": zone, "PYTHONHASHSEED": str(umask)}
    words = [sys.executable, "-m", "hatchling", "build", "-d", made]
    done = subprocess.run(words, cwd=source, env=env, umask=umask, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.name: path.read_bytes() for path in made.iterdir()}


def test_two_builds_in_different_places_are_equal_to_the_byte(tmp_path: Path) -> None:
    first = build(tmp_path / "first", umask=0o22, zone="UTC")
    second = build(tmp_path / "second", umask=0o2, zone="Asia/Tokyo")
    assert sorted(name.rpartition(".")[2] for name in first) == ["gz", "whl"]
    assert first == second
    (wheel,) = (tmp_path / "first/dist").glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {"scheduler/runtime/shim.py", "scheduler/ui/web/page/report.js", "scheduler/_samples/commands.csv"} <= inside
    assert not [name for name in inside if name.startswith(("tests/", "scripts/", "docs/")) or name.endswith(".pyc")]
