"""Whole runs on stand-in GPUs, by the command line and with real processes: faults and reservations."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.older_tools.contracts import contract
from tests.support.faults import fault
from tests.support.gpu_home import (
    PATIENCE,
    GpuHome,
    Row,
    Try,
    gaps,
    holding,
    most_reserved,
    training,
)
from tests.support.standin.box import GPU_IS_LOST, NO_COMPILER, TRAIN
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

GIB = 1 << 30
Machine = Callable[..., GpuHome]

BROKEN: dict[str, tuple[dict[str, int], str]] = {
    "lost": ({"error": GPU_IS_LOST}, "GPU 1 is lost (it has fallen off the bus)"),
    "erring": ({"error": 999}, "GPU 1 cannot be read (nvmlDevice"),
    "crashing": ({"crash": signal.SIGSEGV}, "GPU 1 crashes the NVIDIA library (SIGSEGV in nvmlDevice"),
    "hanging": ({"hang": 1}, "GPU 1 does not answer: nvmlDevice"),
}
"""Faults, and the run's sentences about them."""
DIM: dict[str, dict[str, int]] = {
    "slow": {"slow": 20},
    "no memory of processes": {"memory_na": 1},
    "no processes": {"hidden": 1},
    "pids of the host": {"host_pids": 1},
    "memory that lingers": {"linger": 700},
    "processes that linger": {"linger": 700, "linger_listed": 1},
}
"""Faults that leave a GPU usable."""

MIXED = ("NVIDIA Stand-in A", "NVIDIA Stand-in B", "NVIDIA Stand-in C", "NVIDIA Stand-in D")
ALLOWED: dict[str, tuple[dict[str, str], dict[str, Any], list[int]]] = {
    "numbers": ({"CUDA_VISIBLE_DEVICES": "2,5"}, {}, [2, 5]),
    "numbers in another order": (
        {"CUDA_VISIBLE_DEVICES": "2,5", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        {"cuda_order": [7, 6, 5, 4, 3, 2, 1, 0], "pci_order": [3, 1, 4, 0, 7, 2, 6, 5]},
        [4, 2],
    ),
    "UUIDs": ({"CUDA_VISIBLE_DEVICES": ""}, {"cuda_order": [7, 6, 5, 4, 3, 2, 1, 0]}, [5, 2]),
    "Slurm": ({"SLURM_STEP_GPUS": "2,5"}, {}, [2, 5]),
}
"""The shell's variables, the order of the GPUs, and the GPUs that these mean, in their order."""

EDGE = f"""
import os, sys, time
sys.path.insert(0, {str(TRAIN.parent)!r})
import client
cuda = client.Cuda()
cuda.allocate(0, 22 << 30)
while not os.path.exists("go"):
    time.sleep(0.01)
time.sleep(1)
sys.exit("RuntimeError: CUDA error: out of memory")
"""
"""A script that uses nearly all of a GPU, and runs out of memory a second after there is a file `go`."""


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


def whole(seconds: float = 0.4) -> Row:
    """Return a task beside which no other one fits on a GPU."""
    return training(peak="20GiB", Memory="20GiB", seconds=seconds, busy=0.1, epochs=2)


def outcomes(tries: list[Try]) -> set[str]:
    return {one.outcome for one in tries}


def in_the_end(tries: list[Try]) -> set[str]:
    """Return the outcomes of the last attempts of all tasks."""
    return {one.outcome for one in {one.task: one for one in tries}.values()}


class TestFaults:
    @fault(31, 32, 33)
    @pytest.mark.parametrize("fault", BROKEN)
    def test_broken_gpu_gets_no_task_and_the_others_go_on(self, machine: Machine, fault: str) -> None:
        switches, reason = BROKEN[fault]
        home = machine(gpus=3)
        first = holding("20GiB", until="first", Memory="20GiB")
        home.jobs(*[first] * 3, *[whole()] * (16 if fault == "hanging" else 6), holding(GPUs=0))
        with home.going():
            wait_until(lambda: sum(bool(one.gpus and one.seen) for one in home.tries()) == 3, PATIENCE)
            broken = time.time()
            home.box.set(1, **switches)
            home.go("first")
            home.wait_for_words(reason)
            known = time.time()
            home.go()
        tries = home.tries()
        assert outcomes(tries) == {"succeeded"}
        assert not [one for one in tries if one.gpus == (1,) and one.placed > known]
        later = [one for one in tries if one.ended > broken]
        pause = max([*gaps(later, 0), *gaps(later, 2)], default=0.0)
        print(f"{fault}: told after {known - broken:.2f} s; longest pause on the others {pause:.3f} s")
        assert pause < 5

    @pytest.mark.parametrize("fault", DIM)
    @contract("S3-D9")
    def test_gpu_with_incomplete_figures_is_used(self, machine: Machine, fault: str) -> None:
        home = machine(gpus=2)
        home.jobs(*[training(peak=f"{4 + n % 3}GiB", profile="flat", seconds=0.4, busy=0.2) for n in range(12)])
        home.box.set(0, **DIM[fault])
        with home.going("--settle", "200ms"):
            home.wait_for(1)
            home.box.set(1, **DIM[fault])
        tries = home.tries()
        took = max(one.ended for one in tries) - tries[0].placed
        print(f"{fault}: {took:.1f} s, {home.box.ooms(0) + home.box.ooms(1)} out-of-memories")
        assert in_the_end(tries) == {"succeeded"}
        assert {one.gpus for one in tries} == {(0,), (1,)}

    def test_gpus_that_are_broken_before_the_run_are_left_out(self, machine: Machine) -> None:
        home = machine(gpus=4)
        home.box.set(0, hang=1)
        home.box.set(1, error=GPU_IS_LOST)
        home.box.set(2, crash=signal.SIGSEGV)
        home.jobs(*[whole(0.1)] * 3)
        tries = home.run()
        assert outcomes(tries) == {"succeeded"}
        assert {one.gpus for one in tries} == {(3,)}
        for said in ("GPU 0 does not answer", "GPU 1 is lost", "GPU 2 crashes the NVIDIA library"):
            assert said in home.log()

    def test_queue_that_begins_while_a_gpu_is_lost_accepts_what_needs_it_and_says_why_it_waits(
        self, machine: Machine
    ) -> None:
        home = machine(gpus=2)
        home.env["SCHEDULER_QUEUE_IDLE"] = "1s"
        home.box.set(1, error=GPU_IS_LOST)
        home.call("submit", "--gpus", "2", "--", "true", code=0)
        assert "may not start on GPU 1: is lost" in home.call("why", "0", code=0).stdout
        said = home.call("submit", "--gpus", "3", "--", "true", code=2).stderr
        assert "needs 3 GPUs; this run has 2 GPUs" in said
        assert "GPU 1 is lost" in home.call("exec", "--devices", "0,1", "--", "true", code=2).stderr
        home.call("submit", "--gpus", "1", "--", "true", code=0)
        home.call("wait", "1", code=0)
        home.call("cancel", "0", code=0)

    @pytest.mark.parametrize("driver", ["470", "450"])
    def test_run_works_with_an_old_driver(self, machine: Machine, driver: str) -> None:
        home = machine(gpus=2, driver=driver)
        home.jobs(*[training(peak="5GiB", profile="flat", seconds=0.5, busy=0.2)] * 6)
        tries = home.run("--settle", "200ms")
        assert outcomes(tries) == {"succeeded"}
        (gpu,) = tries[-1].gpus
        assert tries[-1].source == "profile"
        assert 5 * GIB <= tries[-1].first[str(gpu)] <= 6 * GIB

    @fault(32)
    def test_task_that_fails_as_its_gpu_is_lost_is_retried_on_another(self, machine: Machine) -> None:
        home = machine(gpus=2)
        home.jobs(*[holding("20GiB", Memory="20GiB", Retries=0)] * 2)
        with home.going():
            home.wait_for_use(0, 20 * GIB)
            home.wait_for_use(1, 20 * GIB)
            home.box.set(1, error=GPU_IS_LOST)
            (home.root / "dead").write_text(home.box.uuids[1])
            home.wait_for(1, "lost", "failed")
            home.go()
        stays, lost, again = sorted(home.tries(), key=lambda one: one.placed)
        stays, lost = (stays, lost) if stays.gpus == (0,) else (lost, stays)
        assert (stays.outcome, stays.number) == ("succeeded", 1)
        assert (lost.gpus, lost.outcome, lost.number) == ((1,), "lost", 1)
        assert (again.task, again.gpus, again.outcome, again.number) == (lost.task, (0,), "succeeded", 2)
        assert lost.exited is not None
        assert "GPU 1: is lost" in lost.exited.reason


class TestUnmanagedProcesses:
    def test_scheduler_alone_names_the_gpus_that_it_found(self, machine: Machine) -> None:
        assert "GPUs    2 x 24.0GiB" in machine(gpus=2).call(code=0).stdout

    def test_devices_shows_the_memory_of_unmanaged_processes(self, machine: Machine) -> None:
        home = machine(gpus=2)
        with home.box.unmanaged(1, "10GiB") as unmanaged_process:
            first, second, *_ = json.loads(home.call("devices", "--json", code=0).stdout)["devices"]
            lines = home.call("devices", code=0).stdout.splitlines()
        (found,) = second["unmanaged"]
        assert (found["pid"], found["bytes"]) == (unmanaged_process.pid, 10 * GIB)
        assert not first["unmanaged"]
        assert [line.split("  ")[0] for line in lines if f"10.0GiB ({found['user']})" in line] == ["GPU 1"]

    @fault(36)
    @contract("S3-D17")
    def test_nothing_starts_beside_a_new_unmanaged_process(self, machine: Machine) -> None:
        home = machine(gpus=2)
        task = {"Memory": "6GiB", "seconds": 0.3, "busy": 0.1, "epochs": 2}
        home.jobs(*[training(peak="6GiB", **task)] * 24, *[holding("6GiB", Memory="6GiB", Device=0)] * 2)

        def on(gpu: int, since: float) -> list[Try]:
            return [one for one in home.tries() if one.gpus == (gpu,) and one.placed > since]

        with home.going("--max-per-device", "2"):
            home.wait_for(4)
            with home.box.unmanaged(0, "10GiB"):
                came = time.time()
                elsewhere = wait_until(lambda: on(1, came)[11:] and on(1, came), PATIENCE)
                beside = on(0, came)
                left = time.time()
            again = wait_until(lambda: on(0, left)[1:], PATIENCE)[0].placed - left
            home.go()
        print(f"{len(beside)} started before he was seen; two at once again {again:.2f} s after he left")
        assert in_the_end(home.tries()) == {"succeeded"}
        assert max(one.number for one in home.tries()) <= 2
        assert not [one for one in beside if one.placed > elsewhere[6].placed]
        assert again < 5

    def test_tasks_start_beside_a_calm_unmanaged_process_with_a_margin_for_its_growth(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(*[holding("6GiB", Memory="6GiB")] * 2)
        came = time.time()
        with home.box.unmanaged(0, "10GiB") as unmanaged_process, home.going("--unmanaged-calm", "1s"):
            (first,) = home.wait_for(1)
            unmanaged_process.close()
            left = time.time()
            _, second = home.wait_for(2)
            home.go()
        print(
            f"started {first.placed - came:.2f} s after he came; the other {second.placed - left:.2f} s after he left"
        )
        assert first.placed - came > 0.9
        assert second.placed - left < 5
        assert outcomes(home.tries()) == {"succeeded"}

    @fault(36)
    def test_growing_unmanaged_process_gets_its_memory_while_tasks_wait(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(*[holding("2GiB", Memory="2GiB")] * 47)
        flags = ("--unmanaged-calm", "500ms", "--max-gpu-load", "9")
        with home.box.unmanaged(0, "6GiB") as unmanaged_process, home.going(*flags):
            home.wait_for_use(0, 20 * GIB)
            unmanaged_process.resize("8GiB")
            home.go()
        assert [one.outcome for one in home.tries()] == ["succeeded"] * 47
        assert home.box.ooms(0) == 0


class TestOrders:
    """Which GPU a number means differs between NVML, CUDA and the bus; a task must get the ones it was reserved."""

    @pytest.mark.parametrize("visible", ["uuid", "index"])
    def test_every_task_allocates_on_the_gpus_it_was_reserved(self, machine: Machine, visible: str) -> None:
        home = machine(gpus=4, cuda_order=[2, 0, 3, 1], pci_order=[3, 1, 0, 2], name=MIXED)
        home.jobs(
            *[holding("3GiB,5GiB", GPUs=2, Memory="5GiB")] * 3,
            *[holding(f"{size}GiB", Memory=f"{size}GiB") for size in range(1, 6)],
        )
        with home.going("--visible", visible):
            home.wait_for(8)
            reserved = {(one.pid, gpu) for one in home.tries() for gpu in one.gpus}
            wait_until(lambda: sum(len(home.box.processes(gpu)) for gpu in range(4)) == len(reserved), PATIENCE)
            assert {(one.pid, gpu) for gpu in range(4) for one in home.box.processes(gpu)} == reserved
            home.go()
        for one in home.tries():
            shown, environ = home.told(one.task)
            assert tuple(shown) == one.gpus
            assert environ["SCHEDULER_GPU_INDICES"] == ",".join(map(str, one.gpus))
            assert environ["CUDA_VISIBLE_DEVICES"].startswith("GPU-") == (visible == "uuid")

    @pytest.mark.parametrize("how", ALLOWED)
    def test_nothing_is_placed_on_gpus_that_the_shell_may_not_use(self, machine: Machine, how: str) -> None:
        variables, orders, numbers = ALLOWED[how]
        home = machine(gpus=8, **orders)
        home.env |= variables
        if how == "UUIDs":
            home.env["CUDA_VISIBLE_DEVICES"] = ",".join(home.box.uuids[gpu] for gpu in numbers)
        first, second = sorted(numbers)
        home.box.unmanaged(0, "3GiB")
        home.box.unmanaged(first, "100MiB")
        home.jobs(*[training(peak="9GiB", Memory="9GiB", seconds=0.3, busy=0.1)] * 6)
        tries = home.run()
        assert outcomes(tries) == {"succeeded"}
        assert {gpu for one in tries for gpu in one.gpus} == {first, second}
        assert {gpu for gpu in range(8) if home.box.peak_used(gpu) > 4 * GIB} == {first, second}
        name = next(iter(variables))
        (line,) = (line for line in home.log().splitlines() if " GPUs  " in line)
        assert f"GPUs    {first}, {second} (2 x 24.0GiB; allowed by {name})" in line
        assert f"GPU {first}: 100MiB used by" in line
        assert "3.0GiB" not in line
        refused = home.call("run", "jobs.csv", "--devices", "0", code=2).stderr
        assert f"this shell may use GPU {', '.join(map(str, numbers))} ({name}); it may not use GPU 0" in refused

    def test_ambiguous_gpu_numbers_are_refused_with_the_cure(self, machine: Machine) -> None:
        home = machine(gpus=4, name=MIXED)
        home.env["CUDA_VISIBLE_DEVICES"] = "1"
        home.jobs(whole())
        refused = home.call("run", "jobs.csv", code=1).stderr
        assert "CUDA_VISIBLE_DEVICES=1 could mean one GPU or another" in refused
        assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID" in refused


class TestVectors:
    def test_ram_is_reserved_within_its_budget_and_named_as_the_reason_to_wait(self, machine: Machine) -> None:
        if psutil.virtual_memory().available < 6 * GIB:
            pytest.skip("needs 6 GiB of free RAM")
        home = machine(gpus=4)
        home.jobs(*[training(peak="2GiB", Memory="2GiB", HostMemory="3GiB", host="30MiB", seconds=0.1)] * 30)
        flags = ("--devices", "all,host:12GiB")
        plan = home.call("run", "jobs.csv", "--dry-run", *flags, code=0).stdout
        assert 1 <= plan.count("would start now") <= 3
        assert re.search(r"would wait .* needs 3\.0GiB; host RAM has \S+ of ", plan)
        tries = home.run(*flags)
        most = most_reserved(tries, "host")
        print(f"at most {most / GIB:g} GiB of RAM reserved")
        assert outcomes(tries) == {"succeeded"}
        assert most <= 12 * GIB
        assert len({one.gpus for one in tries}) > 1

    def test_rows_with_no_and_two_gpus_see_their_own_devices(self, machine: Machine) -> None:
        home = machine(gpus=3)
        home.jobs(holding(GPUs=0), holding("1GiB,2GiB", GPUs=2, Memory="2GiB"), holding("1GiB", Memory="1GiB"))
        with home.going():
            home.wait_for(3)
            home.go()
        (none, without), (two, _), (one, _) = (home.told(one.task) for one in sorted(home.tries(), key=_by_task))
        assert (len(none), len(two), len(one)) == (0, 2, 1)
        assert (without["CUDA_VISIBLE_DEVICES"], without["SCHEDULER_GPU_INDICES"]) == ("", "")

    @fault(38)
    def test_only_the_memory_that_ran_out_grows(self, machine: Machine) -> None:
        home = machine(gpus=1)
        words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB."
        (home.root / "short.py").write_text(
            "import os, sys\n"
            "if os.environ['SCHEDULER_ATTEMPT'] == '1':\n"
            f"    sys.exit('MemoryError' if 'host' in sys.argv else {words!r})\n"
        )
        said = {"Memory": "2GiB", "HostMemory": "300MiB"}
        home.jobs(training("short.py", of="host", **said), training("short.py", of="gpu", **said))
        tries = sorted(home.run(), key=_by_task)
        host, host_again, gpu, gpu_again = tries
        assert [one.outcome for one in tries] == ["oom", "succeeded"] * 2
        assert host_again.first["host"] > host.first["host"] == 300 << 20
        assert host_again.first["0"] == 2 * GIB
        assert gpu_again.first["0"] >= 4 * GIB
        assert gpu_again.first["host"] == gpu.first["host"] == 300 << 20


def _by_task(one: Try) -> tuple[int, int]:
    return one.task, one.number


class TestOutOfMemory:
    def test_task_declared_too_small_is_retried_with_more(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(holding("18GiB", Memory="18GiB"), holding("1GiB", more="7GiB", Memory="2GiB"))
        with home.going():
            home.wait_for_use(0, 19 * GIB)
            home.go("more")
            home.wait_for(1, "oom")
            home.go()
        big, small, again = home.tries()
        assert (big.outcome, big.number) == ("succeeded", 1)
        assert (small.outcome, again.outcome, again.number) == ("oom", "succeeded", 2)
        assert again.first["0"] >= 7 * GIB
        assert again.placed > big.ended
        assert {task["id"]: task["ooms"] for task in home.tasks()} == {big.task: 0, small.task: 1}

    @fault(134)
    def test_task_that_ran_out_on_a_gpu_of_its_own_is_not_started_again(self, machine: Machine) -> None:
        home = machine(gpus=1)
        (home.root / "edge.py").write_text(EDGE)
        home.jobs(training("edge.py"))
        home.go()
        (only,) = home.run(code=1)
        assert (only.outcome, only.number) == ("oom", 1)
        assert home.states() == ["oom"]
        words = "of the 24.0GiB of GPU 0 were reserved for it, and 22.0GiB were seen in use; GPU 0 has no more for it"
        assert words in home.log()
        assert words in home.call("why", "0").stdout

    @fault(134)
    def test_task_beside_which_something_used_memory_is_started_once_more(self, machine: Machine) -> None:
        home = machine(gpus=1)
        (home.root / "edge.py").write_text(EDGE)
        home.jobs(training("edge.py"))
        with home.going("--unmanaged", "ignore", code=1):
            home.wait_for_use(0, 22 * GIB)
            home.box.unmanaged(0, "600MiB")
            home.go()
        assert [(one.outcome, one.number) for one in home.tries()] == [("oom", 1), ("oom", 2)]
        assert "something else used 600MiB of GPU 0, but it is the second time" in home.log()

    @fault(38)
    def test_task_above_every_gpu_names_its_request_and_the_capacities(self, machine: Machine) -> None:
        home = machine(gpus=2)
        home.jobs(training(peak="30GiB", seconds=0.4), training(peak="2GiB", seconds=0.2))
        home.run("--settle", "200ms", code=1)
        assert [task["state"] for task in home.tasks()] == ["refused", "succeeded"]
        assert re.search(r"needs (29|30)\.\dGiB; the largest device \(GPU [01]\) has 24\.0GiB", home.log())

    def test_task_that_outgrows_its_reservation_raises_it_and_blocks_starts(self, machine: Machine) -> None:
        home = machine(gpus=1)
        home.jobs(
            holding("4GiB", more="8GiB", Memory="4GiB"),
            holding("8GiB", until="first", Memory="8GiB"),
            holding("10GiB", Memory="10GiB"),
        )
        with home.going("-j", "2"):
            home.wait_for_use(0, 12 * GIB)
            home.go("more")
            home.wait_for_words("reservation raised to GPU 0")
            home.go("first")
            home.wait_for(1, "succeeded")
            home.go()
        grown, _, waited = home.tries()
        assert [one.outcome for one in home.tries()] == ["succeeded"] * 3
        assert "grew" in grown.causes
        assert grown.reservation["0"] >= 12 * GIB
        assert waited.placed >= grown.ended
        assert home.box.ooms(0) == 0


class TestEnvironment:
    @contract("S3-25")
    def test_task_finds_its_variables_and_no_mps_of_the_shell(self, machine: Machine) -> None:
        home = machine(gpus=2)
        home.env |= {
            "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
        }
        said = {"Memory": "5GiB", "HostMemory": "300MiB"}
        home.jobs(
            holding("1GiB", Name="first", **said),
            holding("1GiB", Name="second", Env="OMP_NUM_THREADS=7 MINE=yes", **said),
        )
        with home.going():
            home.wait_for(2)
            home.go()
        one, other = sorted(home.tries(), key=_by_task)
        (_, environ), (_, beside) = home.told(one.task), home.told(other.task)
        wanted = {
            "CUDA_VISIBLE_DEVICES": home.box.uuids[one.gpus[0]],
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "SCHEDULER_TASK_ID": str(one.task),
            "SCHEDULER_ATTEMPT": "1",
            "SCHEDULER_NAME": "first",
            "SCHEDULER_RUN": "1",
            "SCHEDULER_PURPOSE": "run",
            "SCHEDULER_EPOCHS": "",
            "SCHEDULER_MEMORY_BYTES": str(5 * GIB),
            "SCHEDULER_HOST_MEMORY_BYTES": str(300 << 20),
            "SCHEDULER_GPU_INDICES": str(one.gpus[0]),
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
            "PYTHONUNBUFFERED": "1",
        }
        assert {name: environ.get(name) for name in wanted} == wanted
        assert not [name for name in environ if name.startswith("CUDA_MPS_")]
        for name in ("SCHEDULER_TASK_DIR", "SCHEDULER_RESULT", "SCHEDULER_PROGRESS"):
            assert Path(environ[name]).is_relative_to(home.state / "runs/1/tasks"), name
        assert environ["SCHEDULER_KEY"] != beside["SCHEDULER_KEY"]
        assert environ["MASTER_PORT"] != beside["MASTER_PORT"]
        assert environ["PET_MASTER_PORT"] == environ["MASTER_PORT"]
        assert int(environ["OMP_NUM_THREADS"]) >= 1
        assert (beside["OMP_NUM_THREADS"], beside["MINE"]) == ("7", "yes")


class TestBadInput:
    @pytest.mark.parametrize(
        ("row", "flags", "said"),
        [
            ({"Memory": "25GiB"}, "", ("row 2, column Memory", "needs 25.0GiB", "(GPU 0) has 24.0GiB")),
            ({"GPUs": 3}, "", ("row 2, column GPUs", "needs 3 GPUs", "2 GPUs")),
            ({"Device": 7}, "", ("row 2, column Device", "no device '7'", "GPU 0, GPU 1, host")),
            ({"Device": "GPU-0000"}, "", ("row 2, column Device", "no device 'GPU-0000'")),
            ({}, "--devices 5", ("no device '5' here", "0 (NVIDIA Stand-in 24GB, GPU-")),
            ({}, "--devices GPU-0000", ("no device 'GPU-0000' here",)),
            ({}, "--devices 0:lots", ("--devices 0:lots", "lots")),
        ],
    )
    def test_bad_input_is_refused_in_one_sentence_and_leaves_nothing(
        self, machine: Machine, row: Row, flags: str, said: tuple[str, ...]
    ) -> None:
        home = machine(gpus=2)
        home.jobs(training(peak="1GiB", **row))
        refused = home.call("run", "jobs.csv", *flags.split(), code=2).stderr
        assert [words for words in said if words not in refused] == [], refused
        assert refused.count("\n") == 1, refused
        assert not list(home.state.glob("runs/*"))


class TestResume:
    def interrupted(self, home: GpuHome, *flags: str) -> None:
        """Start a run and kill its scheduler while each of its GPUs has a task."""
        home.jobs(*[holding("20GiB", Memory="20GiB")] * 6)
        with home.start("run", "jobs.csv", *flags) as scheduler:
            for gpu in range(3):
                home.wait_for_use(gpu, 20 * GIB)
            home.wait_for(3)
            scheduler.kill()

    def test_resume_runs_nothing_twice_and_forgets_nothing(self, machine: Machine) -> None:
        home = machine(gpus=3)
        self.interrupted(home)
        with home.going(verb="resume"):
            home.wait_for_words("taken over; 0 ended, 3 ran, 3 waiting")
            home.go()
        assert [(one.number, one.outcome) for one in home.tries()] == [(1, "succeeded")] * 6
        began = (home.root / "began").read_text().split()
        assert len(began) == len(set(began)) == 6
        assert sum(home.box.ooms(gpu) for gpu in range(3)) == 0

    def test_resume_without_one_gpu_goes_on_with_the_others(self, machine: Machine) -> None:
        home = machine(gpus=3)
        self.interrupted(home)
        home.plug(gpus=2)
        with home.going(verb="resume"):
            home.wait_for_words("taken over; 0 ended, 3 ran, 3 waiting")
            home.go()
        assert [(one.number, one.outcome) for one in home.tries()] == [(1, "succeeded")] * 6
        assert {one.gpus for one in home.tries()[3:]} <= {(0,), (1,)}

    def test_task_lost_with_its_gpu_is_retried_on_the_others(self, machine: Machine) -> None:
        home = machine(gpus=3)
        self.interrupted(home)
        home.kill_all()
        home.plug(gpus=2)
        home.go()
        with home.going(verb="resume"):
            pass
        assert in_the_end(home.tries()) == {"succeeded"}
        assert {one.gpus for one in home.tries()[3:]} <= {(0,), (1,)}
        assert len(home.tries()) == 9

    def test_missing_gpus_chosen_by_number_are_named(self, machine: Machine) -> None:
        home = machine(gpus=3)
        self.interrupted(home, "--devices", "0-2")
        home.plug(gpus=2)
        refused = home.call("resume", code=2).stderr
        assert "--devices 0-2: there is no device '0-2' here; this machine has: 0 (" in refused
