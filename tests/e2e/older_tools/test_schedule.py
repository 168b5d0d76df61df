"""The older one-shot tool: every command of its document as written, and every line of its contract."""

from __future__ import annotations

import itertools
import json
import os
import pty
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from scheduler.app.observe.lease_holders import LeaseHolder
from scheduler.compat import csv_scheduler as launcher
from scheduler.compat import schedule_messages
from scheduler.compat.schedule import parser
from scheduler.core.leases import Lease
from tests.e2e.older_tools.contracts import contract
from tests.support.faults import fault
from tests.support.gpu_home import PATIENCE, GpuHome
from tests.support.killing import ROOT, Started, is_alive, kill
from tests.support.standin.box import HERE as STANDIN
from tests.support.waiting import wait_until

TRAIN = """\
#!{python} -S
import os, sys
print("trained", *sys.argv[1:])
print(os.environ.get("GPU"), os.environ.get("CUDA_VISIBLE_DEVICES"), os.getsid(0) == os.getpid())
"""
HOLD = "sh -c 'touch has-{0}; until [ -e {0} ]; do sleep 0.01; done'"


class Old(GpuHome):
    """A home in which the older tool's command is this project's `scheduler.py`."""

    def __init__(self, root: Path, **machine: object) -> None:
        super().__init__(root, **machine)
        self.command = [sys.executable, str(ROOT / "scheduler.py")]
        bin_ = root / "bin"
        bin_.mkdir()
        train = bin_ / "train.py"
        train.write_text(TRAIN.format(python=sys.executable))
        train.chmod(0o755)
        self.env["PATH"] = f"{bin_}:{self.env['PATH']}"

    def hold(self, *flags: str, until: str = "go", **how: object) -> Started:
        """Start a task that has its GPU until a file exists."""
        process = self.start(HOLD.format(until), *flags, **how)
        wait_until((self.root / f"has-{until}").exists, PATIENCE)
        return process

    def status(self) -> str:
        return self.call("-s", code=0).stdout

    def info(self) -> dict[str, list[object]]:
        self.call("--export", str(self.root / "info"), code=0)
        read: dict[str, list[object]] = json.loads((self.root / "info").read_text())
        return read

    def tickets(self) -> int:
        return len([*self.leases.glob("ticket.*")])


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Old]:
    made = Old(tmp_path)
    yield made
    made.end()


slow = pytest.mark.slow


@slow
class TestDocument:
    @contract("S0-01", "S0-12")
    def test_the_documents_example_runs_as_written(self, old: Old) -> None:
        """`/path/to/scheduler.py "train.py foo --bar 5" --forced_gpu 2 --verbose`, as soon as GPU 2 is free."""
        with old.hold("-fg", "2", until="free") as before:
            command = ("train.py foo --bar 5", "--forced_gpu", "2", "--verbose")
            with old.start(*command, stdout=subprocess.PIPE) as process:
                wait_until(lambda: old.tickets() == 1, PATIENCE)
                old.go("free")
                out, _ = process.communicate(timeout=PATIENCE)
            assert (before.wait(PATIENCE), process.returncode) == (0, 0)
        lines = out.splitlines()
        assert lines[0] == f"Scheduler (PID: {process.pid}) is waiting for GPU 2."
        assert lines[1:3] == ["GPU: cuda2", f"SCH PID: {process.pid}"]
        assert [line.partition(":")[0] for line in lines[3:6]] == ["TASK PID", "SCH PGID", "TASK PGID"]
        assert lines[6:8] == ["trained foo --bar 5", "cuda2 None True"]
        assert lines[8:10] == ["", "task: ['train.py', 'foo', '--bar', '5']"]

    @contract("S0-01")
    def test_usage_has_all_flags_of_the_tool(self, old: Old) -> None:
        usage = " ".join(old.call("-s", "-h", code=0).stdout.split())
        for flag in (
            "[-gc GPU_COUNT] [-i INIT [INIT ...]] [-v] [-o [OUT]]",
            "[-e [ERR]] [-pg PREFERED_GPU] [-fg FORCED_GPU] [-s]",
            "[-rg RELEASE_GPU [RELEASE_GPU ...]]",
            "--gpu_count", "--init", "--verbose", "--out", "--err", "--prefered_gpu", "--forced_gpu", "--status",
            "--release_gpu",
        ):  # fmt: skip
            assert flag in usage

    @contract("S0-05")
    def test_the_documents_example_of_init_runs(self, old: Old) -> None:
        """`-i 5 3 4` means that total count of GPUs is 5 and GPU 3 and 4 are currently unavailable."""
        old.plug(gpus=5)
        old.call("-i", "5", "3", "4", code=0)
        assert old.status().split("\n")[:4] == ["Free GPU:", "GPU 0", "GPU 1", "GPU 2"]
        assert old.info()["avail"] == [True, True, True, False, False]
        assert old.info()["user"] == [None] * 5

    @contract("S0-19")
    def test_the_documents_example_of_release_runs(self, old: Old) -> None:
        """`-rg 0 2` releases GPU 0 and 2."""
        holders = [old.hold("-fg", str(gpu), until=f"go{gpu}") for gpu in (0, 1, 2)]
        old.call("-rg", "0", "2", "7", code=0)
        assert [holders[0].wait(PATIENCE), holders[2].wait(PATIENCE)] == [143, 143]
        assert "GPU: 1\n" in old.status()
        assert "Free GPU:\nGPU 0\nGPU 2\nGPU 3\n" in old.status()
        old.go("go1")
        assert holders[1].wait(PATIENCE) == 0


@slow
class TestTask:
    @contract("S0-06")
    def test_a_task_is_not_read_by_a_shell_and_newlines_join(self, old: Old) -> None:
        out = old.call("train.py\n'a  b' $HOME | cat {id}", code=0).stdout
        assert "trained a  b $HOME | cat {id}\n" in out

    @contract("S0-07")
    def test_num_is_the_number_of_the_tasks_gpu(self, old: Old) -> None:
        assert "trained 3900 x__num__\n" in old.call("train.py __num__ x__num__", "-fg", "3", code=0).stdout

    @contract("S0-08")
    def test_gpu_has_the_number_of_its_gpu_and_all_gpus_are_visible(self, old: Old) -> None:
        old.env["CUDA_VISIBLE_DEVICES"] = "1,2"
        assert "\ncuda1 None True\n" in old.call("train.py a", "-fg", "1", code=0).stdout

    @contract("S0-08")
    @pytest.mark.parametrize("visible", ["index", "uuid"])
    def test_gpu_counts_only_the_visible_gpus(self, old: Old, visible: str) -> None:
        old.env["SCHEDULER_VISIBLE"] = visible
        names = {"index": "1,3", "uuid": f"{old.box.uuids[1]},{old.box.uuids[3]}"}
        out = old.call("train.py a", "-gc", "2", "-fg", "1,3", code=0).stdout
        assert f"\ncuda0,cuda1 {names[visible]} True\n" in out

    @contract("S0-15")
    def test_the_exit_code_of_a_task_is_passed_on(self, old: Old) -> None:
        old.call("sh -c 'exit 7'", code=7)

    @contract("S0-20")
    def test_an_unknown_command_is_refused_in_one_sentence(self, old: Old) -> None:
        done = old.call("nothere --x 1", code=2)
        assert done.stderr == "scheduler: 'nothere' is not a program on PATH (a Command is not read by a shell)\n"
        assert "Free GPU:\nGPU 0\n" in old.status()

    @contract("S0-14")
    def test_output_files_are_truncated(self, old: Old) -> None:
        for name in ("out", "err"):
            (old.root / name).write_text("what was there before\n" * 10)
        done = old.call("sh -c 'echo out; echo err >&2'", "-o", "out", "-e", "err", code=0)
        assert "out" not in done.stdout
        assert [(old.root / name).read_text() for name in ("out", "err")] == ["out\n", "err\n"]

    @contract("S0-14", "S0-13")
    def test_o_without_a_value_prints_the_output_here(self, old: Old) -> None:
        out = old.call("train.py a", "-v", "-o", code=0).stdout
        assert "trained a\n" in out
        assert "stdout: sys.stdout\nstderr: sys.stderr\nstart: 2" in out

    @contract("S0-09")
    def test_the_lowest_free_gpu_or_the_preferred_one_if_it_is_free(self, old: Old) -> None:
        with old.hold("-fg", "0", until="go") as first:
            assert "GPU: cuda1\n" in old.call("train.py a", code=0).stdout
            assert "GPU: cuda3\n" in old.call("train.py a", "-pg", "3", code=0).stdout
            assert "GPU: cuda1\n" in old.call("train.py a", "-pg", "0", code=0).stdout
            old.go()
            assert first.wait(PATIENCE) == 0

    @contract("S0-10")
    @pytest.mark.parametrize(("gpu", "sentence"), [("9", "GPU 9 is not there"), ("3", "GPU 3 is unavailable")])
    def test_a_gpu_that_cannot_be_had_is_refused_at_once(self, old: Old, gpu: str, sentence: str) -> None:
        old.call("-i", "4", "3", code=0)
        assert sentence in old.call("train.py a", "-fg", gpu, code=2).stderr

    @contract("S0-11", "S0-D10")
    def test_a_task_on_several_gpus_gets_all_their_names(self, old: Old) -> None:
        out = old.call("train.py a", "-gc", "2", "-fg", "1,3", code=0).stdout
        assert "GPU: cuda1,cuda3\n" in out
        assert "\ncuda1,cuda3 None True\n" in out
        assert "may use 4 GPUs" in old.call("train.py a", "-gc", "5", code=2).stderr

    @contract("S0-21")
    def test_forced_gpus_can_be_written_as_a_list(self, old: Old) -> None:
        assert "GPU: cuda1,cuda3\n" in old.call("train.py a", "-gc", "2", "-fg", "[1,3]", code=0).stdout

    @contract("S0-D10")
    def test_two_jobs_with_declared_memory_share_a_gpu(self, old: Old) -> None:
        old.command = [sys.executable, "-m", "scheduler"]
        script = "until [ -e both ]; do sleep 0.01; done"
        pair = [old.start("exec", "--device", "0", "--memory", "4GiB", "--", "sh", "-c", script) for _ in range(2)]
        wait_until(lambda: len([*old.leases.glob("[0-9]*")]) == 2, PATIENCE)
        old.go("both")
        assert [process.wait(PATIENCE) for process in pair] == [0, 0]

    @contract("S0-02")
    def test_init_release_status_and_task_come_in_this_order(self, old: Old) -> None:
        done = old.call("train.py a", "-s", "-rg", "0", "-i", "4", "1", code=0)
        assert done.stdout.index("GPU 0\nGPU 2\nGPU 3\n") < done.stdout.index("GPU: cuda0\n")

    @contract("S0-16")
    def test_three_ctrl_c_stop_terminate_and_kill_the_task(self, old: Old) -> None:
        stubborn = "sh -c 'trap \"\" TERM INT; touch has-go; while :; do sleep 0.05; done'"
        with old.start(stubborn, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            wait_until((old.root / "has-go").exists, PATIENCE)
            pid = next(line.split()[-1] for line in process.stdout if line.startswith("TASK PGID"))
            assert os.getsid(int(pid)) == int(pid)
            for words in ("Next Ctrl-C terminate the task (PGID: {}).", "was terminated.", "was killed."):
                process.send_signal(signal.SIGINT)
                assert words.format(pid) in process.stdout.readline()
                if "terminated" in words:
                    assert is_alive(int(pid))
                    assert "GPU: 0\n" in old.status(), "it is not free before it has ended"
            assert process.wait(PATIENCE) == 130
        assert not is_alive(int(pid))

    @contract("S0-17", "S0-D8")
    def test_waiting_tasks_start_in_their_order_and_soon(self, old: Old) -> None:
        with old.hold("-fg", "2") as first:
            waiters = []
            for number in (1, 2, 3):
                waiters.append(old.start(f"sh -c 'echo {number} >>order'", "-fg", "2"))
                wait_until(lambda number=number: old.tickets() == number, PATIENCE)
            old.go()
            assert [process.wait(PATIENCE) for process in (first, *waiters)] == [0] * 4
        assert (old.root / "order").read_text().split() == ["1", "2", "3"]
        old.command = [sys.executable, "-m", "scheduler"]
        told = [old.tasks(str(run))[0] for run in (1, 2, 3, 4)]
        for before, after in itertools.pairwise(told):
            ended, started = (datetime.fromisoformat(at) for at in (before["ended"], after["started"]))
            assert (started - ended).total_seconds() < 10.0


@slow
class TestMachineStatus:
    @contract("S0-03", "S0-18", "S0-D7")
    def test_status_names_the_user_and_task_of_each_gpu(self, old: Old) -> None:
        with old.hold("-fg", "1") as process:
            said, info = old.status(), old.info()
            old.go()
            assert process.wait(PATIENCE) == 0
        lines = said.splitlines()
        assert lines[:3] == ["Currently used GPU:", "-----", "GPU: 1"]
        assert [line.partition(":")[0] for line in lines[3:7]] == ["User", "Task", "Task PID", "Started"]
        assert lines[4] == "Task: sh -c touch has-go; until [ -e go ]; do sleep 0.01; done"
        assert lines[-4:] == ["Free GPU:", "GPU 0", "GPU 2", "GPU 3"]
        assert [*info] == ["avail", "gpu_name", "task", "task_pid", "task_start", "user"]
        assert info["avail"] == [True, False, True, True]
        assert [info[name][0] for name in ("task", "task_pid", "task_start", "user")] == [None] * 4
        assert info["task"] == [None, ["sh", "-c", HOLD.format("go")[7:-1]], None, None]
        assert (old.root / "info").read_text().startswith('{\n    "avail": [\n        true,')

    @contract("S0-03")
    def test_status_writes_the_same_file(self, old: Old) -> None:
        old.command = [sys.executable, "-m", "scheduler"]
        old.call("status", "--gpu-info", "info", code=0)
        assert json.loads((old.root / "info").read_text())["avail"] == [True] * 4

    @contract("S0-D7")
    def test_an_info_file_that_cannot_be_written_is_named(self, old: Old) -> None:
        assert "nowhere/info cannot be written" in old.call("--export", "nowhere/info", code=1).stderr

    @contract("S0-18")
    def test_status_says_that_no_gpu_is_free(self, old: Old) -> None:
        old.plug(gpus=1)
        with old.hold() as process:
            assert old.status().endswith("No GPU available.\n")
            old.go()
            assert process.wait(PATIENCE) == 0

    @contract("S0-04")
    def test_status_finds_the_gpus_without_init(self, old: Old) -> None:
        old.plug(gpus=2)
        assert old.status() == "Free GPU:\nGPU 0\nGPU 1\n"
        assert "may use 2 GPUs of this machine" in old.call("-i", "5", "3", "4", code=2).stderr
        assert "there is no GPU 3 here" in old.call("-i", "2", "3", code=2).stderr

    @contract("S0-D6")
    def test_init_wipes_nothing_while_tasks_run(self, old: Old) -> None:
        with old.hold("-fg", "3") as process:
            old.call("-i", "4", "0", code=0)
            assert "Currently used GPU:\n-----\nGPU: 3\n" in old.status()
            old.go()
            assert process.wait(PATIENCE) == 0

    @contract("S0-D3", "S0-D4", "S0-D5")
    def test_a_gpu_is_free_when_nothing_of_its_task_is_left(self, old: Old) -> None:
        with old.hold("-fg", "2") as process:
            kill(process.pid)
            process.wait(PATIENCE)
            assert "GPU: 2\n" in old.status()
            old.go()
            wait_until(lambda: "GPU 2\n" in old.status(), PATIENCE, pause=0.05)

    @contract("S0-D1")
    def test_a_task_runs_without_a_terminal(self, old: Old) -> None:
        old.call("train.py a", code=0, start_new_session=True)

    @contract("S0-D9")
    def test_a_gpu_with_an_unmanaged_process_is_not_free(self, old: Old) -> None:
        with old.box.unmanaged(0, "20GiB"):
            assert "GPU: 0\n" in old.status()
            assert "Task: (started by hand)\n" in old.status()
            assert "GPU: cuda1\n" in old.call("train.py a", code=0).stdout

    def test_a_task_runs_on_the_host_without_a_gpu(self, old: Old) -> None:
        for name in old.box.env:
            del old.env[name]
        assert "\nNone  True\n" in old.call("train.py a", "-v", code=0).stdout
        assert "GPU 2 is not there" in old.call("train.py a", "-fg", "2", code=2).stderr

    def test_a_task_writes_to_the_terminal_of_its_scheduler(self, old: Old) -> None:
        main, side = pty.openpty()
        try:
            with old.start("train.py a", stdin=side, stdout=side, stderr=side) as process:
                assert process.wait(PATIENCE) == 0
            assert b"trained a" in os.read(main, 4096)
        finally:
            os.close(main)
            os.close(side)


def holder_with_shim(pid: int) -> LeaseHolder:
    """Return the holder of a lease of task 7 of the user nobody, whose shim is this process."""
    return LeaseHolder(Lease("name", 65534, "3", 7, 1, pid, {}, {}), "nobody", 0)


@slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
class TestTwoUsers:
    @contract("S0-D2", "S0-19")
    def test_root_ends_a_task_of_another_user_and_is_told_so(self, tmp_path: Path) -> None:
        from scheduler.compat.schedule_gpus import _release

        with subprocess.Popen(["sleep", "60"], user=65534) as unmanaged_process:
            assert _release(2, holder_with_shim(unmanaged_process.pid)) == (
                "GPU 2: nobody's task 7 of run 3 is stopped by root's force; the GPU is free once its processes have "
                "ended"
            )
            assert unmanaged_process.wait(PATIENCE) == -signal.SIGTERM

    @fault(58)
    @contract("S0-19")
    def test_an_ordinary_user_cannot_end_a_task_of_another_user(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from scheduler.compat import schedule_gpus

        monkeypatch.setattr(schedule_gpus.os, "getuid", lambda: 1000)
        with subprocess.Popen(["sleep", "60"], user=65534) as unmanaged_process:
            said = schedule_gpus._release(2, holder_with_shim(unmanaged_process.pid))
            assert said.endswith("only nobody or root can end it, nothing was released")
            assert unmanaged_process.poll() is None
            unmanaged_process.kill()


class TestChoiceOfTool:
    @pytest.mark.parametrize(
        "argv",
        [["train.py foo --bar 5"], ["-s"], ["-rg", "0"], ["-i", "4"], ["a b", "-v"], ["-v", "a b"], ["--status"]],
    )
    def test_a_quoted_task_and_flags_of_the_one_shot_tool_choose_it(self, argv: list[str]) -> None:
        assert launcher.is_one_shot(argv)

    @pytest.mark.parametrize(
        "argv",
        [
            [],
            ["--csv", "my jobs.csv"],
            ["jobs.csv", "--num", "20"],
            ["-m", "off", "-n", "5"],
            ["jobs.csv", "--", "python train.py", "-v"],
        ],
    )
    def test_all_other_arguments_choose_the_list_tool(self, argv: list[str]) -> None:
        assert not launcher.is_one_shot(argv)

    def test_every_flag_of_the_one_shot_tool_chooses_it(self) -> None:
        flags = {flag for action in parser()._actions for flag in action.option_strings} - {"-h", "--help"}
        assert flags == {*launcher.ONE_SHOT}


@contract("S0-13")
def test_total_time_counts_hours_beyond_a_day() -> None:
    began = 1_700_000_000.0
    said = schedule_messages.verbose_end(["train.py"], ("out", ""), began, began + 25 * 3600 + 61)
    assert said[-1] == "total time: 25:01:01"
    assert said[2:4] == ["stdout: out", "stderr: sys.stderr"]


@fault(59)
@contract("S0-D2")
def test_files_of_a_run_are_private_and_its_leases_readable_by_all_users(tmp_path: Path) -> None:
    home = Old(tmp_path)
    try:
        with home.hold() as process:
            (lease,) = home.leases.glob("[0-9]*")
            assert stat.S_IMODE(lease.stat().st_mode) == 0o644
            assert stat.S_IMODE((home.state / "runs").stat().st_mode) == 0o700
            home.go()
            assert process.wait(PATIENCE) == 0
    finally:
        home.end()


IDIOMS = {
    "a number behind cuda": "print(opened(int(os.environ['GPU'][4:]), 1 << 30))",
    "CUDA_VISIBLE_DEVICES set by itself": "os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['GPU'][4:]; "
    "print(opened(0, 1 << 30))",
}
"""The ways in which scripts of the older tool open their GPU."""


@slow
@contract("S0-08")
@pytest.mark.parametrize("idiom", IDIOMS)
@pytest.mark.parametrize("gpu", range(4))
def test_the_gpu_that_the_variable_names_can_be_opened(old: Old, idiom: str, gpu: int) -> None:
    head = f"import os, sys\nsys.path.insert(0, {str(STANDIN)!r})\nfrom opens import opened"
    (old.root / "idiom.py").write_text(f"{head}\n{IDIOMS[idiom]}\n")
    out = old.call(f"{sys.executable} -S idiom.py", "-fg", str(gpu), code=0).stdout
    assert old.box.uuids[gpu] in out.split()
    assert [old.box.peak_used(other) > 0 for other in range(4)] == [other == gpu for other in range(4)]
