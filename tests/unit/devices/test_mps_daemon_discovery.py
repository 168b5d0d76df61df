"""Discovery of MPS: a program on PATH, and a process of its name that wrote down its pid."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import scheduler
from scheduler.devices.mps.daemon_discovery import PROGRAM, FoundDaemon, find_daemons, find_program
from tests.support.faults import fault
from tests.support.waiting import wait_until


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / PROGRAM
    path.parent.mkdir()
    path.write_text("#!/bin/sh\nread forever\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def daemon(program: Path) -> Iterator[int]:
    with subprocess.Popen([program], stdin=subprocess.PIPE) as process:
        wait_until(lambda: PROGRAM in Path(f"/proc/{process.pid}/cmdline").read_text())  # started, but not yet itself
        yield process.pid
        process.kill()


def note(directory: Path, pid: int) -> Path:
    directory.mkdir()
    (directory / f"{PROGRAM}.pid").write_text(str(pid))
    return directory


def test_program_is_found_on_path(program: Path) -> None:
    assert find_program({"PATH": str(program.parent)}) == str(program)
    assert find_program({"PATH": "/nowhere"}) == ""


def test_daemon_in_the_usual_directory_is_found(tmp_path: Path, daemon: int) -> None:
    usual = note(tmp_path / "usual", daemon)
    assert find_daemons({}, usual) == [FoundDaemon(usual, daemon, os.getuid())]


def test_daemon_that_the_shell_names_is_found_once(tmp_path: Path, daemon: int) -> None:
    said = note(tmp_path / "said", daemon)
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(said)}
    assert [one.directory for one in find_daemons(environ, tmp_path / "usual")] == [said]
    assert [one.directory for one in find_daemons(environ, said)] == [said]


def test_files_of_a_killed_daemon_are_no_daemon(tmp_path: Path) -> None:
    for name, pid in (("none", 2**22 + 1), ("another", os.getpid())):
        assert find_daemons({}, note(tmp_path / name, pid)) == []
    assert find_daemons({}, tmp_path / "nowhere") == []


@fault(52)
@pytest.mark.parametrize("plant", ["pipe", "hole", "digits", "link"])
def test_file_of_another_user_does_not_block_the_discovery(tmp_path: Path, plant: str) -> None:
    """Any user may make it below /tmp: a pipe blocked `doctor` without end, an endless file took all memory."""
    path = tmp_path / f"{PROGRAM}.pid"
    match plant:
        case "pipe":
            os.mkfifo(path)
        case "hole":
            path.touch()
            os.truncate(path, 1 << 40)
        case "digits":
            path.write_text("9" * 5000)
        case "link":
            path.symlink_to("/dev/zero")
    look = "import sys; from pathlib import Path; from scheduler.devices.mps.daemon_discovery import *; "
    said = look + "print(find_daemons({}, Path(sys.argv[1])))"
    home = Path(scheduler.__file__).parents[1]
    asked = [sys.executable, "-c", said, str(tmp_path)]
    assert subprocess.run(asked, cwd=home, capture_output=True, timeout=30, check=True).stdout == b"[]\n"
