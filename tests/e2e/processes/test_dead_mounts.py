"""Files on a network mount that stops answering while a run goes on, and other looks that may never return."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import fault
from tests.support.mounts import folders, needs_mounts, run_apart

pytestmark = [
    pytest.mark.slow,
    needs_mounts,
    pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="needs FUSE"),
]
SOON = 20.0
"""Seconds within which a scheduler must have gone on; each of these waits would last for ever."""

BEGUN = """
import atexit, json, os, signal, subprocess, sys, time
from pathlib import Path
from tests.support.killing import Home, state_of
from tests.support.waiting import wait_until

root, far, behind = map(Path, sys.argv[1:4])
SOON = float(sys.argv[4])
server = subprocess.Popen(
    [sys.executable, "-m", "tests.support.standin.far_disk", str(far), str(behind)],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
)
assert server.stdout.readline() == b"mounted\\n"
home = Home(root)
atexit.register(home.end)
atexit.register(server.kill)  # first of both: what waits for the mount fails then
HOST = ("--devices", "host")

def die():
    server.stdin.write(b"stop\\n")
    wait_until(lambda: state_of(server.pid) == "T")

def answer_again():
    server.send_signal(signal.SIGCONT)

def end(process):
    "Return the exit code of a scheduler that is still able to end; None where it hangs."
    try:
        return process.wait(SOON)
    except subprocess.TimeoutExpired:
        return None

def report(*values):
    "Tell what was seen, and let nothing go on waiting."
    answer_again()
    print(json.dumps(values))
"""


def seen(tmp_path: Path, script: str) -> Any:
    """Run a script with a far disk of its own; return what it reports."""
    return json.loads(run_apart(BEGUN + script, *folders(tmp_path, "root", "far", "behind"), str(SOON)))


ERRORS = """
task = f"sh -c 'echo bad >&2; touch {root}/up; until [ -e {root}/go ]; do sleep 0.05; done; exit 3'"
home.write("jobs.csv", "Command,Stderr", [task, f"{far}/errors.txt"], ["true", ""])
scheduler = home.start("run", "jobs.csv", "-j", "1", *HOST)
wait_until(lambda: (root / "up").exists(), 30)
die()
(root / "go").touch()
code = end(scheduler)
scheduler.kill()
report(code, [(task["state"], task["exit_code"]) for task in home.tasks("1")], "does not answer" in home.log())
"""


@fault(133)
def test_end_of_a_task_whose_errors_are_on_a_dead_mount_is_recorded_and_the_next_task_starts(tmp_path: Path) -> None:
    assert seen(tmp_path, ERRORS) == [1, [["failed", 3], ["succeeded", 0]], True]


FOLLOWED = """
(behind / "list").write_text(f"touch {root}/first\\n")
scheduler = home.start("run", "--follow", str(far / "list"), *HOST)
wait_until(lambda: (root / "first").exists(), 30)
die()
wait_until(lambda: "does not answer" in home.log(), SOON)
answer_again()
with open(behind / "list", "a") as file:
    file.write(f"touch {root}/second\\n")
wait_until(lambda: (root / "second").exists(), SOON)
die()
time.sleep(1.0)
scheduler.send_signal(signal.SIGINT)
report(end(scheduler))
"""


@fault(133)
def test_run_that_follows_a_list_on_a_dead_mount_hears_ctrl_c_and_reads_on_once_it_answers(tmp_path: Path) -> None:
    assert seen(tmp_path, FOLLOWED) == [130]


SCRIPTS = """
(behind / "work.sh").write_text("true\\n")
(root / "list").write_text(f"touch {root}/first\\n")
scheduler = home.start("run", "--follow", "list", *HOST)
wait_until(lambda: (root / "first").exists(), 30)
die()
with open(root / "list", "a") as file:
    file.write(f"sh {far}/work.sh\\ntouch {root}/second\\n")
wait_until(lambda: (root / "second").exists(), SOON)
answer_again()
wait_until(lambda: home.states("1") == ["succeeded"] * 3, SOON)
scheduler.send_signal(signal.SIGINT)
report(end(scheduler))
"""


@fault(133)
def test_tasks_start_while_the_script_of_another_task_is_on_a_dead_mount(tmp_path: Path) -> None:
    assert seen(tmp_path, SCRIPTS) == [130]


PROGRAMS = """
from tests.e2e.conftest import Driver

(behind / "program").write_text("#!/bin/sh\\nexit 7\\n")
(behind / "program").chmod(0o755)
driver = Driver(root, "dead")
driver.run("true")
server_pid = driver.engine._server.pid
die()
hanging = driver.launch("program", env={"PATH": f"{far}:/usr/bin:/bin"})
driver.started(hanging)
others = [driver.run("true").code for _ in range(3)]
answer_again()
ended = driver.exited(hanging, deadline=SOON)
report(others, ended.code, driver.engine._server.pid == server_pid)
driver.engine.close()
"""


@fault(133)
def test_program_on_a_dead_mount_keeps_no_shim_from_reporting_and_no_other_task_from_starting(tmp_path: Path) -> None:
    assert seen(tmp_path, PROGRAMS) == [[0, 0, 0], 7, True]


OUTPUT = """
home.commands("true", f"sh -c 'touch {root}/up; until [ -e {root}/go ]; do sleep 0.05; done'", "true", "true")
with open(far / "out.txt", "w") as out:
    scheduler = home.start("run", "jobs.csv", "-j", "1", *HOST, stdout=out)
wait_until(lambda: (root / "up").exists(), 30)
die()
(root / "go").touch()
wait_until(lambda: home.states("1") == ["succeeded"] * 4, SOON)
answer_again()
code = end(scheduler)
said = (behind / "out.txt").read_text()
report(code, said.count("  start  "), said.count("  done  "))
"""


@fault(133)
def test_run_whose_output_is_on_a_dead_mount_goes_on_and_writes_all_lines_once_it_answers(tmp_path: Path) -> None:
    assert seen(tmp_path, OUTPUT) == [0, 4, 4]


SWEEP = """
from functools import partial
from scheduler.execution.engine import LOOK, MOST_UNREADABLE
from scheduler.runtime import processes, shim
from scheduler.runtime.threads import BoundedCalls

os.mkfifo(root / "hangs")
look = partial(processes.sweep, "no-such-cookie", 0.1, examine=BoundedCalls(LOOK, MOST_UNREADABLE).call)
older = subprocess.Popen(["sleep", "600"])
time.sleep(0.1)
subprocess.run(["mount", "--bind", root / "hangs", f"/proc/{older.pid}/environ"], check=True)
began = time.monotonic()
survivors, later = look(), look(start=shim.start_time(older.pid) + 1)
took = time.monotonic() - began
os.close(os.open(root / "hangs", os.O_RDWR))
subprocess.run(["umount", "-l", f"/proc/{older.pid}/environ"], check=True)
older.kill()
report(older.pid in survivors, older.pid in later, took < SOON)
"""


@fault(133)
def test_process_whose_memory_cannot_be_read_may_survive_a_sweep_that_ends_and_only_if_it_began_later(
    tmp_path: Path,
) -> None:
    assert seen(tmp_path, SWEEP) == [True, False, True]


RULES = """
from scheduler.store.machine.site_config import SiteConfigReader

file = root / "machine.toml"
file.write_text("[quotas]\\ntasks = 3\\n")
reader = SiteConfigReader(61_001, {"SCHEDULER_MACHINE_FILE": str(file)})
os.mkfifo(root / "users")
subprocess.run(["mount", "--bind", root / "users", "/etc/passwd"], check=True)
file.write_text("[quotas]\\ntasks = 5\\n[quotas.users.ben]\\ntasks = 4\\n")
began = time.monotonic()
meanwhile = [reader.now().caps.tasks for _ in range(3)]
took = time.monotonic() - began
os.close(os.open(root / "users", os.O_RDWR))
subprocess.run(["umount", "-l", "/etc/passwd"], check=True)
wait_until(lambda: reader.now().caps.tasks == 5, SOON)
report(meanwhile, took < SOON)
"""


@fault(133)
def test_rules_of_the_site_stay_as_they_were_while_the_directory_of_users_does_not_answer(tmp_path: Path) -> None:
    assert seen(tmp_path, RULES) == [[3, 3, 3], True]
