"""`scheduler run -` and `scheduler run --follow F`: commands that arrive while the run goes on."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.older_tools.contracts import contract
from tests.support.gpu_home import GpuHome
from tests.support.killing import Home, Started
from tests.support.standin.box import NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PATIENCE = 60.0
ON_HOST = ("--devices", "host", "--slots", "4")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


def feed(home: Home, text: str | bytes, *flags: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run these lines to their end."""
    (home.root / "lines").write_bytes(text.encode() if isinstance(text, str) else text)
    with open(home.root / "lines") as lines:
        return home.call("run", "-", *ON_HOST, *flags, code=code, stdin=lines)


@contextlib.contextmanager
def open_run(home: Home, *words: str, code: int | None = 0, **how: Any) -> Iterator[Started]:
    """Yield a run whose standard input stays open during the block."""
    with home.start("run", *(words or ("-",)), *ON_HOST, stdin=subprocess.PIPE, **how) as process:
        yield process
        assert process.stdin
        process.stdin.close()
        assert process.wait(PATIENCE) in ((code,) if code is not None else (process.returncode,)), home.log()
    assert "Traceback" not in home.log()


def say(process: Started, *lines: str) -> None:
    assert process.stdin
    process.stdin.write("".join(f"{line}\n" for line in lines))
    process.stdin.flush()


def appear(home: Home, *names: str) -> None:
    """Wait for these files."""
    wait_until(lambda: all((home.root / name).exists() for name in names), PATIENCE)


def ran(home: Home) -> list[str]:
    path = home.root / "ran"
    return path.read_text().splitlines() if path.exists() else []


def states(home: Home) -> list[str]:
    """Return the states of the tasks; none before there is a run."""
    done = home.call("results", "--json")
    return [] if done.returncode else [task["state"] for task in json.loads(done.stdout)["tasks"]]


class TestStandardInput:
    @contract("S1-12")
    def test_a_line_of_stdin_starts_as_it_arrives(self, home: Home) -> None:
        with open_run(home) as run:
            say(run, "touch a")
            appear(home, "a")
            say(run, "touch b", "touch c")
            appear(home, "b", "c")
            assert run.poll() is None
        assert home.states() == ["succeeded"] * 3

    @contract("S1-D1")
    def test_no_command_reads_the_lines_of_stdin(self, home: Home) -> None:
        feed(home, "cat\n" + "echo >> ran\n" * 50)
        assert len(ran(home)) == 50

    @contract("S1-14", "S1-D2")
    def test_a_failed_line_is_named_at_the_end(self, home: Home) -> None:
        done = feed(home, "true\nexit 3\n", code=1)
        assert "failed: task 1, row 2, exit 3 (exit 3)" in done.stdout

    def test_flags_apply_to_every_line_of_stdin(self, home: Home) -> None:
        feed(home, "true\ntrue\n", "--memory", "10MiB", "--priority", "7", "--env", "A=b")
        assert [(task["priority"], task["source"]) for task in home.tasks()] == [(7, "declared")] * 2

    def test_flags_that_no_device_fits_are_refused_before_stdin_is_read(self, home: Home) -> None:
        with home.start("run", "-", *ON_HOST, "--gpus", "3", stdin=subprocess.PIPE, stderr=subprocess.PIPE) as run:
            assert run.wait(PATIENCE) == 2
            assert run.stderr
            assert run.stderr.read() == ("scheduler: --gpus 3: needs 3 GPUs; this machine has none: 0 = host only\n")

    @contract("S1-18", "S1-D7")
    def test_stdin_takes_commands_of_several_lines(self, home: Home) -> None:
        feed(home, "A=1\necho $A >> ran\n\nA=2\necho $A >> ran\0", "--multiline")
        assert sorted(ran(home)) == ["1", "2"]
        assert len(home.tasks()) == 2

    def test_bytes_of_stdin_that_are_not_utf_8_are_kept(self, home: Home) -> None:
        feed(home, b"printf '%s' \xff\xc3\xa9 > out\n")
        assert (home.root / "out").read_bytes() == b"\xff\xc3\xa9"
        for look in (("list",), ("results",), ("results", "--csv"), ("results", "--md"), ("profiles",), ("status",)):
            home.call(*look, code=0)

    def test_two_thousand_lines_at_once_are_accepted_together(self, home: Home) -> None:
        with open_run(home, "-", "-j", "1", code=130) as run:
            say(run, "touch first; until [ -e go ]; do sleep 0.01; done", *["true"] * 2000)
            appear(home, "first")
            wait_until(lambda: len(states(home)) == 2001, PATIENCE)
            run.send_signal(signal.SIGINT)
            (home.root / "go").touch()
        assert home.states().count("waiting") == 2000

    def test_a_detached_run_of_stdin_reads_all_lines_first(self, home: Home) -> None:
        said = feed(home, "touch a\ntouch b\n", "-d").stdout
        assert said.startswith("run 1  stdin: 2 tasks, started in the background")
        appear(home, "a", "b")
        assert feed(home, "", "-d").stdout == "stdin has no commands: nothing to run\n"

    def test_a_dry_run_of_stdin_starts_nothing(self, home: Home) -> None:
        assert "stdin: 2 tasks" in feed(home, "touch a\ntouch b\n", "--dry-run").stdout
        assert not (home.root / "a").exists()

    def test_an_empty_stdin_is_no_failure(self, home: Home) -> None:
        assert "stdin: 0 tasks" in feed(home, "").stdout

    def test_accepted_lines_survive_a_kill_of_the_scheduler(self, home: Home) -> None:
        with open_run(home, code=-9) as run:
            say(run, "touch here; until [ -e go ]; do sleep 0.01; done; echo 1 >> ran", *["echo 2 >> ran"] * 9)
            wait_until(lambda: len(states(home)) == 10, PATIENCE)
            appear(home, "here")
            run.kill()
        (home.root / "go").touch()
        home.call("resume", code=0)
        assert sorted(ran(home)) == ["1", *["2"] * 9]

    def test_a_run_of_lines_at_a_terminal_says_what_it_reads(self, home: Home) -> None:
        ours, theirs = pty.openpty()
        try:
            with home.start("run", "-", *ON_HOST, stdin=theirs) as run:
                wait_until(lambda: "reading commands from this terminal, one on each line" in home.log(), PATIENCE)
                os.write(ours, b"touch a\n\x04")
                assert run.wait(PATIENCE) == 0
        finally:
            os.close(ours)
            os.close(theirs)
        assert (home.root / "a").exists()

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("-", "--header", "None"), "--header does not go with -"),
            (("-", "--num", "3"), "--num does not go with -"),
            (("-", "--append", "id"), "--append does not go with -"),
            (("-", "--new"), "--new does not go with -"),
            (("-", "--skip-done"), "--skip-done does not go with -"),
            (("-", "--", "echo", "{x}"), "-- COMMAND does not go with -"),
            (("--follow", "q", "jobs.csv"), "another list does not go with --follow"),
            (("--follow", "q", "--dry-run"), "--dry-run does not go with --follow"),
            (("--follow", "."), "it is a directory: follow a file"),
            (("jobs.csv", "--multiline"), "--multiline needs commands"),
        ],
    )
    def test_flags_without_an_effect_on_lines_are_refused(self, home: Home, words: tuple[str, ...], said: str) -> None:
        done = home.call("run", *words, code=2)
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


class TestFollowing:
    def test_follow_runs_present_appended_and_rotated_lines(self, home: Home) -> None:
        queue = home.root / "q"
        queue.write_text("touch a\n")
        with open_run(home, "--follow", "q", code=130) as run:
            appear(home, "a")
            append(queue, "touch b\n")
            appear(home, "b")
            queue.rename(home.root / "q.1")
            append(home.root / "q.1", "touch c\n")
            queue.write_text("touch d\n")
            appear(home, "c", "d")
            run.send_signal(signal.SIGINT)
        assert len(home.tasks()) == 4

    def test_follow_neither_repeats_nor_misses_a_line_after_kills(self, home: Home) -> None:
        queue, lines = home.root / "q", 0
        queue.touch()
        words: tuple[str, ...] = ("run", "--follow", "q", *ON_HOST)
        for _ in range(4):
            with home.start(*words) as run:
                for _ in range(5):
                    append(queue, f"echo {lines} >> ran\n")
                    lines += 1
                wait_until(lambda: f"{lines - 2}" in ran(home), PATIENCE)  # noqa: B023 - it is waited for at once
                run.kill()
                run.wait(PATIENCE)
            words = ("resume",)
        with home.start("resume") as run:
            wait_until(lambda: home.log().count("taken over") == 4, PATIENCE)
            wait_until(lambda: f"{lines - 1}" in ran(home), PATIENCE)
            run.send_signal(signal.SIGINT)
            assert run.wait(PATIENCE) == 130
        assert sorted(map(int, ran(home))) == list(range(lines))

    def test_follow_begins_where_the_last_run_of_the_file_ended(self, home: Home) -> None:
        queue = home.root / "q"
        queue.write_text("echo 1 >> ran\n")
        for number, flags, lines in ((1, (), 2), (2, (), 3), (3, ("--new",), 7)):
            with open_run(home, "--follow", "q", *flags, code=130) as run:
                append(queue, f"echo {number + 1} >> ran\n")
                wait_until(lambda: len(ran(home)) == lines, PATIENCE)  # noqa: B023 - it is waited for at once
                wait_until(lambda: "running" not in home.states(), PATIENCE)
                run.send_signal(signal.SIGINT)
        assert sorted(ran(home)[:2]) == ["1", "2"]
        assert ran(home)[2] == "3"
        assert sorted(ran(home)[3:]) == ["1", "2", "3", "4"]

    def test_follow_refuses_a_file_that_a_living_run_follows(self, home: Home) -> None:
        (home.root / "q").write_text("touch a\n")
        with open_run(home, "--follow", "q", code=130) as run:
            appear(home, "a")
            assert "is alive, so nothing is started" in home.call("run", "--follow", "q", *ON_HOST, code=2).stderr
            run.send_signal(signal.SIGINT)

    def test_resume_all_includes_a_run_that_follows_a_file(self, home: Home) -> None:
        (home.root / "q").write_text("touch a\n")
        with open_run(home, "--follow", "q", code=-9) as run:
            wait_until(lambda: states(home) == ["succeeded"], PATIENCE)
            run.kill()
        assert "taken over" in home.call("resume", "--all", "-d", code=0).stdout
        append(home.root / "q", "touch b\n")
        appear(home, "b")
        home.call("stop", code=0)
        wait_until(
            lambda: home.call("resume", "--all", "-d").stdout.startswith("this machine has no unfinished run"), PATIENCE
        )


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


class TestBesideOthers:
    def test_every_line_runs_once_while_two_other_schedulers_run(self, home: Home) -> None:
        home.commands(*["true"] * 40)
        others = [home.start("run", "jobs.csv", "--new", *ON_HOST) for _ in range(2)]
        with open_run(home) as run:
            for number in range(120):
                say(run, f"echo {number} >> ran")
        assert sorted(map(int, ran(home))) == list(range(120))
        assert [other.wait(PATIENCE) for other in others] == [0, 0]

    @pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)
    def test_lines_share_a_gpu_by_the_measured_need_of_earlier_lines(self, tmp_path: Path) -> None:
        home = GpuHome(tmp_path, gpus=1)
        try:
            line = f"{sys.executable} -S -E hold.py --take 4GiB --until go > log.$SCHEDULER_TASK_ID"
            with home.start("run", "-", "--settle", "0.3s", stdin=subprocess.PIPE) as run:
                say(run, line, line, line)
                wait_until(lambda: len(home.tries()) == 3 and all(one.pid for one in home.tries()), PATIENCE)
                home.go()
                run.communicate(timeout=PATIENCE)
            first, _, last = home.tries()  # the second may start before the first has settled
            assert (first.source, last.source) == ("measured", "profile")
        finally:
            home.end()
