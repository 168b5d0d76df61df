"""Waits of the scheduler for helpers that stand still for good: each has a limit."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from scheduler.app import notify
from scheduler.app.live import terminal_view
from scheduler.app.notify import Notifier
from scheduler.devices.mps.sharing import MpsSharing
from scheduler.execution import cleanup
from scheduler.execution.cleanup import BEHIND, Leftovers, Remover
from scheduler.runtime.processes import answer, start_child
from tests.support.faults import fault
from tests.support.killing import state_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
AT_ONCE = 5.0
"""Seconds that no wait of these tests may take; each would last for ever."""


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state_of(pid) == "T")


@fault(88)
def test_stopped_guard_of_the_terminal_does_not_keep_a_run_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal_view, "GUARD_ENDS", 0.2)
    guard = start_child(["/bin/sh", "-c", "read -r line; :"])
    stop(guard.pid)
    began = time.monotonic()
    terminal_view.release(guard)
    assert time.monotonic() - began < AT_ONCE
    wait_until(lambda: guard.poll() == -signal.SIGKILL)


@fault(88)
def test_stopped_notifier_does_not_keep_a_run_from_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(notify, "PATIENCE", -1.0)
    said: list[str] = []
    notifier = Notifier("sleep 600", str(tmp_path), said.append)
    facts = dict.fromkeys(("event", "text", "run", "name", "file", "host", "tasks"), "")
    notifier.send({**facts, "states": {}})
    began = time.monotonic()
    notifier.finish()
    assert time.monotonic() - began < AT_ONCE
    assert len(said) == 1


@fault(88)
def test_disk_that_hangs_while_files_are_removed_keeps_no_run_waiting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(cleanup, "_remove", lambda _: hangs.wait())
    monkeypatch.setattr(cleanup, "STUCK", 0.1)
    monkeypatch.setattr(cleanup, "LAST", 0.1)
    remover, began = Remover(), time.monotonic()
    for _ in range(BEHIND + 50):
        remover.remove(Leftovers([str(tmp_path / "record")], []))
    remover.close()
    assert time.monotonic() - began < AT_ONCE
    hangs.set()


def test_removal_goes_on_once_its_disk_answers_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hangs, removed = threading.Event(), list[Leftovers]()

    def remove(leftovers: Leftovers) -> None:
        hangs.wait()
        removed.extend([leftovers] if leftovers.files[0] in ("first", "last") else [])  # not those of other tests

    monkeypatch.setattr(cleanup, "_remove", remove)
    monkeypatch.setattr(cleanup, "STUCK", 0.1)
    remover = Remover()
    for _ in range(BEHIND + 5):
        remover.remove(Leftovers(["first"], []))
    hangs.set()
    wait_until(lambda: len(removed) == BEHIND)
    remover.remove(Leftovers(["last"], []))
    remover.close()
    assert removed[-1].files == ["last"]


@fault(88)
def test_mps_daemon_that_never_answers_does_not_keep_a_run_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.devices.mps.sharing.LEAVE", 0.1)
    hangs, mps = threading.Event(), MpsSharing({})
    monkeypatch.setattr(mps, "_look_after", hangs.wait)
    mps.serve(Path("/nowhere"), lambda key, uuid: 0)
    began = time.monotonic()
    mps.close()
    assert time.monotonic() - began < AT_ONCE
    hangs.set()


@fault(88)
def test_program_that_cannot_die_keeps_its_asker_no_longer_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[subprocess.Popen[bytes]] = []

    def survive(child: subprocess.Popen[bytes]) -> None:
        killed.append(child)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "kill", survive)
        began = time.monotonic()
        with pytest.raises(subprocess.TimeoutExpired):
            answer(["sleep", "600"], patience=0.1)
        assert time.monotonic() - began < AT_ONCE
    killed[0].kill()
    killed[0].wait()


@fault(88)
def test_name_server_that_never_answers_keeps_no_run_from_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hangs, said = threading.Event(), list[str]()
    monkeypatch.setattr(notify, "PATIENCE", -2.8)
    monkeypatch.setattr(notify, "deliver", lambda *_: str(hangs.wait()))
    notifier, began = Notifier("http://nowhere.invalid/hook", str(tmp_path), said.append), time.monotonic()
    notifier.send({})
    notifier.send({})
    notifier.finish()
    assert time.monotonic() - began < AT_ONCE
    assert [sentence.partition(" failed: ")[2][:9] for sentence in said] == ["no answer"]
    hangs.set()
