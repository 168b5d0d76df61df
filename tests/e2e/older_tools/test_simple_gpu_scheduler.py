"""The older tool that runs lines of standard input on GPUs: its documents as written, and its contract."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.compat.simple_gpu_scheduler import slots
from scheduler.errors import UsageError
from scheduler.inputs.lines import LONGEST
from tests.e2e.older_tools.contracts import contract
from tests.e2e.older_tools.simple_home import SimpleHome
from tests.support.killing import is_alive, kill
from tests.support.standin.box import NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

PATIENCE = 60.0
WHERE = "on gpu "
COMMANDS = """\
python train_model.py --lr 0.001 --output run_1
python train_model.py --lr 0.0005 --output run_2
python train_model.py --lr 0.0001 --output run_3
"""
GRID = (
    'simple_hypersearch "python3 train_dnn.py --lr {lr} --batch_size {bs}" '
    "-p lr 0.001 0.0005 0.0001 -p bs 32 64 128 | simple_gpu_scheduler --gpus 0,1,2"
)
SAMPLES = (
    'simple_hypersearch "python3 train_dnn.py --lr {lr} --batch_size {bs}" --n-samples 5 '
    "-p lr 0.001 0.0005 0.0001 -p bs 32 64 128 | simple_gpu_scheduler --gpus 0,1,2"
)
QUEUE = "touch gpu.queue\ntail -f -n 0 gpu.queue | simple_gpu_scheduler --gpus 0,1,2"
SUBMIT = 'echo "my_command_with | and stuff > logfile" >> gpu.queue'


@pytest.fixture
def home(tmp_path: Path) -> Iterator[SimpleHome]:
    made = SimpleHome(tmp_path)
    yield made
    made.end()


def processing(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith("Processing command `")]


def gpus_of(out: str) -> list[str]:
    """Return the GPUs in the order in which they were taken."""
    return [line.rpartition(WHERE)[2] for line in processing(out)]


class TestDocuments:
    """The blocks of its README and of the article about it."""

    @contract("S1-03", "S1-06", "S1-10")
    def test_the_simple_example_of_the_readme_runs(self, home: SimpleHome) -> None:
        (home.root / "gpu_commands.txt").write_text(COMMANDS)
        assert home.bash("cat gpu_commands.txt").stdout == COMMANDS
        said = home.bash("simple_gpu_scheduler --gpus 0 1 2 < gpu_commands.txt").stdout
        assert said == (
            "Processing command `python train_model.py --lr 0.001 --output run_1` on gpu 2\n"
            "Processing command `python train_model.py --lr 0.0005 --output run_2` on gpu 1\n"
            "Processing command `python train_model.py --lr 0.0001 --output run_3` on gpu 0\n"
        )
        assert sorted(home.lines_of("trained")) == [
            "0 train_model.py --lr 0.0001 --output run_3",
            "1 train_model.py --lr 0.0005 --output run_2",
            "2 train_model.py --lr 0.001 --output run_1",
        ]

    def test_help_names_the_flags(self, home: SimpleHome) -> None:
        assert "--gpus GPU [GPU ...]" in home.bash("simple_gpu_scheduler -h").stdout
        assert "--n-samples" in home.bash("simple_hypersearch -h").stdout

    @contract("S1-13", "H-02")
    def test_the_example_of_a_whole_grid_runs(self, home: SimpleHome) -> None:
        said = home.bash(GRID).stdout
        every = {
            f"train_dnn.py --lr {lr} --batch_size {bs}" for lr in ("0.001", "0.0005", "0.0001") for bs in (32, 64, 128)
        }
        assert len(processing(said)) == len(home.lines_of("trained")) == 9
        assert {line.partition(" ")[2] for line in home.lines_of("trained")} == every

    @contract("H-02")
    def test_the_example_of_five_random_configurations_runs(self, home: SimpleHome) -> None:
        home.bash(SAMPLES)
        assert len({line.partition(" ")[2] for line in home.lines_of("trained")}) == 5

    @contract("S1-08", "S1-12")
    def test_the_example_of_a_queue_that_grows_runs(self, home: SimpleHome) -> None:
        home.bash("echo 'touch before' > gpu.queue")
        home.bash("printf '#!/bin/sh\\necho with pipe\\n' > bin/my_command_with; chmod +x bin/my_command_with")
        home.bash("printf '#!/bin/sh\\ntr a-z A-Z\\n' > bin/and; chmod +x bin/and")
        with home.starting(QUEUE, stdout=subprocess.PIPE) as queue:
            wait_until(lambda: tails(home), PATIENCE)
            home.bash(SUBMIT)
            wait_until(lambda: home.lines_of("logfile") == ["WITH PIPE"], PATIENCE)
            home.bash("echo 'touch more' >> gpu.queue")
            wait_until((home.root / "more").exists, PATIENCE)
            assert queue.poll() is None
            assert [kill(pid) for pid in tails(home)] == [True]
            said = queue.communicate(timeout=PATIENCE)[0]
        assert not (home.root / "before").exists()
        assert processing(said)[0] == "Processing command `my_command_with | and stuff > logfile` on gpu 2"


def tails(home: SimpleHome) -> list[int]:
    """Return the processes that follow the queue and have opened it."""
    queue = str(home.root / "gpu.queue")
    return [pid for pid in home.living() if (b"tail" in line_of(pid)) and queue in files_of(pid)]


def line_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
    except OSError:
        return b""


def files_of(pid: int) -> set[str]:
    try:
        return {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return set()


class TestSlots:
    @contract("S1-03")
    @pytest.mark.parametrize(
        ("said", "found"),
        [
            (["0", "1", "2"], "slots:2;1;0"),
            (["0,1,2"], "slots:2;1;0"),
            (["0,1", "2,3"], "slots:2,3;0,1"),
            (["0,1", "2"], "slots:2;0,1"),
            (["0,0,1,1"], "slots:1;1;0;0"),
            (["0, 1"], "slots:1;0"),
            (["a", ""], "slots:;a"),
        ],
    )
    def test_one_value_of_gpus_is_split_at_commas_and_several_are_not(self, said: list[str], found: str) -> None:
        assert slots(said) == found

    def test_an_ambiguous_name_of_a_gpu_is_refused(self) -> None:
        with pytest.raises(UsageError, match="semicolon"):
            slots(["a;b"])

    @contract("S1-03")
    def test_each_command_can_have_two_gpus(self, home: SimpleHome) -> None:
        home.plug(gpus=4)
        out = home.feed("echo $CUDA_VISIBLE_DEVICES\n", "0,1", "2,3").stdout
        assert out.splitlines() == ["Processing command `echo $CUDA_VISIBLE_DEVICES` on gpu 2,3", "2,3"]

    @contract("S1-04")
    def test_a_gpu_listed_twice_has_two_slots(self, home: SimpleHome) -> None:
        together = "touch here.$SCHEDULER_TASK_ID; until [ $(ls here.* | wc -l) = 4 ]; do sleep 0.01; done\n"
        assert gpus_of(home.feed(together * 4, "0,0,1,1").stdout) == ["1", "1", "0", "0"]

    @contract("S1-05")
    def test_a_gpu_may_have_any_name_without_its_blanks(self, home: SimpleHome) -> None:
        home.feed("echo $CUDA_VISIBLE_DEVICES >> told\n", "a")
        home.feed("echo $CUDA_VISIBLE_DEVICES >> told\n", home.box.uuids[1])
        home.feed("echo =$CUDA_VISIBLE_DEVICES= >> told\n" * 2, "0, 1")
        home.feed("echo =$CUDA_VISIBLE_DEVICES= >> told\n", "")
        told = home.lines_of("told")
        assert (told[:2], sorted(told[2:4]), told[4:]) == (["a", home.box.uuids[1]], ["=0=", "=1="], ["=="])

    def test_a_number_that_no_gpu_has_is_refused_at_once(self, home: SimpleHome) -> None:
        done = home.bash("echo touch ran | simple_gpu_scheduler --gpus 0 7", code=2)
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
        assert "there is no GPU 7 here: this machine has 0, 1, 2" in done.stderr
        assert not (home.root / "ran").exists()

    @contract("S1-06")
    def test_the_gpu_that_came_free_last_is_taken_next(self, home: SimpleHome) -> None:
        first = "until [ -e go.1 ]; do sleep 0.01; done; touch went.1\n"
        lines = first + "touch b; until [ -e went.1 ]; do sleep 0.01; done; until [ -e go.2 ]; do sleep 0.01; done\n"
        os.mkfifo(home.root / "later")  # before `cat` opens it, which would fail, and this test would wait for a reader
        with home.starting(f"cat > lines <<'E'\n{lines}E\n(cat lines; cat later) | simple_gpu_scheduler --gpus 0 1 2",
                           stdout=subprocess.PIPE) as process:  # fmt: skip
            with open(home.root / "later", "w") as later:
                wait_until((home.root / "b").exists, PATIENCE)
                (home.root / "go.1").touch()
                wait_until(lambda: home.log().count("done ") == 1, PATIENCE)
                later.write("true\n")
                later.flush()
                wait_until(lambda: home.log().count("done ") == 2, PATIENCE)
                (home.root / "go.2").touch()
                wait_until(lambda: home.log().count("done ") == 3, PATIENCE)
                later.write("true\ntrue\n")
            out = process.communicate(timeout=PATIENCE)[0]
        assert gpus_of(out)[:4] == ["2", "1", "2", "1"]


class TestCommands:
    @contract("S1-01")
    def test_gpus_is_the_only_option(self, home: SimpleHome) -> None:
        for flag in ("--gpus", "--gpu", "--g"):
            assert home.bash(f"echo true | simple_gpu_scheduler {flag} 1").stdout.endswith("on gpu 1\n")
        for wrong in ("", "--gpus", "--version", "--gpus 0 --nonsense"):
            assert "usage: simple_gpu_scheduler" in home.bash(f"simple_gpu_scheduler {wrong}", code=2).stderr

    @contract("S1-02")
    def test_main_can_be_called_from_python(self, home: SimpleHome) -> None:
        call = "import sys; from scheduler.compat.simple_gpu_scheduler import main; sys.exit(main(sys.argv[1:]))"
        said = home.bash(f"echo exit 3 | {sys.executable} -c '{call}' --gpus 0", code=1)
        assert said.stdout == "Processing command `exit 3` on gpu 0\n"

    @contract("S1-07", "S1-08")
    def test_commands_are_read_by_a_shell(self, home: SimpleHome) -> None:
        home.feed("echo $0 'a b' | tr a-z A-Z > out && X=$CUDA_VISIBLE_DEVICES sh -c 'echo $X >> out'\n", "2")
        assert home.lines_of("out") == ["/BIN/SH A B", "2"]

    @contract("S1-09")
    def test_commands_get_the_callers_environment_and_their_gpu(self, home: SimpleHome) -> None:
        home.env |= {"CUDA_VISIBLE_DEVICES": "1,2", "MINE": "kept"}
        home.feed("echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $MINE $(pwd) > out\n", "0")
        assert home.lines_of("out") == [f"0 PCI_BUS_ID kept {home.root}"]

    @contract("S1-10")
    def test_the_line_comes_before_the_commands_own_output_and_at_once(self, home: SimpleHome) -> None:
        with home.starting(
            "cat | simple_gpu_scheduler --gpus 0", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as door:
            assert door.stdin
            assert door.stdout
            door.stdin.write("echo out; until [ -e go ]; do sleep 0.01; done\n")
            door.stdin.flush()
            line = door.stdout.readline()
            assert line == "Processing command `echo out; until [ -e go ]; do sleep 0.01; done` on gpu 0\n"
            assert door.stdout.readline() == "out\n"
            (home.root / "go").touch()
            door.communicate(timeout=PATIENCE)

    @contract("S1-11")
    def test_commands_write_to_the_streams_of_the_scheduler(self, home: SimpleHome) -> None:
        home.bash("echo 'echo out; echo err >&2' | simple_gpu_scheduler --gpus 0 > out 2> err")
        assert (home.lines_of("out")[1:], home.lines_of("err")) == (["out"], ["err"])
        assert [*home.state.glob("runs/1/tasks/*/*")] == []

    @contract("S1-13", "S1-14", "S1-16", "S1-D2")
    def test_a_failed_command_stops_nothing_and_is_named_at_the_end(self, home: SimpleHome) -> None:
        done = home.feed("exit 3\nno_such_program\ntrue\ntouch end\n", "0", code=1)
        assert len(processing(done.stdout)) == 4
        assert (home.root / "end").exists()
        assert "2 of 4 commands failed (scheduler list r1 shows all)" in done.stderr
        assert "line 1: `exit 3` on gpu 0: exit 3" in done.stderr
        assert "line 2: `no_such_program` on gpu 0: exit 127" in done.stderr

    @contract("S1-15")
    def test_blank_lines_and_comments_are_no_commands(self, home: SimpleHome) -> None:
        assert processing(home.feed("\n# no\n   \ntrue\n").stdout) == ["Processing command `true` on gpu 2"]

    @contract("S1-17")
    def test_background_processes_of_a_command_live_on_and_keep_its_lease(self, home: SimpleHome) -> None:
        with home.starting("cat | simple_gpu_scheduler --gpus 0", stdin=subprocess.PIPE) as door:
            assert door.stdin
            door.stdin.write("sh -c 'echo $$ > pid; until [ -e go ]; do sleep 0.01; done' &\ntouch next\n")
            door.stdin.flush()
            wait_until((home.root / "next").exists, PATIENCE)
            pid = int(wait_until(lambda: home.lines_of("pid"), PATIENCE)[0])
            door.communicate(timeout=PATIENCE)
        assert is_alive(pid)
        assert [path.name.split(".")[2] for path in home.leases.glob("*.*.*.*")] == ["0"]
        (home.root / "go").touch()

    @contract("S1-18")
    def test_each_line_is_one_command(self, home: SimpleHome) -> None:
        home.feed("echo a \\\n b > out\n", "0", code=1)
        assert len(home.tasks()) == 2

    @contract("S1-19")
    def test_commands_may_contain_any_bytes(self, home: SimpleHome) -> None:
        home.feed("printf '%s' \udcff\udcfeé | od -An -tx1 > out\r\n", "0")
        assert home.lines_of("out") == [" ff fe c3 a9"]

    def test_bytes_of_commands_are_printed_as_they_are(self, home: SimpleHome) -> None:
        said = home.bash(r"printf 'true \377\n' | simple_gpu_scheduler --gpus 0").stdout
        assert said == "Processing command `true \udcff` on gpu 0\n"
        home.call("list", code=0)
        home.call("results", "--json", code=0)

    @contract("S1-D1")
    def test_no_command_reads_the_lines_of_the_queue(self, home: SimpleHome) -> None:
        home.feed("cat\n" + "echo >> ran\n" * 60)
        assert len(home.lines_of("ran")) == 60
        with home.starting("cat | simple_gpu_scheduler --gpus 0", stdin=subprocess.PIPE) as door:
            assert door.stdin
            door.stdin.write("cat >eaten; touch over\n")
            door.stdin.flush()
            wait_until((home.root / "over").exists, PATIENCE)  # it would wait here for lines of the queue
            door.communicate("touch last\n", timeout=PATIENCE)
        assert (home.root / "last").exists()
        assert (home.root / "eaten").read_text() == ""

    @contract("S1-D3")
    def test_a_command_that_is_too_long_fails_alone(self, home: SimpleHome) -> None:
        done = home.feed(f"echo {'x' * LONGEST}\ntouch next\n", "0", code=1)
        assert (home.root / "next").exists()
        assert "line 1: `echo xxx" in done.stderr
        assert "/bin/sh: Argument list too long" in done.stderr


class TestEnd:
    @contract("S1-20")
    def test_ctrl_c_lets_running_commands_end_and_starts_no_more(self, home: SimpleHome) -> None:
        (home.root / "lines").write_text("touch here; until [ -e go ]; do sleep 0.01; done; touch end\ntouch second\n")
        with home.start("simple-gpu-scheduler", "--gpus", "0", stdin=open(home.root / "lines")) as door:
            wait_until((home.root / "here").exists, PATIENCE)
            wait_until(lambda: "added" in home.log() or len(home.tasks()) == 2, PATIENCE)
            door.send_signal(signal.SIGINT)
            wait_until(lambda: "nothing more is started" in home.log(), PATIENCE)
            (home.root / "go").touch()
            assert door.wait(PATIENCE) == 130
        assert (home.root / "end").exists()
        assert not (home.root / "second").exists()
        home.call("resume", code=0)
        assert (home.root / "second").exists()

    @contract("S1-D4")
    def test_no_command_is_lost_when_the_scheduler_is_killed(self, home: SimpleHome) -> None:
        (home.root / "lines").write_text("touch here; until [ -e go ]; do sleep 0.01; done; touch end\ntouch second\n")
        with home.start("simple-gpu-scheduler", "--gpus", "0", stdin=open(home.root / "lines")) as door:
            wait_until((home.root / "here").exists, PATIENCE)
            wait_until(lambda: len(home.tasks()) == 2, PATIENCE)
            door.kill()
            door.wait(PATIENCE)
        (home.root / "go").touch()
        home.call("resume", code=0)
        assert (home.root / "end").exists()
        assert (home.root / "second").exists()

    def test_commands_run_after_the_reader_of_the_output_has_gone(self, home: SimpleHome) -> None:
        home.bash("yes 'echo out >> ran' | head -50 | simple_gpu_scheduler --gpus 0,1,2 | head -1", code=None)
        wait_until(lambda: len(home.lines_of("ran")) == 50, PATIENCE)

    def test_an_empty_standard_input_is_no_failure(self, home: SimpleHome) -> None:
        assert home.bash("simple_gpu_scheduler --gpus 0 < /dev/null").stdout == ""


class TestBesideOthers:
    @contract("S1-D5", "S1-D6")
    def test_the_named_gpus_are_leased_and_all_commands_are_listed(self, home: SimpleHome) -> None:
        with home.starting("cat | simple_gpu_scheduler --gpus 1", stdin=subprocess.PIPE) as door:
            assert door.stdin
            door.stdin.write("touch here; until [ -e go ]; do sleep 0.01; done\n")
            door.stdin.flush()
            wait_until((home.root / "here").exists, PATIENCE)
            held = [path.read_text(errors="replace") for path in home.leases.glob("*.*.*.*")]
            assert home.states() == ["running"]
            (home.root / "go").touch()
            door.communicate(timeout=PATIENCE)
        assert len(held) == 1
        assert home.box.uuids[1] in held[0]
        (task,) = home.tasks()
        assert task["state"] == "succeeded"
        assert task["line"] == "touch here; until [ -e go ]; do sleep 0.01; done"

    def test_memory_of_unmanaged_processes_keeps_no_slot_empty(self, home: SimpleHome) -> None:
        home.box.unmanaged(0, "20GiB")
        home.feed("touch ran\n", "0")
        assert (home.root / "ran").exists()
