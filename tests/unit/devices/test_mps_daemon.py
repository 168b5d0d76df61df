"""The life of a private daemon, with NVIDIA's real control program (which needs no GPU for it) and a stand-in."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.devices.mps.control import LONGEST, DaemonSilent, MpsControl
from scheduler.devices.mps.daemon import MpsHome, homes_left
from scheduler.devices.mps.daemon_discovery import find_daemon
from scheduler.errors import DeviceError
from tests.support.faults import fault
from tests.support.standin import real_mps
from tests.support.waiting import wait_until

STANDIN = Path(real_mps.__file__).with_name("mps_control.py")
UUID = "GPU-1e2d3c4b-aaaa-bbbb-cccc-1234567890ab"


@pytest.fixture(params=["real", "standin"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a control program of MPS."""
    if request.param == "real":
        return real_mps.find() or pytest.skip(real_mps.MISSING)
    path = tmp_path_factory.mktemp("b") / "nvidia-cuda-mps-control"
    path.write_text(f"#!{sys.executable} -S\n" + STANDIN.read_text())
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the directory of daemons; end those that are left after the test."""
    path = tmp_path_factory.mktemp("l")
    yield path
    for home in homes_left(path, "/nowhere", os.environ):
        home._kill_members()


def home(root: Path, program: str, uuid: str = UUID, **environ: str) -> MpsHome:
    return MpsHome(root, uuid, program, {**os.environ, **environ})


def daemon(one: MpsHome) -> int:
    found = find_daemon(one.pipes)
    assert found is not None
    assert found.uid == os.getuid()
    return found.pid


def test_daemon_runs_only_while_it_has_a_user(root: Path, program: str) -> None:
    one = home(root, program)
    fd = one.enter()
    assert one.control.percentage() == 100.0
    assert daemon(one) > 0
    assert not one.is_left()
    one.leave(fd)
    assert find_daemon(one.pipes) is None
    assert one._members() == {}


def test_second_user_joins_the_daemon_and_the_last_ends_it(root: Path, program: str) -> None:
    one, other = home(root, program), home(root, program)
    first = one.enter()
    pid = daemon(one)
    second = other.enter()
    assert daemon(other) == pid
    one.leave(first)
    assert daemon(other) == pid
    other.leave(second)
    assert find_daemon(one.pipes) is None


def test_holder_of_a_copied_descriptor_is_a_user(root: Path, program: str) -> None:
    one = home(root, program)
    fd = one.enter()
    task = os.dup(fd)
    one.leave(fd)
    assert one.control.percentage() == 100.0
    os.close(task)
    assert one.is_left()
    assert one.clean()
    assert find_daemon(one.pipes) is None
    assert not one.clean()


def test_killed_daemon_is_started_again_over_its_files(root: Path, program: str) -> None:
    one = home(root, program)
    fd = one.enter()
    dead = daemon(one)
    os.kill(dead, signal.SIGKILL)
    wait_until(lambda: find_daemon(one.pipes) is None)
    with pytest.raises(DaemonSilent, match="no MPS daemon answers in"):
        one.control.percentage()
    assert one.revive()
    assert not one.revive()
    assert daemon(one) != dead
    one.leave(fd)
    assert one._members() == {}


def test_two_gpus_have_two_daemons(root: Path, program: str) -> None:
    one, other = home(root, program), home(root, program, "GPU-ffffffff-aaaa-bbbb-cccc-1234567890ab")
    fds = one.enter(), other.enter()
    assert daemon(one) != daemon(other)
    one.leave(fds[0])
    assert other.control.percentage() == 100.0
    other.leave(fds[1])
    assert [left.root for left in homes_left(root, program, os.environ)] == sorted([one.root, other.root])


def test_gpus_whose_uuids_begin_alike_have_daemons_of_their_own(root: Path) -> None:
    alike = [f"GPU-01000100-0000-0000-0000-00000000000{number}" for number in range(8)]
    homes = [home(root, "/nowhere", uuid) for uuid in [*alike, "MIG-01000100-0000-0000-0000-000000000000"]]
    assert len({one.root for one in homes}) == 9
    assert {len(one.root.name) for one in homes} == {len(f"mps.{os.getuid()}.") + 13}


def test_directories_of_a_daemon_are_private(root: Path, program: str) -> None:
    one = home(root, program)
    fd = one.enter()
    assert {path.stat().st_mode & 0o777 for path in (one.root, one.pipes, one.logs, one.users)} == {0o700}
    one.leave(fd)


def test_mps_variables_of_the_shell_do_not_reach_the_daemon(root: Path, program: str) -> None:
    one = home(root, program, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G")
    fd = one.enter()
    assert one.control.percentage() == 100.0
    environ = Path(f"/proc/{daemon(one)}/environ").read_bytes().split(b"\0")
    assert f"CUDA_VISIBLE_DEVICES={UUID}".encode() in environ
    assert not [entry for entry in environ if b"PERCENTAGE" in entry or b"MEM_LIMIT" in entry]
    one.leave(fd)


def test_too_long_directory_is_refused_before_anything_is_made(root: Path, program: str) -> None:
    one = home(root / ("long" * 25), program)
    with pytest.raises(DeviceError, match=r"is too long for the sockets of MPS \(\d+ bytes, 106 at most\): name a sho"):
        one.enter()
    assert not list(root.iterdir())


def test_directory_of_another_user_is_refused(root: Path, program: str) -> None:
    one = home(root, program)
    one.root.symlink_to(root)
    with pytest.raises(DeviceError, match="belongs to user"):
        one.enter()


def test_longest_allowed_path_works(root: Path, program: str) -> None:
    short = len(str(home(root, program).pipes / "control_privileged"))
    one = home(root / ("d" * (LONGEST - short - 1)), program)
    one.root.parent.mkdir()
    assert len(str(one.pipes / "control_privileged")) == LONGEST
    fd = one.enter()
    one.leave(fd)


def test_daemon_with_a_senseless_answer_is_silent(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_text("#!/bin/sh\necho what\n")
    path.chmod(0o755)
    with pytest.raises(DaemonSilent, match="answers 'what' to get_default_active_thread_percentage"):
        MpsControl(str(path), tmp_path).percentage()


@fault(40)
def test_missing_or_hanging_program_is_silent(tmp_path: Path) -> None:
    with pytest.raises(DaemonSilent, match=r"/nowhere/mps cannot be started: no such file"):
        MpsControl("/nowhere/mps", tmp_path).percentage()
    path = tmp_path / "hangs"
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)
    with pytest.raises(DaemonSilent, match=r"did not answer within 0\.2 s"):
        MpsControl(str(path), tmp_path).ask("get_server_list", 0.2)


SAID: list[tuple[str, Any]] = [
    ("get_default_active_thread_percentage", "100.0"),
    ("set_default_active_thread_percentage 25", "25.0"),
    ("get_default_active_thread_percentage", "25.0"),
    ("set_default_active_thread_percentage 200", "25.0"),
    ("set_default_device_pinned_mem_limit 0 3000M", ""),
    ("get_default_device_pinned_mem_limit 0", "2G"),
    ("no_such_command", 'Unknown command "no_such_command"'),
    ("get_server_list", ""),
    ("get_client_list 7", "Server 7 not found"),
]
"""The answers of the real daemon; all have exit code 0, so the exit code proves nothing."""


def test_real_daemon_answers_as_assumed(root: Path) -> None:
    path = real_mps.find() or pytest.skip(real_mps.MISSING)
    one = home(root, path)
    fd = one.enter()
    assert [(command, one.control.ask(command)) for command, _ in SAID] == SAID
    assert one.control.servers() == []
    assert one.control.clients(7) == []
    assert not one.control.terminate(7, 8, 5.0)
    one.leave(fd)
