"""A shortage of some seconds that no task causes fails no task: launching pauses and goes on by itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.core.model import Outcome
from scheduler.errors import StateError
from scheduler.runtime.paths import RUN_CODE
from scheduler.store.run import run_code
from scheduler.store.run.run_code import RunCode
from tests.e2e.conftest import Driver
from tests.e2e.sharing.test_two_users import SYSTEM_PYTHON, become, common, reachable_python  # noqa: F401 - fixtures
from tests.support.faults import fault
from tests.support.killing import Home, Started, children, kill
from tests.support.waiting import wait_until

DORA = 61_004
"""A user of this test alone: the limit counts all processes of a user."""
HOG = """
import os, time
for _ in range(80):
    if os.fork() == 0:
        time.sleep(3.0)
        os._exit(0)
time.sleep(3.0)
"""
SHORT = 3.0
"""The length of a shortage, in seconds."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


def counts(home: Home) -> dict[str, int]:
    return dict(Counter(home.states()))


def ended(home: Home) -> int:
    """Return how many tasks are done by the log of the run."""
    return home.log().count(" done ")


def start(home: Home, *arguments: str) -> Started:
    return home.start(*arguments, "--devices", "host", "--plain")


def finish(scheduler: Started, code: int = 0) -> None:
    assert scheduler.wait(60) == code


# Processes


@fault(90)
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_run_goes_on_after_another_program_took_all_processes_of_the_user(common: Path) -> None:  # noqa: F811
    python, code = reachable_python(common)
    folder = common / "dora"
    folder.mkdir()
    home = Home(folder, [*become(DORA), "prlimit", "--nproc=60", python, "-m", "scheduler"])
    home.env["PYTHONPATH"] = str(code)
    home.write("jobs.csv", "Command,Memory,CPUs", *(["sleep 0.02", "1MiB", "0.2"],) * 300)
    for path in (folder, folder / "jobs.csv"):
        os.chown(path, DORA, DORA)
    try:
        with start(home, "run", "jobs.csv", "-j", "4") as scheduler:
            wait_until(lambda: ended(home) > 20, 30)
            with subprocess.Popen([*become(DORA), python, "-c", HOG]):
                wait_until(lambda: "nothing starts for now" in home.log(), 30)
            finish(scheduler)
        assert counts(home) == {"succeeded": 300}
        assert home.log().count("nothing starts for now, because 3 rounds of starts in a row failed") == 1
        assert "Resource temporarily unavailable" in home.log()
        assert home.log().count("a start was successful: tasks start again") == 1
    finally:
        home.end()


# The code of the run


@fault(91)
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["gone", "empty"])
def test_a_run_goes_on_after_its_server_was_killed_and_its_code_is_lost(home: Home, damage: str) -> None:
    home.commands(*["sleep 0.05"] * 60)
    with start(home, "run", "jobs.csv", "-j", "2") as scheduler:
        wait_until(lambda: ended(home) > 3, 30)
        code = home.state / "runs/1/code"
        spoil(code, damage)
        (server,) = children(scheduler.pid, "shim.py")
        kill(server)
        finish(scheduler)
    assert counts(home) == {"succeeded": 60}
    assert [(code / name).read_bytes() == source.read_bytes() for source, name in RUN_CODE] == [True] * len(RUN_CODE)


@fault(92)
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["gone", "empty"])
def test_a_resumed_run_goes_on_after_its_code_was_lost_on_the_same_boot(home: Home, damage: str) -> None:
    home.commands(*["sleep 0.05"] * 30)
    with start(home, "run", "jobs.csv", "-j", "2") as scheduler:
        wait_until(lambda: ended(home) > 3, 30)
        scheduler.kill()
        scheduler.wait()
    spoil(home.state / "runs/1/code", damage)
    home.call("resume", code=0)
    assert counts(home) == {"succeeded": 30}


def spoil(code: Path, damage: str) -> None:
    if damage == "gone":
        code.rename(code.with_name("lost"))
        return
    for path in code.rglob("*.py"):
        os.truncate(path, 0)


def test_damaged_code_is_not_replaced_by_code_of_another_version(tmp_path: Path) -> None:
    source, folder = tmp_path / "shim.py", tmp_path / "code"
    source.write_text("version = 1\n")
    digests = run_code.copy(folder, [(source, "a/shim.py")])
    code = RunCode(folder, digests, [(source, "a/shim.py")])
    source.write_text("version = 2\n")
    code.mend()
    assert (folder / "a/shim.py").read_text() == "version = 1\n"
    (folder / "a/shim.py").write_text("")
    with pytest.raises(StateError, match="missing or damaged, and the installed scheduler is not the one"):
        code.mend()
    source.write_text("version = 1\n")
    code.mend()
    assert (folder / "a/shim.py").read_text() == "version = 1\n"


def test_attempts_are_unstarted_with_the_reason_where_the_code_cannot_be_restored(driver: Driver) -> None:
    def cannot() -> None:
        raise StateError("the code is of another version")

    driver.engine._server.kill()
    driver.engine.mend_code(cannot)
    told = driver.run("true")
    assert (told.outcome, told.reason) == (
        Outcome.UNSTARTED,
        "it could not be started: the code is of another version",
    )


# Directories


KILL_SERVER = "kill -9 $(sed -n 's/^PPid:[^0-9]*//p' /proc/$PPID/status)"


@fault(132)
@pytest.mark.slow
def test_tasks_that_kill_the_fork_server_delay_no_other_task(home: Home) -> None:
    (home.root / "kill_server").write_text(KILL_SERVER)
    rows = [["sh kill_server" if number % 20 == 0 else "true", "1MiB", "0.2"] for number in range(100)]
    home.write("jobs.csv", "Command,Memory,CPUs", *rows)
    home.call("run", "jobs.csv", "--devices", "host", "--num", "100", code=0)
    assert counts(home) == {"succeeded": 100}


@fault(93)
@pytest.mark.long
def test_no_task_fails_while_its_directory_is_away_and_other_tasks_go_on(home: Home) -> None:
    away, other = home.root / "work", home.root / "other"
    away.mkdir()
    other.mkdir()
    rows = [["work", "true", "1MiB", "0.2"]] * 1000 + [["other", "touch ../beside", "1MiB", "0.2"]] * 20
    home.write("jobs.csv", "Directory,Command,Memory,CPUs", *rows)
    with start(home, "run", "jobs.csv", "--num", "2000") as scheduler:
        wait_until(lambda: ended(home) > 50, 30)
        away.rename(home.root / "gone")
        wait_until(lambda: f"tasks in {away} are not started for now" in home.log(), 30)
        wait_until(lambda: (home.root / "beside").exists() and ended(home) > 70, 30)
        with contextlib.suppress(subprocess.TimeoutExpired):
            scheduler.wait(SHORT)
        (home.root / "gone").rename(away)
        finish(scheduler)
    assert counts(home) == {"succeeded": 1020}
    assert home.log().count("are not started for now") == 1
    assert home.log().count(f"tasks in {away} are started again") == 1
    unstarted = [task["attempts"] for task in home.tasks() if task["attempts"] > 1]
    assert sum(unstarted) < 100


@fault(94)
@pytest.mark.slow
def test_a_run_whose_launching_pauses_gives_the_reason_and_obeys_requests(home: Home) -> None:
    away = paused(home)
    with home.start("resume", "--plain") as scheduler:
        wait_until(lambda: home.log().count("are not started for now") == 2, 30)
        said = home.call("why", "2", code=0).stdout
        assert f"its directory is not available: {away}: No such file or directory" in said
        (run,) = json.loads(home.call("why", "--run", "1", "--json", code=0).stdout)["runs"]
        assert run["reasons"] == {"away": 5}
        home.call("cancel", "1", code=0)
        home.call("hold", "2", code=0)
        wait_until(lambda: home.states()[1:3] == ["cancelled", "held"], 10)
        wait_until(lambda: home.states()[6] == "timeout", 10)
        scheduler.send_signal(signal.SIGINT)
        finish(scheduler, 130)
    assert home.states() == ["succeeded", "cancelled", "held", *["waiting"] * 3, "timeout"]


@fault(94)
@pytest.mark.slow
def test_a_run_whose_scheduler_was_killed_while_launching_paused_is_resumed(home: Home) -> None:
    paused(home).mkdir()
    home.call("resume", code=1)
    assert home.states() == [*["succeeded"] * 6, "timeout"]


def paused(home: Home) -> Path:
    """Start a run and kill its scheduler while tasks 1 to 5 wait for their directory, and task 6 runs."""
    away = home.root / "work"
    away.mkdir()
    first = [".", "sh -c 'touch here; until [ -e go ]; do sleep 0.01; done'", "", "yes"]
    home.write(
        "jobs.csv",
        "Directory,Command,Timeout,Exclusive",
        *[first, *[["work", "true", "", ""]] * 5, [".", "sleep 600", "4s", ""]],
    )
    with start(home, "run", "jobs.csv") as scheduler:
        wait_until((home.root / "here").exists, 30)
        away.rmdir()
        (home.root / "go").touch()
        wait_until(lambda: "are not started for now" in home.log(), 30)
        scheduler.kill()
        scheduler.wait()
    return away
