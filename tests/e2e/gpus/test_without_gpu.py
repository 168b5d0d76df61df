"""Tasks that never touch a GPU, on a machine that has one: they run on the host beside it, and may touch it later."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.model import HOST
from tests.support.gpu_home import GpuHome, Row, Try, holding, training
from tests.support.standin.box import NO_COMPILER, TRAIN

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

GIB = 1 << 30
Machine = Callable[..., GpuHome]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Yield a function that makes a machine with GPUs."""
    made: list[GpuHome] = []

    def make(**how: Any) -> GpuHome:
        made.append(GpuHome(tmp_path, **how))
        return made[-1]

    yield make
    for home in made:
        home.end()


def without(**said: object) -> Row:
    """Return a task that uses no GPU, whatever it sees."""
    return training(**{"seconds": 0.8, **said})


def homes(tries: list[Try]) -> list[str]:
    """Return where each attempt was placed."""
    return [f"GPU {one.gpus[0]}" if one.gpus else HOST for one in tries]


class TestMeasurement:
    def test_class_that_never_used_its_gpu_runs_on_the_host_from_its_second_attempt(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(*[without()] * 4)
        first = home.run("-j", "1")
        assert homes(first) == ["GPU 0", HOST, HOST, HOST]
        assert first[0].exited is not None
        assert first[0].exited.peak[home.box.uuids[0]] == 0
        home.run()
        assert {one.source for one in home.tries(2)} == {"profile"}
        assert homes(home.tries(2)) == [HOST] * 4
        tasks = json.loads(home.call("results", "--json").stdout)["tasks"]
        assert {(task["device"], task["source"]) for task in tasks} == {("host", "profile")}

    @pytest.mark.parametrize("fault", ["hidden", "host_pids", "memory_na"])
    def test_gpu_whose_processes_are_unknown_proves_no_absence(self, machine: Machine, fault: str) -> None:
        home = machine(gpus=1)
        home.box.set(0, **{fault: 1})
        home.jobs(*[training(peak="300MiB", profile="flat", seconds=0.8)] * 2)
        for run in (1, 2):
            home.run("-j", "1")
            assert homes(home.tries(run)) == ["GPU 0"] * 2

    def test_row_that_asks_for_a_gpu_gets_one_whatever_its_profile_says(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(without(), without(GPUs=1), without(Memory="1GiB"))
        home.run("-j", "1")
        home.run("-j", "1")
        assert homes(home.tries(2)) == [HOST, "GPU 0", "GPU 0"]

    def test_task_that_failed_before_it_could_use_a_gpu_is_not_known_to_need_none(self, machine: Machine) -> None:
        home = machine(gpus=1)
        (home.root / "wrong.py").write_text("import time; time.sleep(0.8); raise SystemExit(3)")
        home.jobs(*[training("wrong.py")] * 3)
        assert homes(home.run("-j", "1", code=1)) == ["GPU 0"] * 3


class TestLateUse:
    def test_task_on_the_host_that_uses_a_gpu_after_all_is_reserved_what_it_uses(self, machine: Machine) -> None:
        home = machine(gpus=2)
        row = training("sometimes.py", take="3GiB")
        (home.root / "sometimes.py").write_text(SOMETIMES)
        home.jobs(row)
        home.run()
        home.run()
        assert homes([*home.tries(1), *home.tries(2)]) == ["GPU 0", HOST]
        (home.root / "touch").touch()
        home.run()
        (late,) = home.tries(3)
        assert (homes([late]), late.outcome, late.causes[0]) == ([HOST], "succeeded", "touched")
        assert late.reservation["0"] > 3 * GIB
        home.run()
        (known,) = home.tries(4)
        assert (homes([known]), known.source) == (["GPU 0"], "profile")
        assert known.first["0"] > 3 * GIB


class TestFirstRun:
    def test_second_task_of_a_class_starts_while_the_first_one_rests_and_the_rest_after_its_end(
        self, machine: Machine
    ) -> None:
        home = machine(gpus=1)
        home.jobs(*[{"Command": "sleep 2", "CPUs": 0.1}] * 6)
        first, second, *others = home.run()
        assert homes([first, second, *others]) == ["GPU 0", *[HOST] * 5]
        assert first.causes == ["resting"]
        assert second.placed < first.placed + 1.5
        assert min(one.placed for one in others) >= first.ended
        assert max(one.placed for one in others) < first.ended + 1.5, "all that the cores allow start together"

    def test_unknown_task_starts_beside_one_whose_epochs_pass_without_the_gpu(self, machine: Machine) -> None:
        home = machine(gpus=1)
        (home.root / "epochs.py").write_text(EPOCHS)
        home.jobs(training("epochs.py", Priority=1), training(peak="3GiB", seconds=1, Priority=2))
        working, other = home.run()
        assert working.causes == ["without"]
        assert working.reservation["0"] == 6 * GIB
        assert (other.gpus, other.outcome) == ((0,), "succeeded")
        assert other.placed < working.ended
        assert other.first["0"] < 18 * GIB

    def test_task_that_uses_its_gpu_late_takes_no_memory_of_its_neighbour(self, machine: Machine) -> None:
        home = machine(gpus=1)
        (home.root / "late.py").write_text(LATE)
        home.jobs(training("late.py", take="5GiB", Priority=1), holding("16GiB", Priority=2))
        with home.going():
            home.wait_for_use(0, 16 * GIB)
            said = home.call("why", "0").stdout
            assert "is running on host (it sees GPU 0, and has used no GPU so far) since" in said, said
            home.go("touch")
            home.wait_for_use(0, 21 * GIB)
            home.wait_for_words("uses GPU 0 after all")
            home.go()
        late, other = home.tries()
        assert (late.outcome, other.outcome, home.box.ooms(0)) == ("succeeded", "succeeded", 0)
        assert late.causes[:2] == ["resting", "touched"]
        assert 5 * GIB <= late.reservation["0"] <= 24 * GIB - other.first["0"]

    def test_process_that_no_lease_owns_may_do_the_work_of_a_task(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(without(seconds=2), without(seconds=2))
        with home.going():
            home.wait_for(1)
            home.box.unmanaged(0, "100MiB")
        assert homes(home.tries()) == ["GPU 0"] * 2

    def test_view_and_results_say_that_a_task_uses_no_gpu(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs({"Command": "sleep 1.2"}, {"Command": "sleep 0.25"})
        home.run("-j", "1")
        assert "has used no GPU so far, and counts as a task of the host; a part of GPU 0 stays reserved" in home.log()
        assert "used no GPU  [2/2]" in home.log()
        tasks = json.loads(home.call("results", "--json").stdout)["tasks"]
        assert [(task["device"], task["gpus"]) for task in tasks] == [("host", 0), ("GPU 0", 1)]
        assert (tasks[0]["peak_bytes"] > 0, tasks[1]["peak_bytes"]) == (True, 0)


class TestMps:
    @pytest.fixture
    def home(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHome]:
        """Yield a machine with MPS; its paths are short, as the sockets of MPS need it."""
        home = GpuHome(tmp_path_factory.mktemp("m"), gpus=1)
        home.install_mps()
        yield home
        home.end()

    def test_task_on_the_host_that_uses_the_gpu_after_all_is_a_client(self, home: GpuHome) -> None:
        (home.root / "late.py").write_text(LATE)
        home.jobs(training("late.py", take="3GiB"))
        home.go()
        home.run("--mps")
        assert homes(home.tries()) == ["GPU 0"]
        (home.root / "go").unlink()
        with home.going("--mps"):
            home.go("touch")
            home.wait_for_clients(1)
            home.go()
        (late,) = home.tries(2)
        assert (homes([late]), late.causes[0]) == ([HOST], "touched")
        assert [task["mps"] for task in home.tasks()] == ["client"]

    def test_client_without_memory_that_is_listed_uses_its_gpu(self, home: GpuHome) -> None:
        home.jobs(*[holding()] * 2)
        with home.going("--mps"):
            home.wait_for_clients(1)
            home.go()
        assert homes(home.tries()) == ["GPU 0"] * 2


LATE = f"""
import os, sys, time
sys.path.insert(0, {str(TRAIN.parent)!r})
import client
from train import options, size
while not os.path.exists("touch") and not os.path.exists("go"):
    time.sleep(1)
if os.path.exists("touch"):
    cuda = client.Cuda()
    cuda.allocate(0, size(options(sys.argv[1:])["take"]))
while not os.path.exists("go"):
    time.sleep(0.05)
time.sleep(0.8)
"""
"""Rests until there is a file `touch`, takes memory of its GPU, and waits for a file `go`; without the first it only
waits.
"""
EPOCHS = """
import time
for epoch in range(1, 31):
    time.sleep(0.1)
    sum(range(100_000))
    print(f"epoch {epoch}/30", flush=True)
"""
SOMETIMES = f"""
import os, sys, time
sys.path.insert(0, {str(TRAIN.parent)!r})
import client
from train import options, size
time.sleep(0.5)
if os.path.exists("touch"):
    client.Cuda().allocate(0, size(options(sys.argv[1:])["take"]))
time.sleep(0.8)
"""
"""A script that takes memory of its GPU only if a file `touch` exists."""
