"""Power limits on GPUs: set for a run, shared by runs, and restored, also after a kill."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import fault
from tests.support.gpu_home import GpuHome, holding, training
from tests.support.standin.box import NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may set power limits"),
]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GpuHome]:
    made = GpuHome(tmp_path, gpus=2)
    made.install_mps()  # nvidia-smi comes with it
    yield made
    made.end()


def limits(home: GpuHome) -> list[str]:
    """Return the limits that were ever set, the last one of each GPU."""
    return [path.read_text() for path in sorted(home.box.file.parent.glob("power*"))]


def test_power_limit_lasts_as_long_as_the_run(home: GpuHome) -> None:
    home.jobs(holding("1GiB", Memory="2GiB"))
    with home.going("--power-cap", "250W"):
        home.wait_for(1)
        assert limits(home) == ["250", "250"]
        home.go()
    assert limits(home) == ["300", "300"]
    assert not [*home.leases.glob("power.*")]


@fault(200)
@pytest.mark.parametrize("how", ["run", "doctor", "resume"])
def test_power_limit_of_a_killed_run_is_restored(home: GpuHome, how: str) -> None:
    home.jobs(holding("1GiB", Memory="2GiB"))
    with home.start("run", "jobs.csv", "--power-cap", "250") as scheduler:
        home.wait_for(1)
        scheduler.kill()
    home.go()
    wait_until(lambda: home.box.used(0) == 0, 30)
    assert limits(home) == ["250", "250"]
    if how == "doctor":
        home.call("doctor", "--clean")
    elif how == "resume":
        home.call("resume", code=0)
    else:
        home.write("others.csv", "Command", ["true"])
        home.call("run", "others.csv", code=0)
    assert limits(home) == ["300", "300"]


def test_runs_share_a_limit_and_another_one_is_refused(home: GpuHome) -> None:
    home.jobs(holding("1GiB", Memory="2GiB", until="go"))
    home.write("others.csv", "Command", ["true"])
    with home.going("--power-cap", "250W", "--devices", "0"):
        home.wait_for(1)
        home.call("run", "others.csv", "--power-cap", "250W", "--devices", "0", code=0)
        assert limits(home) == ["250"], "the first run still wants it"
        said = home.call("run", "others.csv", "--power-cap", "200W", "--devices", "0", "--new", code=2).stderr
        assert "GPU 0 is limited to 250 W by another run: use the same cap, or wait for it" in said
        home.go()
    assert limits(home) == ["300"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--power-cap", "much"], "--power-cap much: write watts, such as 250W"),
        (["--power-cap", "900W"], "GPU 0 can be limited to 100 W to 350 W, not to 900 W"),
        (["--power-cap", "250W", "--devices", "host"], "--power-cap: this run has no GPU"),
    ],
    ids=["no number", "beyond the range", "no GPU"],
)
def test_power_limit_that_is_impossible_is_refused_before_anything_starts(
    home: GpuHome, flags: list[str], words: str
) -> None:
    home.jobs(training(peak="1GiB"))
    assert words in home.call("run", "jobs.csv", *flags, code=2).stderr
    assert not limits(home)


def test_gpu_that_ignores_the_limit_stops_the_run_with_the_reason(home: GpuHome) -> None:
    (home.box.file.parent / "deaf").touch()
    home.jobs(training(peak="1GiB"))
    said = home.call("run", "jobs.csv", "--power-cap", "250W", code=2).stderr
    assert "could not be set to 250 W" in said
    assert not home.tries()


@fault(200)
def test_note_of_another_user_is_neither_read_nor_restored(home: GpuHome) -> None:
    home.leases.mkdir(mode=0o700, exist_ok=True)
    note = home.leases / "power.planted"
    note.write_text(f"100 {home.box.uuids[0]}\n")
    os.chown(note, 65534, 65534)
    home.commands("true")
    home.call("run", "jobs.csv", code=0)
    assert not limits(home)
    assert note.exists()
