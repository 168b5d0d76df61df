"""`python scheduler.py`, as the batch-by-batch original was called."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.older_tools.contracts import contract
from tests.e2e.older_tools.simple_home import write_program
from tests.support.gpu_home import GpuHome, training
from tests.support.killing import ROOT, Home
from tests.support.standin.box import NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path, [sys.executable, str(ROOT / "scheduler.py")])
    yield made
    made.end()


@contract("S3-02")
def test_a_batch_has_twenty_rows_where_no_number_is_given(home: Home) -> None:
    home.call("--csv", home.commands(*["true"] * 21), "--mps", "off", code=0)
    home.command = [sys.executable, "-m", "scheduler"]
    assert [task["batch"] for task in home.tasks()] == [1] * 20 + [2]


@pytest.fixture
def mps_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHome]:
    """Yield a home with one GPU and MPS, whose list is one training; its paths are short, as MPS needs it."""
    made = GpuHome(tmp_path_factory.mktemp("m"), gpus=1)
    made.install_mps()
    made.command = [sys.executable, str(ROOT / "scheduler.py")]
    made.jobs(training(peak="1GiB", Memory="2GiB", seconds=0.1, epochs=1))
    yield made
    made.end()


@contract("S3-04")
@pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)
@pytest.mark.parametrize(("said", "daemons"), [*[(off, 0) for off in ("False", "0", "no", "off", "")], ("True", 1)])
def test_no_daemon_of_mps_starts_for_any_spelling_of_off(mps_home: GpuHome, said: str, daemons: int) -> None:
    mps_home.call("--csv", "jobs.csv", "--mps", said, code=0)
    assert len(mps_home.mps_notes("start")) == daemons


@contract("S3-02", "S3-05")
@pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)
def test_tasks_get_the_percentage_of_threads_under_mps_which_is_the_default(mps_home: GpuHome) -> None:
    mps_home.jobs({"Command": "sh -c 'echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE >share'", "Memory": "1GiB"})
    mps_home.call("--csv", "jobs.csv", "--threads_percentage", "37", code=0)
    assert len(mps_home.mps_notes("start")) == 1
    assert (mps_home.root / "share").read_text() == "37\n"


@contract("S3-03", "S3-05")
@pytest.mark.parametrize("flag", ["--thread_percentage", "--threads_percentage"])
def test_threads_percentage_without_mps_gets_a_hint_that_it_is_ignored(home: Home, flag: str) -> None:
    done = home.call("--csv", home.commands("true"), flag, "50", "--mps", "off", code=0)
    assert "--threads_percentage is ignored, because MPS is off" in done.stderr


@contract("S3-05")
@pytest.mark.parametrize(("said", "used"), [("150", "100"), ("-5", "1"), ("0", "1")])
def test_threads_percentage_outside_of_its_range_is_clamped_and_named(home: Home, said: str, used: str) -> None:
    done = home.call("--csv", home.commands("true"), "--threads_percentage", said, code=0)
    assert f"--threads_percentage {said} is outside of 1 to 100: {used} is used" in done.stderr


@contract("S3-05")
def test_threads_percentage_within_its_range_is_used_without_a_hint(home: Home) -> None:
    assert "outside" not in home.call("--csv", home.commands("true"), "--threads_percentage", "50", code=0).stderr


@contract("S3-02", "S3-28")
def test_flags_can_be_abbreviated_and_a_missing_file_is_named(home: Home) -> None:
    home.call("--cs", home.commands("true", "true"), "--nu", "1", "--mps", "off", code=0)
    done = home.call("-c", "gone.csv", "-n", "3", "--mps", "off", code=2)
    assert "gone.csv" in done.stderr
    assert done.stderr.count("\n") == 1


@contract("S3-26")
@pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)
@pytest.mark.parametrize("mps", ["on", "off"])
def test_nothing_is_run_with_sudo_or_bash(mps_home: GpuHome, mps: str) -> None:
    programs = mps_home.root / "programs"
    programs.mkdir()
    for name in ("sudo", "bash"):
        write_program(programs / name, f'touch {mps_home.root}/called; exec "$@"')
    mps_home.env["PATH"] = f"{programs}:{mps_home.env['PATH']}"
    mps_home.call("--csv", "jobs.csv", "--mps", mps, code=0)
    assert len(mps_home.mps_notes("start")) == (mps == "on")
    assert not (mps_home.root / "called").exists()


@contract("S3-23", "S3-24", "S3-D2", "S3-D3")
def test_starts_and_ends_are_printed_and_output_is_written_as_it_arrives(home: Home) -> None:
    much = "head -c 300000 /dev/zero"  # a pipe would take 65536 bytes
    file = home.commands(f"sh -c 'echo loud; until [ -e go ]; do sleep 0.01; done; {much}'", "true")
    with home.start("--csv", file, "--mps", "off", "-j", "1") as run:
        log = home.state / "runs/1/tasks/0/1.log"
        wait_until(lambda: log.exists() and log.read_text() == "loud\n", 60)
        (home.root / "go").touch()
        assert run.wait(60) == 0
    assert log.stat().st_size == len("loud\n") + 300_000
    assert "start        0" in home.log()
    assert "done         1" in home.log()
