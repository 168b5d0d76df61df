"""State on file systems of other kinds, a quota that is exceeded, a container and a session that are over."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import fault
from tests.support.killing import Home
from tests.support.mounts import folders, needs_mounts, run_apart
from tests.support.standin.box import HERE, NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    (tmp_path / "home").mkdir()
    made = Home(tmp_path / "home")
    yield made
    made.end()


ON = """
import json, os, subprocess, sys
from pathlib import Path
from tests.support.killing import Home
from tests.support.waiting import wait_until

kind, root, below = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", below], check=True)

def mount():
    if kind == "tmpfs":
        subprocess.run(["mount", "--bind", below, root], check=True)
        return
    for name in ("lower", "upper", "work"):
        (below / name).mkdir(exist_ok=True)
    layers = ",".join(f"{name}dir={below / name}" for name in ("lower", "upper", "work"))
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", root], check=True)

mount()
home = Home(root)
waits = "until [ -e go ]; do sleep 0.02; done"
home.commands("sh -c 'echo 0 >>told; exit 3'", f"sh -c 'echo 1 >>told; {waits}'", "sh -c 'echo 2 >>told'")
words = ("run", "jobs.csv", "--devices", "host", "--slots", "1", "--keep-going", "--plain")
with home.start(*words) as scheduler:
    wait_until(lambda: (root / "told").exists() and len((root / "told").read_text().split()) == 2, 60)
    wait_until(lambda: home.states()[1] == "running", 60)
    scheduler.kill()
if kind == "image":  # the container is made anew from an image that has the state in it
    home.end()
    subprocess.run(["umount", root], check=True)
    (below / "upper").rename(below / "lower2")
    (below / "lower").rmdir()
    (below / "lower2").rename(below / "lower")
    (below / "work").rename(below / "work2")
    mount()
with home.start("resume", "r1") as scheduler:
    wait_until(lambda: (root / "told").read_text().split().count("1") == 1 + (kind == "image"), 60)
    wait_until(lambda: json.loads(home.call("status", "--json").stdout)["runs"][0]["alive"], 60)
    second = home.call("resume", "r1").stderr
    (root / "go").touch()
    code = scheduler.wait(60)
done = [(one["state"], one["exit_code"], one["attempts"]) for one in home.tasks()]
print(json.dumps([code, done, (root / "told").read_text().split(), str(scheduler.pid) in second]))
home.end()
"""


@fault(118)
@needs_mounts
@pytest.mark.parametrize("kind", ["tmpfs", "overlay", "image"])
def test_a_run_goes_on_whose_state_is_on_another_kind_of_file_system(tmp_path: Path, kind: str) -> None:
    code, done, told, is_named = json.loads(run_apart(ON, kind, *folders(tmp_path, "root", "below")))
    attempts = 2 if kind == "image" else 1
    assert (code, done) == (1, [["failed", 3, 1], ["succeeded", 0, attempts], ["succeeded", 0, 1]])
    assert told == ["0", *["1"] * attempts, "2"]
    assert is_named  # the lock of the run holds


@fault(119)
@needs_mounts
def test_a_run_goes_on_in_a_container_that_was_restarted_with_its_state(home: Home) -> None:
    """In the new container the numbers of the dead processes belong to others, on the same boot."""
    told, go = home.root / "told", home.root / "go"
    home.commands(
        f"sh -c 'echo 0 >>{told}; exit 3'", f"sh -c 'echo 1 >>{told}; until [ -e {go} ]; do sleep 0.02; done'"
    )
    container = ["unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
    outside = home.command
    home.command = [*container, *outside]
    said = (home.root / "said").open("w")
    with home.start("run", "jobs.csv", "--devices", "host", "--slots", "1", "--keep-going", stderr=said) as first:
        wait_until(lambda: told.exists() and told.read_text().split() == ["0", "1"], 60)
        wait_until(lambda: home.states()[1] == "running", 60)
        first.kill()
    wait_until(lambda: not home.living(), 30)
    others = 'for i in $(seq 60); do sleep 300 & done; exec "$@"'
    home.command = [*container, "sh", "-c", others, "sh", *outside]
    with home.start("resume", "r1", stderr=said) as second:
        wait_until(lambda: told.read_text().split() == ["0", "1", "1"], 60)
        go.touch()
        assert second.wait(60) == 1
    said.close()
    home.command = outside
    assert [(one["state"], one["exit_code"]) for one in home.tasks()] == [("failed", 3), ("succeeded", 0)]
    assert told.read_text().split() == ["0", "1", "1"]
    assert "Traceback" not in (home.root / "said").read_text()


@fault(21)
def test_a_queue_goes_on_without_the_directories_of_a_session_that_is_over(home: Home, tmp_path: Path) -> None:
    """At logout the login manager removes the runtime directory, and with it what TMPDIR may name."""
    (session,) = folders(tmp_path, "session")
    home.env |= {"XDG_RUNTIME_DIR": str(session), "TMPDIR": str(session), "SCHEDULER_QUEUE_IDLE": "1h"}
    home.call("submit", "until [ -e go ]; do sleep 0.02; done", code=0)
    wait_until(lambda: home.states("queue") == ["running"], 60)
    shutil.rmtree(session)
    home.call("submit", "exit 3", code=0)
    (home.root / "go").touch()
    wait_until(lambda: home.states("queue") == ["succeeded", "failed"], 60)
    assert home.call("wait", "0", code=0).stderr == ""
    assert home.tasks("queue")[1]["exit_code"] == 3


@fault(22)
@pytest.mark.skipif(shutil.which("cc") is None, reason=NO_COMPILER)
@pytest.mark.parametrize("how", ["going on", "killed"])
def test_a_quota_that_is_exceeded_in_mid_run_loses_no_exit_code(home: Home, tmp_path: Path, how: str) -> None:
    library, over, told = tmp_path / "quota.so", tmp_path / "over", tmp_path / "told"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "quota.c"], check=True)
    home.env |= {"LD_PRELOAD": str(library), "QUOTA_BELOW": str(home.state), "QUOTA_OVER": str(over)}
    wait = "until [ -e go ]; do sleep 0.02; done"
    codes = (3, 5, 0, 7)
    home.commands(*(f"sh -c 'echo {code} >>{told}; {wait}; echo {code} >>ended; exit {code}'" for code in codes))
    with open(home.root / "said", "w") as said:
        words = ("run", "jobs.csv", "--devices", "host", "--slots", "2", "--keep-going", "--plain")
        scheduler = home.start(*words, stdout=said, stderr=said)
        wait_until(lambda: told.exists() and len(told.read_text().split()) == 2, 60)
        wait_until(lambda: home.states().count("running") == 2, 60)
        over.touch()
        (home.root / "go").touch()
        wait_until(lambda: (home.root / "ended").exists() and len((home.root / "ended").read_text().split()) >= 2, 60)
        wait_until(lambda: "quota" in (home.root / "said").read_text().lower(), 60)
        if how == "killed":
            scheduler.kill()
            scheduler.wait()
        over.unlink()
        if how == "killed":
            scheduler = home.start("resume", "r1", stdout=said, stderr=said)
        assert scheduler.wait(60) == 1
    assert [(one["exit_code"], one["attempts"]) for one in home.tasks()] == [(code, 1) for code in codes]
    assert sorted(told.read_text().split()) == ["0", "3", "5", "7"]
    assert "Traceback" not in (home.root / "said").read_text()
