"""A disk of its own is filled in mid-run: no exit code is lost, nothing starts, and it goes on by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.faults import fault
from tests.support.mounts import folders, needs_mounts, run_apart

MID_RUN = """
import contextlib, json, subprocess, sys, time
from pathlib import Path
from scheduler.store.disks import PAUSE
from tests.support.killing import Home
from tests.support.waiting import wait_until

root, outside, killed = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "killed"
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", root], check=True)
home = Home(root)
home.env["SCHEDULER_DISK_MIN"] = "8MiB"
go, began, ended, said = (outside / name for name in ("go", "began", "ended", "said"))

def task(code):  # it writes to the full disk too, and goes on
    wait = f"until [ -e {go} ]; do echo line || :; sleep 0.02; done"
    return f"sh -c 'echo {code} >>{began}; {wait}; echo {code} >>{ended}; exit {code}'"

def told(path):
    return path.read_text().split() if path.exists() else []

def fill():
    with contextlib.suppress(OSError), open(root / "ballast", "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass

home.commands(*map(task, (3, 5, 0, 7, 0)))
with open(said, "w") as out:
    scheduler = home.start("run", "jobs.csv", "--devices", "host", "--slots", "3", "--plain", "--keep-going",
                           stdout=out, stderr=out)
    wait_until(lambda: len(told(began)) == 3, 60)
    wait_until(lambda: home.states().count("running") == 3, 60)
    fill()
    wait_until(lambda: "nothing starts" in said.read_text(), 60)  # the journal or the look at the disks says so first
    time.sleep(PAUSE)  # the next look at the disks is after it
    go.touch()
    wait_until(lambda: len(told(ended)) == 3, 60)
    if killed:
        scheduler.kill()
        scheduler.wait()
    started_meanwhile = len(told(began)) - 3
    (root / "ballast").unlink()
    code = scheduler.wait(60) if not killed else home.start("resume", "r1", stdout=out, stderr=out).wait(60)
tasks = [(one["exit_code"], one["attempts"]) for one in home.tasks()]
words = said.read_text()
print(json.dumps([code, started_meanwhile, tasks, "Traceback" in words, any(
    again in words for again in ("there is space on the disk again", "the journal can be written again")
)]))
home.end()
"""


LOOKED_AT = """
import contextlib, json, subprocess, sys
from pathlib import Path
from scheduler.errors import StateError
from scheduler.store.run.journal import Journal
from tests.support.killing import Home
from tests.support.waiting import wait_until

root = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", root], check=True)
home = Home(root)
home.env["SCHEDULER_DISK_MIN"] = "off"
home.commands("sh -c 'exit 3'")
home.call("run", "jobs.csv", "--devices", "host", "--plain")
home.commands("sleep 600", "true", name="more.csv")
with home.start("run", "more.csv", "--devices", "host", "--slots", "1", "--plain") as scheduler:
    wait_until(lambda: home.log(2), 60)
    wait_until(lambda: home.states("2")[0] == "running", 60)
    scheduler.kill()
runs = home.state / "runs"
(runs / "2/journal.db-shm").unlink()  # as after a reboot
with contextlib.suppress(OSError), open(root / "ballast", "wb", buffering=0) as file:
    while file.write(bytes(4096)):
        pass
said = [home.call(*verb.split(), code=0) for verb in ("status", "list r1", "list r2", "runs", "results r1")]
before = [home.states("1"), home.states("2"), [task["exit_code"] for task in home.tasks("1")]]
try:
    Journal.open(runs / "2/journal.db").record([], 0.0)
    told = ""
except StateError as exc:
    told = str(exc)
(root / "ballast").unlink()
after = [home.states("1"), home.states("2"), [task["exit_code"] for task in home.tasks("1")]]
print(json.dumps([before, after, [one.stdout + one.stderr for one in said], told]))
home.end()
"""


@fault(22)
@pytest.mark.slow
@needs_mounts
def test_ended_and_dead_runs_can_be_shown_on_a_full_disk(tmp_path: Path) -> None:
    before, after, said, told = json.loads(run_apart(LOOKED_AT, tmp_path))
    assert before == after == [["failed"], ["running", "waiting"], [3]]
    assert not [text for text in said if "cannot be" in text]
    assert "the disk is full: free some space for " in told


@fault(22, 23)
@pytest.mark.slow
@needs_mounts
@pytest.mark.parametrize("how", ["going on", "killed"])
def test_a_disk_that_fills_in_mid_run_loses_no_exit_code_and_the_run_goes_on(tmp_path: Path, how: str) -> None:
    done = run_apart(MID_RUN, *folders(tmp_path, "root", "outside"), how)
    code, started_meanwhile, tasks, stumbled, said_so = json.loads(done)
    assert (code, started_meanwhile, stumbled) == (1, 0, False)
    assert tasks == [[3, 1], [5, 1], [0, 1], [7, 1], [0, 1]]
    assert said_so or how == "killed"


SUBMIT = """
import contextlib, json, subprocess, sys
from pathlib import Path
from tests.support.killing import Home
from tests.support.waiting import wait_until

root, is_living = Path(sys.argv[1]), sys.argv[2] == "living"
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", root], check=True)
home = Home(root)
home.env["SCHEDULER_DISK_MIN"] = "off"
if is_living:
    home.call("submit", "true", code=0)
with contextlib.suppress(OSError), open(root / "ballast", "wb", buffering=0) as file:
    while file.write(bytes(4096)):
        pass
refused = home.call("submit", "exit 3")
(root / "ballast").unlink()
accepted = home.call("submit", "true", code=0)
wait_until(lambda: {*home.states("queue")} == {"succeeded"}, 60)
print(json.dumps([refused.returncode, refused.stdout, refused.stderr, home.states("queue")]))
home.end()
"""


@needs_mounts
@pytest.mark.slow
@fault(22)
@pytest.mark.parametrize(("queue", "tasks"), [("living", 2), ("new", 1)])
def test_full_disk_refuses_a_submission_in_one_sentence_and_keeps_nothing_of_it(
    tmp_path: Path, queue: str, tasks: int
) -> None:
    code, out, err, states = json.loads(run_apart(SUBMIT, *folders(tmp_path, "root"), queue))
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert "the disk is full, or a quota is used up: free some space" in err
    assert states == ["succeeded"] * tasks
