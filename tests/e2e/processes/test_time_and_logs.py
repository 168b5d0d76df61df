"""Time limits, warnings, resumable tasks and logs of limited size, with real processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.core.model import Outcome, Warn
from scheduler.runtime import shim
from tests.e2e.conftest import Driver
from tests.support.faults import fault
from tests.support.killing import Home
from tests.support.mounts import needs_mounts, run_apart
from tests.support.waiting import wait_until

KIB = 1024
ONE = ("--devices", "host", "--slots", "1", "--memory", "50MiB")
SPAM = "import sys\nfor n in range({lines}): sys.stdout.write('line %07d %s\\n' % (n, 'x' * 86))"
"""Lines of 100 bytes."""


def kib(note: bytes) -> int:
    """Return the amount that a note names."""
    return int(note.split()[1].replace(b",", b""))


def whole_lines(said: list[bytes]) -> list[int]:
    """Return the numbers of the lines of `SPAM` that were not cut."""
    return [int(line[5:12]) for line in said if line.startswith(b"line ") and len(line) == 99]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


class TestWarnings:
    def test_warning_comes_before_the_limit_and_the_stop_signal(self, driver: Driver) -> None:
        script = "trap 'echo warned' USR1; trap 'echo asked; exit 3' TERM; echo up; while :; do sleep 0.01; done"
        ended = driver.run_sh(script, timeout=3.0, warn=Warn(signal.SIGUSR1, 1.0))
        assert (ended.outcome, ended.code) == (Outcome.TIMEOUT, 3)
        assert driver.log().splitlines() == ["up", "warned", "asked"]
        assert ended.seconds >= 3.0

    def test_task_that_saves_and_ends_after_its_warning_has_not_timed_out(self, driver: Driver) -> None:
        script = "trap 'exit 75' USR1; while :; do sleep 0.01; done"
        ended = driver.run_sh(script, timeout=120.0, warn=Warn(signal.SIGUSR1, 118.0))
        assert (ended.outcome, ended.code) == (Outcome.FAILED, 75)

    def test_stopped_task_gets_no_warning(self, driver: Driver) -> None:
        script = (
            "trap 'echo warned' USR1; trap 'echo asked; sleep 0.3; exit 0' TERM; echo up; while :; do sleep 0.01; done"
        )
        task = driver.sh(script, timeout=60.0, warn=Warn(signal.SIGUSR1, 59.0))
        driver.wait_for_line("up")
        driver.engine.stop(task, 1)
        assert driver.exited(task).outcome is Outcome.INTERRUPTED
        assert "asked" in driver.log()


class TestLogs:
    """A log is above its limit only by what is written while its shim waits for a processor or for the file."""

    def spam(self, drivers: Callable[..., Driver], lines: int, most: int) -> list[bytes]:
        driver = drivers(log_max=most)
        assert driver.run(sys.executable, "-ISc", SPAM.format(lines=lines)).outcome is Outcome.SUCCEEDED
        path = driver.tasks / "1/1.log"
        assert path.stat().st_size <= most
        return path.read_bytes().splitlines()

    def test_cut_log_keeps_head_and_tail_and_names_the_missing_amount(self, drivers: Callable[..., Driver]) -> None:
        said = self.spam(drivers, 20_000, 256 * KIB)
        assert said[0].startswith(b"line 0000000 ")
        assert said[-1].startswith(b"line 0019999 ")
        notes = [line for line in said if line.startswith(b"[scheduler: ")]
        for note in notes:
            assert note.endswith(b"KiB of output are missing here: the log is kept below 256 KiB (--log-max)]")
        note, *faster = notes  # on a busy machine, the task can write faster than its log is copied
        for other in faster:
            before, after = whole_lines(said[: said.index(other)]), whole_lines(said[said.index(other) :])
            assert (after[0] - before[-1]) * 100 > kib(other) * KIB  # no more than what is missing there
        missing = kib(note)  # of all places
        assert abs(20_000 * 100 // KIB - missing - sum(map(len, said)) // KIB) < 16
        head = [line for line in said[: said.index(note)] if line.startswith(b"line")]
        assert [int(line.split()[1]) for line in head] == list(range(len(head)))

    def test_short_log_is_not_cut(self, drivers: Callable[..., Driver]) -> None:
        assert len(self.spam(drivers, 1000, 256 * KIB)) == 1000

    @fault(25)
    def test_log_is_cut_while_the_task_writes_on(self, drivers: Callable[..., Driver]) -> None:
        driver = drivers(log_max=256 * KIB)
        script = "i=0; while [ ! -e go ]; do i=$((i+1)); echo line $i of many xxxxxxxxxxxxxxxxxxxxxxx; done; echo last"
        task = driver.sh(script)
        path = driver.tasks / "1/1.log"
        wait_until(lambda: path.exists() and b"are missing here" in path.read_bytes(), 30)
        (driver.root / "go").touch()
        driver.exited(task)
        assert driver.log().splitlines()[-1] == "last"
        assert driver.log().startswith("line 1 of many")

    def test_log_of_leftovers_is_cut_too(self, drivers: Callable[..., Driver]) -> None:
        driver = drivers(log_max=64 * KIB)
        driver.run_sh("while :; do echo a line of what is left behind; done & sleep 0.05; exit 0")
        assert (driver.tasks / "1/1.log").stat().st_size <= 64 * KIB

    def test_log_is_cut_by_copying_where_blocks_cannot_be_removed(self, tmp_path: Path) -> None:
        path, lines = tmp_path / "log", [b"%07d\n" % number for number in range(16 * KIB)]
        path.write_bytes(b"".join(lines))
        log = shim.LogKeeper(str(path), 128 * KIB, lambda *said: -1)
        log.look(1.0)
        left = path.read_bytes().splitlines(keepends=True)
        assert path.stat().st_size <= 96 * KIB
        assert left[: 4 * KIB] == lines[: 4 * KIB]
        assert left[-3 * KIB :] == lines[-3 * KIB :]
        assert b"64 KiB of output are missing here" in path.read_bytes()

    @fault(25)
    def test_a_log_that_grows_faster_than_it_is_copied_is_cut_in_bounded_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, most, read, write = tmp_path / "log", 8 << 20, os.pread, os.pwrite
        path.write_bytes(b"head\n" * (most // 5))
        written = 0

        def read_slowly(fd: int, length: int, offset: int) -> bytes:
            """Read as if the task wrote twice as much meanwhile, 256 MiB in all."""
            nonlocal written
            if written < 256 << 20:
                written += 2 * length
                with path.open("ab") as file:
                    file.write(b"x" * (2 * length))
            return read(fd, length, offset)

        def write_late(fd: int, data: bytes, offset: int) -> int:
            """Write as if the task wrote 64 KiB while a note is written."""
            nonlocal written
            if data.startswith(b"\n[scheduler: "):
                written += 64 * KIB
                with path.open("ab") as file:
                    file.write(b"x" * (64 * KIB))
            return write(fd, data, offset)

        log = shim.LogKeeper(str(path), most, lambda *said: -1)
        monkeypatch.setattr(os, "pread", read_slowly)
        monkeypatch.setattr(os, "pwrite", write_late)
        log.look(1.0)
        assert path.stat().st_size <= most // 4 * 3
        assert written <= 2 * most
        notes = [line for line in path.read_bytes().splitlines() if line.startswith(b"[scheduler: ")]
        assert len(notes) == 2  # behind the head, and behind what could be copied
        missing = kib(notes[0]) * KIB
        assert abs(path.stat().st_size + missing - len(b"head\n" * (most // 5)) - written) <= KIB

    def test_fast_growing_log_is_checked_sooner(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.touch()
        log = shim.LogKeeper(str(path), 1 << 30, lambda *said: -1)
        log.look(1.0)
        assert log.next_look == 2.0
        os.truncate(path, 600 << 20)  # in one second, and so perhaps the rest in less than another
        log.look(2.0)
        assert 2.2 < log.next_look < 2.5


FULL_DISK = """
import os, subprocess, sys
from pathlib import Path
from tests.support.killing import Home
from tests.support.waiting import wait_until
root = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", root], check=True)
home = Home(root)
home.env["SCHEDULER_DISK_MIN"] = "16MiB"
ballast = root / "ballast"
ballast.write_bytes(bytes(24 << 20))
with home.start("run", home.commands("true", "true"), "--devices", "host", "--memory", "50MiB") as scheduler:
    wait_until(lambda: "to be kept: nothing starts until there is more" in home.log(), 30)
    assert home.states() == ["waiting", "waiting"]
    ballast.unlink()
    assert scheduler.wait(60) == 0
assert home.states() == ["succeeded", "succeeded"]
assert home.log().count("nothing starts until") == home.log().count("there is space on the disk again") == 1
home.end()
"""


@fault(22)
@pytest.mark.slow
@needs_mounts
def test_full_disk_stops_launching_until_there_is_space_again(tmp_path: Path) -> None:
    run_apart(FULL_DISK, tmp_path)


@pytest.mark.slow
class TestRuns:
    def test_timeout_is_retried_only_where_requested(self, home: Home) -> None:
        home.write(
            "jobs.csv",
            "Command,Timeout,Retries,RetryOn",
            ["sleep 60", "0.2s", 2, ""],
            ["sleep 60", "0.2s", 1, "timeout"],
        )
        home.call("run", "jobs.csv", *ONE, code=1)
        assert {(task["state"], task["attempts"]) for task in home.tasks()} == {("timeout", 1), ("timeout", 2)}
        home.call("run", home.commands("sleep 60"), *ONE, "--timeout", "0.2s", "--retries", "1", code=1)
        home.call("run", home.commands("sleep 60"), *ONE, "--timeout", "0.2s", "--retries", "1", "--retry-on",
                  "failed,timeout", code=1)  # fmt: skip
        assert [home.tasks(run)[0]["attempts"] for run in ("2", "3")] == [1, 2]

    def test_waiting_time_does_not_count_against_the_time_limit(self, home: Home) -> None:
        home.write("jobs.csv", "Command,Timeout", ["sleep 2.2", ""], ["true", "2s"])
        home.call("run", "jobs.csv", *ONE, code=0)
        assert max(task["waited_s"] for task in home.tasks()) > 2

    def test_probe_has_no_time_limit(self, home: Home) -> None:
        script = """sh -c 'if [ "$SCHEDULER_PURPOSE" = probe ]; then sleep 2.2; fi; echo {epochs}'"""
        home.write("jobs.csv", "Command,Epochs,Timeout", [script, 50, "2s"])
        home.call("run", "jobs.csv", "--devices", "host", "--profile", "probe", code=0)
        assert "probe" in home.log()

    def test_resumable_tasks_go_on_in_further_turns(self, home: Home) -> None:
        turns = """sh -c 'echo turn >>turns; [ "$(wc -l <turns)" -ge 3 ] || exit 75'"""
        home.write("jobs.csv", "Command,Resumable", [turns, "yes"], ["sh -c 'exit 75'", "no"])
        home.call("run", "jobs.csv", *ONE, code=1)
        assert [(task["state"], task["attempts"]) for task in home.tasks()] == [("succeeded", 3), ("failed", 1)]
        assert "exit 75: it goes on in its next turn" in home.log()

    def test_three_short_turns_in_a_row_fail_a_task(self, home: Home) -> None:
        home.call("run", home.commands("sh -c 'exit 75'"), *ONE, "--resumable", "yes", "--retries", "5", code=1)
        [task] = home.tasks()
        assert (task["state"], task["attempts"]) == ("failed", 3)
        assert "exit 75 3 times in a row within 60 s of its start, so it makes no progress" in home.log()

    def test_exit_code_75_is_a_failure_unless_the_row_is_resumable(self, home: Home) -> None:
        home.call("run", home.commands("sh -c 'exit 75'"), *ONE, code=1)
        assert home.tasks()[0]["attempts"] == 1

    def test_a_warning_before_the_limit_of_a_row(self, home: Home) -> None:
        script = "sh -c 'trap \"exit 75\" USR1; [ -e up ] && exit 0; touch up; while :; do sleep 0.01; done'"
        home.write("jobs.csv", "Command,Timeout,StopSignal,Resumable", [script, "60s", "USR1@58s", "yes"])
        home.call("run", "jobs.csv", *ONE, code=0)
        [task] = home.tasks()
        assert (task["state"], task["attempts"]) == ("succeeded", 2)

    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            (("--stop-signal", "USR1@120"), "is sent 120 s before the time limit, and there is none"),
            (("--stop-signal", "USR1@2m", "--timeout", "2m"), "the time limit, which is 120 s: warn later"),
            (("--stop-signal", "USR1@x"), "--stop-signal: 'x' is not a time"),
            (("--retry-on", "oom"), "--retry-on: 'oom' is not failed, timeout or failed,timeout"),
            (("--log-max", "1KiB"), "--log-max: '1KiB' is too small for a log: write at least 64KiB"),
        ],
    )  # fmt: skip
    def test_bad_flag_is_refused_in_one_sentence(self, home: Home, flags: tuple[str, ...], said: str) -> None:
        err = home.call("run", home.commands("true"), *flags, code=2).stderr
        assert said in err
        assert len(err.splitlines()) == 1

    @fault(25)
    def test_a_log_is_kept_small_and_its_end_is_shown(self, home: Home) -> None:
        (home.root / "spam.py").write_text(
            SPAM.format(lines=20_000) + "\nsys.stdout.write('1/9\\r9/9\\n'); sys.exit(3)"
        )
        said = home.call("run", home.commands(f"{sys.executable} spam.py"), *ONE, "--log-max", "256KiB", code=1).stdout
        [task] = home.tasks()
        assert Path(task["log"]).stat().st_size <= 256 * KIB
        assert "    | 9/9\n" in said

    def test_a_full_disk_starts_nothing_and_says_so_once(self, home: Home) -> None:
        home.env["SCHEDULER_DISK_MIN"] = "100000TiB"
        with home.start("run", home.commands("echo hi"), *ONE) as scheduler:
            wait_until(lambda: "to be kept: nothing starts until there is more" in home.log(), 30)
            assert home.states() == ["waiting"]
            scheduler.send_signal(signal.SIGTERM)
            scheduler.wait(30)
        assert home.log().count("nothing starts until there is more") == 1
